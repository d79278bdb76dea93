"""What happens while an agent works, in one vocabulary for every runtime.

A runtime translates what its program says into these and nothing else. Three rules hold for all of them:

- Only `ToolCall` and `FileChange` are things done, each once, when it has ended, with the outcome it really had. Deltas
  are for watching, and are never counted.
- A turn has exactly one `TurnEnded`, the last event of that turn but for what arrives late, which says so (`late`).
- What can't be translated is kept whole as `Unrecognized`: never lost, never fatal.

`runtime_reported` facts rest on the program's word alone; `Usage` and `RateWindows` say where they were seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from proofbox.core.documents import declare

Source = Literal["runtime_reported", "gateway"]
ToolStatus = Literal["completed", "failed", "declined", "abandoned"]
TurnStatus = Literal["completed", "failed", "interrupted"]


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """What every event has. `seq` counts the events of one session, from 1 and without a gap."""

    session: str
    seq: int = 0
    at_ms: float = 0.0
    """Milliseconds since the session began, by our clock."""
    thread: str = ""
    turn: str = ""


class ThreadStarted(AgentEvent, frozen=True, kw_only=True, tag="thread_started"):
    origin: Literal["start", "resume", "fork"] = "start"
    """New, taken up again, or a fork of another."""
    forked_from: str = ""
    """That other thread; empty unless it is a fork."""


class TurnStarted(AgentEvent, frozen=True, kw_only=True, tag="turn_started"):
    pass


class ItemStarted(AgentEvent, frozen=True, kw_only=True, tag="item_started"):
    """The agent began something. What came of it is told when it has ended."""

    item: str
    kind: str
    """What it is, by the runtime's own name."""
    command: str = ""
    """The command line, or the tool's arguments as JSON, where that is known by then; a log may cut it."""


class Delta(AgentEvent, frozen=True, kw_only=True, tag="delta"):
    """A piece of something under way."""

    item: str
    kind: Literal["message", "reasoning", "output"]
    """Of what: a message, the agent's thinking, or what a command prints."""
    text: str
    """What is new since the piece before."""


class Message(AgentEvent, frozen=True, kw_only=True, tag="message"):
    """The agent said something, whole."""

    item: str
    text: str
    """All of it; a log may cut it."""


class Reasoning(AgentEvent, frozen=True, kw_only=True, tag="reasoning"):
    item: str
    text: str
    """What it thought, as far as its runtime tells; a log may cut it."""


class ToolCall(AgentEvent, frozen=True, kw_only=True, tag="tool_call"):
    """A tool or command has ended. `abandoned`: it began, and nobody will ever say how it ended."""

    item: str
    tool: str
    """`command` for a command line; else the tool's own name."""
    command: str = ""
    """The command line as the agent gave it, or the tool's arguments as JSON."""
    cwd: str = ""
    status: ToolStatus
    """`declined`: leave was not given."""
    exit_code: int | None = None
    duration_ms: float | None = None
    output: str = ""
    """What it printed or returned, as far as the runtime tells; a log may cut it."""
    late: bool = False
    """It ended after its turn had."""
    source: Literal["runtime_reported", "observed"] = "runtime_reported"
    """`observed`: proofbox ran it itself, or was asked to."""
    started: bool | None = None
    """Of an observed call, whether it ran: false if it was declined or refused, or if its program could not be started.
    Null: not seen from outside the box."""


class FileChange(AgentEvent, frozen=True, kw_only=True, tag="file_change"):
    """The agent changed files by a tool of its own. The workspace's snapshots say what really changed."""

    item: str
    paths: tuple[str, ...]
    status: ToolStatus
    """Of the change; `declined`: leave was not given."""
    late: bool = False
    """It ended after its turn had."""


class ApprovalDecision(AgentEvent, frozen=True, kw_only=True, tag="decision"):
    """The agent asked for leave, and was answered by the declared policy."""

    item: str
    method: str
    """What was asked, in the runtime's own words."""
    subject: str
    """The command, paths or question it was about."""
    answer: str
    rule: str


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, counted the same way for every model."""

    input_tokens: int = 0
    """All of the input, including what was read from or written to a cache."""
    output_tokens: int = 0
    """All of the output, including reasoning."""
    cached_input_tokens: int = 0
    """The part of the input that was read from a cache."""
    reasoning_tokens: int = 0
    """The part of the output that was reasoning."""


class Usage(AgentEvent, frozen=True, kw_only=True, tag="usage"):
    """The tokens that a thread has used up to now. An attempt's usage is the sum over its threads."""

    total: TokenUsage
    """Of the whole thread, up to now. With source `gateway` and no thread: of requests that name no known thread."""
    source: Source = "runtime_reported"
    without_usage: int = 0
    """Responses of the thread, up to now, whose usage the endpoint did not state: they are not in `total`."""
    broken_off: int = 0
    """Responses of the thread, up to now, that broke off: `total` has as much of them as was stated before."""


class RateWindow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """`primary` or `secondary` of a subscription; `requests` or `tokens` of an API."""
    used_percent: float | None = None
    """From 0 to 100; null: not told."""
    window_minutes: float | None = None
    """How long the window is; null: not told."""
    resets_at: float | None = None
    """Seconds since the epoch."""


class RateWindows(AgentEvent, frozen=True, kw_only=True, tag="rate_windows"):
    windows: tuple[RateWindow, ...]
    """Every limit that was told, as of now."""
    source: Source = "runtime_reported"


class Retrying(AgentEvent, frozen=True, kw_only=True, tag="retrying"):
    """The runtime met a failure and tries again by itself."""

    code: str
    message: str


class Notice(AgentEvent, frozen=True, kw_only=True, tag="notice"):
    """A warning or a change of status, for whoever watches."""

    kind: str
    """What it is about: `steered`, `recovered`, `truncated`, or the runtime's own name."""
    message: str
    """What is told, in words."""


class Integrity(AgentEvent, frozen=True, kw_only=True, tag="integrity"):
    """Something about the record itself is not as it should be: a gap, a contradiction, an end that never came."""

    code: str
    message: str
    details: Mapping[str, Any] = {}


class TurnEnded(AgentEvent, frozen=True, kw_only=True, tag="turn_ended"):
    status: TurnStatus
    """`completed`: the agent gave the word back. `interrupted`: somebody stopped it."""
    code: str = ""
    """The code of the failure; empty where there was none."""
    message: str = ""
    """What failed, for people; empty where nothing did."""
    duration_ms: float | None = None


class Unrecognized(AgentEvent, frozen=True, kw_only=True, tag="unrecognized"):
    """Something the runtime said that this version knows no name for, kept as it came (bounded)."""

    method: str
    """What the runtime calls it."""
    payload: str
    """As it came; cut where `truncated` says so."""
    truncated: bool = False


Event = (
    ThreadStarted
    | TurnStarted
    | ItemStarted
    | Delta
    | Message
    | Reasoning
    | ToolCall
    | FileChange
    | ApprovalDecision
    | Usage
    | RateWindows
    | Retrying
    | Notice
    | Integrity
    | TurnEnded
    | Unrecognized
)
Listener = Callable[[Event], Awaitable[None]]
EVENT_TYPES: tuple[type[AgentEvent], ...] = Event.__args__
declare(
    "events.jsonl",
    at="BUNDLE/events.jsonl of an attempt, where `seq` is called `number`; of a trial, as the member `event`",
    meaning="What a runtime told while an agent worked, deltas left out of attempts: one of these a line.",
    shape=EVENT_TYPES,
)
