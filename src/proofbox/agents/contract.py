"""The contract of an agent runtime, and what is said to one.

A *runtime* is an agent program that we can drive; its id is a *strategy*. It opens a *session*: one program over one
workspace, with any number of *threads* (conversations) in it. A *turn* is one prompt and everything the agent does
until it gives the word back.

Whether a runtime keeps this contract is measured by `conformance/`, the same checks for every runtime. What it can't do
it says in `capabilities`, and refuses with `CapabilityUnsupported` when asked all the same; nothing is faked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from proofbox.agents.events import Listener, TokenUsage, TurnStatus
from proofbox.config.settings import Settings as BoxSettings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import AgentError, ProofboxError
from proofbox.sandbox.box_handle import PolicyOptions
from proofbox.workspace.capabilities.capabilities import Capabilities as Grants


class RuntimeCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime can do at all. A caller asks before it relies on one."""

    supports_thread_start: bool = True
    supports_turn_steer: bool = False
    supports_interrupt: bool = False
    supports_event_stream: bool = False
    supports_parallel_sessions: bool = False
    supports_thread_resume: bool = False
    supports_thread_fork: bool = False
    supports_token_usage: bool = False
    supports_rate_limits: bool = False


class RuntimeProbe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a runtime could be used here and now, by a look that starts no agent."""

    strategy: str
    available: bool
    version: str = ""
    compatible: bool = True
    code: str = ""
    """The code of the error that starting it would raise."""
    reason: str = ""
    fix_hints: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}


class ApprovalRule(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a call may be made. The first rule whose pattern fits decides: `approvals.py`."""

    answer: str
    """`accept` or `decline`."""
    command: str = "*"
    """A pattern over the command line or the paths asked about: `*` is any text."""
    name: str = ""


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a session runs.

    The box's policy is the caller's: which provider, which limits. The runtime adds what it needs to run at all (its
    own program, its home, the way to the model) and nothing else.
    """

    workspace: Path
    """The directory the agent works on."""
    scratch: Path
    """A directory of the caller's, outside the workspace, for sockets and logs. Removed by the caller."""
    home: Path | None = None
    """Where the runtime keeps its threads, for a later session to resume or fork; None: a new one within `scratch`."""
    provider: str | None = None
    policy: PolicyOptions = {}
    box_settings: BoxSettings | None = None
    """Defaults for the box. None: those of the workspace's own configuration file and the user's."""
    settings: Mapping[str, Any] = {}
    """This runtime's own settings, from flags and `[runtimes.ID]`, checked by the runtime."""
    env: Mapping[str, str] = {}
    """Variables for the agent and its commands, already passed by the environment policy."""
    approvals: tuple[ApprovalRule, ...] = ()
    grants: Grants | None = None
    """What tools that proofbox itself runs for the agent are held to. For commands it is compiled into `policy`."""
    sandboxed: bool = True
    """False: the agent runs outside any box, and every record says so."""
    request_timeout: float = 30.0
    """Seconds for a single request to the runtime."""
    stall_timeout: float | None = None
    """Seconds without any sign of life after which a turn counts as stalled."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `status` is the runtime's own word for it, never inferred from silence."""

    turn: str
    thread: str
    status: TurnStatus
    error: AgentError | None = None
    """Why it failed, as the runtime says."""
    observed_failure: AgentError | None = None
    """The infrastructure failure that the turn ended with, as seen from outside the box: a failure of the model, seen
    by the gateway, or of the box, seen by its supervisor. The output and exit of a program in the box never set it."""
    final_message: str = ""
    usage: TokenUsage | None = None
    duration_ms: float = 0.0


class AgentSession(Protocol):
    """One program over one workspace. Methods raise `AgentError`s; every request has a deadline.

    Events reach listeners one at a time and in order, and the next waits for a listener that is slow: what is recorded
    is whole or the turn fails with `RUNTIME_LISTENER_FAILURE`.
    """

    id: str
    runtime: str
    version: str

    @property
    def broken(self) -> ProofboxError | None:
        """The error that keeps the session from taking further turns, or None. A closed session is broken."""

    def owner_of(self, thread: str) -> str:
        """Return the thread that the caller started and this one works for: itself, or its sub-agent's ancestor.

        Empty for a thread of unknown origin.
        """

    def facts(self) -> Mapping[str, Any]:
        """What is to be kept about how it runs: transport, provider, isolation, sandboxed or not, recoveries so far."""

    def add_listener(self, listener: Listener) -> int:
        """Hand every later event to `listener`. The number is for `remove_listener`."""

    def remove_listener(self, number: int) -> None:
        """Stop doing so. Removing one that is not there is no error."""

    async def start_thread(self, folder: str = "") -> str:
        """A new conversation; its id. `folder` is the directory of the workspace that it works in."""

    async def resume_thread(self, thread: str) -> str:
        """Go on with a thread of an earlier session of the same home."""

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        """A new thread with the history of another, up to and with `last_turn` (default: all of it)."""

    async def start_turn(self, thread: str, prompt: str) -> str:
        """Give the word to the agent; the turn's id. A thread has one turn at a time: a second is refused."""

    async def steer_turn(self, thread: str, turn: str, text: str) -> None:
        """Say something to the agent while it works."""

    async def interrupt_turn(self, thread: str, turn: str) -> None:
        """Stop a turn, and the commands it runs. A turn that has ended already is left alone."""

    async def wait_turn(self, turn: str) -> TurnResult:
        """Wait for a turn's end, however it ends. A failed turn is a result, not an exception."""

    async def end_thread(self, thread: str) -> None:
        """End everything a thread and its sub-agents run: turns, background commands, detached processes.

        Before this returns, every call is reported, and an `Integrity` event names anything that could not be ended.
        Only sessions that stay open need this: `close` ends all of it as well.
        """

    async def close(self) -> None:
        """End the program and everything it started. May be repeated; leaves no process, socket or directory.

        Before this returns, every call that began is reported, as `abandoned` if its end was not seen.
        """


class AgentRuntime(Protocol):
    """A way to run an agent. Implementations hold no state but what they learned about this machine."""

    id: str
    title: str
    capabilities: RuntimeCapabilities
    settings: type[msgspec.Struct]
    """What `[runtimes.ID]` may say, every member with a default. `settings.read_settings` checks against it."""

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        """Whether it could run: found, version, compatible, what is missing. Raises `UsageError` for bad settings."""

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> AgentSession:
        """Start it, or raise an `AgentError` and leave nothing behind."""
