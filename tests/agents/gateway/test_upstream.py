"""Tests of the gateway's connections to its endpoint: pieces, encodings, proxies, and connections that are reused."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import anyio.abc
import pytest

from proofbox.agents.gateway.endpoint import ModelEndpoint
from proofbox.agents.gateway.server import ModelGateway

ASK = b'POST /model/v1/messages HTTP/1.1\r\nhost: h\r\ncontent-length: 13\r\n\r\n{"model":"m"}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1}}}\n\n',
    b'data: {"type":"content_block_delta"}\n\n',
    b'data: {"type":"message_delta","usage":{"output_tokens":7}}\n\n',
    b'data: {"type":"message_stop"}\n\n',
]
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Endpoint:
    """Answers each request as the test defines, and counts connections and requests."""

    def __init__(self, answer: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> None:
        self._answer = answer
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        self.connections += 1
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    request = b""
                    while not request.endswith((b"\r\n\r\n", b"}")):
                        request += await stream.receive()
                    self.requests.append(request)
                    await self._answer(stream)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 (no Django here)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self.serve)
            yield f"127.0.0.1:{port}"
            tasks.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def asking(gateway: ModelGateway, directory: Path) -> AsyncIterator[anyio.abc.SocketStream]:
    os.mkdir(directory, 0o700)
    async with gateway.listening_at(directory) as path, await anyio.connect_unix(str(path)) as stream:
        yield stream


async def ask(endpoint: Endpoint, directory: Path) -> tuple[bytes, ModelGateway]:
    """Send one request through a gateway. Return the whole response, and the gateway."""
    async with endpoint.listening() as address:
        gateway = ModelGateway(ModelEndpoint(f"http://{address}"))
        async with asking(gateway, directory) as stream:
            await stream.send(ASK)
            return await read_until(stream, END), gateway


async def read_until(stream: anyio.abc.SocketStream, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        received += await stream.receive()
    return received


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            await work()

    anyio.run(main)


def test_chunks_that_arrive_together_are_passed_on_in_one_piece(tmp_path: Path) -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        await stream.send(HEAD + b"".join(map(chunk, EVENTS)) + END)

    async def work() -> None:
        received, gateway = await ask(Endpoint(answer), tmp_path / "gw")
        assert received.endswith(chunk(b"".join(EVENTS)) + END)
        [exchange] = gateway.exchanges
        assert exchange.outcome == "completed"
        assert exchange.usage is not None
        assert (exchange.usage.input_tokens, exchange.usage.output_tokens) == (5, 7)

    run(work)


def test_chunk_is_passed_on_before_the_next_one_arrives(tmp_path: Path) -> None:
    seen = [anyio.Event() for _ in EVENTS]

    async def answer(stream: anyio.abc.SocketStream) -> None:
        await stream.send(HEAD)
        for event, was_seen in zip(EVENTS, seen, strict=True):
            await stream.send(chunk(event))
            await was_seen.wait()
        await stream.send(END)

    async def work() -> None:
        async with Endpoint(answer).listening() as address:
            gateway = ModelGateway(ModelEndpoint(f"http://{address}"))
            async with asking(gateway, tmp_path / "gw") as stream:
                await stream.send(ASK)
                for event, was_seen in zip(EVENTS, seen, strict=True):
                    await read_until(stream, chunk(event))
                    was_seen.set()
                assert await read_until(stream, END) == END

    run(work)


def test_chunks_before_a_malformed_one_are_passed_on(tmp_path: Path) -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        await stream.send(HEAD + chunk(EVENTS[0]) + b"not a chunk\r\n")
        await anyio.sleep_forever()

    async def work() -> None:
        async with Endpoint(answer).listening() as address:
            gateway = ModelGateway(ModelEndpoint(f"http://{address}"))
            async with asking(gateway, tmp_path / "gw") as stream:
                await stream.send(ASK)
                assert (await read_until(stream, b"\r\n\r\n" + chunk(EVENTS[0]))).startswith(b"HTTP/1.1 200")
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
        [exchange] = gateway.exchanges
        assert (exchange.outcome, exchange.unmeasured) == ("cut", "broken_off")

    run(work)


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_encoded_response_is_decoded_and_counted(tmp_path: Path, coding: str) -> None:
    events = b"".join(EVENTS)

    async def answer(stream: anyio.abc.SocketStream) -> None:
        body = gzip.compress(events) if coding == "gzip" else events
        head = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: " + coding.encode() + b"\r\n\r\n")
        await stream.send(head + chunk(body) + END)

    async def work() -> None:
        endpoint = Endpoint(answer)
        received, gateway = await ask(endpoint, tmp_path / "gw")
        assert b"accept-encoding: identity" in endpoint.requests[0].lower()
        assert b"content-encoding" not in received
        assert received.endswith(chunk(events) + END)
        [exchange] = gateway.exchanges
        assert exchange.usage is not None
        assert exchange.usage.output_tokens == 7

    run(work)


def test_response_with_a_broken_encoding_ends_only_its_request(tmp_path: Path) -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        head = HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        await stream.send(head + chunk(b"not gzip") + END)

    async def work() -> None:
        async with Endpoint(answer).listening() as address:
            gateway = ModelGateway(ModelEndpoint(f"http://{address}"))
            async with asking(gateway, tmp_path / "gw") as stream:
                await stream.send(ASK)
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await read_until(stream, END)
        assert [each.outcome for each in gateway.exchanges] == ["cut"]
        assert gateway.faults == 0

    run(work)


def test_connection_to_the_endpoint_is_reused(tmp_path: Path) -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        await stream.send(HEAD + chunk(b"".join(EVENTS)) + END)

    async def work() -> None:
        endpoint = Endpoint(answer)
        async with endpoint.listening() as address:
            gateway = ModelGateway(ModelEndpoint(f"http://{address}/base/"))
            async with asking(gateway, tmp_path / "gw") as stream:
                for _ in range(3):
                    await stream.send(ASK)
                    await read_until(stream, END)
        assert endpoint.connections == 1
        assert [each.split(b"\r\n")[0] for each in endpoint.requests] == [b"POST /base/v1/messages HTTP/1.1"] * 3
        assert f"host: {address}".encode() in endpoint.requests[0].lower()

    run(work)


def test_endpoint_is_reached_through_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")

    async def work() -> None:
        proxy = Endpoint(refuse)
        async with proxy.listening() as address:
            monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@{address}")
            gateway = ModelGateway(ModelEndpoint("https://model.invalid/v1", "sk-key-0123456789"))
            async with asking(gateway, tmp_path / "gw") as stream:
                await stream.send(ASK)
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
        [request] = proxy.requests
        assert request.startswith(b"CONNECT model.invalid:443 HTTP/1.1\r\n")
        assert b"Basic " + base64.b64encode(b"user:secret") in request
        assert b"sk-key" not in request  # the key is sent only through the tunnel
        assert [each.outcome for each in gateway.exchanges] == ["unreachable"]

    run(work)
