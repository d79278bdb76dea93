"""Translate the updates of one ACP process into the events of `agents/events.py`. No I/O here.

The input comes from a program in a box and is not trusted: any member may be missing, of another type, or huge. Nothing
raises, and unknown updates are kept as `Unrecognized`. Messages arrive in pieces; a message is complete when something
else follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from proofbox.agents.events import (
    Delta,
    Event,
    FileChange,
    Integrity,
    ItemStarted,
    Message,
    Reasoning,
    ToolCall,
    ToolStatus,
    Unrecognized,
)
from proofbox.agents.runtimes.item_ids import ItemIds
from proofbox.core.text import preview

PAYLOAD = 64 << 10
PIECE = 256 << 10
TEXT = 1 << 20
"""Maximum length of a message. The rest is dropped, and an `Integrity` event says so."""
ID = 200
PATHS = 1000
MAX_OPEN = 10_000
_CHANGES = ("edit", "delete", "move")
_PATH_MEMBERS = ("filePath", "file_path", "path", "notebook_path")
_EXIT = re.compile(r"(?:Error: )?Exit code:? (\d{1,3})(?:\n|$)")
_QUIET = frozenset(
    {"user_message_chunk", "available_commands_update", "current_mode_update", "config_option_update"}
    | {"session_info_update", "usage_update", "plan"}
)

JsonObject = dict[str, Any]


class AcpOpenCall(msgspec.Struct, kw_only=True):
    """A call in progress, as described by its updates so far."""

    item: str
    turn: str
    name: str = ""
    kind: str = ""
    arguments: JsonObject = {}
    paths: tuple[str, ...] = ()
    output: str = ""
    exit_code: int | None = None
    started: bool = False

    @property
    def changes_files(self) -> bool:
        return self.kind in _CHANGES and bool(self.paths)

    def tool_and_command(self) -> tuple[str, str]:
        """Return `command` and the command line, or the tool's name and its arguments as JSON."""
        command = self.arguments.get("command")
        if isinstance(command, list) and all(isinstance(word, str) for word in command):
            command = " ".join(command)
        if isinstance(command, str) and command:
            return "command", preview(command, PAYLOAD)[0]
        if self.kind == "execute" and self.name:
            return "command", self.name
        return self.name or self.kind or "tool", preview(encoded(self.arguments), PAYLOAD)[0]

    def read(self, update: Mapping[str, Any]) -> None:
        """Apply an update: members that are absent from it keep their values."""
        kind, title, given = update.get("kind"), update.get("title"), update.get("rawInput")
        self.kind = kind[:ID] if isinstance(kind, str) else self.kind
        name = update.get("name") or (title if self.kind == "execute" or not self.name else None)
        self.name = preview(name, PAYLOAD)[0] if isinstance(name, str) and name else self.name
        self.arguments = given if isinstance(given, dict) and given else self.arguments
        self.paths = _paths(update, self.arguments) or self.paths
        self.output = _output(update) or self.output
        code = exit_code_of(update, self.output)
        self.exit_code = code if code is not None else self.exit_code


class AcpDecoder:
    """The decoder of one thread. `turn` is the turn that new items belong to."""

    def __init__(self) -> None:
        self.turn = ""
        self.ended = False
        """The turn has ended, so that further items are late."""
        self.declined: set[str] = set()
        """The calls that were declined."""
        self.states_failures = False
        """The exit code of a completed command is 0, even if the agent does not state it."""
        self._open: dict[str, AcpOpenCall] = {}
        self._items = ItemIds()
        self._count = 0
        self._text = ""
        self._text_kind = ""
        self._text_id = ""
        self._too_long = False

    def decode(self, update: Any) -> list[Event]:
        try:
            found = self._decode(update)
        except (KeyError, TypeError, ValueError, AttributeError):
            found = None
        if found is not None:
            return found
        kind = update.get("sessionUpdate") if isinstance(update, dict) else None
        payload, truncated = preview(encoded(update), PAYLOAD)
        method = preview(str(kind), ID)[0]
        kept: list[Event] = [
            Unrecognized(session="", turn=self.turn, method=method, payload=payload, truncated=truncated)
        ]
        if kind in ("tool_call", "tool_call_update"):
            note = "the agent sent an update of a tool call that could not be read"
            kept.append(Integrity(session="", turn=self.turn, code="MESSAGE_NOT_UNDERSTOOD", message=note))
        return kept

    def describe(self, call: Any) -> AcpOpenCall | None:
        """Return the call that a permission request is about, with what earlier updates said about it."""
        id = call.get("toolCallId") if isinstance(call, dict) else None
        if not isinstance(id, str):
            return None
        known = self._open.get(id[:ID])
        found = msgspec.structs.replace(known) if known is not None else AcpOpenCall(item=id[:ID], turn=self.turn)
        found.read(call)
        return found

    def flush(self) -> list[Event]:
        """Return the message in progress, because something else follows."""
        kind, text, item = self._text_kind, self._text, f"item-{self._count}"
        self._text = self._text_kind = self._text_id = ""
        events: list[Event] = []
        if text and kind == "message":
            events.append(Message(session="", turn=self.turn, item=item, text=text))
        elif text:
            events.append(Reasoning(session="", turn=self.turn, item=item, text=text))
        if self._too_long:
            self._too_long = False
            note = f"a message is longer than {TEXT} characters; the rest was dropped"
            events.append(Integrity(session="", turn=self.turn, code="USAGE_MESSAGE_CUT", message=note))
        return events

    def abandon(self, turn: str | None = None) -> list[Event]:
        """Return the events for calls whose end will never be reported: all, or those of a turn."""
        left = self.flush()
        for id, call in list(self._open.items()):
            if turn is None or call.turn == turn:
                left += self._end(id, "abandoned")
        return left

    def _decode(self, update: JsonObject) -> list[Event] | None:
        match update["sessionUpdate"]:
            case "agent_message_chunk":
                return self._piece("message", update)
            case "agent_thought_chunk":
                return self._piece("reasoning", update)
            case "tool_call" | "tool_call_update":
                return [*self.flush(), *self._call(update)]
            case kind if kind in _QUIET:
                return []
        return None

    def _piece(self, kind: str, update: JsonObject) -> list[Event]:
        content = update["content"]
        text = content.get("text") if content.get("type") == "text" else f"[{content['type']}]"
        if not isinstance(text, str):
            raise TypeError
        text = preview(text, PIECE)[0]
        id = str(update.get("messageId") or "")[:ID]
        before = self.flush() if (kind, id) != (self._text_kind, self._text_id) else []
        if not self._text_kind:
            self._count += 1
            self._text_kind, self._text_id = kind, id
        self._too_long = self._too_long or len(self._text) + len(text) > TEXT
        self._text = (self._text + text)[:TEXT]
        if not text:
            return before
        item = f"item-{self._count}"
        if kind == "message":
            return [*before, Delta(session="", turn=self.turn, item=item, kind="message", text=text)]
        return [*before, Delta(session="", turn=self.turn, item=item, kind="reasoning", text=text)]

    def _call(self, update: JsonObject) -> list[Event]:
        id = update["toolCallId"]
        if not isinstance(id, str) or not id:
            raise TypeError
        id, status = id[:ID], update.get("status")
        events: list[Event] = []
        if update["sessionUpdate"] == "tool_call" and id in self._open:
            events += self._end(id, "abandoned")  # the id is used again
        if id not in self._open:
            if len(self._open) >= MAX_OPEN:
                events += self._end(next(iter(self._open)), "abandoned")
            self._open[id] = AcpOpenCall(item=self._items.next(id), turn=self.turn)
        call = self._open[id]
        call.read(update)
        if not call.started and (status in ("in_progress", "completed", "failed") or "command" in call.arguments):
            call.started = True
            command = call.tool_and_command()[1]
            events.append(
                ItemStarted(
                    session="", turn=call.turn, item=call.item, kind=(call.name or call.kind)[:ID], command=command
                )
            )
        if status in ("completed", "failed"):
            ending: ToolStatus = "completed" if status == "completed" else "failed"
            if call.exit_code or (call.exit_code is None and _states_no_exit(update)):
                ending = "failed"  # some agents report every command that has ended as completed
            events += self._end(id, "declined" if call.item in self.declined or id in self.declined else ending)
        return events

    def _end(self, id: str, status: ToolStatus) -> list[Event]:
        call = self._open.pop(id)
        late = call.turn != self.turn or self.ended
        if call.changes_files:
            return [FileChange(session="", turn=call.turn, item=call.item, paths=call.paths, status=status, late=late)]
        tool, command = call.tool_and_command()
        code = call.exit_code
        if tool != "command" or status in ("declined", "abandoned"):
            code = None
        elif code is None and status == "completed" and not call.arguments.get("run_in_background"):
            code = 0 if self.states_failures else None
        return [
            ToolCall(
                session="",
                turn=call.turn,
                item=call.item,
                tool=tool[:ID],
                command=command,
                status=status,
                exit_code=code,
                output=preview(call.output, PAYLOAD)[0],
                late=late,
            )
        ]


def exit_code_of(update: Mapping[str, Any], output: str) -> int | None:
    """Return the exit code that an update states. ACP has no member for it, so each agent states it elsewhere."""
    raw, meta = _table(update.get("rawOutput")), _table(update.get("_meta"))
    places = (
        _table(raw.get("metadata")).get("exit"),  # opencode
        _table(meta.get("terminal_exit")).get("exit_code"),  # codex-acp
        raw.get("exit_code"),
        raw.get("exitCode"),
    )
    for code in places:
        if isinstance(code, int) and not isinstance(code, bool) and -1 << 31 <= code < 1 << 31:
            return code
    stated = _EXIT.match(output.removeprefix("```").lstrip()) if update.get("status") == "failed" else None
    return int(stated[1]) if stated else None


def _states_no_exit(update: Mapping[str, Any]) -> bool:
    """Return whether an update says that a command has no exit code, because it was stopped."""
    metadata = _table(_table(update.get("rawOutput")).get("metadata"))
    return "exit" in metadata and metadata["exit"] is None


def _paths(update: Mapping[str, Any], arguments: JsonObject) -> tuple[str, ...]:
    found = [_table(each).get("path") for each in _list(update.get("locations"))]
    found += [_table(each).get("path") for each in _list(update.get("content")) if _table(each).get("type") == "diff"]
    found = found or [arguments.get(name) for name in _PATH_MEMBERS]
    paths = [preview(path, 4096)[0] for path in found if isinstance(path, str) and path]
    return tuple(dict.fromkeys(paths[:PATHS]))


def _output(update: Mapping[str, Any]) -> str:
    raw, meta = _table(update.get("rawOutput")), _table(update.get("_meta"))
    delta = _table(meta.get("terminal_output_delta")).get("data")
    stated = (raw.get("output"), raw.get("aggregated_output"), raw.get("formatted_output"), delta)
    text = next((each for each in (update.get("rawOutput"), *stated) if isinstance(each, str)), None)
    if text is None:
        pieces = [_table(_table(each).get("content")).get("text") for each in _list(update.get("content"))]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
    return preview(text, PAYLOAD)[0]


def encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return b"{}"


def _table(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
