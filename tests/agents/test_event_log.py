"""The entries of a log of events state only what changes, and can be completed again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.event_log import EntryShortener, completed

PLACES = st.sampled_from(["", "a", "b"])
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"session": PLACES, "thread": PLACES, "turn": PLACES, "number": st.integers(0, 4), "event": st.just("message")}
    )
)


def shortened(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shortener = EntryShortener()
    return [shortener.shorten(entry.copy()) for entry in entries]


@given(ENTRIES)
def test_a_shortened_log_can_be_completed(entries: list[dict[str, Any]]) -> None:
    assert list(completed(shortened(entries))) == entries


def test_an_entry_states_only_what_changes() -> None:
    main = {"session": "s", "thread": "main", "turn": "t"}
    child = {**main, "thread": "child"}
    assert shortened(
        [
            {**main, "turn": "", "number": 1},
            {**main, "number": 2},
            {**main, "number": 3},
            {**child, "number": 5},
            {**main, "number": 6},
            {"session": "s", "number": 7},
        ]
    ) == [
        {"session": "s", "thread": "main"},
        {"turn": "t"},
        {},
        {"thread": "child", "number": 5},
        {"thread": "main"},
        {"thread": "", "turn": ""},
    ]
