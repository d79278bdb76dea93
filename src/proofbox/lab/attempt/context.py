"""What the worker passes to an attempt: the context shared by the whole run, and a handle to watch and stop it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from proofbox.agents.contract import AgentRuntime
from proofbox.agents.events import Event, Listener
from proofbox.agents.registry import Registry
from proofbox.agents.strategies import Chain
from proofbox.config.settings import Settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.attempt.final_tree import SharedBase
from proofbox.lab.attempt.sharing import SharedSession
from proofbox.lab.attempt.states import Reason, State
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Isolation
from proofbox.workspace.workspace import Workspace

ON_REQUEST = "on request"


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context that all attempts of a run share."""

    run_id: str
    run_dir: Path
    work: Path
    suite: Suite
    make_workspace: Callable[[str, Path], Workspace]
    """Makes the workspace of an attempt at a mission, at a path below `work`."""
    fork_mode: Callable[[str], str] | None = None
    """Returns how the attempts at a mission get its files; None for an attempt on a workspace of the user."""
    shared_base: Callable[[Path], SharedBase | None] = lambda _: None
    """Returns the manifest of a template over which attempts are mounted, if the run's bundle has it."""
    chain: Chain
    registry: Registry
    settings: Callable[[AgentRuntime], dict[str, Any]]
    box_settings: Settings | None
    """Defaults for every box of the run, from the user's settings. Files in a workspace never configure its box. None,
    for an attempt on a workspace of the user: read its settings, which the user has trusted."""
    required: tuple[str, ...] = ()
    """Capabilities that the strategy must have."""
    redactor: Redactor
    provider: str | None
    isolation: Isolation
    clock: Clock
    ids: IdSource
    node: NodeRecord | None = None
    """The node that runs the attempt, if it is part of a cluster."""
    shared: SharedSession | None = None
    """With isolation `shared`: the session that all attempts use."""


class AttemptControl:
    """Callbacks through which a worker follows an attempt, and the means to stop it."""

    def __init__(
        self,
        on_state: Callable[[State], None],
        on_activity: Callable[[str], None],
        on_tokens: Callable[[int], None],
        listeners: tuple[Listener, ...] = (),
    ) -> None:
        self.on_state = on_state
        self.on_activity = on_activity
        self.on_tokens = on_tokens
        self.listeners = listeners
        """Further listeners to the agent's events. If one fails, the record counts as incomplete."""
        self._stop = anyio.Event()
        self._interrupt = anyio.Event()
        self.reason: Reason | None = None
        self.detail = ""

    def stop(self, reason: Reason, detail: str = "") -> None:
        """Stop the attempt. Only the first reason counts."""
        if self.reason is None:
            self.reason, self.detail = reason, detail
            self._stop.set()

    async def stopped(self) -> None:
        await self._stop.wait()

    def interrupt(self) -> None:
        """Interrupt the attempt in any state: before, during or after the agent's turn."""
        self._interrupt.set()
        self.stop("interrupted", ON_REQUEST)

    @property
    def is_interrupted(self) -> bool:
        return self._interrupt.is_set()

    async def interrupted(self) -> None:
        await self._interrupt.wait()


class Watchdog:
    """Listens to an agent, and stops an attempt whose agent has been silent for too long."""

    def __init__(self, control: AttemptControl, clock: Clock) -> None:
        self._control = control
        self._clock = clock
        self._heard = 0.0

    async def __call__(self, _event: Event) -> None:
        self._heard = self._clock.monotonic()

    async def watch(self, seconds: float) -> None:
        """Wait until there was no event for `seconds`, and stop the attempt as `stalled`."""
        self._heard = self._clock.monotonic()
        while (left := self._heard + seconds - self._clock.monotonic()) > 0:  # noqa: ASYNC110 (events only move the end)
            await anyio.sleep(left)
        self._control.stop("stalled", f"no event for {seconds:g} s")
