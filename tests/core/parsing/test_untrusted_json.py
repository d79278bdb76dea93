"""Damaged JSON is refused with one kind of error, and each reader reports it with its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proofbox.cli import main
from proofbox.config.consent import Widening, require
from proofbox.core.dirs import state_dir
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.delivery.patch.baseline import parse_baseline
from proofbox.errors import ConsentRequired, CorruptError, UsageError
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.images.pull import LOCK_FILE, check_lock

DAMAGED = (b"", b"\xff", b'{"schema_version": "\xf0"}', b"[" * 100_000, b'{"a":' * 100_000, b"{} x")


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("kind", [Any, dict[str, Any], Widening])
def test_every_failure_is_a_decode_error(data: bytes, kind: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        parse_json(data, kind)


def read_lock(data: bytes, place: Path) -> None:
    (place / LOCK_FILE).parent.mkdir()
    (place / LOCK_FILE).write_bytes(data)
    check_lock(place, Image(name="x", arch="x86_64", url="https://example.org/x", sha256="0" * 64))


def read_consents(data: bytes, place: Path) -> None:
    (state_dir() / "consents.json").write_bytes(data)
    require(place, [Widening("network", "a")], command="x")


READERS: dict[str, tuple[Callable[[bytes, Path], Any], type[Exception]]] = {
    "lock": (read_lock, UsageError),
    "consents": (read_consents, ConsentRequired),
    "baseline": (lambda data, place: parse_baseline(data, str(place)), CorruptError),
}


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_damaged_documents(
    name: str, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    read, refusal = READERS[name]
    with pytest.raises(refusal):
        read(data, tmp_path)


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_app_spec_is_a_usage_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_bytes(data)
    words = ["backend", "spec", str(tmp_path / "spec.json"), "--enterprise-id", "e", "--data", str(tmp_path / "data")]
    assert main(words) == 2
