"""An attempt's story in plain words, from its evidence: what went wrong comes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.words import counted
from proofbox.evidence.paths import read_bounded
from proofbox.lab import artifacts
from proofbox.lab.ledger import Attempt
from proofbox.lab.trace import CALLS

LARGEST = 16 << 20
MOST_CALLS = 20

_REASONS = {
    "completed": "The agent ended its turn by itself.",
    "turn_failed": "The agent's turn failed.",
    "timed_out": "The agent ran out of time and was stopped.",
    "interrupted": "It was interrupted.",
    "budget_exceeded": "The agent used up its budget and was stopped.",
    "reward_missing": "The agent ended its turn by itself; the verifier left no reward.",
    "reward_malformed": "The agent ended its turn by itself; what the verifier left is no reward.",
    "setup_failed": "A setup command of the mission failed before the agent began.",
    "infra_failed": "The machinery failed; this says nothing about the agent.",
    "worker_lost": "The process that ran it died; what it had recorded until then was kept.",
}


def read_documents(bundle: Path) -> dict[str, Any]:
    """The JSON artifacts of a bundle in any state; one that can't be read is left out."""
    found: dict[str, Any] = {}
    if bundle.is_dir():
        for path in sorted(bundle.glob("*.json")):
            try:
                found[path.name] = parse_strict(read_bounded(path, LARGEST))
            except (OSError, CanonicalError):
                continue
    return found


def explain(attempt: Attempt, bundle: Path) -> Iterator[str]:
    """Line by line. The texts of agents are quoted as they are stored: whoever prints them escapes them."""
    documents = read_documents(bundle)
    result = attempt.result
    if result is None:
        yield f"{attempt.id} is {attempt.phase}."
        return
    yield f"{attempt.id}: {_verdict(result.claimed, result.verified, result.infra)}"
    yield from _failure(documents)
    yield _REASONS.get(result.reason, result.reason) + _detail(documents)
    if documents.get(artifacts.RUNNER, {}).get("shared"):
        yield "It shared its agent's process with other attempts, which could reach it."
    if attempt.parent is not None:
        yield f"It is a new try after {attempt.parent} failed for reasons of the machinery."
    calls = list(_calls(bundle))
    if calls:
        yield f"What it did ({counted(len(calls), 'tool call')}):"
        for number, call in enumerate(calls[:MOST_CALLS], 1):
            yield f"  {number}. {_call(call)}"
        if len(calls) > MOST_CALLS:
            yield f"  and {len(calls) - MOST_CALLS} more, in {bundle / CALLS}"
    feedback = documents.get(artifacts.FEEDBACK, {})
    said = feedback.get("result") or feedback.get("result_json")
    if said:
        yield f"What it said at the end: {str(said)[:500]}"


def _verdict(claimed: str, verified: str, infra: str | None) -> str:
    if infra is not None:
        return f"no verdict, because the machinery failed ({infra})"
    if verified == "failed":
        return "claimed success, and failed verification" if claimed == "success" else "failed verification"
    if verified == "passed":
        return "verified as done" + ("" if claimed == "success" else f", though it claimed {claimed}")
    return f"not verified: nothing decided it; it claimed {claimed}"


def _failure(documents: dict[str, Any]) -> Iterator[str]:
    """The step that decided against it."""
    verification = documents.get(artifacts.VERIFICATION, {})
    for run in verification.get("commands", []):
        if not run["passed"]:
            yield f"The verifier's command `{run['command'][-1]}` did not pass: {run['why']}."
            for stream in ("stderr", "stdout"):
                tail = run[stream].strip().splitlines()[-3:]
                if tail:
                    yield f"  its {stream} ended: " + " | ".join(tail)
    reward = verification.get("reward") or {}
    if "problem" in reward:
        yield f"The verifier left no reward that counts ({reward['problem']}): {reward['detail']}."
    elif reward.get("value", 1.0) < 1.0:
        yield f"The verifier's reward is {reward['value']:g}, and 1 is needed."
    for reason in documents.get(artifacts.ATTEMPT, {}).get("not_comparable", []):
        yield f"Not comparable: {reason}."
    for each in verification.get("unmet", []):
        yield f"A condition was not met: {each['condition']}: expected {each['what']}, found {each['found']}."
    for path in verification.get("put_back", []):
        yield f"It changed {path}, which programs load by themselves; the verifier put it back."
    error = documents.get(artifacts.ATTEMPT, {}).get("error") or documents.get(artifacts.TORN, {}).get("error")
    if error:
        yield f"{error['code']}: {error['message']}"
        for hint in error.get("fix_hints", []):
            yield f"  fix: {hint}"


def _detail(documents: dict[str, Any]) -> str:
    detail = documents.get(artifacts.ATTEMPT, {}).get("detail")
    return f" ({detail})" if detail else ""


def _calls(bundle: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = read_bounded(bundle / CALLS, LARGEST).splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = parse_strict(line)
        except CanonicalError:  # torn by a kill
            continue
        if isinstance(entry, dict) and "call" in entry:
            yield entry


def _call(call: dict[str, Any]) -> str:
    ended = call["status"] if call["exit_code"] is None else f"exit {call['exit_code']}"
    took = "" if call["duration_ms"] is None else f", {call['duration_ms']:.0f} ms"
    what = call["command"][:200] if call["tool"] == "command" else f"{call['tool']} {call['command'][:200]}"
    return f"{what} ({ended}{took})"
