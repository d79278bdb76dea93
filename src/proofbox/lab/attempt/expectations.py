"""Whether what an agent said, did and left is what its mission expects: `[mission.expect]`.

Patterns come from the suite's author and are trusted as far as their meaning; texts come from the agent, so they are
cut to a bounded length before a pattern sees them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from proofbox.core.canonical import CanonicalError, canonical_bytes
from proofbox.lab.attempt.claims import Feedback
from proofbox.lab.attempt.final_tree import Find
from proofbox.lab.suite.spec import CommandCondition, Expect, FileCondition

MATCHED_TEXT = 16 * 1024
"""Characters of a text that a pattern sees. A pattern that backtracks does so over no more than this."""


class UnmetCondition(msgspec.Struct, frozen=True):
    """A condition that does not hold: `what` was expected, `found` instead."""

    condition: str
    """Its name in `expect`; `result_json.NAME` of a member, `file PATH` of a file."""
    what: str
    """What was expected, in at most 500 characters."""
    found: str
    """What was there instead, in at most 500 characters."""


class ObservedCall(msgspec.Struct, frozen=True):
    """One tool call, as far as conditions ask."""

    subject: str
    """The text that tool policies see, too: `agents.approvals.subject_of`."""
    failed: bool
    observed: bool = False
    """We ran it ourselves, and it was started: no agent's word for it."""
    declined: bool = False
    """Leave was not given, so that it was made and not run."""
    started: bool = True
    """False: it is known that it never ran."""
    exit_code: int | None = None


def unmet(
    expect: Expect, feedback: Feedback, calls: Sequence[ObservedCall], find: Find, *, doubt: str = ""
) -> list[UnmetCondition]:
    """Every condition that does not hold, in the order of the spec.

    `doubt` says why calls may be missing from the record. Then no condition on calls holds.
    """
    found: list[UnmetCondition] = []

    def check(holds: bool, condition: str, what: object, instead: object) -> None:
        if not holds:
            found.append(UnmetCondition(condition, str(what)[:500], str(instead)[:500]))

    def check_calls(holds: bool, condition: str, what: object, instead: object) -> None:
        undecided = f"undecided, because calls may be missing from the record: {doubt}"
        check(holds and not doubt, condition, what, undecided if doubt else instead)

    said = feedback.said[:MATCHED_TEXT]
    if expect.claimed is not None:
        check(feedback.claimed == expect.claimed, "claimed", expect.claimed, feedback.claimed)
    if expect.result is not None:
        check(re.search(expect.result, said) is not None, "result", expect.result, said or "nothing was said")
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
    for asked in expect.commands:
        _check_command(asked if isinstance(asked, CommandCondition) else CommandCondition(asked), required, check_calls)
    run = [call.subject[:MATCHED_TEXT] for call in calls if call.started and not call.declined]
    for pattern in expect.no_commands:
        hit = next((each for each in run if re.search(pattern, each)), None)
        check_calls(hit is None, "no_commands", f"none like {pattern}", hit)
    for condition in expect.file:
        _check_file(condition, find, check)
    return found


def _check_command(
    condition: CommandCondition, calls: Sequence[ObservedCall], check: Callable[[bool, str, object, object], None]
) -> None:
    found = [call for call in calls if re.search(condition.match, call.subject[:MATCHED_TEXT])]
    if condition.exit_code is None or not found:
        check(bool(found), "commands", condition.match, f"{len(calls)} others")
        return
    codes = [call.exit_code for call in found]
    ended = ", ".join("unknown" if code is None else str(code) for code in codes[:10])
    check(condition.exit_code in codes, "commands", f"{condition.match} with exit code {condition.exit_code}", ended)


def _check_file(condition: FileCondition, find: Find, check: Callable[[bool, str, object, object], None]) -> None:
    name = f"file {condition.path}"
    found = find(condition.names, condition.contains)
    if not condition.exists or not found.there:
        check(found.there is condition.exists, name, "there" if condition.exists else "not there", found.what)
        return
    if condition.contains is not None:
        instead = found.what if found.sha256 is None else f"{found.size} bytes without"
        check(found.has_text, name, f"contains {condition.contains}", instead)
    if condition.sha256 is not None:
        check(found.sha256 == condition.sha256, name, condition.sha256, found.sha256 or found.what)


def _same(a: object, b: object) -> bool:
    """Equal as JSON: `1` is `1.0`, and `true` is not `1`."""
    try:
        return canonical_bytes(a) == canonical_bytes(b)
    except CanonicalError:
        return False
