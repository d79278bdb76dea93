"""Killing the processes of a thread by a variable in their environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox.agents.agent_box import kill_marked
from proofbox.sandbox.async_service import AsyncSandboxes

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.anyio]

STARTED = "until grep -qzE '^(env|sleep)$' /proc/$!/cmdline; do :; done"
CHAIN = "setsid " + "env " * 100 + f"sleep 300 >/dev/null 2>&1 & {STARTED}"
"""A program that executes another one a hundred times: its environment is often empty while it is read.

On a busy machine, it may have executed all of them before it is looked at.
"""
ALIVE = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx '30[0]'"


async def test_process_that_is_executing_another_program_is_killed(tmp_path: Path) -> None:
    async with AsyncSandboxes(tmp_path) as boxes:
        box = await boxes.start_session(provider="bubblewrap")
        for attempt in range(8):
            await box.exec(["sh", "-c", CHAIN], env={"MARK": f"m{attempt}"})
            assert await kill_marked(box, [f"MARK=m{attempt}"])
            assert (await box.exec(["sh", "-c", ALIVE])).stdout.strip() == "0"


async def test_process_without_all_marks_is_not_killed(tmp_path: Path) -> None:
    async with AsyncSandboxes(tmp_path) as boxes:
        box = await boxes.start_session(provider="bubblewrap")
        await box.exec(["sh", "-c", CHAIN], env={"MARK": "m1", "OTHER": "m2"})
        assert await kill_marked(box, ["MARK=m"])
        assert await kill_marked(box, ["MARK=m1", "OTHER=m"])
        # While it executes another program, its command line is empty as well.
        waited = await box.exec(["sh", "-c", f"until {ALIVE} >/dev/null; do sleep 0.01; done"], timeout=30)
        assert waited.exit_code == 0
        assert await kill_marked(box, ["MARK=m1", "OTHER=m2"])
        assert (await box.exec(["sh", "-c", ALIVE])).stdout.strip() == "0"
