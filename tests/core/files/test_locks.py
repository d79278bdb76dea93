"""A lock is one lock, also where its file is removed."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from proofbox.core.files.locks import locked


def test_one_holds_it_at_a_time_and_several_share_it(tmp_path: Path) -> None:
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
def test_who_waited_for_a_file_that_was_removed_has_the_one_in_its_place(
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
