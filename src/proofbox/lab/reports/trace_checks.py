"""Checks the trace of an attempt, and the figures of its report against the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from proofbox.agents.events import Usage
from proofbox.agents.usage import TokenCount
from proofbox.evidence.bundle.reader import Bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import ToolCallEntry
from proofbox.lab.attempt.trace import CALLS, EVENTS, STEPS, call_figures

Found = tuple[str, str, str]
"""A finding: its code, the path, and a detail."""


def check_trace(bundle: Bundle, report: dict[str, Any], id: str, *, whole: bool) -> Iterator[Found]:
    """Check the trace for gaps, and the report's figures against it."""
    calls = list(bundle.read_log(CALLS))
    figures = msgspec.to_builtins(call_figures(msgspec.convert(calls, list[ToolCallEntry])))
    yield from (each for name in figures for each in same(CALLS, name, figures[name], report[name]))
    if any(call["attempt"] != id for call in calls):
        yield "trace_foreign", CALLS, "a call names another attempt"
    for call in calls:
        digest = call["output_sha256"]
        if digest is not None and f"outputs/{digest}.txt" not in bundle.artifacts:
            yield "output_missing", CALLS, f"the whole output of {call['call']} is missing"
    events = list(bundle.read_log(EVENTS))
    recorded = [event for event in events if event["event"] == "tool_call"]
    yield from same(EVENTS, "tool calls", [each["item"] for each in recorded], [each["call"] for each in calls])
    for name, event in (("turns", "turn_started"), ("messages", "message")):
        yield from same(EVENTS, name, sum(each["event"] == event for each in events), report[name])
    yield from _gaps([event["number"] for event in events])
    yield from _turns(events)
    if whole:
        yield from _open_calls(events)
    yield from _steps([entry["step"] for entry in bundle.read_log(STEPS) if "step" in entry], len(calls))


def check_tokens(bundle: Bundle, report: dict[str, Any], *, shared: bool) -> Iterator[Found]:
    """Check the report's token counts against the events."""
    count = TokenCount(shared=shared)
    for event in bundle.read_log(EVENTS):
        if event["event"] == "usage":
            count.add(msgspec.convert(event, Usage))
    yield from same(artifacts.REPORT, "tokens", report["tokens"], msgspec.to_builtins(count.by_source()))
    unstated = (count.without_usage, count.broken_off)
    reported = (report["responses_without_usage"], report["responses_broken_off"])
    yield from same(artifacts.REPORT, "responses of unknown usage", reported, unstated)


def _gaps(numbers: Sequence[int]) -> Iterator[Found]:
    """Check that event numbers increase. Gaps are allowed, because deltas are numbered but not recorded."""
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield "events_out_of_order", EVENTS, "an event's number is not greater than the one before"


def _turns(events: Sequence[dict[str, Any]]) -> Iterator[Found]:
    started = [event["turn"] for event in events if event["event"] == "turn_started"]
    ended = [event["turn"] for event in events if event["event"] == "turn_ended"]
    for turn in dict.fromkeys(ended):
        if ended.count(turn) > 1:
            yield "turn_ended_twice", EVENTS, turn
    for turn in started:
        if turn not in ended:
            yield "turn_without_end", EVENTS, turn


def _open_calls(events: Sequence[dict[str, Any]]) -> Iterator[Found]:
    """Check that every command that started has a recorded end, `abandoned` if nothing else is known."""
    ended = {(each["thread"], each["item"]) for each in events if each["event"] in ("tool_call", "file_change")}
    for event in events:
        if event["event"] == "item_started" and event["command"] and (event["thread"], event["item"]) not in ended:
            yield "call_without_end", EVENTS, event["item"]


def _steps(steps: Sequence[dict[str, Any]], calls: int) -> Iterator[Found]:
    for earlier, later in pairwise(steps):
        if later["snapshot_before"] != earlier["snapshot_after"]:
            yield "steps_disconnected", STEPS, f"step {later['n']} does not start where step {earlier['n']} ended"
    yield from same(STEPS, "steps of tool calls", sum(step["kind"] == "tool_call" for step in steps), calls)


def same(path: str, what: str, one: Any, other: Any) -> Iterator[Found]:
    """Yield a finding if two statements of the same fact differ."""
    if one != other:
        yield "contradiction", path, f"{what}: {str(one)[:100]} here, {str(other)[:100]} elsewhere"
