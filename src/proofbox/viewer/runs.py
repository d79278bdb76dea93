"""The attempts of a run with their results, for the pages of the run.

The results of a committed run come from its evidence, which is checked completely once, in the background. Until that
is done, attempts have no result on the page; the ledger of a committed run is never a source of results.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from proofbox.agents.events import TokenUsage
from proofbox.core.digest import sha256_hex
from proofbox.errors import BundleError, ProofboxError, RunUnknown
from proofbox.evidence.bundle.index import parse_index
from proofbox.evidence.bundle.listing import describe
from proofbox.evidence.bundle.paths import (
    INDEX,
    MAX_INDEX_BYTES,
    MAX_JSON_BYTES,
    MAX_STATUS_BYTES,
    STATUS,
    read_bounded,
)
from proofbox.evidence.bundle.reader import as_bundle
from proofbox.evidence.bundle.status import parse_status
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.verify.check import check_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.results import attempts_by_evidence, read_run
from proofbox.lab.reports.totals import Totals, final_attempts, totals
from proofbox.lab.run.closing import as_committed
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.plan import count_refused, ledger_path
from proofbox.lab.statistics import PassRate, pass_rate
from proofbox.viewer.reading import INDEX_LOST, tree_mark

SMALL_RUN: Final = 100
"""Maximum number of attempts of a run that is read while its page waits."""
OUTCOMES: Final = ("passed", "failed", "unverified", "infra", "running", "interrupted", "checking")


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt in a list."""

    id: str
    mission: str
    replicate: int
    path: str
    """The path of its bundle, relative to the run's."""
    outcome: str
    """One of `OUTCOMES`. An infrastructure failure is neither passed nor failed."""
    claimed: str
    reason: str
    strategy: str
    infra: str
    parent: str | None
    number: int
    replaced: bool
    """Whether a retry replaced it."""
    tokens: int | None = None
    seconds: float | None = None
    calls: int | None = None
    node: str = ""
    """The node of a cluster that ran it; empty if it ran on the conductor's machine."""

    @property
    def contradicts(self) -> bool:
        """Whether the agent claimed success and the verifier found otherwise."""
        return self.claimed == "success" and self.outcome == "failed"


@dataclass(frozen=True, slots=True)
class RunView:
    """The state of a run, as its page shows it."""

    run_id: str
    committed: bool
    checking: bool
    """Whether the run is still being read and checked, so that no result is known."""
    rows: tuple[AttemptRow, ...]
    """All attempts; of a run that is being checked, those of one page."""
    planned: int
    """The number of all attempts."""
    totals: Totals | None
    """None while the evidence is being checked."""
    rate: PassRate | None
    findings: tuple[EvidenceFinding, ...] = ()
    interrupted: bool = False
    """Whether the process that conducts it died before the commit."""
    refused: int = 0
    """How many bundles of nodes were refused, because their attempts had been taken over."""

    @property
    def strategies(self) -> list[str]:
        return sorted({row.strategy for row in self.rows if row.strategy})

    @property
    def tokens(self) -> int:
        return sum(row.tokens or 0 for row in self.rows)

    @property
    def done(self) -> int:
        return sum(row.outcome not in ("running", "interrupted", "checking") for row in self.rows)


class _Report(msgspec.Struct, frozen=True):
    """The figures of an attempt that a list shows."""

    tokens: dict[str, TokenUsage] = {}
    tool_calls: int | None = None
    turn_ms: float | None = None


class _Node(msgspec.Struct, frozen=True):
    name: str = ""


class RunReader:
    """Reads runs, and remembers which results of a run in progress its bundles confirmed."""

    def __init__(self) -> None:
        self._confirmed: dict[Path, dict[str, str]] = {}

    def read(self, path: Path) -> RunView:
        """Read a run: from its evidence once it is committed, and from its ledger until then.

        A run that was committed and has lost its index is invalid and has no results.
        """
        ended = _is_ended(path)  # before the index is looked for, which a commit writes last
        committed = os.path.lexists(path / INDEX)
        findings: Sequence[EvidenceFinding] = ()
        try:
            with Ledger(ledger_path(path.parent, path.name), read_only=True) as ledger:
                ended = ended or ledger.get_value("committed") == "yes"
                if committed:
                    found = read_run(path, ledger)
                    attempts, findings = list(found.attempts), found.findings
                elif ended:
                    attempts = [msgspec.structs.replace(each, result=None) for each in ledger.attempts()]
                else:
                    attempts = self._in_progress(path, ledger.attempts())
        except RunUnknown:
            attempts, findings = _without_ledger(path) if committed else ([], ())
        if committed:
            self._confirmed.pop(path, None)
        elif ended:
            findings = (EvidenceFinding("missing", INDEX, INDEX_LOST),)
        return _view(path, attempts, findings, committed=committed)

    def _in_progress(self, path: Path, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the attempts without results that their bundles do not confirm. Each bundle is read once."""
        confirmed = self._confirmed.setdefault(path, {})
        new = [each for each in attempts if each.result and confirmed.get(each.id) != each.result.index_sha256]
        checked = {each.id: each for each in as_committed(path, new)}
        confirmed |= {each.id: each.result.index_sha256 for each in new if each.result and checked[each.id] is each}
        return [checked.get(each.id, each) for each in attempts]


def _view(path: Path, attempts: Sequence[Attempt], findings: Sequence[EvidenceFinding], *, committed: bool) -> RunView:
    interrupted = not committed and describe(str(path)).state == "interrupted"
    pending = "unverified" if findings else "interrupted" if interrupted else "running"
    rows = _rows(path, attempts, committed=committed, pending=pending)
    final = [each for each in final_attempts(attempts) if each.result is not None]
    return RunView(
        run_id=path.name,
        committed=committed,
        checking=False,
        rows=rows,
        planned=len(rows),
        totals=totals(attempts),
        rate=_rate(final),
        findings=tuple(findings),
        interrupted=interrupted,
        refused=count_refused(path),
    )


def _is_ended(path: Path) -> bool:
    """Return whether the status says that the run was committed."""
    try:
        return parse_status(read_bounded(path / STATUS, MAX_STATUS_BYTES)).state != "in_progress"
    except (OSError, ShapeError):
        return False


def _rate(final: Sequence[Attempt]) -> PassRate | None:
    scores: dict[str, tuple[int, int]] = {}
    for each in final:
        if each.result is not None and each.result.infra is None and each.result.verified in ("passed", "failed"):
            passed, scored = scores.get(each.mission, (0, 0))
            scores[each.mission] = (passed + (each.result.verified == "passed"), scored + 1)
    return pass_rate(list(scores.values())) if scores else None


def _without_ledger(path: Path) -> tuple[list[Attempt], tuple[EvidenceFinding, ...]]:
    """Return the attempts of a run that was copied without its ledger. Damaged evidence states no results."""
    checked = check_bundle(str(path))
    findings = tuple(EvidenceFinding(each.code, each.path, each.detail) for each in checked.findings)
    if not checked.ok:
        return [], findings
    try:
        return attempts_by_evidence(as_bundle(checked))[0], findings
    except (BundleError, ShapeError):
        return [], findings


def _rows(path: Path, attempts: Sequence[Attempt], *, committed: bool, pending: str) -> tuple[AttemptRow, ...]:
    """Return the attempts; `pending` is the outcome of those without a result."""
    parents = {each.parent for each in attempts}
    return tuple(
        _row(path, each, replaced=each.id in parents, committed=committed, pending=pending) for each in attempts
    )


def _row(path: Path, attempt: Attempt, *, replaced: bool, committed: bool, pending: str) -> AttemptRow:
    result = attempt.result
    outcome = pending
    if result is not None:
        verified = {"passed": "passed", "failed": "failed"}.get(result.verified, "unverified")
        outcome = "infra" if result.infra is not None else verified
    figures = _figures(path / attempt.path, result.index_sha256) if committed and result is not None else {}
    return AttemptRow(
        id=attempt.id,
        mission=attempt.mission,
        replicate=attempt.replicate,
        path=attempt.path,
        outcome=outcome,
        claimed="" if result is None else result.claimed,
        reason=attempt.phase if result is None else result.reason,
        strategy="" if result is None else result.strategy,
        infra="" if result is None else result.infra or "",
        parent=attempt.parent,
        number=attempt.number,
        replaced=replaced,
        **figures,
    )


def _figures(bundle: Path, index_sha256: str) -> dict[str, Any]:
    """Return the figures of an attempt from documents that match its index, which the run's evidence covers."""
    try:
        data = read_bounded(bundle / INDEX, MAX_INDEX_BYTES)
        if sha256_hex(data) != index_sha256:
            return {}
        listed = parse_index(data).artifacts
        documents = {}
        for name in (artifacts.REPORT, *({artifacts.NODE} & listed.keys())):
            content = read_bounded(bundle / name, MAX_JSON_BYTES)
            if name not in listed or sha256_hex(content) != listed[name].sha256:
                return {}
            documents[name] = content
        report = msgspec.json.decode(documents[artifacts.REPORT], type=_Report)
        node = msgspec.json.decode(documents.get(artifacts.NODE, b"{}"), type=_Node)
    except (OSError, ShapeError, msgspec.DecodeError):
        return {}
    used = report.tokens.get("gateway") or report.tokens.get("runtime_reported")
    return {
        "tokens": None if used is None else used.input_tokens + used.output_tokens,
        "calls": report.tool_calls,
        "seconds": None if report.turn_ms is None else report.turn_ms / 1000,
        "node": node.name,
    }


def unchecked_view(path: Path, first: int, count: int) -> RunView:
    """Return a run that is being read and checked: some of the planned attempts, without results."""
    rows: list[AttemptRow] = []
    try:
        with Ledger(ledger_path(path.parent, path.name), read_only=True) as ledger:
            attempts, planned = ledger.attempts(first, count), sum(ledger.counts().values())
    except ProofboxError:
        attempts, planned = [], 0
    for each in attempts:
        rows.append(
            AttemptRow(
                id=each.id,
                mission=each.mission,
                replicate=each.replicate,
                path=each.path,
                outcome="checking",
                claimed="",
                reason="",
                strategy="",
                infra="",
                parent=each.parent,
                number=each.number,
                replaced=False,
            )
        )
    return RunView(path.name, os.path.lexists(path / INDEX), True, tuple(rows), planned, None, None)


def is_small(path: Path) -> bool:
    """Return whether a run has few enough attempts to be read within a moment."""
    try:
        return len(os.listdir(path / "attempts")) <= SMALL_RUN
    except OSError:
        return True


def run_mark(path: Path) -> object:
    """Return a value that changes when the run progresses or dies: its index, its ledger with its log, its state."""
    ledger = ledger_path(path.parent, path.name)
    state = "" if os.path.lexists(path / INDEX) else describe(str(path)).state
    return state, files_mark(path / INDEX, path / "attempts", ledger, Path(f"{ledger}-wal"))


def evidence_mark(path: Path) -> object:
    """Return a value that changes when the run does, and once it is committed, when any of its files does."""
    return run_mark(path), tree_mark(path) if os.path.lexists(path / INDEX) else None


def files_mark(*places: Path) -> tuple[int, ...]:
    """Return a value that changes when one of the files does. Empty files do not count: readers of a ledger create
    and remove an empty log."""
    found: list[int] = []
    for each in places:
        try:
            info = os.lstat(each)
            found += [info.st_ino, info.st_size, info.st_mtime_ns] if info.st_size else [0]
        except OSError:
            found.append(0)
    return tuple(found)
