"""Two additional tools, available if the capabilities allow them: take a snapshot, and roll back to one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.tools.contract import ToolResult
from proofbox.workspace.tools.environments.middleware import EffectRecording, SnapshotOnWrite
from proofbox.workspace.tools.registry import Arguments, Tool, make_tool


class TakeSnapshot(Arguments, frozen=True, kw_only=True):
    message: Annotated[str, Meta(max_length=200, description="A description of this state.")] = ""


class RollBack(Arguments, frozen=True, kw_only=True):
    snapshot: Annotated[str, Meta(min_length=4, max_length=200, description="A snapshot id, or a prefix of one.")]


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


def history_tools(history: SnapshotOnWrite, recording: EffectRecording, capabilities: Capabilities) -> list[Tool]:
    """Return the tools that the capabilities allow."""

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
        found.append(make_tool(snapshot, TakeSnapshot, "Take a snapshot of the workspace."))
    if capabilities.flag("rollback").allowed:
        found.append(make_tool(rollback, RollBack, "Restore the workspace's files to a snapshot."))
    return found
