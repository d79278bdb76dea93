"""Helpers for tests of the Claude Code runtime: the real program, or a fake one, in a box with a fake model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import codex_lab
from codex_lab import Seat

from proofbox.agents.contract import SessionOptions
from proofbox.agents.runtimes.claude import ClaudeCode

FAKE = Path(__file__).with_name("fake_claude.py")


class ClaudeLab(codex_lab.Lab):
    """A fake model and a workspace. Opens sessions of Claude Code."""

    @contextlib.asynccontextmanager
    async def session(
        self, settings: Mapping[str, Any] | None = None, *, fake: str | None = None, **options: Any
    ) -> AsyncIterator[Seat]:
        said: dict[str, Any] = {"base_url": self.url.removesuffix("/v1"), "max_retries": 1, **(settings or {})}
        if fake is not None:
            said.setdefault("binary", str(FAKE))
            options["env"] = {**options.get("env", {}), "FAKE_MODE": fake}
        elif "PROOFBOX_TEST_CLAUDE" in os.environ:
            said.setdefault("binary", os.environ["PROOFBOX_TEST_CLAUDE"])
        options = {"workspace": self.workspace, "scratch": self.scratch, "provider": "bubblewrap", **options}
        session = await ClaudeCode().start_session(SessionOptions(settings=said, **options))
        seat = Seat(cast("Any", session))
        try:
            yield seat
        finally:
            await session.close()


def run(place: Path, work: Callable[[ClaudeLab], Awaitable[None]]) -> None:
    """Run a test in a lab, then check that no process and no file of the session is left."""

    async def with_claude(lab: codex_lab.Lab) -> None:
        await work(ClaudeLab(place, lab.model, lab.url))

    codex_lab.run(place, with_claude)
