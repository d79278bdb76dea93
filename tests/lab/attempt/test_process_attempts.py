"""Records of a program that crashes, and of one that is stopped."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, lines, plan

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import Plan

pytestmark = pytest.mark.needs("bubblewrap")


def ran(tmp_path: Path, script: str, *, timeout: float = 60.0, **settings: Any) -> tuple[Path, Plan, Attempt]:
    """Run one attempt of a shell agent whose prompt is the script."""
    suite = f'{HEAD}[[mission]]\nid = "m"\nprompt = {json.dumps(script)}\ntimeout = {timeout}\n'
    out = tmp_path / "out"
    agent = {"command": ["/bin/sh", "-s"], **settings}
    made = plan(suite, out, tmp_path, chain="process", runtimes={"process": agent}, retries=0)
    conduct(made, out)
    return out, made, attempts(made, out)["m.1"]


def test_broken_stream_is_reported_and_invalidates_the_evidence(tmp_path: Path) -> None:
    started = {"type": "item.started", "item": {"id": "i0", "type": "command_execution", "command": "make"}}
    script = f"""printf '%s\\n%s' '{json.dumps(started)}' '{{"type":"item.comp'"""
    out, made, attempt = ran(tmp_path, script, output="codex_exec")
    report = document(out, made, attempt, "attempt.report.json")
    codes = ["LINE_TORN", "ITEM_NOT_ENDED", "STREAM_NOT_ENDED"]
    assert [each["code"] for each in report["integrity"]] == codes
    assert report["tool_failures"] == {"abandoned": 1}
    [call] = lines(out, made, attempt, "tool.calls.jsonl")
    assert (call["command"], call["status"], call["exit_code"]) == ("make", "abandoned", None)
    assert [each.code for each in validate(load_bundle(out / made.run_id), strict=False)] == codes


def test_output_of_a_stopped_agent_is_kept_but_claims_nothing(tmp_path: Path) -> None:
    out, made, attempt = ran(tmp_path, "echo done so far; exec sleep 600", timeout=4)
    assert attempt.result is not None
    assert (attempt.result.reason, attempt.result.claimed) == ("timed_out", "none")
    feedback = document(out, made, attempt, "feedback.json")
    assert (feedback["result"], feedback["claimed"]) == ("done so far\n", "none")
    messages = [each["text"] for each in lines(out, made, attempt, "events.jsonl") if each["event"] == "message"]
    assert messages == ["done so far\n"]
    assert validate(load_bundle(out / made.run_id), strict=True) == []


def test_crash_counts_against_the_agent_and_its_open_calls_are_findings(tmp_path: Path) -> None:
    out, made, attempt = ran(tmp_path, "kill -9 $$", output="codex_exec")
    assert attempt.result is not None
    assert (attempt.result.infra, attempt.result.reason) == (None, "turn_failed")
    assert document(out, made, attempt, "attempt.report.json")["turn_error"]["code"] == "RUNTIME_CRASH"
    assert {each.code for each in validate(load_bundle(out / made.run_id), strict=False)} == {"STREAM_NOT_ENDED"}


def test_calls_cut_off_by_a_failed_model_count_as_missing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        asks = 'import os, urllib.request as u; u.urlopen(os.environ["OPENAI_BASE_URL"] + "/responses", b"{}")'
        script = f"python3 -c '{asks}'"
        out, made, attempt = ran(tmp_path, script, output="codex_exec", base_url=url)
    assert attempt.result is not None
    assert (attempt.result.infra, attempt.result.reason) == ("RUNTIME_STREAM_DISCONNECT", "infra_failed")
    bundle = load_bundle(out / made.run_id)
    assert validate(bundle, strict=False) == []
    assert "STREAM_NOT_ENDED" in {each.code for each in validate(bundle, strict=True)}
