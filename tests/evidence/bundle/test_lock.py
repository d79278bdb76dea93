"""The lock of an output directory: one holder at a time, which is recorded; dead processes hold no lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers import drive

from proofbox import BundleWriter
from proofbox.core.clock import ManualClock
from proofbox.errors import BundleLocked
from proofbox.evidence.bundle.lock import RunLock, read_holder


def test_32_processes_take_turns(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    times = rounds(10, 100)
    assert drive("exclude", tmp_path, 32, times) == {"failures": 0, "count": 32 * times}


def test_32_concurrent_runs_all_commit(tmp_path: Path) -> None:
    output = drive("commit_at_once", tmp_path, 32)
    assert output.pop("latest").startswith("run-")
    assert output == {"failures": 0, "runs": 32, "left": [".runtime.lock"]}


def test_dead_process_holds_no_lock_even_through_a_child(tmp_path: Path) -> None:
    output = drive("die_with_lock", tmp_path)
    assert all(output.values()), output


def test_refused_process_learns_the_holder_and_changes_nothing(tmp_path: Path) -> None:
    assert drive("refuse_while_held", tmp_path) == {"code": "BUNDLE_LOCKED", "holder_is_me": True, "untouched": True}


def test_waiting_is_bounded(tmp_path: Path) -> None:
    clock = ManualClock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    with RunLock(tmp_path, purpose="a"), pytest.raises(BundleLocked) as refused:
        RunLock(tmp_path, purpose="b", timeout=3.0, clock=clock, sleep=sleep).__enter__()
    assert sum(slept) == pytest.approx(3.0)
    assert refused.value.retryable


def test_fail_does_not_wait(tmp_path: Path) -> None:
    def sleep(_: float) -> None:
        pytest.fail("it waited")

    with RunLock(tmp_path, purpose="a"), pytest.raises(BundleLocked):
        RunLock(tmp_path, purpose="b", mode="fail", sleep=sleep).__enter__()
    with RunLock(tmp_path, purpose="b", mode="fail", sleep=sleep) as lock:
        assert lock.took_over_from is None


def test_writer_in_mode_fail_names_the_holder_of_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path, purpose="commit run-1"), pytest.raises(BundleLocked, match="commit run-1"):
        BundleWriter.create(tmp_path, lock="fail")


def test_lock_on_a_removed_file_does_not_count(tmp_path: Path) -> None:
    """Another process removes the file after this one opened it and before it locks it."""
    opened: list[str] = []
    real_open = os.open

    def open_and_remove(path: Any, *arguments: Any, **options: Any) -> int:
        fd = real_open(path, *arguments, **options)
        if str(path).endswith(".runtime.lock") and not opened:
            opened.append(str(path))
            os.unlink(path)
        return fd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_and_remove)
        lock = RunLock(tmp_path, purpose="a", timeout=60, sleep=lambda _: None).__enter__()
    assert opened
    with pytest.raises(BundleLocked):
        RunLock(tmp_path, purpose="b", mode="fail").__enter__()
    lock.__exit__(None, None, None)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 3000, b'{"process":{"pid":-1}}'])
def test_malformed_lock_file_names_no_holder(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".runtime.lock").write_bytes(content)
    assert read_holder(tmp_path) is None
    with RunLock(tmp_path, purpose="a") as lock:
        assert lock.took_over_from is None
        holder = read_holder(tmp_path)
        assert holder is not None
        assert (holder.process["pid"], holder.purpose, holder.alive) == (os.getpid(), "a", True)
