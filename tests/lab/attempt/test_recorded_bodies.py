"""With `record = "bodies"`, an attempt's evidence contains what passed between the agent and the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, conduct, lines, plan, serving_model

from proofbox.agents.contract import AgentRuntime
from proofbox.agents.runtimes.acp import AcpRuntime
from proofbox.agents.runtimes.process.runtime import ProcessRuntime
from proofbox.agents.settings import read_settings
from proofbox.errors import UsageError
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.attempt import trace
from proofbox.lab.attempt.adhoc.run import run_attempt
from proofbox.lab.reports.validation import validate

pytestmark = pytest.mark.needs("bubblewrap")
SECRET = "hunter2-but-longer-Zq81"


@pytest.fixture
def model() -> Iterator[str]:
    with serving_model() as url:
        yield url


def ran(tmp_path: Path, prompt: str, **options: Any) -> tuple[Path, list[dict[str, Any]]]:
    """Run one attempt. Return its bundle and the log of its exchanges."""
    out = tmp_path / "out"
    made = plan(
        HEAD + f'[[mission]]\nid = "asks"\nprompt = {json.dumps(prompt)}\n', out, tmp_path, retries=0, **options
    )
    run = conduct(made, out)
    assert verify(run).ok
    assert validate(load_bundle(run), strict=True) == []
    [attempt] = attempts(made, out).values()
    found = lines(out, made, attempt, trace.EXCHANGES) if (run / attempt.path / trace.EXCHANGES).exists() else []
    return run / attempt.path, found


def stored(bundle: Path, entry: dict[str, Any], name: str) -> str:
    return (bundle / trace.BODIES.format(entry[name]["sha256"])).read_text()


@pytest.mark.needs("codex")
def test_requests_of_codex_are_stored_with_instructions_tools_and_messages(tmp_path: Path, model: str) -> None:
    settings = {"base_url": model, "model": "fake-model", "record": "bodies"}
    bundle, found = ran(tmp_path, "[[run echo hi]] [[say done]]", chain="codex_app_server!", flags=settings)
    assert [(each["number"], each["status"], each["outcome"]) for each in found] == [
        (1, 200, "completed"),
        (2, 200, "completed"),
    ]
    request = json.loads(stored(bundle, found[0], "request"))
    assert request["tools"]
    assert "developer" in {each.get("role") for each in request["input"]}, [*request]
    assert "[[run echo hi]]" in json.dumps(request["input"])
    assert "response.completed" in stored(bundle, found[1], "response")
    assert {each["turn"] for each in found} != {""}


ASK = """
import json, os, urllib.request
body = json.dumps({"input": [{"role": "user", "content": "[[say hello]] " + "TE" "XT"}]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/responses", body), timeout=100).read()
"""


def shell(model: str, **settings: Any) -> dict[str, Any]:
    agent = {"command": ["python3", "-"], "base_url": model, **settings}
    return {"chain": "process!", "runtimes": {"process": agent}}


def test_bodies_are_redacted(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", SECRET)
    bundle, [entry] = ran(
        tmp_path,
        ASK.replace("TE", SECRET[:9]).replace("XT", SECRET[9:]),
        **shell(model, record="bodies", api_key_env="TEAM_KEY"),
    )
    assert "[[say hello]] [redacted]" in stored(bundle, entry, "request")
    assert [path for path in bundle.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []


def one_attempt(tmp_path: Path, model: str) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    settings = {"command": ["python3", "-"], "base_url": model, "record": "bodies"}
    return Path(run_attempt(ASK, project, strategies="process!", settings=settings, provider="bubblewrap").bundle)


def test_bodies_of_an_attempt_are_bounded(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_BODIES_BYTES", 200)
    bundle = load_bundle(one_attempt(tmp_path, model))
    [entry] = bundle.read_log(trace.EXCHANGES)
    assert entry["request"]["sha256"] is not None
    assert (entry["response"]["sha256"], entry["response"]["size"] > 200) == (None, True)
    assert "reached the limit of 200 bytes" in entry["response"]["omitted"]
    assert validate(bundle, strict=True) == []


def test_missing_body_is_a_finding(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace.Trace, "_keep", lambda self, data, name: "0" * 64)
    bundle = load_bundle(one_attempt(tmp_path, model))
    assert [each.code for each in validate(bundle, strict=False)] == ["body_missing", "body_missing"]


@pytest.mark.parametrize("runtime", [ProcessRuntime(), AcpRuntime()])
def test_bodies_can_not_be_recorded_without_the_gateway(runtime: AgentRuntime) -> None:
    with pytest.raises(UsageError, match="needs base_url"):
        read_settings(runtime.settings, {"command": ["my-agent"], "record": "bodies"}, runtime.id)
