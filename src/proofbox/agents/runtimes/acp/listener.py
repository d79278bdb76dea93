"""Handle the messages of an agent that speaks ACP: report its updates, and answer its requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import ApprovalDecision, Event, Integrity, Unrecognized
from proofbox.agents.jsonrpc.messages import Garbage, Id
from proofbox.agents.jsonrpc.peer import METHOD_NOT_FOUND, RpcRefusal
from proofbox.agents.runtimes.acp.decoder import PAYLOAD, AcpDecoder, encoded
from proofbox.agents.runtimes.acp.program import AcpProgram
from proofbox.agents.runtimes.acp.requests import PERMISSION, answer_permission
from proofbox.agents.runtimes.acp.threads import AcpThread
from proofbox.agents.runtimes.thread_session import LiveThread
from proofbox.core.text import preview, printable

REPORTED_FIRST = 16
NOT_OFFERED = "not offered"


class AcpLiveThread(LiveThread[AcpProgram]):
    """A thread in use: its process, and what its updates have said so far."""

    def __init__(self, stored: AcpThread, fork_of: str = "") -> None:
        super().__init__(stored.id)
        self.stored = stored
        self.fork_of = fork_of
        """The agent's id of the conversation to copy, before the first start of a fork."""
        self.decoder = AcpDecoder()
        self.replaying = False
        """The agent repeats the history, or is being set up: its updates are not new."""
        self.finished = False
        """The agent has ended the turn."""
        self.over = anyio.Event()
        """The turn has ended, or must end because a listener failed."""
        self.killing = anyio.Lock()

    def abandon(self, turn: str | None = None) -> list[Event]:
        return self.decoder.abandon(turn)


class AcpListener:
    """The handlers of one thread's process. `publish` reports an event of the thread."""

    def __init__(
        self,
        thread: AcpLiveThread,
        approvals: Sequence[ApprovalRule],
        undecided: str,
        workspace: str,
        publish: Callable[[Event], Awaitable[None]],
    ) -> None:
        self._thread = thread
        self._approvals = approvals
        self._undecided = undecided
        self._workspace = workspace
        self._publish = publish
        self._faults = 0

    async def on_notification(self, method: str, params: Any) -> None:
        thread = self._thread
        if thread.replaying:
            return
        if method == "session/update":
            for event in thread.decoder.decode(params.get("update") if isinstance(params, dict) else params):
                await self._publish(event)
        elif not method.startswith("_"):  # such methods are extensions that a client may ignore
            payload, truncated = preview(encoded(params), PAYLOAD)
            name = preview(method, 200)[0]
            turn = thread.decoder.turn
            await self._publish(Unrecognized(session="", turn=turn, method=name, payload=payload, truncated=truncated))

    async def on_request(self, id: Id, method: str, params: Any) -> Any:
        """Answer a permission request by the approval rules, and refuse all others by name."""
        del id
        decoder = self._thread.decoder
        if method != PERMISSION or not isinstance(params, dict):
            name = preview(method, 100)[0]
            await self._decide("", name, name, "refused", NOT_OFFERED)
            raise RpcRefusal(METHOD_NOT_FOUND, f"proofbox does not offer {name}")
        for event in decoder.flush():
            await self._publish(event)
        call = decoder.describe(params.get("toolCall"))
        given = answer_permission(call, params.get("options"), self._approvals, self._workspace, self._undecided)
        item = call.item if call is not None else ""
        if given.answer == "decline":
            decoder.declined.add(item)
        await self._decide(item, method, given.subject, given.answer, given.rule)
        return given.reply

    async def on_garbage(self, garbage: Garbage) -> None:
        details = {"size": garbage.size, "beginning": garbage.beginning}
        await self._report("GARBAGE_ON_STREAM", f"the agent wrote a malformed message ({garbage.reason})", details)

    async def on_failure(self, method: str, error: Exception) -> None:
        message = f"the agent sent {printable(method[:100])}, which could not be handled ({type(error).__name__})"
        await self._report("MESSAGE_NOT_UNDERSTOOD", message, {})

    async def _decide(self, item: str, method: str, subject: str, answer: str, rule: str) -> None:
        turn = self._thread.decoder.turn
        await self._publish(
            ApprovalDecision(session="", turn=turn, item=item, method=method, subject=subject, answer=answer, rule=rule)
        )

    async def _report(self, code: str, message: str, details: dict[str, Any]) -> None:
        """Count all faults. Report the first ones, then one at each doubling."""
        self._faults += 1
        number = self._faults
        if number <= REPORTED_FIRST or number & (number - 1) == 0:
            await self._publish(
                Integrity(session="", code=code, message=message, details={"number": number, **details})
            )
