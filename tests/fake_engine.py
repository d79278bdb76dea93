"""A container engine that runs nothing: it has images by reference, and pulls them from a pretended registry."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DIGEST = "a" * 64
REFERENCE = f"registry.example.org:5000/team/tools@sha256:{DIGEST}"


class FakeEngine(socketserver.ThreadingUnixStreamServer):
    """A container engine that knows images only by reference. `registry` has those that it can pull."""

    daemon_threads = True

    def __init__(self, place: Path) -> None:
        super().__init__(str(place), Handler)
        self.images: set[str] = set()
        self.registry: set[str] = {REFERENCE}
        self.pulls: list[str] = []
        self.copies: list[dict[str, Any]] = []
        """What `docker images` lists."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: FakeEngine

    def do_GET(self) -> None:
        if urllib.parse.urlsplit(self.path).path.endswith("/images/json"):
            self._answer(200, json.dumps(self.server.copies).encode())
            return
        name = urllib.parse.unquote(self.path).partition("/images/")[2].removesuffix("/json")
        if name in self.server.images:
            self._answer(200, b'{"Id": "sha256:0"}')
        else:
            self._answer(404, b'{"message": "No such image"}')

    def do_DELETE(self) -> None:
        name = urllib.parse.unquote(self.path).partition("/images/")[2]
        used = any(name in each["RepoTags"] and each.get("used") for each in self.server.copies)
        if used:
            self._answer(409, b'{"message": "a container uses it"}')
            return
        self.server.copies = [each for each in self.server.copies if name not in each["RepoTags"]]
        self._answer(200, b"[]")

    def do_POST(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        reference = f"{query['fromImage'][0]}@{query['tag'][0]}"
        self.server.pulls.append(reference)
        if reference in self.server.registry:
            self.server.images.add(reference)
            self._answer(200, b'{"status": "Pulling"}\n{"status": "Done"}\n')
        else:
            self._answer(200, b'{"status": "Pulling"}\n{"error": "manifest unknown"}\n')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def fake_engine(place: Path) -> Iterator[FakeEngine]:
    """Serve an engine at a socket."""
    with FakeEngine(place) as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.shutdown()
