"""The reference backend: authentication, refused requests, isolation of apps, and its OpenAPI description."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from running_backend import KEY
from starlette.applications import Starlette
from starlette.testclient import TestClient

from proofbox.delivery.backend.markdown import to_html
from proofbox.delivery.backend.repositories import Repositories
from proofbox.delivery.backend.serve import application, serve
from proofbox.delivery.client.settings import ApiKey
from proofbox.errors import RepositoryFailed, SettingsInvalid

pytestmark = pytest.mark.needs("git")

URL = "http://127.0.0.1:3000"
DEPLOY = "/api/apps/{}/deploy/repo"


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[Repositories]:
    made = Repositories(tmp_path / "data", URL)
    yield made
    made.close()


@pytest.fixture
def app(repositories: Repositories) -> Starlette:
    return application(repositories, ApiKey(KEY), max_body=200_000)


@pytest.fixture
def api(app: Starlette) -> TestClient:
    return TestClient(app, base_url=URL, headers={"X-Internal-Api-Key": KEY})


def content(data: bytes) -> str:
    return base64.b64encode(data).decode()


def export(files: dict[str, bytes], **more: Any) -> dict[str, Any]:
    found = [{"path": path, "contentBase64": content(data)} for path, data in files.items()]
    return {"createRepo": True, "userId": "u", "files": found, **more}


def make(api: TestClient, app_id: str = "shop", files: dict[str, bytes] | None = None) -> dict[str, Any]:
    answer = api.post(f"{DEPLOY.format(app_id)}/initial-export", json=export(files or {"a": b"1"}))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def propose(api: TestClient, base: str, changes: list[dict[str, Any]], app_id: str = "shop", **more: Any) -> Any:
    body = {"userId": "u", "baseCommitSha": base, "branchName": "b", "title": "t", "changes": changes, **more}
    return api.post(f"{DEPLOY.format(app_id)}/pull-requests", json=body)


ADD = {"path": "n", "operation": "add", "contentBase64": content(b"x")}


@pytest.mark.parametrize("key", [None, "", "wrong", KEY + "x", KEY[:-1], "ключ".encode()])
def test_every_endpoint_requires_the_key(api: TestClient, key: Any) -> None:
    headers = {} if key is None else {"X-Internal-Api-Key": key}
    stranger = TestClient(api.app, base_url=URL, headers=headers)
    for method, path in (
        ("POST", f"{DEPLOY.format('shop')}/manifest"),
        ("POST", f"{DEPLOY.format('shop')}/initial-export"),
        ("POST", f"{DEPLOY.format('shop')}/pull-requests"),
        ("GET", "/api/enterprises/e/appgen/spec"),
        ("PUT", "/api/enterprises/e/appgen/spec"),
        ("GET", "/git/shop/shop.git/info/refs?service=git-upload-pack"),
        ("GET", "/"),
        ("GET", "/apps/shop"),
        ("GET", "/s/x/apps/shop/pulls/1"),
        ("POST", "/s/x/apps/shop/pulls/1/merge"),
    ):
        answer = stranger.request(method, path, json={} if method != "GET" else None)
        assert answer.status_code == 401, (method, path)
        assert KEY not in answer.text


def test_app_only_sees_its_own_repository(api: TestClient) -> None:
    mine, theirs = make(api, "mine", {"a": b"mine"}), make(api, "theirs", {"a": b"theirs"})
    assert mine["repoUrl"] != theirs["repoUrl"]
    request = {"userId": "u", "repoUrl": theirs["repoUrl"]}
    assert api.post(f"{DEPLOY.format('mine')}/manifest", json=request).status_code == 404
    assert propose(api, theirs["baseCommitSha"], [ADD], "mine").status_code == 409
    assert propose(api, mine["baseCommitSha"], [ADD], "mine", repoUrl=theirs["repoUrl"]).status_code == 404
    for app_id in ("..", "%2e%2e%2f", "a" * 500, "x\u202ey"):
        assert api.post(f"{DEPLOY.format(app_id)}/manifest", json={"userId": "u", "repoUrl": None}).status_code in (
            401,
            404,
        )


def test_similar_app_names_stay_distinct(api: TestClient) -> None:
    urls = {make(api, app_id)["repoUrl"] for app_id in ("a-b", "a b", "A-b", "a_b", "a.b", "-a-b")}
    assert len(urls) == 6


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"../a": b""}, 422), ({"/a": b""}, 422), ({".git/config": b""}, 422), ({"a/.GIT/x": b""}, 422),
        ({"a": b"", "a/b": b""}, 422), ({"a\nb": b""}, 422), ({"a\\b": b""}, 422), ({"": b""}, 422), ({}, 422),
        ({'q"uo\u00e9te "d': b"x"}, 200),
    ],
)  # fmt: skip
def test_paths(api: TestClient, files: dict[str, bytes], status: int) -> None:
    assert api.post(f"{DEPLOY.format('shop')}/initial-export", json=export(files)).status_code == status
    answer = api.post(f"{DEPLOY.format('shop')}/manifest", json={"userId": "u", "repoUrl": None})
    assert answer.status_code == (200 if status == 200 else 404)
    if status == 200:
        assert [file["path"] for file in answer.json()["files"]] == list(files)


def test_idempotency_key_is_bound_to_one_request(api: TestClient) -> None:
    headers = {"Idempotency-Key": "k"}
    first = api.post(f"{DEPLOY.format('shop')}/initial-export", json=export({"a": b"1"}), headers=headers)
    again = api.post(f"{DEPLOY.format('shop')}/initial-export", json=export({"a": b"1"}), headers=headers)
    other = api.post(f"{DEPLOY.format('shop')}/initial-export", json=export({"a": b"2"}), headers=headers)
    without = api.post(f"{DEPLOY.format('shop')}/initial-export", json=export({"a": b"1"}))
    assert first.json() == again.json()
    assert [each.status_code for each in (first, again, other, without)] == [200, 200, 422, 409]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ([{"path": "a", "operation": "add", "contentBase64": ""}], 409),
        ([{"path": "z", "operation": "modify", "contentBase64": ""}], 409),
        ([{"path": "z", "operation": "delete"}], 409),
        ([{"path": "a", "operation": "delete", "contentBase64": "eA=="}], 422),
        ([{"path": "n", "operation": "add"}], 422),
        ([{"path": "a/b", "operation": "add", "contentBase64": ""}], 422),
        ([{"path": "n", "operation": "add", "contentBase64": content(b"/etc/passwd"), "mode": "120000"}], 422),
        ([{"path": "d/n", "operation": "add", "contentBase64": content(b"l/../x"), "mode": "120000"}], 422),
        ([{"path": "n", "operation": "rename", "contentBase64": ""}], 422),
        ([{"path": "n", "operation": "add", "contentBase64": "***"}], 422),
        ([], 422),
        ([ADD, ADD], 422),
        ([{"path": "a", "operation": "delete"}, {"path": "a/b", "operation": "add", "contentBase64": ""}], 200),
    ],
)
def test_changes_that_do_not_fit_the_base_are_refused(
    api: TestClient, changes: list[dict[str, Any]], status: int
) -> None:
    base = make(api)["baseCommitSha"]
    assert propose(api, base, changes).status_code == status


@pytest.mark.parametrize(
    "branch",
    [
        "main",
        "HEAD",
        "Main",
        "FETCH_HEAD",
        "refs/heads/x",
        "-x",
        "a..b",
        "a.lock",
        "/a",
        "a//b",
        ".a",
        "a b",
        "refs/../x",
        "a/",
    ],
)
def test_invalid_branch_names_are_refused(api: TestClient, branch: str) -> None:
    base = make(api)["baseCommitSha"]
    assert propose(api, base, [ADD], branchName=branch).status_code == 422


def test_branch_has_one_pull_request(api: TestClient, repositories: Repositories) -> None:
    base = make(api)["baseCommitSha"]
    first = propose(api, base, [ADD])
    second = propose(api, base, [ADD], title="other")
    assert second.status_code == 409
    assert second.json()["prUrl"] == first.json()["prUrl"]
    inside = propose(api, base, [ADD], branchName="b/c")  # conflicts with the branch `b` in git
    assert inside.status_code == 409
    assert len(repositories.pulls("shop")) == 1


def test_sizes_are_bounded(api: TestClient) -> None:
    big = export({"a": b"x" * 300_000})
    assert api.post(f"{DEPLOY.format('shop')}/initial-export", json=big).status_code == 413

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    headers = {"Content-Type": "application/json"}
    answer = api.post(f"{DEPLOY.format('shop')}/initial-export", content=endless(), headers=headers)
    assert answer.status_code == 413


def test_concurrent_exports_create_one_repository(api: TestClient, repositories: Repositories) -> None:
    started = threading.Barrier(8)

    def ask(number: int) -> int:
        started.wait(120)
        headers = {"Idempotency-Key": "same" if number % 2 else f"k{number}"}
        body = export({"a": b"1"})
        return api.post(f"{DEPLOY.format('shop')}/initial-export", json=body, headers=headers).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(pool.map(ask, range(8)))
    assert set(statuses) <= {200, 409}
    assert statuses[0] == 200
    assert len(repositories.repositories()) == 1


def sign_in(app: Starlette, next: str = "/", **headers: str) -> TestClient:
    """Return a browser that signed in; its addresses are relative to the session's path."""
    browser = TestClient(app, base_url=URL, headers={"Origin": URL, **headers}, follow_redirects=False)
    signed = browser.post("/sign-in", data={"key": KEY, "next": next})
    assert signed.status_code == 303
    browser.base_url = f"{URL}{signed.headers['location'].removesuffix(next.removeprefix('/'))}"
    return browser


def token_of(page: str) -> str:
    found = re.search(r'name="token" value="([\w-]+)"', page)
    return found[1] if found else ""


def test_pages_only_accept_their_own_forms(app: Starlette, api: TestClient) -> None:
    base = make(api)["baseCommitSha"]
    propose(api, base, [ADD], title="</title><script>alert(1)</script>", body='"><img src=x onerror=alert(1)>')
    browser = TestClient(app, base_url=URL, headers={"Origin": URL}, follow_redirects=False)
    assert browser.post("/sign-in", data={"key": "wrong"}).status_code == 401
    assert browser.post("/sign-in", data={"key": KEY}, headers={"Origin": "http://evil.example"}).status_code == 401
    assert browser.post("/sign-in", data={"key": "x" * 100_000}).status_code == 413
    assert browser.post("/sign-in", data={f"field{n}": "x" for n in range(11)}).status_code == 422
    cookie = browser.post("/sign-in", data={"key": KEY}).headers["set-cookie"]
    assert KEY not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    browser = sign_in(app)
    page = browser.get("/apps/shop/pulls/1")
    assert "<script" not in page.text
    assert "<img" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    token = token_of(page.text)
    assert token
    merge = "/apps/shop/pulls/1/merge"
    assert browser.post(merge, data={}).status_code == 403
    for headers in (
        *({"Origin": origin} for origin in ("http://evil.example", "http://127.0.0.1:4000", "http://[", "null")),
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "none")),
    ):
        assert browser.post(merge, data={"token": token}, headers=headers).status_code == 403, headers
    assert browser.get(merge).status_code == 405
    assert browser.post(merge, data={"token": token_of(sign_in(app).get("/apps/shop/pulls/1").text)}).status_code == 403
    assert browser.post(merge, data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 303
    assert browser.get("/apps/nobody").status_code == 404
    rebound = TestClient(app, base_url="http://evil.example")
    assert rebound.get("/").status_code == 400


def test_cookie_alone_neither_reads_nor_merges(app: Starlette, api: TestClient, repositories: Repositories) -> None:
    propose(api, make(api)["baseCommitSha"], [ADD])
    browser = sign_in(app)
    (cookie,) = browser.cookies.jar
    thief = TestClient(app, base_url=URL, headers={"Origin": URL, "Cookie": f"{cookie.name}={cookie.value}"})
    for path in ("/", "/apps/shop/pulls/1", f"/s/{cookie.value}/apps/shop/pulls/1", "/s/x/apps/shop/pulls/1"):
        page = thief.get(path)
        assert page.status_code == 401
        assert not token_of(page.text)
        derived = hashlib.sha256(f"form of {cookie.value}".encode()).hexdigest()
        for token in (str(cookie.value), derived, ""):
            assert thief.post(f"{path.rstrip('/')}/merge", data={"token": token}).status_code in (401, 404)
    assert repositories.pull("shop", 1).state == "open"


def test_browser_sends_the_cookie_only_below_the_path_of_its_session(app: Starlette) -> None:
    browser = sign_in(app)
    for place in (f"{URL}/apps/shop", "http://127.0.0.1:4000/", "http://127.0.0.1:4000/s/x/"):
        assert "cookie" not in browser.build_request("GET", place).headers
    assert "cookie" in browser.build_request("GET", "/apps/shop").headers


@pytest.mark.parametrize("next", ["/apps/shop", "/apps/a%20b/pulls/12"])
def test_signing_in_leads_to_the_requested_page(app: Starlette, next: str) -> None:
    asked = TestClient(app, base_url=URL).get(next)
    assert (asked.status_code, f'name="next" value="{next}"' in asked.text) == (401, True)
    browser = sign_in(app, next)
    assert str(browser.base_url).count("/s/") == 1


@pytest.mark.parametrize(
    "next", ["//evil.example/", "https://evil.example/apps/x", "/apps/x\r\nA: b", "/apps/../..", "/s/x"]
)
def test_signing_in_never_leads_elsewhere(app: Starlette, next: str) -> None:
    browser = TestClient(app, base_url=URL, headers={"Origin": URL}, follow_redirects=False)
    location = browser.post("/sign-in", data={"key": KEY, "next": next}).headers["location"]
    assert re.fullmatch(r"/s/[\w-]{43}/", location)


def test_hostile_content_is_shown_as_text(app: Starlette, api: TestClient) -> None:
    hostile = b"<script>alert(1)</script>\n\x1b[31m\xff\xfe\n" + b"a" * 10_000 + b"\n"
    base = make(api, files={"<b>.txt": b"1"})["baseCommitSha"]
    change = {"path": "<b>.txt", "operation": "modify", "contentBase64": content(hostile)}
    assert propose(api, base, [change]).status_code == 200
    browser = sign_in(app)
    for path in ("/", "/apps/shop", "/apps/shop/pulls/1"):
        text = browser.get(path).text
        assert "<script" not in text
        assert "<b>" not in text
        assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)" in text


FRAGMENTS = st.lists(
    st.sampled_from(
        ["<", ">", "&", '"', "'", "`", "**", "|", "\\|", "- ", "## ", "> ", "\n", "|-|", "<script>", "&lt;", "x"]
    )
    | st.text(max_size=5)
)


@given(FRAGMENTS)
def test_markdown_only_produces_known_tags(pieces: list[str]) -> None:
    made = to_html("".join(pieces))
    tags = set(re.findall(r"<[^>]*>", made))
    names = ("h3", "ul", "li", "table", "tbody", "tr", "td", "p", "blockquote", "code", "strong")
    assert tags <= {"<br>", *(f"<{name}>" for name in names), *(f"</{name}>" for name in names)}
    assert made.count("<") == len(re.findall(r"<[^>]*>", made)) == made.count(">")
    HTMLParser(convert_charrefs=True).feed(made)
    for name in names:
        assert made.count(f"<{name}>") == made.count(f"</{name}>")


def test_quote_is_one_block() -> None:
    assert to_html("a\n> <b>\n>\n> # c\n\nd") == "<p>a</p><blockquote>&lt;b&gt;<br><br># c</blockquote><p>d</p>"


def test_markdown_of_our_own_summaries() -> None:
    text = "## Evidence\n\n| a | b |\n|---|---|\n| x | `p \\| <q> **n**` |\n\n- one **two**\n- three\n\nwords\nmore"
    assert to_html(text) == (
        "<h3>Evidence</h3><table><tbody><tr><td>a</td><td>b</td></tr><tr><td>x</td><td><code>p | &lt;q&gt; **n**</code>"
        "</td></tr></tbody></table><ul><li>one <strong>two</strong></li><li>three</li></ul><p>words<br>more</p>"
    )


def test_git_access_is_read_only(api: TestClient) -> None:
    made = make(api)
    path = made["repoUrl"].removeprefix(URL)
    assert api.get(f"{path}/info/refs?service=git-receive-pack").status_code == 403
    assert api.post(f"{path}/git-receive-pack", content=b"").status_code in (404, 405)
    basic = TestClient(api.app, base_url=URL)
    listing = basic.get(f"{path}/info/refs?service=git-upload-pack", auth=("git", KEY))
    assert b"refs/heads/main" in listing.content
    for other in ("/git/shop/other.git", "/git/../data.git", "/git/shop/..git"):
        assert api.get(f"{other}/info/refs?service=git-upload-pack").status_code in (401, 404)


def test_second_backend_in_a_directory_is_refused(repositories: Repositories, tmp_path: Path) -> None:
    with pytest.raises(RepositoryFailed):
        Repositories(tmp_path / "data", URL)


def test_only_loopback_addresses_are_served(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid):
        serve(tmp_path, ApiKey(KEY), host="0.0.0.0", port=0, ready=lambda _: None)  # noqa: S104


WANTED = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "ignored_auth",
)


@pytest.mark.parametrize("number", range(5))
def test_backend_conforms_to_its_openapi_description(
    number: int, tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    """schemathesis sends valid and invalid requests and checks every response against the description."""
    import schemathesis
    from schemathesis.checks import CHECKS

    repositories = Repositories(tmp_path / "data", "http://testserver")
    schema = schemathesis.openapi.from_asgi("/openapi.json", application(repositories, ApiKey(KEY)))
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) == 5
    checks: list[Any] = [check for check in CHECKS.get_all() if check.__name__ in WANTED]
    assert len(checks) == len(WANTED)
    either = [operations[number].as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

    @settings(max_examples=rounds(25, 500), suppress_health_check=list(HealthCheck))
    @given(case=st.one_of(either))
    def ask(case: Any) -> None:
        case.call_and_validate(headers={"X-Internal-Api-Key": KEY}, checks=checks)

    try:
        ask()
    finally:
        repositories.close()
