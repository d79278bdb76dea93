"""Setup and cleanup commands, their timeout, and the watchdog of silent agents."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan, results, say, write

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.reports.validation import validate

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
WORKS = [write("answer.txt", "42\n"), say("done")]


def test_cleanup_runs_in_a_box_after_the_result_and_never_changes_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    source = (
        HEAD
        + mission("clean", *WORKS, verify=ANSWER, cleanup=["grep -qx 42 answer.txt", f"echo gone > {outside} || true"])
        + mission("broken", *WORKS, verify=ANSWER, cleanup=["echo why >&2; exit 3", "true"])
        + mission("late", *WORKS, verify=ANSWER, cleanup=["sleep 600"], hook_timeout=0.5)
        + mission("crashes", {"fault": "crash"}, verify=ANSWER, cleanup=["true"])
        + mission("unprepared", *WORKS, verify=ANSWER, setup=["sleep 600"], cleanup=["true"], hook_timeout=0.5)
        + mission("plain", *WORKS, verify=ANSWER)
    )
    out = tmp_path / "out"
    made = plan(source, out, tmp_path, retries=0)
    run = conduct(made, out)
    found = attempts(made, out)
    assert results(made, out) == {
        "clean.1": ("success", "passed", None, "completed"),
        "broken.1": ("success", "passed", None, "completed"),
        "late.1": ("success", "passed", None, "completed"),
        "crashes.1": ("none", "none", "RUNTIME_CRASH", "infra_failed"),
        "unprepared.1": ("none", "none", "ATTEMPT_SETUP_FAILED", "setup_failed"),
        "plain.1": ("success", "passed", None, "completed"),
    }
    records = {
        id: document(out, made, each, "cleanup.json") for id, each in found.items() if not id.startswith("plain")
    }
    assert {id: (each["ok"], each["code"]) for id, each in records.items() if id != "unprepared.1"} == {
        "clean.1": (True, None),
        "broken.1": (False, "ATTEMPT_CLEANUP_FAILED"),
        "late.1": (False, "ATTEMPT_CLEANUP_TIMEOUT"),
        "crashes.1": (True, None),
    }
    assert records["clean.1"]["provider"] == "bubblewrap"
    assert [each["stderr"] for each in records["broken.1"]["commands"]] == ["why\n"], "it stops at the first failure"
    assert not outside.exists()
    late = document(out, made, found["unprepared.1"], "attempt.json")
    assert "timed out: setup has 0.5 s" in late["error"]["message"]
    assert not (run / found["plain.1"].path / "cleanup.json").exists()
    assert [each.code for each in validate(load_bundle(run / found["late.1"].path), strict=True)] == []


def test_silent_agent_is_stopped_by_the_watchdog(tmp_path: Path) -> None:
    source = HEAD + mission("silent", command("sleep 600"), say("done"), verify=ANSWER, watchdog=1.0)
    out = tmp_path / "out"
    made = plan(source, out, tmp_path, retries=0)
    conduct(made, out)
    assert results(made, out) == {"silent.1": ("none", "failed", None, "stalled")}
    record = document(out, made, attempts(made, out)["silent.1"], "attempt.json")
    assert record["detail"] == "no event for 1 s"
