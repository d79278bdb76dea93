"""Tests with a hostile codex: malformed messages never raise, and memory stays bounded."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import Event, Integrity, ToolCall
from proofbox.agents.feed import Feed
from proofbox.agents.jsonrpc.peer import RpcRefusal
from proofbox.agents.runtimes.codex import decoder as decoding
from proofbox.agents.runtimes.codex import items
from proofbox.agents.runtimes.codex.approvals import answer
from proofbox.agents.runtimes.codex.decoder import CodexDecoder, TurnOver
from proofbox.agents.runtimes.codex.failures import classify
from proofbox.agents.runtimes.codex.items import Open
from proofbox.agents.runtimes.codex.listener import MAX_UNREQUESTED, REPORTED_FIRST, CodexListener
from proofbox.core.clock import SystemClock

RULES = (ApprovalRule(answer="decline", command="*rm -rf*"), ApprovalRule(answer="accept", command="src/*"))
VALUES: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


def deepest() -> Any:
    """Return the deepest value that can be decoded here; deeper in the call stack it can't be encoded."""
    for depth in range(12_000, 0, -1):
        with contextlib.suppress(RecursionError):
            return msgspec.json.decode(b'{"x":' * depth + b"1" + b"}" * depth)
    raise AssertionError("nothing can be read")


@pytest.mark.parametrize("method", ["new", "item/started", "item/completed", "turn/completed", "error", "warning"])
def test_deeply_nested_values_are_reported_without_raising(method: str) -> None:
    deep = deepest()
    turn = {"id": "u", "status": "failed", "error": {"codexErrorInfo": {"other": deep}, "message": deep}}
    for params in (deep, {"item": deep}, {"turn": turn, "error": deep}):
        found = CodexDecoder().decode(method, params)
        assert found
        for event in found:
            assert len(msgspec.json.encode(event)) < 100_000
            if isinstance(event, TurnOver):
                assert len(msgspec.json.encode(classify(event.error or {}).details)) < 3000


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MAX_ITEMS", 5)
    monkeypatch.setattr(items, "MAX_BYTES", 50_000)
    monkeypatch.setattr(decoding, "REMEMBERED", 5)
    decoder = CodexDecoder()

    def start(number: int, **more: Any) -> list[Event | TurnOver]:
        item = {"type": "commandExecution", "id": f"{number}-" + "i" * 10**5, "command": "x", "extra": "e" * 10**5}
        return decoder.decode("item/started", {"threadId": "t" * 10**5, "turnId": "u", "item": {**item, **more}})

    for number in range(5):
        [begun] = start(number)
        assert len(begun.thread) == 200
    assert len(decoder.running(turn="u")) == 5
    [finding, left, _] = start(5)
    assert isinstance(finding, Integrity)
    assert isinstance(left, ToolCall)
    assert (finding.code, left.status, left.item[:2], left.command) == ("TOO_MUCH_OPEN", "abandoned", "0-", "x")
    start(6, command="y" * 10**6)
    assert decoder.running(turn="u") == [], "the item exceeds the total limit"
    for number in range(20):
        decoder.decode("item/completed", {"turnId": "u", "item": {"type": "sleep", "id": str(number)}})
        decoder.decode("turn/completed", {"turn": {"id": f"{number}", "status": "completed"}})
        decoder.decode("error", {"turnId": f"{number}", "error": {"message": "m" * 10**6}})
    assert len(msgspec.json.encode([*decoder._done, *decoder._ended])) < 200
    assert len(decoder._errors) == 5
    assert max(len(error["message"]) for error in decoder._errors.values()) == 1000
    [twice] = decoder.decode("item/completed", {"turnId": "u", "item": {"type": "sleep", "id": "19"}})
    assert isinstance(twice, Integrity)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("tu"), st.integers(0, 300), st.booleans()), max_size=30)
)
def test_size_of_open_items_is_tracked_exactly(steps: list[tuple[str, str, int, bool]]) -> None:
    kept = items.OpenItems()
    model: dict[tuple[str, str], str] = {}
    for id, thread, size, begins in steps:
        if begins:
            gone = list(kept.add(Open(thread, f"turn of {thread}", {}), id, {"type": "sleep", "command": "x" * size}))
            assert not gone
            model[thread, id] = "x" * size
        else:
            found = kept.pop((thread, id))
            assert (found.item["command"] if found is not None else None) == model.pop((thread, id), None)
    assert kept._size == sum(len(command) + len("sleep") for command in model.values())
    assert {key for key, _ in kept.of()} == set(model)
    assert {key for key, _ in kept.of(turn="turn of t")} == {key for key in model if key[0] == "t"}
    assert kept.of(["t"]) == kept.of(turn="turn of t")


class Sessionless:
    """A listener and its events."""

    def __init__(self) -> None:
        self.reported: list[Event] = []
        clock = SystemClock()
        feed = Feed("s", clock)
        feed.add_listener(self._hear)
        self.listener = CodexListener(feed, RULES, clock, lambda: None)

    async def _hear(self, event: Event) -> None:
        self.reported.append(event)


ODD: st.SearchStrategy[Any] = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "message"]), inner)
)


@given(
    st.sampled_from(
        [
            *("item/commandExecution/requestApproval", "execCommandApproval", "item/fileChange/requestApproval"),
            *("applyPatchApproval", "item/permissions/requestApproval", "item/tool/requestUserInput", "no/such"),
            *("mcpServer/elicitation/request", "item/tool/call"),
        ]
    ),
    ODD
    | st.dictionaries(
        st.sampled_from(["command", "fileChanges", "permissions", "questions", "tool", "threadId", "turnId"]), ODD
    ),
)
@example("applyPatchApproval", {"fileChanges": 5})
@example("applyPatchApproval", {"fileChanges": [1]})
@example("item/fileChange/requestApproval", {"fileChanges": "x"})
def test_malformed_requests_do_not_raise(method: str, params: Any) -> None:
    try:
        given_ = answer(method, params, RULES)
        given_.result()
    except RpcRefusal:
        return
    assert given_.answer in ("accept", "decline")


def test_invented_threads_and_turns_do_not_accumulate() -> None:
    async def main() -> None:
        lab = Sessionless()
        listener = lab.listener
        listener.begin("ours", "known")
        for number in range(MAX_UNREQUESTED + 50):
            place = {"threadId": f"t{number}" + "x" * 10**4, "turnId": f"u{number}"}
            await listener.on_notification("warning", place)
            await listener.on_notification("turn/started", place)
        assert len(listener.threads) == len(listener._last_activity) == 1 + MAX_UNREQUESTED
        assert len(listener.feed.turns_under_way()) == 1 + MAX_UNREQUESTED
        assert all(len(thread) <= 200 for thread in listener.threads)
        codes = [event.code for event in lab.reported if isinstance(event, Integrity)]
        assert codes == ["TOO_MANY_TURNS"] * (REPORTED_FIRST + 1), "the first ones, then one at each doubling"
        for number in range(40):
            await listener.on_failure(f"m{number}", ValueError())
        codes = [event.code for event in lab.reported if isinstance(event, Integrity)][len(codes) :]
        assert codes == ["MESSAGE_NOT_UNDERSTOOD"] * (REPORTED_FIRST + 1)

    anyio.run(main)
