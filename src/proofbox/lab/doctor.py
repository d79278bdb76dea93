"""Measures what the sandboxes on this machine enforce, with the conformance suite: what `proofbox doctor` prints."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from proofbox.agents.runtimes.listing import RuntimeFacts, list_runtimes
from proofbox.config.settings import Settings, load
from proofbox.core.clock import SystemClock, isoformat
from proofbox.core.dirs import state_dir
from proofbox.core.files.atomic import write_document
from proofbox.core.results import Document, ErrorBody
from proofbox.errors import ChecksFailed, ProofboxError, ProviderUnavailable, SandboxError, UsageError
from proofbox.evidence.bundle.identity import world
from proofbox.lab.campaign.history import known_campaigns
from proofbox.lab.campaign.retention import survey_campaign
from proofbox.lab.run.limiter import PausedCredential, closed_gates
from proofbox.lab.run.retention import RetentionItem, RetentionRules, survey
from proofbox.probes.run import run_plan
from proofbox.sandbox.conformance import CHECKS, CheckResult, Report, run_conformance
from proofbox.sandbox.contract import Diagnostic, Policy
from proofbox.sandbox.probing.corpus import built_in_plans
from proofbox.sandbox.probing.results import ProbeResult
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
SLOW = frozenset({"vm"})
"""Providers that get only a few checks unless they are named: each check boots a machine."""


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in plan that was run."""

    plan_id: str
    """The plan's id."""
    ok: bool
    """Whether every result is as the plan expects."""
    probes: int
    """The number of results."""
    mismatches: tuple[ProbeResult, ...]
    """The results that differ from the plan and that it does not explain."""
    problem: str
    """Why the plan could not be run; empty if it was."""


class ProviderReport(msgspec.Struct, frozen=True):
    """Whether one provider works here, and what it enforces."""

    works: Diagnostic
    """Whether it works here, as tested by starting it, or why not."""
    exec_ms: float | None
    """The median time to run `true` in a session, in milliseconds."""
    report: Report | None
    """The results of its checks; null: it does not work here."""
    plans: tuple[PlanResult, ...] = ()
    """The plans that `deep` ran."""

    @property
    def ok(self) -> bool:
        """No check failed, and no plan found anything unexpected."""
        return (self.report is None or self.report.ok) and all(plan.ok for plan in self.plans)


class CampaignState(msgspec.Struct, frozen=True):
    """A campaign that is not committed."""

    campaign: str
    """The campaign's id."""
    out: str
    """Its directory."""
    state: str
    """`running`, or `interrupted`: `campaign resume` runs the missing attempts."""


class DoctorReport(Document, frozen=True, kw_only=True):
    """What each sandbox on this machine enforces. `ok`: no working provider failed a check, and the requested one
    works."""

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
    closed: tuple[PausedCredential, ...]
    """The model credentials that a rate limit currently blocks for all runs."""
    campaigns: tuple[CampaignState, ...] = ()
    """The campaigns that were started here and are not committed."""
    images: tuple[RetentionItem, ...] = ()
    """Images, kernels and templates of virtual machines on this machine, and copies of them in the container engine."""
    could_free: int
    """Bytes that `proofbox gc` would free: leftovers of killed runs and ended sessions, and caches of old versions."""
    error: ErrorBody | None = None


class CheckDone(msgspec.Struct, frozen=True):
    """One finished check of a provider, for progress displays."""

    provider: str
    number: int
    """How many checks of this provider have finished."""
    total: int
    result: CheckResult


OnCheck = Callable[[CheckDone], None]
OnPlan = Callable[[str, str], None]
"""Receives a provider and the id of a plan."""


def doctor(
    *,
    provider: str | None = None,
    quick: bool = False,
    deep: bool = False,
    image: str | None = None,
    runtime: str | None = None,
    on_check: OnCheck | None = None,
    on_plan: OnPlan | None = None,
) -> DoctorReport:
    """Check every sandbox on this machine by attacking it, and return what each enforces.

    For example:

        for name, found in proofbox.doctor(quick=True).providers.items():
            print(name, found.works.available, found.works.reason)

    `provider` limits this to one provider. `quick` runs only a few checks; the result of all checks is stored and
    referenced by evidence. `vm` boots a machine for each check, so all of them are run only if it is the provider.
    `deep` also runs the built-in plans of the providers that work. `image` and `runtime` override the project's
    settings. `on_check` receives every finished check, and `on_plan` the provider and the plan before it is run. Failed
    checks do not raise: the result's `ok` is False and its `error` names the providers.
    """
    if quick and deep:
        raise UsageError("quick and deep cannot be combined", op="doctor")
    configured = load(Path().resolve())
    settings = Settings(
        image=image or configured.image, runtime=runtime or configured.runtime, vm_template=configured.vm_template
    )
    names = [provider_named(provider).name] if provider is not None else list(PROVIDERS)
    briefly = SLOW if provider is None else frozenset()
    reports = {name: _examine(name, settings, quick or name in briefly, on_check) for name in names}
    if deep:
        measured = {name: _measure(name, reports[name], settings, on_plan) for name in names if name not in briefly}
        reports |= measured
    failed = [name for name, found in reports.items() if not found.ok]
    error: SandboxError | None = None
    if failed:
        error = ChecksFailed(f"checks failed in {', '.join(failed)}", op="doctor")
    elif provider is not None and not (works := reports[names[0]].works).available:
        error = ProviderUnavailable(works.reason, op="doctor", fix_hints=works.fix_hints)
    now = SystemClock().now()
    kept = list(_garbage(now))
    report = DoctorReport(
        ok=error is None,
        host=platform.node(),
        kernel=platform.release(),
        version=world()["tool"]["version"],
        measured_at=isoformat(now),
        quick=quick,
        providers=reports,
        runtimes=list_runtimes(Path()),
        closed=closed_gates(now),
        campaigns=tuple(
            CampaignState(each.campaign, each.out, each.state)
            for each in known_campaigns()
            if each.state in ("running", "interrupted")
        ),
        images=tuple(item for item in kept if item.kind in ("image", "engine_image")),
        could_free=sum(item.bytes for item in kept if item.free),
        error=ErrorBody.of(error) if error else None,
    )
    if not quick:
        write_document(state_dir() / "doctor.json", msgspec.json.encode(report))
    return report


def _garbage(now: datetime) -> Iterator[RetentionItem]:
    """Yield what `gc` looks at: in the default directory, and in those of all campaigns."""
    rules = RetentionRules()
    yield from survey(Path("out"), rules, now)
    for each in known_campaigns():
        with contextlib.suppress(ProofboxError):  # a damaged campaign is reported by the commands that read it
            yield from survey_campaign(Path(each.out), rules, now)


def _examine(name: str, settings: Settings, quick: bool, on_check: OnCheck | None) -> ProviderReport:
    provider = provider_named(name)
    own = settings if name in ("docker", "apple-vm") else Settings(vm_template=settings.vm_template)
    works = diagnose(provider, Policy(image=own.image, runtime=own.runtime))
    if not works.available:
        return ProviderReport(works, None, None)
    total = len(QUICK) if quick else len(CHECKS)
    done: list[CheckResult] = []

    def on_result(result: CheckResult) -> None:
        done.append(result)
        if on_check is not None:
            on_check(CheckDone(name, len(done), total, result))

    report = run_conformance(name, only=QUICK if quick else None, on_result=on_result, settings=own)
    return ProviderReport(works, _latency(name, own), report)


def _measure(name: str, found: ProviderReport, settings: Settings, on_plan: OnPlan | None) -> ProviderReport:
    """Run the provider's own plan, and the plan of known escapes unless it isolates nothing."""
    own = f"docker-{settings.runtime}" if name == "docker" and settings.runtime else name
    plans = [plan for plan in (own, "hostile") if plan in built_in_plans() and not (name == "off" and plan != own)]
    done = []
    for plan in plans if found.works.available else ():
        if on_plan is not None:
            on_plan(name, plan)
        image = settings.image if name == "docker" else None
        with TemporaryDirectory(prefix="proofbox-doctor-") as out:
            try:
                run = run_plan(plan, out, provider=name, image=image)
            except ProofboxError as error:
                result = PlanResult(plan_id=plan, ok=False, probes=0, mismatches=(), problem=error.message)
            else:
                wrong = tuple(run.unexplained)
                result = PlanResult(plan_id=plan, ok=run.ok, probes=run.summary.probes, mismatches=wrong, problem="")
        done.append(result)
    return msgspec.structs.replace(found, plans=tuple(done))


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
