"""The bodies of requests and responses that pass through the gateway, kept while an exchange is in progress."""

from __future__ import annotations

from proofbox.agents.events import ModelBody, ModelExchange
from proofbox.agents.gateway.http import HttpRequest
from proofbox.agents.gateway.traffic import Exchange
from proofbox.core.redaction.redactor import Redactor

MAX_BODY = 4 << 20
"""The largest body that is kept. A conversation that fills the context of a model is smaller."""


class Bodies:
    """The bodies of one exchange. The model's key is redacted."""

    def __init__(self, request: HttpRequest, redactor: Redactor) -> None:
        self._redactor = redactor
        self._encoding = request.header("content-encoding")
        self._request = request.body
        self._response = bytearray()
        self._response_size = 0

    def add(self, piece: bytes) -> None:
        """Add a piece of the response."""
        self._response_size += len(piece)
        if self._response_size <= MAX_BODY:
            self._response += piece

    def event(self, exchange: Exchange) -> ModelExchange:
        return ModelExchange(
            session="",
            number=exchange.number,
            method=exchange.method,
            path=exchange.path,
            status=exchange.status,
            outcome=exchange.outcome,
            duration_ms=exchange.duration_ms,
            request=self._body(self._request, len(self._request), self._encoding),
            response=self._body(bytes(self._response), self._response_size),
        )

    def _body(self, data: bytes, size: int, encoding: str = "") -> ModelBody:
        if encoding not in ("", "identity"):  # secrets in it could not be recognised
            return ModelBody(size=size, omitted=f"it is encoded: {encoding[:40]}")
        if size > MAX_BODY:
            return ModelBody(size=size, omitted=f"it has {size} bytes; the limit is {MAX_BODY}")
        return ModelBody(data=self._redactor.redact(data, cut=True), size=size)
