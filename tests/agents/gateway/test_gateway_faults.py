"""Tests of the model gateway with hostile clients and endpoints: they can end only their own connection."""

# ruff: noqa: ASYNC110 (tests wait by polling)

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import h11
import httpx2
import pytest
from drive import Driven, drive
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.events import Integrity
from proofbox.agents.gateway.accepting import accept_all
from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.http import BadRequest, BodyBudget, HttpRequest, Responder, connection_handler, parse_head
from proofbox.agents.gateway.server import REPORTED_FAULTS, ModelGateway
from proofbox.agents.gateway.traffic import Exchange
from proofbox.agents.runtimes.process.runtime import ProcessRuntime

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n"
POST = b"POST /model/x HTTP/1.1\r\nhost: h\r\n"


class Lab:
    """A gateway to an endpoint whose handling of each connection is defined by the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: list[tuple[str, str]] = []
        self.seen: list[Exchange] = []

    @contextlib.asynccontextmanager
    async def open(self, endpoint: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> AsyncIterator[ModelGateway]:
        (listener,) = (await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)).listeners
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 (no Django here)
        gateway = ModelGateway(
            ModelEndpoint(f"http://127.0.0.1:{port}/v1"), on_exchange=self._saw, on_trouble=self._troubled
        )
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, endpoint)
            async with gateway.listening_at(self.directory):
                yield gateway
            tasks.cancel_scope.cancel()

    async def _saw(self, exchange: Exchange) -> None:
        self.seen.append(exchange)

    async def _troubled(self, code: str, message: str) -> None:
        self.told.append((code, message))

    async def connect(self) -> anyio.abc.SocketStream:
        return await anyio.connect_unix(str(self.directory / "sock"))

    async def ask(self) -> httpx2.Response:
        transport = httpx2.AsyncHTTPTransport(uds=str(self.directory / "sock"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://inside", timeout=60) as client:
            return await client.get("/model/x")


def run(tmp_path: Path, work: Callable[[Lab], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            directory = tmp_path / "gw"
            directory.mkdir(mode=0o700)
            await work(Lab(directory))

    anyio.run(main)


async def well(stream: anyio.abc.SocketStream) -> None:
    async with stream:
        await stream.receive()
        await stream.send(OK + b"\r\nhi")


async def all_of(stream: anyio.abc.SocketStream) -> bytes:
    heard = b""
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            heard += await stream.receive()
    return heard


@given(st.binary(max_size=20))
def test_every_accepted_header_can_be_forwarded(value: bytes) -> None:
    try:
        head = b"GET / HTTP/1.1\r\nhost: h\r\nuser-agent: " + value + b"\r\n\r\n"
        said = parse_head(h11.Connection(h11.SERVER), head).header("user-agent")
    except BadRequest:
        return
    httpx2.Request("GET", "http://h/", headers={"user-agent": said})
    assert said.encode("ascii").replace(b"\t", b" ").decode().isprintable()


@pytest.mark.parametrize("value", [b"\xe2\x82\xac", b"caf\xe9", b"a\x01b"])
def test_non_text_response_header_is_dropped(tmp_path: Path, value: bytes) -> None:
    async def endpoint(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(OK + b"x-request-id: " + value + b"\r\nopenai-model: m\r\n\r\nhi")

    async def work(lab: Lab) -> None:
        async with lab.open(endpoint):
            for _ in range(2):
                with contextlib.suppress(httpx2.RemoteProtocolError):  # a client may reject such a response
                    answer = await lab.ask()
                    assert ("x-request-id" in answer.headers, answer.headers["openai-model"]) == (False, "m")
            assert len(lab.seen) == 2
            assert not lab.told

    run(tmp_path, work)


def test_protocol_switch_by_the_endpoint_breaks_only_its_connection(tmp_path: Path) -> None:
    async def endpoint(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")

    async def work(lab: Lab) -> None:
        async with lab.open(endpoint):
            with pytest.raises(httpx2.TransportError):
                await lab.ask()
            assert [exchange.outcome for exchange in lab.seen] == ["unreachable"]
            assert not lab.told

    run(tmp_path, work)


def test_failure_of_one_request_is_reported_and_does_not_end_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 2 * REPORTED_FAULTS

    async def work(lab: Lab) -> None:
        async with lab.open(well) as gateway:
            with monkeypatch.context() as patch:
                patch.setattr(gateway, "_path", lambda _: 1 / 0)
                for _ in range(failures):
                    async with await lab.connect() as stream:
                        await stream.send(POST + b"\r\n")
                        await all_of(stream)
            assert (await lab.ask()).text == "hi"
            assert gateway.faults == failures
            assert [code for code, _ in lab.told] == ["GATEWAY_FAILED"] * (REPORTED_FAULTS + 1), "then at each doubling"
            assert "ZeroDivisionError" in lab.told[0][1]

    run(tmp_path, work)


@pytest.mark.needs("bubblewrap")
def test_end_of_the_gateway_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = anyio.Event()

    async def breaks(*_: Any, **__: Any) -> None:
        await go.wait()
        raise OSError(errno.EBADF, "no listener")

    monkeypatch.setattr("proofbox.agents.gateway.server.accept_all", breaks)

    async def work(driven: Driven) -> None:
        go.set()
        while not driven.of(Integrity):
            await anyio.sleep(0.01)

    driven = drive(ProcessRuntime(), tmp_path, {"command": ["true"], "base_url": "http://127.0.0.1:1/v1"}, work)
    assert [event.code for event in driven.of(Integrity)] == ["GATEWAY_ENDED"]


def test_client_that_disconnects_during_a_write_does_not_affect_others(tmp_path: Path) -> None:
    async def endless(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            asked = await stream.receive()
            if b"POST" not in asked:
                await stream.send(OK + b"\r\nhi")
                return
            await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await stream.send(b"x" * 65536 + b"\n")

    async def work(lab: Lab) -> None:
        async with lab.open(endless):
            async with await lab.connect() as stream:
                # The client sends so much that its disconnect is not read; the next write detects it.
                await stream.send(POST + b"\r\n" + b"y" * 200_000)
                assert (await stream.receive()).startswith(b"HTTP/1.1 200")
            while not lab.seen:
                await anyio.sleep(0.01)
            assert lab.seen[0].outcome == "abandoned"
            assert (await lab.ask()).text == "hi"
            assert not lab.told

    run(tmp_path, work)


def test_refusal_is_recorded_after_the_client_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: Any) -> None:
        raise anyio.BrokenResourceError

    async def work(lab: Lab) -> None:
        async with lab.open(well) as gateway:
            monkeypatch.setattr(Responder, "send", gone)
            async with await lab.connect() as stream:
                await stream.send(b"GET /elsewhere HTTP/1.1\r\nhost: h\r\n\r\n")
                await all_of(stream)
            assert [exchange.outcome for exchange in lab.seen] == ["refused"]
            assert gateway.exchanges == lab.seen

    run(tmp_path, work)


# ---- bounds


@contextlib.asynccontextmanager
async def answering(path: Path, budget: BodyBudget, heard: list[HttpRequest]) -> AsyncIterator[None]:
    async def handler(request: HttpRequest, responder: Responder) -> None:
        heard.append(request)
        await responder.send(200, b"hi")

    listener = await anyio.create_unix_listener(path)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, connection_handler(handler, budget=budget))
        yield
        tasks.cancel_scope.cancel()


def test_bodies_share_one_budget_and_release_it(tmp_path: Path) -> None:
    async def main() -> None:
        budget, path = BodyBudget(1000), tmp_path / "sock"
        heard: list[HttpRequest] = []

        async def say(size: int, sent: int) -> bytes:
            async with await anyio.connect_unix(path) as stream:
                await stream.send(
                    b"POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
                )
                await stream.send(b"x" * sent)
                return await all_of(stream)

        with anyio.fail_after(60):
            async with answering(path, budget, heard):
                async with await anyio.connect_unix(path) as held:
                    await held.send(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 900\r\n\r\n" + b"x" * 600)
                    while budget.left != 400:
                        await anyio.sleep(0.001)
                    assert (await say(500, 500)).startswith(b"HTTP/1.1 503")
                    assert (await say(300, 300)).startswith(b"HTTP/1.1 200")
                while budget.left != 1000:
                    await anyio.sleep(0.001)
                assert (await say(500, 500)).startswith(b"HTTP/1.1 200")
        assert budget.left == 1000
        assert [len(request.body) for request in heard] == [300, 500]

    anyio.run(main)


@pytest.mark.parametrize(
    ("limit", "said", "answer"),
    [
        ("BODY_SECONDS", b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 900\r\n\r\nx", b"HTTP/1.1 408"),
        (
            "BODY_SECONDS",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\nt: 1\r\n",
            b"HTTP/1.1 408",
        ),
        ("HEAD_SECONDS", b"POST / HT", b"HTTP/1.1 408"),
        ("IDLE_SECONDS", b"", b""),
    ],
)
def test_slow_requests_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, said: bytes, answer: bytes
) -> None:
    monkeypatch.setattr(f"proofbox.agents.gateway.http.{limit}", 0.1)

    async def main() -> None:
        with anyio.fail_after(60):
            async with (
                answering(tmp_path / "sock", BodyBudget(1000), []),
                await anyio.connect_unix(tmp_path / "sock") as stream,
            ):
                await stream.send(said)
                heard = await all_of(stream)
        assert heard[: len(b"HTTP/1.1 408")] == answer

    anyio.run(main)


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=6), st.lists(st.integers(1, 40), max_size=12))
def test_body_is_independent_of_packet_boundaries(chunks: list[bytes], cuts: list[int]) -> None:
    body = b"".join(chunks)
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    said = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n" + chunked
    said += b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    heard, budget = [], BodyBudget(1000)

    async def handler(request: HttpRequest, responder: Responder) -> None:
        heard.append(request.body)
        await responder.send(200)

    async def main() -> None:
        with anyio.fail_after(60):
            await connection_handler(handler, budget=budget)(Pieces(said, cuts))  # type: ignore[arg-type]

    anyio.run(main)
    assert heard == [body, body]
    assert budget.left == 1000


class Pieces:
    """A stream that delivers the client's data in these pieces, then ends."""

    def __init__(self, said: bytes, cuts: list[int]) -> None:
        self._said, self._cuts = said, iter(cuts)

    async def receive(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        size = next(self._cuts, 1000)
        piece, self._said = self._said[:size], self._said[size:]
        if not piece:
            await anyio.lowlevel.checkpoint()
            raise anyio.EndOfStream
        return piece

    async def send(self, data: bytes) -> None:
        pass

    def extra(self, _: object) -> Any:
        return type("Raw", (), {"family": socket.AF_INET})

    async def __aenter__(self) -> Pieces:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class Listener:
    """A listener that returns the given streams and raises the given errors."""

    def __init__(self, *comes: Any) -> None:
        self._comes = list(comes)

    async def accept(self) -> Any:
        await anyio.lowlevel.checkpoint()
        if not self._comes:
            await anyio.sleep_forever()
        came = self._comes.pop(0)
        if isinstance(came, Exception):
            raise came
        return came


def shortage() -> Exception:
    error = anyio.BrokenResourceError()
    error.__cause__ = OSError(errno.EMFILE, "too many open files")
    return error


def test_connection_limit_and_retry_when_descriptors_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofbox.agents.gateway.accepting.RETRY_SECONDS", 0.001)
    let_go = [anyio.Event() for _ in range(4)]
    hosted: list[int] = []

    async def host(number: Any) -> None:
        hosted.append(number)
        await let_go[number].wait()

    async def main() -> None:
        listener: Any = Listener(0, shortage(), OSError(errno.ENFILE, "full"), 1, 2, 3)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:

                async def serve() -> None:
                    await accept_all(listener, host, limit=2)

                tasks.start_soon(serve)
                await anyio.wait_all_tasks_blocked()
                while hosted != [0, 1]:
                    await anyio.sleep(0.001)
                await anyio.wait_all_tasks_blocked()
                assert hosted == [0, 1]
                let_go[0].set()
                await anyio.wait_all_tasks_blocked()
                assert hosted == [0, 1, 2]
                tasks.cancel_scope.cancel()

    anyio.run(main)


def test_broken_listener_raises() -> None:
    async def host(_: Any) -> None:
        pass

    async def main() -> None:
        listener: Any = Listener(OSError(errno.EBADF, "closed"))
        with anyio.fail_after(60):
            await accept_all(listener, host, limit=2)

    with pytest.raises(ExceptionGroup) as raised:
        anyio.run(main)
    assert raised.group_contains(OSError)
