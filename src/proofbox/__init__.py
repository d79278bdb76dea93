"""proofbox: run coding agents in a box, and keep the proof.

    import proofbox

    with proofbox.Sandboxes(project_root=".") as boxes:
        result = boxes.exec(["pytest", "-q"], provider="auto", timeout=60)
        print(result.exit_code, result.stdout)

What is called or made by hand is here. What comes back from it (`Session`, `ExecResult`, `Snapshot`, `Trial`) is in the
module of its room, every error in `proofbox.errors`. Names are loaded when they are first used, so that importing
proofbox costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know the name; `typing` costs more than all else of a start

if TYPE_CHECKING:
    from proofbox import errors as errors
    from proofbox.agents.forking import fork_trial as fork_trial
    from proofbox.agents.outcome import TrialRequest as TrialRequest
    from proofbox.agents.trial import run_trial as run_trial
    from proofbox.core.redaction import Redactor as Redactor
    from proofbox.delivery.aclient import AsyncBackendClient as AsyncBackendClient
    from proofbox.delivery.client import BackendClient as BackendClient
    from proofbox.delivery.settings import BackendSettings as BackendSettings
    from proofbox.errors import ProofboxError as ProofboxError
    from proofbox.evidence.promotion import emit_promotion as emit_promotion
    from proofbox.evidence.reader import load_bundle as load_bundle
    from proofbox.evidence.reader import open_bundle_unverified as open_bundle_unverified
    from proofbox.evidence.verify import verify as verify
    from proofbox.evidence.writer import BundleWriter as BundleWriter
    from proofbox.sandbox.aservice import AsyncSandboxes as AsyncSandboxes
    from proofbox.sandbox.catalogue import list_images as list_images
    from proofbox.sandbox.catalogue import resolve_default_image as resolve_default_image
    from proofbox.sandbox.config import Settings as Settings
    from proofbox.sandbox.contract import Mount as Mount
    from proofbox.sandbox.images import pull_image as pull_image
    from proofbox.sandbox.initialize import initialize as initialize
    from proofbox.sandbox.service import Sandboxes as Sandboxes
    from proofbox.workspace.capabilities.capabilities import Capabilities as Capabilities
    from proofbox.workspace.tools.registry import create_tool_registry as create_tool_registry
    from proofbox.workspace.tools.toolbox import open_toolbox as open_toolbox
    from proofbox.workspace.workspace import Workspace as Workspace

# What type checkers read above, by the module it is loaded from. A test holds the two together.
_HOME = {
    "AsyncBackendClient": "proofbox.delivery.aclient",
    "AsyncSandboxes": "proofbox.sandbox.aservice",
    "BackendClient": "proofbox.delivery.client",
    "BackendSettings": "proofbox.delivery.settings",
    "BundleWriter": "proofbox.evidence.writer",
    "Capabilities": "proofbox.workspace.capabilities.capabilities",
    "Mount": "proofbox.sandbox.contract",
    "ProofboxError": "proofbox.errors",
    "Redactor": "proofbox.core.redaction",
    "Sandboxes": "proofbox.sandbox.service",
    "Settings": "proofbox.sandbox.config",
    "TrialRequest": "proofbox.agents.outcome",
    "Workspace": "proofbox.workspace.workspace",
    "create_tool_registry": "proofbox.workspace.tools.registry",
    "emit_promotion": "proofbox.evidence.promotion",
    "errors": "proofbox.errors",
    "fork_trial": "proofbox.agents.forking",
    "initialize": "proofbox.sandbox.initialize",
    "list_images": "proofbox.sandbox.catalogue",
    "load_bundle": "proofbox.evidence.reader",
    "open_bundle_unverified": "proofbox.evidence.reader",
    "open_toolbox": "proofbox.workspace.tools.toolbox",
    "pull_image": "proofbox.sandbox.images",
    "resolve_default_image": "proofbox.sandbox.catalogue",
    "run_trial": "proofbox.agents.trial",
    "verify": "proofbox.evidence.verify",
}

__all__ = list(_HOME)


if not TYPE_CHECKING:  # which would take any name at all for one of ours

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
