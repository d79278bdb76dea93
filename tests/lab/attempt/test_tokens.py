"""Token counts: the gateway's total is reported and checked against the budget; a different report is a finding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, plan, serving, serving_model

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import Plan

pytestmark = pytest.mark.needs("bubblewrap")

CHAT = """
import anyio
from proofbox.agents.fakemodel import FakeModel

class Chat(FakeModel):
    async def _answer(self, request, responder):
        await responder.start(200, {"content-type": "text/event-stream"})
        await responder.write(b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\\n\\n')
        await responder.write(b"data: [DONE]\\n\\n")
        await responder.finish()

async def serve():
    async with Chat().listening() as url:
        print(url, flush=True)
        await anyio.sleep_forever()

anyio.run(serve)
"""
LATE = """
import anyio
from proofbox.agents.fakemodel import FakeModel

class Late(FakeModel):
    async def _answer(self, request, responder):
        await responder.start(200, {"content-type": "text/event-stream"})
        await responder.write(b'data: {"type": "response.output_item.done", "item": {"type": "message"}}\\n\\n')
        await anyio.sleep(0.2)
        usage = b'{"input_tokens": 1000, "output_tokens": 50}'
        await responder.write(b'data: {"type": "response.completed", "response": {"usage": %b}}\\n\\n' % usage)
        await responder.finish()

async def serve():
    async with Late().listening() as url:
        print(url, flush=True)
        await anyio.sleep_forever()

anyio.run(serve)
"""
BREAK_OFF = """
import http.client, os, urllib.parse
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
for _ in range(COUNT):
    connection = http.client.HTTPConnection(url.netloc)
    connection.request("POST", url.path + "/responses", "{}", {"content-type": "application/json"})
    answer = connection.getresponse()
    while b"output_item.done" not in answer.readline():
        pass
    connection.sock.close()
    answer.close()
"""
ASK = """
import json, os, sys, tomllib, urllib.request
url = os.environ.get("OPENAI_BASE_URL")
if url is None:
    with open(os.environ["CODEX_HOME"] + "/config.toml", "rb") as file:
        url = tomllib.load(file)["model_providers"]["proofbox"]["base_url"]
body = json.dumps({"input": [{"role": "user", "content": "[[say hello]]"}]}).encode()
for _ in range(int(sys.argv[1])):
    request = urllib.request.Request(url + "/responses", body, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=100).read()
if len(sys.argv) > 2:
    print(json.dumps({"type": "usage", "input_tokens": int(sys.argv[2]), "output_tokens": 100}))
"""


@pytest.fixture
def model() -> Iterator[str]:
    """Each of its responses states 1000 tokens of input and 50 of output."""
    with serving_model() as url:
        yield url


class Run:
    def __init__(self, out: Path, made: Plan) -> None:
        self.out = out
        self.made = made
        self.bundle = load_bundle(out / made.run_id)
        self.attempts = attempts(made, out)

    def report(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = document(self.out, self.made, self.attempts[id], "attempt.report.json")
        return found

    def ended(self, id: str) -> tuple[str, str]:
        attempt: Attempt = self.attempts[id]
        assert attempt.result is not None
        record = document(self.out, self.made, attempt, "attempt.json")
        return attempt.result.reason, record["detail"]

    def codes(self) -> list[str]:
        return sorted({each.code for each in validate(self.bundle, strict=True)})


def ran(tmp_path: Path, missions: str, **options: Any) -> Run:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "ask.py").write_text(ASK)
    out = tmp_path / "out"
    source = HEAD + missions.replace("[[mission]]", '[[mission]]\nworkspace = "workspace"')
    made = plan(source, out, tmp_path, retries=0, **options)
    conduct(made, out)
    return Run(out, made)


def mission(id: str, prompt: str, more: str = "") -> str:
    return f"[[mission]]\nid = {json.dumps(id)}\nprompt = {json.dumps(prompt)}\n{more}\n"


def shell(model: str, **settings: Any) -> dict[str, Any]:
    agent = {"command": ["/bin/sh", "-s"], "base_url": model, "output": "jsonl", **settings}
    return {"chain": "process", "runtimes": {"process": agent}}


def spent(tokens: dict[str, Any]) -> dict[str, int]:
    return {source: each["input_tokens"] + each["output_tokens"] for source, each in tokens.items()}


def test_reported_tokens_that_differ_from_the_gateway_are_a_finding(tmp_path: Path, model: str) -> None:
    run = ran(
        tmp_path,
        mission("low", "exec python3 ask.py 5 2000"),
        **shell(model),
    )
    report = run.report("low.1")
    assert spent(report["tokens"]) == {"gateway": 5250, "runtime_reported": 2100}
    assert [each["code"] for each in report["integrity"]] == ["USAGE_DISAGREES"]
    assert run.codes() == ["USAGE_DISAGREES"]


def test_matching_or_missing_token_report_is_not_a_finding(tmp_path: Path, model: str) -> None:
    missions = mission("honest", "exec python3 ask.py 2 2000") + mission("silent", "exec python3 ask.py 2")
    run = ran(tmp_path, missions, **shell(model))
    assert spent(run.report("honest.1")["tokens"]) == {"gateway": 2100, "runtime_reported": 2100}
    assert spent(run.report("silent.1")["tokens"]) == {"gateway": 2100}
    assert run.codes() == []


def test_budget_counts_gateway_tokens_not_reported_ones(tmp_path: Path, model: str) -> None:
    budget = "budget = { tokens = 3000 }"
    missions = mission("silent", "exec python3 ask.py 50", budget) + mission("low", "exec python3 ask.py 50 10", budget)
    missions += mission("within", "exec python3 ask.py 2", budget)
    run = ran(tmp_path, missions, **shell(model))
    for id in ("silent.1", "low.1"):
        assert run.ended(id) == ("budget_exceeded", "tokens: 3150 of 3000")
        assert run.report(id)["tokens"]["gateway"]["input_tokens"] < 50_000
    assert run.ended("within.1")[0] == "completed"


def test_responses_without_usage_are_unknown_and_no_budget_can_be_checked(tmp_path: Path) -> None:
    missions = mission("free", "exec python3 ask.py 3")
    missions += mission("budget", "exec python3 ask.py 50", "budget = { tokens = 3000 }")
    with serving("-c", CHAT) as url:
        run = ran(tmp_path, missions, **shell(url))
    report = run.report("free.1")
    assert (report["tokens"], report["responses_without_usage"]) == ({}, 3)
    reason, detail = run.ended("budget.1")
    assert reason == "budget_exceeded"
    assert "states no usage" in detail


def test_usage_after_the_client_has_left_counts(tmp_path: Path) -> None:
    """The program has the whole answer before the endpoint states its usage, and disconnects."""

    def leave(count: int) -> str:
        return f"exec python3 - <<'END'{BREAK_OFF.replace('COUNT', str(count))}END"

    missions = mission("few", leave(2))
    missions += mission("budget", leave(50), "budget = { tokens = 3000 }")
    with serving("-c", LATE) as url:
        run = ran(tmp_path, missions, **shell(url))
    report = run.report("few.1")
    assert spent(report["tokens"]) == {"gateway": 2100}
    assert run.ended("budget.1") == ("budget_exceeded", "tokens: 3150 of 3000")


@pytest.mark.needs("codex")
def test_calls_from_codex_commands_to_the_gateway_are_counted_and_a_finding(tmp_path: Path, model: str) -> None:
    missions = mission("direct", "[[run python3 ask.py 3]] [[say done]]")
    missions += mission("budget", "[[run python3 ask.py 50]] [[say done]]", "budget = { tokens = 4000 }")
    missions += mission("honest", "[[run true]] [[say done]]")
    run = ran(tmp_path, missions, chain="codex_app_server!", flags={"base_url": model, "model": "fake-model"})
    report = run.report("direct.1")
    assert spent(report["tokens"]) == {"gateway": 5250, "runtime_reported": 2100}
    assert {each["code"] for each in report["integrity"]} == {"USAGE_UNREPORTED"}
    assert run.ended("budget.1") == ("budget_exceeded", "tokens: 4200 of 4000")
    honest = run.report("honest.1")
    assert (spent(honest["tokens"]), honest["integrity"]) == ({"gateway": 2100, "runtime_reported": 2100}, [])


@pytest.mark.needs("codex")
def test_direct_calls_in_a_shared_session_are_a_finding_and_not_counted(tmp_path: Path, model: str) -> None:
    missions = mission("direct", "[[run python3 ask.py 3]] [[say done]]")
    run = ran(
        tmp_path,
        missions,
        chain="codex_app_server!",
        flags={"base_url": model, "model": "fake-model"},
        isolation="shared",
        concurrency=1,
    )
    report = run.report("direct.1")
    assert spent(report["tokens"]) == {"gateway": 2100, "runtime_reported": 2100}
    assert {each["code"] for each in report["integrity"]} == {"USAGE_UNREPORTED"}
