"""A failure counts against the agent unless it was observed from outside its box."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, patch_workers, plan, serving_model

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.limiter import Limiter
from proofbox.lab.run.plan import Plan, credential_of

pytestmark = pytest.mark.needs("bubblewrap")

ASK = """
import json, os, sys, time, urllib.request, urllib.error
url = os.environ["OPENAI_BASE_URL"]

def ask(prompt, path="/responses"):
    body = json.dumps({"input": [{"role": "user", "content": prompt}]}).encode()
    request = urllib.request.Request(url + path, body, {"content-type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=100).read()
    except (urllib.error.URLError, OSError) as error:
        print(error)

"""


@pytest.fixture
def model() -> Iterator[str]:
    with serving_model() as url:
        yield url


def mission(id: str, prompt: str, **fields: Any) -> str:
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    return f'[[mission]]\nid = "{id}"\nprompt = {json.dumps(prompt)}\n{more}'


Results = dict[str, tuple[str | None, str]]


def ran(tmp_path: Path, model: str, missions: str, **options: Any) -> tuple[Plan, Path, Results]:
    """Run Python programs given as prompts; return the infrastructure failure code and the reason of each."""
    out = tmp_path / "out"
    agent = {"command": ["/usr/bin/python3", "-"], "base_url": model, **options.pop("settings", {})}
    options = {"chain": "process", "runtimes": {"process": agent}, "retries": 1, **options}
    made = plan(HEAD + missions, out, tmp_path, **options)
    conduct(made, out)
    found = attempts(made, out)
    return made, out, {id: (each.result.infra, each.result.reason) for id, each in found.items() if each.result}


def test_failures_a_program_reports_or_causes_count_against_it(tmp_path: Path, model: str) -> None:
    says = json.dumps({"type": "error", "status": 429, "message": "rate limited"})
    result = {"type": "result", "is_error": True, "api_error_status": 529, "result": "overloaded", "usage": {}}
    missions = mission("kills-itself", "import os; os.kill(os.getpid(), 9)")
    missions += mission("says-429", f"print({says!r})")
    missions += mission("says-529", f"print({json.dumps(result)!r})")
    missions += mission("asks-for-nonsense", ASK + "ask('x', '/nonsense'); sys.exit(1)")
    made, _, found = ran(tmp_path, model, missions, settings={"output": "jsonl"})
    assert found == {
        "kills-itself.1": (None, "turn_failed"),
        "says-429.1": (None, "turn_failed"),
        "says-529.1": (None, "completed"),  # another dialect, not recognized
        "asks-for-nonsense.1": (None, "turn_failed"),
    }
    credential = credential_of(made)
    assert credential is not None
    state = Limiter(credential, 4).state()
    assert (state.halved_at, state.why) == (0.0, "")


def test_overload_only_claimed_by_claude_counts_against_it(tmp_path: Path, model: str) -> None:
    result = {"type": "result", "is_error": True, "api_error_status": 529, "result": "overloaded", "usage": {}}
    _, _, found = ran(
        tmp_path, model, mission("says", f"print({json.dumps(result)!r})"), settings={"output": "claude_stream"}
    )
    assert found == {"says.1": (None, "turn_failed")}


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (
            "jsonl",
            {
                "large": {"type": "usage", "input_tokens": 2**64 - 1, "output_tokens": 2**64 - 1},
                "no-number": {"type": "usage", "input_tokens": True},
                "exit-code": {"type": "tool_call", "command": "x", "exit_code": 2**60},
                "duration": {"type": "tool_call", "command": "x", "duration_ms": 10**30},
            },
        ),
        (
            "claude_stream",
            {
                "sum": {
                    "type": "result",
                    "is_error": False,
                    "modelUsage": {id: {"inputTokens": 2**53 - 1} for id in "ab"},
                }
            },
        ),
    ],
)
def test_numbers_that_no_evidence_can_hold_do_not_excuse_an_agent(
    tmp_path: Path, model: str, output: str, lines: dict[str, Any]
) -> None:
    missions = "".join(mission(id, f"print({json.dumps(line)!r})") for id, line in lines.items())
    made, out, found = ran(tmp_path, model, missions, settings={"output": output})
    assert found == {f"{id}.1": (None, "completed") for id in lines}
    findings = validate(load_bundle(out / made.run_id), strict=True)
    assert {each.code for each in findings} <= {"USAGE_DISAGREES"}, "the gateway saw no tokens"


def test_more_than_a_record_can_hold_does_not_excuse_an_agent(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_workers(
        monkeypatch,
        "from proofbox.agents import steps\nfrom proofbox.lab.attempt import trace\n"
        "trace.MAX_EVENT_BYTES, trace.MAX_FILES, steps.MAX_STEPS = 1 << 20, 10, 20",
    )
    missions = mission("paths", 'print(\'{"type": "file_change", "paths": [""\' + \',""\' * 1_100_000 + \']}\')')
    missions += mission("events", 'while True: print(\'{"type": "reasoning", "text": "\' + \'x\' * 4000 + \'"}\')')
    missions += mission("steps", 'for n in range(40): print(\'{"type": "tool_call", "command": "x"}\')')
    missions += mission(
        "outputs",
        "open('new', 'w').write('x' * 10_000)\n"
        'for n in range(15): print(\'{"type": "tool_call", "output": "\' + str(n) * 4000 + \'"}\')',
    )
    made, out, found = ran(tmp_path, model, missions, settings={"output": "jsonl"})
    assert found == {
        "paths.1": (None, "completed"),
        "outputs.1": (None, "budget_exceeded"),
        "events.1": (None, "budget_exceeded"),
        "steps.1": (None, "budget_exceeded"),
    }
    for id, more in (("events.1", "events.jsonl exceeds"), ("steps.1", "20 steps"), ("outputs.1", "10 outputs")):
        assert more in document(out, made, attempts(made, out)[id], "attempt.json")["detail"]


# An ACP agent whose answer to the prompt is the prompt itself.
ACP = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = {"protocolVersion": 1, "agentCapabilities": {}, "sessionId": "s"}
    if asked.get("method") == "session/prompt":
        result = json.loads(asked["params"]["prompt"][0]["text"])
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_program_that_breaks_its_protocol_fails_its_attempt(tmp_path: Path, model: str) -> None:
    answers = {"unknown-reason": {"stopReason": "x"}, "no-object": "text", "ends": {"stopReason": "end_turn"}}
    missions = "".join(mission(id, json.dumps(answer)) for id, answer in answers.items())
    agent = {"command": ["/usr/bin/python3", "-c", ACP]}
    _, _, found = ran(tmp_path, model, missions, chain="acp!", runtimes={"acp": agent})
    assert found == {
        "unknown-reason.1": (None, "turn_failed"),
        "no-object.1": (None, "turn_failed"),
        "ends.1": (None, "completed"),
    }


# An ACP agent that answers its first prompt, ends, and fails to start again.
ACP_ONCE = """
import os, sys
if os.path.exists("0"):
    sys.exit(7)
"""
ACP_ENDS = """
    if asked.get("method") == "session/new":
        for n in range(3000):  # whose snapshot takes longer than the end of the process
            open(str(n), "w").close()
    if asked.get("method") == "session/prompt":
        os._exit(0)
"""


def test_agent_that_cannot_start_again_for_a_later_turn_fails_its_attempt(tmp_path: Path, model: str) -> None:
    agent = {"command": ["/usr/bin/python3", "-c", ACP_ONCE + ACP + ACP_ENDS]}
    turns = mission("a", '{"stopReason": "end_turn"}') + '[[mission.then]]\nprompt = "go on"\n'
    _, _, found = ran(tmp_path, model, turns, chain="acp!", runtimes={"acp": agent}, retries=1)
    assert found == {"a.1": (None, "turn_failed")}


def test_agent_that_ends_before_it_gets_the_prompt_is_an_infra_failure(tmp_path: Path, model: str) -> None:
    agent = {"command": ["/bin/sh", "-c", "exit 7"]}
    made, out, found = ran(tmp_path, model, mission("a", "x"), chain="acp!", runtimes={"acp": agent}, retries=0)
    assert found == {"a.1": ("RUNTIME_STARTUP", "infra_failed")}
    attempt = attempts(made, out)["a.1"]
    assert attempt.result is not None
    assert (attempt.result.claimed, attempt.result.verified) == ("none", "none")


def test_failure_seen_by_the_gateway_does_not_count_against_the_agent(tmp_path: Path, model: str) -> None:
    missions = mission("limited", ASK + "ask('[[http 429 retry_after=1]]'); sys.exit(1)")
    missions += mission("recovered", ASK + "ask('[[http 429]]'); ask('[[say fine]]'); sys.exit(1)")
    missions += mission("completed", ASK + "ask('[[http 500]]')")
    made, out, found = ran(tmp_path, model, missions, retries=0)
    assert found == {
        "limited.1": ("RUNTIME_RATE_LIMIT", "infra_failed"),
        "recovered.1": (None, "turn_failed"),
        "completed.1": (None, "completed"),
    }
    error = document(out, made, attempts(made, out)["limited.1"], "attempt.json")["error"]
    assert (error["status"], error["retry_after"]) == (429, 1.0)
    credential = credential_of(made)
    assert credential is not None
    assert Limiter(credential, 4).state().halved_at > 0


def test_refusals_that_a_program_provokes_count_against_it(tmp_path: Path, model: str) -> None:
    fine = ASK + "ask('[[say fine]]'); "
    missions = mission("other-path", fine + "ask('[[http 401]]', '/other/responses'); sys.exit(1)")
    missions += mission("forbidden", fine + "ask('[[http 403]]'); sys.exit(1)")
    missions += mission("parameter", fine + "ask('[[drop mid]] [[say a b c]]', '/responses?x=1'); sys.exit(1)")
    missions += mission("revoked", fine + "ask('[[http 401]]'); sys.exit(1)")
    _, _, found = ran(tmp_path, model, missions, retries=0)
    assert found == {
        "other-path.1": (None, "turn_failed"),
        "forbidden.1": (None, "turn_failed"),
        "parameter.1": (None, "turn_failed"),
        "revoked.1": ("RUNTIME_AUTH", "infra_failed"),
    }


def test_timeout_while_waiting_for_a_failed_model_is_an_infra_failure(tmp_path: Path, model: str) -> None:
    retrying = ASK + "while True:\n    ask('[[http 401]]'); time.sleep(0.1)"
    missions = mission("refused", retrying, timeout=4.0)
    missions += mission("slow", ASK + "ask('[[say fine]]'); time.sleep(600)", timeout=4.0)
    made, out, found = ran(tmp_path, model, missions)
    assert found == {"refused.1": ("RUNTIME_AUTH", "infra_failed"), "slow.1": (None, "timed_out")}
    record = document(out, made, attempts(made, out)["refused.1"], "attempt.json")
    assert record["detail"] == "after 4 s"
    assert record["error"]["seen_by"] == "gateway"


def test_request_to_the_base_url_keeps_the_evidence_valid(tmp_path: Path, model: str) -> None:
    look = ASK + "urllib.request.urlopen(urllib.request.Request(url, method='HEAD'))\nask('[[say fine]]')"
    made, out, found = ran(tmp_path, model, mission("looks", look))
    assert found == {"looks.1": (None, "completed")}
    assert validate(load_bundle(out / made.run_id), strict=True) == []


@pytest.mark.needs("codex")
def test_a_command_that_kills_codex_is_the_agents_failure(tmp_path: Path, model: str) -> None:
    kill = "[[run kill -9 $PPID; sleep 60]] [[say done]]"
    codex = {"chain": "codex_app_server!", "flags": {"base_url": model, "model": "fake-model", "max_retries": 1}}
    missions = mission("kills", kill) + mission("limited", "[[http 429]]") + mission("unknown-model", "[[http 404]]")
    _, _, found = ran(tmp_path, model, missions, retries=0, **codex)
    assert found == {
        "kills.1": (None, "turn_failed"),
        "limited.1": ("RUNTIME_RATE_LIMIT", "infra_failed"),
        "unknown-model.1": ("RUNTIME_MODEL_ERROR", "infra_failed"),
    }
