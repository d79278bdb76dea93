"""Compares what is scored in two runs of the same missions: what `proofbox report parity` prints.

A mission can be given to an agent through its protocol or on a command line. The scored values must not depend on
which: the claim, the verdict, an infrastructure failure, why the attempt ended, the calls and how they ended, and the
final files. Retries are not compared: the last attempt at each replicate determines its result.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from proofbox.core.plurals import counted
from proofbox.core.results import Document, ErrorBody
from proofbox.core.text import preview
from proofbox.errors import EvidenceIncomplete, RunsDiffer
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.evidence.documents import tree
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.result import AttemptResult
from proofbox.lab.attempt.trace import CALLS
from proofbox.lab.campaign.layout import refuse_campaign
from proofbox.lab.reports.validation import attempts_in

MAX_DIFFERENCES: Final = 1000
_SHOWN: Final = 200
"""Maximum number of bytes of a value that a difference shows: an agent may have written it."""
_COMPARED: Final = ("claimed", "verified", "infra", "reason", "tree_sha256")
"""The members that must agree; the runs may use different strategies."""
_HAVE: Final = frozenset({artifacts.ATTEMPT, artifacts.REPORT})
_Path = str | os.PathLike[str]
_T = TypeVar("_T")


class _Call(msgspec.Struct, frozen=True):
    command: str
    status: str
    exit_code: int | None = None

    def described(self, *, finished: bool) -> str:
        """Return the call for comparison. `finished`: the agent finished its turn.

        Otherwise calls may have been cut off, which runtimes report as abandoned or as killed.
        """
        if not finished and (self.status == "abandoned" or (self.exit_code or 0) < 0):
            return f"{_bare(self.command)!r} cut off"
        return f"{_bare(self.command)!r} {self.status}, exit code {self.exit_code}"


class _Named(msgspec.Struct, frozen=True):
    mission_id: str
    replicate: int
    attempt_id: str
    parent: str | None = None


class _Tree(msgspec.Struct, frozen=True):
    tree_sha256: str


class _Result(AttemptResult, frozen=True, kw_only=True):
    """The parts of an attempt that are scored, without its calls, which are read one by one."""

    tree_sha256: str | None = None


class _Attempt(msgspec.Struct, frozen=True):
    named: _Named
    result: _Result
    bundle: Bundle


class ParityDifference(msgspec.Struct, frozen=True):
    """A scored value that differs between the two runs."""

    attempt: str
    """The mission and the number of the replicate."""
    what: str
    """`claimed`, `verified`, `infra`, `reason`, `tree_sha256` or `calls`; `attempt` if only one of the runs has it."""
    first: str
    """The value in the first run."""
    second: str
    """The value in the second run."""


class ParityReport(Document, frozen=True, kw_only=True):
    """Two runs compared. `ok`: everything that is scored agrees."""

    schema: str = "proofbox.parity/1"
    first: str
    """The id of the first run."""
    second: str
    """The id of the second run."""
    strategies: tuple[tuple[str, ...], tuple[str, ...]]
    """The strategies that each run used."""
    compared: int
    """Results that both runs have."""
    agreed: int
    """Those that agree in everything that is scored."""
    differences: tuple[ParityDifference, ...]
    """Every difference, up to 1,000."""
    error: ErrorBody | None = None


def compare_parity(first: _Path, second: _Path) -> ParityReport:
    """Compare what is scored in two runs of the same missions, such as one of each strategy.

    For example:

        found = proofbox.compare_parity("process-out", "native-out")
        for each in found.differences:
            print(each.attempt, each.what, each.first, each.second)

    `first` and `second` are directories of runs or attempts, or output directories, for their LATEST runs. Both are
    verified. Differences do not raise: the result's `ok` is False and its `error` says how many there are.
    """
    refuse_campaign(Path(first), "proofbox report parity")
    refuse_campaign(Path(second), f"proofbox report parity {shlex.quote(os.fspath(first))}")
    one, other = load_bundle(first), load_bundle(second)
    ones, others = _scored_in(one), _scored_in(other)
    shared = ones.keys() & others.keys()
    found = tuple(islice(_differences(ones, others), MAX_DIFFERENCES))
    differing = {each.attempt for each in found}
    error = None
    if found or not shared:
        what = f"{len(differing)} of {counted(len(ones.keys() | others.keys()), 'result')} differ"
        error = ErrorBody.of(RunsDiffer(what if shared else "the runs have no result in common", op="report parity"))
    return ParityReport(
        ok=error is None,
        first=one.run_id,
        second=other.run_id,
        strategies=(_strategies(ones), _strategies(others)),
        compared=len(shared),
        agreed=len(shared - differing),
        differences=found,
        error=error,
    )


def _differences(ones: dict[str, _Attempt], others: dict[str, _Attempt]) -> Iterator[ParityDifference]:
    for id in sorted(ones.keys() | others.keys()):
        first, second = ones.get(id), others.get(id)
        if first is None or second is None:
            presence = ("absent" if each is None else "present" for each in (first, second))
            yield ParityDifference(id, "attempt", *presence)
            continue
        for name in _COMPARED:
            a, b = getattr(first.result, name), getattr(second.result, name)
            if a != b:
                yield ParityDifference(id, name, _shown(a), _shown(b))
        calls = zip_longest(_calls(first), _calls(second), fillvalue="none")
        for number, (a, b) in enumerate(calls, 1):
            if a != b:
                yield ParityDifference(id, "calls", f"call {number}: {_shown(a)}", f"call {number}: {_shown(b)}")
                break


def _scored_in(bundle: Bundle) -> dict[str, _Attempt]:
    """Return the last attempt at each replicate of each mission, if it has a report."""
    found = [_scored(each) for each in attempts_in(bundle).values() if each.artifacts.keys() >= _HAVE]
    replaced = {each.named.parent for each in found}
    return {
        f"{each.named.mission_id}.{each.named.replicate}": each
        for each in found
        if each.named.attempt_id not in replaced
    }


def _scored(attempt: Bundle) -> _Attempt:
    artifacts.require_known_versions(attempt.artifacts)
    result = _convert(attempt.read_json(artifacts.REPORT), _Result, attempt)
    if tree.PATH in attempt.artifacts:
        left = _convert(attempt.read_json(tree.PATH), _Tree, attempt)
        result = msgspec.structs.replace(result, tree_sha256=left.tree_sha256)
    return _Attempt(_convert(attempt.read_json(artifacts.ATTEMPT), _Named, attempt), result, attempt)


def _calls(attempt: _Attempt) -> Iterator[str]:
    """Yield command, status and exit code of each tool call."""
    bundle, finished = attempt.bundle, attempt.result.reason == "completed"
    for call in artifacts.read_log(bundle, CALLS) if CALLS in bundle.artifacts else ():
        yield _convert(call, _Call, bundle).described(finished=finished)


def _convert(value: Any, kind: type[_T], attempt: Bundle) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise EvidenceIncomplete(f"{attempt.path} has malformed documents: {error}", op="report parity") from None


def _strategies(found: dict[str, _Attempt]) -> tuple[str, ...]:
    return tuple(sorted({each.result.strategy for each in found.values() if each.result.strategy}))


def _shown(value: str | None) -> str:
    return "none" if value is None else preview(value.encode("utf-8", "replace"), _SHOWN)[0]


def _bare(command: str) -> str:
    """Return a command line without the shell wrapper that a runtime added."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    shell = len(words) == 3 and words[0].rpartition("/")[2] in ("sh", "bash", "zsh") and words[1] in ("-c", "-lc")
    return words[2] if shell else command
