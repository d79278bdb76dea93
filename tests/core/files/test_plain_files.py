"""Untrusted paths: pipes and devices are refused, and descriptors passed by the caller are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proofbox.core.files.plain import open_plain, read_plain


def test_named_pipe_or_device_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for place in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"regular file|directory"):
            read_plain(place, 10)


def test_shell_process_substitution_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"said")
    os.close(writing)
    try:
        with open_plain(Path(f"/dev/fd/{reading}")) as given:
            assert given.read() == b"said"
    finally:
        os.close(reading)


def test_link_to_a_descriptor_path_is_refused(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    (tmp_path / "link").symlink_to(f"/dev/fd/{reading}")
    try:
        with pytest.raises(OSError, match="regular file"):
            read_plain(tmp_path / "link", 10)
    finally:
        os.close(reading)
        os.close(writing)
