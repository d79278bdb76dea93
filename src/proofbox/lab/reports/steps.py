"""The steps of an attempt, and what each changed, from the attempt's evidence."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec
from msgspec import UNSET

from proofbox.agents.steps import Step
from proofbox.errors import AttemptUnknown, BundleArtifactAbsent, NotFoundError, StepDiffOmitted
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import AttemptRecord, StepEntry
from proofbox.lab.attempt.trace import DIFFS, STEPS


def diff_attempt(attempt: str | os.PathLike[str], step: int | None = None) -> str:
    """Return what an attempt changed in its workspace, or what one of its steps changed, as a unified diff.

    For example:

        print(proofbox.diff_attempt("t1", step=2))

    `attempt` is the directory of an attempt's bundle, of a suite or made by hand. The diff comes from the verified
    bundle alone and is redacted; it is empty if nothing changed. Raises `StepDiffOmitted` if the step changed more than
    the evidence keeps.
    """
    bundle = load_attempt(Path(attempt))
    if step is None:
        torn = artifacts.TORN in bundle.artifacts
        final = None if torn else artifacts.read_document(bundle, artifacts.ATTEMPT, AttemptRecord).final
        return "" if final is None else read_diff(msgspec.to_builtins(final), bundle.read_bytes)
    _, entry = _find(bundle, step)
    if entry.diff_omitted is not UNSET:
        raise StepDiffOmitted(
            f"the diff of step {step} is not part of the evidence: {entry.diff_omitted}",
            op="attempt diff",
            fix_hints=[
                f"restore the files of the step: proofbox attempt fork {quote(bundle.path)} --step {step} DIR",
            ],
        )
    return read_diff(msgspec.to_builtins(entry), bundle.read_bytes)


def read_diff(document: Mapping[str, Any], read: Callable[[str], bytes]) -> str:
    """Return the diff in a document, or in the file that it names, or an empty string. `read` reads a file by path."""
    if "diff_sha256" in document:
        return read(DIFFS.format(document["diff_sha256"])).decode("utf-8", "replace")
    return str(document.get("diff", ""))


def load_attempt(path: Path) -> Bundle:
    """Load and verify the bundle of one attempt.

    Raises `AttemptUnknown` if the bundle is not that of an attempt, `BundleSchemaUnknown` if another version wrote it.
    """
    bundle = load_bundle(path)
    artifacts.require_known_versions(bundle.artifacts)
    if artifacts.ATTEMPT not in bundle.artifacts and artifacts.TORN not in bundle.artifacts:
        raise AttemptUnknown(
            f"{path} is not the bundle of an attempt",
            op="attempt",
            fix_hints=[f"name an attempt of the run: proofbox attempt list {quote(str(path))}"],
        )
    return bundle


def step_of(bundle: Bundle, number: int) -> Step:
    """Return a step by its number. Raises `NotFoundError` if the attempt has no such step."""
    step, _ = _find(bundle, number)
    ends = {each.turn_end.last_step for each in _entries(bundle) if each.turn_end is not UNSET}
    return msgspec.structs.replace(step, ends_turn=number in ends)


def _find(bundle: Bundle, number: int) -> tuple[Step, StepEntry]:
    last = 0
    for entry in _entries(bundle):
        if entry.step is not UNSET:
            last = entry.step.n
            if last == number:
                return Step(**msgspec.structs.asdict(entry.step)), entry
    hints = [f"choose a step from 1 to {last}"] if last else ["it has no steps: see proofbox attempt explain"]
    raise NotFoundError(f"the attempt has no step {number}", op="attempt", fix_hints=hints)


def _entries(bundle: Bundle) -> list[StepEntry]:
    try:
        return [msgspec.convert(entry, StepEntry) for entry in artifacts.read_log(bundle, STEPS)]
    except BundleArtifactAbsent:
        return []
