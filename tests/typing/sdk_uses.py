"""Uses of the public names as a type checker sees them. Only checked, never run: see test_typing.py.

`type: ignore` marks the uses that must be refused; with `warn_unused_ignores`, accepting one of them is an error.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, assert_type

import proofbox
from proofbox.agents.runtimes.listing import RuntimeFacts
from proofbox.delivery.documents import Delivery, DeliveryPlan
from proofbox.delivery.patch.patchset import PatchChange
from proofbox.delivery.proof import Standing
from proofbox.evidence.bundle.reader import Bundle, UnverifiedBundle
from proofbox.evidence.promotion.emit import Promotion
from proofbox.evidence.verify.verification import Verification
from proofbox.lab.attempt.adhoc.explore import ExploreDocument
from proofbox.lab.attempt.adhoc.request import AttemptFork, AttemptRun
from proofbox.lab.campaign.comparing import CampaignComparison
from proofbox.lab.campaign.linting import CampaignLint
from proofbox.lab.campaign.planning import CampaignPlan
from proofbox.lab.campaign.publishing import PublishCheck
from proofbox.lab.campaign.regrading import CampaignRegrade
from proofbox.lab.doctor import CheckDone, DoctorReport, ProviderReport
from proofbox.lab.examples import NewFiles
from proofbox.lab.garbage import CollectedGarbage
from proofbox.lab.reports.campaigns.results import CampaignReport
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.parity import ParityReport
from proofbox.lab.reports.scoring import MetricsReport, Validation
from proofbox.lab.reports.suite_run import AttemptFacts, Explanation, SuiteRun
from proofbox.lab.reports.suite_status import SuiteStatus
from proofbox.lab.run.events import EventKind, RunStarted, SuiteEvent
from proofbox.lab.run.retention import RetentionItem
from proofbox.lab.suite.linting import SuiteLint
from proofbox.probes.run import PlanRun
from proofbox.sandbox.contract import ExecResult
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.images.pull import PulledImage
from proofbox.sandbox.initialize import Initialized
from proofbox.sandbox.service import Session
from proofbox.workspace.model import Snapshot
from proofbox.workspace.tools.contract import ToolEnvironment
from proofbox.workspace.tools.registry import ToolRegistry
from proofbox.workspace.tools.toolbox import Toolbox


def suites() -> None:
    seen: list[RunStarted | SuiteEvent] = []
    run = proofbox.run_suite("suite.toml", out=Path("out"), isolation="process", on_event=seen.append)
    assert_type(run, SuiteRun)
    assert_type(run.attempts, tuple[AttemptFacts, ...])
    attempt = run.attempts[0]
    assert_type((attempt.attempt_id, attempt.mission_id, attempt.bundle), tuple[str, str, str])
    assert_type(attempt.strategy, str | None)
    assert_type((attempt.claimed, attempt.verified, attempt.infra), tuple[str | None, str | None, str | None])
    assert_type(run.totals.passed, int)
    assert_type(proofbox.resume_suite("out", trust=True, stop=threading.Event()), SuiteRun)
    assert_type(proofbox.load_run(), SuiteRun)
    assert_type(proofbox.suite_status(), SuiteStatus)
    assert_type(proofbox.explain_attempt("answer.1", run=run.bundle), Explanation)

    proofbox.run_suite("suite.toml", commands={"quick": ["my-agent", "--quick"]}, missions=["a*"], tags=("x",))
    proofbox.run_suite("tasks", build=True, settings={"record": "bodies"})
    proofbox.run_suite("suite.toml", concurency=2)  # type: ignore[call-arg]
    proofbox.run_suite("suite.toml", isolation="none")  # type: ignore[arg-type]
    proofbox.run_suite("suite.toml", on_event=int)  # type: ignore[arg-type]
    proofbox.resume_suite("out", concurrency=2)  # type: ignore[call-arg]
    run.ok = True  # type: ignore[misc]


def events(event: RunStarted | SuiteEvent) -> None:
    if isinstance(event, RunStarted):
        assert_type((event.attempts, event.bundle), tuple[int, str])
    else:
        assert_type(event.event, EventKind)
        assert_type(event.activity or "", str)
        if event.event == "finished":  # type: ignore[comparison-overlap]
            pass


async def coroutines() -> None:
    assert_type(await proofbox.run_suite_async("suite.toml", strategies="scripted", on_event=events), SuiteRun)
    assert_type(await proofbox.resume_suite_async(trust=True), SuiteRun)
    assert_type(await proofbox.load_run_async("out"), SuiteRun)

    await proofbox.run_suite_async("suite.toml", concurency=2)  # type: ignore[call-arg]
    await proofbox.load_run_async("out", trust=True)  # type: ignore[call-arg]


def evidence() -> None:
    found = proofbox.validate("out", strict=True)
    assert_type(found, Validation)
    assert_type(found.findings, tuple[EvidenceFinding, ...])
    parity = proofbox.compare_parity("process-out", Path("native-out"))
    assert_type(parity, ParityReport)
    assert_type(parity.differences[0].what, str)
    metrics = proofbox.report(Path("out"))
    assert_type(metrics, MetricsReport)
    assert_type(metrics.reports, tuple[dict[str, Any], ...])
    assert_type(proofbox.load_bundle("out"), Bundle)
    assert_type(proofbox.open_bundle_unverified("out"), UnverifiedBundle)
    assert_type(proofbox.verify("out"), Verification)
    assert_type(proofbox.emit_promotion("out", accept=["bundle_repaired"], sign=Path("key")), Promotion)
    assert_type(proofbox.emit_promotion(proofbox.load_bundle("out")).reasons, tuple[str, ...])

    proofbox.emit_promotion("out", validate=False)  # type: ignore[call-arg]


def upkeep() -> None:
    def show(done: CheckDone) -> None:
        assert_type((done.provider, done.number, done.total), tuple[str, int, int])

    found = proofbox.doctor(provider="bubblewrap", quick=True, on_check=show)
    assert_type(found, DoctorReport)
    assert_type(found.providers, dict[str, ProviderReport])
    assert_type(found.runtimes, tuple[RuntimeFacts, ...])
    freed = proofbox.collect_garbage("out", older_than=30, dry_run=True)
    assert_type(freed, CollectedGarbage)
    assert_type(freed.items, tuple[RetentionItem, ...])


def deliveries(backend: proofbox.BackendSettings) -> None:
    plan = proofbox.plan_delivery("build", app_id="shop", backend=backend)
    assert_type(plan, DeliveryPlan)
    assert_type(plan.changes, tuple[PatchChange, ...])
    made = proofbox.deliver_repository("build", app_id="shop", packet="run-1.promotion.json", key="release.pub")
    assert_type(made, Delivery)
    assert_type(proofbox.deliver_pull_request("build", app_id="shop", title="Add a cart"), Delivery)
    assert_type(made.proof.standing, Standing)

    proofbox.plan_delivery("build")  # type: ignore[call-arg]
    proofbox.plan_delivery("build", app_id="shop", allow_unpromoted=True)  # type: ignore[call-arg]


def boxes_and_workspaces() -> None:
    with proofbox.Sandboxes(project_root=".") as boxes:
        assert_type(boxes.exec(["true"], timeout=60), ExecResult)
        with boxes.start_session(network="none") as session:
            assert_type(session, Session)
        boxes.exec(["true"], timout=60)  # type: ignore[call-arg]
    with proofbox.Workspace.open(".") as workspace:
        assert_type(workspace.snapshot("before"), Snapshot)
        toolbox_of(workspace)
    try:
        proofbox.nonsense()  # type: ignore[attr-defined]
    except proofbox.ProofboxError as error:
        assert_type((error.code, error.message), tuple[str, str])


def toolbox_of(workspace: proofbox.Workspace) -> None:
    with proofbox.open_toolbox(workspace.path, capabilities="agent") as toolbox:
        assert_type(toolbox, Toolbox)
        assert_type(toolbox.registry.answer("run_command", {"command": "ls"}).text, str)
        proofbox.open_toolbox(".", capability="agent")  # type: ignore[call-arg]


def tools(environment: ToolEnvironment) -> None:
    assert_type(proofbox.create_tool_registry(environment, only=["read_file"]), ToolRegistry)


def projects_and_images() -> None:
    assert_type(proofbox.initialize(".", proofbox.Settings(network="none"), force=True), Initialized)
    assert_type(proofbox.list_images(), list[Image])
    assert_type(proofbox.resolve_default_image("x86_64"), Image)
    assert_type(proofbox.pull_image("debian", update=True), PulledImage)
    assert_type(proofbox.build_image("debian-12"), PulledImage)
    assert_type(proofbox.import_image("rootfs.tar", "tools"), Image)


def attempts_by_hand() -> None:
    assert_type(proofbox.run_attempt("say hello", "project", strategies="scripted"), AttemptRun)
    assert_type(proofbox.fork_attempt("t1", 2, "retry", prompt="go on", trust=True), AttemptFork)
    assert_type(proofbox.diff_attempt("t1", 2), str)
    assert_type(proofbox.explore_attempt("t1", 2, "o", prompt="go", branches=2, verify=["make"]), ExploreDocument)


async def attempts_by_hand_async() -> None:
    assert_type(await proofbox.run_attempt_async("say hello", "project"), AttemptRun)
    assert_type(await proofbox.fork_attempt_async("t1", 2, "retry"), AttemptFork)
    assert_type(await proofbox.explore_attempt_async("t1", 2, "o", prompt="go", suite="s.toml"), ExploreDocument)


def campaigns() -> None:
    report = proofbox.run_campaign("campaign.toml", out=Path("out"), trust=True)
    assert_type(report, CampaignReport)
    assert_type(report.comparisons[0].difference, float)
    assert_type(proofbox.run_canary("campaign.toml", missions=2), CampaignReport)
    assert_type(proofbox.resume_campaign("out", stop=threading.Event()), CampaignReport)
    assert_type(proofbox.load_campaign("out"), CampaignReport)
    assert_type(proofbox.campaign_status(Path("out")), CampaignReport)
    assert_type(proofbox.new_campaign("comparison"), NewFiles)
    assert_type(proofbox.new_suite(Path("missions")), NewFiles)
    assert_type(proofbox.lint_campaign("campaign.toml"), CampaignLint)
    assert_type(proofbox.lint_suite("suite.toml"), SuiteLint)
    assert_type(proofbox.plan_campaign("campaign.toml", mde="5pt"), CampaignPlan)
    assert_type(proofbox.compare_campaigns("earlier", Path("out")), CampaignComparison)
    assert_type(proofbox.check_publishable("out", sign="release"), PublishCheck)
    assert_type(proofbox.regrade_campaign("out", "stricter.toml", out="regraded"), CampaignRegrade)

    proofbox.run_campaign("campaign.toml", concurrency=2)  # type: ignore[call-arg]


async def campaigns_async() -> None:
    assert_type(await proofbox.run_campaign_async("campaign.toml", on_event=events), CampaignReport)
    assert_type(await proofbox.run_canary_async("campaign.toml"), CampaignReport)
    assert_type(await proofbox.resume_campaign_async("out"), CampaignReport)
    assert_type(await proofbox.load_campaign_async("out"), CampaignReport)
    assert_type(await proofbox.regrade_campaign_async("out", "stricter.toml"), CampaignRegrade)


def exports() -> None:
    assert_type(proofbox.export_html("out", Path("report.html")).bytes, int)


def plans() -> None:
    assert_type(proofbox.new_plan("measurements"), Path)
    assert_type(proofbox.run_plan("bubblewrap", "out", only_probes=["network.tcp"]), PlanRun)
