"""Ids of items: an agent cannot give two of its calls the same one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.events import ToolCall
from proofbox.agents.runtimes import item_ids
from proofbox.agents.runtimes.acp.decoder import AcpDecoder
from proofbox.agents.runtimes.claude.decoder import ClaudeDecoder
from proofbox.agents.runtimes.item_ids import ItemIds

HOSTILE = ("x#2", "x", "x", "x#2", "x#3", "x##2", "x#2#1")


def acp(ids: tuple[str, ...]) -> list[str]:
    decoder = AcpDecoder()
    members = {"sessionUpdate": "tool_call", "status": "completed", "kind": "execute", "rawInput": {"command": "true"}}
    events = [event for id in ids for event in decoder.decode({**members, "toolCallId": id})]
    return [event.item for event in events if isinstance(event, ToolCall)]


def claude(ids: tuple[str, ...]) -> list[str]:
    decoder = ClaudeDecoder()
    events = []
    for id in ids:
        call = {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "true"}}
        events += decoder.decode({"type": "assistant", "message": {"content": [call]}})
        result = {"type": "tool_result", "tool_use_id": id, "content": "ok"}
        events += decoder.decode({"type": "user", "message": {"content": [result]}})
    return [event.item for event in events if isinstance(event, ToolCall)]


@pytest.mark.parametrize("items", [acp, claude])
def test_no_two_calls_of_a_thread_have_the_same_id(items: object) -> None:
    found = items(HOSTILE)  # type: ignore[operator]
    assert len(found) == len(set(found)) == len(HOSTILE)
    assert items(("a", "b")) == ["a", "b"], "ordinary ids stay"  # type: ignore[operator]


@given(st.lists(st.text(st.sampled_from("x#123"), max_size=5), max_size=30))
def test_ids_stay_unique_when_earlier_ones_are_forgotten(given_ids: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_ids, "REMEMBERED", 3)
        ids = ItemIds()
        found = [ids.next(each) for each in given_ids]
    assert len(set(found)) == len(found)
