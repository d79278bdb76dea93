"""Record calls through the funnel: the approval decision, the start, and the end with the actual outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec

from proofbox.agents.approvals import decide, subject_of
from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import ApprovalDecision, Delta, Event, ItemStarted, ToolCall, ToolStatus
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.core.text import gap, preview
from proofbox.sandbox.contract import Output

OUTPUT_LIMIT = 1 << 20
MIN_OUTPUT = 2 << 10
COMMAND_LIMIT = 64 << 10

Publish = Callable[[Event], Awaitable[None]]


class RecordBudget:
    """Limits on the size of a session's record: the number of calls, and the total size of their output."""

    def __init__(self, calls: int, output: int) -> None:
        self.calls = calls
        self.output = output
        self._left = calls

    def remaining(self, used: int) -> int:
        """Return how many more bytes of an output to keep after `used` bytes; few once the budget is spent."""
        return max(0, (OUTPUT_LIMIT if self.output > OUTPUT_LIMIT else MIN_OUTPUT) - used)

    def take(self) -> bool:
        """Use up one call. Return False if the limit has been reached."""
        self._left -= 1
        return self._left >= 0


class KeptOutput:
    """The recorded beginning of an output, and the number of bytes dropped after it."""

    def __init__(self, budget: RecordBudget) -> None:
        self._budget = budget
        self._data = bytearray()
        self._more = 0

    def add(self, data: bytes) -> None:
        kept = data[: self._budget.remaining(len(self._data))]
        self._budget.output -= len(kept)
        self._data += kept
        self._more += len(data) - len(kept)

    def text(self) -> str:
        return self._data.decode("utf-8", "replace") + (gap(self._more) if self._more else "")


class CallRecorder:
    """Reports the calls of one turn. It generates the call ids itself, so that an agent can't forge them."""

    def __init__(
        self, publish: Publish, rules: Sequence[ApprovalRule], budget: RecordBudget, ids: IdSource, clock: Clock
    ) -> None:
        self.publish = publish
        self.budget = budget
        self.rules = rules
        self.ids = ids
        self.clock = clock

    def call(self, tool: str, command: str, cwd: str = "") -> FunnelCall:
        """Create a call. `tool` and `command` have the same meaning as in `ToolCall`."""
        return FunnelCall(self, tool, preview(command, COMMAND_LIMIT)[0], cwd, subject=subject_of(tool, command))


class FunnelCall:
    def __init__(self, recorder: CallRecorder, tool: str, command: str, cwd: str, *, subject: str) -> None:
        self._recorder = recorder
        self._subject = subject
        self._began = recorder.clock.monotonic()
        self.started: bool | None = False
        """Whether the command ran, as reported by the box agent."""
        self._event = ToolCall(
            session="",
            item=recorder.ids.new_id("call"),
            tool=tool,
            command=command,
            cwd=cwd,
            status="abandoned",
            source="observed",
        )

    def output_buffer(self) -> KeptOutput:
        return KeptOutput(self._recorder.budget)

    async def begin(self, method: str) -> str | None:
        """Report the start of the call. If a rule declines the call, report that and return the rule's name."""
        decided = decide(self._subject, self._recorder.rules)
        if decided is not None:
            answer, rule = decided
            decision = ApprovalDecision(
                session="",
                item=self._event.item,
                method=method,
                subject=preview(self._subject, COMMAND_LIMIT)[0],
                answer=answer,
                rule=rule,
            )
            await self._recorder.publish(decision)
            if answer != "accept":
                await self.end("declined")
                return rule
        event = self._event
        await self._recorder.publish(ItemStarted(session="", item=event.item, kind=event.tool, command=event.command))
        return None

    async def show(self, piece: Output) -> None:
        """Report output for live display. This also counts as activity of the turn."""
        text = piece.data.decode("utf-8", "replace")
        await self._recorder.publish(Delta(session="", item=self._event.item, kind="output", text=text))

    async def end(self, status: ToolStatus, *, exit_code: int | None = None, output: str = "") -> None:
        """Report the end of the call. Shielded from cancellation, so that no call goes unrecorded."""
        took = round((self._recorder.clock.monotonic() - self._began) * 1000, 3)
        event = msgspec.structs.replace(
            self._event, status=status, exit_code=exit_code, duration_ms=took, output=output, started=self.started
        )
        with anyio.CancelScope(shield=True):
            await self._recorder.publish(event)
