"""Snapshots while a box is running: with the box frozen, or with the overlap recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from proofbox import AsyncSandboxes, Sandboxes, Workspace
from proofbox.errors import PolicyRefused
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.service import Session

pytestmark = pytest.mark.needs("bubblewrap")

# Two files that always contain the same number, except between the two writes.
TWINS = "n=0; while :; do n=$((n+1)); echo $n > one; echo $n > two; echo x; done"


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.init(tmp_path) as made:
        yield made


@pytest.fixture
def session(ws: Workspace) -> Iterator[Session]:
    with Sandboxes(ws.path) as boxes, boxes.start_session(provider="bubblewrap") as started:
        yield started


@pytest.fixture
def busy(session: Session) -> Iterator[Session]:
    begun = threading.Event()
    worker = threading.Thread(
        target=lambda: session.exec(["sh", "-c", TWINS], timeout=250, on_output=lambda _: begun.set(), max_output=100)
    )
    worker.start()
    assert begun.wait(60)
    yield session
    session.exec(["pkill", "-f", "one; echo"])
    worker.join(60)


@pytest.mark.skipif(cgroups.tree().unified is None, reason="no writable control groups here")
def test_frozen_box_does_not_write_during_a_snapshot(ws: Workspace, busy: Session) -> None:
    for _ in range(5):
        taken = ws.snapshot("frozen", freeze=busy)
        assert (taken.frozen, taken.overlap, taken.unstable) == (True, 0, ())
    with busy.frozen():
        before = (ws.path / "one").read_text(), (ws.path / "two").read_text()
        assert not threading.Event().wait(0.05)
        assert ((ws.path / "one").read_text(), (ws.path / "two").read_text()) == before
    now = (ws.path / "one").read_text()
    while (ws.path / "one").read_text() in (now, ""):
        pass  # would never end if the box stayed frozen


def test_overlap_with_a_running_command_is_recorded(ws: Workspace, busy: Session) -> None:
    taken = ws.snapshot("beside", beside=busy)
    assert (taken.frozen, taken.overlap) == (False, 1)


def test_idle_box_has_no_overlap(ws: Workspace, session: Session) -> None:
    session.exec(["true"])
    assert ws.snapshot("beside", beside=session).overlap == 0
    assert ws.snapshot("no box given").overlap is None


def test_freezing_an_unsupported_box_is_refused(
    ws: Workspace, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "group_of", lambda *_: None)
    with pytest.raises(PolicyRefused, match="can't be frozen"):
        ws.snapshot("frozen", freeze=session)
    assert ws.history() == []


@pytest.mark.skipif(cgroups.tree().unified is None, reason="no writable control groups here")
def test_async_client_can_freeze_a_box(tmp_path: Path) -> None:
    async def hold() -> None:
        async with AsyncSandboxes(tmp_path) as boxes, await boxes.start_session(provider="bubblewrap") as session:
            await session.exec(["sh", "-c", f"({TWINS}) >/dev/null 2>&1 & until [ -s two ]; do :; done"])
            async with await session.frozen():
                assert await session.commands_alive() == 1
                before = (tmp_path / "one").read_text()
                await anyio.sleep(0.05)
                assert (tmp_path / "one").read_text() == before

    anyio.run(hold)
