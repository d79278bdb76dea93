"""The contract of an agent runtime.

A *runtime* is an agent program that proofbox can drive; its id is a *strategy*. A runtime opens a *session*: one
program that works on one workspace, with any number of *threads* (conversations). A *turn* is one prompt and everything
the agent does until it finishes.

The checks in `conformance/` are the same for every runtime and measure whether it implements this contract. A runtime
declares what it supports in `capabilities`, and raises `CapabilityUnsupported` for everything else; it emulates
nothing.
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
from proofbox.errors import AgentError, ProofboxError, RuntimeIncompatible, UsageError
from proofbox.sandbox.options import PolicyOptions
from proofbox.workspace.capabilities.capabilities import Capabilities as Grants


class RuntimeCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The optional features of a runtime. A caller checks a feature before using it."""

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
    """Whether a runtime can be used on this machine now. Probing does not start the agent."""

    strategy: str
    available: bool
    version: str = ""
    compatible: bool = True
    code: str = ""
    """The code of the error that starting the runtime would raise."""
    reason: str = ""
    fix_hints: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}

    @classmethod
    def failed(cls, strategy: str, error: AgentError, *, version: str, details: Mapping[str, Any]) -> RuntimeProbe:
        """The runtime can't be used, because starting it would raise this error."""
        return cls(
            strategy=strategy,
            available=False,
            version=version,
            compatible=not isinstance(error, RuntimeIncompatible),
            code=error.code,
            reason=error.message,
            fix_hints=error.fix_hints,
            details={**details, **error.details},
        )


class ApprovalRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that accepts or declines calls. The first matching rule decides; see `approvals.py`."""

    answer: str
    """`accept` or `decline`."""
    command: str = "*"
    """A pattern for the command line or the paths to approve: `*` matches any text."""
    name: str = ""


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how a session runs.

    The caller decides the box's policy, such as the provider and the limits. The runtime adds only what it needs to
    run: its program, its home, and access to the model.
    """

    workspace: Path
    """The directory the agent works on."""
    scratch: Path
    """A directory outside the workspace for sockets and logs. The caller creates and removes it."""
    home: Path | None = None
    """Where the runtime keeps its threads, so that a later session can resume or fork them. None: a new directory in
    `scratch`."""
    provider: str | None = None
    policy: PolicyOptions = {}
    box_settings: BoxSettings | None = None
    """Defaults for the box. None: read the configuration files of the workspace and of the user."""
    settings: Mapping[str, Any] = {}
    """This runtime's settings, from flags and `[runtimes.ID]`. The runtime validates them."""
    env: Mapping[str, str] = {}
    """Variables for the agent and its commands, already checked against the environment policy."""
    approvals: tuple[ApprovalRule, ...] = ()
    grants: Grants | None = None
    """The capabilities of the tools that proofbox runs for the agent. For commands, `policy` already enforces them."""
    sandboxed: bool = True
    """False: the agent runs without a sandbox, and every record says so."""
    request_timeout: float = 30.0
    """Timeout in seconds for a single request to the runtime."""
    stall_timeout: float | None = None
    """Seconds without any activity after which a turn counts as stalled."""

    def refuse_unsandboxed(self) -> None:
        """Raise `UsageError` if a session that must be sandboxed names the provider that does not isolate."""
        if self.sandboxed and self.provider == "off":
            raise UsageError(
                "a sandboxed session can't use the provider off",
                op="start",
                fix_hints=["choose another provider: auto, bubblewrap, docker"],
            )


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `status` is what the runtime reported; it is never inferred from silence."""

    turn: str
    thread: str
    status: TurnStatus
    error: AgentError | None = None
    """Why the turn failed, as reported by the runtime."""
    observed_failure: ProofboxError | None = None
    """The infrastructure failure that ended the turn, observed from outside the box: a model failure seen by the
    gateway, a lost box, or a bug in proofbox. The output and exit code of a program in the box never set it."""
    final_message: str = ""
    usage: TokenUsage | None = None
    duration_ms: float = 0.0


class AgentSession(Protocol):
    """One agent program that works on one workspace. Methods raise `AgentError`s; every request has a timeout.

    Listeners receive events in order, one at a time; a slow listener delays the next event. Either the record is
    complete, or the turn fails with `RUNTIME_LISTENER_FAILURE`.
    """

    id: str
    runtime: str
    version: str

    @property
    def broken(self) -> ProofboxError | None:
        """The error that keeps the session from taking further turns, or None. A closed session is broken."""

    def owner_of(self, thread: str) -> str:
        """Return the caller's thread that this thread belongs to: itself, or the ancestor of a sub-agent's thread.

        Return an empty string for a thread of unknown origin.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return how the session runs, for the record: transport, provider, isolation, sandboxed or not, recoveries."""

    def add_listener(self, listener: Listener) -> int:
        """Pass every later event to `listener`. Return a number for `remove_listener`."""

    def remove_listener(self, number: int) -> None:
        """Remove a listener. An unknown number is ignored."""

    async def start_thread(self, folder: str = "") -> str:
        """Start a conversation in a directory of the workspace. Return its id."""

    async def resume_thread(self, thread: str) -> str:
        """Resume a thread of an earlier session with the same home."""

    async def fork_thread(self, thread: str, last_turn: str | None = None) -> str:
        """Start a thread with the history of another, up to and including `last_turn` (default: all of it)."""

    async def start_turn(self, thread: str, prompt: str) -> str:
        """Send a prompt to the agent. Return the turn's id. Refused while another turn of the thread is in progress."""

    async def steer_turn(self, thread: str, turn: str, text: str) -> None:
        """Send text to the agent during a turn."""

    async def interrupt_turn(self, thread: str, turn: str) -> None:
        """Stop a turn and the commands it runs. Has no effect on a turn that has ended."""

    async def wait_turn(self, turn: str) -> TurnResult:
        """Wait until a turn ends. A failed turn is a result, not an exception."""

    async def end_thread(self, thread: str) -> None:
        """End everything that a thread and its sub-agents run: turns, background commands, detached processes.

        Before this returns, every call is reported, and an `Integrity` event names anything that could not be ended.
        Only sessions that stay open need this; `close` does the same for all threads.
        """

    async def close(self) -> None:
        """End the program and everything it started. Idempotent; leaves no process, socket or directory behind.

        Before this returns, every call that began is reported, as `abandoned` if its end was not seen.
        """


class AgentRuntime(Protocol):
    """An agent program that proofbox can drive. Implementations hold no state except facts about this machine."""

    id: str
    title: str
    capabilities: RuntimeCapabilities
    settings: type[msgspec.Struct]
    """The type of the table `[runtimes.ID]`; every member has a default. `settings.read_settings` validates it."""

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        """Check whether the runtime can run here. Raises `UsageError` for invalid settings."""

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> AgentSession:
        """Start a session, or raise an `AgentError` and leave nothing behind."""
