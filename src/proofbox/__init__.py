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
    from proofbox.errors import ProofboxError as ProofboxError
    from proofbox.errors import SandboxError as SandboxError
    from proofbox.errors import SandboxLost as SandboxLost
    from proofbox.sandbox.aservice import AsyncSandboxes as AsyncSandboxes
    from proofbox.sandbox.aservice import AsyncSession as AsyncSession
    from proofbox.sandbox.contract import Diagnostic as Diagnostic
    from proofbox.sandbox.contract import Event as Event
    from proofbox.sandbox.contract import ExecResult as ExecResult
    from proofbox.sandbox.contract import Isolation as Isolation
    from proofbox.sandbox.contract import Mount as Mount
    from proofbox.sandbox.contract import Output as Output
    from proofbox.sandbox.contract import Policy as Policy
    from proofbox.sandbox.contract import ProbeResult as ProbeResult
    from proofbox.sandbox.service import Sandboxes as Sandboxes
    from proofbox.sandbox.service import Session as Session
    from proofbox.sandbox.sessions import SessionInfo as SessionInfo
    from proofbox.workspace.model import Snapshot as Snapshot
    from proofbox.workspace.workspace import Workspace as Workspace

_HOME = {
    "AsyncSandboxes": "sandbox.aservice",
    "AsyncSession": "sandbox.aservice",
    "Diagnostic": "sandbox.contract",
    "Event": "sandbox.contract",
    "ExecResult": "sandbox.contract",
    "Isolation": "sandbox.contract",
    "Mount": "sandbox.contract",
    "Output": "sandbox.contract",
    "Policy": "sandbox.contract",
    "ProbeResult": "sandbox.contract",
    "ProofboxError": "errors",
    "SandboxError": "errors",
    "SandboxLost": "errors",
    "Sandboxes": "sandbox.service",
    "Session": "sandbox.service",
    "SessionInfo": "sandbox.sessions",
    "Snapshot": "workspace.model",
    "Workspace": "workspace.workspace",
}

__all__ = [
    "AsyncSandboxes",
    "AsyncSession",
    "Diagnostic",
    "Event",
    "ExecResult",
    "Isolation",
    "Mount",
    "Output",
    "Policy",
    "ProbeResult",
    "ProofboxError",
    "SandboxError",
    "SandboxLost",
    "Sandboxes",
    "Session",
    "SessionInfo",
    "Snapshot",
    "Workspace",
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
