"""Real Codex attempts against a fake model: concurrent ones, and limits that pause them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, document, lines, plan, serving, serving_model

from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.limiter import Limiter
from proofbox.lab.run.plan import Plan, credential_of, ledger_path

pytestmark = pytest.mark.needs("bubblewrap", "codex")


def prompt(id: str, text: str, **fields: Any) -> str:
    more = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    verifier = 'verify = { commands = ["grep -qx 42 answer.txt"] }\n'
    return f"[[mission]]\nid = {json.dumps(id)}\nprompt = {json.dumps(text)}\n{more}{verifier}"


@pytest.fixture
def model() -> Iterator[str]:
    with serving_model() as url:
        yield url


LIMITED_ONCE = """
import anyio, json, time
from proofbox.agents.fakemodel import FakeModel

class LimitedOnce(FakeModel):
    limited = False
    async def _answer(self, request, responder):
        if self.limited:
            return await super()._answer(request, responder)
        self.limited = True
        error = {"type": "usage_limit_reached", "message": "used up", "resets_at": int(time.time()) + 4}
        await responder.send(429, json.dumps({"error": error}).encode(), {"content-type": "application/json"})

async def serve():
    async with LimitedOnce().listening() as url:
        print(url, flush=True)
        await anyio.sleep_forever()

anyio.run(serve)
"""


@pytest.fixture
def limited_once() -> Iterator[str]:
    """Run a model that reports an exhausted plan for a few seconds at the very first request."""
    with serving("-c", LIMITED_ONCE) as url:
        yield url


def codex(source: str, out: Path, model: str, **options: Any) -> Plan:
    configured = {"base_url": model, "model": "fake-model"}
    return plan(source, out, out.parent, chain="codex_app_server!", flags=configured, **options)


def test_concurrent_attempts_have_separate_sessions_and_traces(
    tmp_path: Path, model: str, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(3, 18)
    source = HEAD + "".join(
        prompt(f"m{n}", f"[[run echo marker-{n}-marker; echo 42 > answer.txt]] [[say done marker-{n}-marker]]")
        for n in range(count)
    )
    source += prompt("slow", "[[run sleep 600]]", timeout=3.0) + prompt("stopped", "[[run sleep 601]]")
    out = tmp_path / "out"
    made = codex(source, out, model, concurrency=count + 2)

    def stop_one(event: dict[str, Any]) -> None:
        if event["attempt_id"] == "stopped.1" and event["event"] == "activity":
            ledger = Ledger(ledger_path(out, made.run_id))
            ledger.interrupt("stopped.1")
            ledger.close()

    run = conduct(made, out, stop_one)
    found = attempts(made, out)
    for n in range(count):
        attempt = found[f"m{n}.1"]
        assert attempt.result is not None
        assert (attempt.result.claimed, attempt.result.verified, attempt.result.infra) == ("success", "passed", None)
        text = "".join(json.dumps(each) for each in lines(out, made, attempt, "events.jsonl"))
        assert f"marker-{n}-marker" in text
        assert not any(f"marker-{other}-marker" in text for other in range(count) if other != n)
    reasons = {id: each.result.reason for id, each in found.items() if each.result is not None}
    assert (reasons["slow.1"], reasons["stopped.1"]) == ("timed_out", "interrupted")
    runners = [document(out, made, each, "runner.ref.json") for each in found.values()]
    assert len({each["session_id"] for each in runners}) == len({each["thread_id"] for each in runners}) == count + 2
    assert verify(out).ok
    assert [each.code for each in validate(load_bundle(run), strict=True)] == []


def test_shared_process_runs_many_attempts_and_none_is_promotable(tmp_path: Path, model: str) -> None:
    source = HEAD + "".join(
        prompt(f"m{n}", f"[[run echo marker-{n}-marker; echo 42 > answer.txt]] [[say done]]") for n in range(3)
    )
    out = tmp_path / "out"
    made = codex(source, out, model, isolation="shared")
    run = conduct(made, out)
    assert [each.code for each in validate(load_bundle(run), strict=True)] == []
    found = attempts(made, out)
    assert {each.result and each.result.verified for each in found.values()} == {"passed"}
    runners = [document(out, made, each, "runner.ref.json") for each in found.values()]
    assert len({each["session_id"] for each in runners}) == 1
    assert len({each["thread_id"] for each in runners}) == 3
    for n in range(3):
        text = "".join(json.dumps(each) for each in lines(out, made, found[f"m{n}.1"], "events.jsonl"))
        assert [other for other in range(3) if f"marker-{other}-marker" in text] == [n]
        assert not emit_promotion(run / found[f"m{n}.1"].path).promotable


def test_usage_limit_pauses_the_credential_without_using_up_attempts(tmp_path: Path, limited_once: str) -> None:
    source = HEAD + prompt("limited", "[[run echo 42 > answer.txt]] [[say done]]")
    made = codex(source, tmp_path / "out", limited_once, retries=0)
    conduct(made, tmp_path / "out")
    found = attempts(made, tmp_path / "out")
    results = {
        id: (each.parent, each.result and (each.result.infra, each.result.verified)) for id, each in found.items()
    }
    assert results == {
        "limited.1": (None, ("RUNTIME_USAGE_LIMIT", "none")),
        "limited.1.r1": ("limited.1", (None, "passed")),
    }
    credential = credential_of(made)
    assert credential is not None
    state = Limiter(credential, 4).state()
    assert state.why == "usage limit"
    assert state.inside == ()


def test_an_account_without_credit_ends_the_run_after_its_retries(tmp_path: Path, model: str) -> None:
    made = codex(HEAD + prompt("limited", "[[http 429 type=insufficient_quota]]"), tmp_path / "out", model, retries=1)
    conduct(made, tmp_path / "out")
    found = {id: each.result and each.result.infra for id, each in attempts(made, tmp_path / "out").items()}
    assert found == {"limited.1": "RUNTIME_USAGE_LIMIT", "limited.1.r1": "RUNTIME_USAGE_LIMIT"}
