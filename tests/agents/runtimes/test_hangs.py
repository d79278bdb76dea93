"""Programs that hang before they answer their first request, played by fake programs."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import acp_lab
import claude_lab
import pytest
from codex_lab import Lab
from pacing import in_time

from proofbox.errors import RuntimeStartFailed

Run = Callable[[Path, Callable[[Any], Awaitable[None]]], None]

pytestmark = pytest.mark.needs("bubblewrap")
each_runtime = pytest.mark.parametrize("run", [acp_lab.run, claude_lab.run], ids=["acp", "claude_code"])


@each_runtime
def test_program_that_hangs_once_is_started_again(run: Run, tmp_path: Path) -> None:
    def attempt(limit: float) -> tuple[str, int] | None:
        outcomes: list[tuple[str, int]] = []

        async def work(lab: Lab) -> None:
            async with lab.session(fake="hang-once", request_timeout=limit) as seat:
                with contextlib.suppress(RuntimeStartFailed):  # the machine is too slow for the limit
                    status = (await seat.turn("go")).status
                    outcomes.append((status, seat.session.facts()["restarts"]))

        run(tmp_path, work)
        return outcomes[0] if outcomes else None

    assert in_time(attempt, bool) == ("completed", 1)


@each_runtime
def test_program_that_always_hangs_fails_to_start(run: Run, tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="hang", request_timeout=0.3) as seat:
            with pytest.raises(RuntimeStartFailed, match=r"did not answer initialize|initialize timed out"):
                await seat.session.start_thread()

    run(tmp_path, work)
