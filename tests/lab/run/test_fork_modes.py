"""Attempts whose files are mounted over a template: the same evidence as with a copy, and no undetected change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, patch_workers, plan, results, say, write

from proofbox.config.settings import Settings
from proofbox.core.digest import sha256_file
from proofbox.errors import SetupFailed, WorkspaceChanging
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.documents.base_tree import read_tree
from proofbox.evidence.documents.outcome import parse_outcome
from proofbox.lab.reports.results import read_run
from proofbox.lab.reports.steps import diff_attempt
from proofbox.lab.reports.validation import validate
from proofbox.lab.run import fork_modes
from proofbox.lab.run.fork_modes import OVERLAY, overlay_obstacle, recorded_mode
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path
from proofbox.lab.suite.spec import Mission

pytestmark = [
    pytest.mark.needs("bubblewrap"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
]
MOUNT_ALWAYS = "from proofbox.lab.run import fork_modes\nfork_modes.FEW = 0"
EDIT = "rm -r gone && mv kept moved && chmod 700 tool && ln -s tool link && echo more >> text && ln text again"
SCRIPT = (command(EDIT), write("made/by/a/tool", "content\n"), say("done"))
VERIFY = {
    "commands": ["test ! -e gone && ./moved/run && test -x tool && cat made/by/a/tool >> text && rm -r moved"],
    "files": "hidden",
    "protect": ["text"],
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """The files of the mission, and those of its verifier."""
    for place in ("files/gone", "files/kept/below", "hidden/moved"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("gone/one", "kept/below/two", "text", "tool"):
        (tmp_path / "files" / name).write_text(f"{name}\n")
    run = tmp_path / "hidden/moved/run"
    run.write_text("#!/bin/sh\ntest -f moved/below/two && ! grep more text\n")
    run.chmod(0o755)


def suite(**fields: Any) -> str:
    return HEAD + mission("edit", *SCRIPT, workspace="files", verify=VERIFY, **fields)


def evidence(out: Path, source: str) -> tuple[str, dict[str, Any]]:
    """Run a suite of one attempt. Return how it got its files, and its documents without times."""
    made = plan(source, out, out.parent, trust=True)
    conduct(made, out)
    [attempt] = attempts(made, out).values()
    place = out / made.run_id / attempt.path
    verification = document(out, made, attempt, "attempt.json")["verification"]
    for run in (verification, *verification["commands"]):
        del run["duration_ms"]
    steps = [json.loads(line) for line in (place / "steps.jsonl").read_text().splitlines()]
    found = read_tree(document(out, made, attempt, "tree_manifest.json"), str(place))
    tree = found.tree_sha256, found.files, list(found.entries)
    documents = {
        "findings": validate(load_bundle(out / made.run_id), strict=True),
        "results": results(made, out),
        "tree": tree,
        "diff": diff_attempt(place),
        "snapshot": document(out, made, attempt, "attempt.json")["final"]["snapshot"],
        "steps": [(step.get("before"), step.get("after")) for step in steps],
        "verification": verification,
    }
    return document(out, made, attempt, "runner.ref.json")["facts"]["fork"], documents


def test_mounted_attempt_has_the_same_evidence_as_a_copied_one(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, copied = evidence(out, suite())
    assert how == "copy: there are fewer than 2000 files"
    assert copied["results"] == {"edit.1": ("success", "passed", None, "completed")}
    patch_workers(monkeypatch, MOUNT_ALWAYS)
    how, mounted = evidence(out, suite())
    assert how == OVERLAY
    assert mounted == copied
    assert mounted["findings"] == []
    [base] = out.glob("*/trees/*.json")
    assert base.stem == sha256_file(base)[0]
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_change_of_the_template_during_an_attempt_fails_it_as_infrastructure(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template is changed between the agent's end and the commit, and gets its old size and time back."""
    tamper = """if True:
        from proofbox.lab.attempt import runner
        from proofbox.lab.attempt.verifier import check
        from pathlib import Path
        def tampering(boxes, *args, **options):
            [text] = Path(sys.argv[1]).glob(".work/*/templates/edit/worker-*/tool")
            times = text.stat()
            text.write_text("TOOL\\n")
            os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))
            return check(boxes, *args, **options)
        runner.check = tampering"""
    patch_workers(monkeypatch, f"{MOUNT_ALWAYS}\n{tamper}")
    made = plan(suite(), out, tmp_path, trust=True, retries=0)
    run = conduct(made, out)
    assert results(made, out) == {"edit.1": ("success", "none", WorkspaceChanging.code, "infra_failed")}
    assert load_bundle(run).index.status == "partial"


def test_change_of_the_template_after_an_attempt_is_found_before_the_run_commits(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper = """if True:
        from pathlib import Path
        class Worker(worker.Worker):
            async def work(self):
                await super().work()
                for text in Path(sys.argv[1]).glob(".work/*/templates/edit/worker-*/tool"):
                    text.write_text("TOOL\\n")
        worker.Worker = Worker"""
    patch_workers(monkeypatch, f"{MOUNT_ALWAYS}\n{tamper}")
    made = plan(suite(), out, tmp_path, trust=True)
    run = conduct(made, out)
    committed = load_bundle(run)
    assert committed.index.status == "partial"
    assert results(made, out) == {"edit.1": ("none", "none", WorkspaceChanging.code, "infra_failed")}
    assert committed.read_json("summary.json")["totals"]["infra"] == {WorkspaceChanging.code: 1}
    [attempt] = committed.nested.values()
    assert parse_outcome(attempt.read_json("outcome.json")).infra.result == "failed"
    assert validate(committed, strict=False) == []
    with Ledger(ledger_path(out, made.run_id), read_only=True) as ledger:
        assert read_run(run, ledger).findings == ()


def a_mission(**fields: Any) -> Mission:
    return Mission(id="m", prompt="do it", **fields)


@pytest.mark.parametrize("provider", ["docker", "off"])
def test_other_providers_get_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    monkeypatch.setattr(fork_modes, "has_private_mounts", lambda: True)
    found = overlay_obstacle(a_mission(), tmp_path, Settings(), provider)
    assert found == f"{provider} does not see what a worker mounts"


def test_shared_sessions_and_workers_without_mounts_get_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "only root" in overlay_obstacle(a_mission(), tmp_path, Settings(), "bubblewrap")
    monkeypatch.setattr(fork_modes, "has_private_mounts", lambda: True)
    assert "shared session" in overlay_obstacle(a_mission(), tmp_path, Settings(), "bubblewrap", shared=True)


def test_modes_are_never_mixed(tmp_path: Path) -> None:
    for name in ("mounted", "copied"):
        (tmp_path / name).mkdir()
    assert recorded_mode(tmp_path / "mounted", "") == OVERLAY
    with pytest.raises(SetupFailed, match="not possible here: no root"):
        recorded_mode(tmp_path / "mounted", "no root")
    assert recorded_mode(tmp_path / "copied", "no root") == "copy: no root"
    assert recorded_mode(tmp_path / "copied", "") == "copy: no root"
