"""Checks what an agent said, did and left against the conditions of its mission: `[mission.expect]`.

Patterns come from the suite's author and are trusted. Texts come from the agent, so they are cut to a bounded length
before they are matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from proofbox.core.canonical import CanonicalError, canonical_bytes
from proofbox.errors import UsageError
from proofbox.lab.attempt.claims import Feedback
from proofbox.lab.suite.spec import CommandCondition, Expect, FileCondition, Mission

if TYPE_CHECKING:
    from proofbox.lab.attempt.final_tree import Find

MATCHED_TEXT = 16 * 1024
"""The number of characters that a pattern is matched against, which bounds backtracking."""


class UnmetCondition(msgspec.Struct, frozen=True):
    """A condition that was not met: `what` was expected, `found` instead."""

    condition: str
    """Its name in `expect`; `result_json.NAME` for a member, `file PATH` for a file."""
    what: str
    """The expectation, at most 500 characters."""
    found: str
    """The actual value, at most 500 characters."""


class ObservedCall(msgspec.Struct, frozen=True):
    """A tool call, with the properties that conditions refer to."""

    subject: str
    """The text that tool policies match as well: `agents.approvals.subject_of`."""
    failed: bool
    observed: bool = False
    """Whether proofbox ran the call itself and it was started, so it does not rest on the agent's claim."""
    declined: bool = False
    """Whether the call was declined, and therefore not run."""
    started: bool = True
    """False if the call is known not to have run."""
    exit_code: int | None = None


def refuse_expect(missions: Iterable[Mission], op: str) -> None:
    """Raise `UsageError` if a mission has conditions. Stored files alone, without the agent, cannot decide them."""
    for mission in missions:
        if mission.expect.asks:
            raise UsageError(f"mission {mission.id} has conditions in expect, which need the agent", op=op)


def unmet(
    expect: Expect, feedback: Feedback, calls: Sequence[ObservedCall], find: Find, *, incomplete_reason: str = ""
) -> list[UnmetCondition]:
    """Return every condition that was not met, in the order of the spec.

    `incomplete_reason` says why calls may be missing from the record. If it is set, no condition on calls is met.
    """
    found: list[UnmetCondition] = []

    def check(holds: bool, condition: str, what: object, instead: object) -> None:
        if not holds:
            found.append(UnmetCondition(condition, str(what)[:500], str(instead)[:500]))

    def check_calls(holds: bool, condition: str, what: object, instead: object) -> None:
        undecided = f"undecided, because calls may be missing from the record: {incomplete_reason}"
        check(holds and not incomplete_reason, condition, what, undecided if incomplete_reason else instead)

    message = feedback.text[:MATCHED_TEXT]
    if expect.claimed is not None:
        check(feedback.claimed == expect.claimed, "claimed", expect.claimed, feedback.claimed)
    if expect.result is not None:
        check(re.search(expect.result, message) is not None, "result", expect.result, message or "no message")
    for name, value in (expect.result_json or {}).items():
        given = (feedback.result_json or {}).get(name)
        check(_same(given, value), f"result_json.{name}", value, given)
    failures = sum(call.failed for call in calls)
    counted = [call for call in calls if call.observed] if expect.observed else calls
    if expect.min_tool_calls is not None:
        check_calls(len(counted) >= expect.min_tool_calls, "min_tool_calls", expect.min_tool_calls, len(counted))
    if expect.max_tool_calls is not None:
        check_calls(len(calls) <= expect.max_tool_calls, "max_tool_calls", expect.max_tool_calls, len(calls))
    if expect.max_tool_failures is not None:
        check_calls(failures <= expect.max_tool_failures, "max_tool_failures", expect.max_tool_failures, failures)
    required = [call for call in counted if call.started and not call.declined]
    for each in expect.commands:
        condition = each if isinstance(each, CommandCondition) else CommandCondition(each)
        _check_command(condition, required, check_calls)
    run = [call.subject[:MATCHED_TEXT] for call in calls if call.started and not call.declined]
    for pattern in expect.no_commands:
        hit = next((each for each in run if re.search(pattern, each)), None)
        check_calls(hit is None, "no_commands", f"no call matching {pattern}", hit)
    for file_condition in expect.file:
        _check_file(file_condition, find, check)
    return found


def _check_command(
    condition: CommandCondition, calls: Sequence[ObservedCall], check: Callable[[bool, str, object, object], None]
) -> None:
    found = [call for call in calls if re.search(condition.match, call.subject[:MATCHED_TEXT])]
    if condition.exit_code is None or not found:
        check(bool(found), "commands", condition.match, f"{len(calls)} other calls")
        return
    codes = [call.exit_code for call in found]
    ended = ", ".join("unknown" if code is None else str(code) for code in codes[:10])
    check(condition.exit_code in codes, "commands", f"{condition.match} with exit code {condition.exit_code}", ended)


def _check_file(condition: FileCondition, find: Find, check: Callable[[bool, str, object, object], None]) -> None:
    name = f"file {condition.path}"
    found = find(condition.names, condition.contains)
    if not condition.exists or not found.there:
        check(found.there is condition.exists, name, "exists" if condition.exists else "does not exist", found.what)
        return
    if condition.contains is not None:
        instead = found.what if found.sha256 is None else f"{found.size} bytes without it"
        check(found.has_text, name, f"contains {condition.contains}", instead)
    if condition.sha256 is not None:
        check(found.sha256 == condition.sha256, name, condition.sha256, found.sha256 or found.what)


def _same(a: object, b: object) -> bool:
    """Return whether two values are equal as JSON: `1` equals `1.0`, `true` does not equal `1`."""
    try:
        return canonical_bytes(a) == canonical_bytes(b)
    except CanonicalError:
        return False
