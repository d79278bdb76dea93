"""The server answers only the holder of the token, under its own name, and shows only its own directory."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from hostile import LINE, NAME, TEXT
from viewer_fixtures import hostile_attempt

from proofbox import BundleWriter
from proofbox.errors import NotFoundError, UsageError
from proofbox.viewer.web.serve import serving

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"


class Client:
    """A client that sends exactly what a test says."""

    def __init__(self, url: str) -> None:
        self.parts = urlsplit(url)
        self.cookie = ""
        self.home = ""

    def get(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(str(self.parts.hostname), self.parts.port, timeout=30)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        connection.close()
        assert POLICY in str(answer.headers["Content-Security-Policy"])
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        return answer

    def sign_in(self) -> None:
        answer = self.get(f"/?{self.parts.query}")
        assert answer.status == 303
        self.home = str(answer.headers["Location"])
        self.cookie = str(answer.headers["Set-Cookie"])

    def page(self, name: str = "", **parameters: str) -> http.client.HTTPResponse:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return self.get(self.home + name + query, Cookie=self.cookie.partition(";")[0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for place in ("shown", "elsewhere"):
        with BundleWriter.create(tmp_path / place, run_id=f"run-{place}") as bundle:
            bundle.write_json("results.json", {"secret": place})
    (tmp_path / "shown" / "link").symlink_to(tmp_path / "elsewhere" / "run-elsewhere")
    return tmp_path / "shown"


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with serving(root) as url:
        yield Client(url)


def test_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(client: Client) -> None:
    client.sign_in()
    assert "HttpOnly" in client.cookie
    assert "SameSite=strict" in client.cookie
    assert f"Path={client.home}" in client.cookie, "not sent to other servers on this host"
    assert client.parts.query.partition("=")[2] not in client.home + client.cookie
    answer = client.page()
    assert answer.status == 200
    assert "run-shown" in answer.text  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "page",
    [
        "",
        "open",
        "run",
        "campaign",
        "attempt",
        "bundle",
        "timeline",
        "output",
        "diff",
        "files",
        "file",
        "compare",
        "flows",
        "live",
        "static/x/viewer.css",
    ],
)
def test_every_page_needs_the_cookie_and_the_secret_path(client: Client, page: str) -> None:
    client.sign_in()
    known = client.cookie.partition(";")[0]
    query = "?at=run-shown"
    wrong_path = f"/s/{'x' * 43}/{page}{query}"
    for path, cookie in (
        (client.home + page + query, ""),
        (client.home + page + query, known[:-1] + "x"),
        (wrong_path, known),
    ):
        answer = client.get(path, Cookie=cookie)
        assert answer.status in (403, 404)
        assert "run-shown</" not in answer.text  # type: ignore[attr-defined]


def test_browser_without_a_session_gets_only_the_style(client: Client) -> None:
    answer = client.get("/")
    assert (answer.status, 'href="/viewer.css"' in answer.text) == (403, True)  # type: ignore[attr-defined]
    style = client.get("/viewer.css")
    assert (style.status, str(style.headers["Content-Type"]).partition(";")[0]) == (200, "text/css")
    assert client.get("/viewer.js").status == 404


@pytest.mark.parametrize("token", ["", "wrong", "\u00e9"])
def test_wrong_token_is_refused(client: Client, token: str) -> None:
    assert client.get(f"/?{urlencode({'token': token})}").status == 403
    body = urlencode({"token": token, "next": "run?at=x"})
    assert client.get("/s/x/sign-in", "POST", body).status == 403


def test_pasted_token_leads_to_the_page_of_an_ended_session(client: Client) -> None:
    token = client.parts.query.partition("=")[2]
    for above in ("/s/old/", "/"):
        answer = client.get(f"{above}sign-in", "POST", urlencode({"token": token, "next": "bundle?at=run-shown"}))
        assert (answer.status, str(answer.headers["Location"]).endswith("/bundle?at=run-shown")) == (303, True)
    answer = client.get("/s/old/sign-in", "POST", urlencode({"token": token, "next": "//192.0.2.1/"}))
    assert str(answer.headers["Location"]).startswith("/s/")
    assert "192.0.2.1" not in str(answer.headers["Location"])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_request_for_another_host_is_refused(client: Client, host: str) -> None:
    assert client.get(f"/?{client.parts.query}", Host=host).status == 421


@pytest.mark.parametrize(
    "at", ["..", "../elsewhere/run-elsewhere", "/etc", "link", "run-shown/../../elsewhere/run-elsewhere", "\0", "."]
)
def test_nothing_outside_the_directory_is_shown(client: Client, at: str) -> None:
    client.sign_in()
    for page in ("open", "bundle", "attempt", "run", "files", "file", "flows"):
        answer = client.page(page, at=at)
        assert answer.status == 404
        assert "Evidence valid" not in answer.text  # type: ignore[attr-defined]


def test_page_of_forged_evidence_is_bounded(client: Client, root: Path) -> None:
    hostile_attempt(root, "x" * 10_000 + TEXT, "x" * 80_000 + NAME, LINE, times=60)
    client.sign_in()
    answer = client.page("attempt", at="attempt-hostile")
    text: str = answer.text  # type: ignore[attr-defined]
    assert answer.status == 200
    assert len(text) < 2_000_000
    assert max(map(len, text.split("<"))) < 70_000, "no text is longer than a part of an output"


def test_methods_that_change_something_do_not_exist(client: Client) -> None:
    client.sign_in()
    for page in ("", "run", "attempt", "bundle"):
        answer = client.get(client.home + page, "POST", "", Cookie=client.cookie.partition(";")[0])
        assert answer.status == 404


def test_note_needs_our_own_page_its_token_and_the_session(client: Client, root: Path) -> None:
    client.sign_in()
    cookie = client.cookie.partition(";")[0]
    origin = f"http://{client.parts.netloc}"
    for token, sender, session in (
        ("wrong", origin, cookie),
        ("", origin, cookie),
        ("wrong", "http://evil.example", cookie),
    ):
        body = urlencode({"at": "run-shown", "text": "x", "token": token})
        assert client.get(client.home + "annotate", "POST", body, Cookie=session, Origin=sender).status == 403
    assert list(root.glob("*.notes.jsonl")) == []


def test_busy_port_and_missing_directory_are_typed_errors(root: Path) -> None:
    with (
        serving(root) as url,
        pytest.raises(UsageError, match="cannot listen"),
        serving(root, port=urlsplit(url).port or 0),
    ):
        pass
    with pytest.raises(NotFoundError), serving(root / "absent"):
        pass
