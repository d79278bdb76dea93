"""Requests from the model gateway to its endpoint.

httpcore keeps the connections, reaches the endpoint through a proxy, and parses responses. A client of httpx would also
follow redirects, read .netrc and keep cookies, which link the requests of attempts.

httpcore returns the body of a response chunk by chunk, even if many chunks arrived together. To pass those on in one
piece, the gateway needs to know when all of them have been returned: when the connection waits for more.
"""

# ruff: noqa: ASYNC109 (httpcore passes the timeouts)

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import httpcore2
import httpx2

CONNECT_SECONDS = 15.0
MAX_IDLE = 20
IDLE_SECONDS = 5.0
TRANSPORT_ERRORS = (
    *(httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError, httpcore2.TimeoutException),
    httpcore2.UnsupportedProtocol,
)
_EXTENSIONS = {"timeout": {"connect": CONNECT_SECONDS}}
"""There is no timeout after that: the agent decides how long it waits for a response."""

BeforeWaiting = Callable[[], Awaitable[None]]


class Upstream:
    """The connections to one endpoint. They trust the machine's certificates, including those of SSL_CERT_FILE."""

    def __init__(self, base_url: str, proxy: str | None) -> None:
        self._base = httpx2.URL(base_url)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            proxy=None if proxy is None else _proxy(proxy),
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_Network(),
        )

    async def __aenter__(self) -> Upstream:
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._pool.__aexit__(*raised)

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[UpstreamResponse]:
        """Send a request to a path below the base URL. Yield the response as soon as its head has arrived."""
        target = self._base.raw_path.rstrip(b"/") + path.encode("ascii")
        url = httpcore2.URL(scheme=self._base.raw_scheme, host=self._base.raw_host, port=self._base.port, target=target)
        content = body if body or method == "POST" else None
        async with self._pool.stream(
            method, url, headers=list(headers.items()), content=content, extensions=_EXTENSIONS
        ) as response:
            yield UpstreamResponse(response)


class UpstreamResponse:
    """The response to one request. Its body can be read once."""

    def __init__(self, response: httpcore2.Response) -> None:
        self._response = response
        self.status = response.status
        self.headers = httpx2.Headers(response.headers)

    async def pieces(self, before_waiting: BeforeWaiting | None = None) -> AsyncIterator[bytes]:
        """Yield the body, decoded. Call `before_waiting` whenever everything that has arrived was yielded."""
        connection = self._response.extensions["network_stream"]
        pieces = self._response.aiter_stream()
        if "content-encoding" in self.headers:  # although the gateway does not accept any
            pieces = httpx2.Response(self.status, headers=self.headers, stream=_Body(pieces)).aiter_bytes()
        connection.before_waiting = before_waiting
        try:
            async for piece in pieces:
                yield piece
        finally:
            connection.before_waiting = None


class _Body(httpx2.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


class _Connection(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.before_waiting: BeforeWaiting | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self.before_waiting is not None:
            await self.before_waiting()
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Connection(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Network(httpcore2.AnyIOBackend):
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _Connection(await super().connect_tcp(host, port, timeout, local_address, socket_options))


def _proxy(address: str) -> httpcore2.Proxy:
    proxy = httpx2.Proxy(address)
    url = httpcore2.URL(
        scheme=proxy.url.raw_scheme, host=proxy.url.raw_host, port=proxy.url.port, target=proxy.url.raw_path
    )
    return httpcore2.Proxy(url, auth=proxy.raw_auth, headers=proxy.headers.raw)
