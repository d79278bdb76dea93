"""Explains an attempt in plain words from its evidence, failures first.

Text from an agent or a command is quoted, either at the end of the line that introduces it or with a mark before each
line, so that it cannot be mistaken for proofbox's own output.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from proofbox.agents.agent_box import KILLED_AT_END
from proofbox.agents.approvals import subject_of
from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.plurals import counted
from proofbox.errors import ProofboxError
from proofbox.evidence.bundle.directory import BundleDirectory
from proofbox.evidence.bundle.paths import MAX_LOG_BYTES, read_bounded
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.trace import CALLS, EVENTS, OUTPUTS
from proofbox.lab.reports.steps import read_diff
from proofbox.lab.reports.suite_run import AttemptFacts, Explanation
from proofbox.lab.run.closing import UNREADABLE, committed_result
from proofbox.lab.run.ledger import Attempt, Ended

MAX_BYTES = 16 << 20
MAX_CALLS = 20
MAX_LINES = 20
MAX_PATHS = 20
LAST_LINES, LAST_WORDS = 3, 500
MARK = "  | "

_REASONS = {
    "completed": "The agent finished its turn.",
    "turn_failed": "The agent's turn failed.",
    "timed_out": "The agent timed out and was stopped.",
    "stalled": "The agent produced no event for longer than the watchdog allows, and was stopped.",
    "interrupted": "It was interrupted.",
    "budget_exceeded": "The agent exceeded its budget and was stopped.",
    "reward_missing": "The agent finished its turn, but the verifier wrote no reward.",
    "reward_malformed": "The agent finished its turn, but the verifier wrote a malformed reward.",
    "setup_failed": "A setup command of the mission failed before the agent started.",
    "infra_failed": "The infrastructure failed; this says nothing about the agent.",
    "worker_lost": "The worker process died; everything recorded until then was kept.",
}


def explain_attempt(id: str, *, run: str | os.PathLike[str] = "out") -> Explanation:
    """Explain in plain words what happened in an attempt, the failing step first.

    For example:

        print("\\n".join(proofbox.explain_attempt("answer.1", run="out").lines))

    `id` is the attempt's id, a unique prefix of it, or the directory of its evidence. `run` is the run's directory, or
    an output directory, for its last run. The lines quote the agent: escape them before printing them to a terminal.
    """
    from proofbox.lab.reports.stored_attempts import find_attempt  # which itself checks evidence

    found = find_attempt(id, Path(run))
    lines = explain(found.attempt, found.bundle, evidence_problem=found.evidence_problem, replacement=found.replacement)
    return Explanation(
        attempt=AttemptFacts.of(found.attempt, found.bundle),
        evidence_problem=found.evidence_problem,
        lines=tuple(lines),
    )


def read_documents(bundle: Path) -> dict[str, Any]:
    """Return the JSON artifacts of a bundle in any state, without those that cannot be read.

    Together they have at most `MAX_BYTES` bytes; larger ones are left out.
    """
    found: dict[str, Any] = {}
    left = MAX_BYTES
    if bundle.is_dir():
        for path in sorted(bundle.glob("*.json")):
            try:
                data = read_bounded(path, left)
                document = parse_strict(data)
            except (OSError, CanonicalError):
                continue
            left -= len(data)
            if isinstance(document, dict):
                found[path.name] = document
    return found


def evidence_problem(attempt: Attempt, bundle: Path) -> str | None:
    """Return why the evidence of an ended attempt is invalid; None if it matches the ledger.

    Raises BundleSchemaUnknown if another version of proofbox wrote it.
    """
    if attempt.result is None:
        return None
    try:
        found = load_bundle(bundle)
    except (ProofboxError, OSError) as error:
        return f"{error.code}: {error.message}" if isinstance(error, ProofboxError) else str(error)
    artifacts.require_known_versions(found.artifacts)
    if found.index_sha256 != attempt.result.index_sha256:
        return "its index differs from the one in the run's ledger"
    try:
        says = committed_result(found, bundle.parent.parent.name, attempt.id)
    except UNREADABLE:
        says = None
    recorded = attempt.result
    if says is None:
        return None if recorded.infra is not None else "it states no result"
    if says.members != recorded.members:
        return "its result differs from the one in the run's ledger"
    return None


def explain(
    attempt: Attempt, bundle: Path, *, evidence_problem: str | None = None, replacement: str | None = None
) -> Iterator[str]:
    """Explain an attempt line by line. Agents' texts are quoted as stored; the caller escapes them for display.

    `evidence_problem` is why its evidence is invalid, `replacement` the attempt that replaced it.
    """
    result = attempt.result
    if result is None:
        yield f"{attempt.id} is {attempt.phase}."
        return
    if evidence_problem is None:
        yield f"{attempt.id}: {_verdict(result)}"
    else:
        yield _one_line(f"{attempt.id}: unknown, because its evidence is invalid: {evidence_problem}")
        yield f"The run's ledger says: {_verdict(result)}. The remaining evidence says:"
    try:
        for line in _explanation(attempt, result, bundle, replacement):
            yield _one_line(line)
    except (KeyError, TypeError, ValueError, AttributeError):
        yield "The rest of its documents cannot be read."


def _explanation(attempt: Attempt, result: Ended, bundle: Path, replacement: str | None) -> Iterator[str]:
    documents = read_documents(bundle)
    yield from _failure(documents, replacement)
    yield _reason(result, documents)
    for each in documents.get(artifacts.ATTEMPT, {}).get("considered", []):
        if each.get("code"):
            yield f"{each['strategy']} was skipped ({each['code']}): {each['reason']}"
    if documents.get(artifacts.RUNNER, {}).get("shared"):
        yield "It shared the agent's process with other attempts, which could interfere with it."
    if attempt.parent is not None:
        yield f"It retries {attempt.parent}."
    report = documents.get(artifacts.REPORT, {})
    if unstated := report.get("responses_without_usage"):
        yield f"{counted(unstated, 'model response')} did not state token usage, so the token count is incomplete."
    calls = (entry for entry in _entries(bundle, CALLS) if "call" in entry)
    first = list(islice(calls, MAX_CALLS))
    if first:
        total = len(first) + sum(1 for _ in calls)
        yield f"What it did ({counted(total, 'tool call')}):"
        for number, call in enumerate(first, 1):
            yield f"  {number}. {_call(call, bundle)}"
        if total > MAX_CALLS:
            yield f"  and {total - MAX_CALLS} more, in {bundle / CALLS}"
    if any((entry.get("event"), entry.get("kind")) == ("notice", KILLED_AT_END) for entry in _entries(bundle, EVENTS)):
        yield "Processes that it had started were still running at its end, and were killed."
    changed = _changed(documents, bundle)
    if changed:
        more = f" and {len(changed) - MAX_PATHS} more: proofbox attempt diff {shlex.quote(str(bundle))}"
        shown = ", ".join(_cut(path) for path in changed[:MAX_PATHS])
        yield f"It changed {counted(len(changed), 'path')}: {shown}{more if len(changed) > MAX_PATHS else ''}"
    feedback = documents.get(artifacts.FEEDBACK, {})
    message = feedback.get("result") or ""
    if "result_json" in feedback:
        message = msgspec.json.encode(feedback["result_json"]).decode()
    last = message[-LAST_WORDS:].rstrip().splitlines()[-MAX_LINES:]
    yield from _quoted("Its final message", last, cut=len("\n".join(last)) < len(message.strip()))


def _verdict(result: Ended) -> str:
    claimed, verified = result.claimed, result.verified
    if result.infra is not None:
        what = "the mission's setup" if result.reason == "setup_failed" else "the infrastructure"
        return f"no verdict, because {what} failed ({result.infra})"
    if verified == "failed":
        return "claimed success but failed verification" if claimed == "success" else "failed verification"
    if verified == "passed":
        return "passed verification" + ("" if claimed == "success" else f", though it claimed {claimed}")
    return f"not verified: no commands or conditions decided it; it claimed {claimed}"


def _failure(documents: dict[str, Any], replacement: str | None) -> Iterator[str]:
    """Yield the failures that decided the result."""
    verification = documents.get(artifacts.ATTEMPT, {}).get("verification", {})
    for run in verification.get("commands", []):
        if not run["passed"]:
            yield f"The verifier's command `{_shown(run['command'])}` did not pass: {run['why']}."
            for stream in ("stderr", "stdout"):
                yield from _quoted(f"  its {stream} ended", _last_lines(run.get(stream, "")))
    reward = verification.get("reward") or {}
    if "problem" in reward:
        yield f"The verifier wrote no valid reward ({reward['problem']}): {reward['detail']}."
    elif reward.get("value", 1.0) < 1.0:
        yield f"The verifier's reward is {reward['value']:g}; 1 is needed to pass."
    for reason in documents.get(artifacts.ATTEMPT, {}).get("not_comparable", []):
        yield f"Not comparable: {reason}."
    for each in verification.get("unmet", []):
        yield f"A condition was not met: {each['condition']}: expected {each['what']}, found {each['found']}."
    for path in verification.get("put_back", []):
        yield f"It changed {path}, which is loaded automatically; the verifier restored it."
    error = documents.get(artifacts.ATTEMPT, {}).get("error") or documents.get(artifacts.TORN, {}).get("error")
    if error:
        yield f"{error['code']}: {error['message']}"
        if isinstance(error.get("command"), list):
            yield f"  its command: {_shown(error['command'])}"
            yield from _quoted("  its stderr ended", _last_lines(error.get("stderr") or ""))
        if replacement is None:
            for hint in error.get("fix_hints", []):
                yield f"  fix: {hint}"
    if replacement is not None:
        yield f"{replacement} replaced it."


def _reason(result: Ended, documents: dict[str, Any]) -> str:
    words = _REASONS.get(result.reason, result.reason)
    detail = documents.get(artifacts.ATTEMPT, {}).get("detail")
    error = documents.get(artifacts.REPORT, {}).get("turn_error")
    if result.reason == "turn_failed" and error:
        detail = error["message"]
    return f"{words} ({detail})" if detail else words


def _changed(documents: dict[str, Any], bundle: Path) -> list[str]:
    """Return the paths of the final diff. Content lines have a prefix, so none can look like a heading."""
    final = documents.get(artifacts.ATTEMPT, {}).get("final") or {}
    try:
        lines = read_diff(final, lambda path: read_bounded(bundle / path, MAX_BYTES)).split("\n")
    except OSError:
        return []
    return [line.removeprefix("diff ") for line in lines if line.startswith("diff ")]


def _entries(bundle: Path, log: str) -> Iterator[dict[str, Any]]:
    try:
        for line in BundleDirectory(str(bundle)).lines(log, MAX_LOG_BYTES, hashlib.sha256()):
            try:
                entry = parse_strict(line)
            except CanonicalError:  # truncated by a kill
                continue
            if isinstance(entry, dict):
                yield entry
    except OSError:
        return


def _call(call: dict[str, Any], bundle: Path) -> str:
    code, duration = call.get("exit_code"), call.get("duration_ms")
    ended = call["status"] if code is None else f"exit {code}"
    if call.get("started") is False and call["status"] == "failed":
        ended = "never started"
    took = "" if duration is None else f", {duration:.0f} ms"
    took += ", still running at the end of the turn" if call.get("late") else ""
    what = subject_of(call["tool"], call["command"][:200])
    failed = call["status"] != "completed" or code not in (None, 0)
    why = _last_lines(_output(call, bundle).removesuffix(f"[exit {code}]"))[-1:] if failed else []
    return f"{what} ({ended}{took})" + "".join(f": {_cut(each)}" for each in why)


def _output(call: dict[str, Any], bundle: Path) -> str:
    """Return what a call printed: the stored output if the preview is cut."""
    preview: str = call["output_preview"]
    if call.get("output_sha256") is None:
        return preview
    try:
        return read_bounded(bundle / OUTPUTS.format(call["output_sha256"]), MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _shown(command: Sequence[str]) -> str:
    """Format a command as in the suite: the shell line, or the words."""
    return command[2] if len(command) == 3 and tuple(command[:2]) == ("/bin/sh", "-c") else shlex.join(command)


def _last_lines(text: str) -> list[str]:
    return text.rstrip().splitlines()[-LAST_LINES:]


def _quoted(about: str, lines: Sequence[str], *, cut: bool = False) -> Iterator[str]:
    """Yield quoted text: a single line after its heading, several lines below it, each with a mark."""
    words = [_cut(line) for line in lines]
    if cut and words:
        words[0] = f"…{words[0]}"
    if len(words) == 1:
        yield f"{about}: {words[0]}"
    elif words:
        indent = about[: len(about) - len(about.lstrip())]
        yield f"{about}:"
        yield from (f"{indent}{MARK}{word}" for word in words)


def _cut(line: str) -> str:
    return line if len(line) <= LAST_WORDS else line[:LAST_WORDS] + "…"


def _one_line(line: str) -> str:
    return "\\n".join(line.splitlines())
