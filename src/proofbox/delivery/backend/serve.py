"""Assemble the backend's application and serve it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from proofbox.core.loopback import is_loopback
from proofbox.delivery.backend.api import MAX_BODY, Api, http_error
from proofbox.delivery.backend.pages import Pages
from proofbox.delivery.backend.repositories import Repositories
from proofbox.delivery.client.settings import ApiKey
from proofbox.errors import SettingsInvalid, UsageError


def application(repositories: Repositories, key: ApiKey, *, max_body: int = MAX_BODY) -> Starlette:
    """Return the application with API and pages. It checks the Host header, against DNS rebinding by other sites."""
    hosts = ["localhost", "127.0.0.1", "[::1]", urlsplit(repositories.url).hostname or "localhost"]
    return Starlette(
        routes=[*Api(repositories, key, max_body=max_body).routes(), *Pages(repositories, key).routes()],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        exception_handlers={HTTPException: http_error, 500: http_error},
    )


def serve(data: Path, key: ApiKey, *, host: str = "127.0.0.1", port: int = 3000, ready: Callable[[str], None]) -> None:
    """Serve until interrupted. `ready` is called with the URL once the port is open; port 0 selects any free port."""
    if not is_loopback(host):
        raise SettingsInvalid(
            f"{host} is not a loopback address: the reference backend has no TLS and is for local use",
            op="backend serve",
            fix_hints=["omit --host, and put a server with TLS in front of it"],
        )
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listener.getsockname()[1]}"
    repositories = Repositories(data, url)
    try:
        config = uvicorn.Config(
            application(repositories, key), log_level="warning", access_log=False, server_header=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        ready(url)
        server.run(sockets=[listener])
    finally:
        repositories.close()
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UsageError(
            f"cannot listen on port {port}: {error.strerror}",
            op="backend serve",
            fix_hints=["use another port: --port 0"],
        ) from error
