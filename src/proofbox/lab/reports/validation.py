"""Checks that the evidence of an attempt is complete and consistent, so that it can be scored.

A bundle that verifies has the bytes that its writer left. Validation also checks that the documents agree with each
other. Each finding has a code.

An attempt with an infrastructure failure, or one interrupted before its agent started, may lack artifacts. `strict`
reports that too if the attempt is the last one at its mission. If another attempt replaced it, nothing depends on the
missing artifacts. The artifacts that are present must always be consistent.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from proofbox.errors import BundleError, BundleSchemaUnknown, ProofboxError
from proofbox.evidence.bundle.paths import INDEX, MAX_JSON_BYTES
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.documents import outcome, tree
from proofbox.evidence.documents.base_tree import complete_tree, read_tree
from proofbox.evidence.documents.schedule import PATH as SCHEDULE
from proofbox.evidence.documents.schedule import ScheduledAttempt, read_schedule
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.verify.check import MAX_FINDINGS, BundleCheck
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import SUMMARY_SCHEMA, AttemptVerification
from proofbox.lab.attempt.trace import CALLS, DIFFS, EVENTS
from proofbox.lab.attempt.verifier import decided_by
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.results import StatedAttempt, stated_attempts
from proofbox.lab.reports.summary import SUMMARY, summarize
from proofbox.lab.reports.trace_checks import Found, check_trace, same
from proofbox.lab.run.closing import torn_result
from proofbox.lab.suite.reading import Suite, parse_suite

SOURCES = ("suite.toml", "suite.json")
ATTEMPTS = "attempts/"
MALFORMED = (KeyError, TypeError, AttributeError, ShapeError, ProofboxError, msgspec.ValidationError)
"""Errors that malformed documents raise when they are read."""
_SHOWN = 100
_NAMING: dict[str, dict[str, Any]] = {artifacts.ATTEMPT: {"parent": None}, artifacts.TORN: {}}
"""The documents that name an attempt, with the defaults of the members that are checked."""


def attempts_in(bundle: Bundle) -> dict[str, Bundle]:
    """Return the attempts of a run by path; an attempt's own bundle has the path ''."""
    if artifacts.ATTEMPT in bundle.artifacts or artifacts.TORN in bundle.artifacts:
        return {"": bundle}
    return {path: inner for path, inner in bundle.nested.items() if path.startswith(ATTEMPTS)}


def validate(bundle: Bundle, *, strict: bool) -> list[EvidenceFinding]:
    """Return the ways in which the attempts of a verified bundle are incomplete or inconsistent.

    Beyond `MAX_FINDINGS` the last finding is `more`.
    """
    examination = RunExamination(strict=strict)
    for path, inner in bundle.nested.items():
        examination.add(bundle, path, inner)
    return examination.findings(bundle)


class RunExamination:
    """Validates the bundles of a run one by one, so that each can be dropped before the next is read.

    `add` is called with each of them, while the run is checked or later, and then `findings`.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._replaced: Mapping[str, object] | None = None
        self._planned: dict[str, ScheduledAttempt] = {}
        self._found: dict[str, list[Found]] = {}
        self._read: dict[str, _ReadAttempt | Exception] = {}

    def add(self, run: Bundle | BundleCheck, path: str, inner: Bundle) -> None:
        """Examine a bundle that is nested in a run."""
        planned = run.schedule or {}
        if self._replaced is None:
            self._replaced = _replaced(planned)
            self._planned = {each.path: each for each in planned.values()}
        stated = _outcome(inner)
        if path.startswith(ATTEMPTS):
            self._found[path] = list(islice(self._attempt(path, inner, stated), MAX_FINDINGS + 1))
        if path in self._planned and run.index is not None:
            try:
                self._read[path] = _read_attempt(inner, stated, run.index.run_id, self._planned[path], planned)
            except MALFORMED as error:
                self._read[path] = error

    def findings(self, run: Bundle) -> list[EvidenceFinding]:
        """Return what is wrong with a run, whose bundles were added, or with an attempt."""
        every = (EvidenceFinding(*each) for each in self._every(run))
        found = list(islice(every, MAX_FINDINGS))
        if next(every, None) is not None:
            found.append(EvidenceFinding("more", "", f"more than {MAX_FINDINGS} findings"))
        return found

    def _attempt(self, path: str, bundle: Bundle, stated: outcome.Outcome | None) -> Iterator[Found]:
        strict = self._strict and path not in (self._replaced or ())
        for code, name, detail in _attempt(bundle, stated, strict):
            yield code, f"{path}/{name}" if path else name, detail

    def _every(self, bundle: Bundle) -> Iterator[Found]:
        planned, problem = _schedule(bundle)
        for path, attempt in attempts_in(bundle).items():
            yield from self._found[path] if path else self._attempt(path, attempt, _outcome(attempt))
        if problem:
            yield "artifact_malformed", SCHEDULE, problem
        elif SCHEDULE in bundle.artifacts:
            yield from _readable(self._placed(planned), SCHEDULE)
        elif bundle.nested and not attempts_in(bundle).keys() <= {""}:
            yield "artifact_missing", SCHEDULE, "required in a run, so that a dropped attempt is noticed"
        summary = bundle.artifacts.get(SUMMARY)
        if summary is not None and summary.schema_version == SUMMARY_SCHEMA:
            if problem or SCHEDULE not in bundle.artifacts:
                yield "artifact_malformed", SUMMARY, "it can't be checked without the run's schedule"
                return
            yield from _readable(self._counted(bundle, planned), SUMMARY)
            source = next((name for name in SOURCES if name in bundle.artifacts), None)
            if source is not None:
                yield from _readable(self._derived(bundle, source, planned), SUMMARY)

    def _of(self, path: str) -> _ReadAttempt | None:
        """Return what an attempt states; None if it has no bundle. Raises if its documents are malformed."""
        found = self._read.get(path)
        if isinstance(found, Exception):
            raise found
        return found

    def _placed(self, planned: Mapping[str, ScheduledAttempt]) -> Iterator[Found]:
        """Check that each attempt is the one that the schedule states for its path, and retries one without a
        result.
        """
        for each in planned.values():
            read = self._of(each.path)
            if read is None:
                continue
            yield from read.misplaced
            retried = None if each.parent is None else self._of(planned[each.parent].path)
            if read.naming is not None and retried is not None and not retried.infra:
                yield "contradiction", read.naming, f"it retries {each.parent}, which has a result"

    def _counted(self, run: Bundle, planned: Mapping[str, ScheduledAttempt]) -> Iterator[Found]:
        """Check the number of passed results: the last attempt at a replicate counts, unless it failed or was torn."""
        parents = {each.parent for each in planned.values()}
        last = [self._of(each.path) for each in planned.values() if each.attempt not in parents]
        passed = sum(read is not None and read.passed for read in last)
        yield from same(SUMMARY, "passed", run.read_json(SUMMARY)["totals"]["passed"], passed)

    def _derived(self, run: Bundle, source: str, planned: Mapping[str, ScheduledAttempt]) -> Iterator[Found]:
        """Check that the documents name this suite, and that the summary follows from suite and attempts."""
        text = run.read_bytes(source, limit=MAX_JSON_BYTES).decode("utf-8", "replace")
        # The files that the suite names existed when the run was planned, and need not exist here.
        suite = parse_suite(text, base=Path(), name=source, json=source.endswith(".json"), pinned=Path())
        yield from _planned(planned, suite)
        named = {"id": suite.id, "sha256": suite.sha256}
        yield from same("environment.json", "suite", run.read_json("environment.json")["suite"], named)
        stated = {each.path: read for each in planned.values() if (read := self._of(each.path)) is not None}
        for path, inner in attempts_in(run).items():
            if artifacts.ATTEMPT in inner.artifacts:
                states = stated[path].suite if path in stated else inner.read_json(artifacts.ATTEMPT)["suite"]
                yield from same(f"{path}/{artifacts.ATTEMPT}", "suite", states, named)
        attempts, complete = stated_attempts(planned, {path: read.stated for path, read in stated.items()})
        due = msgspec.json.decode(msgspec.json.encode(summarize(run.run_id, suite, attempts)))
        summary = run.read_json(SUMMARY)
        if complete:
            for name in due:
                yield from same(SUMMARY, name, summary.get(name), due[name])
            return
        for name in ("attempts", "results", "passed", "failed"):
            yield from same(SUMMARY, name, summary["totals"][name], due["totals"][name])


class _ReadAttempt(NamedTuple):
    """What the bundle of a planned attempt states, for the checks of its run."""

    naming: str | None
    """The path of the document that names the attempt; None without one."""
    misplaced: list[Found]
    """Where that document differs from the schedule."""
    suite: Any
    infra: bool
    passed: bool
    stated: StatedAttempt


def _read_attempt(
    bundle: Bundle,
    stated: outcome.Outcome | None,
    run_id: str,
    planned: ScheduledAttempt,
    every: Mapping[str, ScheduledAttempt],
) -> _ReadAttempt:
    """Read the bundle of a planned attempt. `stated` is its outcome, if that was read already."""
    name = next((name for name in _NAMING if name in bundle.artifacts), None)
    naming, misplaced, suite = None, list[Found](), None
    if name is not None:
        naming = f"{planned.path}/{name}"
        record = {**_NAMING[name], **bundle.read_json(name)}
        misplaced = [*_misplaced(record, naming, run_id, planned, every)]
        suite = record["suite"] if name == artifacts.ATTEMPT else None
    if artifacts.TORN in bundle.artifacts:
        torn_result(bundle)  # raises if it is malformed
    return _ReadAttempt(
        naming,
        misplaced,
        suite,
        _infra(bundle, stated),
        _passed(bundle, stated),
        StatedAttempt.read(bundle, run_id, stated),
    )


def _misplaced(
    record: Any, path: str, run_id: str, planned: ScheduledAttempt, every: Mapping[str, ScheduledAttempt]
) -> Iterator[Found]:
    """Check that an attempt has the id, run, mission and parent that the schedule states for its path."""
    root = planned
    while root.parent is not None:
        root = every[root.parent]
    yield from same(path, "attempt_id", record["attempt_id"], planned.attempt)
    yield from same(path, "parent", record["parent"], planned.parent)
    yield from same(path, "run_id", record["run_id"], run_id)
    yield from same(path, "mission and replicate", f"{record['mission_id']}.{record['replicate']}", root.attempt)


def _schedule(bundle: Bundle) -> tuple[Mapping[str, ScheduledAttempt], str]:
    """Return the attempts that a run planned, and what is wrong with its schedule."""
    if SCHEDULE not in bundle.artifacts:
        return {}, ""
    planned, closed = bundle.schedule, bundle.index.status != "failed"
    if planned is not None and closed and bundle.schedule_intact:
        return planned, ""
    try:
        entries = bundle.read_log(SCHEDULE)
        if planned is None or not closed:
            planned = read_schedule(entries)
        deque(entries, maxlen=0)  # it was read without its chain, which is damaged
    except (ShapeError, BundleError) as error:
        return {}, _malformed(error)
    return planned, ""


def _replaced(planned: Mapping[str, ScheduledAttempt]) -> dict[str, tuple[str, str]]:
    """Return the replaced attempts of a run by path, each as its id and the id of its replacement."""
    paths = {each.attempt: each.path for each in planned.values()}
    made = {each.parent: each.attempt for each in planned.values() if each.parent is not None}
    return {paths[parent]: (parent, attempt) for parent, attempt in made.items() if parent in paths}


def notes_on(bundle: Bundle) -> list[str]:
    """Return remarks on the attempts of a run that are not findings."""
    notes = []
    for path, (lost, instead) in _replaced(bundle.schedule or {}).items():
        torn = path in bundle.nested and artifacts.TORN in bundle.nested[path].artifacts
        why = "its run was interrupted" if torn and _was_stopped(bundle.nested[path]) else "its worker died"
        how = f"was lost because {why}" if torn else "failed because of the infrastructure"
        notes.append(f"{lost} {how}; {instead} replaced it")
    return notes


def _was_stopped(bundle: Bundle) -> bool:
    """Return whether the record of a torn attempt states that its run was stopped."""
    with contextlib.suppress(BundleError, LookupError, TypeError):
        return bool(bundle.read_json(artifacts.TORN)["error"]["message"] == artifacts.STOPPED)
    return False


def _attempt(bundle: Bundle, stated: outcome.Outcome | None, strict: bool) -> Iterator[Found]:
    listed = bundle.artifacts
    missing = [name for name in artifacts.EXPECTED if name not in listed]
    infra = _infra(bundle, stated)
    if bundle.index.status == "failed" and (strict or not infra):
        yield "attempt_failed", INDEX, "an exception ended it, so its documents do not count"
    if missing and (strict or not (infra or _never_begun(bundle))):
        yield from (("artifact_missing", name, "required in a complete attempt") for name in missing)
    if artifacts.REPORT in listed:
        yield from _readable(_consistency(bundle, stated, whole=strict or not infra), artifacts.REPORT)


def _readable(findings: Iterator[Found], path: str) -> Iterator[Found]:
    """Yield findings; a document that cannot be read is a finding as well."""
    try:
        yield from findings
    except BundleSchemaUnknown as error:
        yield "schema_unknown", path, error.message
    except MALFORMED as error:
        yield "artifact_malformed", path, _malformed(error)


def _malformed(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _outcome(bundle: Bundle) -> outcome.Outcome | None:
    try:
        return bundle.read_as(outcome.PATH, outcome.parse_outcome)
    except (BundleError, ShapeError):
        return None


def _infra(bundle: Bundle, stated: outcome.Outcome | None) -> bool:
    """Return whether its own outcome records an infrastructure failure."""
    return artifacts.REPORT not in bundle.artifacts if stated is None else stated.infra.result != "ok"


def _never_begun(bundle: Bundle) -> bool:
    """Return whether it was interrupted before the agent started, so that the agent's artifacts are missing."""
    try:
        record = bundle.read_json(artifacts.ATTEMPT)
        return record["reason"] == "interrupted" and all(each["state"] != "running" for each in record["states"])
    except (BundleError, KeyError, TypeError):
        return False


def _planned(planned: Mapping[str, ScheduledAttempt], suite: Suite) -> Iterator[Found]:
    """Check that the schedule has every replicate of every mission: those of the suite, or `--replicates` of each."""
    first = [each.attempt for each in planned.values() if each.parent is None]
    uniform = max(1, -(-len(first) // len(suite.missions)))
    due = [
        sorted(f"{mission.id}.{number}" for mission, count in counts for number in range(1, count + 1))
        for counts in (
            [(mission, mission.replicates) for mission in suite.missions],
            [(mission, uniform) for mission in suite.missions],
        )
    ]
    if sorted(first) not in due:
        yield from same(SCHEDULE, "attempts of the suite's missions", sorted(first), due[0])


def _passed(bundle: Bundle, stated: outcome.Outcome | None) -> bool:
    if bundle.index.status == "failed" or artifacts.TORN in bundle.artifacts or outcome.PATH not in bundle.artifacts:
        return False
    found = stated or bundle.read_as(outcome.PATH, outcome.parse_outcome)
    return (found.verified.result, found.infra.result) == ("passed", "ok")


def _verdict(document: Any, verified: str) -> Iterator[Found]:
    """Check that the verifier's result follows from its commands, its reward and the conditions."""
    found = msgspec.convert(document, AttemptVerification)
    yield from same(artifacts.ATTEMPT, "result", found.result, verified)
    yield from same(artifacts.ATTEMPT, "passed", found.passed, decided_by(found.commands, found.reward))
    for run in found.commands:
        digests = [digest is not UNSET for digest in (run.stdout_sha256, run.stderr_sha256)]
        what = f"digests of the output of `{' '.join(run.command)[:_SHOWN]}`"
        yield from same(artifacts.ATTEMPT, what, digests, [run.stdout != "", run.stderr != ""])
    failed = found.passed is False or bool(found.unmet)
    if found.result != "none":
        yield from same(artifacts.ATTEMPT, "failed commands or conditions", failed, found.result == "failed")


def _consistency(bundle: Bundle, stated: outcome.Outcome | None, *, whole: bool) -> Iterator[Found]:
    """Check an attempt's documents against each other. With `whole`, the runtime's events must be complete.

    `stated` is its outcome, if that was read already.
    """
    report = artifacts.read_json(bundle, artifacts.REPORT)
    attempt = artifacts.read_json(bundle, artifacts.ATTEMPT)
    yield from same(artifacts.REPORT, "attempt_id", report["attempt_id"], attempt["attempt_id"])
    yield from same(artifacts.REPORT, "reason", report["reason"], attempt["reason"])
    feedback = artifacts.read_json(bundle, artifacts.FEEDBACK)
    if ("result" in feedback) == ("result_json" in feedback):
        yield "feedback_ambiguous", artifacts.FEEDBACK, "requires exactly one of result and result_json"
    yield from same(artifacts.FEEDBACK, "claimed", feedback["claimed"], report["claimed"])
    yield from same(artifacts.REPORT, "mission_id", report["mission_id"], attempt["mission_id"])
    named = artifacts.bundle_id(attempt["run_id"], attempt["attempt_id"])
    yield from same(artifacts.ATTEMPT, "the bundle's id", bundle.run_id, named)
    recorded_outcome = stated or bundle.read_as(outcome.PATH, outcome.parse_outcome)
    claimed = {"success": "passed", "failure": "failed"}.get(report["claimed"], "unknown")
    yield from same(outcome.PATH, "claimed", recorded_outcome.claimed.result, claimed)
    verdict = recorded_outcome.verified.result
    yield from same(outcome.PATH, "verified", {"unknown": "none"}.get(verdict, verdict), report["verified"])
    yield from same(outcome.PATH, "infra failed", recorded_outcome.infra.result != "ok", report["infra"] is not None)
    yield from _verdict(attempt["verification"], report["verified"])
    diff = (attempt.get("final") or {}).get("diff_sha256")
    if diff is not None and DIFFS.format(diff) not in bundle.artifacts:
        yield "diff_missing", artifacts.ATTEMPT, "the diff of the attempt is missing"
    if tree.PATH in bundle.artifacts and "final" not in attempt and recorded_outcome.infra.result == "ok":
        yield "contradiction", artifacts.ATTEMPT, f"it names no final snapshot, but {tree.PATH} lists its files"
    if tree.PATH in bundle.artifacts and bundle.read_as(tree.PATH, complete_tree) is None:
        read_tree(bundle.read_json(tree.PATH), bundle.path)
    for each in report.get("integrity", []) if whole else []:
        yield each["code"], EVENTS, each["message"]
    if CALLS in bundle.artifacts:
        shared = attempt["isolation"] == "shared"
        yield from check_trace(bundle, report, attempt["attempt_id"], whole=whole, shared=shared)
