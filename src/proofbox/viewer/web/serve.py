"""Serve the viewer: on loopback unless another address is given, and always with a token."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from proofbox.errors import NotFoundError, UsageError
from proofbox.viewer.web.access import Access, ResponseHeaders
from proofbox.viewer.web.pages import ViewerPages

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


def application(root: Path, access: Access, host: str = "127.0.0.1") -> ASGIApp:
    """Return the application for everything below `root`. Responses to failures have the headers as well."""
    names = [*LOCAL_NAMES, f"[{host}]" if ":" in host else host]
    pages = ViewerPages(root.resolve(), access)
    handlers = {404: pages.not_found, 405: pages.not_found, 500: pages.failed}
    return ResponseHeaders(Starlette(routes=pages.routes(), exception_handlers=handlers), names)


def serve(root: Path, *, host: str = "127.0.0.1", port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve until interrupted. `ready` is called with the URL, which contains the token, once the port is open."""
    sys.setswitchinterval(
        0.0005
    )  # a page waits for the interpreter's lock at each row of a ledger while a run is checked
    with _listening(root, host, port) as (server, listener, url):
        ready(url)
        server.run(sockets=[listener])


@contextlib.contextmanager
def serving(root: Path, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread for the duration of the block. Yields the URL, which contains the token."""
    with _listening(root, host, port) as (server, listener, url):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()


def _check_address(host: str, port: int) -> None:
    """Reject an invalid address: an empty host would mean every address of this machine."""
    try:
        ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise UsageError(
            f"{host[:80]!r} is not an address", op="view", fix_hints=["omit --host, or give an IP address"]
        ) from None
    if not 0 <= port <= 65535:
        raise UsageError(
            f"there is no port {port}", op="view", fix_hints=["use a number up to 65535; 0: any free port"]
        )


@contextlib.contextmanager
def _listening(root: Path, host: str, port: int) -> Iterator[tuple[uvicorn.Server, socket.socket, str]]:
    if not root.is_dir():
        raise NotFoundError(f"{root} is not a directory", op="view", fix_hints=["name an --out directory or a run's"])
    _check_address(host, port)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        hints = ["use another port: --port 0"]
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}", op="view", fix_hints=hints
        ) from error
    access = Access()
    with listener:
        config = uvicorn.Config(
            application(root, access, host),
            log_level="critical",  # an error page says what failed; a log could contain the token
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        shown = f"[{host}]" if ":" in host else host
        yield uvicorn.Server(config), listener, f"http://{shown}:{listener.getsockname()[1]}/?token={access.token}"
