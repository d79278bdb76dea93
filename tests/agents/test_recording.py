"""Tests of the recording: which calls it contains, when it ends, and when it is incomplete."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from proofbox.agents.events import Event, Integrity, ItemStarted, Notice, ToolCall, Unrecognized
from proofbox.agents.feed import Feed
from proofbox.agents.recording import Recording
from proofbox.agents.runtimes.codex.lineage import MAX_SUB_AGENTS, Lineage
from proofbox.core.clock import SystemClock


class Session:
    """A session with two threads and a sub-agent of the first. Its commands end when it is closed."""

    def __init__(self) -> None:
        self.feed = Feed("agent-1", SystemClock())
        self.add_listener, self.remove_listener = self.feed.add_listener, self.feed.remove_listener
        self.ended: list[str] = []
        self.late: list[Event] = []

    def owner_of(self, thread: str) -> str:
        return {"one": "one", "two": "two", "sub": "one"}.get(thread, "")

    async def end_thread(self, thread: str) -> None:
        self.ended.append(thread)
        for event in self.late:
            await self.feed.publish(event)

    async def close(self) -> None:
        await self.end_thread("all")


def call(thread: str, item: str = "c1") -> ToolCall:
    return ToolCall(session="", thread=thread, item=item, tool="command", command=item, status="completed")


def begun(thread: str, item: str = "c1") -> ItemStarted:
    return ItemStarted(session="", thread=thread, item=item, kind="command", command=item)


def recorded(
    *events: Event, late: tuple[Event, ...] = (), thread: str | None = None, fails: bool = False
) -> tuple[list[Event], Recording, Session]:
    """Play these events, and late ones when the session ends its threads. Return the listener's events."""
    session, received = Session(), list[Event]()
    session.late = list(late)

    async def hear(event: Event) -> None:
        if fails:
            raise OSError("the disk is full")
        received.append(event)

    async def work() -> Recording:
        recording = Recording(session, hear)  # type: ignore[arg-type]
        recording.start(thread)
        for event in events:
            await session.feed.publish(event)
        await recording.finish("one", close=thread is None)
        await session.feed.publish(call("one", "after"))
        return recording

    return received, anyio.run(work), session


@pytest.mark.parametrize(("thread", "ended"), [(None, ["all"]), ("one", ["one"])])
def test_listens_until_everything_has_ended_and_no_longer(thread: str | None, ended: list[str]) -> None:
    received, recording, session = recorded(begun("one"), late=(call("one"),), thread=thread)
    assert [type(event) for event in received] == [ItemStarted, ToolCall]
    assert session.ended == ended
    assert recording.incomplete_reason == ""


def test_recording_receives_only_its_thread_and_sub_agents() -> None:
    notice = Notice(session="", thread="unknown", kind="warning", message="x")
    received, recording, _ = recorded(call("one"), call("sub"), call("two"), notice, thread="one")
    assert [event.thread for event in received] == ["one", "sub"]
    assert recording.incomplete_reason == ""


@pytest.mark.parametrize("event", [call("unknown"), begun("unknown")])
def test_call_in_an_unknown_thread_makes_the_record_incomplete(event: Event) -> None:
    received, recording, _ = recorded(event, thread="one")
    assert [getattr(each, "code", "") for each in received] == ["CALL_UNATTRIBUTED"]
    assert "CALL_UNATTRIBUTED" in recording.incomplete_reason


@pytest.mark.parametrize(
    ("code", "complete"),
    [("GARBAGE_ON_STREAM", False), ("SOMETHING_NEW", False), ("USAGE_DISAGREES", True), ("GATEWAY_REFUSED", True)],
)
def test_findings_make_the_record_incomplete_unless_they_are_about_something_else(code: str, complete: bool) -> None:
    _, recording, _ = recorded(Integrity(session="", code=code, message="odd"))
    assert (recording.incomplete_reason == "") is complete


def test_call_without_an_end_makes_the_record_incomplete() -> None:
    _, recording, _ = recorded(begun("one", "make all"))
    assert recording.incomplete_reason == "calls without an end: make all"


def test_unknown_item_makes_the_record_incomplete() -> None:
    _, recording, _ = recorded(Unrecognized(session="", method="item/completed", payload="{}"))
    assert "unknown kind" in recording.incomplete_reason
    _, recording, _ = recorded(Unrecognized(session="", method="brand/new", payload="{}"))
    assert recording.incomplete_reason == ""


def test_listener_that_fails_after_the_turn_is_noticed() -> None:
    _, recording, _ = recorded(late=(call("one"),), fails=True)
    assert isinstance(recording.failure, OSError)
    assert "OSError" in recording.incomplete_reason


def test_no_agent_can_claim_a_thread_of_another() -> None:
    lineage = Lineage()
    lineage.start("one")
    lineage.start("two")

    def collab(thread: str, *receivers: Any) -> None:
        item = {"type": "collabAgentToolCall", "id": "c", "receiverThreadIds": list(receivers)}
        lineage.update("item/completed", {"threadId": thread, "item": item}, lambda _: "")

    collab("one", "sub", 7, None)
    collab("two", "sub", "one")
    collab("sub", "subsub")
    assert [lineage.owner(each) for each in ("one", "sub", "subsub", "two", "x")] == ["one", "one", "one", "two", ""]
    assert lineage.family("one") == ["one", "sub", "subsub"]
    collab("one", *(f"s{number}" for number in range(MAX_SUB_AGENTS + 1)))
    assert lineage.owner(f"s{MAX_SUB_AGENTS}") == ""


def test_turn_names_the_turn_that_it_works_for() -> None:
    lineage = Lineage()
    lineage.start("one")
    turn = {"id": "t2", "rootTurnId": "t1"}
    lineage.update("turn/started", {"threadId": "sub", "turn": turn}, {"t1": "one"}.__getitem__)
    assert lineage.owner("sub") == "one"
