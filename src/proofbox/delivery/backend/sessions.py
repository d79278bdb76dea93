"""Sessions of browsers that signed in, and the check that a form comes from our pages.

Browsers send the cookies of a host to every port of it, so on a machine with several users anyone who serves a page on
loopback can receive them. A session therefore has three random secrets. Its name is part of the path of every page, and
the cookie is valid only below that path, so a browser sends it to no other server that does not know the path. The form
token is only in our pages, and does not follow from the cookie.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

COOKIE = "proofbox_session"
PREFIX = "/s/"
_MAX_SESSIONS = 64


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """One browser that signed in."""

    name: str = field(default_factory=_secret, repr=False)
    cookie: str = field(default_factory=_secret, repr=False)
    form_token: str = field(default_factory=_secret, repr=False)

    @property
    def path(self) -> str:
        return f"{PREFIX}{self.name}/"

    def link(self, app: str | None = None, number: int | None = None) -> str:
        """Return the path of a page: the list of repositories, an app, or a pull request."""
        if app is None:
            return self.path
        place = f"{self.path}apps/{quote(app, safe='')}"
        return place if number is None else f"{place}/pulls/{number}"

    def set_cookie(self, answer: Response) -> None:
        """Set the cookie. It is not `Secure`, because the backend has no TLS, so it can't have the prefix `__Host-`."""
        answer.set_cookie(COOKIE, self.cookie, httponly=True, samesite="strict", path=self.path)


class BrowserSessions:
    """The last sessions, in memory only: they end with the process."""

    def __init__(self) -> None:
        self._sessions: list[BrowserSession] = []

    def open(self) -> BrowserSession:
        made = BrowserSession()
        self._sessions = [*self._sessions, made][-_MAX_SESSIONS:]
        return made

    def of(self, request: Request) -> BrowserSession | None:
        """Return the session of a request, by its path and its cookie."""
        name, cookie = str(request.path_params.get("session", "")), request.cookies.get(COOKIE, "")
        found = [each for each in self._sessions if _equal(each.name, name) and _equal(each.cookie, cookie)]
        return found[0] if found else None


def is_from_our_page(request: Request, url: str) -> bool:
    """Return whether a browser sent the form from a page of this server, by the headers that only browsers control."""
    own = urlsplit(url)
    try:
        origin = urlsplit(request.headers.get("origin", ""))
        same_port = (origin.scheme, origin.port) == (own.scheme, own.port)
    except ValueError:  # a malformed port or address
        return False
    hosts = (own.hostname, "localhost", "127.0.0.1", "::1")
    return (
        same_port and origin.hostname in hosts and request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


def has_token(session: BrowserSession, token: str) -> bool:
    return _equal(token, session.form_token)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape"))
