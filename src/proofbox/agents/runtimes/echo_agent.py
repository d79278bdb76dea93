"""A runtime to start from: an agent that repeats the prompt.

`proofbox new runtime DIR` copies this file. See docs/guides/add-a-runtime.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proofbox.agents.conformance.rig import Say, Scene
from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.events import Message
from proofbox.agents.feed import Turn
from proofbox.agents.hosted_session import HostedSession
from proofbox.agents.settings import read_settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.sandbox.conformance.check import NotApplicable


class EchoSettings(msgspec.Struct, frozen=True):
    answers: tuple[str, ...] = ()
    """The answer of each turn of the session. Default: the prompt."""


class EchoSession(HostedSession):
    """One session: `HostedSession` provides threads, turns, interrupts and cleanup."""

    version = "1"

    async def open(self) -> None:
        self.answers = list(read_settings(EchoSettings, self.options.settings, self.runtime).answers)
        await super().open()

    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        text = self.answers.pop(0) if self.answers else prompt
        await self.publish_for(turn, Message(session="", item="answer", text=text))


class EchoRuntime:
    """The runtime, as listed in the registry under its id."""

    id = "echo_agent"
    title = "Repeats the prompt"
    capabilities = RuntimeCapabilities(
        supports_interrupt=True, supports_event_stream=True, supports_parallel_sessions=True
    )
    settings: type[msgspec.Struct] = EchoSettings

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        read_settings(EchoSettings, settings, self.id)
        return RuntimeProbe(strategy=self.id, available=True, version="1")

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> EchoSession:
        session = EchoSession(self, options, clock=clock, ids=ids)
        await session.open()
        return session

    def conformance_rig(self) -> EchoRig:
        return EchoRig()


class EchoRig:
    """Makes the runtime play the scenes of a check. Scenes that it can't play do not apply to it."""

    @contextlib.asynccontextmanager
    async def stage(self, scenes: Sequence[Scene], scratch: Path) -> AsyncIterator[Mapping[str, Any]]:
        del scratch
        said = [[act.text for act in scene if isinstance(act, Say)] for scene in scenes]
        if any(len(scene) > 1 or len(texts) < len(scene) for scene, texts in zip(scenes, said, strict=True)):
            raise NotApplicable("it sends one message per turn and does nothing else")
        yield {"answers": ["".join(texts) for texts in said]}
