"""The page of an attempt: outcomes, facts, verifier, and where the texts of a step are."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from proofbox.errors import NotFoundError
from proofbox.evidence.documents import outcome as outcomes
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.trace import DIFFS, OUTPUTS, STEPS
from proofbox.viewer.reading import OpenedEvidence, final_snapshot, number, table, tables
from proofbox.viewer.timeline import StepLine, duration

MAX_TEXT: Final = 64 << 10
"""Maximum number of bytes of one text on a page; the rest is on further pages."""
MAX_LISTED: Final = 50
"""Maximum number of commands of a verifier, and of other lists, on the page of an attempt."""
_SHA256: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """One of the three outcomes."""

    name: str
    result: str
    by: str
    how: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerifierCommand:
    """A command of the verifier."""

    number: int
    command: str
    passed: bool
    why: str
    exit_code: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class AttemptView:
    """Everything on the page of an attempt except its timeline."""

    id: str
    run_id: str
    outcomes: tuple[OutcomeRow, ...]
    facts: tuple[tuple[str, str], ...]
    usage: tuple[tuple[str, str, str], ...]
    """Tokens: source, input, output."""
    commands: tuple[VerifierCommand, ...]
    conditions: tuple[str, ...]
    error: str
    parent: str | None
    fork: str
    problems: tuple[str, ...]
    """Contradictions that proofbox found in the events."""


def read_attempt(evidence: OpenedEvidence) -> AttemptView:
    """Read the documents of an attempt. An attempt whose evidence is invalid has no outcomes."""
    record = evidence.document(artifacts.ATTEMPT) or evidence.document(artifacts.TORN)
    report = evidence.document(artifacts.REPORT)
    verification = table(record.get("verification"))
    runner = evidence.document(artifacts.RUNNER)
    error, fork = table(record.get("error")), table(record.get("fork"))
    problems = [f"{each.get('code')}: {each.get('message')}" for each in tables(report.get("integrity"))]
    more = [f"and {len(problems) - MAX_LISTED} more"] if len(problems) > MAX_LISTED else []
    return AttemptView(
        id=str(record.get("attempt_id") or evidence.path.name),
        run_id=str(record.get("run_id", "")),
        outcomes=tuple(_outcomes(evidence)),
        facts=tuple(_facts(record, report, runner)),
        usage=tuple(islice(_usage(report), MAX_LISTED)),
        commands=tuple(islice(_commands(verification), MAX_LISTED)),
        conditions=tuple(islice(_conditions(verification), MAX_LISTED)),
        error=f"{error.get('code', '')}: {error.get('message', '')}" if error else "",
        parent=str(record["parent"]) if record.get("parent") else None,
        fork=f"{fork.get('attempt_id', '')}, step {fork.get('step', '')}" if fork else "",
        problems=(*problems[:MAX_LISTED], *more),
    )


def _outcomes(evidence: OpenedEvidence) -> Iterator[OutcomeRow]:
    document = evidence.document(outcomes.PATH) if evidence.integrity in ("valid", "repaired") else {}
    for name, results in outcomes.RESULTS.items():
        found = table(document.get(name))
        result = str(found.get("result"))
        facts = (str(found.get(member, "")) for member in ("by", "how", "detail"))
        yield OutcomeRow(name, result if result in results else "unknown", *facts)


def _facts(
    record: Mapping[str, Any], report: Mapping[str, Any], runner: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    box, states = table(runner.get("facts")), tables(record.get("states"))
    failures = sum(map(number, table(report.get("tool_failures")).values()))
    pairs: list[tuple[str, Any]] = [
        ("Strategy", " ".join(filter(None, [str(runner.get("runtime", "")), str(runner.get("version", ""))]))),
        ("Ended", str(record.get("reason", "")).replace("_", " ")),
        ("Turn", duration(number(report["turn_ms"])) if report.get("turn_ms") is not None else None),
        ("Tool calls", report.get("tool_calls")),
        ("Observed calls", report.get("tool_calls_observed")),
        ("Failed calls", f"{failures:.0f}" if failures else None),
        ("Messages", report.get("messages")),
        ("Reward", report.get("reward")),
        ("Sandbox", box.get("provider")),
        ("Network", box.get("network")),
        ("Suite", table(record.get("suite")).get("id")),
        ("Replicate", record.get("replicate")),
        ("Started (UTC)", next((_moment(each.get("at")) for each in states), None)),
    ]
    for name, value in pairs:
        if value is not None and value != "":
            yield name, str(value)


def _moment(text: object) -> str:
    return str(text)[:19].replace("T", " ")


def _usage(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for source, used in table(report.get("tokens")).items():
        input, output = (number(table(used).get(name)) for name in ("input_tokens", "output_tokens"))
        yield source, f"{input:,.0f}", f"{output:,.0f}"


def _commands(verification: Mapping[str, Any]) -> Iterator[VerifierCommand]:
    for place, each in enumerate(tables(verification.get("commands"))):
        given, code = each.get("command"), each.get("exit_code")
        words = [str(word) for word in given] if isinstance(given, list) else []
        line = words[2] if len(words) == 3 and words[:2] == ["/bin/sh", "-c"] else shlex.join(words)
        yield VerifierCommand(
            place,
            line,
            bool(each.get("passed")),
            str(each.get("why", "")),
            code if isinstance(code, int) else None,
            str(each.get("stdout", "")),
            str(each.get("stderr", "")),
        )


def _conditions(verification: Mapping[str, Any]) -> Iterator[str]:
    for each in tables(verification.get("unmet")):
        yield f"{each.get('condition')}: expected {each.get('what')}, found {each.get('found')}"
    restored = verification.get("put_back")
    for path in restored if isinstance(restored, list) else []:
        yield f"{path} was changed and is loaded automatically; the verifier restored it"
    reward = table(verification.get("reward"))
    if "problem" in reward:
        yield f"no valid reward ({reward['problem']}): {reward.get('detail', '')}"


def find_step(evidence: OpenedEvidence, n: int) -> StepLine:
    """Return a step by its number. Raises NotFoundError."""
    found = evidence.find(STEPS, _Numbered, "number", {str(n): 1})[str(n)]
    if not found:
        raise NotFoundError(f"the attempt has no step {n}", op="view")
    return found[0]


class _Numbered(StepLine, frozen=True):
    @property
    def number(self) -> str:
        return str(self.step.n)


def diff_part(evidence: OpenedEvidence, step: StepLine | None, start: int) -> tuple[bytes, int]:
    """Return a part of the diff of a step, or of the whole attempt, and the size of that diff.

    The size is 0 if nothing changed or the diff is not stored.
    """
    if step is not None:
        return _diff_part(evidence, step.diff, step.diff_sha256, start)
    final = final_snapshot(evidence)
    return _diff_part(evidence, str(final.get("diff", "")), str(final.get("diff_sha256", "")), start)


def _diff_part(evidence: OpenedEvidence, diff: str, sha256: str, start: int) -> tuple[bytes, int]:
    if _is_sha256(sha256):
        name = DIFFS.format(sha256)
        return evidence.part(name, start, MAX_TEXT), evidence.size(name)
    data = diff.encode("utf-8", "replace")
    return data[start : start + MAX_TEXT], len(data)


def output_name(sha256: str) -> str:
    """Return the artifact with the whole output of a call. Raises NotFoundError for a malformed digest."""
    if not _is_sha256(sha256):
        raise NotFoundError("malformed digest", op="view")
    return OUTPUTS.format(sha256)


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= _SHA256


def fork_command(evidence: OpenedEvidence, step: int) -> str:
    """Return the command that continues from a step."""
    return f"proofbox attempt fork {shlex.quote(str(evidence.path))} --step {step} NEW_DIR"


def verify_command(evidence: OpenedEvidence) -> str:
    """Return the command that verifies the evidence."""
    return f"proofbox verify {shlex.quote(str(evidence.path))}"


def attempt_texts(evidence: OpenedEvidence) -> dict[str, Any]:
    """Return the long texts of an attempt's page, and the artifact with the final diff if that is a file."""
    prompt = evidence.part(artifacts.PROMPT, 0, MAX_TEXT) if evidence.size(artifacts.PROMPT) else b""
    diff, size = diff_part(evidence, None, 0)
    sha256 = str(final_snapshot(evidence).get("diff_sha256", ""))
    return {
        "prompt": prompt.decode("utf-8", "replace"),
        "final_diff": diff.decode("utf-8", "replace"),
        "final_diff_size": size,
        "final_diff_name": DIFFS.format(sha256) if _is_sha256(sha256) else "",
    }
