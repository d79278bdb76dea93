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
    from proofbox.core.redaction import Redactor as Redactor
    from proofbox.errors import BundleError as BundleError
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
    from proofbox.workspace.model import Snapshot as Snapshot
    from proofbox.workspace.workspace import Workspace as Workspace

_HOME = {
    "AsyncSandboxes": "sandbox.aservice",
    "AsyncSession": "sandbox.aservice",
    "Bundle": "evidence.reader",
    "BundleError": "errors",
    "BundleWriter": "evidence.writer",
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
    "UnverifiedBundle": "evidence.reader",
    "Verification": "evidence.verify",
    "emit_promotion": "evidence.promotion",
    "initialize": "sandbox.initialize",
    "list_images": "sandbox.catalogue",
    "load_bundle": "evidence.reader",
    "open_bundle_unverified": "evidence.reader",
    "pull_image": "sandbox.images",
    "resolve_default_image": "sandbox.catalogue",
    "verify": "evidence.verify",
    "Snapshot": "workspace.model",
    "Workspace": "workspace.workspace",
}

__all__ = [
    "AsyncSandboxes",
    "AsyncSession",
    "Bundle",
    "BundleError",
    "BundleWriter",
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
    "UnverifiedBundle",
    "Verification",
    "Workspace",
    "emit_promotion",
    "initialize",
    "list_images",
    "load_bundle",
    "open_bundle_unverified",
    "pull_image",
    "resolve_default_image",
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
