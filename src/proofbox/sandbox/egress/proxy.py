"""The network access of a box with an allowlist: an HTTP proxy outside, which the box reaches over a unix socket.

It supports CONNECT and plain HTTP. It resolves a name once and connects to the address that it checked: a name that
resolves to a private address is refused (DNS rebinding), unless the rule names that address or `localhost`. An allowed
loopback endpoint also has a separate socket, which leads only there. Every decision is an event.

Limitation: the proxy sees the requested host, not the content inside TLS. A box can send anything to an allowed host.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from proofbox.core.allowlist import HostRule, canonical_host, find_rule, is_address, is_public, split_port
from proofbox.core.text import printable
from proofbox.sandbox.contract import Event, OnEvent
from proofbox.sandbox.egress.http_body import Malformed, RequestBody, parse_fields

Resolve = Callable[[str, int], Sequence[str]]

HEAD_LIMIT = 64 << 10
CHUNK = 64 << 10
CONNECT_SECONDS = 10.0
HEAD_SECONDS = 30.0
MAX_CONNECTIONS = 256
CLOSE_SECONDS = 5.0
PAUSE = 0.05
PROXY_SOCKET = "proxy"
_TEMPORARY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EPERM})
"""Temporary errors of accept: try again."""


_HOP_BY_HOP = re.compile(r"host|connection|proxy-.*|keep-alive|te|upgrade")
_BARE = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")


class Refused(Exception):
    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class AllowlistProxy:
    """Serves one box from threads of this process; `close` ends every connection."""

    def __init__(
        self,
        directory: Path,
        rules: Sequence[HostRule],
        *,
        name: str = "",
        on_event: OnEvent | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._rules = rules
        self._name = name
        self._on_event = on_event
        self._resolve = resolve or _resolve
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._serving: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listeners = [self._listen(directory / PROXY_SOCKET, self._serve_http)]
        endpoints = {rule.port: rule for rule in rules if rule.is_loopback and rule.port is not None}
        self.loopback = tuple(endpoints.values())
        for rule in self.loopback:
            self._listeners.append(self._listen(directory / str(rule.port), self._endpoint(rule)))

    def close(self) -> None:
        """End every connection and report their ends as events."""
        with self._lock:
            self._closed = True
            everything = [*self._listeners, *self._open]
            serving = self._serving - {threading.current_thread()}
        for each in everything:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
        for listener in self._listeners:
            listener.close()
        end = time.monotonic() + CLOSE_SECONDS  # a thread that resolves a name or connects is not interrupted
        for thread in serving:
            thread.join(max(0.0, end - time.monotonic()))

    # Connections

    def _listen(self, path: Path, serve: Callable[[socket.socket], None]) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o666)  # its directory restricts access
        listener.listen(MAX_CONNECTIONS)  # the box agent does not wait when the backlog is full: the connection fails
        threading.Thread(target=self._accept, args=(listener, serve), name="proofbox-proxy", daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            self._room.acquire()
            try:
                client, _ = listener.accept()
            except OSError as error:
                self._room.release()
                if error.errno not in _TEMPORARY:  # it was closed
                    return
                time.sleep(PAUSE)
                continue
            thread = threading.Thread(target=self._one, args=(client, serve), name="proofbox-proxy", daemon=True)
            try:
                with self._lock:
                    thread.start()
                    self._serving.add(thread)
            except RuntimeError:  # too many threads: refuse this connection
                client.close()
                self._room.release()
                time.sleep(PAUSE)

    def _one(self, client: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        try:
            if self._hold(client):
                client.settimeout(HEAD_SECONDS)
                with contextlib.suppress(OSError):
                    serve(client)
        finally:
            self._drop(client)
            self._room.release()
            with self._lock:
                self._serving.discard(threading.current_thread())

    def _hold(self, stream: socket.socket) -> bool:
        with self._lock:
            self._open.add(stream)
            return not self._closed

    def _drop(self, stream: socket.socket) -> None:
        with self._lock:
            self._open.discard(stream)
        stream.close()

    # Requests

    def _endpoint(self, rule: HostRule) -> Callable[[socket.socket], None]:
        def serve(client: socket.socket) -> None:
            host, port = ("127.0.0.1" if rule.host == "localhost" else rule.host), rule.port or 0
            with contextlib.suppress(Refused):
                self._pass(client, host, port, rule, b"", b"")

        return serve

    def _serve_http(self, client: socket.socket) -> None:
        try:
            head, rest = _read_head(client)
            host, port, onward, body = _parse_head(head)
            known = canonical_host(host)
            rule = find_rule(self._rules, known, port) if known is not None else None
            if known is None or rule is None:
                raise self._denied(host, port)
            if body is None:
                self._pass(client, known, port, rule, rest, b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                self._pass(client, known, port, rule, onward + _part_of(body, rest), b"", body)
        except Refused as refusal:
            text = f"proofbox: {printable(str(refusal))}\n".encode()
            lines = f"HTTP/1.1 {refusal.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
            client.sendall(lines.encode() + b"Connection: close\r\n\r\n" + text)

    def _denied(self, host: str, port: int) -> Refused:
        self._emit("denied", host, port, None)
        return Refused("403 Forbidden", f"{host}:{port} is not on this box's allowlist")

    def _pass(
        self,
        client: socket.socket,
        host: str,
        port: int,
        rule: HostRule,
        first: bytes,
        answer: bytes,
        body: RequestBody | None = None,
    ) -> None:
        """Copy in both directions until both ends are closed. Drop anything that the client sends after a body."""
        upstream = self._connect(host, port, rule)
        self._emit("allowed", host, port, rule)
        sent = received = 0
        try:
            if self._hold(upstream):
                client.settimeout(None)
                upstream.settimeout(None)
                if answer:
                    client.sendall(answer)
                if first:
                    upstream.sendall(first)
                counts = [len(first), 0]
                back = threading.Thread(target=_copy, args=(upstream, client, counts, 1), daemon=True)
                back.start()
                _copy(client, upstream, counts, 0, body)
                back.join()
                sent, received = counts
        finally:
            self._drop(upstream)
            self._emit("finished", host, port, rule, bytes_out=sent, bytes_in=received)

    def _connect(self, host: str, port: int, rule: HostRule) -> socket.socket:
        try:
            addresses = [host] if is_address(host) else list(self._resolve(host, port))
        except OSError as error:
            raise Refused("502 Bad Gateway", f"{host} can't be resolved: {error}") from None
        named = is_address(rule.host) or rule.host == "localhost"
        allowed = [each for each in addresses if named or is_public(each)]
        if not allowed:
            self._emit("denied", host, port, rule, reason="it resolves to a private address")
            raise Refused("403 Forbidden", f"{host} resolves to a private address, which its rule does not name")
        problem: OSError | None = None
        for address in allowed:
            try:
                return socket.create_connection((address, port), CONNECT_SECONDS)
            except OSError as error:
                problem = error
        raise Refused("502 Bad Gateway", f"{host}:{port} can't be reached: {problem}")

    def _emit(
        self,
        phase: Literal["allowed", "denied", "finished"],
        host: str,
        port: int,
        rule: HostRule | None,
        **more: object,
    ) -> None:
        if self._on_event is not None:
            detail = {"host": printable(host[:253]), "port": port, "rule": str(rule) if rule else None, **more}
            self._on_event(Event("network", phase, self._name, detail))


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    held, end = b"", -1
    while end < 0:
        if len(held) > HEAD_LIMIT:
            raise Refused("431 Request Header Fields Too Large", "the head of the request is too large")
        data = client.recv(CHUNK)
        if not data:
            raise Refused("400 Bad Request", "the request ended before the end of its head")
        new = max(0, len(held) - 3)
        held += data
        end = held.find(b"\r\n\r\n", new)
        if _BARE.search(held, new, end if end >= 0 else len(held)):
            raise Refused("400 Bad Request", "a line in the head of the request does not end with CR LF")
    return held[:end], held[end + 4 :]


def _part_of(body: RequestBody, data: bytes) -> bytes:
    try:
        return body.take(data)
    except Malformed as error:
        raise Refused("400 Bad Request", str(error)) from None


def _parse_head(head: bytes) -> tuple[str, int, bytes, RequestBody | None]:
    """Return host, port, the head to send to the origin server, and the body; for CONNECT the last two are empty."""
    line, *headers = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or any(ord(c) < 33 for word in words for c in word):
        raise Refused("400 Bad Request", "malformed HTTP request")
    method, target, version = words
    try:
        fields = parse_fields(headers)
        body = RequestBody(fields)
    except Malformed as error:
        raise Refused("400 Bad Request", str(error)) from None
    if method == "CONNECT":
        parts = split_port(target)
        if parts is None or parts[1] is None:
            raise Refused("400 Bad Request", "CONNECT needs HOST:PORT")
        return parts[0], parts[1], b"", None
    scheme, separator, rest = target.partition("://")
    authority, slash, path = rest.partition("/")
    parts = split_port(authority)
    if scheme.lower() != "http" or not separator or "@" in authority or parts is None or not parts[0]:
        raise Refused("400 Bad Request", "only CONNECT, and http://HOST/… without user information, are supported")
    # The Host header must match the target that the rule was checked for. One request per connection: a second one
    # could be for another host.
    kept = [f"{name}: {value}" for name, value in fields if not _HOP_BY_HOP.fullmatch(name.lower())]
    lines = [f"{method} {slash or '/'}{path} {version}", f"Host: {authority}", "Connection: close", *kept, "", ""]
    return parts[0], parts[1] or 80, "\r\n".join(lines).encode("latin-1"), body


def _copy(
    source: socket.socket, target: socket.socket, counts: list[int], which: int, body: RequestBody | None = None
) -> None:
    with contextlib.suppress(OSError, Malformed):
        while data := source.recv(CHUNK):
            if body is not None:
                data = body.take(data)
            target.sendall(data)
            counts[which] += len(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
