"""Atomic writes: always the old or the new document, one winner, no leftovers."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proofbox.core.files.atomic import TEMPORARY_PREFIX, create_only, sweep_temporaries, write_document

Write = Callable[[Path, bytes], None]

# Runs one write and dies by SIGKILL just before its n-th system call that matters. Short writes add more points.
CHILD = """
import fcntl, os, signal, sys
from proofbox.core.files import atomic
function, path, data, deadline = sys.argv[1], sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
calls = 0
def mortal(call):
    def wrapped(*args, **options):
        global calls
        calls += 1
        if calls == deadline:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return wrapped
whole_write = os.write
os.write = lambda fd, data: whole_write(fd, data[: len(data) // 2 + 1])
for name in ("open", "write", "fsync", "fstat", "replace", "link", "unlink", "close"):
    setattr(os, name, mortal(getattr(os, name)))
fcntl.flock = mortal(fcntl.flock)
getattr(atomic, function)(path, data)
print(calls)
"""


def run_child(function: str, path: Path, data: str, deadline: int) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", CHILD, function, str(path), data, str(deadline)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("function", "existing"), [("write_document", True), ("write_document", False), ("create_only", False)]
)
def test_killed_at_any_instant_leaves_old_or_new(tmp_path: Path, function: str, existing: bool) -> None:
    path = tmp_path / "document"
    seen = set()
    for deadline in range(1, 100):
        if existing:
            path.write_bytes(b"old")
        else:
            path.unlink(missing_ok=True)
        child = run_child(function, path, "the new document", deadline)
        content = path.read_bytes() if path.exists() else None
        assert content in (b"old" if existing else None, b"the new document")
        seen.add(content)
        sweep_temporaries(tmp_path)
        assert [entry.name for entry in tmp_path.iterdir()] == (["document"] if content is not None else [])
        if child.returncode == 0:
            assert content == b"the new document"
            assert deadline > int(child.stdout) >= 8
            break
        assert child.returncode == -signal.SIGKILL, child.stderr
    else:
        pytest.fail("the child never finished")
    assert len(seen) == 2


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 3_000_000])
@pytest.mark.parametrize("write", [write_document, create_only])
def test_document_has_the_given_content(tmp_path: Path, write: Write, data: bytes) -> None:
    write(tmp_path / "document", data)
    assert (tmp_path / "document").read_bytes() == data
    assert len(list(tmp_path.iterdir())) == 1


def test_replacement_uses_the_new_mode(tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_bytes(b"")
    path.chmod(0o666)
    write_document(path, b"secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    create_only(tmp_path / "other", b"", mode=0o400)
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o400


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"target")
    (tmp_path / "link").symlink_to("target")
    write_document(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"target"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("kind", ["file", "directory", "dangling"])
def test_create_only_refuses_any_existing_path(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    if kind == "file":
        path.write_bytes(b"first")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        create_only(path, b"second")
    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]
    if kind == "file":
        assert path.read_bytes() == b"first"


def test_one_of_many_creators_wins(tmp_path: Path) -> None:
    won: list[bytes] = []
    start = threading.Barrier(8)

    def create(data: bytes) -> None:
        start.wait()
        try:
            create_only(tmp_path / "document", data)
        except FileExistsError:
            return
        won.append(data)

    threads = [threading.Thread(target=create, args=(bytes([number]) * 1000,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(tmp_path / "document").read_bytes()] == won


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_failure_keeps_the_old_document_and_cleans_up(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "document"
    write_document(path, b"old")

    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space"):
        write_document(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["document"]


def test_relative_names_work_and_invalid_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_document("document", b"x")
    assert (tmp_path / "document").read_bytes() == b"x"
    for name in ("", ".", "..", "folder/"):
        with pytest.raises(IsADirectoryError):
            write_document(name, b"x")
    with pytest.raises(FileNotFoundError):
        write_document("absent/document", b"x")


def test_sweep_spares_living_writers_and_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / (TEMPORARY_PREFIX + "dead")).write_bytes(b"half")
    (tmp_path / (TEMPORARY_PREFIX + "link")).symlink_to("x")
    (tmp_path / (TEMPORARY_PREFIX + "folder")).mkdir()
    (tmp_path / "x").write_bytes(b"mine")
    swept: list[list[str]] = []
    real = os.replace

    def sweep_then_replace(*args: Any, **options: Any) -> None:
        swept.append(sweep_temporaries(tmp_path))
        real(*args, **options)

    monkeypatch.setattr(os, "replace", sweep_then_replace)
    write_document(tmp_path / "document", b"alive")
    assert swept == [[TEMPORARY_PREFIX + "dead"]]
    assert (tmp_path / "document").read_bytes() == b"alive"
    assert (tmp_path / "x").read_bytes() == b"mine"
    assert sweep_temporaries(tmp_path) == []


def test_a_sweep_between_creation_and_lock_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock
    stolen: list[str] = []

    def sweep_first(fd: int, operation: int) -> None:
        if not stolen:
            stolen.append("in the sweep")
            stolen[:] = sweep_temporaries(tmp_path)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    write_document(tmp_path / "document", b"whole")
    assert len(stolen) == 1
    assert (tmp_path / "document").read_bytes() == b"whole"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_directory_is_synced_after_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut can't be staged here, but the order of the calls that survives one can be checked."""
    steps: list[str] = []
    sync, move = os.fsync, os.replace

    def record_sync(fd: int) -> None:
        steps.append("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync file")
        sync(fd)

    def record_move(*args: Any, **options: Any) -> None:
        steps.append("move")
        move(*args, **options)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_move)
    write_document(tmp_path / "document", b"x")
    assert steps == ["sync file", "move", "sync directory"]
