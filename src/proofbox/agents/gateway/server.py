"""The model gateway: a box talks to the model through it, and never holds the key.

Inside there is a loopback address without a key. It leads, by a socket of its own, to this gateway outside, which adds
the key and passes the request on to one endpoint: the host and the path below which the base URL names, and nothing
else. No redirect is followed, no other host can be named, no credential of the box's is passed on. Answers stream
through line by line, without delay.

What passes is recorded here, so that tokens, rate windows and failures do not rest on what the agent says of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx2
import msgspec

from proofbox.agents.gateway.accepting import accept_all
from proofbox.agents.gateway.http import BodyBudget, HttpRequest, Responder, connection_handler, is_plain
from proofbox.agents.gateway.traffic import MAX_EVENT, Exchange, OnCall, StreamReader, measure, read_body, read_headers
from proofbox.agents.jsonrpc.lines import LineSplitter
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.loopback import is_loopback
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.redaction.stream import StreamRedactor
from proofbox.errors import AuthFailed, UsageError
from proofbox.sandbox.host.unix_sockets import SOCKET, listen_at

PREFIX = "/model"
CONNECT_SECONDS = 15.0
MAX_ERROR_BODY = 1 << 20
REMEMBERED = 10_000
CONNECTIONS = 128
BODIES = 256 << 20  # of all requests at a time
TOLD_FAULTS = 16
_PATH = re.compile(r"(?:/[A-Za-z0-9_~:@!$&'()*+,;=-][A-Za-z0-9._~:@!$&'()*+,;=-]*)+")
_QUERY = re.compile(r"[A-Za-z0-9._~:@!$&'()*+,;=/?%-]*")
_PASSED_ON = frozenset(
    {"accept", "content-type", "content-encoding", "user-agent", "originator", "session-id", "session_id"}
    | {"thread-id", "conversation_id", "openai-beta", "version", "x-client-request-id"}
    | {"anthropic-version", "anthropic-beta"}
)
_PASSED_BACK = frozenset(
    {"content-type", "retry-after", "x-request-id", "request-id", "openai-model", "openai-processing-ms"}
)
_BREAKS = {"cut": "broke off its answer", "unreachable": "can't be reached"}

OnExchange = Callable[[Exchange], Awaitable[None]]
OnTrouble = Callable[[str, str], Awaitable[None]]
"""Hears of a fault of the gateway's own: a code and a message, for the record."""


class ModelEndpoint:
    """Where the model is, and the key to it. Its repr, and every error about it, are silent about the key."""

    def __init__(self, base_url: str, key: str | None = None) -> None:
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
            raise UsageError(
                f"base_url {base_url[:200]!r} is no endpoint",
                op="gateway",
                fix_hints=["write https://HOST[:PORT]/PATH, such as https://api.openai.com/v1"],
            )
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                "base_url holds user information", op="gateway", fix_hints=["put the key in a variable: api_key_env"]
            )
        local = is_loopback(parts.hostname)
        if key is not None and parts.scheme == "http" and not local:
            raise UsageError(
                f"the key would travel to {parts.hostname} unencrypted", op="gateway", fix_hints=["use https"]
            )
        if key is not None and (not key.strip() or not key.isascii() or any(ord(c) < 33 for c in key)):
            raise AuthFailed("the key holds characters that no key has", op="gateway", fix_hints=["set it again"])
        self.base_url = base_url.rstrip("/")
        self.local = local
        self._key = key

    @classmethod
    def of(cls, base_url: str, api_key_env: str | None, env: Mapping[str, str] | None = None) -> ModelEndpoint:
        """With the key from this variable of our own environment; a variable that was named must be there."""
        source = os.environ if env is None else env
        key = source.get(api_key_env, "") if api_key_env else None
        if api_key_env and not key:
            raise AuthFailed(
                f"the variable {api_key_env} holds no key", op="gateway", fix_hints=[f"export {api_key_env}=…"]
            )
        return cls(base_url, key)

    @property
    def has_key(self) -> bool:
        return self._key is not None

    def authorization(self, *, as_api_key: bool = False) -> dict[str, str]:
        """The header with the key. Anthropic's API takes an API key by `x-api-key` alone."""
        if self._key is None:
            return {}
        return {"x-api-key": self._key} if as_api_key else {"authorization": f"Bearer {self._key}"}

    def redactor(self) -> Redactor:
        return Redactor([self._key] if self._key is not None else [], patterns=())

    def __repr__(self) -> str:
        return f"<Endpoint {self.base_url} {'with' if self.has_key else 'without'} a key>"


class ModelGateway:
    """Serves one session. `exchanges` is what it saw, in the order it began.

    `on_exchange` hears of each before the client receives the end of the response, so that a program which ends with
    its last response has ended after it was counted.
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
        self._on_call = on_call
        self._on_trouble = on_trouble
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic()
        self._redactor = endpoint.redactor()
        self._prefix = PREFIX
        self.exchanges: list[Exchange] = []
        self.refused = 0
        self.faults = 0
        """Connections that ended by a defect of ours."""
        self.requests = 0

    @contextlib.asynccontextmanager
    async def listening_at(self, directory: Path) -> AsyncIterator[Path]:
        """On a unix socket in this directory, which must let nobody else in; the socket's path."""
        raw = listen_at(directory)
        path = directory / SOCKET
        path.chmod(0o666)  # the box agent has a uid of its own; who may come this far, the directory says
        try:
            listener = await anyio.abc.SocketListener.from_socket(raw)
            async with self._serving(listener):
                yield path
        finally:
            raw.close()
            path.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def listening_on_loopback(self) -> AsyncIterator[str]:
        """On a port of the host, for an agent outside any box; a base URL with a part that others can't guess."""
        self._prefix = f"/{secrets.token_urlsafe(24)}{PREFIX}"
        raw = socket.create_server(("127.0.0.1", 0))
        port = raw.getsockname()[1]
        async with self._serving(await anyio.abc.SocketListener.from_socket(raw)):
            yield f"http://127.0.0.1:{port}{self._prefix}"

    @contextlib.asynccontextmanager
    async def _serving(self, listener: anyio.abc.SocketListener) -> AsyncIterator[None]:
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)  # how long a model may think is the agent's to say
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        async with (
            httpx2.AsyncClient(
                timeout=timeout,
                limits=limits,
                follow_redirects=False,
                trust_env=False,  # it would read a .netrc, too
                proxy=self._proxy(),
                verify=ssl.create_default_context(),  # what this machine trusts, SSL_CERT_FILE included
            ) as self._client,
            listener,
            anyio.create_task_group() as tasks,
        ):
            # What an endpoint wants remembered would tie requests of different turns, or attempts, to each other.
            self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
            tasks.start_soon(self._serve, listener)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    async def _serve(self, listener: anyio.abc.SocketListener) -> None:
        host = connection_handler(self._pass, budget=BodyBudget(BODIES), on_failure=self._failed)
        try:
            await accept_all(listener, host, most=CONNECTIONS)
        except Exception as error:
            await self._tell_trouble("GATEWAY_ENDED", f"the way to the model is closed ({type(error).__name__})")
            raise

    async def _failed(self, error: Exception) -> None:
        """All of them are counted, and the first told; after that, at every doubling. Not their words: see `_ask`."""
        self.faults += 1
        if self.faults <= TOLD_FAULTS or self.faults & (self.faults - 1) == 0:
            message = f"the gateway to the model failed at a request ({type(error).__name__}, {self.faults} so far)"
            await self._tell_trouble("GATEWAY_FAILED", message)

    async def _tell_trouble(self, code: str, message: str) -> None:
        if self._on_trouble is not None:
            with anyio.CancelScope(shield=True):
                await self._on_trouble(code, message)

    def _proxy(self) -> str | None:
        if self._endpoint.local:
            return None
        return os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or None

    async def _pass(self, request: HttpRequest, responder: Responder) -> None:
        if request.method == "HEAD" and request.target in (self._prefix, f"{self._prefix}/"):
            # Agents look whether the base URL answers before they use it. The gateway does, and no endpoint is asked.
            await responder.send(200)
            return
        path = self._path(request)
        self.requests += 1
        exchange = Exchange(
            number=self.requests,
            method=request.method[:16],
            path=(path or "")[:500],
            at_ms=self._elapsed(0),
            request_bytes=len(request.body),
            thread=request.header("thread-id")[:100],
            turn=_turn_of(request)[:100],
        )
        if len(self.exchanges) < REMEMBERED:
            self.exchanges.append(exchange)
        try:
            if path is not None:
                await self._ask(request, path, exchange, responder)
            else:
                self.refused += 1
                exchange.outcome, exchange.status = "refused", 403
                await self._conclude(exchange)
                body = b"proofbox: this gateway leads to the model and nowhere else\n"
                await responder.send(403, body if request.method != "HEAD" else b"")
        finally:
            await self._conclude(exchange)

    async def _conclude(self, exchange: Exchange) -> None:
        """Report an exchange, once."""
        if exchange.duration_ms is not None:
            return
        exchange.duration_ms = self._elapsed(exchange.at_ms)
        measure(exchange)
        if self._on_exchange is not None:
            with anyio.CancelScope(shield=True):
                await self._on_exchange(exchange)

    def _path(self, request: HttpRequest) -> str | None:
        """What of the target lies below our prefix; None for what must not be passed on."""
        target, _, query = request.target.partition("?")
        if request.method not in ("GET", "POST") or not target.startswith(self._prefix + "/"):
            return None
        path = target[len(self._prefix) :]
        # No percent-encoding and no segment that begins with a dot: one spelling, which no server can read otherwise.
        if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query):
            return None
        return f"{path}?{query}" if query else path

    async def _ask(self, request: HttpRequest, path: str, exchange: Exchange, responder: Responder) -> None:
        headers = {name: value for name, value in request.headers if _passed(name, _PASSED_ON)}
        as_api_key = bool(request.header("x-api-key"))  # what the client uses for a key, the endpoint takes
        headers |= {"accept-encoding": "identity", **self._endpoint.authorization(as_api_key=as_api_key)}
        url = self._endpoint.base_url + path
        try:
            async with self._client.stream(
                request.method, url, content=request.body or None, headers=headers
            ) as answer:
                exchange.status = answer.status_code
                exchange.first_byte_ms = self._elapsed(exchange.at_ms)
                read_headers(exchange, answer.headers, self._clock.now().timestamp())
                await self._hand_back(answer, exchange, responder)
        except (httpx2.TransportError, httpx2.InvalidURL, httpx2.DecodingError) as error:
            # The kind of failure alone: what a library writes into its message is not ours to vouch for.
            if exchange.outcome != "completed":
                exchange.outcome = "cut" if responder.started else "unreachable"
                exchange.error_message = f"the endpoint {_BREAKS[exchange.outcome]} ({type(error).__name__})"
            await self._conclude(exchange)
            await responder.abort()

    async def _hand_back(self, answer: httpx2.Response, exchange: Exchange, responder: Responder) -> None:
        if 300 <= answer.status_code < 400:
            exchange.outcome = "redirected"
            await self._conclude(exchange)
            await responder.send(502, b"proofbox: the endpoint wants to send us elsewhere, where the key must not go\n")
            return
        headers = {
            name: value
            for name, value in answer.headers.items()
            if _passed(name, _PASSED_BACK) and is_plain(value) and self._redactor.redact(value) == value
        }
        if answer.status_code >= 400:
            body = b""
            async for piece in answer.aiter_bytes():
                body = (body + piece)[:MAX_ERROR_BODY]
            exchange.outcome = "http_error"
            exchange.response_bytes = len(body)
            body = self._redactor.redact(body, cut=True)
            read_body(exchange, body)
            await self._conclude(exchange)
            await responder.send(answer.status_code, body, headers)
            return
        await responder.start(answer.status_code, headers)
        await self._stream(answer, exchange, responder)
        await responder.finish()

    async def _stream(self, answer: httpx2.Response, exchange: Exchange, responder: Responder) -> None:
        is_stream = "event-stream" in answer.headers.get("content-type", "")
        reader, lines, body = StreamReader(exchange, self._on_call), LineSplitter(MAX_EVENT), bytearray()
        clean = StreamRedactor(self._redactor)
        async for piece in answer.aiter_bytes():
            exchange.response_bytes += len(piece)
            if is_stream:
                for line, cut in lines.feed(piece):
                    if not cut:
                        reader.line(line)
                if reader.ended:
                    await self._conclude(exchange)
            elif len(body) <= MAX_EVENT:
                body += piece
            await responder.write(clean.feed(piece))
        if is_stream:
            for line, cut in lines.end():
                if not cut:
                    reader.line(line)
            reader.finish()
        else:
            exchange.outcome = "completed"
            read_body(exchange, bytes(body))
        await self._conclude(exchange)
        await responder.write(clean.finish())

    def _elapsed(self, since_ms: float) -> float:
        return round((self._clock.monotonic() - self._began) * 1000 - since_ms, 3)


def _passed(name: str, names: frozenset[str]) -> bool:
    return name in names or name.startswith(("x-codex-", "x-ratelimit-", "anthropic-ratelimit-"))


def _turn_of(request: HttpRequest) -> str:
    try:
        metadata = msgspec.json.decode(request.header("x-codex-turn-metadata") or "{}")
    except msgspec.DecodeError:
        return ""
    turn = metadata.get("turn_id") if isinstance(metadata, dict) else ""
    return turn if isinstance(turn, str) else ""
