"""Finds a recorded attempt: one of a run, by its id, or one made by hand, by its id or the directory of its bundle."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

import msgspec

from proofbox.errors import AttemptUnknown, RunUnknown
from proofbox.evidence.bundle.paths import INDEX, STATUS
from proofbox.lab.attempt.adhoc.home import attempts_dir
from proofbox.lab.reports.explain import evidence_problem
from proofbox.lab.reports.results import attempt_by_evidence
from proofbox.lab.reports.steps import load_attempt
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.plan import find_run, ledger_path


class StoredAttempt(msgspec.Struct, frozen=True):
    attempt: Attempt
    bundle: Path
    replacement: str | None = None
    """The id of the attempt that replaced it."""
    evidence_problem: str | None = None
    """Why its evidence is invalid; None if it is valid, or still being written."""


def find_attempt(id: str, run: Path) -> StoredAttempt:
    """Find an attempt by the directory of its bundle, or by its id or a unique prefix of it.

    `run` is a run's directory, or an output directory, for its last run. Ids of attempts made by hand need no run.
    Raises `AttemptUnknown` or `RunUnknown`.
    """
    if id and _is_bundle(Path(id)):
        return _by_evidence(Path(id))
    by_hand = _made_by_hand(id)
    if len(by_hand) == 1:
        return _by_evidence(by_hand[0])
    try:
        out, run_id = find_run(run, f"proofbox attempt explain {quote(id)} --run")
    except RunUnknown:
        if not id.startswith("attempt-"):
            raise
        what = "several attempts begin with" if by_hand else "there is no attempt"
        hints = ["name the directory of its evidence: proofbox attempt explain DIR"]
        raise AttemptUnknown(f"{what} {id[:80]!r}", op="attempt", fix_hints=hints) from None
    with Ledger(ledger_path(out, run_id), read_only=True) as ledger:
        attempt = ledger.attempt(id)
        children = (each.id for each in ledger.attempts() if each.parent == attempt.id)
        replacement = next(children, None)
    bundle = out / run_id / attempt.path
    return StoredAttempt(attempt, bundle, replacement, evidence_problem(attempt, bundle))


def _by_evidence(path: Path) -> StoredAttempt:
    return StoredAttempt(attempt_by_evidence(load_attempt(path)), path)


def _is_bundle(path: Path) -> bool:
    return any(os.path.lexists(path / name) for name in (STATUS, INDEX))


def _made_by_hand(id: str) -> list[Path]:
    """Return the bundles in the state directory whose ids begin with `id`."""
    if not id.startswith("attempt-"):
        return []
    return [path for path in sorted(attempts_dir().glob("attempt-*")) if path.name.startswith(id) and _is_bundle(path)]
