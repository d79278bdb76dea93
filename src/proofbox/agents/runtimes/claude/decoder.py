"""Translate the messages of one Claude Code process into the events of `agents/events.py`. No I/O here.

The input comes from a program in a box and is not trusted: any member may be missing, of another type, or huge. Nothing
raises, and unknown messages are kept as `Unrecognized`. A call ends with its result, a background command or sub-agent
with its notification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from proofbox.agents.events import (
    Delta,
    Event,
    FileChange,
    Integrity,
    ItemStarted,
    Message,
    Notice,
    RateWindow,
    RateWindows,
    Reasoning,
    Retrying,
    TokenUsage,
    ToolCall,
    ToolStatus,
    Unrecognized,
)
from proofbox.agents.gateway.failures import kind_of
from proofbox.agents.runtimes.item_ids import ItemIds
from proofbox.core.text import preview

PAYLOAD = 64 << 10
PIECE = 256 << 10
NOTE = 2000
ID = 200
MAX_OPEN = 10_000
_EXIT = re.compile(r"(?:Error: )?Exit code (\d{1,3})(?:\n|$)")
_ENDED_WITH = re.compile(r"\(exit code (\d{1,3})\)|failed with exit code (\d{1,3})")
_FILE_TOOLS = {"Write": "file_path", "Edit": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path"}
_QUIET = frozenset(
    {"command_lifecycle", "control_response", "keep_alive", "tool_progress", "auth_status", "prompt_suggestion"}
)
_WINDOWS = {"five_hour": "primary", "seven_day": "secondary"}

JsonObject = dict[str, Any]


def tool_and_command(name: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Return the tool's name and the command line, or the tool's name and its arguments as JSON."""
    command = arguments.get("command") if name == "Bash" else None
    if isinstance(command, str):
        return "command", preview(command, PAYLOAD)[0]
    return name, preview(_encoded(arguments), PAYLOAD)[0]


def changed_paths(name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths that a call of a file tool changes; empty for other tools."""
    path = arguments.get(_FILE_TOOLS.get(name, ""))
    return (preview(path, 4096)[0],) if isinstance(path, str) else ()


class OpenCall(msgspec.Struct, frozen=True):
    item: str
    turn: str
    tool: str
    command: str
    paths: tuple[str, ...]
    in_background: bool = False


class ClaudeDecoder:
    """The decoder of one thread. `turn` is the turn that new items belong to."""

    def __init__(self) -> None:
        self.turn = ""
        self.ended = False
        """The turn has ended, so that further items are late."""
        self.declined: set[str] = set()
        """The calls that were declined."""
        self.sub_agents_work = False
        """Sub-agents work in the background, as the program stated last."""
        self._open: dict[str, OpenCall] = {}
        self._items = ItemIds()
        self._count = 0

    def decode(self, message: JsonObject) -> list[Event]:
        kind = message.get("type")
        try:
            found = self._decode(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            found = None
        if found is not None:
            return found
        payload, truncated = preview(_encoded(message), PAYLOAD)
        method = preview(str(kind), ID)[0]
        kept = Unrecognized(session="", turn=self.turn, method=method, payload=payload, truncated=truncated)
        if kind != "assistant":
            return [kept]
        note = "claude sent a message of the model that could not be read, which may have requested a call"
        return [kept, Integrity(session="", turn=self.turn, code="MESSAGE_NOT_UNDERSTOOD", message=note)]

    def abandon(self, turn: str | None = None) -> list[Event]:
        """Return the events for calls whose end will never be reported: all, or those in the foreground of a turn."""
        left: list[Event] = []
        for id, call in list(self._open.items()):
            if turn is None or (call.turn == turn and not call.in_background):
                left += self._ended(id, "abandoned")
        return left

    def _decode(self, message: JsonObject) -> list[Event] | None:
        match message["type"]:
            case "assistant":
                sub = message.get("parent_tool_use_id") is not None
                return [event for part in message["message"]["content"] for event in self._part(part, sub)]
            case "user":
                content = message["message"]["content"]
                parts = content if isinstance(content, list) else []
                return [event for part in parts for event in self._result(part, message.get("tool_use_result"))]
            case "stream_event":
                return self._delta(message["event"])
            case "system":
                return self._system(message)
            case "rate_limit_event":
                return _windows(message["rate_limit_info"])
            case kind if kind in _QUIET:
                return []
        return None

    def _part(self, part: JsonObject, of_sub_agent: bool) -> list[Event]:
        self._count += 1
        item = f"item-{self._count}"
        if part["type"] == "text" and of_sub_agent:  # not a message to the caller
            return [Notice(session="", turn=self.turn, kind="sub_agent_message", message=_shown(part["text"]))]
        if part["type"] == "text":
            return [Message(session="", turn=self.turn, item=item, text=_text(part["text"]))]
        if part["type"] in ("thinking", "redacted_thinking"):
            text = _text(part.get("thinking", ""))
            return [Reasoning(session="", turn=self.turn, item=item, text=text)] if text else []
        if part["type"] not in ("tool_use", "server_tool_use"):
            raise ValueError
        id, name = _text(part["id"])[:ID], _text(part["name"])[:ID]
        arguments = part["input"] if isinstance(part["input"], dict) else {}
        before = self._ended(id, "abandoned") if id in self._open else []
        if len(self._open) >= MAX_OPEN:
            before += self._ended(next(iter(self._open)), "abandoned")
        item = self._items.next(id)
        call = OpenCall(item, self.turn, *tool_and_command(name, arguments), changed_paths(name, arguments))
        self._open[id] = call
        return [*before, ItemStarted(session="", turn=self.turn, item=item, kind=name, command=call.command)]

    def _result(self, part: Any, details: Any) -> list[Event]:
        if not isinstance(part, dict) or part.get("type") != "tool_result":
            return []
        item = _text(part["tool_use_id"])[:ID]
        call = self._open[item]
        if isinstance(details, dict) and details.get("backgroundTaskId"):
            self._open[item] = msgspec.structs.replace(call, in_background=True)
            return []
        content = part.get("content", "")
        output = content if isinstance(content, str) else _texts(content)
        failed = part.get("is_error") is True
        code = None
        if call.tool == "command" and item not in self.declined:
            stated = _EXIT.match(output)
            code = int(stated[1]) if failed and stated else None if failed else 0
        status: ToolStatus = "declined" if item in self.declined else "failed" if failed else "completed"
        return self._ended(item, status, code, output)

    def _system(self, message: JsonObject) -> list[Event]:
        kind = message.get("subtype")
        if kind == "api_retry":
            status = message.get("error_status")
            code = kind_of(status).code if isinstance(status, int) else kind_of(500).code
            return [Retrying(session="", turn=self.turn, code=code, message=_shown(message.get("error")))]
        if kind == "background_tasks_changed":
            self.sub_agents_work = any(task.get("task_type") == "local_agent" for task in message["tasks"])
        item = message.get("tool_use_id")
        if kind == "task_notification" and isinstance(item, str) and item in self._open:
            if not self._open[item].in_background:
                return []  # a sub-agent in the foreground ends with its result
            summary = _shown(message.get("summary"))
            stated = _ENDED_WITH.search(summary)
            exit_code = int(stated[1] or stated[2]) if stated and self._open[item].tool == "command" else None
            done = message.get("status") == "completed" and not exit_code
            return self._ended(item, "completed" if done else "failed", exit_code, summary)
        if kind in ("compact_boundary", "model_refusal_fallback"):
            return [Notice(session="", turn=self.turn, kind=str(kind), message=_shown(_encoded(message).decode()))]
        return []

    def _delta(self, event: JsonObject) -> list[Event]:
        delta = event.get("delta")
        if event.get("type") != "content_block_delta" or not isinstance(delta, dict):
            return []
        kinds: dict[str, Literal["message", "reasoning"]] = {"text": "message", "thinking": "reasoning"}
        item = f"item-{self._count + 1}"
        return [
            Delta(session="", turn=self.turn, item=item, kind=kind, text=preview(delta[name], PIECE)[0])
            for name, kind in kinds.items()
            if isinstance(delta.get(name), str)
        ]

    def _ended(self, id: str, status: ToolStatus, code: int | None = None, output: str = "") -> list[Event]:
        call = self._open.pop(id)
        late = call.turn != self.turn or self.ended
        if call.paths:
            return [FileChange(session="", turn=call.turn, item=call.item, paths=call.paths, status=status, late=late)]
        return [
            ToolCall(
                session="",
                turn=call.turn,
                item=call.item,
                tool=call.tool,
                command=call.command,
                status=status,
                exit_code=code,
                output=preview(output, PAYLOAD)[0],
                late=late,
            )
        ]


def usage_of(result: JsonObject, *, of_turn: bool = False) -> TokenUsage:
    """Return the usage that a result states: of the process so far with all models, or of this turn's conversation.

    Both count cache reads and writes separately from the input; here they are part of it.
    """
    names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "outputTokens")
    models = result.get("modelUsage")
    used: list[Any] = list(models.values()) if isinstance(models, dict) else []
    if of_turn or not used:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        used = [result.get("usage")]
    fresh, read, written, output = (sum(_count(each, name) for each in used) for name in names)
    return TokenUsage(input_tokens=fresh + read + written, cached_input_tokens=read, output_tokens=output)


def _windows(info: JsonObject) -> list[Event]:
    name = _WINDOWS.get(str(info.get("rateLimitType")))
    if name is None:
        return []
    used, resets = (info.get(key) for key in ("utilization", "resetsAt"))
    window = RateWindow(
        name=name,
        used_percent=round(100 * used, 3) if isinstance(used, int | float) and 0 <= used <= 100 else None,
        window_minutes=300.0 if name == "primary" else 10080.0,
        resets_at=float(resets) if isinstance(resets, int | float) and 0 <= resets < 1e12 else None,
    )
    return [RateWindows(session="", windows=(window,))]


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(content: Any) -> str:
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str)) or _encoded(content).decode()


def _shown(value: Any) -> str:
    return preview(value, NOTE)[0] if isinstance(value, str) else ""


def _encoded(value: Any) -> bytes:
    """Encode a value as JSON. Decoding allows deeper nesting than encoding, so this may return a placeholder."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return b'"(not shown: nested too deeply)"'
