"""`doctor`: measure what the sandboxes on this machine enforce, with the conformance suite."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import columns, show
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import passing_line, watched
from proofbox.core.text import printable

if TYPE_CHECKING:
    from proofbox.agents.runtimes.listing import RuntimeFacts
    from proofbox.lab.doctor import DoctorReport, PlanResult
    from proofbox.lab.run.limiter import PausedCredential


def doctor(
    *,
    provider: Annotated[
        str | None,
        Parameter(name="--provider", help="Check only this one: bubblewrap, docker, vm, off, apple-vm. Default: all."),
    ] = None,
    quick: Annotated[bool, Parameter(name="--quick", help="Run only a few checks.")] = False,
    deep: Annotated[
        bool, Parameter(name="--deep", help="Also run the built-in plans of the providers that work here.")
    ] = False,
    image: flags.Image = None,
    runtime: flags.Runtime = None,
    report: Annotated[
        Path | None, Parameter(name="--report", help="Also write the result as JSON to this file.")
    ] = None,
    json: flags.Json = False,
) -> int:
    """Check every sandbox on this machine by attacking it, and show what each enforces and what to fix.

    Also list the agent runtimes that can be used here; `runtime check` tests one of them.

    Exit code 1 if a working provider fails a check, or the requested one does not work. The result is stored and
    referenced by evidence.

    For example:
      proofbox doctor
      proofbox doctor --provider bubblewrap --quick --json
      proofbox doctor --deep
      proofbox doctor --provider apple-vm --report apple-vm.json
    """
    from proofbox.core.files.atomic import write_document
    from proofbox.errors import UsageError
    from proofbox.lab.doctor import doctor as run_doctor

    if report is not None and not report.parent.is_dir():  # not after minutes of checks
        raise UsageError(
            f"{report} can't be written: its directory does not exist",
            op="doctor",
            fix_hints=[f"mkdir -p {shlex.quote(str(report.parent))}"],
        )
    with passing_line(shown=watched(as_json=json)) as show_line:
        found = run_doctor(
            provider=provider,
            quick=quick,
            deep=deep,
            image=image,
            runtime=runtime,
            on_check=lambda done: show_line(f"{done.provider}: {done.number}/{done.total} {done.result.check}"),
            on_plan=lambda name, plan: show_line(f"{name}: plan {plan}"),
        )
    if report is not None:
        write_document(report, msgspec.json.encode(found) + b"\n")
    show(found, lambda: _text(found), as_json=json)
    return 0 if found.ok else 1


def _text(document: DoctorReport) -> str:
    from proofbox.sandbox.providers import provider_named

    rows = [("PROVIDER", "WORKS", "ISOLATION", "CHECKS PASSED", "NOT CLAIMED", "NOT CHECKED", "EXEC", "KILL")]
    notes: list[str] = []
    for name, found in document.providers.items():
        report = found.report
        if report is None:
            rows.append((name, "no", found.works.isolation.value, "", "", "", "", ""))
            notes.append(f"{name}: {found.works.reason}")
            if os.uname().sysname in provider_named(name).systems:
                notes += [f"  fix: {hint}" for hint in found.works.fix_hints]
            continue
        passed, failed = len(report.of("passed")), report.of("failed")
        counts = (
            f"{passed} of {passed + len(failed)}",
            str(len(report.of("not_applicable"))),
            str(len(report.of("not_checked"))),
        )
        latency = f"{found.exec_ms:.1f} ms"
        rows.append((name, "yes", found.works.isolation.value, *counts, latency, report.enforcement.kill_tree))
        notes += [f"{name}: {found.works.reason}"] if found.works.reason else []
        notes += [f"{name}: FAILED {result.check}: {result.detail}" for result in failed]
        notes += [line for plan in found.plans for line in _plan(name, plan)]
        gaps: dict[str, list[str]] = {}
        for what, why in report.enforcement.gaps.items():
            gaps.setdefault(why, []).append(what)
        notes += [f"{name}: not enforced: {', '.join(parts)} ({why})" for why, parts in gaps.items()]
    return columns(rows) + "\n\n" + printable("\n".join(notes)) + "\n\n" + _rest(document)


def _plan(name: str, plan: PlanResult) -> list[str]:
    if plan.problem:
        return [f"{name}: plan {plan.plan_id} FAILED: {plan.problem}"]
    wrong = [f"  {each.profile}/{each.probe_id}: {each.mismatch}: {each.detail}" for each in plan.mismatches]
    found = f"FAILED: {len(wrong)} of {plan.probes} probes differ" if wrong else f"{plan.probes} probes as expected"
    return [f"{name}: plan {plan.plan_id}: {found}", *wrong]


def _rest(document: DoctorReport) -> str:
    from proofbox.cli.health import health_table

    health = health_table([each.health for each in document.runtimes])
    return (
        _runtimes(document.runtimes)
        + (f"\n\n{health}" if health else "")
        + _closed(document.closed)
        + _campaigns(document)
        + _images(document)
        + _gc(document)
    )


def _closed(gates: tuple[PausedCredential, ...]) -> str:
    hint = "fix: wait, or if the limit no longer applies: rm"
    return "".join(printable(f"\n\n{gate}\n  {hint} {shlex.quote(gate.file)}") for gate in gates)


def _campaigns(document: DoctorReport) -> str:
    lines = []
    for each in document.campaigns:
        lines.append(f"\n\ncampaign {each.campaign} in {each.out}: {each.state}")
        if each.state == "interrupted":
            lines.append(f"\n  resume with: proofbox campaign resume {shlex.quote(each.out)}")
    return printable("".join(lines))


def _images(document: DoctorReport) -> str:
    rows = [(f"{each.bytes / 1e6:.1f} MB", each.reason) for each in document.images]
    return "\n\n" + columns([("SIZE", "IMAGES, KERNELS AND TEMPLATES"), *rows]) if rows else ""


def _gc(document: DoctorReport) -> str:
    return f"\n\n`proofbox gc` would free {document.could_free / 1e6:.1f} MB" if document.could_free else ""


def _runtimes(found: tuple[RuntimeFacts, ...]) -> str:
    rows = [("RUNTIME", "FOUND", "VERSION", "COMPATIBLE", "MISSING")]
    for each in found:
        missing = "; ".join([each.reason, *each.fix_hints[:1]]) if each.reason else ""
        found_here = each.available or bool(each.version)  # one that lacks only its key or its model is found
        compatible = _yes(each.compatible) if found_here else "-"
        rows.append((each.strategy, _yes(found_here), each.version, compatible, missing))
    return columns(rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
