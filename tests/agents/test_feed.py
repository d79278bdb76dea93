"""Tests of the feed: every listener receives each numbered event, or the record is marked as incomplete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.events import Event, Notice
from proofbox.agents.feed import Feed
from proofbox.core.clock import SystemClock


def notice(text: str = "") -> Notice:
    return Notice(session="", kind="x", message=text)


def run(work: Callable[[Feed], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            await work(Feed("s", SystemClock()))

    anyio.run(main)


def test_cancelled_tell_leaves_no_gap() -> None:
    async def work(feed: Feed) -> None:
        received: list[list[int]] = [[], []]
        entered, go_on = anyio.Event(), anyio.Event()

        async def slow(event: Event) -> None:
            entered.set()
            await go_on.wait()
            received[0].append(event.seq)

        async def quick(event: Event) -> None:
            received[1].append(event.seq)

        feed.add_listener(slow)
        feed.add_listener(quick)
        after: list[str] = []

        async def tell() -> None:
            await feed.publish(notice())
            after.append("went on")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell)
            await entered.wait()
            tasks.cancel_scope.cancel()
            go_on.set()
        await feed.publish(notice())
        assert received == [[1, 2], [1, 2]]
        assert feed.failure is None
        assert not after, "the caller is cancelled afterwards"

    run(work)


def test_turn_ends_even_if_end_turn_is_cancelled() -> None:
    async def work(feed: Feed) -> None:
        entered, go_on = anyio.Event(), anyio.Event()

        async def slow(_: Event) -> None:
            entered.set()
            await go_on.wait()

        feed.add_listener(slow)
        feed.begin_turn("u", "t")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.end_turn, "u", "completed")
            await entered.wait()
            tasks.cancel_scope.cancel()
            go_on.set()
        assert (await feed.wait_turn("u")).status == "completed"

    run(work)


def test_listener_that_never_returns_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofbox.agents.feed.LISTEN_SECONDS", 0.05)

    async def work(feed: Feed) -> None:
        received: list[int] = []

        async def hear(event: Event) -> None:
            received.append(event.seq)

        async def hang(_: Event) -> None:
            await anyio.sleep_forever()

        feed.add_listener(hang)
        feed.add_listener(hear)
        await feed.publish(notice())
        assert received == [1]
        assert feed.failure is not None

    run(work)


def test_exit_in_a_listener_is_recorded_as_a_failure() -> None:
    async def main() -> None:
        feed = Feed("s", SystemClock())
        entered = asyncio.Event()

        async def hang(_: Event) -> None:
            entered.set()
            await asyncio.sleep(1000)

        feed.add_listener(hang)
        teller = asyncio.create_task(feed.publish(notice()))
        await entered.wait()
        teller.cancel()  # as the end of the event loop does
        await asyncio.wait([teller], timeout=60)
        assert teller.cancelled()
        assert feed.failure is not None

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_all_listeners_receive_the_same_events_under_cancellation(tellers: list[tuple[int, bool]]) -> None:
    """Each task reports a number of events, and some tasks are cancelled in the meantime."""

    async def work(feed: Feed) -> None:
        received: list[list[int]] = [[], [], []]

        async def listen(to: list[int], event: Event) -> None:
            await anyio.lowlevel.checkpoint()
            to.append(event.seq)

        for each in received:

            async def hear(event: Event, each: list[int] = each) -> None:
                await listen(each, event)

            feed.add_listener(hear)

        async def tell(scope: anyio.CancelScope, often: int) -> None:
            with scope:
                for _ in range(often):
                    await feed.publish(notice())

        async with anyio.create_task_group() as tasks:
            for often, cancelled in tellers:
                scope = anyio.CancelScope()
                tasks.start_soon(tell, scope, often)
                await anyio.lowlevel.checkpoint()
                if cancelled:
                    scope.cancel()
        assert received[0] == received[1] == received[2] == list(range(1, len(received[0]) + 1))
        assert feed.failure is None

    run(work)
