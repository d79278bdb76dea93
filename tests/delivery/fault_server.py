"""A server on a real socket that misbehaves by a script, with one behaviour per request."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

Behaviour = Callable[["Exchange"], None]


class Exchange:
    """One received request and its connection."""

    def __init__(self, connection: socket.socket, head: bytes, body: bytes, stopped: threading.Event) -> None:
        self.connection = connection
        self.head = head
        self.body = body
        self.stopped = stopped

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            found, _, value = line.partition(":")
            if found.lower() == name.lower():
                return value.strip()
        return None

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)


def answer(status: int, document: Any, **headers: str) -> Behaviour:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [
        f"HTTP/1.1 {status} {headers.pop('reason', 'X')}",
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return lambda exchange: exchange.send("\r\n".join([*lines, "", ""]).encode() + body)


def echo_key(status: int) -> Behaviour:
    """Echo the key wherever a careless backend might."""

    def say(exchange: Exchange) -> None:
        key = exchange.header("x-internal-api-key") or ""
        answer(status, {"error": {"code": key, "message": f"bad key {key} " * 200}}, X_Echo=key, reason=key)(exchange)

    return say


def reset(exchange: Exchange) -> None:
    exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.connection.close()


def stall(exchange: Exchange) -> None:
    exchange.stopped.wait()


def truncate(exchange: Exchange) -> None:
    exchange.send(b'HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{"baseCommitSha":')


def not_http(exchange: Exchange) -> None:
    exchange.send(b"\x00\xff\x13 this is not HTTP at all\r\n\r\n" * 10)


def garbage(exchange: Exchange) -> None:
    answer(200, b"\x00\xff<html>" * 100)(exchange)


def huge(exchange: Exchange) -> None:
    """Send a gigabyte, as long as the client reads."""
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _ in range(1024):
        exchange.send(b" " * (1 << 20))


def bomb(exchange: Exchange) -> None:
    answer(200, b"\x1f\x8b" + bytes(100), Content_Encoding="gzip")(exchange)


def drip_head(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\n")
    while not exchange.stopped.wait(0.02):
        exchange.send(b"X-Drip: a\r\n")


def drip_body(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not exchange.stopped.wait(0.02):
        exchange.send(b" ")


def forward(url: str, then: Behaviour | None = None) -> Behaviour:
    """Forward the request to the backend at `url` and relay its response, or run `then` instead."""

    def relay(exchange: Exchange) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as onward:
            head = exchange.head.replace(b"Connection: keep-alive", b"Connection: close")
            onward.sendall(head + b"\r\n\r\n" + exchange.body)
            parts = []
            while piece := onward.recv(1 << 16):
                parts.append(piece)
        if then is None:
            exchange.send(b"".join(parts))
        else:
            then(exchange)

    return relay


class FaultServer:
    """Runs one behaviour per request and repeats the last one. `requests` lists the received requests."""

    def __init__(self, *script: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self._script: Sequence[Behaviour] = script
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._mutex = threading.Lock()
        self.requests: list[Exchange] = []
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> FaultServer:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        # Closing a socket does not wake a thread in accept(); a connection does.
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            connection, _ = self._listener.accept()
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        if self._tls is not None:
            try:
                connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError:
                connection.close()
                return
        with connection:
            try:
                while not self._stopped.is_set() and (exchange := self._read(connection)):
                    with self._mutex:
                        behaviour = self._script[min(len(self.requests), len(self._script) - 1)]
                        self.requests.append(exchange)
                    behaviour(exchange)
                    if not getattr(behaviour, "__qualname__", "").startswith("answer"):
                        return
            except OSError:
                return

    def _read(self, connection: socket.socket) -> Exchange | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        exchange = Exchange(connection, head, body, self._stopped)
        length = int(exchange.header("content-length") or 0)
        parts = [body]
        have = len(body)
        while have < length:
            piece = connection.recv(1 << 20)
            if not piece:
                return None
            parts.append(piece)
            have += len(piece)
        exchange.body = b"".join(parts)
        return exchange
