"""Who may see the pages: the holder of the token, from a browser that asks for this host, and no other page.

A box with `network = "full"` reaches loopback, so listening there protects nothing. The token is in the printed URL.
The first request exchanges it for a session (`proofbox.delivery.backend.sessions`): a cookie that is valid only below a
secret path, because browsers send the cookies of a host to all of its ports. Every response carries a policy under
which a page runs no script but ours, and loads nothing from elsewhere.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proofbox.delivery.backend.sessions import COOKIE, BrowserSession

# Referrer-Policy: with `no-referrer`, a browser would send `Origin: null` with our own forms.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The secrets of one server."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    session: BrowserSession = field(default_factory=BrowserSession, repr=False)

    def has_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.token.encode())

    def has_session(self, request: Request) -> bool:
        """Return whether a request has the path and the cookie of the session."""
        name, cookie = str(request.path_params.get("session", "")), request.cookies.get(COOKIE, "")
        return all(
            hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())
            for one, other in ((name, self.session.name), (cookie, self.session.cookie))
        )


class ResponseHeaders:
    """Adds the headers to every response, including errors, and refuses other hosts (DNS rebinding)."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if self._host(scope) not in self._hosts:
            await send_with_headers(
                {"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]}
            )
            await send({"type": "http.response.body", "body": b"This server has another name.\n"})
            return
        await self._app(scope, receive, send_with_headers)

    @staticmethod
    def _host(scope: Scope) -> str:
        given = [value for name, value in scope["headers"] if name == b"host"]
        host = given[0].decode("latin-1").lower() if len(given) == 1 else ""
        return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
