"""The trace of an attempt: its tool calls, its steps, and the figures of its report, recorded from its events.

If the trace cannot record an event, the turn fails. It writes the runtime's events, bounded and redacted, and for each
step the snapshots of the workspace before and after it (`agents/steps.py`) and a diff of the two, so that a step can be
read from the evidence alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from proofbox.agents.approvals import subject_of
from proofbox.agents.event_log import EntryShortener
from proofbox.agents.events import (
    Delta,
    Event,
    FileChange,
    Integrity,
    ItemStarted,
    Message,
    ModelBody,
    ModelExchange,
    Retrying,
    ToolCall,
    TurnEnded,
    TurnStarted,
    Usage,
)
from proofbox.agents.steps import Step, StepRecorder
from proofbox.agents.usage import TokenCount
from proofbox.core.digest import sha256_hex
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview, printable
from proofbox.evidence.bundle.log import BundleLog
from proofbox.lab.attempt.documents import (
    Durations,
    IntegrityFinding,
    ModelExchangeEntry,
    NoProgress,
    StepEntry,
    StoredBody,
    StoredStep,
    ToolCallEntry,
    TurnEnd,
)
from proofbox.lab.attempt.expectations import ObservedCall
from proofbox.lab.suite.spec import Budget

if TYPE_CHECKING:
    from proofbox.evidence.bundle.writer import BundleWriter
    from proofbox.workspace.workspace import Workspace

PREVIEW = 2048
ACTIVITY = 80
_COMMANDS = ("command", "commandExecution", "command_execution", "Bash")
"""The names that runtimes use for the command tool; activity lines show the command alone."""
CALLS, STEPS, EVENTS = "tool.calls.jsonl", "steps.jsonl", "events.jsonl"
EXCHANGES = "model.exchanges.jsonl"
"""Only of attempts that record the bodies of model requests."""
OUTPUTS, DIFFS, BODIES = "outputs/{}.txt", "diffs/{}.diff", "bodies/{}.txt"
MAX_EVENT_BYTES = 96 << 20
"""Maximum size of the events. Readers of a bundle refuse logs beyond 1 GiB."""
CHECK_EVERY = 256
MAX_DIFF_BYTES = 1 << 20
MAX_DIFFS_BYTES = 32 << 20
"""Maximum size of the diff of one step, and of all steps of an attempt."""
MAX_BODIES_BYTES = 64 << 20
"""Maximum size of all bodies of an attempt. Agents send the whole conversation with every request."""
MAX_FILES = 50_000
"""Maximum number of outputs, diffs and bodies. The index of a bundle lists them, and its size is limited."""


class RecordFull(Exception):
    """The agent has reported more than its record can hold. That is its own failure, like an exceeded budget."""


class Trace:
    """Records one attempt. `on_budget` is called once, with the limit that was exceeded."""

    def __init__(
        self,
        bundle: BundleWriter,
        redactor: Redactor,
        attempt: str,
        workspace: Workspace,
        first_snapshot: str,
        budget: Budget,
        on_budget: Callable[[str], None],
        on_activity: Callable[[str], None],
        on_tokens: Callable[[int], None],
        *,
        shared: bool = False,
        reach: Callable[[], tuple[str, ...]] = lambda: (),
    ) -> None:
        self._bundle = bundle
        self._workspace = workspace
        self._redactor = redactor
        self._attempt = attempt
        self._recorder = StepRecorder(workspace, first_snapshot, self._keep_step, reach)
        self._budget = budget
        self._on_budget: Callable[[str], None] | None = on_budget
        self._on_activity = on_activity
        self._on_tokens = on_tokens
        self._calls: BundleLog = bundle.open_log(CALLS)
        self._steps: BundleLog = bundle.open_log(STEPS)
        self._events: BundleLog = bundle.open_log(EVENTS)
        self._event_entries = EntryShortener()
        self._kept: set[str] = set()
        self._begun: set[str] = set()
        self._previous: tuple[str, str] | None = None
        self._same = 0
        self.calls: list[ToolCall] = []
        self.messages = 0
        self.turns = 0
        self.retries: Counter[str] = Counter()
        self.integrity: list[Integrity] = []
        self._tokens = TokenCount(shared=shared)
        self.output_bytes = 0
        self.longest_repeat = 0
        self._diff_bytes = 0
        self._exchanges: BundleLog | None = None
        self._body_bytes = 0

    async def __call__(self, event: Event) -> None:
        if isinstance(event, ModelExchange):
            self._log_exchange(event)
            return
        if isinstance(event, ToolCall | FileChange | TurnEnded) and self._recorder.is_full:
            raise self._full(f"the attempt has {len(self.steps)} steps, the maximum")
        if isinstance(event, ToolCall) and len(self._kept) >= MAX_FILES:
            raise self._full(f"the attempt has {len(self._kept)} outputs, diffs and bodies, the maximum")
        if not isinstance(event, Delta):
            self._log_event(event)
        match event:
            case TurnStarted():
                self.turns += 1
                self._check("turns", self.turns, self._budget.turns)
            case ItemStarted():
                self._begun.add(event.item)
                self._on_activity(self._activity(event.kind, event.command))
            case ToolCall():
                self._tool_call(event)
            case Message():
                self.messages += 1
            case Usage():
                self._usage(event)
            case Retrying():
                self.retries[event.code] += 1
            case Integrity():
                self.integrity.append(event)
            case _:
                pass
        await self._recorder(event)

    @property
    def steps(self) -> list[Step]:
        return self._recorder.steps

    def observed_calls(self) -> list[ObservedCall]:
        """Return the tool calls in the form that a mission's conditions are checked against."""
        return [
            ObservedCall(
                subject_of(call.tool, call.command),
                failed=_failed(call),
                observed=_observed(call),
                declined=call.status == "declined",
                started=call.started is not False,
                exit_code=call.exit_code,
            )
            for call in self.calls
        ]

    def report(self) -> dict[str, Any]:
        """Return the figures for an `AttemptReport`, counted from the trace."""
        return {
            "turns": self.turns,
            "messages": self.messages,
            **call_figures(self.calls),
            "retries": dict(sorted(self.retries.items())),
            "steps": len(self.steps),
            "output_bytes": self.output_bytes,
            "no_progress": NoProgress(self.longest_repeat),
            "responses_without_usage": self._tokens.without_usage,
            "responses_broken_off": self._tokens.broken_off,
            "integrity": tuple(IntegrityFinding(each.code, each.message) for each in self.integrity),
        }

    @property
    def tokens(self) -> TokenCount:
        return self._tokens

    def _usage(self, event: Usage) -> None:
        self._tokens.add(event)
        spent = self._tokens.spent()
        self._on_tokens(spent)
        self._check("tokens", spent, self._budget.tokens)
        if self._budget.tokens is not None and self._tokens.without_usage:
            limit = self._budget.tokens
            self._exceed(f"tokens: a model response states no usage, so the limit of {limit} cannot be checked")

    def _tool_call(self, event: ToolCall) -> None:
        self.calls.append(msgspec.structs.replace(event, output=""))  # the bundle has the output
        output = self._redactor.redact(event.output, cut=True).encode("utf-8", "replace")
        self.output_bytes += len(output)
        shown, cut = preview(output, PREVIEW)
        entry = ToolCallEntry(
            attempt=self._attempt,
            session=event.session,
            thread=event.thread,
            turn=event.turn,
            call=event.item,
            tool=event.tool,
            command=self._redactor.preview(event.command, PREVIEW)[0],
            cwd=self._redactor.preview(event.cwd, PREVIEW)[0],
            status=event.status,
            exit_code=event.exit_code,
            duration_ms=event.duration_ms,
            late=event.late,
            source=event.source,
            started=event.started,
            output_preview=shown,
            output_bytes=len(output),
            output_sha256=self._keep(output) if cut else None,
        )
        self._calls.append(msgspec.to_builtins(entry))
        same = (event.tool, event.command)
        self._same = self._same + 1 if same == self._previous else 1
        self._previous = same
        self.longest_repeat = max(self.longest_repeat, self._same)
        if event.item in self._begun:  # reported when it started
            self._begun.discard(event.item)
        else:
            self._on_activity(self._activity(event.tool, event.command))
        self._check("tool_calls", len(self.calls), self._budget.tool_calls)

    def _activity(self, kind: str, command: str) -> str:
        """Describe what the agent is doing, on one printable line."""
        what = command if command and kind in _COMMANDS else f"{kind} {command}"
        return printable(" ".join(self._redactor.preview(what, ACTIVITY)[0].split()))

    def _log_event(self, event: Event) -> None:
        due = self._events.count % CHECK_EVERY == CHECK_EVERY - 1
        if due and os.path.getsize(self._bundle.path / EVENTS) > MAX_EVENT_BYTES:
            raise self._full(f"{EVENTS} exceeds {MAX_EVENT_BYTES} bytes")
        self._events.append(self._event_entries.shorten(self._bounded(event)))

    def _log_exchange(self, event: ModelExchange) -> None:
        if self._exchanges is None:
            self._exchanges = self._bundle.open_log(EXCHANGES)
        entry = ModelExchangeEntry(
            attempt=self._attempt,
            session=event.session,
            thread=event.thread,
            turn=event.turn,
            number=event.number,
            method=event.method,
            path=self._redactor.preview(event.path, PREVIEW)[0],
            status=event.status,
            outcome=event.outcome,
            duration_ms=event.duration_ms,
            request=self._keep_body(event.request),
            response=self._keep_body(event.response),
        )
        self._exchanges.append(msgspec.to_builtins(entry))

    def _keep_body(self, body: ModelBody) -> StoredBody:
        data, omitted = self._redactor.redact(body.data, cut=True), body.omitted
        if self._body_bytes + len(data) > MAX_BODIES_BYTES:
            data, omitted = b"", f"the bodies of earlier requests reached the limit of {MAX_BODIES_BYTES} bytes"
        if len(self._kept) >= MAX_FILES:
            data, omitted = b"", f"the attempt has {MAX_FILES} outputs, diffs and bodies, the maximum"
        self._body_bytes += len(data)
        return StoredBody(size=body.size, sha256=self._keep(data, BODIES) if data else None, omitted=omitted)

    def _keep_step(self, entry: Mapping[str, Any]) -> None:
        if "step" in entry:
            step: Step = entry["step"]
            members: dict[str, Any] = {"step": StoredStep(**msgspec.structs.asdict(step)), **self._diff(step)}
        else:
            members = {"turn_end": TurnEnd(**entry["turn_end"])}
        self._steps.append(msgspec.to_builtins(StepEntry(attempt=self._attempt, **members)))

    def _diff(self, step: Step) -> dict[str, str]:
        """Store what a step changed, and return the members of its entry that say where, or why it is not stored."""
        if step.snapshot_before == step.snapshot_after:
            return {}
        from proofbox.workspace.timeline.unified_diff import unified  # readers of a trace compare no trees

        lines = self._workspace.compare(step.snapshot_before, step.snapshot_after, unified)
        text = "".join(f"{line.text}\n" for line in lines)
        data = self._redactor.redact(text).encode("utf-8", "replace")
        if len(data) > MAX_DIFF_BYTES:
            return {"diff_omitted": f"it has {len(data)} bytes; the limit is {MAX_DIFF_BYTES}"}
        if self._diff_bytes + len(data) > MAX_DIFFS_BYTES:
            return {"diff_omitted": f"the diffs of earlier steps reached the limit of {MAX_DIFFS_BYTES} bytes"}
        if len(self._kept) >= MAX_FILES:
            return {"diff_omitted": f"the attempt has {MAX_FILES} outputs, diffs and bodies, the maximum"}
        self._diff_bytes += len(data)
        return self._keep_diff(data)

    def keep_diff(self, text: str) -> dict[str, str]:
        """Store a diff, redacted: a short one as the member of a document that is returned, a long one as a file that
        the member names."""
        return self._keep_diff(self._redactor.redact(text).encode("utf-8", "replace"))

    def _keep_diff(self, data: bytes) -> dict[str, str]:
        # Most steps change a few lines, and every file of a bundle takes a block on disk and an entry in the index.
        return {"diff": data.decode()} if len(data) <= PREVIEW else {"diff_sha256": self._keep(data, DIFFS)}

    def _keep(self, data: bytes, name: str = OUTPUTS) -> str:
        """Store an output, a diff or a body once, under its digest, and return the digest."""
        digest = sha256_hex(data)
        path = name.format(digest)
        if path not in self._kept:
            self._kept.add(path)
            self._bundle.write_bytes(path, data)
        return digest

    def _bounded(self, event: Event) -> dict[str, Any]:
        entry: dict[str, Any] = msgspec.to_builtins(event)
        entry["number"] = entry.pop("seq", 0)  # the log numbers its own lines, and not every event is logged
        for name, value in entry.items():
            if isinstance(value, str):
                entry[name] = self._redactor.preview(value, PREVIEW)[0]
        if isinstance(event, FileChange):
            entry["paths"] = [self._redactor.preview(path, PREVIEW)[0] for path in event.paths]
        return entry

    def _full(self, what: str) -> RecordFull:
        self._exceed(what)
        return RecordFull(what)

    def _check(self, name: str, used: int, allowed: int | None) -> None:
        if allowed is not None and used > allowed:
            self._exceed(f"{name}: {used} of {allowed}")

    def _exceed(self, what: str) -> None:
        if self._on_budget is not None:
            report, self._on_budget = self._on_budget, None
            report(what)


def call_figures(calls: Iterable[ToolCall] | Iterable[ToolCallEntry]) -> dict[str, Any]:
    """Return the figures for an `AttemptReport` that follow from the tool calls, which are read once."""
    count = observed = 0
    durations: list[float] = []
    failures: Counter[str] = Counter()
    for call in calls:
        count += 1
        observed += _observed(call)
        if call.duration_ms is not None:
            durations.append(call.duration_ms)
        if _failed(call):
            failures[_failure_code(call)] += 1
    durations.sort()
    return {
        "tool_calls": count,
        "tool_calls_observed": observed,
        "tool_failures": dict(sorted(failures.items())),
        "duration_ms": Durations(_percentile(durations, 0.5), _percentile(durations, 0.95)),
    }


def _failed(call: ToolCall | ToolCallEntry) -> bool:
    return call.status != "completed" or call.exit_code not in (None, 0)


def _observed(call: ToolCall | ToolCallEntry) -> bool:
    return call.source == "observed" and call.started is True


def _failure_code(call: ToolCall | ToolCallEntry) -> str:
    ended = call.status in ("completed", "failed") and call.exit_code not in (None, 0)
    return f"exit_{call.exit_code}" if ended else call.status


def _percentile(ordered: list[float], part: float) -> float | None:
    """Return the nearest-rank percentile, which is always a measured value."""
    return ordered[max(0, -(-len(ordered) * int(part * 100) // 100) - 1)] if ordered else None
