"""The layers: capability check, effect recording, snapshots, check after a change, nudge.

In their usual order a call passes: capability check → intent record → call → snapshot → outcome record → check (with a
rollback if it fails). The nudge comes before the call, so that repetitive calls are not run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from posixpath import normpath
from typing import Any

from proofbox.core.clock import Clock, SystemClock
from proofbox.core.digest import digest_of, sha256_hex
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import printable
from proofbox.errors import CapabilityDenied, CheckFailed, ProofboxError, ToolNudged
from proofbox.sandbox.contract import Event
from proofbox.workspace.capabilities.capabilities import Capabilities, require
from proofbox.workspace.capabilities.rules import RuleDecision
from proofbox.workspace.model import RollbackResult
from proofbox.workspace.timeline.effects import EffectLog
from proofbox.workspace.tools.contract import ToolEnvironment
from proofbox.workspace.tools.environments.commands import command_argv
from proofbox.workspace.tools.environments.layers import Below, Layer, Layered, ToolInvocation, patched_paths
from proofbox.workspace.tools.paths import refusal, split
from proofbox.workspace.tools.results import CommandResult, ToolResult
from proofbox.workspace.tools.tree import Access
from proofbox.workspace.workspace import Workspace

SAME_CALLS = 3
READS_WITHOUT_WRITE = 10
_MESSAGE_LIMIT = 200

_ACCESS: dict[str, Access] = {
    "read_file": "read",
    "write_file": "write",
    "edit_file": "write",
    "remove_file": "delete",
    "list_directory": "list",
    "list_files_recursive": "list",
    "search_text": "list",
}


class CapabilityCheck:
    """Refuses calls by their arguments, before anything is looked up. The environment's guard checks the resolved path
    again: this layer serves the effect log, and environments without a guard."""

    def __init__(
        self,
        capabilities: Capabilities,
        root: str,
        on_denied: Callable[[ToolInvocation, ProofboxError], None] | None = None,
    ) -> None:
        self._capabilities = capabilities
        self._root = root
        self._on_denied = on_denied

    def __call__(self, call: ToolInvocation, below: Below, /) -> ToolResult:
        try:
            for decision in self._decisions(call):
                call.decision = decision
                require(decision)
        except ProofboxError as error:  # a denial, a path that leads outside, a malformed patch
            if self._on_denied is not None:
                self._on_denied(call, error)
            raise
        return below(call)

    def _decisions(self, call: ToolInvocation) -> list[RuleDecision]:
        if call.tool == "run_command":
            variables = [self._capabilities.env_write.of(name) for name in call.arguments.get("env") or {}]
            return [*variables, self._capabilities.command(command_argv(call.arguments["command"]))]
        if call.tool == "apply_patch":
            actions = patched_paths(call.arguments["patch"])
            return [self._file("write" if kind == "write" else "delete", path) for kind, path in actions]
        access = _ACCESS[call.tool]
        decisions = [self._file(access, call.arguments["path"])]
        return [self._file("read", call.arguments["path"]), *decisions] if call.tool == "edit_file" else decisions

    def _file(self, access: Access, path: str) -> RuleDecision:
        names = split(path, self._root)
        plain = normpath("/".join(names)) if names else "."
        if plain.split("/")[0] == "..":
            raise refusal(path, "leads outside the workspace")
        return self._capabilities.file(access, "" if plain == "." else plain)


class EffectRecording:
    """Logs the intent before a call and the outcome after it. A call whose intent can't be logged is not made."""

    def __init__(self, log: EffectLog, head: Callable[[], str] = lambda: "", clock: Clock | None = None) -> None:
        self._log = log
        self._head = head
        self._clock: Clock = clock or SystemClock()

    def __call__(self, call: ToolInvocation, below: Below, /) -> ToolResult:
        id = self._log.new_id()
        call.snapshot_before = call.snapshot_before or self._head()
        self._log.append(id=id, phase="intent", kind=call.tool, **_intent(call))
        began = self._clock.monotonic()
        ended: dict[str, Any] = {"target": _target_or_empty(call)}
        try:
            result = below(call)
        except BaseException as error:
            ended |= _refusal(error)
            if isinstance(error, CapabilityDenied):
                ended["decision"] = "deny"
            raise
        else:
            ended |= _outcome(result)
            return result
        finally:
            ended.setdefault("duration_ms", round((self._clock.monotonic() - began) * 1000, 3))
            ended |= {"snapshot_before": call.snapshot_before, "snapshot_after": call.snapshot_after}
            self._log.append(id=id, phase="outcome", kind=call.tool, **ended)

    def denied(self, call: ToolInvocation, error: ProofboxError) -> None:
        """Record a call that was refused before its intent was recorded."""
        facts = {**_intent(call), **_refusal(error), "decision": "deny"}
        self._log.append(id=self._log.new_id(), phase="denied", kind=call.tool, **facts)

    def on_event(self, event: Event) -> None:
        """Record events of a box (`on_event`): connections that the proxy allowed or refused."""
        if event.kind != "network" or event.phase not in ("allowed", "denied"):
            return
        allowed = event.phase == "allowed"
        self._log.append(
            id=self._log.new_id(),
            phase="outcome" if allowed else "denied",
            kind="network",
            target=f"{event.detail.get('host')}:{event.detail.get('port')}",
            decision="allow" if allowed else "deny",
            rule=f"network: {event.detail.get('rule') or 'nothing allows it'}",
        )

    def rolled_back(self, back: RollbackResult) -> None:
        note = f"{len(back.restored)} paths restored, {len(back.irreversible_effects)} effects remain"
        facts = {"target": back.id, "snapshot_before": back.before, "snapshot_after": back.id, "note": note}
        self._log.append(id=self._log.new_id(), phase="outcome", kind="rollback", **facts)


class SnapshotOnWrite:
    """Takes a snapshot before the first change and after each change, so that any step can be rolled back to."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._redactor = Redactor.from_environment(os.environ)
        self._lock = threading.Lock()

    def head(self) -> str:
        with self._lock:
            head = self._workspace.head
            return head.id if head is not None else ""

    def __call__(self, call: ToolInvocation, below: Below, /) -> ToolResult:
        if not call.writes:
            return below(call)
        if not self.head():
            call.snapshot_before = self.snapshot("before the first change")
        try:
            return below(call)
        finally:  # even if the change failed: a command may have changed some files
            call.snapshot_after = self.snapshot(f"{call.tool} {call.target}")

    def snapshot(self, message: str) -> str:
        safe = printable(self._redactor.redact(message))[:_MESSAGE_LIMIT]
        with self._lock:
            return self._workspace.snapshot(safe).id

    def rollback(self, snapshot_id: str) -> RollbackResult:
        with self._lock:
            return self._workspace.rollback(snapshot_id)


class CheckAfterWrite:
    """Runs a command after each change. If it fails, the files are rolled back to the last state that passed.

    The command runs through `env` and its rules: use an environment that records.
    """

    def __init__(
        self,
        env: ToolEnvironment,
        command: str,
        history: SnapshotOnWrite,
        *,
        timeout: float = 120.0,
        on_rollback: Callable[[RollbackResult], None] | None = None,
    ) -> None:
        self._env = env
        self._command = command
        self._history = history
        self._timeout = timeout
        self._on_rollback = on_rollback
        self._good = ""
        self._lock = threading.RLock()

    def __call__(self, call: ToolInvocation, below: Below, /) -> ToolResult:
        if not call.writes:
            return below(call)
        with self._lock:  # one change at a time, to know which one made the check fail
            if not self._good:
                self._good = self._history.head() or self._history.snapshot("before the first change")
            result = below(call)
            done = self._env.run_command(self._command, timeout=self._timeout)
            if done.exit_code == 0:
                self._good = call.snapshot_after or self._history.head()
                return result
            back = self._history.rollback(self._good)
            if self._on_rollback is not None:
                self._on_rollback(back)
        raise CheckFailed(
            f"after {call.tool} the check `{self._command}` failed with exit code {done.exit_code};"
            f" the change was rolled back:\n{done.text(4000)}",
            op=call.tool,
            details={
                "exit_code": done.exit_code,
                "rolled_back_to": self._good,
                "irreversible_effects": list(back.irreversible_effects),
            },
        )


class Nudge:
    """Stops repetitive calls: after three identical ones in a row, or ten reads without a write.

    Only one call is refused, and the next one runs: it is a nudge, not a limit.
    """

    def __init__(self, same: int = SAME_CALLS, reads: int = READS_WITHOUT_WRITE) -> None:
        self._same, self._reads = same, reads
        self._last = ""
        self._repeated = 0
        self._read = 0
        self._lock = threading.Lock()

    def __call__(self, call: ToolInvocation, below: Below, /) -> ToolResult:
        with self._lock:
            self._count(call)
        return below(call)

    def _count(self, call: ToolInvocation) -> None:
        digest = _digest(call.tool, call.arguments)
        self._repeated = self._repeated + 1 if digest == self._last else 1
        self._read = self._read + 1 if not call.writes else 0
        self._last = digest
        if self._repeated > self._same:
            self._forget()
            raise _nudge(call, f"the same call {self._same + 1} times in a row", "its result is known")
        if self._read > self._reads:
            self._forget()
            raise _nudge(call, f"{self._reads} reads in a row without a write", "you may know enough to act")

    def _forget(self) -> None:
        self._last, self._repeated, self._read = "", 0, 0


def workspace_layers(
    env: ToolEnvironment,
    history: SnapshotOnWrite | None = None,
    recording: EffectRecording | None = None,
    capabilities: Capabilities | None = None,
    *,
    check: str | None = None,
    nudge: bool = True,
) -> list[Layer]:
    """Return the usual layers, outermost first, for `Layered(env, …)`. Layers whose part is not given are left out.

    `check` is a command that must pass after a change.
    """
    layers: list[Layer] = []
    if capabilities is not None:
        layers.append(CapabilityCheck(capabilities, env.root, recording.denied if recording else None))
    if check is not None and history is not None:
        recorded = env if recording is None else Layered(env, [recording])
        rolled_back = None if recording is None else recording.rolled_back
        layers.append(CheckAfterWrite(recorded, check, history, on_rollback=rolled_back))
    layers += [layer for layer in (recording, history, Nudge() if nudge else None) if layer is not None]
    return layers


def _intent(call: ToolInvocation) -> dict[str, Any]:
    allowed = call.decision is not None
    return {
        "target": _target_or_empty(call),
        "cwd": str(call.arguments.get("cwd", "")),
        "arguments_sha256": _digest(call.tool, call.arguments),
        "decision": "allow" if allowed else "",
        "rule": call.decision.rule if call.decision is not None else "",
        "snapshot_before": call.snapshot_before,
    }


def _refusal(error: BaseException) -> dict[str, str]:
    """Return the code of an error, and the rule if a capability denied the call."""
    code = error.code if isinstance(error, ProofboxError) else type(error).__name__
    return {"error": code, "rule": str(error.details.get("rule", "")) if isinstance(error, CapabilityDenied) else ""}


def _target_or_empty(call: ToolInvocation) -> str:
    try:
        return call.target
    except ProofboxError:
        return ""  # a malformed patch names no files; the call itself reports the error


def _outcome(result: ToolResult) -> dict[str, Any]:
    if not isinstance(result, CommandResult):
        return {}
    return {
        "exit_code": result.exit_code,
        "duration_ms": result.duration_ms,
        "stdout_sha256": result.stdout_sha256,
        "stderr_sha256": result.stderr_sha256,
        "reach": result.reach,
    }


def _digest(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest of the call, so that the log identifies the arguments without containing them."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        if isinstance(value, Mapping):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        return sha256_hex(value) if isinstance(value, bytes) else repr(value)

    return digest_of({"tool": tool, "arguments": plain(arguments)})


def _nudge(call: ToolInvocation, what: str, why: str) -> ToolNudged:
    return ToolNudged(
        f"{call.tool} was not run: {what}. Stop and think: {why}. Try another way, or finish",
        op=call.tool,
        details={"tool": call.tool, "reason": what},
    )
