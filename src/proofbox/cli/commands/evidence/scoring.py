"""`validate`, `report` and `gc`: whether evidence can be scored, what it scores, and what of it may go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, columns, show
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
        negative="",
        help="Attempts that the machinery failed must be whole, too, unless another was made in their place.",
    ),
]
DAY = 86400.0


class ValidateDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.validate/1"
    run_id: str
    attempts: int
    findings: tuple[EvidenceFinding, ...]
    notes: tuple[str, ...]
    """Worth knowing, and no findings: newer runs that are not whole, attempts that others took the place of."""
    error: ErrorBody | None = None


class ReportDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.report/1"
    run_id: str
    reports: tuple[dict[str, Any], ...]
    """The `proofbox.attempt_report/1` of each attempt that has one, and whose bundle did not fail."""
    findings: tuple[EvidenceFinding, ...]
    notes: tuple[str, ...]
    """Worth knowing, and no findings: newer runs that are not whole, attempts that others took the place of."""
    error: ErrorBody | None = None


class RunGcDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.gc/1"
    dry_run: bool
    """Nothing was taken away."""
    freed: int
    """Bytes; of a dry run, those that would be."""
    items: tuple[retention.RetentionItem, ...]
    """All that was looked at, also what stays; runs oldest first."""
    error: ErrorBody | None = None


def validate(path: BundlePath = Path("out"), *, strict: Strict = False, json: flags.Json = False) -> int:
    """Check that the evidence of attempts is whole and does not contradict itself. Exit 1 on any finding.

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
    """Show the figures of attempts: calls, failures, retries, durations, tokens. From verified evidence alone.

    With --strict, exit 1 where the evidence is not whole.

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
    out: Annotated[Path | None, Parameter(help="An --out directory. Default: out, if it is there.")] = None,
    *,
    older_than: Annotated[
        float | None, Parameter(name="--older-than", help="Free runs older than so many days.")
    ] = None,
    max_size: Annotated[
        int | None, Parameter(name="--max-size", help="Keep the newest runs up to so many MB in all.")
    ] = None,
    pin: Annotated[str | None, Parameter(name="--pin", help="Keep this run whatever comes.")] = None,
    unpin: Annotated[str | None, Parameter(name="--unpin", help="Let it go with the others again.")] = None,
    include_promoted: Annotated[
        bool, Parameter(name="--include-promoted", negative="", help="Promoted runs may go, too.")
    ] = False,
    include_uncommitted: Annotated[
        bool, Parameter(name="--include-uncommitted", negative="", help="Runs that were never committed may go, too.")
    ] = False,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="", help="Only say what would go.")] = False,
    json: flags.Json = False,
) -> int:
    """Free what old runs take on the disk. Without a rule only what killed processes and ended sessions left is freed.

    Exit 1 where something that was to go is still there.

    For example:
      proofbox gc out --older-than 30 --dry-run
      proofbox gc out --pin run-01…
    """
    if any(value is not None and not 0 <= value < 2**40 for value in (older_than, max_size)):
        raise UsageError("an age or a size that makes no sense", op="gc", fix_hints=["give a number of days, or of MB"])
    if out is not None and not out.is_dir():
        raise NotFoundError(f"{out} is no directory", op="gc", fix_hints=["name the --out directory of your runs"])
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
            (item.kind, f"{item.bytes / 1e6:.1f} MB", "goes" if item.free else "stays", item.reason, item.path)
            for item in items
        ]
        table = columns([("KIND", "SIZE", "", "WHY", "PATH"), *rows]) + "\n" if rows else ""
        left = "".join(f"still there: {printable(item.left)}\n" for item in items if item.left)
        return f"{table}{left}{what} {freed / 1e6:.1f} MB"

    show(RunGcDocument(dry_run=dry_run, freed=freed, items=items, error=error), text, as_json=json)
    return 1 if error else 0


def _notes(asked: Path, bundle: Bundle) -> tuple[str, ...]:
    named, *newer = notes_on_latest(asked, bundle.path) or [""]
    return (*((named, *newer) if newer else ()), *notes_on(bundle))


def _lines(first: str, findings: str, notes: Sequence[str]) -> str:
    said = [printable(f"note: {note}").replace("\n", "\\n") for note in notes]
    return "\n".join(filter(None, [first, findings, *said]))


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
    error = NotFreed(f"{counted(len(left), 'thing')} could not be removed, the first: {left[0]}", op="gc")
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
