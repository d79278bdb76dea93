"""Digests agree with sha256sum for every kind of source."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.digest import digest_of, sha256_file, sha256_hex

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_known_vector() -> None:
    assert sha256_hex(b"abc") == sha256_hex(memoryview(b"abc")) == sha256_hex(bytearray(b"abc")) == ABC


@pytest.mark.parametrize("size", [0, 3, 1 << 18, (1 << 18) + 1, 1_000_000])
def test_a_file_is_hashed_whole_by_path_and_by_descriptor(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(data)
    expected = (hashlib.sha256(data).hexdigest(), size)
    assert sha256_file(path) == sha256_file(str(path)) == expected
    with path.open("rb", buffering=0) as stream:
        stream.seek(min(size, 2))
        assert sha256_file(stream.fileno()) == expected
        assert stream.tell() == min(size, 2)


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="not a regular file") as caught:
            sha256_file(path)
        assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError):
        sha256_file(tmp_path / "absent")


@given(st.dictionaries(st.text(), st.integers(0, 99)))
def test_a_value_has_one_digest(value: dict[str, int]) -> None:
    assert digest_of(value) == digest_of(dict(reversed(value.items())))
    assert digest_of({**value, "more": 1}) != digest_of({**value, "more": 2})


def test_a_value_is_hashed_in_its_canonical_form() -> None:
    assert digest_of({"b": 1.0, "a": "x"}) == sha256_hex(b'{"a":"x","b":1}')


def test_growing_file_does_not_keep_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 10)
    real, reads = os.pread, 0

    def pread(fd: int, length: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 10, "the reader follows the writer"
        with path.open("ab") as log:
            log.write(b"y" * 1000)
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    digest, size = sha256_file(path)
    assert digest == hashlib.sha256(path.read_bytes()[:size]).hexdigest()
    assert size <= 11
