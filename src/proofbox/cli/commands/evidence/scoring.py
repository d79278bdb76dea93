"""`validate`, `report` and `gc`: check evidence for scoring, show its metrics, and delete old runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.core.clock import SystemClock
from proofbox.core.text import printable
from proofbox.core.words import counted
from proofbox.errors import EvidenceIncomplete, NotFoundError, NotFreed, UsageError
from proofbox.evidence.bundle.listing import notes_on_latest
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.validation import attempts_in, notes_on
from proofbox.lab.reports.validation import validate as validate_bundle
from proofbox.lab.run import retention

BundlePath = Annotated[Path, Parameter(help="A run's directory, an attempt's, or an --out directory.")]
Strict = Annotated[
    bool,
    Parameter(
        name="--strict",
        help="Attempts with infrastructure failures must be complete as well, unless another attempt replaced them.",
    ),
]
DAY = 86400.0


class ValidateDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.validate/1"
    run_id: str
    attempts: int
    findings: tuple[EvidenceFinding, ...]
    notes: tuple[str, ...]
    """Remarks that are not findings: newer incomplete runs, and attempts that were replaced."""
    error: ErrorBody | None = None


class ReportDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.report/1"
    run_id: str
    reports: tuple[dict[str, Any], ...]
    """The `proofbox.attempt_report/1` of each attempt that has one and whose bundle did not fail."""
    findings: tuple[EvidenceFinding, ...]
    notes: tuple[str, ...]
    """Remarks that are not findings: newer incomplete runs, and attempts that were replaced."""
    error: ErrorBody | None = None


class RunGcDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.gc/1"
    dry_run: bool
    """Whether this was a dry run, which deletes nothing."""
    freed: int
    """Bytes freed, or that a real run would free."""
    items: tuple[retention.RetentionItem, ...]
    """Everything examined, including items that are kept; runs oldest first."""
    error: ErrorBody | None = None


def validate(path: BundlePath = Path("out"), *, strict: Strict = False, json: flags.Json = False) -> int:
    """Check that the evidence of attempts is complete and consistent. Exit 1 on any finding.

    For example:
      proofbox validate out --strict
    """
    bundle = load_bundle(path)
    found = tuple(validate_bundle(bundle, strict=strict))
    error = _incomplete(found)
    document = ValidateDocument(
        ok=not found,
        run_id=bundle.run_id,
        attempts=len(attempts_in(bundle)),
        findings=found,
        notes=_notes(path, bundle),
        error=error,
    )
    valid = "" if found else f"valid: {counted(document.attempts, 'attempt')}"
    show(document, lambda: _lines(valid, _findings(found), document.notes), as_json=json)
    return 1 if found else 0


def report(path: BundlePath = Path("out"), *, strict: Strict = False, json: flags.Json = False) -> int:
    """Show the metrics of attempts (calls, failures, retries, durations, tokens), only from verified evidence.

    With --strict, exit 1 if the evidence is incomplete or inconsistent.

    For example:
      proofbox report out --strict --json
    """
    bundle = load_bundle(path)
    attempts = attempts_in(bundle)
    reports = tuple(
        inner.read_json(artifacts.REPORT)
        for inner in attempts.values()
        if artifacts.REPORT in inner.artifacts and inner.index.status != "failed"
    )
    found = tuple(validate_bundle(bundle, strict=True)) if strict else ()
    document = ReportDocument(
        ok=not found,
        run_id=bundle.run_id,
        reports=reports,
        findings=found,
        notes=_notes(path, bundle),
        error=_incomplete(found),
    )
    rows: list[tuple[str, ...]] = [("ATTEMPT", "CLAIMED", "VERIFIED", "CALLS", "FAILED", "P50", "P95", "TOKENS")]
    for each in reports:
        spent = [used["input_tokens"] + used["output_tokens"] for used in each["tokens"].values()]
        times = each.get("duration_ms") or {}
        cells = (times.get("p50"), times.get("p95"))
        rows.append(
            (
                each["attempt_id"],
                each["claimed"],
                each["verified"],
                str(each.get("tool_calls", "-")),
                str(sum(each.get("tool_failures", {}).values())),
                *("-" if cell is None else f"{cell:.0f} ms" for cell in cells),
                str(max(spent)) if spent else "-",
            )
        )
    show(document, lambda: _lines(columns(rows), _findings(found), document.notes), as_json=json)
    return 1 if found else 0


def gc(
    out: Annotated[Path | None, Parameter(help="An --out directory. Default: out, if it exists.")] = None,
    *,
    older_than: Annotated[float | None, Parameter(name="--older-than", help="Delete runs older than N days.")] = None,
    max_size: Annotated[
        int | None, Parameter(name="--max-size", help="Keep the newest runs up to N MB in total.")
    ] = None,
    pin: Annotated[str | None, Parameter(name="--pin", help="Never delete this run.")] = None,
    unpin: Annotated[str | None, Parameter(name="--unpin", help="Allow deleting this run again.")] = None,
    include_promoted: Annotated[bool, Parameter(name="--include-promoted", help="Also delete promoted runs.")] = False,
    include_uncommitted: Annotated[
        bool, Parameter(name="--include-uncommitted", help="Also delete runs that were never committed.")
    ] = False,
    dry_run: Annotated[bool, Parameter(name="--dry-run", help="Only show what would be deleted.")] = False,
    json: flags.Json = False,
) -> int:
    """Delete old runs. Without a rule, only delete leftovers of killed processes and ended sessions.

    Exit 1 if something could not be deleted.

    For example:
      proofbox gc out --older-than 30 --dry-run
      proofbox gc out --pin run-01…
    """
    if any(value is not None and not 0 <= value < 2**40 for value in (older_than, max_size)):
        raise UsageError(
            "--older-than or --max-size is out of range", op="gc", fix_hints=["give a number of days, or of MB"]
        )
    if out is not None and not out.is_dir():
        raise NotFoundError(f"{out} is not a directory", op="gc", fix_hints=["name the --out directory of your runs"])
    out = Path("out") if out is None else out
    for name, wanted in ((pin, True), (unpin, False)):
        if name is not None:
            _pin(out, name, wanted)
    rules = retention.RetentionRules(
        older_than=None if older_than is None else older_than * DAY,
        max_bytes=None if max_size is None else max_size << 20,
        include_promoted=include_promoted,
        include_uncommitted=include_uncommitted,
    )
    items = tuple(retention.survey(out, rules, SystemClock().now()))
    freed = sum(item.bytes for item in items if item.free)
    if not dry_run:
        freed, items = retention.collect(items)
    error = _not_freed(items)
    what = "would free" if dry_run else "freed"

    def text() -> str:
        rows = [
            (item.kind, f"{item.bytes / 1e6:.1f} MB", "delete" if item.free else "keep", item.reason, item.path)
            for item in items
        ]
        table = columns([("KIND", "SIZE", "", "WHY", "PATH"), *rows]) + "\n" if rows else ""
        left = "".join(f"not deleted: {printable(item.left)}\n" for item in items if item.left)
        return f"{table}{left}{what} {freed / 1e6:.1f} MB"

    show(RunGcDocument(dry_run=dry_run, freed=freed, items=items, error=error), text, as_json=json)
    return 1 if error else 0


def _notes(path: Path, bundle: Bundle) -> tuple[str, ...]:
    named, *newer = notes_on_latest(path, bundle.path) or [""]
    return (*((named, *newer) if newer else ()), *notes_on(bundle))


def _lines(first: str, findings: str, notes: Sequence[str]) -> str:
    lines = [printable(f"note: {note}").replace("\n", "\\n") for note in notes]
    return "\n".join(filter(None, [first, findings, *lines]))


def _pin(out: Path, run_id: str, wanted: bool) -> None:
    if not (out / run_id).is_dir() or "/" in run_id:
        raise UsageError(f"there is no run {run_id[:80]!r} in {out}", op="gc", fix_hints=["proofbox bundle list"])
    place = out / f"{run_id}{retention.PIN_SUFFIX}"
    if wanted:
        place.touch()
    else:
        place.unlink(missing_ok=True)


def _not_freed(items: tuple[retention.RetentionItem, ...]) -> ErrorBody | None:
    left = [item.left for item in items if item.left]
    if not left:
        return None
    error = NotFreed(f"{counted(len(left), 'item')} could not be deleted, the first: {left[0]}", op="gc")
    return ErrorBody.of(error)


def _incomplete(found: tuple[EvidenceFinding, ...]) -> ErrorBody | None:
    if not found:
        return None
    error = EvidenceIncomplete(
        f"{counted(len(found), 'finding')}, the first: {found[0].code} in {found[0].path}", op="validate"
    )
    return ErrorBody.of(error)


def _findings(found: tuple[EvidenceFinding, ...]) -> str:
    return printable("\n".join(f"{each.code}: {each.path}: {each.detail}" for each in found))
