"""Two additional tools, available if the capabilities allow them: take a snapshot, and roll back to one."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.tools.contract import ToolRequest
from proofbox.workspace.tools.environments.middleware import EffectRecording, SnapshotOnWrite
from proofbox.workspace.tools.registry import Tool, make_tool
from proofbox.workspace.tools.results import ToolResult


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
        lines = [f"rolled back to {self.id}: {self.restored} paths restored; to undo, roll back to {self.before}"]
        return "\n".join([*lines, *(f"not undone: {each}" for each in self.irreversible_effects)])


class TakeSnapshot(ToolRequest[SnapshotTaken], frozen=True, kw_only=True):
    """Take a snapshot of the workspace."""

    tool: ClassVar[str] = "snapshot"
    message: Annotated[str, Meta(max_length=200, description="A description of this state.")] = ""


class RollBack(ToolRequest[RolledBack], frozen=True, kw_only=True):
    """Restore the workspace's files to a snapshot."""

    tool: ClassVar[str] = "rollback"
    snapshot: Annotated[str, Meta(min_length=4, max_length=200, description="A snapshot id, or a prefix of one.")]


def history_tools(history: SnapshotOnWrite, recording: EffectRecording, capabilities: Capabilities) -> list[Tool]:
    """Return the tools that the capabilities allow."""

    def snapshot(request: TakeSnapshot) -> SnapshotTaken:
        return SnapshotTaken(id=history.snapshot(request.message))

    def rollback(request: RollBack) -> RolledBack:
        back = history.rollback(request.snapshot)
        recording.rolled_back(back)
        return RolledBack(
            id=back.id,
            before=back.before,
            restored=len(back.restored),
            irreversible_effects=back.irreversible_effects,
        )

    found = []
    if capabilities.flag("snapshot").allowed:
        found.append(make_tool(TakeSnapshot, snapshot))
    if capabilities.flag("rollback").allowed:
        found.append(make_tool(RollBack, rollback))
    return found
