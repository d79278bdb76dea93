"""Handle the messages of Claude Code: report events, answer requests, and recognize the end of a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import ApprovalDecision, Event, Integrity, TokenUsage, Usage
from proofbox.agents.feed import Feed
from proofbox.agents.gateway.session_route import ModelRoute
from proofbox.agents.runtimes.claude import permissions
from proofbox.agents.runtimes.claude.decoder import ClaudeDecoder, usage_of
from proofbox.agents.runtimes.claude.program import ClaudeProgram
from proofbox.agents.runtimes.claude.threads import ClaudeThread, is_uuid, uuid_for
from proofbox.agents.runtimes.thread_session import LiveThread
from proofbox.agents.usage import added
from proofbox.core.text import preview

REPORTED_FIRST = 16


class ActiveThread(LiveThread[ClaudeProgram]):
    """A thread in use: its process, and what its messages have said so far. `turn` waits for its result."""

    def __init__(self, stored: ClaudeThread) -> None:
        super().__init__(stored.id)
        self.stored = stored
        self.decoder = ClaudeDecoder()
        self.counted: TokenUsage | None = None
        """The total that the process reported last; None before its first report."""
        self.under_way = False
        """The program works on that turn: a result belongs to it. Otherwise, the program works on its own."""
        self.result: dict[str, Any] | None = None
        self.counts_all = True
        """The count in the result of the turn is final: no sub-agent was working any more."""
        self.over = anyio.Event()
        self.last_message = ""

    def abandon(self, turn: str | None = None) -> list[Event]:
        return self.decoder.abandon(turn)


class ClaudeListener:
    """The listener of one session. `note_activity` is called with the turn that shows activity."""

    def __init__(
        self,
        feed: Feed,
        route: ModelRoute,
        approvals: Sequence[ApprovalRule],
        note_activity: Callable[[str], None],
        publish: Callable[[LiveThread[Any], Event], Awaitable[None]],
    ) -> None:
        self._feed = feed
        self._route = route
        self._approvals = approvals
        self._note_activity = note_activity
        self._publish = publish
        self.garbage = 0

    async def on_message(self, thread: ActiveThread, message: dict[str, Any]) -> None:
        """Handle a message. A result belongs to our turn only after the program has started to work on its prompt."""
        turn = thread.turn
        own = uuid_for(turn.id) if turn is not None else ""
        if message["type"] == "command_lifecycle" and message.get("state") == "started":
            self._begin(thread, own, message.get("command_uuid"))
        elif message["type"] == "user" and message.get("isReplay"):
            self._begin(thread, own, message.get("uuid"))
            return
        if message["type"] == "result":
            await self._on_result(thread, message)
            return
        id = message.get("uuid")
        of_agent = message["type"] == "assistant" and message.get("parent_tool_use_id") is None
        if of_agent and isinstance(id, str) and is_uuid(id):
            thread.last_message = id
        for event in thread.decoder.decode(message):
            await self.publish(thread, event)

    def _begin(self, thread: ActiveThread, own: str, id: Any) -> None:
        if own and id == own and thread.turn is not None:
            thread.under_way = True
            thread.decoder.turn, thread.decoder.ended = thread.turn.id, False

    async def _on_result(self, thread: ActiveThread, result: dict[str, Any]) -> None:
        total = usage_of(result)
        last = added(total, thread.counted, -1) if thread.counted is not None else None
        if last is None:  # the count of a resumed session includes earlier processes
            last = usage_of(result, of_turn=True) if thread.stored.turns or thread.stored.forked_from else total
        thread.counted = total
        turn = thread.turn if thread.under_way else None
        usage = Usage(
            session=self._feed.session, turn=turn.id if turn is not None else "", thread=thread.stored.id, total=total
        )
        self._route.reported(thread.stored.id, total, last)
        await self._feed.publish(usage)
        if turn is not None:
            self._note_activity(turn.id)
            thread.result = {name: result.get(name) for name in ("is_error", "api_error_status", "subtype", "result")}
            thread.counts_all = not thread.decoder.sub_agents_work
            thread.over.set()

    async def publish(self, thread: ActiveThread, event: Event) -> None:
        """Report an event of the thread. If a listener failed, the turn in progress ends."""
        await self._publish(thread, event)
        if self._feed.failure is not None:
            thread.over.set()

    async def on_request(self, thread: ActiveThread, request: dict[str, Any], workspace: str) -> dict[str, Any] | None:
        """Answer a request of the program by the approval rules. None: the request is unknown."""
        given = permissions.answer(request, self._approvals, workspace)
        if given.answer == "decline":
            thread.decoder.declined.add(given.item)
        if given.answer:
            await self.publish(
                thread,
                ApprovalDecision(
                    session="",
                    turn=thread.decoder.turn,
                    item=given.item,
                    method=str(request.get("subtype"))[:200],
                    subject=given.subject,
                    answer=given.answer,
                    rule=given.rule,
                ),
            )
        return given.reply

    async def on_garbage(self, line: bytes, reason: str) -> None:
        """Count all garbage. Report the first pieces, then one at each doubling."""
        self.garbage += 1
        number = self.garbage
        if number <= REPORTED_FIRST or number & (number - 1) == 0:
            details = {"number": number, "size": len(line), "beginning": preview(line, 200)[0]}
            message = f"claude wrote a malformed message ({reason})"
            await self._feed.publish(
                Integrity(session=self._feed.session, code="GARBAGE_ON_STREAM", message=message, details=details)
            )
