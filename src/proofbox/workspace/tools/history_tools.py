"""Two more tools, for agents whose capabilities say so: a snapshot of the workspace, and a rollback to one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.tools.contract import ToolResult
from proofbox.workspace.tools.environments.middleware import EffectRecording, SnapshotOnWrite
from proofbox.workspace.tools.registry import Arguments, Tool, make_tool


class TakeSnapshot(Arguments, frozen=True, kw_only=True):
    message: Annotated[str, Meta(max_length=200, description="What this state is.")] = ""


class RollBack(Arguments, frozen=True, kw_only=True):
    snapshot: Annotated[str, Meta(min_length=4, max_length=200, description="The id of a snapshot, or its beginning.")]


class SnapshotTaken(ToolResult, frozen=True, kw_only=True):
    id: str

    def words(self) -> str:
        return f"snapshot {self.id}"


class RolledBack(ToolResult, frozen=True, kw_only=True):
    id: str
    before: str
    restored: int
    irreversible_effects: tuple[str, ...]

    def words(self) -> str:
        lines = [f"rolled back to {self.id}: {self.restored} paths; to go forward again: {self.before}"]
        return "\n".join([*lines, *(f"not undone: {each}" for each in self.irreversible_effects)])


def history_tools(history: SnapshotOnWrite, recording: EffectRecording, capabilities: Capabilities) -> list[Tool]:
    """Those of the two that the capabilities allow."""

    def snapshot(message: str) -> SnapshotTaken:
        return SnapshotTaken(id=history.snapshot(message))

    def rollback(snapshot: str) -> RolledBack:
        back = history.rollback(snapshot)
        recording.rolled_back(back)
        return RolledBack(
            id=back.id,
            before=back.before,
            restored=len(back.restored),
            irreversible_effects=back.irreversible_effects,
        )

    found = []
    if capabilities.flag("snapshot").allowed:
        found.append(make_tool(snapshot, TakeSnapshot, "Record the workspace as it is now."))
    if capabilities.flag("rollback").allowed:
        found.append(make_tool(rollback, RollBack, "Make the workspace's files what they were at a snapshot."))
    return found
