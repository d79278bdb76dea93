"""Host rules match exactly, and the proxy that applies them can't be bypassed."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.allowlist import canonical_host, find_rule, is_public, parse_rules, split_port
from proofbox.errors import RequestInvalid
from proofbox.sandbox.contract import Event
from proofbox.sandbox.egress.proxy import PROXY_SOCKET, AllowlistProxy


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "EXAMPLE.org.", 443, True),
        ("example.org", "evil-example.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("example.org", "sub.example.org", 443, False),
        ("example.org:8443", "example.org", 8443, True),
        ("example.org:8443", "example.org", 443, False),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "badexample.org", 443, False),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.0.0.1:8080", "2130706433", 8080, False),
        ("127.0.0.1:8080", "0x7f.1", 8080, False),
        ("127.0.0.1:8080", "0177.0.0.1", 8080, False),
        ("127.0.0.1:8080", "127.1", 8080, False),
        ("127.0.0.1:8080", "127.0.0.1.", 8080, False),
        ("127.0.0.1:8080", "[::ffff:127.0.0.1]", 8080, False),
        ("[::1]:8080", "[0:0::1]", 8080, True),
        ("example.org", "user@example.org", 443, False),
        ("example.org", "example.org@evil.net", 443, False),
        ("example.org", "example.org%2eevil.net", 443, False),
        ("example.org", "example.org\0.evil.net", 443, False),
        ("example.org", "ex\u0430mple.org", 443, False),
        ("example.org", "", 443, False),
        ("example.org", ".", 443, False),
        ("example.org", "example.org..", 443, False),
    ],
)
def test_matching(rule: str, host: str, port: int, allowed: bool) -> None:
    known = canonical_host(host)
    found = find_rule(parse_rules([rule]), known, port) if known is not None else None
    assert (found is not None) == allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "*",
        "*.",
        "*.127.0.0.1",
        "a..b",
        "-",
        "host:0",
        "host:70000",
        "host:x",
        "http://h",
        "h/p",
        "u@h",
        "1.2.3",
    ],
)
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(RequestInvalid) as raised:
        parse_rules([text])
    assert raised.value.fix_hints


@given(st.text(max_size=60))
def test_any_host_is_canonicalised_or_refused(text: str) -> None:
    known = canonical_host(text)
    if known is not None:
        assert canonical_host(f"[{known}]" if ":" in known else known) == known
        assert known == known.lower()
        assert known.isascii()
        assert not set(known) & set("@/ \t\r\n\0%")


@given(st.text(alphabet="abc.:[]0123456789@*", max_size=30))
def test_any_authority_has_a_valid_port_or_none(text: str) -> None:
    parts = split_port(text)
    assert parts is None or parts[1] is None or 0 < parts[1] < 65536


@given(st.text(max_size=40))
def test_nothing_but_the_listed_name_is_allowed(text: str) -> None:
    known = canonical_host(text)
    if known is not None and find_rule(parse_rules(["only.example"]), known, 443) is not None:
        assert text.lower().removesuffix(".") == "only.example"


# The proxy.


class Server:
    """Sends one line per connection and remembers what it received."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                stream, _ = self._listener.accept()
                with stream:
                    self.received.append(stream.recv(65536))
                    stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


Ask = Callable[..., bytes]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Start a proxy with these rules, send it data, and return its whole response."""
    proxies: list[AllowlistProxy] = []
    events: list[Event] = []

    def call(rules: Sequence[str], payload: bytes, where: str = PROXY_SOCKET, addresses: Sequence[str] = ()) -> bytes:
        directory = tmp_path / str(len(proxies))
        directory.mkdir()
        resolve = (lambda *_: list(addresses)) if addresses else None
        proxy = AllowlistProxy(directory, parse_rules(rules), on_event=events.append, resolve=resolve)
        proxies.append(proxy)
        answer = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.settimeout(60)
            stream.connect(str(directory / where))
            stream.sendall(payload)
            with contextlib.suppress(ConnectionError):
                while data := stream.recv(65536):
                    answer += data
                    if data.endswith(b"hello"):
                        break
        return answer

    call.events = events  # type: ignore[attr-defined]
    yield call
    for proxy in proxies:
        proxy.close()


def test_plain_http_reaches_listed_host_with_the_target_host_header(ask: Ask, server: Server) -> None:
    payload = f"GET http://127.0.0.1:{server.port}/x?y HTTP/1.1\r\nHost: evil\r\nProxy-Authorization: s\r\nA: b\r\n\r\n"
    answer = ask([f"127.0.0.1:{server.port}"], payload.encode())
    assert answer.endswith(b"hello")
    [received] = server.received
    assert received.startswith(b"GET /x?y HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{server.port}".encode() in received
    assert b"evil" not in received
    assert b"Proxy-" not in received
    assert b"A: b" in received
    phases = [event.phase for event in ask.events]  # type: ignore[attr-defined]
    assert phases[0] == "allowed"


def test_connect_and_the_direct_endpoint(ask: Ask, server: Server) -> None:
    rules = [f"localhost:{server.port}"]
    payload = f"CONNECT localhost:{server.port} HTTP/1.1\r\n\r\nhi".encode()
    assert ask(rules, payload).startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert ask(rules, b"direct", where=str(server.port)).endswith(b"hello")
    assert server.received[1] == b"direct"


@pytest.mark.parametrize(
    "line",
    [
        "GET http://other.example/ HTTP/1.1",
        "CONNECT other.example:443 HTTP/1.1",
        "CONNECT 127.0.0.1:PORT HTTP/1.1",
        "CONNECT only.example:22 HTTP/1.1",
        "GET http://only.example:22/ HTTP/1.1",
        "GET http://user@only.example/ HTTP/1.1",
        "GET http://only.example@127.0.0.1:PORT/ HTTP/1.1",
        "GET http://0x7f.1:PORT/ HTTP/1.1",
        "GET ftp://only.example/ HTTP/1.1",
        "GET /relative HTTP/1.1",
        "GET http:///nothing HTTP/1.1",
        "CONNECT only.example HTTP/1.1",
        "CONNECT only.example:99999 HTTP/1.1",
        "nonsense",
        "GET http://only.example/ HTTP/2",
        "GET  http://only.example/ HTTP/1.1",
    ],
)
def test_unlisted_or_ambiguous_targets_are_refused(ask: Ask, server: Server, line: str) -> None:
    answer = ask(
        ["only.example"], f"{line.replace('PORT', str(server.port))}\r\n\r\n".encode(), addresses=["127.0.0.1"]
    )
    assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), answer
    assert server.received == []


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "::1", "fe80::1", "fe80::1%lo", "0.0.0.0"),  # noqa: S104
        *("100.64.0.1", "224.0.0.251", "239.1.2.3", "255.255.255.255", "::", "::7f00:1", "::ffff:127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a00:1::1", "fec0::1"),
        *("fc00::1", "2001:0:7f00:1::", "2001:db8::1", "ff02::1", "ff0e::1", "5f00::1"),
    ],
)
def test_a_listed_name_that_leads_to_a_private_address_is_refused(ask: Ask, server: Server, address: str) -> None:
    payload = f"CONNECT only.example:{server.port} HTTP/1.1\r\n\r\n".encode()
    answer = ask([f"only.example:{server.port}"], payload, addresses=[address])
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"private address" in answer
    assert server.received == []


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_a_public_address_is_public_however_it_is_embedded(address: str) -> None:
    assert is_public(address)


class Recorder(Server):
    """Reads until the proxy has sent everything, and then answers."""

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            stream, _ = self._listener.accept()
            with stream:
                received = b""
                while data := stream.recv(65536):
                    received += data
                self.received.append(received)
                stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    found = Recorder()
    yield found
    found.close()


SECOND = b"GET http://127.0.0.1/second HTTP/1.1\r\nHost: other.example\r\n\r\n"
bodies = {
    "none": (b"", b""),
    "length": (b"Content-Length: 4\r\n", b"body"),
    "chunked": (b"Transfer-Encoding: chunked\r\n", b"4;x=y\r\nbody\r\n3\r\n\r\n!\r\n0\r\nTrailer: x\r\n\r\n"),
}


@pytest.mark.parametrize(("header", "body"), bodies.values(), ids=bodies)
@pytest.mark.parametrize("piece", [1, 7, 65536])
def test_only_one_request_per_connection_is_forwarded(
    tmp_path: Path, recorder: Recorder, header: bytes, body: bytes, piece: int
) -> None:
    rule = f"127.0.0.1:{recorder.port}"
    head = f"POST http://{rule}/x HTTP/1.1\r\n".encode() + header + b"\r\n"
    proxy = AllowlistProxy(tmp_path, parse_rules([rule]))
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(tmp_path / PROXY_SOCKET))
            payload = head + body + SECOND
            for at in range(0, len(payload), piece):
                client.sendall(payload[at : at + piece])
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while data := client.recv(65536):
                answer += data
    finally:
        proxy.close()
    assert answer.endswith(b"hello")
    [received] = recorder.received
    assert received.startswith(b"POST /x HTTP/1.1\r\n")
    assert received.endswith(b"\r\n\r\n" + body)
    assert b"second" not in received


@pytest.mark.parametrize(
    "payload",
    [
        b"GET http://RULE/ HTTP/1.1\nHost: x\r\n\r\n",
        b"GET http://RULE/ HTTP/1.1\r\nA: b\nHost: evil\r\n\r\n",
        b"GET http://RULE/ HTTP/1.1\r\nA: b\rHost: evil\r\n\r\n",
        b"GET http://RULE/ HTTP/1.1\n\n",
        b"GET http://RULE/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET http://RULE/ HTTP/1.1\r\n\tHost: evil\r\n\r\n",
        b"GET http://RULE/ HTTP/1.1\r\nHost : evil\r\n\r\n",
        b"GET http://RULE/ HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET http://RULE/ HTTP/1.1\r\nA: nul\0\r\n\r\n",
        b"GET http://RULE/ HTTP/1.10\r\n\r\n",
        b"POST http://RULE/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST http://RULE/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST http://RULE/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"POST http://RULE/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST http://RULE/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x4\r\nbody\r\n",
        b"POST http://RULE/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\nbody\r\n",
        b"POST http://RULE/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbodies\r\n",
    ],
)
def test_ambiguous_request_is_refused(ask: Ask, server: Server, payload: bytes) -> None:
    rule = f"127.0.0.1:{server.port}"
    assert ask([rule], payload.replace(b"RULE", rule.encode())).startswith(b"HTTP/1.1 400")
    assert server.received == []


def test_close_reports_the_end_of_every_connection(tmp_path: Path, server: Server) -> None:
    phases: list[str] = []

    def slow(event: Event) -> None:
        threading.Event().wait(0.2)
        phases.append(event.phase)

    proxy = AllowlistProxy(tmp_path, parse_rules([f"localhost:{server.port}"]), on_event=slow)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(str(tmp_path / str(server.port)))
        stream.sendall(b"direct")
        assert stream.recv(1) == b"H"
        proxy.close()
    assert phases == ["allowed", "finished"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_failed_accept_does_not_stop_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    accept, failed = socket.socket.accept, threading.Event()

    def failing(listener: socket.socket) -> tuple[socket.socket, object]:
        if listener.family == socket.AF_UNIX and not failed.is_set():
            failed.set()
            raise OSError(number, "for now")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    proxy = AllowlistProxy(tmp_path, parse_rules(["example.org"]))
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(tmp_path / PROXY_SOCKET))
            client.sendall(b"GET http://other.example/ HTTP/1.1\r\n\r\n")
            assert client.recv(64).startswith(b"HTTP/1.1 403")
        assert failed.is_set()
    finally:
        proxy.close()


def test_endless_request_head_is_refused(ask: Ask) -> None:
    answer = ask(["only.example"], b"GET http://only.example/ HTTP/1.1\r\n" + b"A: " + b"x" * 200_000)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431")


def test_refusals_show_hostile_names_without_their_escapes(ask: Ask) -> None:
    answer = ask(["only.example"], b"CONNECT \x1b[31mevil.example:443 HTTP/1.1\r\n\r\n")
    assert b"\x1b" not in answer
