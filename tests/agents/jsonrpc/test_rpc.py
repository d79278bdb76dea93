"""Tests of the JSON-RPC peer: malformed input is contained, and pending requests always end."""

from __future__ import annotations

import itertools
import json
import os
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.jsonrpc import peer as module
from proofbox.agents.jsonrpc.messages import Garbage, Id, MessageSplitter, Notification, Response, RpcRequest, encode
from proofbox.agents.jsonrpc.peer import OVERLOADED, RpcPeer, RpcRefusal
from proofbox.errors import AgentError, Overloaded, RuntimeProtocolError, RuntimeTimedOut, TransportBroken

# ---- lines

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=10,
)
IDS = st.text(max_size=10) | st.integers(-(2**53), 2**53)
METHODS = st.text(max_size=20)
MESSAGES = (
    st.builds(RpcRequest, IDS, METHODS, JSON)
    | st.builds(Notification, METHODS, JSON)
    | st.builds(Response, IDS, JSON)
    | st.builds(lambda id, code: Response(id, None, {"code": code, "message": "no"}), IDS, st.integers(-40000, 0))
)


def written(message: RpcRequest | Notification | Response, strict: bool) -> bytes:
    if isinstance(message, Response):
        return encode(strict=strict, id=message.id, result=message.result, error=message.error)
    id = message.id if isinstance(message, RpcRequest) else None
    return encode(strict=strict, id=id, method=message.method, params=message.params)


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def all_of(lines: MessageSplitter, pieces: list[bytes]) -> list[Any]:
    found = [message for piece in pieces for message in lines.feed(piece)]
    return [*found, *lines.close()]


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(0, 10**6), max_size=10), st.booleans())
def test_messages_survive_any_packet_boundaries(
    messages: list[RpcRequest | Notification | Response], points: list[int], strict: bool
) -> None:
    data = b"".join(written(message, strict) for message in messages)
    assert data.count(b"\n") == len(messages)
    assert all_of(MessageSplitter(strict=strict), cut(data, points)) == messages


@given(st.lists(st.binary(max_size=60) | MESSAGES.map(lambda m: written(m, False)), max_size=20), st.integers(1, 200))
def test_messages_between_garbage_are_parsed(pieces: list[bytes], limit: int) -> None:
    lines = MessageSplitter(max_line=limit)
    for piece in pieces:
        for found in lines.feed(piece):
            assert isinstance(found, RpcRequest | Notification | Response | Garbage)
        assert len(lines._buffer) <= max(limit, 400)
    assert not [found for found in lines.close() if not isinstance(found, Garbage)]
    assert list(lines.feed(b'{"method":"alive"}\n')) == (
        [Notification("alive", None)] if limit >= 18 else [Garbage("oversized", 18, '{"method":"alive"}')]
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe", "not_json"),
        (b'{"method": "x"', "not_json"),
        (b'{"method":"\\ud800"}', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[]", "not_a_message"),
        (b"7", "not_a_message"),
        (b"{}", "not_a_message"),
        (b'{"id": true, "method": "x"}', "not_a_message"),
        (b'{"id": 1.5, "result": 1}', "not_a_message"),
        (b'{"id": 1, "result": 1, "error": {}}', "not_a_message"),
        (b'{"id": 1}', "not_a_message"),
        (b'{"id": 1, "error": "no"}', "not_a_message"),
        (b'{"result": 1}', "not_a_message"),
        (b'{"method": 5}', "not_a_message"),
        (b"2026 WARN something on stdout \x1b[31m", "not_json"),
    ],
)
def test_garbage_has_a_reason_and_is_printable(line: bytes, reason: str) -> None:
    [found] = MessageSplitter().feed(line + b"\n")
    assert isinstance(found, Garbage)
    assert (found.reason, found.size) == (reason, len(line))
    assert len(found.beginning) <= 1700
    assert "\x1b" not in found.beginning


def test_only_strict_mode_requires_the_version() -> None:
    plain, versioned = b'{"method":"m"}\n', b'{"jsonrpc":"2.0","method":"m"}\n'
    assert list(MessageSplitter().feed(plain + versioned)) == [Notification("m", None)] * 2
    first, second = MessageSplitter(strict=True).feed(plain + versioned)
    assert isinstance(first, Garbage)
    assert second == Notification("m", None)


def test_oversized_line_uses_bounded_memory() -> None:
    lines = MessageSplitter(max_line=1 << 20)
    block = b"x" * (1 << 20)
    tracemalloc.start()
    try:
        for _ in range(1024):
            assert not list(lines.feed(block))
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 8 << 20
    found, after = lines.feed(b'\n{"method":"next"}\n')
    assert isinstance(found, Garbage)
    assert (found.reason, found.size) == ("oversized", 1 << 30)
    assert after == Notification("next", None)


# ---- the peer


class Pipe:
    """One end of two in-memory streams as a `Transport`; `far` is the other end."""

    def __init__(self, room: float = 100) -> None:
        self._to_far, self.far_in = anyio.create_memory_object_stream[bytes](room)
        self.far_out, self._from_far = anyio.create_memory_object_stream[bytes](room)

    async def send(self, data: bytes) -> None:
        try:
            await self._to_far.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise TransportBroken("the pipe is broken", op="send") from None

    async def receive(self) -> bytes:
        try:
            return await self._from_far.receive()
        except anyio.EndOfStream:
            return b""

    async def received(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.far_in.receive())
        return message

    async def say(self, **message: Any) -> None:
        await self.far_out.send(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        for stream in (self._to_far, self.far_in, self.far_out, self._from_far):
            stream.close()


class Heard:
    def __init__(self) -> None:
        self.notifications: list[tuple[str, Any]] = []
        self.garbage: list[Garbage] = []
        self.failures: list[tuple[str, type[Exception]]] = []
        self.gate: anyio.Event | None = None

    async def notification(self, method: str, params: Any) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if method == "break":
            raise ZeroDivisionError
        self.notifications.append((method, params))

    async def request(self, id: Id, method: str, params: Any) -> Any:
        if method == "refuse":
            raise RpcRefusal(-32601, "unknown")
        if method == "break":
            raise KeyError(method)
        if method == "unspeakable":
            return object()
        return {"echo": params}

    async def junk(self, garbage: Garbage) -> None:
        self.garbage.append(garbage)

    async def failed(self, method: str, error: Exception) -> None:
        self.failures.append((method, type(error)))


def run(work: Callable[[Pipe, RpcPeer, Heard], Awaitable[None]], room: float = 100, **options: Any) -> None:
    async def main() -> None:
        pipe, received = Pipe(room), Heard()
        peer = RpcPeer(
            pipe,
            on_notification=received.notification,
            on_request=received.request,
            on_garbage=received.junk,
            on_failure=received.failed,
            **options,
        )
        try:
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(peer.serve)
                    await work(pipe, peer, received)
                    tasks.cancel_scope.cancel()
        finally:
            pipe.close()

    anyio.run(main)


def test_responses_in_any_order_match_their_requests() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        answers: dict[int, Any] = {}

        async def ask(number: int) -> None:
            answers[number] = await peer.request("m", {"n": number})

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(ask, number)
            asked = [await pipe.received() for _ in range(50)]
            assert len({each["id"] for each in asked}) == 50
            assert all("jsonrpc" not in each and isinstance(each["id"], str) for each in asked)
            for each in reversed(asked):
                await pipe.say(id=each["id"], result=each["params"]["n"] * 2)
        assert answers == {number: number * 2 for number in range(50)}

    run(work)


def test_ids_of_the_two_sides_do_not_collide() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.request, "ours")
            ours = await pipe.received()
            await pipe.say(id=ours["id"], method="theirs", params=[1])  # a request with one of our ids
            assert await pipe.received() == {"id": ours["id"], "result": {"echo": [1]}}
            await pipe.say(id=1, result="unmatched")
            await pipe.say(id=ours["id"], result="x")
        await pipe.say(id=ours["id"], result="twice")
        await pipe.say(id=9, method="refuse")
        assert await pipe.received() == {"id": 9, "error": {"code": -32601, "message": "unknown"}}
        assert peer.strays == 2

    run(work)


def test_failed_handler_is_reported_and_the_connection_continues() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        await pipe.say(method="break")
        for id, method in enumerate(("break", "unspeakable")):
            await pipe.say(id=id, method=method)
            answer = await pipe.received()
            assert (answer["id"], answer["error"]["code"]) == (id, -32603)
        await pipe.say(id=9, method="fine", params=1)
        assert await pipe.received() == {"id": 9, "result": {"echo": 1}}
        assert received.failures == [("break", ZeroDivisionError), ("break", KeyError), ("unspeakable", TypeError)]

    run(work)


def test_request_times_out_and_its_late_response_is_a_stray() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        with pytest.raises(RuntimeTimedOut) as caught:
            await peer.request("slow", seconds=0.05)
        assert caught.value.details["method"] == "slow"
        late = await pipe.received()
        await pipe.say(id=late["id"], result=1)
        await pipe.say(method="after")
        while not received.notifications:
            await anyio.lowlevel.checkpoint()
        assert peer.strays == 1
        assert not peer._waiting

    run(work)


def test_refusals_are_typed() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        async def answer(error: dict[str, Any]) -> None:
            await pipe.say(id=(await pipe.received())["id"], error=error)

        for error, kind in (
            ({"code": OVERLOADED, "message": "later"}, Overloaded),
            ({"code": -32600, "message": "no \x1b[31m such thread"}, RuntimeProtocolError),
            ({}, RuntimeProtocolError),
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer, error)
                with pytest.raises(AgentError) as caught:
                    await peer.request("m")
            assert type(caught.value) is kind
            assert "\x1b" not in caught.value.message

    run(work)


@pytest.mark.parametrize("how", ["eof", "broken", "cancelled"])
def test_end_of_stream_fails_pending_and_later_requests(how: str) -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        ended: list[AgentError] = []

        async def ask() -> None:
            with pytest.raises(TransportBroken) as caught:
                await peer.request("m")
            ended.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
            for _ in range(5):
                await pipe.received()
            if how == "eof":
                await pipe.far_out.send(b'{"method":"last"}\n{"half')
                pipe.far_out.close()
            elif how == "broken":
                pipe.far_in.close()
                with pytest.raises(TransportBroken):
                    await peer.notify("x")
            else:
                peer._break(TransportBroken("gone", op="x"))
        assert len(ended) == 5
        with pytest.raises(TransportBroken):
            await peer.request("later")
        if how == "eof":
            while not received.garbage:
                await anyio.lowlevel.checkpoint()
            assert received.notifications == [("last", None)]
            assert received.garbage[0].reason == "unfinished"

    run(work)


def test_slow_handler_stops_reading_but_responses_arrive() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        received.gate = anyio.Event()
        for number in range(6):
            await pipe.say(method="n", params=number)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.request, "m")
            await pipe.say(id=(await pipe.received())["id"], result=1)
        sent = 0
        with anyio.move_on_after(0.2):
            while True:
                await pipe.say(method="more", params=sent)
                sent += 1
        assert sent < 20  # the queue, the pipe, and one message at each end
        received.gate.set()
        while len(received.notifications) < 6 + sent:
            await anyio.lowlevel.checkpoint()
        assert [params for _, params in received.notifications] == [*range(6), *range(sent)]

    run(work, room=2, queue=8)


def test_on_result_runs_before_later_messages_are_handled() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        order: list[str] = []

        async def note(method: str, params: Any) -> None:
            order.append(method)

        peer._on_notification = note

        async def ask() -> None:
            await peer.request("start", on_result=lambda _: order.append("answer"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            id = (await pipe.received())["id"]
            await pipe.far_out.send(encode(strict=False, id=id, result={}) + encode(strict=False, method="started"))
        while len(order) < 2:
            await anyio.lowlevel.checkpoint()
        assert order == ["answer", "started"]

    run(work)


def test_response_of_an_ordered_peer_is_handled_after_earlier_messages() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        received.gate = anyio.Event()
        seen: list[tuple[str, Any]] = []

        async def ask() -> None:
            await peer.request("m")
            seen.extend(received.notifications)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            asked = await pipe.received()
            for number in range(5):
                await pipe.say(method="update", params=number)
            await pipe.say(id=asked["id"], result={})
            await anyio.wait_all_tasks_blocked()
            assert not seen
            received.gate.set()
        assert seen == [("update", number) for number in range(5)]

    run(work, ordered=True)


def test_program_that_reads_no_input_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.1)

    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        with pytest.raises(TransportBroken, match="no input"):
            await peer.request("m", seconds=60)
        assert peer.broken is not None

    run(work, room=0)


def test_flood_of_garbage_is_counted_and_the_connection_continues(rounds: Callable[[int, int], int]) -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        times = rounds(200, 5000)
        for _ in range(times):
            await pipe.far_out.send(os.urandom(200).replace(b"\n", b"x").replace(b"\r", b"x") + b"\n")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.request, "m")
            await pipe.say(id=(await pipe.received())["id"], result=1)
        while len(received.garbage) < times:
            await anyio.lowlevel.checkpoint()

    run(work)


def test_strict_mode_sends_the_version_in_every_message() -> None:
    async def work(pipe: Pipe, peer: RpcPeer, received: Heard) -> None:
        await peer.notify("n", {"a": 1})
        assert await pipe.received() == {"jsonrpc": "2.0", "method": "n", "params": {"a": 1}}
        await pipe.say(jsonrpc="2.0", id=1, method="q")
        assert await pipe.received() == {"jsonrpc": "2.0", "id": 1, "result": {"echo": None}}

    run(work, strict=True)
