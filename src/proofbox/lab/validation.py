"""Whether an attempt's evidence is whole and agrees with itself: what scoring may rely on.

A bundle that verifies has the bytes its writer left. This asks more: that they tell one story. Each finding has a code;
`strict` also counts what is merely lacking in an attempt that the machinery failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from proofbox.errors import ProofboxError
from proofbox.evidence import outcome
from proofbox.evidence.reader import Bundle
from proofbox.lab import artifacts
from proofbox.lab.trace import CALLS, EVENTS, STEPS


class Finding(msgspec.Struct, frozen=True):
    code: str
    path: str
    detail: str


def attempts_in(bundle: Bundle) -> dict[str, Bundle]:
    """The attempts of a run by their paths; an attempt's own bundle is one by itself."""
    if artifacts.ATTEMPT in bundle.artifacts or artifacts.TORN in bundle.artifacts:
        return {"": bundle}
    return {path: inner for path, inner in bundle.nested.items() if path.startswith("attempts/")}


def validate(bundle: Bundle, *, strict: bool) -> list[Finding]:
    """Every way in which the attempts of a verified bundle are not whole, or contradict themselves."""
    found: list[Finding] = []
    for path, attempt in attempts_in(bundle).items():
        for code, name, detail in _attempt(attempt, strict):
            found.append(Finding(code, f"{path}/{name}" if path else name, detail))
    return found


def _attempt(bundle: Bundle, strict: bool) -> Iterator[tuple[str, str, str]]:
    missing = [name for name in artifacts.EXPECTED if name not in bundle.artifacts]
    excused = _infra(bundle) and not strict
    if not excused:
        yield from (("artifact_missing", name, "a whole attempt has it") for name in missing)
    if artifacts.REPORT not in bundle.artifacts:
        return
    try:
        yield from _story(bundle)
    except (KeyError, TypeError, AttributeError, ProofboxError) as error:
        yield "artifact_malformed", artifacts.REPORT, f"{type(error).__name__}: {error}"[:300]


def _infra(bundle: Bundle) -> bool:
    if outcome.PATH not in bundle.artifacts:
        return True
    return bool(outcome.parse_outcome(bundle.read_json(outcome.PATH)).infra.result != "ok")


def _story(bundle: Bundle) -> Iterator[tuple[str, str, str]]:
    report = bundle.read_json(artifacts.REPORT, schema="proofbox.attempt_report/1")
    attempt = bundle.read_json(artifacts.ATTEMPT, schema="proofbox.attempt/1")
    yield from _same(artifacts.REPORT, "attempt_id", report["attempt_id"], attempt["attempt_id"])
    yield from _same(artifacts.REPORT, "reason", report["reason"], attempt["reason"])
    feedback = bundle.read_json(artifacts.FEEDBACK, schema="proofbox.feedback/1")
    if ("result" in feedback) == ("result_json" in feedback):
        yield "feedback_ambiguous", artifacts.FEEDBACK, "exactly one of result and result_json must be there"
    yield from _same(artifacts.FEEDBACK, "claimed", feedback["claimed"], report["claimed"])
    verdict = outcome.parse_outcome(bundle.read_json(outcome.PATH)).verified.result
    yield from _same(outcome.PATH, "verified", {"unknown": "none"}.get(verdict, verdict), report["verified"])
    for each in report.get("integrity", []):
        yield each["code"], EVENTS, each["message"]
    if CALLS in bundle.artifacts:
        yield from _trace(bundle, report, attempt["attempt_id"])


def _trace(bundle: Bundle, report: dict[str, Any], id: str) -> Iterator[tuple[str, str, str]]:
    calls = list(bundle.read_log(CALLS))
    yield from _same(CALLS, "tool_calls", len(calls), report["tool_calls"])
    if any(call["attempt"] != id for call in calls):
        yield "trace_foreign", CALLS, "a call names another attempt"
    for call in calls:
        digest = call["output_sha256"]
        if digest is not None and f"outputs/{digest}.txt" not in bundle.artifacts:
            yield "output_missing", CALLS, f"the whole output of {call['call']} is not there"
    events = list(bundle.read_log(EVENTS))
    told = [event for event in events if event["event"] == "tool_call"]
    yield from _same(EVENTS, "tool calls told", [each["item"] for each in told], [each["call"] for each in calls])
    yield from _gaps([event["number"] for event in events])
    yield from _turns(events)
    yield from _steps([entry["step"] for entry in bundle.read_log(STEPS) if "step" in entry], len(calls))


def _gaps(numbers: Sequence[int]) -> Iterator[tuple[str, str, str]]:
    """Deltas are numbered and not kept, so numbers may be left out; they may not repeat or go back."""
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield "events_out_of_order", EVENTS, "an event's number is not after the one before"


def _turns(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    started = [event["turn"] for event in events if event["event"] == "turn_started"]
    ended = [event["turn"] for event in events if event["event"] == "turn_ended"]
    for turn in dict.fromkeys(ended):
        if ended.count(turn) > 1:
            yield "turn_ended_twice", EVENTS, turn
    for turn in started:
        if turn not in ended:
            yield "turn_without_end", EVENTS, turn


def _steps(steps: Sequence[dict[str, Any]], calls: int) -> Iterator[tuple[str, str, str]]:
    for earlier, later in pairwise(steps):
        if later["snapshot_before"] != earlier["snapshot_after"]:
            yield "steps_disconnected", STEPS, f"step {later['n']} does not begin where step {earlier['n']} ended"
    yield from _same(STEPS, "steps of tool calls", sum(step["kind"] == "tool_call" for step in steps), calls)


def _same(path: str, what: str, one: Any, other: Any) -> Iterator[tuple[str, str, str]]:
    if one != other:
        yield "contradiction", path, f"{what}: {str(one)[:100]} here, {str(other)[:100]} elsewhere"
