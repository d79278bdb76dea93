"""Evidence of the wrong shape: every page answers, and none becomes large."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from test_viewer_access import Client
from viewer_fixtures import attempt_page

from proofbox import BundleWriter
from proofbox.evidence.bundle.paths import STATUS
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.viewer.reading import OpenedEvidence
from proofbox.viewer.web.serve import serving

WRONG: tuple[Any, ...] = (None, True, 10**400, float("nan"), "text", [1, "x", [2]], {"a": [1]}, [{"a": {"b": 1}}])
DOCUMENTS: dict[str, Any] = {
    "attempt.json": {
        "attempt_id": "a",
        "reason": "completed",
        "parent": "p",
        "error": {"code": "C", "message": "m"},
        "fork": {"attempt_id": "b", "step": 1},
        "suite": {"id": "s"},
        "replicate": 1,
        "states": [{"at": "2026-01-01T00:00:00Z", "state": "ended"}],
        "verification": {
            "commands": [{"command": ["/bin/sh", "-c", "true"], "passed": True, "exit_code": 0, "stdout": "x"}],
            "unmet": [{"condition": "c", "what": "w", "found": "f"}],
            "put_back": ["conftest.py"],
            "reward": {"problem": "p", "detail": "d"},
        },
        "final": {"diff": "diff a", "snapshot": "0", "store": "s"},
    },
    "attempt.report.json": {
        "strategy": "s",
        "tokens": {"gateway": {"input_tokens": 1, "output_tokens": 2}},
        "integrity": [{"code": "C", "message": "m"}],
        "tool_failures": {"exit_1": 1},
        "turn_ms": 5,
    },
    "runner.ref.json": {"runtime": "r", "version": "1", "facts": {"provider": "p", "network": "none"}},
    "feedback.json": {"result": "done"},
    "outcome.json": Outcome(Verdict("passed", "agent", "claim", "x")).as_json(),
}
EVENTS: list[dict[str, Any]] = [
    {"event": "turn_ended", "at_ms": 1, "status": "completed", "code": "", "message": "m", "duration_ms": 5},
    {"event": "tool_call", "item": "i", "tool": "t", "command": "c", "status": "s", "exit_code": 1, "output": "o"},
    {"event": "file_change", "item": "f", "paths": ["a"], "status": "s"},
    {"event": "decision", "item": "d", "answer": "accept", "rule": "r", "subject": "s"},
    {"event": "usage", "source": "gateway", "thread": "t", "total": {"input_tokens": 1, "output_tokens": 1}},
    {"event": "rate_windows", "windows": [{"name": "n", "used_percent": 5}]},
    {"event": "message", "text": "m"},
]


class Documents:
    """Evidence with given documents and events, without files."""

    path = Path("attempt")
    integrity = "valid"
    in_progress = awaits_index = False
    findings = ()
    checked_at = "2026-01-01T00:00:00Z"

    def __init__(self, documents: dict[str, Any], events: list[dict[str, Any]]) -> None:
        self._documents, self._events = documents, events

    def document(self, name: str) -> dict[str, Any]:
        found = self._documents.get(name)
        return found if isinstance(found, dict) else {}

    def lines(self, *_: object) -> list[dict[str, Any]]:
        return list(self._events)

    def line_count(self, _: str) -> int:
        return len(self._events)

    def size(self, _: str) -> int:
        return 0

    def find(self, *_: object, **__: object) -> dict[str, list[Any]]:
        return {}


def render(documents: dict[str, Any], events: list[dict[str, Any]]) -> str:
    evidence: OpenedEvidence = Documents(documents, events)  # type: ignore[assignment]
    return attempt_page(evidence)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in a document."""
    if place:
        yield place
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*place, key))


def replaced(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = by
    return changed


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:20])
def test_page_of_an_attempt_shows_documents_of_any_shape(wrong: Any) -> None:
    for place in places(DOCUMENTS):
        assert "<h1>" in render(replaced(DOCUMENTS, place, wrong), EVENTS), place
    for place in places(EVENTS):
        if len(place) > 1:
            assert "<h1>" in render({}, replaced(EVENTS, place, wrong)), place


def test_page_of_an_attempt_with_many_findings_is_small() -> None:
    report = {"integrity": [{"code": "MESSAGE_NOT_UNDERSTOOD", "message": "m" * 100}] * 100_000}
    page = render({"attempt.report.json": report}, [])
    assert len(page) < 50_000
    assert "and 99950 more" in page


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with BundleWriter.create(tmp_path / "out", run_id="attempt-1") as made:
        made.write_json("attempt.json", {"attempt_id": "a", "states": 5})
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    odd = os.fsencode(tmp_path / "out") + b"/run-\xff"
    os.mkdir(odd)
    Path(os.fsdecode(odd), STATUS).write_text("{}")
    with serving(tmp_path) as url:
        made_client = Client(url)
        made_client.sign_in()
        yield made_client


def test_names_that_are_not_utf8_and_loops_of_links_are_answered(client: Client) -> None:
    home = client.page()
    assert home.status == 200
    assert r"run-\udcff" in home.text  # type: ignore[attr-defined]
    cookie = client.cookie.partition(";")[0]
    odd = client.get(f"{client.home}bundle?at=out/{quote(b'run-' + bytes([255]))}", Cookie=cookie)
    assert odd.status == 200
    assert client.page("attempt", at="out/attempt-1").status == 200
    for at in ("one", "one/two", "a" * 5000, "\0", "out/attempt-1/attempt.json/x"):
        assert client.page("open", at=at).status == 404
