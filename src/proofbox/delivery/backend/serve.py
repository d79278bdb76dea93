"""The backend as one application, and serving it."""

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
    """API and pages. It answers to its own names alone: a page of someone else's can't make a browser ask it."""
    hosts = ["localhost", "127.0.0.1", "[::1]", urlsplit(repositories.url).hostname or "localhost"]
    return Starlette(
        routes=[*Api(repositories, key, max_body=max_body).routes(), *Pages(repositories, key).routes()],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        exception_handlers={HTTPException: http_error, 500: http_error},
    )


def serve(data: Path, key: ApiKey, *, host: str = "127.0.0.1", port: int = 3000, ready: Callable[[str], None]) -> None:
    """Serve until interrupted. `ready` is told the address once connections are taken; port 0 is any free one."""
    if not is_loopback(host):
        raise SettingsInvalid(
            f"{host} is not this machine: the reference backend has no TLS, and is for local use",
            op="backend serve",
            fix_hints=["leave --host out, and put a server with TLS in front of it"],
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
            f"can't listen on port {port}: {error.strerror}", op="backend serve", fix_hints=["give another --port"]
        ) from error
