"""The complete tools of one workspace: environment, capabilities, layers, registry. Used by the CLI and MCP server.

with open_toolbox("project", capabilities="sandbox") as box:
    box.registry.answer("run_command", {"command": "make test"}).text
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.grants import DEFAULT_CAPABILITIES
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.tools.contract import ToolEnvironment
from proofbox.workspace.tools.environments.boxed import BoxedEnvironment
from proofbox.workspace.tools.environments.layers import Layered
from proofbox.workspace.tools.environments.middleware import EffectRecording, SnapshotOnWrite, workspace_layers
from proofbox.workspace.tools.history_tools import history_tools
from proofbox.workspace.tools.registry import ToolRegistry, create_tool_registry
from proofbox.workspace.workspace import Workspace


class Toolbox(msgspec.Struct, frozen=True):
    workspace: Workspace
    capabilities: Capabilities
    env: ToolEnvironment
    registry: ToolRegistry


@contextmanager
def open_toolbox(
    directory: str | os.PathLike[str],
    *,
    capabilities: str | Path | Capabilities = DEFAULT_CAPABILITIES,
    provider: str | None = None,
    check: str | None = None,
    nudge: bool = True,
    track: bool = True,
) -> Iterator[Toolbox]:
    """Open a workspace's tools, with capability checks, an effect log and a snapshot after each change.

    For example:

        with proofbox.open_toolbox(".", capabilities="agent") as box:
            print(box.registry.answer("run_command", {"command": "ls"}).text)

    `capabilities` is a preset's name, a file or a Capabilities object. `check` is a command that must pass after each
    change.
    """
    granted = capabilities if isinstance(capabilities, Capabilities) else Capabilities.load(capabilities)
    with ExitStack() as stack:
        workspace = stack.enter_context(Workspace.open(directory, track=track))
        workspace.require_finished()
        ignore = Ignore(workspace.ignored)
        history = SnapshotOnWrite(workspace)
        recording = EffectRecording(workspace.effects, history.head)
        env = stack.enter_context(
            BoxedEnvironment(workspace.path, granted, provider=provider, ignore=ignore, on_event=recording.on_event)
        )
        layered = Layered(env, workspace_layers(env, history, recording, granted, check=check, nudge=nudge))
        more = history_tools(history, recording, granted)
        yield Toolbox(workspace, granted, layered, create_tool_registry(layered, more=more))
