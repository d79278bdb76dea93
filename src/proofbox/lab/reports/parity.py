"""Compares what is scored in two runs of the same missions.

A mission can be given to an agent through its protocol or on a command line. The scored values must not depend on
which: the verdicts, the calls and how they ended, and the final files.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.documents import tree
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.result import RESULT_MEMBERS, AttemptResult
from proofbox.lab.attempt.trace import CALLS
from proofbox.lab.reports.validation import attempts_in


class Scored(AttemptResult, frozen=True, kw_only=True):
    """The parts of an attempt that are scored."""

    calls: tuple[tuple[str, str, int | None], ...]
    """Command, status and exit code of each tool call."""
    tree_sha256: str | None


SCORED = [name for name in Scored.__struct_fields__ if name != "strategy"]
"""The members that must agree; the runs may use different strategies."""


class ParityDifference(msgspec.Struct, frozen=True):
    attempt: str
    what: str
    one: str
    other: str


def compare(one: Bundle, other: Bundle) -> list[ParityDifference]:
    """Return every difference between two runs, attempt by attempt."""
    ones, others = scored(one), scored(other)
    found = [
        ParityDifference(id, "attempt", "present" if id in ones else "absent", "present" if id in others else "absent")
        for id in sorted(ones.keys() ^ others.keys())
    ]
    for id in sorted(ones.keys() & others.keys()):
        for name in SCORED:
            a, b = getattr(ones[id], name), getattr(others[id], name)
            if a != b:
                found.append(ParityDifference(id, name, str(a), str(b)))
    return found


def scored(bundle: Bundle) -> dict[str, Scored]:
    """Return the scored parts of every attempt of a run that has a report."""
    found = {}
    for attempt in attempts_in(bundle).values():
        if artifacts.REPORT in attempt.artifacts:
            report = attempt.read_json(artifacts.REPORT)
            found[report["attempt_id"]] = _scored(attempt, report)
    return found


def _scored(attempt: Bundle, report: dict[str, Any]) -> Scored:
    calls = attempt.read_log(CALLS) if CALLS in attempt.artifacts else ()
    left = attempt.read_json(tree.PATH)["tree_sha256"] if tree.PATH in attempt.artifacts else None
    return Scored(
        **{name: report[name] for name in RESULT_MEMBERS},
        calls=tuple((_bare(call["command"]), call["status"], call["exit_code"]) for call in calls),
        tree_sha256=left,
    )


def _bare(command: str) -> str:
    """Return a command line without the shell wrapper that a runtime added."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    shell = len(words) == 3 and words[0].rpartition("/")[2] in ("sh", "bash", "zsh") and words[1] in ("-c", "-lc")
    return words[2] if shell else command
