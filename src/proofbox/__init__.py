"""proofbox: run coding agents in a box, and keep the proof.

    import proofbox

    with proofbox.Sandboxes(project_root=".") as boxes:
        result = boxes.exec(["pytest", "-q"], provider="auto", timeout=60)
        print(result.exit_code, result.stdout)

Names are loaded when they are first used, so that importing proofbox costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from proofbox.agents.forking import fork_trial as fork_trial
    from proofbox.agents.outcome import Trial as Trial
    from proofbox.agents.outcome import TrialRequest as TrialRequest
    from proofbox.agents.trial import run_trial as run_trial
    from proofbox.core.redaction import Redactor as Redactor
    from proofbox.delivery.aclient import AsyncBackendClient as AsyncBackendClient
    from proofbox.delivery.client import BackendClient as BackendClient
    from proofbox.delivery.settings import BackendSettings as BackendSettings
    from proofbox.errors import AgentError as AgentError
    from proofbox.errors import BundleError as BundleError
    from proofbox.errors import DeliveryError as DeliveryError
    from proofbox.errors import PromotionError as PromotionError
    from proofbox.errors import ProofboxError as ProofboxError
    from proofbox.errors import SandboxError as SandboxError
    from proofbox.errors import SandboxLost as SandboxLost
    from proofbox.evidence.promotion import Promotion as Promotion
    from proofbox.evidence.promotion import emit_promotion as emit_promotion
    from proofbox.evidence.reader import Bundle as Bundle
    from proofbox.evidence.reader import UnverifiedBundle as UnverifiedBundle
    from proofbox.evidence.reader import load_bundle as load_bundle
    from proofbox.evidence.reader import open_bundle_unverified as open_bundle_unverified
    from proofbox.evidence.verify import Verification as Verification
    from proofbox.evidence.verify import verify as verify
    from proofbox.evidence.writer import BundleWriter as BundleWriter
    from proofbox.sandbox.aservice import AsyncSandboxes as AsyncSandboxes
    from proofbox.sandbox.aservice import AsyncSession as AsyncSession
    from proofbox.sandbox.catalogue import Image as Image
    from proofbox.sandbox.catalogue import list_images as list_images
    from proofbox.sandbox.catalogue import resolve_default_image as resolve_default_image
    from proofbox.sandbox.config import Settings as Settings
    from proofbox.sandbox.contract import Diagnostic as Diagnostic
    from proofbox.sandbox.contract import Event as Event
    from proofbox.sandbox.contract import ExecResult as ExecResult
    from proofbox.sandbox.contract import Isolation as Isolation
    from proofbox.sandbox.contract import Mount as Mount
    from proofbox.sandbox.contract import Output as Output
    from proofbox.sandbox.contract import Policy as Policy
    from proofbox.sandbox.contract import ProbeResult as ProbeResult
    from proofbox.sandbox.images import pull_image as pull_image
    from proofbox.sandbox.initialize import initialize as initialize
    from proofbox.sandbox.service import Sandboxes as Sandboxes
    from proofbox.sandbox.service import Session as Session
    from proofbox.sandbox.sessions import SessionInfo as SessionInfo
    from proofbox.workspace.capabilities.capabilities import Capabilities as Capabilities
    from proofbox.workspace.model import Snapshot as Snapshot
    from proofbox.workspace.tools.contract import ToolEnvironment as ToolEnvironment
    from proofbox.workspace.tools.registry import create_tool_registry as create_tool_registry
    from proofbox.workspace.tools.toolbox import open_toolbox as open_toolbox
    from proofbox.workspace.workspace import Workspace as Workspace

_HOME = {
    "AgentError": "errors",
    "AsyncBackendClient": "delivery.aclient",
    "AsyncSandboxes": "sandbox.aservice",
    "AsyncSession": "sandbox.aservice",
    "BackendClient": "delivery.client",
    "BackendSettings": "delivery.settings",
    "Bundle": "evidence.reader",
    "BundleError": "errors",
    "BundleWriter": "evidence.writer",
    "Capabilities": "workspace.capabilities.capabilities",
    "DeliveryError": "errors",
    "Diagnostic": "sandbox.contract",
    "Event": "sandbox.contract",
    "ExecResult": "sandbox.contract",
    "Image": "sandbox.catalogue",
    "Isolation": "sandbox.contract",
    "Mount": "sandbox.contract",
    "Output": "sandbox.contract",
    "Policy": "sandbox.contract",
    "ProbeResult": "sandbox.contract",
    "Promotion": "evidence.promotion",
    "PromotionError": "errors",
    "ProofboxError": "errors",
    "Redactor": "core.redaction",
    "SandboxError": "errors",
    "SandboxLost": "errors",
    "Sandboxes": "sandbox.service",
    "Session": "sandbox.service",
    "SessionInfo": "sandbox.sessions",
    "Settings": "sandbox.config",
    "Snapshot": "workspace.model",
    "ToolEnvironment": "workspace.tools.contract",
    "Trial": "agents.outcome",
    "TrialRequest": "agents.outcome",
    "UnverifiedBundle": "evidence.reader",
    "Verification": "evidence.verify",
    "Workspace": "workspace.workspace",
    "create_tool_registry": "workspace.tools.registry",
    "emit_promotion": "evidence.promotion",
    "fork_trial": "agents.forking",
    "initialize": "sandbox.initialize",
    "list_images": "sandbox.catalogue",
    "load_bundle": "evidence.reader",
    "open_bundle_unverified": "evidence.reader",
    "open_toolbox": "workspace.tools.toolbox",
    "pull_image": "sandbox.images",
    "resolve_default_image": "sandbox.catalogue",
    "run_trial": "agents.trial",
    "verify": "evidence.verify",
}

__all__ = [
    "AgentError",
    "AsyncBackendClient",
    "AsyncSandboxes",
    "AsyncSession",
    "BackendClient",
    "BackendSettings",
    "Bundle",
    "BundleError",
    "BundleWriter",
    "Capabilities",
    "DeliveryError",
    "Diagnostic",
    "Event",
    "ExecResult",
    "Image",
    "Isolation",
    "Mount",
    "Output",
    "Policy",
    "ProbeResult",
    "Promotion",
    "PromotionError",
    "ProofboxError",
    "Redactor",
    "SandboxError",
    "SandboxLost",
    "Sandboxes",
    "Session",
    "SessionInfo",
    "Settings",
    "Snapshot",
    "ToolEnvironment",
    "Trial",
    "TrialRequest",
    "UnverifiedBundle",
    "Verification",
    "Workspace",
    "create_tool_registry",
    "emit_promotion",
    "fork_trial",
    "initialize",
    "list_images",
    "load_bundle",
    "open_bundle_unverified",
    "open_toolbox",
    "pull_image",
    "resolve_default_image",
    "run_trial",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'proofbox' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"proofbox.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
