"""The timeline of an attempt: a page of its events, joined with its steps and tool calls.

What an agent or a runtime reports about itself is marked `runtime_reported`; everything else was observed by proofbox.
Pages keep a long log quick: only the lines of one page are parsed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, TypeVar

import msgspec

from proofbox.agents.steps import StepDecision
from proofbox.lab.attempt.trace import CALLS, EVENTS, STEPS
from proofbox.viewer.reading import OpenedEvidence, number, table, tables

PAGE: Final = 100
"""Events of one page."""
ENDS: Final = ("tool_call", "file_change")
"""Events that end a call. Each of them has its own step."""
SOURCES: Final = ("observed", "gateway", "runtime_reported")
MAX_VALUE: Final = 8 << 10
"""Maximum number of characters shown for each text of an event. Proofbox records less; forgers may record more."""
MAX_INNER: Final = 300
"""Maximum number of characters shown for each text in a list or an object of an event."""
MAX_ITEMS: Final = 16
"""Maximum number of items shown of a list or an object of an event."""
MAX_LEVELS: Final = 3
"""Maximum number of levels shown of the lists and objects of an event."""
MEMBERS: Final = frozenset(
    (
        *("event", "item", "at_ms", "thread", "status", "source", "kind", "tool", "command", "output", "exit_code"),
        *("duration_ms", "late", "text", "message", "code", "method", "payload", "paths", "answer", "rule", "subject"),
        *("origin", "forked_from", "total", "windows"),
    )
)
"""The members of events that are shown, or decide what is."""
MAX_DECISIONS: Final = 20
"""Maximum number of decisions about a step on a page."""
IDLE_MS: Final = 2000.0
"""A pause without any event that is shown as idle time."""
Kind = Literal[
    "turn", "message", "reasoning", "tool", "files", "decision", "model", "notice", "problem", "idle", "other"
]


_T = TypeVar("_T")


class StepRef(msgspec.Struct, frozen=True):
    """The part of a step that the timeline shows."""

    n: int = 0
    kind: str = ""
    item: str = ""
    changed: int = 0
    effect: str = ""
    decisions: tuple[StepDecision, ...] = ()
    snapshot_after: str = ""


class StepLine(msgspec.Struct, frozen=True):
    """A line of `steps.jsonl`."""

    step: StepRef = StepRef()
    diff: str = ""
    diff_sha256: str = ""
    diff_omitted: str = ""
    seq: int = 0

    @property
    def item(self) -> str:
        return self.step.item


class CallLine(msgspec.Struct, frozen=True):
    """A line of `tool.calls.jsonl`."""

    call: str = ""
    output_bytes: int = 0
    output_sha256: str | None = None
    seq: int = 0


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of the timeline."""

    kind: Kind
    line: int
    """The number of its line in the log of events, from 0; also its address in the page."""
    at_ms: float
    title: str
    text: str = ""
    source: str = "observed"
    """`observed`, `gateway` or `runtime_reported`."""
    status: str = ""
    member: str = "text"
    """The member of the event that `text` comes from."""
    facts: tuple[str, ...] = ()
    output: str = ""
    """What a call printed, as far as the event has it."""
    has_failed: bool = False
    """Whether the call's exit code is not 0."""
    step: StepLine | None = None
    call: CallLine | None = None
    decisions: tuple[StepDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelinePage:
    entries: tuple[TimelineEntry, ...]
    first: int
    total: int | None
    """The number of events; None while the log is being written."""
    next: int | None
    """The first event of the next page; None: this is the last."""


def read_timeline(evidence: OpenedEvidence, first: int = 0, count: int = PAGE) -> TimelinePage:
    """Return a page of the timeline, which begins with event number `first`."""
    lines = evidence.lines(EVENTS, max(0, first - 1), count + 1 if first else count)
    events = [_shown(each) for each in lines]
    before = events.pop(0) if first and events else {}
    joined = _Joined(evidence, events, first)
    total = evidence.line_count(EVENTS)
    more = len(events) == count and (total is None or first + count < total)
    return TimelinePage(tuple(_entries(events, first, before, joined)), first, total, first + count if more else None)


def _shown(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an event that the timeline shows, cut. A forged one may have a million others."""
    return {name: _cut(value, MAX_VALUE, MAX_LEVELS) for name, value in event.items() if name in MEMBERS}


def _cut(value: Any, limit: int, levels: int) -> Any:
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, list):
        return [_cut(each, MAX_INNER, levels - 1) for each in value[:MAX_ITEMS]] if levels else []
    if isinstance(value, dict):
        members = islice(value.items(), MAX_ITEMS) if levels else ()
        return {name[:MAX_INNER]: _cut(each, MAX_INNER, levels - 1) for name, each in members}
    return value


class EventRef(msgspec.Struct, frozen=True):
    """The part of an event that says which call it ends."""

    event: str = ""
    item: str = ""


class _Joined:
    """The steps and calls of a page of events.

    Ids are the agent's, which may use one several times: the second event with an id belongs to the second step and the
    second call with that id.
    """

    def __init__(self, evidence: OpenedEvidence, events: Sequence[Mapping[str, Any]], first: int) -> None:
        self._ends = Counter(str(each.get("item", "")) for each in events if each.get("event") in ENDS)
        anything = dict.fromkeys(self._ends, sys.maxsize)
        earlier = evidence.find(EVENTS, EventRef, "item", anything, before=first) if first and self._ends else {}
        self._steps_before = Counter({id: sum(each.event in ENDS for each in refs) for id, refs in earlier.items()})
        self._calls_before = Counter(
            {id: sum(each.event == "tool_call" for each in refs) for id, refs in earlier.items()}
        )
        calls = Counter(str(each.get("item", "")) for each in events if each.get("event") == "tool_call")
        self._steps = evidence.find(STEPS, StepLine, "item", self._steps_before + self._ends) if self._ends else {}
        self._calls = evidence.find(CALLS, CallLine, "call", self._calls_before + calls) if calls else {}

    def is_part_of_a_later_entry(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is shown with the end of its call, which follows on the page."""
        return event.get("event") in ("decision", "item_started") and self._ends[str(event.get("item", ""))] > 0

    def next(self, event: Mapping[str, Any]) -> tuple[StepLine | None, CallLine | None]:
        """Return the step and the call of the next event."""
        if event.get("event") not in ENDS:
            return None, None
        item = str(event.get("item", ""))
        self._ends[item] -= 1
        step = _at(self._steps.get(item, []), self._steps_before[item])
        self._steps_before[item] += 1
        if event.get("event") != "tool_call":
            return step, None
        call = _at(self._calls.get(item, []), self._calls_before[item])
        self._calls_before[item] += 1
        return step, call


def _at(entries: Sequence[_T], number: int) -> _T | None:
    return entries[number] if number < len(entries) else None


def _entries(
    events: list[dict[str, Any]], first: int, before: Mapping[str, Any], joined: _Joined
) -> Iterator[TimelineEntry]:
    last_ms = number(before.get("at_ms"))
    totals: dict[tuple[str, str], int] = {}
    thread = before.get("thread", None if first else "")  # of a later page, unknown until a line states it
    for line, found in enumerate(events, first):
        thread = found.get("thread", thread)
        event = {**found, "thread": thread}
        if not isinstance(event.get("output", ""), str):
            del event["output"]
        at_ms = number(event.get("at_ms"))
        if joined.is_part_of_a_later_entry(event):
            continue
        if last_ms and at_ms - last_ms > IDLE_MS:
            yield TimelineEntry("idle", line, last_ms, f"{(at_ms - last_ms) / 1000:.1f} s without an event")
        last_ms = max(last_ms, at_ms)
        step, call = joined.next(event)
        yield _entry(event, line, at_ms, step, call, totals)


def _entry(
    event: Mapping[str, Any],
    line: int,
    at_ms: float,
    step: StepLine | None,
    call: CallLine | None,
    totals: dict[tuple[str, str], int],
) -> TimelineEntry:
    name = str(event.get("event", ""))
    decisions = step.step.decisions[:MAX_DECISIONS] if step is not None else ()

    def entry(
        kind: Kind, title: str, member: str = "text", *facts: str, source: str = "runtime_reported"
    ) -> TimelineEntry:
        value = event.get(member, "")
        return TimelineEntry(
            kind=kind,
            line=line,
            at_ms=at_ms,
            title=title,
            text=value if isinstance(value, str) else "",
            source=source if source in SOURCES else "runtime_reported",
            status=str(event.get("status", "")),
            member=member,
            facts=tuple(filter(None, facts)),
            output=event.get("output", ""),
            has_failed=bool(event.get("exit_code")),
            step=step,
            call=call,
            decisions=decisions,
        )

    match name:
        case "thread_started":
            return entry("turn", f"Thread {event.get('origin', 'start')}", "forked_from")
        case "turn_started":
            return entry("turn", "Turn started", "-", source="observed")
        case "turn_ended":
            return entry(
                "turn", f"Turn {event.get('status', 'ended')}", "message", str(event.get("code", "")), _took(event)
            )
        case "message":
            return entry("message", "Message")
        case "reasoning":
            return entry("reasoning", "Reasoning")
        case "tool_call":
            facts = (_exit(event), _took(event), "ended after its turn" if event.get("late") else "")
            return entry("tool", str(event.get("tool", "")), "command", *facts, source=str(event.get("source", "")))
        case "file_change":
            given = event.get("paths")
            paths = given if isinstance(given, list) else []
            listed = ", ".join(map(str, paths[:8])) + (" …" if len(paths) > 8 else "")
            return entry("files", f"File change: {listed}", "-")
        case "item_started":
            return entry("tool", f"{event.get('kind', '')} started", "command", "its end is not recorded here")
        case "decision":
            return entry(
                "decision",
                f"Policy: {event.get('answer', '')}",
                "subject",
                str(event.get("rule", "")),
                source="observed",
            )
        case "usage":
            return entry("model", *_usage(event, totals), source=str(event.get("source", "runtime_reported")))
        case "rate_windows":
            return entry("model", "Rate limits", "-", *_windows(event), source=str(event.get("source", "")))
        case "retrying":
            return entry("problem", f"Retrying: {event.get('code', '')}", "message")
        case "notice":
            return entry("notice", str(event.get("kind", "")), "message", source="observed")
        case "integrity":
            return entry("problem", f"Integrity: {event.get('code', '')}", "message", source="observed")
        case _:
            return entry("other", name or "unreadable line", "payload", str(event.get("method", "")))


def _usage(event: Mapping[str, Any], totals: dict[tuple[str, str], int]) -> tuple[str, ...]:
    used = table(event.get("total"))
    spent = int(number(used.get("input_tokens")) + number(used.get("output_tokens")))
    source = str(event.get("source", ""))
    key = (source, str(event.get("thread", "")))
    before = totals.get(key)
    totals[key] = spent
    title = "Model request seen by the gateway" if source == "gateway" else "Usage reported by the agent"
    grown = "" if before is None else f"+{spent - before:,} tokens"
    return title, "-", grown, f"{spent:,} tokens in total"


def _windows(event: Mapping[str, Any]) -> list[str]:
    found = tables(event.get("windows"))[:4]
    return [f"{each.get('name')}: {number(each.get('used_percent')):.0f} % used" for each in found]


def _exit(event: Mapping[str, Any]) -> str:
    code = event.get("exit_code")
    return "" if code is None else f"exit {code}"


def _took(event: Mapping[str, Any]) -> str:
    took = event.get("duration_ms")
    return "" if took is None else duration(number(took))


def duration(milliseconds: float) -> str:
    """Format a duration for people."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
