"""Runs a campaign in one call: preflight, register, run each flow, commit the results.

Each flow is one run of the missions, conducted as `suite run` does. The state of a campaign is derived from its
manifest, the runs' ledgers and their bundles, so it can be resumed after any crash.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from proofbox.config.engine import EngineSettings, chosen_engine
from proofbox.config.settings import load
from proofbox.core.files.removal import remove_tree
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import RunInterrupted, RunUnknown, UsageError
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.verify.pinned_bundles import RUNS
from proofbox.lab.campaign.history import remember, require_known
from proofbox.lab.campaign.layout import MANIFEST, flow_out
from proofbox.lab.campaign.preflight import plan_flow, preflight, preflight_remaining
from proofbox.lab.campaign.reading import Campaign, read_campaign
from proofbox.lab.campaign.registration import (
    CampaignManifest,
    FlowRun,
    describe,
    exclusive,
    read_manifest,
    refuse_existing,
    register,
    require_consent,
    require_registered,
    require_unchanged,
)
from proofbox.lab.campaign.spec import SCHEMA as CAMPAIGN_SCHEMA
from proofbox.lab.reports.campaigns.loading import REPORT, CommittedRuns, load_campaign, stored_report
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.conductor import create_run
from proofbox.lab.run.events import OnSuiteEvent
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import WORK, ledger_path, read_plan
from proofbox.lab.run.running import conduct_run, in_thread

SPEC: Final = "campaign.toml"
_EXPECTED: Final = (SPEC, MANIFEST, REPORT, RUNS)
_Path = str | os.PathLike[str]


def run_campaign(
    spec: _Path,
    *,
    out: _Path = "out",
    engine: str | None = None,
    per_node: int | None = None,
    resources: Sequence[str] = (),
    trust: bool = False,
    on_event: OnSuiteEvent | None = None,
    stop: threading.Event | None = None,
) -> CampaignReport:
    """Register a campaign, run every flow on its missions, and return the report.

    For example:

        report = proofbox.run_campaign("campaign.toml", out="out")
        for each in report.comparisons:
            print(each.first, each.verdict, "than", each.second, each.difference, each.low, each.high)

    Everything that prevents a flow from running raises `CampaignNotReady` before anything is written. The campaign's
    file and everything that it refers to are hashed before the first attempt; `resume_campaign` refuses other files.
    Missions that fail do not raise. Failed gates and attempts without a score do not either: the report's `ok` is then
    False and its `error` says why.

    `trust` consents to everything the campaign asks for beyond the user's settings. `engine`, `per_node`, `resources`,
    `on_event` and `stop` are as in `run_suite`. After an exception or an interrupt, `resume_campaign` runs the
    missing attempts.
    """
    chosen = chosen_engine(load(Path().resolve()).engine, engine, per_node, resources)
    return _start(Path(spec), out, None, chosen, trust, on_event, stop)


def run_canary(
    spec: _Path,
    *,
    out: _Path = "canary",
    missions: int = 1,
    trust: bool = False,
    on_event: OnSuiteEvent | None = None,
    stop: threading.Event | None = None,
) -> CampaignReport:
    """Run the first missions of a campaign with every flow, as a trial. The results can never be published.

    For example:

        report = proofbox.run_canary("campaign.toml", missions=2)
        print(report.ok, report.error)

    The other keywords are as in `run_campaign`.
    """
    if missions < 1:
        raise UsageError("missions must be at least 1", op="campaign")
    return _start(Path(spec), out, missions, None, trust, on_event, stop)


def _start(
    spec: Path,
    out: _Path,
    canary: int | None,
    engine: EngineSettings | None,
    trust: bool,
    on_event: OnSuiteEvent | None,
    stop: threading.Event | None,
) -> CampaignReport:
    if not os.fspath(out):
        raise UsageError("out is empty", op="campaign")
    campaign, place = read_campaign(spec, first=canary), Path(out)
    kind = ("run",) if canary is None else ("canary", "-n", str(canary))
    words = ("proofbox", "campaign", *kind, str(spec), "--out", os.fspath(out), "--trust")
    require_consent(campaign, trust=trust, command=shlex.join(words))
    preflight(campaign, place, engine=engine)
    place.mkdir(parents=True, exist_ok=True)
    with exclusive(place):
        manifest = describe(campaign, place, canary=canary)
        refuse_existing(place)
        remember(manifest, place)
        register(manifest, place)
        return _conduct(campaign, manifest, place, engine, on_event, stop)


def resume_campaign(
    out: _Path = "out",
    *,
    engine: str | None = None,
    on_event: OnSuiteEvent | None = None,
    stop: threading.Event | None = None,
) -> CampaignReport:
    """Resume a campaign that was interrupted or killed: run the attempts without a result, and no others.

    For example:

        report = proofbox.resume_campaign("out")

    Raises `CampaignChanged` if the campaign's file, a mission, an oracle or another file that it refers to is not the
    registered one, and `CampaignNotReady` if a flow with missing results cannot run here. A campaign that is complete
    is only read. `engine` replaces the one that the campaign was started with.
    """
    place = Path(out)
    manifest = read_manifest(place)
    if (place / manifest.run_id / INDEX).exists():
        return load_campaign(place)
    require_known(manifest, place)
    campaign = read_campaign(Path(manifest.path), first=manifest.canary)
    with exclusive(place):
        require_registered(describe(campaign, place, canary=manifest.canary), manifest)
        planned = _planned_engine(manifest, place)
        remaining = [each.flow for each in manifest.runs if not _has_results(each, place)]
        preflight_remaining(campaign, place, remaining, planned)
        return _conduct(campaign, manifest, place, planned, on_event, stop, resumed_on=engine)


def _conduct(
    campaign: Campaign,
    manifest: CampaignManifest,
    out: Path,
    engine: EngineSettings | None,
    on_event: OnSuiteEvent | None,
    stop: threading.Event | None,
    resumed_on: str | None = None,
) -> CampaignReport:
    stop, expired = stop or threading.Event(), threading.Event()
    limit = campaign.document.campaign.timeout

    def expire() -> None:
        expired.set()
        stop.set()

    timer = threading.Timer(limit or 0.0, expire)
    timer.daemon = True
    if limit is not None:
        timer.start()
    try:
        for run in manifest.runs:  # every run is planned, with copies of its files, before the first attempt
            _ensure_planned(campaign, run, out, engine)
        for run in manifest.runs:
            where = flow_out(out, run.flow)
            conduct_run(where, run.run_id, on_event, stop, engine=resumed_on, resume=resume_hint(out))
        require_unchanged(campaign, manifest, out)
    except RunInterrupted:
        why = f"stopped at its timeout of {limit:g} s" if expired.is_set() else "was interrupted"
        raise RunInterrupted(f"the campaign {why}", op="campaign", fix_hints=[resume_hint(out)]) from None
    finally:
        timer.cancel()
    report = load_campaign(out)
    _commit(manifest, out, report)
    return msgspec.structs.replace(report, committed=True, running=False)


def _has_results(run: FlowRun, out: Path) -> bool:
    """Return whether no attempt of a run is left to be made or retried."""
    path = ledger_path(flow_out(out, run.flow), run.run_id)
    if not path.exists():
        return False
    with Ledger(path, read_only=True) as ledger:
        final = final_attempts(ledger.attempts())
    committed = (flow_out(out, run.flow) / run.run_id / INDEX).exists()
    return committed or all(each.result is not None and each.result.infra is None for each in final)


def _ensure_planned(campaign: Campaign, run: FlowRun, out: Path, engine: EngineSettings | None) -> None:
    place = flow_out(out, run.flow)
    if ledger_path(place, run.run_id).exists():
        return
    remove_tree(place / WORK / run.run_id)  # left by a process that was killed while it planned the run
    create_run(plan_flow(campaign, run.flow, run.run_id, engine), place)


def _planned_engine(manifest: CampaignManifest, out: Path) -> EngineSettings | None:
    """Return the engine that the campaign was started with, from a run that was planned; None if none was."""
    for run in manifest.runs:
        with contextlib.suppress(RunUnknown), Ledger(ledger_path(flow_out(out, run.flow), run.run_id)) as ledger:
            return read_plan(ledger).engine
    return None


def _commit(manifest: CampaignManifest, out: Path, report: CampaignReport) -> None:
    """Commit the campaign's bundle. It names the run of each flow by the digest of its index."""
    for name in _EXPECTED:  # after a kill they are written again
        (out / manifest.run_id / name).unlink(missing_ok=True)
    redactor = Redactor.for_evidence(os.environ, manifest.document.key_names)
    bundle = BundleWriter.take_over(out, manifest.run_id, released=True, expected=_EXPECTED, redactor=redactor)
    try:
        bundle.write_bytes(SPEC, manifest.source.encode(), schema_version=CAMPAIGN_SCHEMA)
        bundle.write_json(MANIFEST, msgspec.to_builtins(manifest))
        bundle.write_json(RUNS, msgspec.to_builtins(CommittedRuns.of(manifest, out)))
        bundle.write_json(REPORT, stored_report(report))
        if not report.results.complete:
            bundle.mark_partial("some attempts were lost to infrastructure failures")
    except BaseException:
        bundle.abort()  # it stays in progress, so that it can be resumed
        raise
    bundle.commit()


def resume_hint(out: Path) -> str:
    """Return how to resume the campaign in a directory."""
    return f"resume with: proofbox campaign resume {shlex.quote(str(out))}"


run_campaign_async = in_thread(
    run_campaign,
    stoppable=True,
    doc="""Run a campaign like `run_campaign`, without blocking the event loop.

    For example:

        report = await proofbox.run_campaign_async("campaign.toml", out="out", on_event=print)

    `on_event` is called in the event loop. If the task is cancelled, the workers are killed before the coroutine ends,
    and the campaign can be resumed.
    """,
)
run_canary_async = in_thread(
    run_canary,
    stoppable=True,
    doc="""Run the first missions of a campaign like `run_canary`, without blocking the event loop.

    For example:

        report = await proofbox.run_canary_async("campaign.toml", missions=2)

    `on_event` and cancellation work as in `run_campaign_async`.
    """,
)
resume_campaign_async = in_thread(
    resume_campaign,
    stoppable=True,
    doc="""Resume a campaign like `resume_campaign`, without blocking the event loop.

    For example:

        report = await proofbox.resume_campaign_async("out")

    `on_event` and cancellation work as in `run_campaign_async`.
    """,
)
load_campaign_async = in_thread(
    load_campaign,
    stoppable=False,
    doc="""Return the results of a campaign like `load_campaign`, without blocking the event loop.

    For example:

        report = await proofbox.load_campaign_async("out")

    Cancelling it has no effect on the campaign.
    """,
)
