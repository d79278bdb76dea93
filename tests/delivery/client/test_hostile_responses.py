"""Hostile responses give a result or a typed error, never another exception."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from running_backend import KEY

from proofbox.core.clock import ManualClock
from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery.client.calls import seconds_to_wait
from proofbox.delivery.client.settings import BackendSettings, Retries, Timeouts
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.client.wire import InitialExport, PullRequest, RepositoryChange
from proofbox.delivery.deliver import Options, Target, initial_export, pull_request
from proofbox.delivery.mission import mission_from_spec
from proofbox.delivery.proof import NO_PROOF
from proofbox.delivery.source.tree import SourceFile, SourceTree
from proofbox.errors import BackendConflict, ProofboxError

URL = "http://localhost:9"
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]

# Dates in the usual format with one invalid number.
DATE = st.builds(
    "{}, {} {} {} {}:{}:{} {}".format,
    *(st.sampled_from(["Mon", "x"]), st.integers() | st.just(1), st.sampled_from(["Jan", "Dec", "Foo"])),
    *(st.integers(0, 99999) | st.integers(), *[st.integers(-1, 61) | st.integers()] * 3),
    st.sampled_from(["GMT", "", "-0000", "+2400", "-9999"]) | st.integers().map("{:+05}".format),
)


@given(DATE | st.text(max_size=40) | st.integers().map(str) | st.floats().map(str))
@example("Mon, 1 Jan 2024 00:00:00 +99999999999999999")
@example("Mon, 99999999999999999999 Jan 2024 00:00:00 GMT")
@example("Mon, 1 Jan 2024 00:00:99999999999999999999 GMT")
@example("Fri, 31 Dec 9999 23:59:59 -2359")
def test_retry_after_gives_a_valid_delay_or_none(text: str) -> None:
    found = seconds_to_wait(text, ManualClock())
    assert found is None or 0 <= found <= 3600


HEADER = st.sampled_from(
    [b"retry-after", b"content-encoding", b"content-type", b"content-length", b"location", b"set-cookie", b"date"]
)
VALUE = (
    st.binary(max_size=30).map(lambda data: data.translate(None, b"\r\n\0"))
    | DATE.map(str.encode)
    | st.sampled_from(
        [
            b"Mon, 1 Jan 2024 00:00:00 +99999999999999999",
            b"gzip",
            b"http://[",
            b"//\xff",
            b"a=b; max-age=1e9999",
            b"a=b; expires=Mon, 99999999999999999999 Jan 2024 00:00:00 GMT",
            b"text/plain; charset=\xff",
            b"-1",
        ]
    )
)
TEXT = st.text(max_size=8) | st.sampled_from(
    [
        "https://h.example/a",
        "http://[@x",
        "https://u:p@h.example/a",
        "a" * 40,
        "b",
        "../x",
        "/",
        "a/b",
        "\x1b[31m",
        ".git",
    ]
)
THING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
SHA = st.sampled_from(["a" * 64, "b" * 64])
FILES = st.lists(
    st.fixed_dictionaries(
        {"path": TEXT, "sha256": SHA | THING, "sizeBytes": st.integers(0, 9) | THING},
        optional={"mode": st.sampled_from(["100644", "120000"]) | THING},
    ),
    max_size=3,
)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "baseCommitSha": st.just("a" * 40) | TEXT | THING,
        "files": FILES | THING,
        **dict.fromkeys(["repoUrl", "repoFullName", "branchName", "prUrl", "state", "code", "message"], TEXT | THING),
        "prState": st.sampled_from(["open", "merged"]) | THING,
        "success": st.booleans() | THING,
        "error": THING | st.fixed_dictionaries({"code": TEXT, "message": TEXT}),
        "appId": TEXT | THING,
        **dict.fromkeys(["techStack", "featureFlags", "description", "industry", "appName"], THING),
    },
)
ANSWER = st.tuples(
    st.sampled_from([200, 200, 200, 201, 204, 302, 400, 401, 404, 409, 409, 422, 429, 502, 503, 599]),
    st.lists(st.tuples(HEADER, VALUE), max_size=3),
    DOCUMENT.map(lambda found: json.dumps(found).encode()) | st.binary(max_size=20),
)


class Body(httpx2.AsyncByteStream):
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class Hostile(httpx2.AsyncBaseTransport):
    """A transport that returns the given responses and then repeats the last one."""

    def __init__(self, answers: list[Answer]) -> None:
        self._answers = itertools.cycle(answers)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        async for _ in request.stream:  # type: ignore[union-attr]  # an asynchronous stream
            pass
        status, headers, body = next(self._answers)
        return httpx2.Response(status, headers=headers, stream=Body(body), request=request)


@contextlib.contextmanager
def hostile(answers: list[Answer]) -> Iterator[BackendClient]:
    held = BackendSettings.of(KEY, URL, timeouts=Timeouts(total=0.3), retries=Retries(3, 0.0, 0.0, 0.0))
    with BackendClient(held, transport=Hostile(answers)) as client:
        yield client


FILE = SourceFile(
    "a", "100644", 1, "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", lambda: iter((b"a",))
)
TREE = SourceTree("directory", (FILE,), ())


@given(st.lists(ANSWER, min_size=1, max_size=4))
@example([(302, [(b"location", b"\x80")], b"")])
@example([(200, [], b'{"appId": "a", "techStack": ' + b"[" * 900 + b"]" * 900 + b"}")])
def test_hostile_responses_raise_typed_errors(answers: list[Answer]) -> None:
    change = RepositoryChange(path="a", operation="add")
    pull = PullRequest(user_id="u", base_commit_sha="a" * 40, branch_name="b", title="t")
    with hostile(answers) as client:
        with contextlib.suppress(ProofboxError):
            tomllib.loads(mission_from_spec(client.get_app_spec("e")))
        with contextlib.suppress(ProofboxError):
            client.initial_export("a", InitialExport(user_id="u"), [FILE])
        with contextlib.suppress(ProofboxError):
            client.create_pull_request("a", pull, [(change, FILE)])


@settings(max_examples=25, deadline=None)
@given(st.lists(DOCUMENT, min_size=1, max_size=3))
@example([{"baseCommitSha": "a" * 40, "files": [{"path": "/", "sha256": "a" * 64, "sizeBytes": 1}]}])
def test_hostile_manifests_are_delivered_or_refused(documents: list[dict[str, Any]]) -> None:
    answers: list[Answer] = [(200, [], json.dumps(each).encode()) for each in documents]
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch, hostile(answers) as client:
        patch.setenv("XDG_STATE_HOME", place)
        options = Options(redactor=Redactor(), out=Path(place, "out"))
        for way in (pull_request, initial_export):
            with contextlib.suppress(ProofboxError):
                way(client, Target(URL, "a", "u"), TREE, NO_PROOF, options)


@pytest.mark.parametrize("text", ["http://[@x", "https://user:hunter2secret@h.example/1"])
def test_pull_request_url_in_an_error_has_no_login(text: str) -> None:
    answers: list[Answer] = [(404, [], b"{}"), (409, [], json.dumps({"prUrl": text}).encode()), (404, [], b"{}")]
    pull = PullRequest(user_id="u", base_commit_sha="a" * 40, branch_name="b", title="t")
    with hostile(answers) as client:
        if "[" in text:
            with pytest.raises(BackendConflict):
                client.create_pull_request("a", pull, [])
        else:
            assert client.create_pull_request("a", pull, []).pr_url == "https://h.example/1"


def test_failure_with_malformed_retry_after_is_ambiguous() -> None:
    """The backend may have carried out the request."""
    strange = [(b"retry-after", b"Mon, 1 Jan 2024 00:00:00 +99999999999999999")]
    made = {"baseCommitSha": "a" * 40, "files": [{"path": "a", "sha256": FILE.sha256, "sizeBytes": 1}]}
    answers: list[Answer] = [(404, [], b"{}"), (502, strange, b"{}"), (200, [], json.dumps(made).encode())]
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch, hostile(answers) as client:
        patch.setenv("XDG_STATE_HOME", place)
        options = Options(redactor=Redactor(), out=Path(place, "out"))
        assert initial_export(client, Target(URL, "a", "u"), TREE, NO_PROOF, options).base_commit_sha == "a" * 40
