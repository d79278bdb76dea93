"""`doctor`: measure what the sandboxes on this machine enforce, with the conformance suite."""

from __future__ import annotations

import platform
import shlex
import time
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec

from proofbox import __version__
from proofbox.cli import flags
from proofbox.cli.commands.agents.runtime import RuntimeFacts, runtimes
from proofbox.cli.output import Document, ErrorBody, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import passing_line, watched
from proofbox.config.settings import Settings, load
from proofbox.core.clock import SystemClock, isoformat
from proofbox.core.dirs import state_dir
from proofbox.core.files.atomic import write_document
from proofbox.core.text import printable
from proofbox.errors import ChecksFailed, ProviderUnavailable, SandboxError
from proofbox.lab.run.limiter import ClosedGate, closed_gates
from proofbox.lab.run.retention import RetentionRules, survey
from proofbox.sandbox.conformance import CHECKS, CheckResult, Report, run_conformance
from proofbox.sandbox.contract import Diagnostic, Policy
from proofbox.sandbox.providers import PROVIDERS, provider_named
from proofbox.sandbox.selection import diagnose, trial_project
from proofbox.sandbox.service import Sandboxes

# One check of each kind, for `--quick`.
QUICK = (
    "commands.exit-codes",
    "killing.timeout-daemon",
    "network.tcp",
    "filesystem.read-only-host",
    "reach.outside-by-path",
)
LATENCY_SAMPLES = 20


class ProviderReport(msgspec.Struct, frozen=True):
    works: Diagnostic
    """Whether it works here, as tested by starting it, or why not."""
    exec_ms: float | None
    """The median time to run `true` in a session, in milliseconds."""
    report: Report | None
    """The results of its checks; null: it does not work here."""


class DoctorDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.doctor/1"
    host: str
    kernel: str
    """The kernel release, as in `uname -r`."""
    version: str
    measured_at: str
    quick: bool
    """Whether only a few checks were run. Such a result is not stored."""
    providers: dict[str, ProviderReport]
    """The reports by provider name: all providers, or the requested one."""
    runtimes: tuple[RuntimeFacts, ...]
    """The agent runtimes, and whether each works with the current settings."""
    closed: tuple[ClosedGate, ...]
    """The model credentials that a rate limit currently blocks for all runs."""
    could_free: int
    """Bytes that `proofbox gc` would free: leftovers of killed runs and ended sessions, and caches of old versions."""
    error: ErrorBody | None = None


def doctor(
    *,
    provider: flags.Provider = None,
    quick: Annotated[bool, Parameter(name="--quick", help="Run only a few checks.")] = False,
    image: flags.Image = None,
    runtime: flags.Runtime = None,
    json: flags.Json = False,
) -> int:
    """Check every sandbox on this machine by attacking it, and show what each enforces and what to fix.

    Also list the agent runtimes that can be used here; `runtime check` tests one of them.

    Exit code 1 if a working provider fails a check, or the requested one does not work. The result is stored and
    referenced by evidence.

    For example:
      proofbox doctor
      proofbox doctor --provider bubblewrap --quick --json
    """
    configured = load(Path().resolve())
    settings = Settings(image=image or configured.image, runtime=runtime or configured.runtime)
    names = [provider_named(provider).name] if provider is not None else list(PROVIDERS)
    reports = {name: _examine(name, settings, quick, progress=watched(as_json=json)) for name in names}
    failed = [name for name, found in reports.items() if found.report is not None and not found.report.ok]
    error: SandboxError | None = None
    if failed:
        error = ChecksFailed(f"checks failed in {', '.join(failed)}", op="doctor")
    elif provider is not None and not (works := reports[names[0]].works).available:
        error = ProviderUnavailable(works.reason, op="doctor", fix_hints=works.fix_hints)
    document = DoctorDocument(
        ok=error is None,
        host=platform.node(),
        kernel=platform.release(),
        version=__version__,
        measured_at=isoformat(SystemClock().now()),
        quick=quick,
        providers=reports,
        runtimes=runtimes(Path()),
        closed=closed_gates(SystemClock().now()),
        could_free=sum(item.bytes for item in survey(Path("out"), RetentionRules(), SystemClock().now()) if item.free),
        error=ErrorBody.of(error) if error else None,
    )
    if not quick:
        write_document(state_dir() / "doctor.json", msgspec.json.encode(document))
    show(document, lambda: _text(document), as_json=json)
    return 1 if error else 0


def _examine(name: str, settings: Settings, quick: bool, progress: bool) -> ProviderReport:
    provider = provider_named(name)
    own = settings if name == "docker" else Settings()
    works = diagnose(provider, Policy(image=own.image, runtime=own.runtime))
    if not works.available:
        return ProviderReport(works, None, None)
    total = len(QUICK) if quick else len(CHECKS)
    done: list[CheckResult] = []

    with passing_line(shown=progress) as say:

        def on_result(result: CheckResult) -> None:
            done.append(result)
            say(f"{name}: {len(done)}/{total} {result.check}")

        report = run_conformance(name, only=QUICK if quick else None, on_result=on_result, settings=own)
    return ProviderReport(works, _latency(name, own), report)


def _latency(name: str, settings: Settings) -> float:
    times = []
    with (
        trial_project(provider_named(name)) as project,
        Sandboxes(project, settings=settings) as boxes,
        boxes.start_session(provider=name) as session,
    ):
        for _ in range(LATENCY_SAMPLES):
            began = time.perf_counter()
            session.exec(["true"])
            times.append((time.perf_counter() - began) * 1000)
    return round(median(times), 3)


def _text(document: DoctorDocument) -> str:
    rows = [("PROVIDER", "WORKS", "ISOLATION", "CHECKS PASSED", "NOT CLAIMED", "NOT CHECKED", "EXEC", "KILL")]
    notes: list[str] = []
    for name, found in document.providers.items():
        report = found.report
        if report is None:
            rows.append((name, "no", found.works.isolation.value, "", "", "", "", ""))
            notes.append(f"{name}: {found.works.reason}")
            if platform.system() in provider_named(name).systems:
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
        notes += [f"{name}: FAILED {result.check}: {result.detail}" for result in failed]
        notes += [f"{name}: {what} is not enforced: {why}" for what, why in report.enforcement.gaps.items()]
    return columns(rows) + "\n\n" + printable("\n".join(notes)) + "\n\n" + _rest(document)


def _rest(document: DoctorDocument) -> str:
    return _runtimes(document.runtimes) + _closed(document.closed) + _gc(document)


def _closed(gates: tuple[ClosedGate, ...]) -> str:
    hint = "fix: wait, or if the limit no longer applies: rm"
    return "".join(printable(f"\n\n{gate}\n  {hint} {shlex.quote(gate.file)}") for gate in gates)


def _gc(document: DoctorDocument) -> str:
    return f"\n\n`proofbox gc` would free {document.could_free / 1e6:.1f} MB" if document.could_free else ""


def _runtimes(found: tuple[RuntimeFacts, ...]) -> str:
    rows = [("RUNTIME", "FOUND", "VERSION", "COMPATIBLE", "MISSING")]
    for each in found:
        missing = "; ".join([each.reason, *each.fix_hints[:1]]) if each.reason else ""
        rows.append(
            (each.strategy, _yes(each.available), each.version, _yes(each.available and each.compatible), missing)
        )
    return columns(rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
