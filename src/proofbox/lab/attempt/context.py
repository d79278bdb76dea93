"""What an attempt is given by whoever runs it: what all of a run share, and a way to hear of it and to stop it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from proofbox.agents.contract import AgentRuntime
from proofbox.agents.registry import Registry
from proofbox.agents.strategies import Chain
from proofbox.config.settings import Settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.lab.attempt.sharing import SharedSession
from proofbox.lab.attempt.states import Reason, State
from proofbox.lab.run.template import Templates
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Isolation

ON_REQUEST = "on request"


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of a run have in common."""

    run_id: str
    run_dir: Path
    work: Path
    suite: Suite
    templates: Templates
    chain: Chain
    registry: Registry
    settings: Callable[[AgentRuntime], dict[str, Any]]
    box_settings: Settings
    """Defaults for every box of the run: the user's own. Files in a workspace never configure a box over it."""
    redactor: Redactor
    provider: str | None
    isolation: Isolation
    clock: Clock
    ids: IdSource
    shared: SharedSession | None = None
    """With isolation `shared`: the one session of all attempts."""


class AttemptControl:
    """How whoever runs an attempt hears of it, and stops it."""

    def __init__(
        self,
        on_state: Callable[[State], None],
        on_activity: Callable[[str], None],
        on_tokens: Callable[[int], None],
    ) -> None:
        self.on_state = on_state
        self.on_activity = on_activity
        self.on_tokens = on_tokens
        self._stop = anyio.Event()
        self._interrupt = anyio.Event()
        self.reason: Reason | None = None
        self.detail = ""

    def stop(self, reason: Reason, detail: str = "") -> None:
        """The first reason counts."""
        if self.reason is None:
            self.reason, self.detail = reason, detail
            self._stop.set()

    async def stopped(self) -> None:
        await self._stop.wait()

    def interrupt(self) -> None:
        """Somebody asks for its end: of the agent's turn, and of what comes before and after it."""
        self._interrupt.set()
        self.stop("interrupted", ON_REQUEST)

    @property
    def is_interrupted(self) -> bool:
        return self._interrupt.is_set()

    async def interrupted(self) -> None:
        await self._interrupt.wait()
