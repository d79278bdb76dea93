"""Translate the notifications of Codex into the events of `agents/events.py`. No I/O here.

The input comes from a program in a box and is not trusted: any member may be missing, of another type, or huge. Nothing
raises, texts are truncated, and unknown notifications are kept as `Unrecognized`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from proofbox.agents.events import (
    Delta,
    Event,
    FileChange,
    Integrity,
    ItemStarted,
    Message,
    Notice,
    RateWindows,
    Retrying,
    TokenUsage,
    ToolCall,
    TurnStarted,
    TurnStatus,
    Unrecognized,
    Usage,
)
from proofbox.agents.runtimes.codex import fields, items
from proofbox.agents.runtimes.codex.failures import classify, relevant_members
from proofbox.agents.runtimes.codex.fields import NOTE, JsonObject
from proofbox.agents.runtimes.codex.items import PAYLOAD, Open, of
from proofbox.core.text import preview

PIECE = 256 << 10
PARTIAL = 64 << 10
"""Maximum number of characters kept of an incomplete message."""
PARTIAL_MESSAGES = 1000
REMEMBERED = 20_000

_DELTAS: dict[str, Literal["message", "reasoning", "output"]] = {
    "item/agentMessage/delta": "message",
    "item/plan/delta": "reasoning",
    "item/reasoning/summaryTextDelta": "reasoning",
    "item/reasoning/textDelta": "reasoning",
    "item/commandExecution/outputDelta": "output",
    "item/fileChange/outputDelta": "output",
}
# Known notifications that are only displayed and do not affect the record.
_NOTICES = frozenset(
    {
        *("warning", "guardianWarning", "deprecationNotice", "configWarning", "windows/worldWritableWarning"),
        *("thread/status/changed", "thread/name/updated", "thread/readState/changed", "thread/closed"),
        *("thread/archived", "thread/unarchived", "thread/deleted", "thread/compacted", "thread/reverted"),
        *("thread/goal/updated", "thread/goal/cleared", "thread/settings/updated", "thread/queue/changed"),
        *("thread/environment/connected", "thread/environment/disconnected", "thread/prediction/updated"),
        *("turn/plan/updated", "turn/diff/updated", "turn/moderationMetadata", "hook/started", "hook/completed"),
        *("item/fileChange/patchUpdated", "item/mcpToolCall/progress"),
        *("item/reasoning/summaryPartAdded", "item/autoApprovalReview/started", "item/autoApprovalReview/completed"),
        *("autoApprovalReview/strictReviewRequired", "serverRequest/resolved", "mcpServer/startupStatus/updated"),
        *("model/rerouted", "model/verification", "model/safetyBuffering/updated", "skills/changed", "fs/changed"),
        *("account/updated", "account/login/completed", "remoteControl/status/changed", "app/list/updated"),
        *("modelProvider/authRecoveryStarted", "modelProvider/authRecoveryCompleted"),
    }
)
K = TypeVar("K")
V = TypeVar("V")
_QUIET_ITEMS = ("hookPrompt", "subAgentActivity", "enteredReviewMode", "exitedReviewMode", "contextCompaction", "plan")


class TurnOver(msgspec.Struct, frozen=True, kw_only=True):
    """Codex reported the end of a turn."""

    thread: str
    turn: str
    status: TurnStatus
    error: dict[str, Any] | None = None


class CodexDecoder:
    def __init__(self) -> None:
        self._open = items.OpenItems()
        self._done: dict[tuple[str, str], None] = {}
        self._ended: dict[str, None] = {}
        self._errors: dict[str, JsonObject] = {}
        self._typed = 0
        self._partial: dict[str, tuple[str, str]] = {}
        """The incomplete message of each thread: its item, and the text so far."""

    def decode(self, method: str, params: Any) -> list[Event | TurnOver]:
        members: JsonObject = params if isinstance(params, dict) else {}
        try:
            found = list(self._decode(method, members))
        except Exception:  # an unexpected shape
            found = []
        return found or [_unrecognized(method, params)]

    def paths(self, thread: str, item: str) -> list[str]:
        """Return the paths of a file change in progress, for its approval."""
        found = self._open.get((thread, item))
        return items.paths_of(found.item) if found is not None else []

    def running(self, threads: Collection[str] | None = None, turn: str | None = None) -> list[items.Key]:
        """Return the calls in progress of some threads or of one turn."""
        found = self._open.of(threads, turn)
        return [key for key, each in found if fields.text(each.item, "type") in items.TOOLS]

    def abandon(self, threads: Collection[str] | None = None, turn: str | None = None) -> list[Event]:
        """Return the events for items whose end will never be reported: of some threads, of a turn, or all."""
        left: list[Event] = []
        for key, each in self._open.of(threads, turn):
            self._open.pop(key)
            left += self._abandoned(key[1], each)
        return left

    def _abandoned(self, id: str, each: Open) -> list[Event]:
        late = each.turn in self._ended
        kind = fields.text(each.item, "type")
        if kind == "fileChange":
            paths = tuple(items.paths_of(each.item))
            return [of(FileChange, each, item=id, paths=paths, status="abandoned", late=late)]
        if kind in items.TOOLS:
            command = items.command_of(each.item) if kind == "commandExecution" else ""
            tool = "command" if kind == "commandExecution" else items.tool_name(each.item)
            cwd = fields.text(each.item, "cwd")
            return [of(ToolCall, each, item=id, tool=tool, command=command, cwd=cwd, status="abandoned", late=late)]
        return [of(Notice, each, kind="item_abandoned", message=f"{kind} {id} began but did not end")]

    def _decode(self, method: str, members: JsonObject) -> Iterator[Event | TurnOver]:
        thread = fields.id(members, "threadId") or fields.id(fields.inner(members, "thread"))
        turn = fields.id(members, "turnId") or fields.id(fields.inner(members, "turn"))
        place = Open(thread, turn, {})
        if method in _DELTAS:
            text = preview(fields.text(members, "delta"), PIECE)[0]
            if _DELTAS[method] == "message":
                self._keep_partial(thread, fields.id(members, "itemId"), text)
            yield of(Delta, place, item=fields.id(members, "itemId"), kind=_DELTAS[method], text=text)
        elif method == "item/started":
            yield from self._item_started(place, fields.inner(members, "item"))
        elif method == "item/completed":
            yield from self._item_completed(place, fields.inner(members, "item"))
        elif method == "item/commandExecution/terminalInteraction":
            yield self._typed_into(place, members)
        elif method == "turn/started":
            yield of(TurnStarted, place)
        elif method == "turn/completed":
            yield from self._turn_completed(place, fields.inner(members, "turn"))
        elif method == "error":
            yield from self._error(place, members)
        elif method == "thread/tokenUsage/updated":
            yield of(Usage, place, total=fields.usage(fields.inner(fields.inner(members, "tokenUsage"), "total")))
        elif method == "account/rateLimits/updated":
            windows = tuple(fields.windows(fields.inner(members, "rateLimits")))
            if windows:
                yield of(RateWindows, place, windows=windows)
            else:  # Codex sends an update without any numbers after every response
                yield of(Notice, place, kind=method, message="")
        elif method == "thread/started":
            yield of(Notice, place, kind=method, message="")
        elif method in _NOTICES:
            yield of(Notice, place, kind=method, message=fields.note(members))

    def _item_started(self, place: Open, item: JsonObject) -> Iterator[Event]:
        id, kind = fields.id(item), fields.id(item, "type")
        if id and kind and kind != "userMessage":
            for (_, gone), each in self._open.add(place, id, item):
                message = f"too many open items: {gone[:80]} is no longer tracked"
                yield of(Integrity, each, code="TOO_MUCH_OPEN", message=message)
                yield from self._abandoned(gone, each)
        if kind:
            command = preview(items.command_of(item), NOTE)[0] if kind == "commandExecution" else ""
            yield of(ItemStarted, place, item=id, kind=kind, command=command)

    def _item_completed(self, place: Open, item: JsonObject) -> Iterator[Event]:
        id, kind = fields.id(item), fields.id(item, "type")
        self._open.pop((place.thread, id))
        if (place.turn, id) in self._done:
            message = f"{kind[:40]} {id[:80]} ended twice"
            yield of(Integrity, place, code="ITEM_ENDED_TWICE", message=message)
            return
        _remember(self._done, (place.turn, id), None)
        translate = items.TRANSLATIONS.get(kind)
        if kind == "userMessage":
            yield of(Notice, place, kind="user_message", message=fields.note({"content": item.get("content")}))
        elif kind in _QUIET_ITEMS:
            yield of(Notice, place, kind=kind, message=fields.note(item))
        elif translate is not None:
            yield translate(place, id, item, place.turn in self._ended)

    def _keep_partial(self, thread: str, item: str, text: str) -> None:
        current, before = self._partial.get(thread, ("", ""))
        kept = (before if current == item else "") + text
        _remember(self._partial, thread, (item, kept[:PARTIAL]), PARTIAL_MESSAGES)

    def _typed_into(self, place: Open, members: JsonObject) -> Event:
        """Report text that the agent types into a running command as a call, because the command may be a shell.

        Polling without text is not a call.
        """
        typed = fields.text(members, "stdin")
        if not typed:
            return of(Notice, place, kind="terminal_polled", message="")
        self._typed += 1
        return of(
            ToolCall,
            place,
            item=f"{fields.id(members, 'itemId')}/stdin-{self._typed}",
            tool="write_stdin",
            command=preview(typed, PAYLOAD)[0],
            status="completed",
            late=place.turn in self._ended,
        )

    def _turn_completed(self, place: Open, turn: JsonObject) -> Iterator[Event | TurnOver]:
        status = fields.text(turn, "status")
        item, text = self._partial.pop(place.thread, ("", ""))
        if status == "interrupted" and text and self._open.get((place.thread, item)) is not None:
            yield of(Message, place, item=item, text=text)
        for key, each in self._open.of(turn=place.turn):
            if fields.text(each.item, "type") not in items.TOOLS:
                self._open.pop(key)
                yield from self._abandoned(key[1], each)
        if status not in ("completed", "failed", "interrupted"):
            message = f"a turn ended with the unknown status {status[:80]!r}"
            yield of(Integrity, place, code="TURN_STATUS_UNKNOWN", message=message)
        error = turn.get("error")
        kept = self._errors.pop(place.turn, None)
        _remember(self._ended, place.turn, None)
        yield TurnOver(
            thread=place.thread,
            turn=place.turn,
            status=status if status in ("completed", "interrupted") else "failed",  # type: ignore[arg-type]
            error=relevant_members(error) if isinstance(error, dict) else kept,
        )

    def _error(self, place: Open, members: JsonObject) -> Iterator[Event]:
        error = fields.inner(members, "error")
        failure = classify(error)
        if members.get("willRetry") is True:
            more = fields.text(error, "additionalDetails")
            message = f"{failure.message}: {preview(more, NOTE)[0]}" if more else failure.message
            yield of(Retrying, place, code=failure.code, message=message)
        else:
            _remember(self._errors, place.turn, relevant_members(error))
            yield of(Notice, place, kind="error", message=f"{failure.code}: {failure.message}")


def last_usage(params: Any) -> TokenUsage:
    """Return the usage of the last request, from `thread/tokenUsage/updated`."""
    return (
        fields.usage(fields.inner(fields.inner(params, "tokenUsage"), "last"))
        if isinstance(params, dict)
        else TokenUsage()
    )


def _unrecognized(method: str, params: Any) -> Unrecognized:
    whole = fields.encoded(params)
    text, cut = preview(whole, PAYLOAD)
    return Unrecognized(
        session="",
        thread=fields.id(params, "threadId"),
        turn=fields.id(params, "turnId"),
        method=method[:200],
        payload=text,
        truncated=cut or whole == fields.TOO_DEEP,
    )


def _remember(kept: dict[K, V], key: K, value: V, limit: int | None = None) -> None:
    """Store a value and drop the oldest ones, so that a program can't exhaust memory."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > (REMEMBERED if limit is None else limit):
        del kept[next(iter(kept))]
