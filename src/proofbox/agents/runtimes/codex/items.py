"""The items of a turn: translate finished ones into events, and keep those in progress, with limits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

import msgspec

from proofbox.agents.events import Event, FileChange, Message, Reasoning, ToolCall, ToolStatus
from proofbox.agents.runtimes.codex import fields
from proofbox.agents.runtimes.codex.fields import JsonObject
from proofbox.core.text import preview

TEXT = 4 << 20
OUTPUT = 1 << 20
PAYLOAD = 64 << 10
MAX_PATHS = 10_000
MAX_ITEMS = 1000
"""Maximum number of items in progress, and `MAX_BYTES` their total size."""
MAX_BYTES = 64 << 20
_KEPT = ("type", "command", "cwd", "tool", "name", "server", "namespace")
_SHELL = re.compile(r"(?:/[^\s']*/)?(?:ba|da|z|k)?sh")
TOOLS = (
    *("commandExecution", "fileChange", "mcpToolCall", "dynamicToolCall", "collabAgentToolCall", "webSearch"),
    *("imageView", "imageGeneration", "functionCallOutput", "sleep"),
)
E = TypeVar("E")
Key = tuple[str, str]
"""A thread and an item."""


class Open(msgspec.Struct, frozen=True):
    """An item that began and has not ended."""

    thread: str
    turn: str
    item: dict[str, Any]


def of(event: Callable[..., E], place: Open, /, **values: Any) -> E:
    return event(session="", thread=place.thread, turn=place.turn, **values)


def _message(place: Open, id: str, item: JsonObject, late: bool) -> Event:
    del late
    return of(Message, place, item=id, text=preview(fields.text(item, "text"), TEXT)[0])


def _reasoning(place: Open, id: str, item: JsonObject, late: bool) -> Event:
    del late
    parts = [part for name in ("summary", "content") for part in item.get(name) or () if isinstance(part, str)]
    return of(Reasoning, place, item=id, text=preview("\n".join(parts), TEXT)[0])


def _command_execution(place: Open, id: str, item: JsonObject, late: bool) -> Event:
    code = item.get("exitCode")
    return of(
        ToolCall,
        place,
        item=id,
        tool="command",
        command=command_of(item),
        cwd=fields.text(item, "cwd"),
        status=_status(item),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        duration_ms=fields.number(item, "durationMs"),
        output=preview(fields.text(item, "aggregatedOutput"), OUTPUT)[0],
        late=late,
    )


def _file_change(place: Open, id: str, item: JsonObject, late: bool) -> Event:
    return of(FileChange, place, item=id, paths=tuple(paths_of(item)), status=_status(item), late=late)


def _other_tool(place: Open, id: str, item: JsonObject, late: bool) -> Event:
    arguments = next((item[name] for name in ("arguments", "query", "path", "prompt") if item.get(name)), None)
    result = next(
        (item[name] for name in ("result", "contentItems", "output", "error", "failure") if item.get(name)), ""
    )
    status = _status(item)
    if item.get("success") is False or item.get("error") or item.get("failure"):
        status = "failed"
    return of(
        ToolCall,
        place,
        item=id,
        tool=tool_name(item),
        command=fields.as_json(arguments, PAYLOAD) if arguments is not None else "",
        status=status,
        duration_ms=fields.number(item, "durationMs"),
        output=fields.as_json(result, OUTPUT),
        late=late,
    )


TRANSLATIONS: dict[str, Callable[[Open, str, JsonObject, bool], Event]] = {
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


def tool_name(item: JsonObject) -> str:
    kind = fields.text(item, "type")
    name = fields.text(item, "tool") or fields.text(item, "name")
    owner = (
        fields.text(item, "server")
        or fields.text(item, "namespace")
        or ("agents" if kind == "collabAgentToolCall" else "")
    )
    full = f"{owner}.{name}" if owner and name else name or _TOOL_NAMES.get(kind, kind)
    return preview(full, 200)[0]


def command_of(item: JsonObject) -> str:
    """Return the agent's command line. Codex runs it with a shell, so it is the shell's argument."""
    line = fields.text(item, "command")
    head, flag, rest = [*line.split(" ", 2), "", ""][:3]
    if rest and flag in ("-lc", "-c") and _SHELL.fullmatch(head):
        try:
            words = shlex.split(rest)
        except ValueError:
            words = []
        if len(words) == 1:
            line = words[0]
    return preview(line, PAYLOAD)[0]


def _status(item: JsonObject) -> ToolStatus:
    status = item.get("status")
    if status == "declined":
        return "declined"
    return "completed" if status in ("completed", "success", None) else "failed"


def paths_of(item: JsonObject) -> list[str]:
    changes = item.get("changes")
    found = [fields.text(each, "path") for each in changes or () if isinstance(each, dict)]
    return [preview(path, 4096)[0] for path in found[:MAX_PATHS]]


class OpenItems:
    """The items in progress. If there are too many, or they are too large, the oldest are dropped."""

    def __init__(self) -> None:
        self._items: dict[Key, tuple[Open, int]] = {}
        self._size = 0

    def add(self, place: Open, id: str, item: JsonObject) -> Iterator[tuple[Key, Open]]:
        """Add an item. Yield the items that were dropped to make room."""
        kept, size = _needed(item)
        self.pop((place.thread, id))
        self._items[place.thread, id] = Open(place.thread, place.turn, kept), size
        self._size += size
        while len(self._items) > MAX_ITEMS or self._size > MAX_BYTES:
            key = next(iter(self._items))
            gone = self.pop(key)
            if gone is not None:
                yield key, gone

    def pop(self, key: Key) -> Open | None:
        opened, size = self._items.pop(key, (None, 0))
        self._size -= size
        return opened

    def get(self, key: Key) -> Open | None:
        return self._items.get(key, (None, 0))[0]

    def of(self, threads: Collection[str] | None = None, turn: str | None = None) -> list[tuple[Key, Open]]:
        """Return the items of some threads and of one turn. None: of any."""
        return [
            (key, opened)
            for key, (opened, _) in self._items.items()
            if (threads is None or opened.thread in threads) and turn in (None, opened.turn)
        ]


def _needed(item: JsonObject) -> tuple[JsonObject, int]:
    texts = {name: fields.cut(item, name, PAYLOAD) for name in _KEPT if name in item}
    paths = paths_of(item)
    return {**texts, "changes": [{"path": path} for path in paths]}, sum(map(len, texts.values())) + sum(
        len(path) + 300 for path in paths
    )
