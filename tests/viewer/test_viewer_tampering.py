"""Pages after a change of evidence: a page that says valid states since when, and finds what changed before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_viewer_access import Client

from proofbox import BundleWriter
from proofbox.core.clock import ManualClock, isoformat
from proofbox.evidence.bundle.paths import INDEX, STATUS
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.evidence.verify.check import BundleCheck, check_bundle
from proofbox.lab.attempt.artifacts import bundle_id, index_sha256
from proofbox.lab.run.ledger import Ended, Ledger, PlannedAttempt
from proofbox.lab.run.plan import Plan, ledger_path
from proofbox.viewer import reading
from proofbox.viewer.reading import open_evidence
from proofbox.viewer.runs import RunReader, run_mark
from proofbox.viewer.web import pages
from proofbox.viewer.web.serve import serving

PASSED: dict[str, Any] = {"claimed": "success", "verified": "passed", "infra": None, "reason": "completed"}
PATH = "attempts/a.1.e1"


@pytest.fixture
def run(out: Path) -> Path:
    """A committed run of one attempt that passed."""
    with BundleWriter.create(out, run_id="run-1") as made:
        made.write_json("environment.json", {"isolation": "process"})
        schedule = ScheduleLog(made.open_log("schedule.jsonl"))
        schedule.planned("a.1", PATH)
        schedule.started("a.1")
        with made.nested(PATH, run_id=bundle_id("run-1", "a.1")) as inner:
            named = {"attempt_id": "a.1", "mission_id": "a", "replicate": 1, "parent": None, "states": []}
            inner.write_json("attempt.json", {"schema_version": "proofbox.attempt/2", **named})
            verdicts = Verdict("passed", "agent", "claim"), Verdict("passed", "v", "c"), Verdict("ok", "p", "s")
            inner.write_json("outcome.json", Outcome(*verdicts).as_json())
            report = {
                "attempt_id": "a.1",
                "retry_after": None,
                "tokens": {},
                "turn_ms": 1,
                "strategy": "scripted",
                **PASSED,
            }
            inner.write_json("attempt.report.json", {"schema_version": "proofbox.attempt_report/2", **report})
        schedule.finished("a.1", index_sha256(inner.path))
        schedule.close()
    plan = Plan(run_id="run-1", suite_name="s", suite_source="", base="", chain="", chain_origin="", concurrency=1)
    about = {"plan": msgspec.json.encode(plan).decode(), "epoch": "1"}
    with Ledger.create(ledger_path(out, "run-1"), about, [PlannedAttempt("a.1", "a", 1)]) as ledger:
        claimed = ledger.claim("w", 1, 60.0)
        assert claimed is not None
        ledger.end(claimed, Ended(**PASSED, strategy="scripted", index_sha256=index_sha256(inner.path)))
    return made.path


@pytest.fixture
def client(run: Path) -> Iterator[Client]:
    with serving(run.parent) as url:
        made = Client(url)
        made.sign_in()
        yield made


def state(client: Client, page: str, at: str, **headers: str) -> str:
    """Return what a page says about the evidence, without tags, once the check has ended."""
    while True:
        answer = client.get(f"{client.home}{page}?at={at}", Cookie=client.cookie.partition(";")[0], **headers)
        text: str = answer.text  # type: ignore[attr-defined]
        if " data-refresh" not in text:
            break
        headers = {"X-Refresh": "yes"}  # as the script of the page does
    assert answer.status == 200
    found = re.search(r'<div class="integrity.*?</div>', text, re.DOTALL)
    assert found is not None
    return " ".join(re.sub("<[^>]*>", " ", found[0]).split()) + (" passed" if 'class="state passed"' in text else "")


def tamper(file: Path) -> None:
    """Change a file, but not its size or modification time."""
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b"passed", b"failed"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("small", [True, False])
def test_page_of_a_run_finds_a_changed_attempt_on_reload(
    client: Client, run: Path, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "is_small", lambda _: small)
    first = state(client, "run", "run-1")
    assert re.search(r"Evidence valid .* checked \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC passed$", first)
    tamper(run / PATH / "outcome.json")
    assert "Evidence INVALID" in state(client, "run", "run-1")


def test_long_check_shows_the_earlier_result_with_its_time(
    client: Client, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "is_small", lambda _: False)
    state(client, "run", "run-1")
    text: str = client.page("run", at="run-1").text  # type: ignore[attr-defined]
    assert "Evidence valid" in text
    assert re.search(r"checked [-\d]+ [:\d]+ UTC", text)


def test_committed_run_without_its_index_is_invalid(client: Client, run: Path) -> None:
    (run / INDEX).unlink()
    tamper(run / PATH / "outcome.json")
    found = state(client, "run", "run-1")
    assert "Evidence INVALID" in found
    assert f"missing {INDEX}" in found
    assert not found.endswith(" passed")
    ledger_path(run.parent, "run-1").unlink()
    assert "Evidence INVALID" in state(client, "run", "run-1"), "also without the ledger"


def test_attempt_without_its_index_is_invalid_in_a_committed_run(run: Path) -> None:
    (run / PATH / INDEX).unlink()
    status = run / PATH / STATUS
    assert open_evidence(run / PATH).integrity == "invalid", "its status says that it was committed"
    status.write_bytes(re.sub(rb'"state":\s*"complete"', b'"state":"in_progress"', status.read_bytes()))
    assert open_evidence(run / PATH).integrity == "invalid", "the run that contains it is committed"


def test_check_states_when_it_began(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes during a check may have been read before."""
    clock = ManualClock()
    monkeypatch.setattr(reading, "SystemClock", lambda: clock)

    def slow(path: str) -> BundleCheck:
        clock.advance(60)
        return check_bundle(path)

    monkeypatch.setattr(reading, "check_bundle", slow)
    before = isoformat(clock.now())
    assert open_evidence(run).checked_at == before


def test_run_whose_process_died_is_interrupted(out: Path) -> None:
    code = "import os, sys, proofbox; proofbox.BundleWriter.create(sys.argv[1], run_id='run-1'); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(out)], check=True)
    Ledger.create(ledger_path(out, "run-1"), {"epoch": "1"}, [PlannedAttempt("a.1", "a", 1)]).close()
    view = RunReader().read(out / "run-1")
    assert (view.interrupted, [row.outcome for row in view.rows]) == (True, ["interrupted"])


def test_death_of_the_process_is_a_change_of_the_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BundleWriter.create(out, run_id="run-1"):
        view = RunReader().read(out / "run-1")
        assert not view.interrupted
        before = run_mark(out / "run-1")
        monkeypatch.setattr("proofbox.evidence.bundle.listing.is_alive", lambda _: False)
        assert run_mark(out / "run-1") != before
