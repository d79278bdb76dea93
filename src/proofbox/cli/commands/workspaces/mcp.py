"""`mcp`: serve a workspace's tools over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from proofbox import __version__
from proofbox.cli import flags
from proofbox.cli.commands.workspaces.tools import CapabilitiesFlag, Check
from proofbox.cli.parameters import Parameter
from proofbox.workspace.capabilities.grants import DEFAULT_CAPABILITIES

INSTRUCTIONS = (
    "Tools over one workspace. Paths are relative to its root. Commands run in a sandbox. Every call is recorded, and"
    " every change can be undone."
)


def serve_(
    *,
    workspace: Annotated[Path, Parameter(name="--workspace", help="The workspace's directory.")],
    provider: flags.Provider = None,
    capabilities: CapabilitiesFlag = DEFAULT_CAPABILITIES,
    check: Check = None,
    json: flags.Json = False,  # noqa: ARG001 (only decides the format of errors)
) -> int:
    """Serve a workspace's tools over MCP on stdin and stdout, until the client closes them.

    stdout carries the protocol. With --json, a failure to start is reported as a document.

    For example:
      proofbox mcp serve --workspace project --capabilities agent
    """
    from proofbox.workspace.tools.mcp_server import serve
    from proofbox.workspace.tools.toolbox import open_toolbox

    with open_toolbox(workspace, capabilities=capabilities, provider=provider, check=check) as box:
        serve(box.registry, __version__, INSTRUCTIONS)
    return 0
