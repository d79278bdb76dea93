"""The model gateway: programs in a box reach the model through it, so that the key stays outside the box.

Programs in the box call a loopback address without a key. A socket connects that address to the gateway outside, which
adds the key and forwards the request to one endpoint: the host of the base URL, and only paths below its path. The
gateway follows no redirects, contacts no other host, and forwards no credentials from the box. Responses are streamed
without delay.

The gateway records the traffic, so that token usage, rate windows and failures do not depend on the agent's reports.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import anyio.abc
import httpx2
import msgspec

from proofbox.agents.contract import SessionOptions
from proofbox.agents.gateway.accepting import accept_all
from proofbox.agents.gateway.apis import MAX_PATH, forwarded_query, model_of
from proofbox.agents.gateway.bodies import Bodies
from proofbox.agents.gateway.departures import ClientDeparture
from proofbox.agents.gateway.endpoint import KEY_HEADERS, ModelEndpoint
from proofbox.agents.gateway.http import BodyBudget, HttpRequest, Responder, connection_handler, is_plain
from proofbox.agents.gateway.rate_windows import number_of, read_windows
from proofbox.agents.gateway.traffic import (
    MAX_EVENT,
    Exchange,
    OnCall,
    StreamReader,
    measure,
    read_body,
    read_partial_body,
)
from proofbox.agents.gateway.upstream import TRANSPORT_ERRORS, Upstream, UpstreamResponse
from proofbox.agents.lines import LineSplitter
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.files.removal import remove_tree
from proofbox.core.redaction.stream import StreamRedactor
from proofbox.sandbox.contract import Door
from proofbox.sandbox.host.unix_sockets import SOCKET, listen_at

PREFIX = "/model"
PORT = 4011
"""The port of the gateway on the loopback interface of a box."""
MAX_ERROR_BODY = 1 << 20
REMEMBERED = 10_000
CONNECTIONS = 128
MAX_TARGET = 8 << 10  # the HTTP client refuses very long addresses, which would look like an unreachable endpoint
BODIES = 256 << 20  # total size of the bodies of all concurrent requests
REPORTED_FAULTS = 16
_PATH = re.compile(r"(?:/[A-Za-z0-9_~:@!$&'()*+,;=-][A-Za-z0-9._~:@!$&'()*+,;=-]*)+")
_QUERY = re.compile(r"[A-Za-z0-9._~:@!$&'()*+,;=/?%-]*")
_FORWARDED_HEADERS = frozenset(
    {"accept", "content-type", "content-encoding", "user-agent", "originator", "session-id", "session_id"}
    | {"thread-id", "conversation_id", "openai-beta", "version", "x-client-request-id", "x-app"}
    | {"anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access", "x-claude-code-session-id"}
    | {"x-goog-api-client"}
)
_THREAD_HEADERS = ("thread-id", "x-claude-code-session-id", "x-session-id")
"""The headers in which Codex, Claude Code and OpenCode name the thread of a request."""
_BETA_HEADERS = ("anthropic-beta", "openai-beta")
_RETURNED_HEADERS = frozenset(
    {"content-type", "retry-after", "x-should-retry", "x-request-id", "request-id"}
    | {"openai-model", "openai-processing-ms"}
)
_BREAKS = {"cut": "broke off its response", "unreachable": "can't be reached"}

OnExchange = Callable[[Exchange], Awaitable[None]]
OnTrouble = Callable[[str, str], Awaitable[None]]
"""Called for a failure of the gateway itself, with a code and a message for the record."""


class ModelGateway:
    """The gateway of one session. `exchanges` lists the requests in the order in which they began.

    `on_exchange` is called before the client receives the end of the response, so that the last response is counted
    even if the program exits right after it.
    """

    def __init__(
        self,
        endpoint: ModelEndpoint,
        *,
        on_exchange: OnExchange | None = None,
        on_trouble: OnTrouble | None = None,
        on_call: OnCall | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._on_exchange = on_exchange
        self._bodies: dict[int, Bodies] = {}
        """The bodies of the exchanges in progress, by number, if they are recorded."""
        self._on_call = on_call
        self._on_trouble = on_trouble
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic()
        self._redactor = endpoint.redactor()
        self._prefix = PREFIX
        self.exchanges: list[Exchange] = []
        self.refused = 0
        self.faults = 0
        """Number of connections that ended because of a bug in the gateway."""
        self.requests = 0

    @contextlib.asynccontextmanager
    async def listening_at(self, directory: Path) -> AsyncIterator[Path]:
        """Listen on a Unix socket in this directory, which must be private. Yield the socket's path."""
        raw = listen_at(directory)
        path = directory / SOCKET
        path.chmod(0o666)  # the box agent has another uid; the directory's mode restricts access
        try:
            listener = await anyio.abc.SocketListener.from_socket(raw)
            async with self._serving(listener):
                yield path
        finally:
            raw.close()
            path.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def listening_on_loopback(self) -> AsyncIterator[str]:
        """Listen on a port of the host, for an agent without a sandbox. Yield a base URL with an unguessable prefix."""
        self._prefix = f"/{secrets.token_urlsafe(24)}{PREFIX}"
        raw = socket.create_server(("127.0.0.1", 0))
        port = raw.getsockname()[1]
        async with self._serving(await anyio.abc.SocketListener.from_socket(raw)):
            yield f"http://127.0.0.1:{port}{self._prefix}"

    @contextlib.asynccontextmanager
    async def _serving(self, listener: anyio.abc.SocketListener) -> AsyncIterator[None]:
        async with (
            Upstream(self._endpoint.base_url, self._proxy()) as self._upstream,
            listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._serve, listener)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    async def _serve(self, listener: anyio.abc.SocketListener) -> None:
        host = connection_handler(self._handle, budget=BodyBudget(BODIES), on_failure=self._failed)
        try:
            await accept_all(listener, host, limit=CONNECTIONS)
        except Exception as error:
            await self._report_trouble("GATEWAY_ENDED", f"the model gateway has stopped ({type(error).__name__})")
            raise

    async def _failed(self, error: Exception) -> None:
        """Count every failure. Report the first ones, then one at each doubling, without messages: see `_forward`."""
        self.faults += 1
        if self.faults <= REPORTED_FAULTS or self.faults & (self.faults - 1) == 0:
            message = f"the model gateway failed at a request ({type(error).__name__}, {self.faults} so far)"
            await self._report_trouble("GATEWAY_FAILED", message)

    async def _report_trouble(self, code: str, message: str) -> None:
        if self._on_trouble is not None:
            with anyio.CancelScope(shield=True):
                await self._on_trouble(code, message)

    def _proxy(self) -> str | None:
        if self._endpoint.local:
            return None
        return os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or None

    async def _handle(self, request: HttpRequest, responder: Responder) -> None:
        if request.method == "HEAD" and request.target in (self._prefix, f"{self._prefix}/"):
            # Agents check whether the base URL responds. Answer here, without contacting the endpoint.
            await responder.send(200)
            return
        path = self._path(request)
        self.requests += 1
        exchange = Exchange(
            number=self.requests,
            method=request.method[:16],
            path=(path or "")[:MAX_PATH],
            at_ms=self._elapsed(0),
            thread=next(filter(None, map(request.header, _THREAD_HEADERS)), "")[:100],
            turn=_turn_of(request)[:100],
        )
        if len(self.exchanges) < REMEMBERED:
            self.exchanges.append(exchange)
        if self._endpoint.record == "bodies":
            self._bodies[exchange.number] = Bodies(request, self._redactor)
        try:
            if path is not None:
                await self._forward(request, path, exchange, responder)
            else:
                self.refused += 1
                exchange.outcome, exchange.status = "refused", 403
                await self._conclude(exchange)
                await responder.send(403, b"proofbox: this gateway forwards only model requests\n")
        finally:
            await self._conclude(exchange)

    async def _conclude(self, exchange: Exchange) -> None:
        """Finish and report an exchange. Only the first call has an effect."""
        if exchange.duration_ms is not None:
            return
        exchange.duration_ms = self._elapsed(exchange.at_ms)
        measure(exchange)
        bodies = self._bodies.pop(exchange.number, None)
        if self._on_exchange is not None:
            exchange.bodies = bodies.event(exchange) if bodies is not None else None
            with anyio.CancelScope(shield=True):
                await self._on_exchange(exchange)
            exchange.bodies = None

    def _keep(self, exchange: Exchange, piece: bytes) -> None:
        """Keep a piece of a response, if bodies are recorded, until its end was reported."""
        if exchange.number in self._bodies:
            self._bodies[exchange.number].add(piece)

    def _path(self, request: HttpRequest) -> str | None:
        """Return the part of the target below our prefix, or None if the request must not be forwarded."""
        target, _, query = request.target.partition("?")
        if request.method not in ("GET", "POST") or not target.startswith(self._prefix + "/"):
            return None
        if len(request.target) > MAX_TARGET:
            return None
        path = target[len(self._prefix) :]
        # No percent-encoding, and no segment that begins with a dot: servers must not interpret the path differently.
        if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query):
            return None
        query = forwarded_query(query)
        return f"{path}?{query}" if query else path

    async def _forward(self, request: HttpRequest, path: str, exchange: Exchange, responder: Responder) -> None:
        headers: dict[str, str] = {}
        for name, value in request.headers:  # as `request.header` joins them
            if _is_forwarded(name, _FORWARDED_HEADERS):
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
        key_header = self._endpoint.key_header(path, next(filter(request.header, KEY_HEADERS), ""))
        headers |= {"accept-encoding": "identity", **self._endpoint.authorization(key_header)}
        model = model_of(request.body)
        exchange.variant = None if model is None else (key_header, model, *map(request.header, _BETA_HEADERS))
        try:
            async with self._upstream.request(request.method, path, headers, request.body) as response:
                exchange.status = response.status
                exchange.windows = read_windows(response.headers, self._clock.now().timestamp())
                exchange.retry_after = number_of(response.headers.get("retry-after"))
                await self._return_response(response, exchange, responder)
        except (*TRANSPORT_ERRORS, httpx2.DecodingError) as error:
            # Record only the type of the error: the library's message could contain a secret.
            if exchange.outcome != "completed":
                exchange.outcome = "cut" if responder.started else "unreachable"
                exchange.error_message = f"the endpoint {_BREAKS[exchange.outcome]} ({type(error).__name__})"
            await self._conclude(exchange)
            await responder.abort()

    async def _return_response(self, response: UpstreamResponse, exchange: Exchange, responder: Responder) -> None:
        if 300 <= response.status < 400:
            exchange.outcome = "redirected"
            await self._conclude(exchange)
            await responder.send(502, b"proofbox: the endpoint sent a redirect, which the gateway does not follow\n")
            return
        headers = {
            name: value
            for name, value in response.headers.items()
            if _is_forwarded(name, _RETURNED_HEADERS) and is_plain(value) and self._redactor.redact(value) == value
        }
        if response.status >= 400:
            body = b""
            async for piece in response.pieces():
                body = (body + piece)[:MAX_ERROR_BODY]
            exchange.outcome = "http_error"
            body = self._redactor.redact(body, cut=True)
            read_body(exchange, body)
            self._keep(exchange, body)
            if response.headers.get("anthropic-ratelimit-unified-status") == "rejected":  # a subscription is used up
                exchange.error_code = exchange.error_code or "usage_limit_reached"
                exchange.resets_at = number_of(response.headers.get("anthropic-ratelimit-unified-reset"))
            await self._conclude(exchange)
            await responder.send(response.status, body, headers)
            return
        await responder.start(response.status, headers)
        await self._stream(response, exchange, responder)
        await responder.finish()

    async def _stream(self, response: UpstreamResponse, exchange: Exchange, responder: Responder) -> None:
        is_stream = "event-stream" in response.headers.get("content-type", "")
        reader, lines, body = StreamReader(exchange, self._on_call), LineSplitter(MAX_EVENT), bytearray()
        clean, client, pending = StreamRedactor(self._redactor), ClientDeparture(responder), bytearray()

        async def flush() -> None:
            if pending:
                data = bytes(pending)
                pending.clear()
                await client.write(data)

        async def read() -> None:
            try:
                async for piece in response.pieces(before_waiting=flush):
                    self._keep(exchange, piece)
                    if is_stream:
                        for line, cut in lines.feed(piece):
                            if not cut:
                                reader.line(line)
                        if reader.ended and client.has_left:
                            break
                        if reader.ended:
                            await self._conclude(exchange)
                    elif len(body) <= MAX_EVENT:
                        body.extend(piece)
                    pending.extend(clean.feed(piece))
                await flush()
            except TRANSPORT_ERRORS:
                await flush()
                if not client.has_left:
                    raise
                return
            if is_stream:
                for line, cut in lines.end():
                    if not cut:
                        reader.line(line)
                reader.finish()
            else:
                exchange.outcome = "completed"
                read_body(exchange, bytes(body))
            exchange.whole = exchange.outcome != "cut"

        try:
            await client.outlive(read)
        finally:
            if not exchange.whole:  # either side broke off
                read_partial_body(exchange, bytes(body))
            if client.has_left and exchange.duration_ms is None:
                exchange.outcome = "abandoned"
        await self._conclude(exchange)
        await responder.write(clean.finish())

    def _elapsed(self, since_ms: float) -> float:
        return round((self._clock.monotonic() - self._began) * 1000 - since_ms, 3)


def _is_forwarded(name: str, names: frozenset[str]) -> bool:
    return name in names or name.startswith(("x-codex-", "x-ratelimit-", "anthropic-ratelimit-"))


def _turn_of(request: HttpRequest) -> str:
    try:
        metadata = msgspec.json.decode(request.header("x-codex-turn-metadata") or "{}")
    except (msgspec.DecodeError, RecursionError):
        return ""
    turn = metadata.get("turn_id") if isinstance(metadata, dict) else ""
    return turn if isinstance(turn, str) else ""


@contextlib.asynccontextmanager
async def open_model_route(
    gateway: ModelGateway, options: SessionOptions, directory: Path
) -> AsyncIterator[tuple[str, tuple[Door, ...]]]:
    """Run the gateway. Yield the address for the agent, and the door in the box that leads to the gateway."""
    if not options.sandboxed or options.policy.get("network") == "full":  # the agent shares the host's loopback
        async with gateway.listening_on_loopback() as base_url:
            yield base_url, ()
        return
    os.mkdir(directory, 0o700)
    try:
        async with gateway.listening_at(directory) as path:
            yield f"http://127.0.0.1:{PORT}{PREFIX}", (Door(PORT, path),)
    finally:
        remove_tree(directory)
