"""The client with servers that respond, refuse and misbehave on real sockets."""

from __future__ import annotations

import io
import ipaddress
import json
import logging
import os
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import fault_server as faults
import pytest
from async_parity import assert_same_interface, coroutines
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fault_server import FaultServer, answer
from pacing import SOON

from proofbox.core.clock import ManualClock
from proofbox.delivery.client.async_client import AsyncBackendClient
from proofbox.delivery.client.calls import api_path, seconds_to_wait
from proofbox.delivery.client.settings import ApiKey, BackendSettings, Retries, Timeouts, key_from_environment
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.client.wire import InitialExport, PullRequest, RepoManifest
from proofbox.errors import (
    BackendConflict,
    BackendError,
    BackendFailed,
    BackendForbidden,
    BackendNotFound,
    BackendProtocol,
    BackendRateLimited,
    BackendRejected,
    BackendTooLarge,
    BackendUnauthorized,
    BackendUnreachable,
    SettingsInvalid,
    UsageError,
)

KEY = "k3y-Zq7+never/shown=9f1b"
MANIFEST = {"baseCommitSha": "a" * 40, "files": [{"path": "a", "sha256": "0" * 64, "sizeBytes": 1}]}
QUICK = Retries(attempts=3, wait_initial=0.001, wait_max=0.002, wait_jitter=0.0)


def settings(url: str, *, total: float = 100.0, read: float = 60.0, retries: Retries = QUICK) -> BackendSettings:
    return BackendSettings.of(KEY, url, timeouts=Timeouts(connect=30.0, read=read, total=total), retries=retries)


def manifest(url: str, **options: Any) -> RepoManifest:
    with BackendClient(settings(url, **options)) as client:
        return client.get_repo_manifest("app-1", user_id="u-1")


@pytest.fixture
def logged() -> Iterator[Callable[[], str]]:
    """Capture everything that any library logs, at every level."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s %(args)s %(exc_info)s"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream.getvalue
    root.removeHandler(handler)
    root.setLevel(before)


# Answers


def test_manifest_request_matches_the_api() -> None:
    with FaultServer(answer(200, {**MANIFEST, "newMember": 1})) as server:
        found = manifest(server.url)
    assert found.base_commit_sha == "a" * 40
    assert [(each.path, each.size_bytes, each.mode) for each in found.files] == [("a", 1, None)]
    (request,) = server.requests
    assert request.head.startswith(b"POST /api/apps/app-1/deploy/repo/manifest HTTP/1.1\r\n")
    assert request.header("X-Internal-Api-Key") == KEY
    assert request.header("Idempotency-Key")
    assert json.loads(request.body) == {"repoUrl": None, "userId": "u-1"}


def test_unknown_spec_members_are_ignored() -> None:
    spec = {"appId": "a", "appName": "Shop", "techStack": {"web": "svelte"}, "apiToken": "hidden"}
    with FaultServer(answer(200, spec)) as server, BackendClient(settings(server.url)) as client:
        found = client.get_app_spec("ent/../1", app_id="a")
    assert found.app_name == "Shop"
    assert not hasattr(found, "api_token")
    assert server.requests[0].head.startswith(b"GET /api/enterprises/ent%2F..%2F1/appgen/spec?appId=a HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BackendRejected),
        (401, BackendUnauthorized),
        (403, BackendForbidden),
        (404, BackendNotFound),
        (409, BackendConflict),
        (413, BackendTooLarge),
        (422, BackendRejected),
        (429, BackendRateLimited),
        (500, BackendFailed),
        (503, BackendFailed),
        (302, BackendProtocol),
        (418, BackendProtocol),
    ],
)
def test_every_error_status_has_a_typed_error(status: int, kind: type[BackendError]) -> None:
    with (
        FaultServer(answer(status, {"error": {"code": "why", "message": "because\x1b[31m"}}, Location="/x")) as server,
        pytest.raises(BackendError) as caught,
    ):
        manifest(server.url)
    error = caught.value
    assert type(error) is kind
    assert error.fix_hints
    assert error.details["status"] == status
    if kind is not BackendProtocol:
        assert "because\\x1b[31m" in error.message
    if status == 404:
        assert error.details["ids"] == {"app_id": "app-1"}
        assert "app-1" in error.message
    assert len(server.requests) == (3 if status in (429, 500, 503) else 1)


def test_retryable_failures_are_retried(logged: Callable[[], str]) -> None:
    script = [answer(503, {}), answer(429, {}, Retry_After="0"), faults.reset, faults.truncate, answer(200, MANIFEST)]
    retries = Retries(attempts=5, wait_initial=0.001, wait_max=0.002, wait_jitter=0.0)
    with FaultServer(*script) as server:
        assert manifest(server.url, retries=retries).files
    keys = {request.header("Idempotency-Key") for request in server.requests}
    assert len(server.requests) == 5
    assert len(keys) == 1
    lines = [line for line in logged().splitlines() if line.startswith("BackendClient ")]
    assert [f"attempt={n}" in line and "op=get_repo_manifest" in line for n, line in enumerate(lines, 1)] == [True] * 5
    assert [word for line in lines for word in line.split() if word.startswith("status=")] == [
        "status=503",
        "status=429",
        "status=none",
        "status=none",
        "status=200",
    ]
    assert all("duration_ms=" in line and "[BackendClient]" in line for line in lines)


def test_retry_after_the_deadline_is_not_awaited() -> None:
    began = time.monotonic()
    with FaultServer(answer(429, {}, Retry_After="3000")) as server, pytest.raises(BackendRateLimited) as caught:
        manifest(server.url)
    assert caught.value.details["retry_after"] == 3000
    assert len(server.requests) == 1
    assert time.monotonic() - began < SOON


def test_retry_after_may_be_a_date() -> None:
    clock = ManualClock()
    assert seconds_to_wait("Thu, 01 Jan 2026 00:00:07 GMT", clock) == 7
    assert seconds_to_wait("Thu, 01 Jan 2025 00:00:07 GMT", clock) == 0
    assert seconds_to_wait("12", clock) == 12
    assert [seconds_to_wait(text, clock) for text in ("soon", "-1", "", "9" * 30)] == [None] * 4


def test_empty_repository_is_filled() -> None:
    empty: dict[str, Any] = {
        "baseCommitSha": None,
        "files": [],
        "repoUrl": "https://git:hunter2hunter2@host.example/a/b",
    }
    made = {"success": True, "repoUrl": "https://host.example/a/b", "repoFullName": "a/b", "baseCommitSha": "b" * 40}
    script = [answer(404, {}), answer(502, {}), answer(200, empty), answer(200, made)]
    with FaultServer(*script) as server, BackendClient(settings(server.url)) as client:
        found = client.initial_export("a", InitialExport(user_id="u", repo_name="b"), [])
    assert found.base_commit_sha == "b" * 40
    first, second = (json.loads(server.requests[number].body) for number in (1, 3))
    assert (first["createRepo"], first["repoUrl"]) == (True, None)
    assert (second["createRepo"], second["repoUrl"]) == (False, "https://host.example/a/b")
    assert first["idempotencyKey"] != second["idempotencyKey"]


def test_ambiguous_failure_is_checked_before_every_retry() -> None:
    """After an ambiguous attempt, every later attempt checks for its result first, even after a clear refusal."""
    made = {"success": True, "repoUrl": "https://h/a", "repoFullName": "a", "baseCommitSha": "b" * 40}
    script = [answer(404, {}), answer(500, {}), answer(404, {}), answer(429, {}), answer(404, {}), answer(200, made)]
    with FaultServer(*script) as server, BackendClient(settings(server.url)) as client:
        client.initial_export("a", InitialExport(user_id="u"), [])
    assert len(server.requests) == 6


def test_unsuccessful_export_is_an_error() -> None:
    made = {"success": False, "repoUrl": "https://h/a", "repoFullName": "a", "baseCommitSha": ""}
    with (
        FaultServer(answer(404, {}), answer(200, made)) as server,
        BackendClient(settings(server.url)) as client,
        pytest.raises(BackendRejected),
    ):
        client.initial_export("a", InitialExport(user_id="u"), [])


HOSTILE_URLS = [
    "javascript:alert(1)",
    "https://h.example/1\nproven: yes",
    "https://h.example/1\n",
    "https://h.example/" + "a" * 900_000,
    "https://h.example/\x1b[31m",
    "ftp://h.example/1",
    "",
]


@pytest.mark.parametrize("url", HOSTILE_URLS, ids=lambda url: url[:24])
def test_address_that_is_not_a_plain_web_address_is_refused(url: str) -> None:
    made = {"success": True, "repoUrl": url, "repoFullName": "a", "baseCommitSha": "a" * 40}
    for found in ({**MANIFEST, "prUrl": url}, {**MANIFEST, "repoUrl": url}):
        with FaultServer(answer(200, found)) as server, pytest.raises(BackendProtocol):
            manifest(server.url)
    with (
        FaultServer(answer(404, {}), answer(200, made)) as server,
        BackendClient(settings(server.url)) as client,
        pytest.raises(BackendProtocol),
    ):
        client.initial_export("a", InitialExport(user_id="u"), [])
    pull = PullRequest(user_id="u", base_commit_sha="a" * 40, branch_name="b", title="t")
    with (
        FaultServer(answer(404, {}), answer(200, {"prUrl": url})) as server,
        BackendClient(settings(server.url)) as client,
        pytest.raises(BackendProtocol),
    ):
        client.create_pull_request("a", pull, [])


@pytest.mark.parametrize("commit", ["main", "", "A" * 40, "a" * 41, "a" * 40 + "\n", "$(id)"])
def test_commit_that_is_not_an_object_id_is_refused(commit: str) -> None:
    with FaultServer(answer(200, {**MANIFEST, "baseCommitSha": commit})) as server, pytest.raises(BackendProtocol):
        manifest(server.url)
    made = {"success": True, "repoUrl": "https://h/a", "repoFullName": "a", "baseCommitSha": commit}
    with (
        FaultServer(answer(404, {}), answer(200, made)) as server,
        BackendClient(settings(server.url)) as client,
        pytest.raises(BackendProtocol),
    ):
        client.initial_export("a", InitialExport(user_id="u"), [])


@pytest.mark.parametrize("paths", [["a", "a"], ["../a"], ["/a"], ["a/../b"], ["a//b"], ["./a"], ["a/"]])
def test_manifest_with_duplicate_or_unsafe_paths_is_refused(paths: list[str]) -> None:
    files = [{"path": path, "sha256": "0" * 64, "sizeBytes": 1} for path in paths]
    with FaultServer(answer(200, {**MANIFEST, "files": files})) as server, pytest.raises(BackendProtocol):
        manifest(server.url)


def test_git_credentials_are_removed_in_both_directions() -> None:
    found = {**MANIFEST, "repoUrl": "https://x-access-token:ghs_0123456789@host.example/a/b.git"}
    with FaultServer(answer(200, found)) as server, BackendClient(settings(server.url)) as client:
        manifest = client.get_repo_manifest("a", user_id="u")
        assert manifest.repo_url == "https://host.example/a/b.git"
        with pytest.raises(UsageError) as caught:
            client.get_repo_manifest("a", user_id="u", repo_url="https://me:hunter2hunter2@host.example/a")
        assert "hunter2" not in repr(caught.value.as_dict())
    assert len(server.requests) == 1


def test_secrets_in_a_spec_are_redacted() -> None:
    spec = {"appId": "a", "description": "use ghp_" + "a" * 36, "techStack": {"password": "hunter2hunter2"}}
    with FaultServer(answer(200, spec)) as server, BackendClient(settings(server.url)) as client:
        found = client.get_app_spec("e")
    assert "ghp_" not in repr(found)
    assert "hunter2" not in repr(found)


# Faults

MISBEHAVING = {
    "reset": faults.reset,
    "stall": faults.stall,
    "truncated": faults.truncate,
    "not http": faults.not_http,
    "garbage": faults.garbage,
    "a gigabyte": faults.huge,
    "compressed": faults.bomb,
    "dripping head": faults.drip_head,
    "dripping body": faults.drip_body,
    "echo 401": faults.echo_key(401),
    "echo 500": faults.echo_key(500),
    "echo 200": faults.echo_key(200),
}


@pytest.mark.parametrize("name", MISBEHAVING)
def test_faults_respect_the_timeout_and_hide_the_key(name: str, logged: Callable[[], str]) -> None:
    began = time.monotonic()
    with FaultServer(MISBEHAVING[name]) as server, pytest.raises(BackendError) as caught:
        manifest(server.url, total=1.5, read=1.0)
    assert time.monotonic() - began < SOON  # the client's timeout is 1.5 s; the rest allows for a busy machine
    assert server.requests[0].header("X-Internal-Api-Key") == KEY
    assert_silent(caught.value, logged())


def test_async_client_respects_the_timeout(logged: Callable[[], str]) -> None:
    async def ask(url: str) -> None:
        async with AsyncBackendClient(settings(url, total=0.5)) as client:
            await client.get_repo_manifest("app-1", user_id="u-1")

    for behaviour in (faults.drip_head, faults.drip_body, faults.stall):
        with FaultServer(behaviour) as server, pytest.raises(BackendUnreachable) as caught:
            anyio.run(ask, server.url)
        assert_silent(caught.value, logged())


def test_connection_refused(logged: Callable[[], str]) -> None:
    with FaultServer(faults.reset) as server:
        url = server.url
    with pytest.raises(BackendUnreachable) as caught:
        manifest(url)
    assert caught.value.details["attempts"] == 3
    assert not caught.value.details["sent"]
    assert_silent(caught.value, logged())


def assert_silent(error: BackendError, logs: str) -> None:
    """Check that the key is not visible anywhere, not even in the local variables of traceback frames."""
    seen = [logs, str(error), repr(error), json.dumps(error.as_dict()), repr(error.__dict__)]
    chain: BaseException | None = error
    while chain is not None:
        shown = traceback.TracebackException.from_exception(chain, capture_locals=True)
        seen += shown.format()
        at = chain.__traceback__
        while at is not None:
            if "/tests/" not in at.tb_frame.f_code.co_filename:
                seen += [repr(value) for value in at.tb_frame.f_locals.values()]
            at = at.tb_next
        chain = chain.__context__
    needles = [KEY, KEY[:12], KEY[-12:]]
    for text in seen:
        for needle in needles:
            assert needle not in text, text[max(0, text.find(needle) - 200) :][:400]


# Settings


@pytest.mark.parametrize(
    "value",
    ["", "   ", "your-secret-key", "changeme", "CHANGE_ME", "<key>", "${KEY}", "xxxxxxxx", "secret", "api-key", "todo",
     "your_internal_api_key_here", "aaaaaaaaaaaa", "short1", "with space in it 1", "new\nline-key-123", "ключ-ключ-1"],
)  # fmt: skip
def test_invalid_keys_are_refused(value: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        BackendSettings.from_environment({"INTERNAL_API_KEY": value})
    assert "INTERNAL_API_KEY" in caught.value.message
    assert caught.value.fix_hints
    if len(value.strip()) > 5:
        assert value not in caught.value.message


@pytest.mark.parametrize("value", ["sk_live_8f2k1m", "testing-9f8e7d6c", KEY, "0123456789abcdef"])
def test_valid_keys_are_accepted(value: str) -> None:
    assert ApiKey(value).header_value() == value.encode()


def test_key_is_never_shown() -> None:
    key = ApiKey(KEY)
    held = BackendSettings.of(key)
    for text in (str(key), repr(key), f"{key}", format(key), repr(held), str(held), repr([key])):
        assert KEY not in text
    with pytest.raises(TypeError):
        __import__("pickle").dumps(key)
    with pytest.raises(TypeError):
        json.dumps({"key": key})


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.9/", True),
        ("http://[::1]:80", True),
        ("https://backend.example.com/base", True),
        ("http://backend.example.com", False),
        ("http://localhost.evil.example", False),
        ("http://192.168.0.1:3000", False),
        ("ftp://localhost", False),
        ("localhost:3000", False),
        ("https://user:hunter2secret@backend.example.com", False),
        ("https://", False),
        ("http://localhost:99999", False),
        ("http://localhost:3000/?q=1", False),
    ],
)
def test_key_is_only_sent_encrypted_to_other_machines(url: str, good: bool) -> None:
    if good:
        assert BackendSettings.of(KEY, url).url == url.rstrip("/")
        return
    with pytest.raises(SettingsInvalid) as caught:
        BackendSettings.of(KEY, url)
    assert "hunter2" not in repr(caught.value.as_dict())


def certificate(place: Path, address: str) -> tuple[Path, ssl.SSLContext]:
    """Create a self-signed certificate for an address; return the file to trust and the server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, private = place / f"{address}.pem", place / f"{address}.key"
    trusted.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, private)
    return trusted, context


def test_key_is_not_sent_with_an_invalid_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted, right = certificate(tmp_path, "127.0.0.1")
    other, wrong = certificate(tmp_path, "127.0.0.2")
    with FaultServer(answer(200, MANIFEST), tls=right) as server:
        with pytest.raises(BackendUnreachable) as caught:
            manifest(server.url)
        assert not caught.value.details["sent"]
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        assert manifest(server.url).files
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with FaultServer(answer(200, MANIFEST), tls=wrong) as server:
        with pytest.raises(BackendUnreachable):
            manifest(server.url)
        assert not server.requests


def test_plain_http_can_be_allowed() -> None:
    assert BackendSettings.of(KEY, "http://backend.internal:3000", allow_http=True)


def test_dotenv_supplements_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        f"# settings\nOTHER=1\nexport MOZAIKS_BACKEND_URL=https://b.example # the backend\nINTERNAL_API_KEY='{KEY}'\n"
    )
    found = BackendSettings.from_environment({}, project=tmp_path)
    assert found.url == "https://b.example"
    assert found.key.matches(KEY)
    assert not found.key.matches(KEY + "x")
    other = BackendSettings.from_environment({"MOZAIKS_BACKEND_URL": "http://localhost:1"}, project=tmp_path)
    assert other.url == "http://localhost:1"
    default = BackendSettings.from_environment({"INTERNAL_API_KEY": KEY})
    assert default.url == "http://localhost:3000"


@pytest.mark.parametrize("file_has_a_key", [False, True])
def test_dotenv_cannot_redirect_a_key_from_the_environment(tmp_path: Path, file_has_a_key: bool) -> None:
    """An agent may write a project's `.env`, so a URL in it only applies to a key in it."""
    own = "of-the-file-8f2k1m"
    lines = ["MOZAIKS_BACKEND_URL=http://127.0.0.1:4567", *([f"INTERNAL_API_KEY={own}"] if file_has_a_key else [])]
    (tmp_path / ".env").write_text("\n".join(lines))
    with pytest.raises(SettingsInvalid) as caught:
        BackendSettings.from_environment({"INTERNAL_API_KEY": KEY}, project=tmp_path)
    shown = repr(caught.value.as_dict())
    assert "--backend-url" in shown
    assert "MOZAIKS_BACKEND_URL" in shown
    assert KEY not in shown
    # A URL that the user sets, in either way, is used with the user's key.
    env = {"INTERNAL_API_KEY": KEY, "MOZAIKS_BACKEND_URL": "https://mine.example"}
    assert BackendSettings.from_environment(env, project=tmp_path).url == "https://mine.example"
    named = BackendSettings.from_environment({"INTERNAL_API_KEY": KEY}, project=tmp_path, url="https://flag.example")
    assert named.url == "https://flag.example"
    assert named.key.matches(KEY)


def test_dotenv_may_name_the_default_url(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MOZAIKS_BACKEND_URL=http://localhost:3000/\n")
    found = BackendSettings.from_environment({"INTERNAL_API_KEY": KEY}, project=tmp_path)
    assert found.url == "http://localhost:3000"


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_dotenv_that_is_not_a_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / ".env"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    for ask in (BackendSettings.from_environment, key_from_environment):
        with pytest.raises(SettingsInvalid, match="leads out" if kind == "device" else "regular file") as caught:
            ask({"INTERNAL_API_KEY": KEY}, project=tmp_path)
        assert any("remove it" in hint for hint in caught.value.fix_hints)


def test_ids_are_escaped_in_paths() -> None:
    assert api_path("api", "../x?y#z", "a b") == "/api/..%2Fx%3Fy%23z/a%20b"


def test_both_clients_have_the_same_operations() -> None:
    assert_same_interface(BackendClient, AsyncBackendClient)
    operations = {"close", "get_app_spec", "get_repo_manifest", "initial_export", "create_pull_request"}
    assert coroutines(AsyncBackendClient) == operations
