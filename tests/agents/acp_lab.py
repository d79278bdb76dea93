"""Helpers for tests of the ACP runtime: a known agent, or a small one of our own, in a box with a fake model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import codex_lab
from codex_lab import Seat

from proofbox.agents.conformance.model_rigs import SceneModel
from proofbox.agents.conformance.rig import Rig, Scene, WriteGarbage
from proofbox.agents.contract import SessionOptions
from proofbox.agents.registry import Registry
from proofbox.agents.runtimes.acp import AcpRuntime
from proofbox.agents.runtimes.claude.binary import find_claude
from proofbox.agents.runtimes.codex.binary import find_binary
from proofbox.sandbox.conformance.check import NotApplicable

FAKE = Path(__file__).with_name("fake_acp.py")


def fake_settings(url: str, mode: str = "") -> dict[str, Any]:
    """Return the settings for our own agent, as anyone would configure an agent by its command."""
    return {
        "command": ["/usr/bin/python3", "/run/fake_acp.py"],
        "mounts": [f"{FAKE}:/run/fake_acp.py:ro"],
        "env": {"BASE_URL": "{base_url}", "AGENT_HOME": "{home}", "FAKE_MODE": mode},
        "base_url": url,
    }


def claude_settings(url: str) -> dict[str, Any]:
    """Return the settings for claude-agent-acp, which uses the Claude Code that is installed for the other tests."""
    claude = find_claude(os.environ.get("PROOFBOX_TEST_CLAUDE")).path
    return {
        "agent": "claude",
        "base_url": url,
        "env": {"CLAUDE_CODE_EXECUTABLE": "/run/acp/claude"},
        "mounts": [f"{claude}:/run/acp/claude:ro"],
    }


def codex_settings(url: str) -> dict[str, Any]:
    """Return the settings for codex-acp, which uses the Codex that is installed for the other tests."""
    codex = find_binary(os.environ.get("PROOFBOX_TEST_CODEX")).path
    return {
        "agent": "codex",
        "base_url": url,
        "model": "fake-model",
        "env": {"CODEX_PATH": "/run/acp/codex"},
        "mounts": [f"{codex}:/run/acp/codex:ro"],
    }


def gemini_settings(url: str) -> dict[str, Any]:
    return {"agent": "gemini", "base_url": url.removesuffix("/v1"), "model": "gemini-fake"}


def acp_with(settings: Callable[[str], dict[str, Any]]) -> Registry:
    """Return a registry with the runtime `acp`, which the conformance suite checks with an agent other than
    OpenCode.
    """

    class OtherAcp(AcpRuntime):
        id = "other_acp"

        def conformance_rig(self) -> Rig:
            return ModelRig(settings)

    return Registry({OtherAcp.id: OtherAcp})


class ModelRig:
    """Plays scenes with a fake model. `settings` returns the agent's settings for the model's address."""

    def __init__(self, settings: Callable[[str], dict[str, Any]]) -> None:
        self._settings = settings

    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        if any(isinstance(act, WriteGarbage) for scene in scenes for act in scene):
            raise NotApplicable("a model can't make the agent write garbage; test_acp_faults.py does that")
        async with SceneModel(scenes).listening() as url:
            yield self._settings(url)


class AcpLab(codex_lab.Lab):
    """A fake model and a workspace. Opens sessions of OpenCode, or with `fake` of our own agent."""

    @contextlib.asynccontextmanager
    async def session(
        self, settings: Mapping[str, Any] | None = None, *, fake: str | None = None, **options: Any
    ) -> AsyncIterator[Seat]:
        chosen = {"base_url": self.url, "model": "fake-model"} if fake is None else fake_settings(self.url, fake)
        options = {"workspace": self.workspace, "scratch": self.scratch, "provider": "bubblewrap", **options}
        session = await AcpRuntime().start_session(SessionOptions(settings={**chosen, **(settings or {})}, **options))
        seat = Seat(cast("Any", session))
        try:
            yield seat
        finally:
            await session.close()


def run(place: Path, work: Callable[[AcpLab], Awaitable[None]]) -> None:
    """Run a test in a lab, then check that no process and no file of the session is left."""

    async def with_acp(lab: codex_lab.Lab) -> None:
        await work(AcpLab(place, lab.model, lab.url))

    codex_lab.run(place, with_acp)
