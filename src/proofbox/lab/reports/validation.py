"""Checks that the evidence of an attempt is complete and consistent, so that it can be scored.

A bundle that verifies has the bytes that its writer left. Validation also checks that the documents agree with each
other. Each finding has a code.

An attempt with an infrastructure failure, or one interrupted before its agent started, may lack artifacts. `strict`
reports that too if the attempt is the last one at its mission. If another attempt replaced it, nothing depends on the
missing artifacts. The artifacts that are present must always be consistent.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from proofbox.errors import BundleError, ProofboxError
from proofbox.evidence.bundle.paths import INDEX, MAX_JSON_BYTES
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.documents import outcome, tree
from proofbox.evidence.documents.base_tree import read_tree
from proofbox.evidence.documents.schedule import PATH as SCHEDULE
from proofbox.evidence.documents.schedule import read_schedule
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.verify.check import MAX_FINDINGS
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import SUMMARY_SCHEMA, AttemptVerification
from proofbox.lab.attempt.trace import CALLS, DIFFS, EVENTS
from proofbox.lab.attempt.verifier import decided_by
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.results import attempts_by_evidence
from proofbox.lab.reports.summary import SUMMARY, summarize
from proofbox.lab.reports.trace_checks import Found, check_tokens, check_trace, same
from proofbox.lab.suite.reading import Suite, parse_suite

SOURCES = ("suite.toml", "suite.json")
_NAMING = (artifacts.ATTEMPT, artifacts.TORN)


def attempts_in(bundle: Bundle) -> dict[str, Bundle]:
    """Return the attempts of a run by path; an attempt's own bundle has the path ''."""
    if artifacts.ATTEMPT in bundle.artifacts or artifacts.TORN in bundle.artifacts:
        return {"": bundle}
    return {path: inner for path, inner in bundle.nested.items() if path.startswith("attempts/")}


def validate(bundle: Bundle, *, strict: bool) -> list[EvidenceFinding]:
    """Return the ways in which the attempts of a verified bundle are incomplete or inconsistent.

    Beyond `MAX_FINDINGS` the last finding is `more`.
    """
    every = (EvidenceFinding(*each) for each in _findings(bundle, strict))
    found = list(islice(every, MAX_FINDINGS))
    if next(every, None) is not None:
        found.append(EvidenceFinding("more", "", f"more than {MAX_FINDINGS} findings"))
    return found


def _findings(bundle: Bundle, strict: bool) -> Iterator[Found]:
    replaced = replaced_in(bundle)
    for path, attempt in attempts_in(bundle).items():
        for code, name, detail in _attempt(attempt, strict and path not in replaced):
            yield code, f"{path}/{name}" if path else name, detail
    if SCHEDULE in bundle.artifacts:
        yield from _readable(_placed(bundle), SCHEDULE)
    elif bundle.nested and not attempts_in(bundle).keys() <= {""}:
        yield "artifact_missing", SCHEDULE, "required in a run, so that a dropped attempt is noticed"
    summary = bundle.artifacts.get(SUMMARY)
    if summary is not None and summary.schema_version == SUMMARY_SCHEMA:
        yield from _readable(_counted(bundle), SUMMARY)
        source = next((name for name in SOURCES if name in bundle.artifacts), None)
        if source is not None:
            yield from _readable(_derived(bundle, source), SUMMARY)


def replaced_in(bundle: Bundle) -> dict[str, tuple[str, str]]:
    """Return the replaced attempts of a run by path, each as its id and the id of its replacement."""
    if SCHEDULE not in bundle.artifacts:
        return {}
    try:
        planned = read_schedule(bundle.read_log(SCHEDULE))
    except ShapeError:
        return {}
    paths = {each.attempt: each.path for each in planned.values()}
    made = {each.parent: each.attempt for each in planned.values() if each.parent is not None}
    return {paths[parent]: (parent, attempt) for parent, attempt in made.items() if parent in paths}


def notes_on(bundle: Bundle) -> list[str]:
    """Return remarks on the attempts of a run that are not findings."""
    notes = []
    for path, (lost, instead) in replaced_in(bundle).items():
        torn = path in bundle.nested and artifacts.TORN in bundle.nested[path].artifacts
        how = "was lost because its worker died" if torn else "failed because of the infrastructure"
        notes.append(f"{lost} {how}; {instead} replaced it")
    return notes


def _attempt(bundle: Bundle, strict: bool) -> Iterator[Found]:
    missing = [name for name in artifacts.EXPECTED if name not in bundle.artifacts]
    infra = _infra(bundle)
    lacking = infra or _never_begun(bundle)
    if bundle.index.status == "failed" and (strict or not infra):
        yield "attempt_failed", INDEX, "an exception ended it, so its documents do not count"
    if strict or not lacking:
        yield from (("artifact_missing", name, "required in a complete attempt") for name in missing)
    if artifacts.REPORT in bundle.artifacts:
        yield from _readable(_consistency(bundle, whole=strict or not infra), artifacts.REPORT)


def _readable(findings: Iterator[Found], path: str) -> Iterator[Found]:
    """Yield findings; a document that cannot be read is a finding as well."""
    try:
        yield from findings
    except (KeyError, TypeError, AttributeError, ShapeError, ProofboxError, msgspec.ValidationError) as error:
        yield "artifact_malformed", path, f"{type(error).__name__}: {error}"[:300]


def _infra(bundle: Bundle) -> bool:
    """Return whether its own outcome records an infrastructure failure."""
    try:
        return outcome.parse_outcome(bundle.read_json(outcome.PATH)).infra.result != "ok"
    except (BundleError, ShapeError):
        return artifacts.REPORT not in bundle.artifacts


def _never_begun(bundle: Bundle) -> bool:
    """Return whether it was interrupted before the agent started, so that the agent's artifacts are missing."""
    try:
        record = bundle.read_json(artifacts.ATTEMPT)
        return record["reason"] == "interrupted" and all(each["state"] != "running" for each in record["states"])
    except (BundleError, KeyError, TypeError):
        return False


def _counted(run: Bundle) -> Iterator[Found]:
    """Check the number of passed results: the last attempt at a replicate counts, unless it failed or was torn."""
    planned = read_schedule(run.read_log(SCHEDULE))
    parents = {each.parent for each in planned.values()}
    last = [run.nested.get(each.path) for each in planned.values() if each.attempt not in parents]
    passed = sum(inner is not None and _passed(inner) for inner in last)
    yield from same(SUMMARY, "passed", run.read_json(SUMMARY)["totals"]["passed"], passed)


def _placed(run: Bundle) -> Iterator[Found]:
    """Check that each attempt has the id, run, mission and parent that the schedule states for its path."""
    planned = read_schedule(run.read_log(SCHEDULE))
    for each in planned.values():
        inner = run.nested.get(each.path)
        name = next((name for name in _NAMING if inner is not None and name in inner.artifacts), None)
        if inner is None or name is None:
            continue
        record = inner.read_json(name)
        path = f"{each.path}/{name}"
        root = each
        while root.parent is not None:
            root = planned[root.parent]
        yield from same(path, "attempt_id", record["attempt_id"], each.attempt)
        yield from same(path, "parent", record["parent"], each.parent)
        yield from same(path, "run_id", record["run_id"], run.run_id)
        retried = None if each.parent is None else run.nested.get(planned[each.parent].path)
        if retried is not None and not _infra(retried):
            yield "contradiction", path, f"it retries {each.parent}, which has a result"
        yield from same(path, "mission and replicate", f"{record['mission_id']}.{record['replicate']}", root.attempt)


def _derived(run: Bundle, source: str) -> Iterator[Found]:
    """Check that the documents name this suite, and that the summary follows from suite and attempts."""
    text = run.read_bytes(source, limit=MAX_JSON_BYTES).decode("utf-8", "replace")
    # The files that the suite names existed when the run was planned, and need not exist here.
    suite = parse_suite(text, base=Path(), name=source, json=source.endswith(".json"), pinned=Path())
    yield from _planned(run, suite)
    named = {"id": suite.id, "sha256": suite.sha256}
    yield from same("environment.json", "suite", run.read_json("environment.json")["suite"], named)
    for path, inner in attempts_in(run).items():
        if artifacts.ATTEMPT in inner.artifacts:
            yield from same(f"{path}/{artifacts.ATTEMPT}", "suite", inner.read_json(artifacts.ATTEMPT)["suite"], named)
    attempts, complete = attempts_by_evidence(run)
    due = msgspec.json.decode(msgspec.json.encode(summarize(run.run_id, suite, attempts)))
    summary = run.read_json(SUMMARY)
    if complete:
        for name in due:
            yield from same(SUMMARY, name, summary.get(name), due[name])
        return
    for name in ("attempts", "results", "passed", "failed"):
        yield from same(SUMMARY, name, summary["totals"][name], due["totals"][name])


def _planned(run: Bundle, suite: Suite) -> Iterator[Found]:
    """Check that the schedule has every replicate of every mission: those of the suite, or `--replicates` of each."""
    first = [each.attempt for each in read_schedule(run.read_log(SCHEDULE)).values() if each.parent is None]
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


def _passed(bundle: Bundle) -> bool:
    if bundle.index.status == "failed" or artifacts.TORN in bundle.artifacts or outcome.PATH not in bundle.artifacts:
        return False
    found = outcome.parse_outcome(bundle.read_json(outcome.PATH))
    return (found.verified.result, found.infra.result) == ("passed", "ok")


def _verdict(document: Any, verified: str) -> Iterator[Found]:
    """Check that the verifier's result follows from its commands, its reward and the conditions."""
    found = msgspec.convert(document, AttemptVerification)
    yield from same(artifacts.ATTEMPT, "result", found.result, verified)
    yield from same(artifacts.ATTEMPT, "passed", found.passed, decided_by(found.commands, found.reward))
    failed = found.passed is False or bool(found.unmet)
    if found.result != "none":
        yield from same(artifacts.ATTEMPT, "failed commands or conditions", failed, found.result == "failed")


def _consistency(bundle: Bundle, *, whole: bool) -> Iterator[Found]:
    """Check an attempt's documents against each other. With `whole`, the runtime's events must be complete."""
    report = bundle.read_json(artifacts.REPORT, schema="proofbox.attempt_report/1")
    attempt = bundle.read_json(artifacts.ATTEMPT, schema="proofbox.attempt/1")
    yield from same(artifacts.REPORT, "attempt_id", report["attempt_id"], attempt["attempt_id"])
    yield from same(artifacts.REPORT, "reason", report["reason"], attempt["reason"])
    feedback = bundle.read_json(artifacts.FEEDBACK, schema="proofbox.feedback/1")
    if ("result" in feedback) == ("result_json" in feedback):
        yield "feedback_ambiguous", artifacts.FEEDBACK, "requires exactly one of result and result_json"
    yield from same(artifacts.FEEDBACK, "claimed", feedback["claimed"], report["claimed"])
    yield from same(artifacts.REPORT, "mission_id", report["mission_id"], attempt["mission_id"])
    named = artifacts.bundle_id(attempt["run_id"], attempt["attempt_id"])
    yield from same(artifacts.ATTEMPT, "the bundle's id", bundle.run_id, named)
    recorded_outcome = outcome.parse_outcome(bundle.read_json(outcome.PATH))
    claimed = {"success": "passed", "failure": "failed"}.get(report["claimed"], "unknown")
    yield from same(outcome.PATH, "claimed", recorded_outcome.claimed.result, claimed)
    verdict = recorded_outcome.verified.result
    yield from same(outcome.PATH, "verified", {"unknown": "none"}.get(verdict, verdict), report["verified"])
    yield from same(outcome.PATH, "infra failed", recorded_outcome.infra.result != "ok", report["infra"] is not None)
    yield from _verdict(attempt["verification"], report["verified"])
    diff = (attempt["final"] or {}).get("diff_sha256")
    if diff is not None and DIFFS.format(diff) not in bundle.artifacts:
        yield "diff_missing", artifacts.ATTEMPT, "the diff of the attempt is missing"
    if tree.PATH in bundle.artifacts:
        read_tree(bundle.read_json(tree.PATH), bundle.path)
    for each in report.get("integrity", []) if whole else []:
        yield each["code"], EVENTS, each["message"]
    if CALLS in bundle.artifacts:
        yield from check_trace(bundle, report, attempt["attempt_id"], whole=whole)
        yield from check_tokens(bundle, report, shared=attempt["isolation"] == "shared")
