"""One call through the funnel, as it is told: asked for, begun, and ended with the outcome it really had."""

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
LEAST_OUTPUT = 2 << 10
COMMAND_LIMIT = 64 << 10

Tell = Callable[[Event], Awaitable[None]]


class RecordBudget:
    """What the record of a session may grow to: so many calls, and so much of their output."""

    def __init__(self, calls: int, output: int) -> None:
        self.calls = calls
        self.output = output
        self._left = calls

    def room(self, used: int) -> int:
        """How much more of an output is kept of which `used` bytes are: little, where there was too much before."""
        return max(0, (OUTPUT_LIMIT if self.output > OUTPUT_LIMIT else LEAST_OUTPUT) - used)

    def take(self) -> bool:
        """Whether there was one left; there is one less now."""
        self._left -= 1
        return self._left >= 0


class KeptOutput:
    """The beginning of an output, as much of it as is recorded, and how much more there was."""

    def __init__(self, allowance: RecordBudget) -> None:
        self._allowance = allowance
        self._data = bytearray()
        self._more = 0

    def add(self, data: bytes) -> None:
        kept = data[: self._allowance.room(len(self._data))]
        self._allowance.output -= len(kept)
        self._data += kept
        self._more += len(data) - len(kept)

    def text(self) -> str:
        return self._data.decode("utf-8", "replace") + (gap(self._more) if self._more else "")


class CallRecorder:
    """Tells the calls of one turn. Their ids are ours, so that no agent can guess one and speak for it."""

    def __init__(
        self, tell: Tell, rules: Sequence[ApprovalRule], allowance: RecordBudget, ids: IdSource, clock: Clock
    ) -> None:
        self.tell = tell
        self.allowance = allowance
        self.rules = rules
        self.ids = ids
        self.clock = clock

    def call(self, tool: str, command: str, cwd: str = "") -> FunnelCall:
        """`tool` and `command` as in `ToolCall`."""
        return FunnelCall(self, tool, preview(command, COMMAND_LIMIT)[0], cwd, subject=subject_of(tool, command))


class FunnelCall:
    def __init__(self, scribe: CallRecorder, tool: str, command: str, cwd: str, *, subject: str) -> None:
        self._scribe = scribe
        self._subject = subject
        self._began = scribe.clock.monotonic()
        self.started: bool | None = False
        """Whether it ran, as the box agent reports it."""
        self._told = ToolCall(
            session="",
            item=scribe.ids.new_id("call"),
            tool=tool,
            command=command,
            cwd=cwd,
            status="abandoned",
            source="observed",
        )

    def kept(self) -> KeptOutput:
        return KeptOutput(self._scribe.allowance)

    async def begin(self, method: str) -> str | None:
        """Tell that it begins; or that a rule declines it, whose name this returns."""
        decided = decide(self._subject, self._scribe.rules)
        if decided is not None:
            answer, rule = decided
            asked = ApprovalDecision(
                session="",
                item=self._told.item,
                method=method,
                subject=preview(self._subject, COMMAND_LIMIT)[0],
                answer=answer,
                rule=rule,
            )
            await self._scribe.tell(asked)
            if answer != "accept":
                await self.end("declined")
                return rule
        told = self._told
        await self._scribe.tell(ItemStarted(session="", item=told.item, kind=told.tool, command=told.command))
        return None

    async def show(self, piece: Output) -> None:
        """Output for whoever watches; also a sign of life."""
        text = piece.data.decode("utf-8", "replace")
        await self._scribe.tell(Delta(session="", item=self._told.item, kind="output", text=text))

    async def end(self, status: ToolStatus, *, exit_code: int | None = None, output: str = "") -> None:
        """Tell it, whoever is being cancelled meanwhile: what was done must not go unrecorded."""
        took = round((self._scribe.clock.monotonic() - self._began) * 1000, 3)
        told = msgspec.structs.replace(
            self._told, status=status, exit_code=exit_code, duration_ms=took, output=output, started=self.started
        )
        with anyio.CancelScope(shield=True):
            await self._scribe.tell(told)
