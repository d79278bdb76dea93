"""A lock stays exclusive even if its file is removed."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from proofbox.core.files.locks import locked


def test_exclusive_lock_excludes_and_shared_lock_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        locked(path, shared=True),
        locked(path, shared=True, wait=False),
        pytest.raises(BlockingIOError),
        locked(path, wait=False),
    ):
        pass
    with locked(path, wait=False):
        pass


@pytest.mark.parametrize("again", [True, False])
def test_waiter_on_a_removed_lock_file_locks_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    path = tmp_path / "lock"
    lock = fcntl.flock
    waited: list[int] = []

    def flock(fd: int, how: int) -> None:
        if not waited:
            waited.append(fd)
            path.unlink()  # by who held it until now
            if again:
                path.touch()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(path), pytest.raises(BlockingIOError), locked(path, wait=False):
        pass
