"""Helpers for tests of the codex runtime: the real codex, or a fake one, in a box with a fake model."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio

from proofbox.agents.contract import SessionOptions, TurnResult
from proofbox.agents.events import Event
from proofbox.agents.fakemodel import FakeModel
from proofbox.agents.runtimes.codex import CodexAppServer
from proofbox.agents.runtimes.codex.session import CodexSession

FAKE = Path(__file__).with_name("fake_codex.py")
SECONDS = 200.0
E = TypeVar("E", bound=Event)


class Lab:
    """A fake model and a workspace. Opens sessions."""

    def __init__(self, place: Path, model: FakeModel, url: str) -> None:
        self.model = model
        self.url = url
        self.workspace = place / "workspace"
        self.scratch = place / "scratch"
        for path in (self.workspace, self.scratch):
            path.mkdir(exist_ok=True)

    @contextlib.asynccontextmanager
    async def session(
        self, settings: Mapping[str, Any] | None = None, *, fake: str | None = None, **options: Any
    ) -> AsyncIterator[Seat]:
        merged: dict[str, Any] = {"base_url": self.url, "model": "fake-model", "max_retries": 1, **(settings or {})}
        if fake is not None:
            merged.setdefault("binary", str(FAKE))
            options["env"] = {**options.get("env", {}), "FAKE_MODE": fake}
        elif "PROOFBOX_TEST_CODEX" in os.environ:
            merged.setdefault("binary", os.environ["PROOFBOX_TEST_CODEX"])
        options = {"workspace": self.workspace, "scratch": self.scratch, "provider": "bubblewrap", **options}
        if options.get("sandboxed") is False:
            # A login shell on the host would read the user's profile, and could be killed while doing so.
            options |= {"provider": None, "env": {**options.get("env", {}), "HOME": str(self.workspace.parent)}}
        session = await CodexAppServer().start_session(SessionOptions(settings=merged, **options))
        seat = Seat(session)
        try:
            yield seat
        finally:
            await session.close()


class Seat:
    """A session and its events."""

    def __init__(self, session: CodexSession) -> None:
        self.session = session
        self.events: list[Event] = []
        session.add_listener(self._hear)

    async def _hear(self, event: Event) -> None:
        self.events.append(event)

    def of(self, event_type: type[E], /, **members: Any) -> list[E]:
        return [
            event
            for event in self.events
            if isinstance(event, event_type) and all(getattr(event, name) == value for name, value in members.items())
        ]

    async def turn(self, prompt: str, thread: str | None = None) -> TurnResult:
        thread = thread or await self.session.start_thread()
        return await self.session.wait_turn(await self.session.start_turn(thread, prompt))

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        with anyio.fail_after(seconds):
            while not (value := condition()):  # noqa: ASYNC110 (tests wait by polling)
                await anyio.sleep(0.005)
        return value


def run(place: Path, work: Callable[[Lab], Awaitable[None]]) -> None:
    """Run a test in a lab, then check that no process and no file of the session is left."""

    async def main() -> None:
        with anyio.fail_after(SECONDS):
            model = FakeModel()
            async with model.listening() as url:
                await work(Lab(place, model, url))

    before = descendants()
    try:
        anyio.run(main)
    except BaseExceptionGroup as group:
        raise _innermost(group) from None
    end = time.monotonic() + 30
    while (left := descendants() - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
    assert not list((place / "scratch").iterdir())


def _innermost(error: BaseException) -> BaseException:
    """Unwrap exception groups, because pytest explains only bare assertions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def descendants(of: int | None = None) -> set[int]:
    """Return the living descendants of a process, by default of this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    while new := {pid for pid, parent in parents.items() if parent in found | {of or os.getpid()}} - found:
        found |= new
    return found


def processes(piece: str) -> Iterator[int]:
    """Yield the processes of this run whose command line contains a string."""
    for pid in descendants():
        with contextlib.suppress(OSError):
            if piece in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                yield pid
