"""Add the key to outgoing requests, and redact the logs of the HTTP libraries."""

from __future__ import annotations

import logging

import httpx2

from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery.client.settings import ApiKey

KEY_HEADER = "X-Internal-Api-Key"
# proofbox ignores both headers, but the HTTP library parses them and fails on malformed values.
_UNUSED = ("location", "set-cookie")


class KeyedTransport(httpx2.AsyncBaseTransport):
    """Adds the key to a copy of each request just before it is sent, so no request object in an error contains it."""

    def __init__(self, key: ApiKey, inner: httpx2.AsyncBaseTransport) -> None:
        self._key = key
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = [*request.headers.raw, (KEY_HEADER.encode(), self._key.header_value())]
        keyed = httpx2.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
        )
        response = await self._inner.handle_async_request(keyed)
        for name in _UNUSED:
            if name in response.headers:
                del response.headers[name]
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class QuietLogs(logging.Filter):
    """A filter that redacts the logs of the HTTP libraries, which include response headers that may echo the key."""

    LOGGERS = ("httpx2", "httpcore2.connection", "httpcore2.http11")

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redactor.redact(record.getMessage()), ()
        return True

    def begin(self) -> None:
        for name in self.LOGGERS:
            logging.getLogger(name).addFilter(self)

    def end(self) -> None:
        for name in self.LOGGERS:
            logging.getLogger(name).removeFilter(self)
