"""proofbox: run coding agents in a box, and keep the proof.

    import proofbox

    with proofbox.Sandboxes(project_root=".") as boxes:
        result = boxes.exec(["pytest", "-q"], provider="auto", timeout=60)
        print(result.exit_code, result.stdout)

This module exports the functions and classes that callers use directly. The types that they return (`Session`,
`ExecResult`, `Snapshot`, `AttemptRun`) are in the modules of their packages, and all errors are in `proofbox.errors`.
Names are loaded on first use, which keeps `import proofbox` fast.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know the name; importing `typing` would dominate the startup time

if TYPE_CHECKING:
    from proofbox import errors as errors
    from proofbox.config.settings import Settings as Settings
    from proofbox.core.redaction.redactor import Redactor as Redactor
    from proofbox.delivery.client.async_client import AsyncBackendClient as AsyncBackendClient
    from proofbox.delivery.client.settings import BackendSettings as BackendSettings
    from proofbox.delivery.client.sync_client import BackendClient as BackendClient
    from proofbox.delivery.sending import deliver_pull_request as deliver_pull_request
    from proofbox.delivery.sending import deliver_repository as deliver_repository
    from proofbox.delivery.sending import plan_delivery as plan_delivery
    from proofbox.errors import ProofboxError as ProofboxError
    from proofbox.evidence.bundle.reader import load_bundle as load_bundle
    from proofbox.evidence.bundle.reader import open_bundle_unverified as open_bundle_unverified
    from proofbox.evidence.bundle.writer import BundleWriter as BundleWriter
    from proofbox.evidence.verify.verifier import verify as verify
    from proofbox.lab.attempt.adhoc.explore import explore_attempt as explore_attempt
    from proofbox.lab.attempt.adhoc.explore import explore_attempt_async as explore_attempt_async
    from proofbox.lab.attempt.adhoc.fork import fork_attempt as fork_attempt
    from proofbox.lab.attempt.adhoc.fork import fork_attempt_async as fork_attempt_async
    from proofbox.lab.attempt.adhoc.run import run_attempt as run_attempt
    from proofbox.lab.attempt.adhoc.run import run_attempt_async as run_attempt_async
    from proofbox.lab.campaign.comparing import compare_campaigns as compare_campaigns
    from proofbox.lab.campaign.linting import lint_campaign as lint_campaign
    from proofbox.lab.campaign.planning import plan_campaign as plan_campaign
    from proofbox.lab.campaign.publishing import check_publishable as check_publishable
    from proofbox.lab.campaign.regrading import regrade_campaign as regrade_campaign
    from proofbox.lab.campaign.regrading import regrade_campaign_async as regrade_campaign_async
    from proofbox.lab.campaign.running import load_campaign_async as load_campaign_async
    from proofbox.lab.campaign.running import resume_campaign as resume_campaign
    from proofbox.lab.campaign.running import resume_campaign_async as resume_campaign_async
    from proofbox.lab.campaign.running import run_campaign as run_campaign
    from proofbox.lab.campaign.running import run_campaign_async as run_campaign_async
    from proofbox.lab.campaign.running import run_canary as run_canary
    from proofbox.lab.campaign.running import run_canary_async as run_canary_async
    from proofbox.lab.doctor import doctor as doctor
    from proofbox.lab.examples import new_campaign as new_campaign
    from proofbox.lab.examples import new_suite as new_suite
    from proofbox.lab.garbage import collect_garbage as collect_garbage
    from proofbox.lab.reports.campaigns.loading import campaign_status as campaign_status
    from proofbox.lab.reports.campaigns.loading import load_campaign as load_campaign
    from proofbox.lab.reports.explain import explain_attempt as explain_attempt
    from proofbox.lab.reports.parity import compare_parity as compare_parity
    from proofbox.lab.reports.promoting import emit_promotion as emit_promotion
    from proofbox.lab.reports.scoring import report as report
    from proofbox.lab.reports.scoring import validate as validate
    from proofbox.lab.reports.steps import diff_attempt as diff_attempt
    from proofbox.lab.reports.suite_status import suite_status as suite_status
    from proofbox.lab.run.running import load_run as load_run
    from proofbox.lab.run.running import load_run_async as load_run_async
    from proofbox.lab.run.running import resume_suite as resume_suite
    from proofbox.lab.run.running import resume_suite_async as resume_suite_async
    from proofbox.lab.run.running import run_suite as run_suite
    from proofbox.lab.run.running import run_suite_async as run_suite_async
    from proofbox.lab.suite.linting import lint_suite as lint_suite
    from proofbox.probes.example import new_plan as new_plan
    from proofbox.probes.run import run_plan as run_plan
    from proofbox.sandbox.async_service import AsyncSandboxes as AsyncSandboxes
    from proofbox.sandbox.contract import Mount as Mount
    from proofbox.sandbox.images.build import build_image as build_image
    from proofbox.sandbox.images.catalogue import list_images as list_images
    from proofbox.sandbox.images.catalogue import resolve_default_image as resolve_default_image
    from proofbox.sandbox.images.imports import import_image as import_image
    from proofbox.sandbox.images.pull import pull_image as pull_image
    from proofbox.sandbox.initialize import initialize as initialize
    from proofbox.sandbox.service import Sandboxes as Sandboxes
    from proofbox.viewer.export import export_html as export_html
    from proofbox.workspace.capabilities.capabilities import Capabilities as Capabilities
    from proofbox.workspace.tools.registry import create_tool_registry as create_tool_registry
    from proofbox.workspace.tools.toolbox import open_toolbox as open_toolbox
    from proofbox.workspace.workspace import Workspace as Workspace

# The same names, by the module that each is loaded from. A test checks that both lists agree.
_HOME = {
    "AsyncBackendClient": "proofbox.delivery.client.async_client",
    "AsyncSandboxes": "proofbox.sandbox.async_service",
    "BackendClient": "proofbox.delivery.client.sync_client",
    "BackendSettings": "proofbox.delivery.client.settings",
    "BundleWriter": "proofbox.evidence.bundle.writer",
    "Capabilities": "proofbox.workspace.capabilities.capabilities",
    "Mount": "proofbox.sandbox.contract",
    "ProofboxError": "proofbox.errors",
    "Redactor": "proofbox.core.redaction.redactor",
    "Sandboxes": "proofbox.sandbox.service",
    "Settings": "proofbox.config.settings",
    "Workspace": "proofbox.workspace.workspace",
    "build_image": "proofbox.sandbox.images.build",
    "collect_garbage": "proofbox.lab.garbage",
    "compare_parity": "proofbox.lab.reports.parity",
    "create_tool_registry": "proofbox.workspace.tools.registry",
    "deliver_pull_request": "proofbox.delivery.sending",
    "deliver_repository": "proofbox.delivery.sending",
    "doctor": "proofbox.lab.doctor",
    "emit_promotion": "proofbox.lab.reports.promoting",
    "errors": "proofbox.errors",
    "explain_attempt": "proofbox.lab.reports.explain",
    "export_html": "proofbox.viewer.export",
    "diff_attempt": "proofbox.lab.reports.steps",
    "explore_attempt": "proofbox.lab.attempt.adhoc.explore",
    "explore_attempt_async": "proofbox.lab.attempt.adhoc.explore",
    "fork_attempt": "proofbox.lab.attempt.adhoc.fork",
    "fork_attempt_async": "proofbox.lab.attempt.adhoc.fork",
    "import_image": "proofbox.sandbox.images.imports",
    "initialize": "proofbox.sandbox.initialize",
    "lint_suite": "proofbox.lab.suite.linting",
    "list_images": "proofbox.sandbox.images.catalogue",
    "load_bundle": "proofbox.evidence.bundle.reader",
    "load_run": "proofbox.lab.run.running",
    "load_run_async": "proofbox.lab.run.running",
    "open_bundle_unverified": "proofbox.evidence.bundle.reader",
    "open_toolbox": "proofbox.workspace.tools.toolbox",
    "new_campaign": "proofbox.lab.examples",
    "new_plan": "proofbox.probes.example",
    "new_suite": "proofbox.lab.examples",
    "plan_delivery": "proofbox.delivery.sending",
    "pull_image": "proofbox.sandbox.images.pull",
    "report": "proofbox.lab.reports.scoring",
    "resolve_default_image": "proofbox.sandbox.images.catalogue",
    "run_plan": "proofbox.probes.run",
    "resume_suite": "proofbox.lab.run.running",
    "resume_suite_async": "proofbox.lab.run.running",
    "run_canary": "proofbox.lab.campaign.running",
    "run_canary_async": "proofbox.lab.campaign.running",
    "resume_campaign": "proofbox.lab.campaign.running",
    "resume_campaign_async": "proofbox.lab.campaign.running",
    "campaign_status": "proofbox.lab.reports.campaigns.loading",
    "load_campaign": "proofbox.lab.reports.campaigns.loading",
    "load_campaign_async": "proofbox.lab.campaign.running",
    "lint_campaign": "proofbox.lab.campaign.linting",
    "plan_campaign": "proofbox.lab.campaign.planning",
    "compare_campaigns": "proofbox.lab.campaign.comparing",
    "check_publishable": "proofbox.lab.campaign.publishing",
    "regrade_campaign": "proofbox.lab.campaign.regrading",
    "regrade_campaign_async": "proofbox.lab.campaign.regrading",
    "run_campaign": "proofbox.lab.campaign.running",
    "run_campaign_async": "proofbox.lab.campaign.running",
    "run_suite": "proofbox.lab.run.running",
    "run_suite_async": "proofbox.lab.run.running",
    "suite_status": "proofbox.lab.reports.suite_status",
    "validate": "proofbox.lab.reports.scoring",
    "run_attempt": "proofbox.lab.attempt.adhoc.run",
    "run_attempt_async": "proofbox.lab.attempt.adhoc.run",
    "verify": "proofbox.evidence.verify.verifier",
}

__all__ = list(_HOME)


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        import importlib

        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module 'proofbox' has no attribute {name!r}")
        module = importlib.import_module(home)
        value = module if home == f"proofbox.{name}" else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
