"""Translate a program's JSON output, line by line, into events. Each class implements one dialect.

    jsonl          proofbox's own format, for programs that support it: {"type": "message", "text": …}, …
    codex_exec     `codex exec --json`
    claude_stream  `claude -p --output-format stream-json --verbose`

A dialect never raises because of a line's content: an unknown or malformed line becomes `Unrecognized`. Whether the
turn failed is read from dedicated fields, never guessed from text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from proofbox.agents.events import (
    Event,
    FileChange,
    Integrity,
    ItemStarted,
    Message,
    Reasoning,
    Retrying,
    TokenUsage,
    ToolCall,
    ToolStatus,
    Unrecognized,
    Usage,
)
from proofbox.agents.gateway.failures import kind_of
from proofbox.core.text import preview
from proofbox.errors import AgentError, ModelFailed

PAYLOAD_LIMIT = 64 << 10
ID_LIMIT = 200
MAX_OPEN = 1000  # maximum number of calls without a result
DialectName = Literal["plain", "jsonl", "codex_exec", "claude_stream"]

_Json = Mapping[str, Any]


class _MalformedLine(Exception):
    """A malformed line."""


class Dialect:
    """The state of one turn. Each item is reported once; `failure` is the failure that the program reported."""

    def __init__(self) -> None:
        self.failure: AgentError | None = None
        self.usage = TokenUsage()
        self._reported: set[str] = set()
        self._count = 0
        self._open: dict[str, _Json] = {}
        """Items that began and have not ended, as the program reported them."""
        self._over = not self.has_end
        """The final line of the stream was seen."""

    has_end: ClassVar[bool] = True
    """A complete stream of this dialect ends with a final line."""

    def translate(self, line: bytes) -> list[Event]:
        """Return the events of one line. The caller fills in session, thread and turn."""
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return [_unrecognized("line", line)]
        kind = value.get("type") if isinstance(value, dict) else None
        try:
            events = self._translate(value) if isinstance(kind, str) else None
        except (_MalformedLine, KeyError, TypeError, ValueError, AttributeError):
            events = None
        return [_unrecognized(kind if isinstance(kind, str) else "line", line)] if events is None else events

    def end(self, *, stopped: bool) -> list[Event]:
        """Return the events to report after the program's exit.

        Unfinished items are integrity errors only if the program was not `stopped`.
        """
        left: list[Event] = []
        for id, start in self._open.items():
            if not stopped:
                left.append(
                    Integrity(session="", code="ITEM_NOT_ENDED", message=f"{id} began, but its end was not reported")
                )
            left += self._abandoned(id, start)
        if not self._over and not stopped:
            message = "the program exited without the final line of its stream"
            left.append(Integrity(session="", code="STREAM_NOT_ENDED", message=message))
        return left

    def _translate(self, line: _Json) -> list[Event] | None:
        raise NotImplementedError

    def _abandoned(self, id: str, start: _Json) -> list[Event]:
        """Return the events for an item whose end will never be reported."""
        raise NotImplementedError

    def _begin(self, id: str, kind: str, start: _Json, command: str) -> list[Event]:
        if len(self._open) >= MAX_OPEN:
            raise _MalformedLine
        self._open[id] = start
        return [ItemStarted(session="", item=id, kind=kind, command=command)]

    def _item(self, line: _Json) -> str:
        self._count += 1
        return _id(line.get("id", f"item-{self._count}"))

    def _once(self, event: ToolCall | FileChange | Message | Reasoning) -> list[Event]:
        if event.item in self._reported:
            return []
        self._reported.add(event.item)
        return [event]


class OwnDialect(Dialect):
    """`type` is the name of an event and the other members are its fields; `error` reports that the turn failed."""

    has_end = False

    def _translate(self, line: _Json) -> list[Event] | None:
        item = self._item(line)
        match line["type"]:
            case "message":
                return self._once(Message(session="", item=item, text=_text(line["text"])))
            case "reasoning":
                return self._once(Reasoning(session="", item=item, text=_text(line["text"])))
            case "tool_call":
                code = _optional(line.get("exit_code"), int)
                return self._once(
                    ToolCall(
                        session="",
                        item=item,
                        tool=_text(line.get("tool", "command")),
                        command=_text(line.get("command", "")),
                        cwd=_text(line.get("cwd", "")),
                        status=_status(line.get("status"), code),
                        exit_code=code,
                        duration_ms=_optional(line.get("duration_ms"), float),
                        output=_text(line.get("output", "")),
                    )
                )
            case "file_change":
                paths = tuple(_text(path) for path in line["paths"])
                return self._once(
                    FileChange(session="", item=item, paths=paths, status=_status(line.get("status"), None))
                )
            case "usage":
                return _used(self, line)
            case "error":
                self.failure = failure_of(
                    _optional(line.get("status"), int), _text(line.get("message", "the program reported a failure"))
                )
                return []
        return None


class CodexExec(Dialect):
    def _translate(self, line: _Json) -> list[Event] | None:
        match line["type"]:
            case "thread.started" | "turn.started" | "item.updated":
                return []
            case "item.started":
                item = line["item"]
                kind, command = _text(item["type"]), _text(item.get("command", ""))
                kept = preview(command, PAYLOAD_LIMIT)[0] if kind == "command_execution" else None
                return self._begin(_id(item["id"]), kind, {"command": kept}, command)
            case "item.completed":
                self._open.pop(_id(line["item"]["id"]), None)
                return self._completed(line["item"])
            case "turn.completed":
                self._over = True
                return _used(self, {"reasoning_tokens": line["usage"].get("reasoning_output_tokens"), **line["usage"]})
            case "turn.failed":
                self._over = True
                self.failure = ModelFailed(_text(line["error"]["message"])[:2000], op="turn")
                return []
            case "error":
                return [Retrying(session="", code=ModelFailed.code, message=_text(line["message"]))]
        return None

    def _completed(self, item: _Json) -> list[Event] | None:
        id = _id(item["id"])
        match item["type"]:
            case "agent_message":
                return self._once(Message(session="", item=id, text=_text(item["text"])))
            case "reasoning":
                return self._once(Reasoning(session="", item=id, text=_text(item["text"])))
            case "command_execution":
                code = _optional(item.get("exit_code"), int)
                return self._once(
                    ToolCall(
                        session="",
                        item=id,
                        tool="command",
                        command=_text(item["command"]),
                        status=_status(item.get("status"), code),
                        exit_code=code,
                        output=_text(item.get("aggregated_output", "")),
                    )
                )
            case "file_change":
                paths = tuple(_text(change["path"]) for change in item["changes"])
                return self._once(
                    FileChange(session="", item=id, paths=paths, status=_status(item.get("status"), None))
                )
        return None

    def _abandoned(self, id: str, start: _Json) -> list[Event]:
        if start["command"] is None:
            return []
        return self._once(ToolCall(session="", item=id, tool="command", command=start["command"], status="abandoned"))


class ClaudeStream(Dialect):
    """A tool call ends when its result arrives; only `is_error` determines whether the turn failed."""

    def _translate(self, line: _Json) -> list[Event] | None:
        match line["type"]:
            case "system" if line.get("subtype") == "api_retry":
                status = _optional(line.get("error_status"), int)
                return [Retrying(session="", code=failure_of(status, "").code, message=_text(line.get("error", "")))]
            case "system" | "stream_event":
                return []
            case "assistant":
                return [event for part in line["message"]["content"] for event in self._assistant_part(part)]
            case "user":
                return [event for part in line["message"]["content"] for event in self._tool_result(part)]
            case "result":
                self._over = True
                if line["is_error"]:
                    status = _optional(line.get("api_error_status"), int)
                    self.failure = failure_of(status, _text(line.get("result") or line.get("subtype", ""))[:2000])
                return _used(self, _claude_usage(line))
        return None

    def _assistant_part(self, part: _Json) -> list[Event]:
        item = self._item({})
        if part["type"] == "text":
            return self._once(Message(session="", item=item, text=_text(part["text"])))
        if part["type"] == "thinking":
            return self._once(Reasoning(session="", item=item, text=_text(part["thinking"])))
        if part["type"] == "tool_use":
            return self._begin(_id(part["id"]), _text(part["name"]), part, _tool_and_command(part)[1])
        raise _MalformedLine

    def _tool_result(self, part: _Json) -> list[Event]:
        if not isinstance(part, dict) or part.get("type") != "tool_result":
            return []
        id = _id(part["tool_use_id"])
        call = self._open.pop(id, None)
        if call is None:
            raise _MalformedLine
        tool, command = _tool_and_command(call)
        content = part.get("content", "")
        return self._once(
            ToolCall(
                session="",
                item=id,
                tool=tool,
                command=command,
                status="failed" if part.get("is_error") else "completed",
                output=content if isinstance(content, str) else msgspec.json.encode(content).decode(),
            )
        )

    def _abandoned(self, id: str, start: _Json) -> list[Event]:
        tool, command = _tool_and_command(start)
        return self._once(ToolCall(session="", item=id, tool=tool, command=command, status="abandoned"))


def _claude_usage(result: _Json) -> _Json:
    """Return the usage of all models, including sub-agents; `usage` covers only the main conversation.

    Both formats count cache reads and writes separately from the input; here they are part of it.
    """
    names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
    models = result.get("modelUsage")
    used = list(models.values()) if isinstance(models, dict) else []
    if not used:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        used = [result.get("usage")]
    fresh, read, written, output = (sum(_count(each, name) for each in used) for name in names)
    return {"input_tokens": fresh + read + written, "cached_input_tokens": read, "output_tokens": output}


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _tool_and_command(call: _Json) -> tuple[str, str]:
    """Return the tool name and the command line, or the arguments as JSON, of a Claude tool call."""
    arguments = call.get("input") or {}
    command = arguments.get("command") if isinstance(arguments, dict) and call["name"] == "Bash" else None
    if isinstance(command, str):
        return "command", command
    return _text(call["name"]), msgspec.json.encode(arguments).decode()


def failure_of(status: int | None, message: str) -> AgentError:
    """Return the error for an HTTP status of the model's endpoint, or a general error if there is no status."""
    if status is None:
        return AgentError(message, op="turn")
    kind = kind_of(status)
    retryable = status >= 500 if kind is ModelFailed else None
    return kind(message, op="turn", details={"status": status}, retryable=retryable)


def dialect_named(name: DialectName) -> Dialect | None:
    """Return the dialect, or None for plain text, which is not parsed."""
    kinds: dict[str, type[Dialect]] = {"jsonl": OwnDialect, "codex_exec": CodexExec, "claude_stream": ClaudeStream}
    return kinds[name]() if name in kinds else None


def _used(dialect: Dialect, usage: _Json) -> list[Event]:
    dialect.usage = TokenUsage(**{name: _count(usage, name) for name in TokenUsage.__struct_fields__})
    return [Usage(session="", total=dialect.usage)]


def _unrecognized(method: str, line: bytes) -> Unrecognized:
    payload, truncated = preview(line, PAYLOAD_LIMIT)
    return Unrecognized(session="", method=preview(method, 200)[0], payload=payload, truncated=truncated)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _MalformedLine
    return value


def _id(value: Any) -> str:
    """Return the id, truncated: ids are kept in memory, so their length is limited."""
    return preview(_text(value), ID_LIMIT)[0]


def _optional(value: Any, kind: type[Any]) -> Any:
    if value is None or (isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)):
        return value
    raise _MalformedLine


def _status(value: Any, exit_code: int | None) -> ToolStatus:
    known: Sequence[ToolStatus] = ("completed", "failed", "declined", "abandoned")
    if value is None:
        return "completed" if exit_code in (None, 0) else "failed"
    for status in known:
        if value == status:
            return status
    raise _MalformedLine
