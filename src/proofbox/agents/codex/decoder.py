"""What Codex says, in the vocabulary of `agents/events.py`. No I/O: a notification in, events out.

Everything that comes in is the word of a program in a box: any member may be missing, of another type, or huge. Nothing
raises, texts are bounded, and what has no translation is kept as `Unrecognized`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from proofbox.agents.codex.failures import classify
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
    TurnStarted,
    TurnStatus,
    Unrecognized,
    Usage,
)
from proofbox.core.text import preview

TEXT = 4 << 20
OUTPUT = 1 << 20
PIECE = 256 << 10
PAYLOAD = 64 << 10
NOTE = 2000
MAX_PATHS = 10_000
_SHELL = re.compile(r"(?:/[^\s']*/)?(?:ba|da|z|k)?sh")

_DELTAS: dict[str, Literal["message", "reasoning", "output"]] = {
    "item/agentMessage/delta": "message",
    "item/plan/delta": "reasoning",
    "item/reasoning/summaryTextDelta": "reasoning",
    "item/reasoning/textDelta": "reasoning",
    "item/commandExecution/outputDelta": "output",
    "item/fileChange/outputDelta": "output",
}
# Known, for whoever watches, and of no consequence for the record.
_NOTICES = frozenset(
    {
        *("warning", "guardianWarning", "deprecationNotice", "configWarning", "windows/worldWritableWarning"),
        *("thread/status/changed", "thread/name/updated", "thread/readState/changed", "thread/closed"),
        *("thread/archived", "thread/unarchived", "thread/deleted", "thread/compacted", "thread/reverted"),
        *("thread/goal/updated", "thread/goal/cleared", "thread/settings/updated", "thread/queue/changed"),
        *("thread/environment/connected", "thread/environment/disconnected", "thread/prediction/updated"),
        *("turn/plan/updated", "turn/diff/updated", "turn/moderationMetadata", "hook/started", "hook/completed"),
        *("item/commandExecution/terminalInteraction", "item/fileChange/patchUpdated", "item/mcpToolCall/progress"),
        *("item/reasoning/summaryPartAdded", "item/autoApprovalReview/started", "item/autoApprovalReview/completed"),
        *("autoApprovalReview/strictReviewRequired", "serverRequest/resolved", "mcpServer/startupStatus/updated"),
        *("model/rerouted", "model/verification", "model/safetyBuffering/updated", "skills/changed", "fs/changed"),
        *("account/updated", "account/login/completed", "remoteControl/status/changed", "app/list/updated"),
        *("modelProvider/authRecoveryStarted", "modelProvider/authRecoveryCompleted"),
    }
)
_QUIET_ITEMS = ("hookPrompt", "subAgentActivity", "enteredReviewMode", "exitedReviewMode", "contextCompaction", "plan")
_TOOL_ITEMS = (
    *("commandExecution", "fileChange", "mcpToolCall", "dynamicToolCall", "collabAgentToolCall", "webSearch"),
    *("imageView", "imageGeneration", "functionCallOutput", "sleep"),
)


class TurnOver(msgspec.Struct, frozen=True, kw_only=True):
    """Codex says that a turn has ended."""

    thread: str
    turn: str
    status: TurnStatus
    error: dict[str, Any] | None = None


class _Open(msgspec.Struct, frozen=True):
    """An item that began and has not ended."""

    thread: str
    turn: str
    item: dict[str, Any]


Said = dict[str, Any]
E = TypeVar("E")


class Decoder:
    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Open] = {}
        self._done: dict[str, set[str]] = {}
        self._ended: set[str] = set()
        self._errors: dict[str, Said] = {}

    def decode(self, method: str, params: Any) -> list[Event | TurnOver]:
        said: Said = params if isinstance(params, dict) else {}
        try:
            found = list(self._decode(method, said))
        except (ValueError, TypeError, RecursionError):  # a shape that nobody thought of
            found = []
        return found or [_unrecognized(method, params)]

    def paths(self, thread: str, item: str) -> list[str]:
        """Of a change of files under way: what an approval is asked for."""
        opened = self._open.get((thread, item))
        return _paths(opened.item) if opened is not None else []

    def running(self, turn: str) -> list[str]:
        """The tools of a turn that have begun and not ended."""
        return [
            id for (_, id), each in self._open.items() if each.turn == turn and _text(each.item, "type") in _TOOL_ITEMS
        ]

    def abandon(self, turn: str | None = None) -> list[Event]:
        """Nobody will ever say how these ended: what is open of a turn, or all of it."""
        left: list[Event] = []
        for key, each in list(self._open.items()):
            if turn is None or each.turn == turn:
                del self._open[key]
                left += self._abandoned(key[1], each)
        return left

    def _abandoned(self, id: str, each: _Open) -> list[Event]:
        late = each.turn in self._ended
        kind = _text(each.item, "type")
        if kind == "fileChange":
            paths = tuple(_paths(each.item))
            return [_of(FileChange, each, item=id, paths=paths, status="abandoned", late=late)]
        if kind in _TOOL_ITEMS:
            command = _command(each.item) if kind == "commandExecution" else ""
            tool = "command" if kind == "commandExecution" else _tool_name(each.item)
            cwd = _text(each.item, "cwd")
            return [_of(ToolCall, each, item=id, tool=tool, command=command, cwd=cwd, status="abandoned", late=late)]
        return [_of(Notice, each, kind="item_abandoned", message=f"{kind} {id} began and did not end")]

    def _decode(self, method: str, said: Said) -> Iterator[Event | TurnOver]:
        thread = _text(said, "threadId") or _text(_inner(said, "thread"), "id")
        turn = _text(said, "turnId") or _text(_inner(said, "turn"), "id")
        place = _Open(thread, turn, {})
        if method in _DELTAS:
            text = preview(_text(said, "delta"), PIECE)[0]
            yield _of(Delta, place, item=_text(said, "itemId"), kind=_DELTAS[method], text=text)
        elif method == "item/started":
            yield from self._item_started(place, _inner(said, "item"))
        elif method == "item/completed":
            yield from self._item_completed(place, _inner(said, "item"))
        elif method == "turn/started":
            yield _of(TurnStarted, place)
        elif method == "turn/completed":
            yield from self._turn_completed(place, _inner(said, "turn"))
        elif method == "error":
            yield from self._error(place, said)
        elif method == "thread/tokenUsage/updated":
            yield _of(Usage, place, total=_usage(_inner(_inner(said, "tokenUsage"), "total")))
        elif method == "account/rateLimits/updated":
            windows = tuple(_windows(_inner(said, "rateLimits")))
            if windows:
                yield _of(RateWindows, place, windows=windows)
            else:  # an update without a single number comes after every answer
                yield _of(Notice, place, kind=method, message="")
        elif method == "thread/started":
            yield _of(Notice, place, kind=method, message="")
        elif method in _NOTICES:
            yield _of(Notice, place, kind=method, message=_note(said))

    def _item_started(self, place: _Open, item: Said) -> Iterator[Event]:
        id, kind = _text(item, "id"), _text(item, "type")
        if id and kind and kind != "userMessage":
            self._open[place.thread, id] = _Open(place.thread, place.turn, item)
        if kind:
            yield _of(ItemStarted, place, item=id, kind=kind)

    def _item_completed(self, place: _Open, item: Said) -> Iterator[Event]:
        id, kind = _text(item, "id"), _text(item, "type")
        self._open.pop((place.thread, id), None)
        done = self._done.setdefault(place.turn, set())
        if id in done:
            message = f"{kind[:40]} {id[:80]} ended twice"
            yield _of(Integrity, place, code="ITEM_ENDED_TWICE", message=message)
            return
        done.add(id)
        translate = _ITEMS.get(kind)
        if kind == "userMessage":
            yield _of(Notice, place, kind="user_message", message=_note({"content": item.get("content")}))
        elif kind in _QUIET_ITEMS:
            yield _of(Notice, place, kind=kind, message=_note(item))
        elif translate is not None:
            yield translate(place, id, item, place.turn in self._ended)

    def _turn_completed(self, place: _Open, turn: Said) -> Iterator[Event | TurnOver]:
        status = _text(turn, "status")
        for key, each in list(self._open.items()):
            if each.turn == place.turn and _text(each.item, "type") not in _TOOL_ITEMS:
                del self._open[key]
                yield from self._abandoned(key[1], each)
        if status not in ("completed", "failed", "interrupted"):
            message = f"a turn ended as {status[:80]!r}, which is no way to end"
            yield _of(Integrity, place, code="TURN_STATUS_UNKNOWN", message=message)
        error = turn.get("error")
        kept = self._errors.pop(place.turn, None)
        self._ended.add(place.turn)
        yield TurnOver(
            thread=place.thread,
            turn=place.turn,
            status=status if status in ("completed", "interrupted") else "failed",  # type: ignore[arg-type]
            error=error if isinstance(error, dict) else kept,
        )

    def _error(self, place: _Open, said: Said) -> Iterator[Event]:
        error = _inner(said, "error")
        failure = classify(error)
        if said.get("willRetry") is True:
            more = _text(error, "additionalDetails")
            message = f"{failure.message}: {preview(more, NOTE)[0]}" if more else failure.message
            yield _of(Retrying, place, code=failure.code, message=message)
        else:
            self._errors[place.turn] = error
            yield _of(Notice, place, kind="error", message=f"{failure.code}: {failure.message}")


def last_usage(params: Any) -> TokenUsage:
    """Of `thread/tokenUsage/updated`: what the last request added."""
    return _usage(_inner(_inner(params, "tokenUsage"), "last")) if isinstance(params, dict) else TokenUsage()


# ---- items


def _message(place: _Open, id: str, item: Said, late: bool) -> Event:
    del late
    return _of(Message, place, item=id, text=preview(_text(item, "text"), TEXT)[0])


def _reasoning(place: _Open, id: str, item: Said, late: bool) -> Event:
    del late
    parts = [part for name in ("summary", "content") for part in item.get(name) or () if isinstance(part, str)]
    return _of(Reasoning, place, item=id, text=preview("\n".join(parts), TEXT)[0])


def _command_execution(place: _Open, id: str, item: Said, late: bool) -> Event:
    code = item.get("exitCode")
    return _of(
        ToolCall,
        place,
        item=id,
        tool="command",
        command=_command(item),
        cwd=_text(item, "cwd"),
        status=_status(item),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        duration_ms=_number(item, "durationMs"),
        output=preview(_text(item, "aggregatedOutput"), OUTPUT)[0],
        late=late,
    )


def _file_change(place: _Open, id: str, item: Said, late: bool) -> Event:
    return _of(FileChange, place, item=id, paths=tuple(_paths(item)), status=_status(item), late=late)


def _other_tool(place: _Open, id: str, item: Said, late: bool) -> Event:
    asked = next((item[name] for name in ("arguments", "query", "path", "prompt") if item.get(name)), None)
    came = next((item[name] for name in ("result", "contentItems", "output", "error", "failure") if item.get(name)), "")
    status = _status(item)
    if item.get("success") is False or item.get("error") or item.get("failure"):
        status = "failed"
    return _of(
        ToolCall,
        place,
        item=id,
        tool=_tool_name(item),
        command=_json(asked, PAYLOAD) if asked is not None else "",
        status=status,
        duration_ms=_number(item, "durationMs"),
        output=_json(came, OUTPUT),
        late=late,
    )


_ITEMS: dict[str, Callable[[_Open, str, Said, bool], Event]] = {
    "agentMessage": _message,
    "reasoning": _reasoning,
    "commandExecution": _command_execution,
    "fileChange": _file_change,
    **dict.fromkeys(
        ("mcpToolCall", "dynamicToolCall", "collabAgentToolCall", "webSearch", "imageView", "imageGeneration"),
        _other_tool,
    ),
    **dict.fromkeys(("functionCallOutput", "sleep"), _other_tool),
}
_TOOL_NAMES = {"webSearch": "web_search", "imageView": "view_image", "imageGeneration": "image_generation"}


def _tool_name(item: Said) -> str:
    kind = _text(item, "type")
    name = _text(item, "tool") or _text(item, "name")
    owner = _text(item, "server") or _text(item, "namespace") or ("agents" if kind == "collabAgentToolCall" else "")
    full = f"{owner}.{name}" if owner and name else name or _TOOL_NAMES.get(kind, kind)
    return preview(full, 200)[0]


def _command(item: Said) -> str:
    """Codex runs a command by a shell; what the agent gave is that shell's argument."""
    line = _text(item, "command")
    head, flag, rest = [*line.split(" ", 2), "", ""][:3]
    if rest and flag in ("-lc", "-c") and _SHELL.fullmatch(head):
        try:
            words = shlex.split(rest)
        except ValueError:
            words = []
        if len(words) == 1:
            line = words[0]
    return preview(line, PAYLOAD)[0]


def _status(item: Said) -> ToolStatus:
    status = item.get("status")
    if status == "declined":
        return "declined"
    return "completed" if status in ("completed", "success", None) else "failed"


def _paths(item: Said) -> list[str]:
    changes = item.get("changes")
    found = [_text(each, "path") for each in changes or () if isinstance(each, dict)]
    return [preview(path, 4096)[0] for path in found[:MAX_PATHS]]


# ---- members of any type


def _of(event: Callable[..., E], place: _Open, /, **members: Any) -> E:
    return event(session="", thread=place.thread, turn=place.turn, **members)


def _text(said: Any, name: str) -> str:
    value = said.get(name) if isinstance(said, dict) else None
    return value if isinstance(value, str) else ""


def _inner(said: Said, name: str) -> Said:
    value = said.get(name)
    return value if isinstance(value, dict) else {}


def _number(said: Said, name: str) -> float | None:
    value = said.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(said: Said, name: str) -> int:
    value = _number(said, name)
    return int(value) if value is not None and 0 <= value < 2**53 else 0


def _usage(total: Said) -> TokenUsage:
    return TokenUsage(
        input_tokens=_count(total, "inputTokens"),
        output_tokens=_count(total, "outputTokens"),
        cached_input_tokens=_count(total, "cachedInputTokens"),
        reasoning_tokens=_count(total, "reasoningOutputTokens"),
    )


def _windows(limits: Said) -> Iterator[RateWindow]:
    for name in ("primary", "secondary"):
        window = _inner(limits, name)
        if window:
            yield RateWindow(
                name=name,
                used_percent=_number(window, "usedPercent"),
                window_minutes=_number(window, "windowDurationMins"),
                resets_at=_number(window, "resetsAt"),
            )


def _note(said: Said) -> str:
    told = {name: value for name, value in said.items() if name not in ("threadId", "turnId")}
    only = told.get("message") if len(told) == 1 else None
    return preview(only, NOTE)[0] if isinstance(only, str) else _json(told, NOTE)


def _json(value: Any, limit: int) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return preview(text, limit)[0]


def _unrecognized(method: str, params: Any) -> Unrecognized:
    text, cut = preview(msgspec.json.encode(params), PAYLOAD)
    thread = _text(params, "threadId")
    return Unrecognized(
        session="", thread=thread, turn=_text(params, "turnId"), method=method[:200], payload=text, truncated=cut
    )
