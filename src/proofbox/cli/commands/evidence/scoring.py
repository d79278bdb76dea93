"""`validate`, `report` and `gc`: check evidence for scoring, show its metrics, and delete old runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.output import columns, show
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted
from proofbox.core.text import one_line, printable

if TYPE_CHECKING:
    from proofbox.lab.garbage import CollectedGarbage
    from proofbox.lab.reports.finding import EvidenceFinding
    from proofbox.lab.reports.scoring import MetricsReport, Validation

BundlePath = Annotated[Path, Parameter(help="A run's directory, an attempt's, or an --out directory.")]
Strict = Annotated[
    bool,
    Parameter(
        name="--strict",
        help="Attempts with infrastructure failures must be complete as well, unless another attempt replaced them.",
    ),
]


def validate(path: BundlePath = Path("out"), *, strict: Strict = False, json: flags.Json = False) -> int:
    """Check that the evidence of attempts is complete and consistent. Exit 1 on any finding.

    For example:
      proofbox validate out --strict
    """
    from proofbox.lab.reports.scoring import validate

    found = validate(path, strict=strict)
    show(found, lambda: _validated(found), as_json=json)
    return 0 if found.ok else 1


def report(
    path: BundlePath = Path("out"),
    *,
    strict: Strict = False,
    html: flags.Html = None,
    json: flags.Json = False,
) -> int:
    """Show the metrics of attempts (calls, failures, retries, durations, tokens), only from verified evidence.

    With --strict, exit 1 if the evidence is incomplete or inconsistent.

    For example:
      proofbox report out --strict --json
      proofbox report out --html report.html
    """
    from proofbox.lab.reports.scoring import report

    found = report(path, strict=strict)
    if html is not None:
        from proofbox.cli.commands.evidence.view import write_html

        write_html(path, html)
    written = "" if html is None else printable(f"\nwritten: {html}")
    show(found, lambda: _metrics(found) + written, as_json=json)
    return 0 if found.ok else 1


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
    engine: Annotated[
        str | None,
        Parameter(name="--engine", help="Also delete what killed workers left on the nodes of ray:HOST:PORT."),
    ] = None,
    json: flags.Json = False,
) -> int:
    """Delete old runs. Without a rule, only delete leftovers of killed processes and ended sessions.

    Exit 1 if something could not be deleted.

    For example:
      proofbox gc out --older-than 30 --dry-run
      proofbox gc out --pin run-01…
      proofbox gc --engine ray:10.0.0.1:6379
    """
    from proofbox.lab.garbage import collect_garbage

    found = collect_garbage(
        out,
        older_than=older_than,
        max_size=max_size,
        pin=pin,
        unpin=unpin,
        include_promoted=include_promoted,
        include_uncommitted=include_uncommitted,
        dry_run=dry_run,
        engine=engine,
    )
    show(found, lambda: _freed(found), as_json=json)
    return 1 if found.error else 0


def _freed(found: CollectedGarbage) -> str:
    rows = [
        (item.kind, f"{item.bytes / 1e6:.1f} MB", "delete" if item.free else "keep", item.reason, item.path)
        for item in found.items
    ]
    table = columns([("KIND", "SIZE", "ACTION", "REASON", "PATH"), *rows]) + "\n" if rows else ""
    left = "".join(f"not deleted: {printable(item.left)}\n" for item in found.items if item.left)
    return f"{table}{left}{'would free' if found.dry_run else 'freed'} {found.freed / 1e6:.1f} MB"


def _validated(found: Validation) -> str:
    valid = f"valid: {counted(found.attempts, 'attempt')}" if found.ok else ""
    return _lines(valid, found.findings, found.notes)


def _metrics(found: MetricsReport) -> str:
    rows: list[tuple[str, ...]] = [("ATTEMPT", "CLAIMED", "VERIFIED", "CALLS", "FAILED", "P50", "P95", "TOKENS")]
    for each in found.reports:
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
    return _lines(columns(rows), found.findings, found.notes)


def _lines(first: str, findings: Sequence[EvidenceFinding], notes: Sequence[str]) -> str:
    lines = [f"{each.code}: {each.path}: {each.detail}" for each in findings] + [f"note: {note}" for note in notes]
    return "\n".join(filter(None, [first, *map(one_line, lines)]))
