"""Tests of the model gateway: it adds the key, reaches only the endpoint, streams without delay, and records traffic.

The fake model is the endpoint, so that these tests are also the fake's own.
"""

# ruff: noqa: ASYNC110, ASYNC240, S610 (tests wait by polling; short blocking calls are fine)

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.events import TokenUsage
from proofbox.agents.fakemodel import FakeModel, ModelScript, ResponseRule, load_rules
from proofbox.agents.gateway.endpoint import ModelAccess, ModelEndpoint
from proofbox.agents.gateway.failures import is_answer, kind_of_exchange
from proofbox.agents.gateway.http import HttpRequest, Responder, connection_handler
from proofbox.agents.gateway.rate_windows import read_duration, read_windows
from proofbox.agents.gateway.server import MAX_ERROR_BODY, MAX_TARGET, ModelGateway
from proofbox.agents.gateway.traffic import MAX_EVENT, Exchange, StreamReader, read_body
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import (
    AgentError,
    AuthFailed,
    ModelFailed,
    Overloaded,
    RateLimited,
    StreamDisconnected,
    UsageError,
    UsageLimited,
)

LONG_LINE = 256 << 10
KEY = "sk-proj-Zq81kfjs93Hs8dkf93jf02"


class Lab:
    def __init__(self, model: FakeModel, gateway: ModelGateway, client: httpx2.AsyncClient) -> None:
        self.model = model
        self.gateway = gateway
        self.client = client

    async def ask(self, prompt: str, path: str = "/model/responses", **options: Any) -> httpx2.Response:
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}
        headers = {"thread-id": "t1", "x-codex-turn-metadata": '{"turn_id":"u1"}'}
        body = {"model": "m", "input": [message]}
        return await self.client.post(path, json=body, headers={**headers, **options.get("headers", {})})

    @property
    def last(self) -> Exchange:
        return self.gateway.exchanges[-1]


@contextlib.asynccontextmanager
async def laboratory(
    directory: Path, model_url: str | None = None, rules: list[ResponseRule] | None = None
) -> AsyncIterator[Lab]:
    directory.mkdir(mode=0o700, exist_ok=True)
    model = FakeModel(rules or [])
    async with model.listening() as url:
        gateway = ModelGateway(ModelEndpoint(model_url or url, KEY))
        async with gateway.listening_at(directory) as path:
            transport = httpx2.AsyncHTTPTransport(uds=str(path))
            async with httpx2.AsyncClient(transport=transport, base_url="http://inside", timeout=60) as client:
                yield Lab(model, gateway, client)
    assert not list(directory.iterdir())


def run(directory: Path, work: Callable[[Lab], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        with anyio.fail_after(100):
            async with laboratory(directory / "gw", **options) as lab:
                await work(lab)

    anyio.run(main)


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]


def test_gateway_adds_the_key_and_records_the_exchange(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        prompt = "[[limits primary=43 secondary=7]] [[usage input=7 output=3 cached=2 reasoning=1]] [[say hello there]]"
        own = {
            "authorization": "Bearer the-box-made-this-up",
            "cookie": "a=b",
            "x-evil": "1",
            "openai-organization": "o",
        }
        answer = await lab.ask(prompt, headers=own)
        assert answer.status_code == 200
        assert [e["delta"] for e in events(answer) if "delta" in e] == ["hello ", "there"]
        [seen] = lab.model.seen
        headers = dict(seen.headers)
        assert headers["authorization"] == f"Bearer {KEY}"
        assert not {"cookie", "x-evil", "openai-organization"} & set(headers)
        assert (seen.target, headers["thread-id"]) == ("/v1/responses", "t1")
        last = lab.last
        assert (last.outcome, last.status, last.thread, last.turn) == ("completed", 200, "t1", "u1")
        assert last.usage == TokenUsage(input_tokens=7, output_tokens=3, cached_input_tokens=2, reasoning_tokens=1)
        assert [(w.name, w.used_percent, w.window_minutes) for w in last.windows] == [
            ("primary", 43.0, 300.0),
            ("secondary", 7.0, 10080.0),
        ]
        assert all(w.resets_at and w.resets_at > 1e9 for w in last.windows)
        for text in (repr(lab.gateway), repr(lab.gateway._endpoint), repr(last)):
            assert KEY not in text

    run(tmp_path, work)


def test_repeated_header_is_recorded_as_the_endpoint_reads_it(tmp_path: Path) -> None:
    """Otherwise a request without an accepted feature would count as one with it, and its 401 as the key's failure."""

    async def work(lab: Lab) -> None:
        content = json.dumps({"model": "m", "input": []})
        twice = [("content-type", "application/json"), ("anthropic-beta", "oauth"), ("anthropic-beta", "other")]
        await lab.client.post("/model/messages", content=content, headers=twice)
        [sent] = [value for name, value in lab.model.seen[0].headers if name == "anthropic-beta"]
        assert sent == "oauth, other"
        assert lab.last.variant is not None
        assert sent in lab.last.variant

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("prompt", "status", "outcome", "more"),
    [
        ("[[http 429 retry_after=2]]", 429, "http_error", {"retry_after": 2.0}),
        ("[[http 429 type=usage_limit_reached resets=60]]", 429, "http_error", {"error_type": "usage_limit_reached"}),
        ("[[http 401 message=no]]", 401, "http_error", {"error_message": "no"}),
        ("[[http 503 type=server_is_overloaded]]", 503, "http_error", {"error_code": "server_is_overloaded"}),
        ("[[fail rate_limit_exceeded message=slow]]", 200, "failed", {"error_code": "rate_limit_exceeded"}),
        ("[[garbage]]", 200, "cut", {}),
        ("[[bogus]]", 400, "http_error", {}),
    ],
)
def test_endpoint_failures_are_forwarded_and_recorded(
    tmp_path: Path, prompt: str, status: int, outcome: str, more: dict[str, Any]
) -> None:
    async def work(lab: Lab) -> None:
        answer = await lab.ask(prompt)
        assert answer.status_code == status
        assert (lab.last.outcome, lab.last.status) == (outcome, status)
        assert {name: getattr(lab.last, name) for name in more} == more
        if "resets" in prompt:
            assert lab.last.resets_at is not None
        if "retry_after" in prompt:
            assert answer.headers["retry-after"] == "2"

    run(tmp_path, work)


@pytest.mark.parametrize(("where", "outcome"), [("before", "unreachable"), ("mid", "cut")])
def test_broken_upstream_connection_breaks_the_client_connection(tmp_path: Path, where: str, outcome: str) -> None:
    async def work(lab: Lab) -> None:
        with pytest.raises(httpx2.TransportError):
            await lab.ask(f"[[drop {where} times=1]] [[say fine]]")
        assert lab.last.outcome == outcome
        answer = await lab.ask(f"[[drop {where} times=1]] [[say fine]]")
        assert "fine" in answer.text

    run(tmp_path, work)


def test_unreachable_endpoint_is_recorded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"

        async def work(lab: Lab) -> None:
            with pytest.raises(httpx2.TransportError):
                await lab.ask("hello")
            assert lab.last.outcome == "unreachable"

        run(tmp_path, work, model_url=url)


def test_stream_is_forwarded_without_delay(tmp_path: Path) -> None:
    """The stream begins and then pauses for an hour. The first data must arrive immediately, and the request to the
    model must end when the client disconnects."""

    async def work(lab: Lab) -> None:
        body = {"input": [{"role": "user", "content": "[[idle 3600]] [[say x]]"}]}
        async with lab.client.stream("POST", "/model/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    break
        while lab.model.open or lab.last.duration_ms is None:
            await anyio.sleep(0.005)
        assert lab.last.outcome == "abandoned"

    run(tmp_path, work)


@pytest.mark.parametrize(
    "target",
    [
        "/model",
        "/model/",
        "/v1/responses",
        "/other/responses",
        "/modelx/responses",
        "/model/../admin",
        "/model/./responses",
        "/model/%2e%2e/admin",
        "/model//responses",
        "/model/a\\b",
        "/model/.hidden",
        "http://other.example/model/responses",
        "//other.example/model/responses",
        "/model/responses?a=\x7f",
        f"/model/{'x' * MAX_TARGET}/responses",
    ],
)
def test_requests_to_other_targets_are_refused(tmp_path: Path, target: str) -> None:
    async def work(lab: Lab) -> None:
        async with await anyio.connect_unix(str(tmp_path / "gw" / "sock")) as stream:
            await stream.send(f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode("latin-1"))
            assert (await stream.receive()).startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
        for method in ("PUT", "DELETE", "CONNECT", "PATCH"):
            assert (await lab.client.request(method, "/model/responses")).status_code == 403
        assert not lab.model.seen

    run(tmp_path, work)


def test_deeply_nested_header_does_not_break_the_connection(tmp_path: Path) -> None:
    async def check(lab: Lab) -> None:
        response = await lab.ask("hello", headers={"x-codex-turn-metadata": "[" * 20_000})
        assert response.status_code == 200
        assert (lab.last.turn, lab.gateway.faults) == ("", 0)

    run(tmp_path, check)


@pytest.mark.parametrize("target", ["/model", "/model/"])
def test_head_request_to_the_base_url_is_not_forwarded(tmp_path: Path, target: str) -> None:
    async def work(lab: Lab) -> None:
        answer = await lab.client.head(target)
        assert (answer.status_code, answer.content) == (200, b"")
        assert (lab.gateway.requests, lab.gateway.refused, lab.model.seen) == (0, 0, [])
        for other in ("/", "/model/responses", "/modelx"):
            assert (await lab.client.head(other)).status_code == 403
        assert (lab.gateway.refused, lab.model.seen) == (3, [])
        assert (await lab.ask("[[say fine]]")).status_code == 200  # on the same connection

    run(tmp_path, work)


def test_key_is_sent_in_the_header_of_the_api(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        own = {"x-api-key": "the-box-made-this-up", "anthropic-version": "2023-06-01", "anthropic-beta": "b"}
        await lab.ask("[[say hello]]", "/model/messages", headers=own)
        headers = dict(lab.model.seen[-1].headers)
        assert (headers["x-api-key"], "authorization" in headers) == (KEY, False)
        assert (headers["anthropic-version"], headers["anthropic-beta"]) == ("2023-06-01", "b")
        for header in ("x-api-key", "x-goog-api-key"):
            await lab.ask("[[say hello]]", headers={header: "the-box-made-this-up"})
            headers = dict(lab.model.seen[-1].headers)
            assert (headers["authorization"], header in headers) == (f"Bearer {KEY}", False)

    run(tmp_path, work)


ANTHROPIC = "https://api.anthropic.com"
GOOGLE = "https://generativelanguage.googleapis.com"


@pytest.mark.parametrize(
    ("url", "key", "path", "used", "header"),
    [
        (ANTHROPIC, "sk-ant-api03-x", "/v1/messages?beta=true", "", "x-api-key"),
        (ANTHROPIC, "sk-ant-api03-x", "/v1/messages", "x-goog-api-key", "x-api-key"),
        (ANTHROPIC, "sk-ant-oat01-x", "/v1/messages", "x-api-key", "authorization"),
        (ANTHROPIC, "sk-ant-api03-x", "/v1/models", "x-api-key", "x-api-key"),
        (GOOGLE, "AIza-x", "/v1beta/models/gemini-3:generateContent", "", "x-goog-api-key"),
        (GOOGLE, "ya29.x", "/v1beta/models/gemini-3:countTokens", "x-goog-api-key", "authorization"),
        (GOOGLE, "AIza-x", "/v1beta/openai/chat/completions", "x-goog-api-key", "authorization"),
        ("https://example.org", "k", "/v1/messages", "x-api-key", "x-api-key"),
        ("https://example.org", "k", "/v1/messages", "", "authorization"),
        ("https://example.org", "k", "/v1/responses/compact", "x-api-key", "authorization"),
    ],
)
def test_header_of_the_key_is_what_the_endpoint_needs(url: str, key: str, path: str, used: str, header: str) -> None:
    assert ModelEndpoint(url, key).key_header(path, used) == header
    assert ModelEndpoint(url, key, key_header="authorization").key_header(path, used) == "authorization"


@pytest.mark.parametrize("name", ["key", "%6bey", "Key", "access_token", "oauth%5Ftoken", "$key"])
@pytest.mark.parametrize("form", ["fields=candidates", "$fields=candidates", "alt=proto", "%61lt=media", "callback=f"])
def test_keys_and_parameters_that_hide_the_usage_are_removed_from_the_query(
    tmp_path: Path, name: str, form: str
) -> None:
    async def work(lab: Lab) -> None:
        async with await anyio.connect_unix(str(tmp_path / "gw" / "sock")) as stream:
            target = f"/model/models/m:generateContent?{name}=z&alt=sse&{form}&{name}=z"
            await stream.send(f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}".encode())
            await stream.receive()
        assert [seen.target for seen in lab.model.seen] == ["/v1/models/m:generateContent?alt=sse"]

    run(tmp_path, work)


ESCAPED = [
    KEY.encode().hex(),
    "".join(f"%{ord(character):02x}" for character in KEY),
    "".join(f"\\u{ord(character):04x}" for character in KEY),
    KEY.replace("-", "\\u002d"),
]


def test_redirect_is_not_followed_and_echoed_key_is_redacted(tmp_path: Path) -> None:
    cookies: list[str] = []

    async def endpoint(request: HttpRequest, responder: Responder) -> None:
        if request.target.endswith("/go"):
            await responder.send(307, b"", {"location": "http://127.0.0.1:9/steal"})
        elif request.target.endswith("/echo"):
            await responder.send(401, request.header("authorization").encode(), {"x-request-id": KEY})
        elif request.target.endswith("/escapes"):
            cookies.append(request.header("cookie"))
            headers = {"content-type": "application/json", "set-cookie": "session=1; Path=/"}
            await responder.send(200, json.dumps({"said": ESCAPED}).encode(), headers)
        elif request.target.endswith("/huge-error"):
            await responder.send(500, b"." * (MAX_ERROR_BODY - 20) + KEY.encode())
        elif request.target.endswith("/long-line"):
            await responder.start(200, {"content-type": "application/json"})
            for piece in (b"." * LONG_LINE, KEY[:10].encode(), KEY[10:].encode(), b"." * LONG_LINE):
                await responder.write(piece)
                await anyio.sleep(0.01)
            await responder.finish()
        else:
            await responder.start(200, {"content-type": "text/event-stream", "set-cookie": "a=b"})
            for piece in (b"data: you sent ", KEY[:10].encode(), KEY[10:].encode(), b" to me\n\n"):
                await responder.write(piece)
                await anyio.sleep(0.01)
            await responder.finish()

    async def main() -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, connection_handler(endpoint))
            async with laboratory(tmp_path / "gw", f"http://127.0.0.1:{port}/v1") as lab:
                moved = await lab.client.get("/model/go")
                assert moved.status_code == 502
                assert "location" not in moved.headers
                assert lab.last.outcome == "redirected"
                echoed = await lab.client.get("/model/echo")
                assert echoed.text == "Bearer [redacted]"
                assert "x-request-id" not in echoed.headers
                for _ in range(2):
                    escaped = await lab.client.get("/model/escapes")
                    assert escaped.json()["said"] == ["[redacted]"] * len(ESCAPED)
                    assert "set-cookie" not in escaped.headers
                assert cookies == ["", ""]
                cut = await lab.client.get("/model/huge-error")
                assert cut.text == "." * (MAX_ERROR_BODY - 20) + "[redacted]"
                in_pieces = await lab.client.get("/model/long-line")
                assert in_pieces.text == "." * LONG_LINE + "[redacted]" + "." * LONG_LINE
                streamed = await lab.client.get("/model/stream")
                assert streamed.text == "data: you sent [redacted] to me\n\n"
                assert "set-cookie" not in streamed.headers
            tasks.cancel_scope.cancel()

    anyio.run(main)


def certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public, private = directory / "cert.pem", directory / "key.pem"
    public.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return public, private


@pytest.mark.parametrize("trusted", [False, True])
def test_key_is_not_sent_to_an_untrusted_certificate(
    tmp_path: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, private = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
    heard: list[bytes] = []

    async def serve(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            heard.append(await stream.receive())
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def main() -> None:
        plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = plain.extra(anyio.abc.SocketAttribute.local_port)
        listener = TLSListener(plain, context, standard_compatible=False)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            async with laboratory(tmp_path / "gw", f"https://127.0.0.1:{port}/v1") as lab:
                if trusted:
                    assert (await lab.client.get("/model/x")).text == "ok"
                else:
                    with pytest.raises(httpx2.TransportError):
                        await lab.client.get("/model/x")
                assert lab.last.outcome == ("completed" if trusted else "unreachable")
            tasks.cancel_scope.cancel()
        assert bool([data for data in heard if KEY.encode() in data]) is trusted

    anyio.run(main)


def test_loopback_gateway_requires_the_secret_prefix() -> None:
    async def main() -> None:
        model = FakeModel()
        async with (
            model.listening() as url,
            ModelGateway(ModelEndpoint(url, KEY)).listening_on_loopback() as base,
            httpx2.AsyncClient() as client,
        ):
            assert (await client.post(f"{base}/responses", json={})).status_code == 200
            port = base.split("/")[2]
            assert (await client.post(f"http://{port}/model/responses", json={})).status_code == 403
        assert len(model.seen) == 1

    anyio.run(main)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("ftp://example.org/v1", None),
        ("https:///v1", None),
        ("https://user:pw@example.org/v1", None),
        ("https://example.org/v1?x=1", None),
        ("http://example.org/v1", KEY),
        ("http://127.example.org/v1", KEY),
        ("http://localhost.example.org/v1", KEY),
        ("https://example.org:0/v1", None),
        ("https://example.org:port/v1", None),
    ],
)
def test_invalid_endpoints_are_refused(url: str, key: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        ModelEndpoint(url, key)
    assert KEY not in str(caught.value)


def test_missing_key_variable_is_an_error() -> None:
    access = ModelAccess("https://example.org/v1", "MY_KEY")
    with pytest.raises(AuthFailed, match="the variable MY_KEY is not set"):
        ModelEndpoint.of(access, {})
    with pytest.raises(AuthFailed):
        ModelEndpoint.of(access, {"MY_KEY": "a\nb"})
    assert ModelEndpoint.of(ModelAccess("https://example.org/v1"), {}).authorization() == {}
    assert ModelEndpoint.of(access, {"MY_KEY": KEY}).has_key


def test_key_can_be_in_a_file_and_is_redacted(tmp_path: Path) -> None:
    access, file = ModelAccess("https://example.org/v1", "MY_KEY"), tmp_path / "key"
    env = {"MY_KEY_FILE": str(file)}
    for content in (None, b"", b"\xff"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(AuthFailed, match="the file that MY_KEY_FILE names has no readable key"):
            ModelEndpoint.of(access, env)
    file.write_text(f"{KEY}\n")
    assert ModelEndpoint.of(access, env).authorization() == {"authorization": f"Bearer {KEY}"}
    assert Redactor.for_evidence(env, ["MY_KEY"]).contains_secret(KEY.encode())
    assert ModelEndpoint.of(access, {**env, "MY_KEY": "other"}).authorization() == {"authorization": "Bearer other"}


# ---- parsing responses


@given(st.lists(st.binary(max_size=80) | st.sampled_from([b'data: {"type":"response.completed"}', b"data: [1]"])))
def test_malformed_streams_do_not_raise(lines: list[bytes]) -> None:
    exchange = Exchange(number=1, method="POST", path="/")
    reader = StreamReader(exchange)
    for line in lines:
        reader.line(line)
        read_body(exchange, line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "error", "response", "usage", "input_tokens", "code"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_malformed_events_do_not_raise(value: Any) -> None:
    exchange = Exchange(number=1, method="POST", path="/", status=200)
    line = b"data: " + json.dumps({"type": "response.completed", "response": value, "error": value}).encode()
    StreamReader(exchange).line(line)
    read_body(exchange, json.dumps(value).encode())
    names = ["x-codex-primary-used-percent", "anthropic-ratelimit-unified-5h-utilization"]
    names += [f"anthropic-ratelimit-tokens-{end}" for end in ("limit", "remaining", "reset")]
    read_windows({name: str(value) for name in names}, 0.0)


@pytest.mark.parametrize("said", [b"1" * 400, b"1e300", b'"' + b"9" * 400 + b'"', b"-1", b"true"])
def test_invalid_numbers_are_ignored(said: bytes) -> None:
    exchange = Exchange(number=1, method="POST", path="/", status=429)
    read_body(exchange, b'{"error": {"type": "usage_limit_reached", "resets_at": %s}}' % said)
    assert (exchange.error_type, exchange.resets_at) == ("usage_limit_reached", None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("9" * 400 + "d", None),
        ("6m0s", 360.0),
        ("250ms", 0.25),
        ("1h2m", 3720.0),
        ("1.5s", 1.5),
        ("", None),
        ("soon", None),
        ("2d", 172800.0),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert read_duration(text) == seconds


def test_rate_windows_of_the_plain_api() -> None:
    headers = {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "25",
        "x-ratelimit-reset-requests": "1m",
    }
    [window] = read_windows(headers, 1000.0)
    assert (window.name, window.used_percent, window.resets_at) == ("requests", 75.0, 1060.0)


def test_rate_windows_of_anthropic() -> None:
    headers = {
        "anthropic-ratelimit-unified-5h-utilization": "0.42",
        "anthropic-ratelimit-unified-5h-reset": "2000",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "40",
        "anthropic-ratelimit-requests-reset": "1970-01-01T00:20:00Z",
        "anthropic-ratelimit-input-tokens-limit": "1000",
        "anthropic-ratelimit-input-tokens-remaining": "900",
        "anthropic-ratelimit-output-tokens-limit": "100",
        "anthropic-ratelimit-output-tokens-remaining": "25",
        "anthropic-ratelimit-output-tokens-reset": "not a time",
    }
    windows = [(each.name, each.used_percent, each.window_minutes, each.resets_at) for each in read_windows(headers, 0)]
    assert windows == [
        ("primary", 42.0, 300.0, 2000.0),
        ("requests", 20.0, None, 1200.0),
        ("tokens", 75.0, None, None),
    ]


# ---- HTTP


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\n bad: header\r\n\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ncontent-length: 999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 70_000,
        b"GET /model/x HTTP/1.1\r\nhost: h\r\nuser-agent: caf\xe9\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nhost: h\r\nuser-agent: a\0b\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nhost: h\r\nuser-agent: a\nb\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nhost: h\r\nx-codex-y: \x7f\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\n\r\n",
        b"GET /model/x HTTP/1.2\r\nhost: h\r\n\r\n",
        b"GET /model/x HTTP/1.1\nhost: h\r\n\r\n",
        b"GET /model/x HTTP/1.1\r\nhost: h\r\nuser-agent: a\r\n folded\r\n\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        b"POST /model/x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\nt: " + b"y" * 70_000,
    ],
)
def test_malformed_http_gets_an_error_and_closes_the_connection(tmp_path: Path, data: bytes) -> None:
    async def work(lab: Lab) -> None:
        async with await anyio.connect_unix(str(tmp_path / "gw" / "sock")) as stream:
            await stream.send(data)
            heard = b""
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    heard += await stream.receive()
            assert heard.startswith(b"HTTP/1.1 4"), heard
        assert not lab.model.seen
        assert (await lab.ask("[[say x]]")).status_code == 200, "other clients must still be served"

    run(tmp_path, work)


def test_chunked_bodies_and_persistent_connections(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        body = json.dumps({"input": [{"role": "user", "content": "[[say x]]"}]}).encode()
        head = b"POST /model/responses HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (1, body[at : at + 1]) for at in range(len(body))) + b"0\r\n\r\n"
        async with await anyio.connect_unix(str(tmp_path / "gw" / "sock")) as stream:
            await stream.send((head + chunks) * 3)  # sent together, answered one after the other
            heard = b""
            while heard.count(b"response.completed") < 6:
                heard += await stream.receive()
        assert [seen.body["input"][0]["content"] for seen in lab.model.seen] == ["[[say x]]"] * 3

    run(tmp_path, work)


# ---- the script of the fake model


def test_directives_produce_responses_in_order(tmp_path: Path) -> None:
    answers = ModelScript().answers(
        'please [[wait 0.5]] [[run ls -l [a] ]] then [[call view_image {"path": 1}]] [[say a  b]]'
    )
    assert [(a.kind, a.text, a.tool, a.wait) for a in answers] == [
        ("run", "ls -l [a]", "", 0.5),
        ("call", '{"path": 1}', "view_image", 0.0),
        ("say", "a  b", "", 0.0),
    ]
    [only] = ModelScript().answers("[[http 429 times=1 retry_after=0.5 message='a b']]")
    assert (only.kind, only.faults[0].value, only.faults[0].times, only.faults[0].message) == ("say", "429", 1, "a b")
    assert ModelScript().answers("hello")[0].text.startswith("I heard")
    for bad in ("[[sing]]", "[[wait soon]]", "[[http 1 times=x]]", "[[wait]]"):
        with pytest.raises(UsageError):
            ModelScript().answers(bad)
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nwhen = "add"\ndo = "[[run make]] [[say made]]"\n')
    assert [a.kind for a in ModelScript(load_rules(path)).answers("please add it")] == ["run", "say"]
    path.write_text("[[rule]]\nwhen = 1\n")
    with pytest.raises(UsageError):
        load_rules(path)


def test_fake_model_runs_as_a_program(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nwhen = "greet"\ndo = "[[say good morning]]"\n')
    argv = [sys.executable, "-m", "proofbox.agents.fakemodel", "--rules", str(rules)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            answer = httpx2.post(f"{url}/responses", json={"input": [{"role": "user", "content": "please greet"}]})
            assert "good morning" in answer.text
            assert httpx2.get(f"{url}/models").status_code == 404
        finally:
            process.terminate()


def test_fake_model_continues_after_tool_results(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        user = {"role": "user", "content": [{"text": "[[run a]] [[run b]] [[say end]]"}]}
        output = {"type": "function_call_output", "call_id": "c", "output": "x"}
        context = {"role": "user", "content": "<environment_context>"}
        said = {"role": "assistant", "content": "end"}
        again = {"role": "user", "content": "hello again"}
        for items, expected in (
            ([context, user], '"cmd\\":\\"a'),
            ([user, output], '"cmd\\":\\"b'),
            ([user, output, output], "end"),
            ([user, output, output, output], "done"),
            ([user, output, output, said, context, again], "I heard"),
        ):
            answer = await lab.client.post("/model/responses", json={"input": items})
            done = next(e for e in events(answer) if e["type"] == "response.output_item.done")
            assert expected in json.dumps(done).replace("\\\\", "\\"), (items, done)

    run(tmp_path, work)


STREAM = "/model/v1beta/models/gemini-3:streamGenerateContent?alt=sse&key=the-box-made-this-up"


ARRAY = STREAM.partition("?")[0]


async def ask_gemini(lab: Lab, prompt: str, path: str = STREAM) -> httpx2.Response:
    body = {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
    return await lab.client.post(path, json=body, headers={"x-goog-api-key": "the-box-made-this-up"})


def test_gemini_requests_get_the_key_in_its_header_and_count_thoughts(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        prompt = "[[usage input=7 output=3 cached=2 reasoning=1]] [[think hm]] [[say hello there]]"
        counted = TokenUsage(input_tokens=7, output_tokens=3, cached_input_tokens=2, reasoning_tokens=1)
        for path in (STREAM, STREAM.replace("streamGenerateContent", "generateContent"), ARRAY):
            answer = await ask_gemini(lab, prompt, path)
            chunks = events(answer) or (answer.json() if path is ARRAY else [answer.json()])
            texts = [part for each in chunks for c in each.get("candidates", ()) for part in c["content"]["parts"]]
            assert [part["text"] for part in texts] == ["hm", "hello ", "there", ""]
            assert (lab.last.outcome, lab.last.usage, lab.last.unmeasured) == ("completed", counted, "")
        for seen in lab.model.seen:
            assert (dict(seen.headers)["x-goog-api-key"], "authorization" in dict(seen.headers)) == (KEY, False)
            assert seen.target.endswith(("enerateContent?alt=sse", "streamGenerateContent"))
        assert (await ask_gemini(lab, "x", STREAM.replace("streamGenerateContent", "countTokens"))).status_code == 200
        assert (lab.last.usage, lab.last.unmeasured) == (None, "")

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("prompt", "outcome", "kind", "more"),
    [
        ("[[http 429]]", "http_error", RateLimited, {"error_type": "RESOURCE_EXHAUSTED"}),
        ("[[http 429 resets=60]]", "http_error", UsageLimited, {"retry_after": 60.0}),
        ("[[http 401]]", "http_error", AuthFailed, {"error_type": "UNAUTHENTICATED"}),
        ("[[http 503]]", "http_error", Overloaded, {"error_type": "UNAVAILABLE"}),
        ("[[fail UNAVAILABLE message=slow]]", "failed", Overloaded, {"error_message": "slow"}),
        ("[[garbage]]", "cut", StreamDisconnected, {"unmeasured": "broken_off"}),
        ("[[http 400]]", "http_error", ModelFailed, {}),
        ("[[fail SAFETY]]", "completed", None, {"unmeasured": ""}),
    ],
)
def test_gemini_failures_are_classified(
    tmp_path: Path, prompt: str, outcome: str, kind: type[AgentError] | None, more: dict[str, Any]
) -> None:
    async def work(lab: Lab) -> None:
        for path in (STREAM, ARRAY):
            await ask_gemini(lab, prompt, path)
            assert (lab.last.outcome, kind_of_exchange(lab.last)) == (outcome, kind)
            assert {name: getattr(lab.last, name) for name in more} == more

    run(tmp_path, work)


def test_gemini_stream_without_its_last_chunk_is_cut(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        for path in (STREAM, ARRAY):
            with pytest.raises(httpx2.TransportError):
                await ask_gemini(lab, "[[usage input=7]] [[drop mid]] [[say a few words]]", path)
            assert (lab.last.outcome, lab.last.unmeasured) == ("cut", "broken_off")
            assert lab.last.usage == TokenUsage(input_tokens=7), "the usage stated before is kept"

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("body", "outcome", "tokens"),
    [
        ('[{"usageMetadata": {"promptTokenCount": 7}}\n,', "cut", 7),
        ('[{"usageMetadata": {"promptTokenCount": 7}}\n,\r\n{"candidates": [{"content"', "cut", 7),
        ('\n[{"candidates": [{}], "usageMetadata": {"promptTokenCount": 7}}]', "cut", 7),
        ('[{"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 7}}]', "completed", 7),
        ("[" * 100_000, "cut", None),
        ("[", "cut", None),
        ("", "cut", None),
        ("<html>", "cut", None),
        ("[" + " " * MAX_EVENT, "completed", None),  # it was not read to its end
        ("\n\x05proto", "completed", None),  # the client asked for another form
    ],
)
def test_array_stream_without_its_end_is_cut(body: str, outcome: str, tokens: int | None) -> None:
    exchange = Exchange(
        number=1, method="POST", path="/models/m:streamGenerateContent", status=200, outcome="completed"
    )
    read_body(exchange, body.encode())
    assert (exchange.outcome, exchange.usage and exchange.usage.input_tokens) == (outcome, tokens)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ({"error": {"code": 502, "message": "no provider"}}, "failed"),
        ([{"error": {"code": 502, "message": "no provider"}}], "failed"),
        ({"type": "error", "error": {"type": "api_error"}}, "failed"),
        ({"error": "no provider"}, "failed"),
        ({"error": None, "output": [{}]}, "completed"),
        ({"error": {"code": 502}, "choices": [{}]}, "completed"),
    ],
)
def test_error_with_status_200_is_no_answer(body: Any, outcome: str) -> None:
    exchange = Exchange(number=1, method="POST", path="/chat/completions", status=200, outcome="completed")
    read_body(exchange, json.dumps(body).encode())
    assert (exchange.outcome, is_answer(exchange)) == (outcome, outcome == "completed")


def test_error_in_an_array_is_read_on_every_path() -> None:
    quota = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
    error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [quota, {"retryDelay": "9s"}]}
    for path in ("/v1beta/openai/chat/completions", "/v1beta/models/m:streamGenerateContent"):
        exchange = Exchange(number=1, method="POST", path=path, status=429, outcome="http_error")
        read_body(exchange, json.dumps([{"error": error}]).encode())
        assert (exchange.outcome, exchange.retry_after, kind_of_exchange(exchange)) == ("http_error", 9.0, UsageLimited)
