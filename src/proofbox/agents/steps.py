"""Steps: the actions of an agent, each with snapshots of the workspace before and after.

Each finished tool call or file change is a step. A turn gets an additional step of the kind `turn` if it had no steps,
or if files changed after its last step. The last step of a turn therefore always shows the state at the turn's end.

A command that could affect more than the workspace is also recorded in the workspace's effect log, so that a rollback
can report what it does not undo. The step names that entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from proofbox.agents.events import ApprovalDecision, Event, FileChange, ToolCall, TurnEnded
from proofbox.core.text import preview
from proofbox.errors import UsageError
from proofbox.sandbox.contract import Mount

if TYPE_CHECKING:
    from proofbox.workspace.workspace import Workspace

PREVIEW = 4096
MAX_STEPS = 100_000


class StepDecision(msgspec.Struct, frozen=True):
    """An approval request of the agent, and the rule that answered it."""

    method: str
    """The runtime's name for the request."""
    subject: str
    """The command, paths or question to approve, in at most 4096 bytes."""
    answer: str
    rule: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    n: int
    kind: Literal["tool_call", "file_change", "turn"]
    """`turn`: the end of a turn without steps, or of a turn that changed files after its last step."""
    thread: str
    turn: str
    item: str = ""
    tool: str = ""
    command: str = ""
    paths: tuple[str, ...] = ()
    status: str
    """The status from the event; for the kind `turn`, the status of the turn."""
    exit_code: int | None = None
    duration_ms: float | None = None
    source: str = "runtime_reported"
    late: bool = False
    """The call ended after its turn."""
    decisions: tuple[StepDecision, ...] = ()
    snapshot_before: str
    snapshot_after: str
    changed: int
    """The number of paths that differ between the two snapshots."""
    effect: str = ""
    """The entry in the workspace's effect log; empty if a rollback undoes the step."""
    ends_turn: bool = False
    """The turn ended at this step, so a fork at this step is exact."""


class StepRecorder:
    """A listener that takes a snapshot at every step.

    `keep` is called in a thread with each new entry: `{"step": …}`, or `{"turn_end": …}` when a turn has ended. `reach`
    returns what a command could affect besides the workspace.
    """

    def __init__(
        self,
        workspace: Workspace,
        first_snapshot: str,
        keep: Callable[[Mapping[str, Any]], None],
        reach: Callable[[], tuple[str, ...]] = lambda: (),
    ) -> None:
        self._workspace = workspace
        self._keep = keep
        self._reach = reach
        self._latest = first_snapshot
        self._decisions: dict[str, list[StepDecision]] = {}
        self.steps: list[Step] = []

    async def __call__(self, event: Event) -> None:
        from anyio.to_thread import run_sync  # readers of steps need no event loop

        match event:
            case ApprovalDecision():
                decision = StepDecision(event.method, _short(event.subject), event.answer, event.rule)
                self._decisions.setdefault(event.item, []).append(decision)
            case ToolCall():
                add = partial(
                    self._add,
                    event,
                    kind="tool_call",
                    item=event.item,
                    tool=_short(event.tool),
                    command=_short(event.command),
                    status=event.status,
                    exit_code=event.exit_code,
                    duration_ms=event.duration_ms,
                    source=event.source,
                    late=event.late,
                )
                await run_sync(add)
            case FileChange():
                paths = tuple(map(_short, event.paths))
                add = partial(
                    self._add,
                    event,
                    kind="file_change",
                    item=event.item,
                    paths=paths,
                    status=event.status,
                    late=event.late,
                )
                await run_sync(add)
            case TurnEnded():
                await run_sync(self._end, event)

    @property
    def is_full(self) -> bool:
        """Whether there are as many steps as a record can hold."""
        return len(self.steps) >= MAX_STEPS

    def _end(self, event: TurnEnded) -> None:
        of_this = [number for number, step in enumerate(self.steps) if step.turn == event.turn]
        before = self._latest
        after, changed = self._snapshot(f"the end of turn {event.turn}")
        if not of_this or after != before:
            self._append(event, before, after, changed, kind="turn", status=event.status)
            of_this.append(len(self.steps) - 1)
        last = of_this[-1]
        self.steps[last] = msgspec.structs.replace(self.steps[last], ends_turn=True)
        ended = {"turn": event.turn, "thread": event.thread, "status": event.status, "code": event.code}
        self._keep({"turn_end": {**ended, "last_step": self.steps[last].n, "snapshot": after}})

    def _add(self, event: Event, **facts: Any) -> None:
        before = self._latest
        after, changed = self._snapshot(f"after {facts.get('tool') or facts['kind']}")
        reach = self._reach() if facts.get("tool") == "command" and facts["status"] != "declined" else ()
        effect = self._log(facts, before, after, reach) if reach else ""
        self._append(event, before, after, changed, effect=effect, **facts)

    def _log(self, facts: Mapping[str, Any], before: str, after: str, reach: tuple[str, ...]) -> str:
        log = self._workspace.effects
        id = log.new_id()
        log.append(
            id=id,
            phase="outcome",
            kind="run_command",
            target=facts["command"],
            exit_code=facts["exit_code"],
            duration_ms=facts["duration_ms"],
            snapshot_before=before,
            snapshot_after=after,
            reach=reach,
            note=f"an agent's command, {facts['source']}",
        )
        return id

    def _append(self, event: Event, before: str, after: str, changed: int, **facts: Any) -> None:
        if self.is_full:
            raise UsageError(f"the attempt exceeds the limit of {MAX_STEPS} steps", op="record")
        step = Step(
            n=len(self.steps) + 1,
            thread=event.thread,
            turn=event.turn,
            decisions=tuple(self._decisions.pop(facts.get("item", ""), ())),
            snapshot_before=before,
            snapshot_after=after,
            changed=changed,
            **facts,
        )
        self.steps.append(step)
        self._keep({"step": step})

    def _snapshot(self, message: str) -> tuple[str, int]:
        taken = self._workspace.snapshot(_short(message))
        changed = taken.changed if taken.id != self._latest else 0
        self._latest = taken.id
        return taken.id, changed


def reach_of(facts: Mapping[str, Any], mounts: Sequence[str | Mount]) -> tuple[str, ...]:
    """Return the effects of a command that a rollback can't undo, from the facts about its box."""
    if not facts.get("sandboxed") or facts.get("isolation") == "none":
        return ("host", "network")
    network = facts.get("network") or facts.get("policy", {}).get("network")
    found = ["network"] if network != "none" else []
    if any(mount.writable if isinstance(mount, Mount) else mount.endswith(":rw") for mount in mounts):
        found.append("mounts")
    return tuple(found)


def _short(text: str) -> str:
    return preview(text, PREVIEW)[0]
