"""The events of an agent session: one vocabulary for every runtime.

Each runtime translates its program's output into these events and no others. Three rules hold for every runtime:

- Only `ToolCall` and `FileChange` count as actions. Each is reported once, after it ended, with its actual outcome.
  Deltas are for live display and are never counted.
- A turn has exactly one `TurnEnded`. It is the last event of the turn, except for late events, which set `late`.
- Input that can't be translated is kept as `Unrecognized`; it is neither dropped nor fatal.

Facts with the source `runtime_reported` were stated by the program and not checked. `Usage` and `RateWindows` name
their source.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from proofbox.core.canonical import MAX_INTEGER
from proofbox.core.documents import declare

MAX_TOKENS = 10**12
"""The highest count of tokens. A program can state any number, but sums over attempts must fit into the evidence."""

MAX_PATHS = 100
"""How many paths of a change are kept. A program can state any number, but an event must fit into the evidence."""

Source = Literal["runtime_reported", "gateway"]
ToolStatus = Literal["completed", "failed", "declined", "abandoned"]
TurnStatus = Literal["completed", "failed", "interrupted"]


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """The members of every event. `seq` counts the events of one session, from 1 and without gaps."""

    session: str = ""
    seq: int = 0
    at_ms: float = 0.0
    """Milliseconds since the session began, by proofbox's clock."""
    thread: str = ""
    turn: str = ""


class ThreadStarted(AgentEvent, frozen=True, kw_only=True, tag="thread_started"):
    origin: Literal["start", "resume", "fork"] = "start"
    """Whether the thread is new, resumed, or a fork of another thread."""
    forked_from: str = ""
    """The thread that this one was forked from; empty unless it is a fork."""


class TurnStarted(AgentEvent, frozen=True, kw_only=True, tag="turn_started"):
    pass


class ItemStarted(AgentEvent, frozen=True, kw_only=True, tag="item_started"):
    """The agent started an item. Its outcome is reported by a later event, when the item ends."""

    item: str
    kind: str
    """The runtime's name for this kind of item."""
    command: str = ""
    """The command line, or the tool's arguments as JSON, if known when the item starts; a log may truncate it."""


class Delta(AgentEvent, frozen=True, kw_only=True, tag="delta"):
    """A piece of an item in progress."""

    item: str
    kind: Literal["message", "reasoning", "output"]
    """What the text belongs to: a message, the agent's reasoning, or a command's output."""
    text: str
    """The text added since the previous delta."""


class Message(AgentEvent, frozen=True, kw_only=True, tag="message"):
    """A complete message from the agent."""

    item: str
    text: str
    """The whole text; a log may truncate it."""


class Reasoning(AgentEvent, frozen=True, kw_only=True, tag="reasoning"):
    item: str
    text: str
    """The part of the agent's reasoning that the runtime reports; a log may truncate it."""


class ToolCall(AgentEvent, frozen=True, kw_only=True, tag="tool_call"):
    """A tool call or command has ended. `abandoned`: it began, and its end will never be reported."""

    item: str
    tool: str
    """`command` for a command line; otherwise the tool's name."""
    command: str = ""
    """The command line as the agent wrote it, or the tool's arguments as JSON."""
    cwd: str = ""
    status: ToolStatus
    """`declined`: the call was not approved."""
    exit_code: int | None = None
    duration_ms: float | None = None
    output: str = ""
    """The part of the call's output or result that the runtime reports; a log may truncate it."""
    late: bool = False
    """The call ended after its turn."""
    source: Literal["runtime_reported", "observed"] = "runtime_reported"
    """`observed`: proofbox ran the call, or was asked to run it."""
    started: bool | None = None
    """Whether an observed call ran: false if it was declined or refused, or if its program could not be started.
    Null: not visible from outside the box."""

    def __post_init__(self) -> None:
        if self.exit_code is not None and abs(self.exit_code) > MAX_INTEGER:  # evidence cannot hold it
            msgspec.structs.force_setattr(self, "exit_code", None)
        if self.duration_ms is not None and abs(self.duration_ms) > MAX_INTEGER:
            msgspec.structs.force_setattr(self, "duration_ms", None)


class FileChange(AgentEvent, frozen=True, kw_only=True, tag="file_change"):
    """The agent changed files with a built-in tool. The workspace's snapshots show what actually changed."""

    item: str
    paths: tuple[str, ...]
    """The paths that changed, at most 100; a log may truncate each."""
    status: ToolStatus
    """The outcome of the change. `declined`: it was not approved."""
    late: bool = False
    """The change ended after its turn."""

    def __post_init__(self) -> None:
        if len(self.paths) > MAX_PATHS:
            msgspec.structs.force_setattr(self, "paths", self.paths[:MAX_PATHS])


class ApprovalDecision(AgentEvent, frozen=True, kw_only=True, tag="decision"):
    """The answer of the declared approval rules to a request by the agent."""

    item: str
    method: str
    """The runtime's name for the request."""
    subject: str
    """The command, paths or question to approve."""
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

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) > MAX_TOKENS:
                msgspec.structs.force_setattr(self, name, MAX_TOKENS)


class Usage(AgentEvent, frozen=True, kw_only=True, tag="usage"):
    """The tokens that a thread has used so far. An attempt's usage is the sum over its threads."""

    total: TokenUsage
    """The thread's total so far. With source `gateway` and no thread: the total of requests without a known thread."""
    source: Source = "runtime_reported"
    without_usage: int = 0
    """Number of responses so far whose usage the endpoint did not state; `total` does not include them."""
    broken_off: int = 0
    """Number of responses so far that broke off; `total` includes the usage stated before that."""


class RateWindow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """`primary` or `secondary` of a subscription; `requests` or `tokens` of an API."""
    used_percent: float | None = None
    """From 0 to 100; null: not reported."""
    window_minutes: float | None = None
    """The length of the window; null: not reported."""
    resets_at: float | None = None
    """Seconds since the epoch."""


class RateWindows(AgentEvent, frozen=True, kw_only=True, tag="rate_windows"):
    windows: tuple[RateWindow, ...]
    """The current state of every reported limit."""
    source: Source = "runtime_reported"


class Retrying(AgentEvent, frozen=True, kw_only=True, tag="retrying"):
    """The runtime encountered a failure and is retrying on its own."""

    code: str
    message: str


class Notice(AgentEvent, frozen=True, kw_only=True, tag="notice"):
    """A warning or a change of status, for display."""

    kind: str
    """The kind of notice: `steered`, `recovered`, `truncated`, or the runtime's own name for it."""
    message: str
    """The text to show."""


class Integrity(AgentEvent, frozen=True, kw_only=True, tag="integrity"):
    """A defect of the record itself: a gap, a contradiction, or a missing end."""

    code: str
    message: str
    details: Mapping[str, Any] = {}


class TurnEnded(AgentEvent, frozen=True, kw_only=True, tag="turn_ended"):
    status: TurnStatus
    """`completed`: the agent finished its turn. `interrupted`: it was stopped from outside."""
    code: str = ""
    """The error code of the failure; empty if the turn did not fail."""
    message: str = ""
    """A readable description of the failure; empty if the turn did not fail."""
    duration_ms: float | None = None


class Unrecognized(AgentEvent, frozen=True, kw_only=True, tag="unrecognized"):
    """A message from the runtime that this version does not know, kept unchanged up to a size limit."""

    method: str
    """The runtime's name for the message."""
    payload: str
    """The message as received; cut off if `truncated` is true."""
    truncated: bool = False


class ModelBody(msgspec.Struct, frozen=True, kw_only=True):
    data: bytes = b""
    """The body, unless it was omitted."""
    size: int = 0
    """The number of bytes that passed through the gateway."""
    omitted: str = ""
    """Why `data` is empty, although the body is not."""


class ModelExchange(AgentEvent, frozen=True, kw_only=True, tag="model_exchange"):
    """A request to the model and its response, as they passed through the gateway, if bodies are recorded."""

    number: int
    """Counts the requests of a session, from 1."""
    method: str
    path: str
    status: int
    outcome: str
    duration_ms: float | None
    request: ModelBody
    response: ModelBody


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
    | ModelExchange
)
Listener = Callable[[Event], Awaitable[None]]
EVENT_TYPES: tuple[type[AgentEvent], ...] = tuple(each for each in Event.__args__ if each is not ModelExchange)
"""The events that are logged as they are. Exchanges have a separate log, apart from their bodies."""
declare(
    "events.jsonl",
    at="BUNDLE/events.jsonl of an attempt, where `seq` is called `number`",
    meaning="The events of an agent session, one per line. Attempts leave out the deltas. Absent members have their"
    " default value, except that `session`, `thread` and `turn` are as on the line before, and `number` is one more.",
    shape=EVENT_TYPES,
)
