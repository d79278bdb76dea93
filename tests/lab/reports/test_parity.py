"""Parity of an agent's protocol and its command line, and how differences are reported."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, mission, one_worker_process, plan, say, serving_model, write

import proofbox
from proofbox.agents.runtimes.codex.binary import find_binary
from proofbox.cli import main
from proofbox.lab.reports.parity import ParityDifference

pytestmark = pytest.mark.needs("bubblewrap")
VERIFY = {"commands": ["grep -qx 42 answer.txt"]}


def prompt(id: str, text: str, more: str = "") -> str:
    verify = 'verify = { commands = ["grep -qx 42 answer.txt"] }'
    return f"[[mission]]\nid = {json.dumps(id)}\nprompt = {json.dumps(text)}\n{verify}\n{more}"


TWO_CALLS = "[[run echo 4 > a]] [[run tr -d '\\n' < a > answer.txt; echo 2 >> answer.txt]] [[say done]]"
FIXTURES = {
    "timeout": (
        prompt("timeout", "[[wait 600]] [[say done]]", "timeout = 2.0\n"),  # however late the agent starts
        ("failed", None, "timed_out"),
    ),
    "two-calls": (prompt("two-calls", TWO_CALLS), ("passed", None, "completed")),
    "gives-up": (
        prompt("gives-up", "[[run cat nothing-here]] [[say failed: it is not there]]"),
        ("failed", None, "completed"),
    ),
    "authentication": (
        prompt("authentication", "[[http 401 type=invalid_api_key message=wrong]]"),
        ("none", "RUNTIME_AUTH", "infra_failed"),
    ),
    "success": (prompt("success", "[[run echo 42 > answer.txt]] [[say done]]"), ("passed", None, "completed")),
    "failure": (prompt("failure", "[[say done]]"), ("failed", None, "completed")),
}
"""Success, failure, timeout and authentication errors, for both paths, with verdict, infrastructure failure and reason.
The timeout is first, because the others run in the meantime. The last two are simpler than other ones, and only in the
soak."""


@pytest.fixture
def model() -> Iterator[str]:
    with serving_model() as url:
        yield url


def codex_command() -> list[str]:
    """Return the command line of Codex, which reaches the model through the gateway."""
    config: dict[str, Any] = {
        "model": "fake-model",
        "model_provider": "fake",
        "model_providers.fake.name": "fake",
        "model_providers.fake.base_url": "{base_url}",
        "model_providers.fake.wire_api": "responses",
        "model_providers.fake.request_max_retries": 0,
        "model_providers.fake.stream_max_retries": 0,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "features.plugins": False,
        "features.apps": False,
    }
    words = [word for name, value in config.items() for word in ("-c", f"{name}={json.dumps(value)}")]
    line = 'mkdir -p /tmp/home && export CODEX_HOME=/tmp/home && exec "$@"'
    program = ["sh", "-c", line, "sh", str(find_binary().path), "exec", "--json", "--skip-git-repo-check"]
    return [*program, "--dangerously-bypass-approvals-and-sandbox", *words, "-"]


@pytest.mark.needs("codex")
def test_protocol_and_command_line_score_the_same(
    tmp_path: Path,
    model: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rounds: Callable[[int, int], int],
) -> None:
    one_worker_process(monkeypatch)
    chosen = dict(list(FIXTURES.items())[: rounds(4, len(FIXTURES))])
    suite = HEAD + "".join(text for text, _ in chosen.values())
    folder = find_binary().path.parent
    process = {
        "command": codex_command(),
        "output": "codex_exec",
        "mounts": [f"{folder}:{folder}:ro"],
        "base_url": model,
    }
    outs = tmp_path / "process", tmp_path / "native"
    shared: dict[str, Any] = {"retries": 0, "concurrency": 2}
    conduct(plan(suite, outs[0], tmp_path, chain="process!", runtimes={"process": process}, **shared), outs[0])
    native = {"codex_app_server": {"base_url": model, "model": "fake-model", "max_retries": 0}}
    made = plan(suite, outs[1], tmp_path, chain="codex_app_server!", runtimes=native, **shared)
    conduct(made, outs[1])
    found = proofbox.compare_parity(*outs)
    assert found.differences == ()
    assert found.ok
    assert (found.compared, found.agreed) == (len(chosen), len(chosen))
    assert found.strategies == (("process",), ("codex_app_server",))
    results = {id: each.result for id, each in attempts(made, outs[1]).items()}
    assert {id: each and (each.verified, each.infra, each.reason) for id, each in results.items()} == {
        f"{id}.1": expected for id, (_, expected) in chosen.items()
    }
    assert main(["report", "parity", *map(str, outs)]) == 0
    counts = f"{len(chosen)} of {len(chosen)}"
    assert capsys.readouterr().out == f"process and codex_app_server: {counts} results agree\n"


def scripted(out: Path, *missions: str) -> None:
    conduct(plan(HEAD + "".join(missions), out, out.parent, concurrency=1), out)  # starting workers takes longer


def test_every_difference_is_reported_and_other_missions_do_not_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = mission("same", write("answer.txt", "42\n"), say("done"), verify=VERIFY)
    scripted(
        tmp_path / "a",
        same,
        mission("calls", command("echo 42 > answer.txt"), command("true"), say("done"), verify=VERIFY),
        mission("verdict", write("answer.txt", "42\n"), say("done"), verify=VERIFY),
        mission("only-here", say("done"), verify=VERIFY),
    )
    scripted(
        tmp_path / "b",
        same,
        mission("calls", command("echo 42 > answer.txt"), command("false\u001b[31m"), say("done"), verify=VERIFY),
        mission("verdict", say("failed: no"), verify=VERIFY),
    )
    found = proofbox.compare_parity(tmp_path / "a", tmp_path / "b")
    assert (found.ok, found.compared, found.agreed) == (False, 3, 1)
    assert found.error is not None
    assert (found.error.code, found.error.message) == ("RUN_PARITY", "3 of 4 results differ")
    seen = [(each.attempt, each.what) for each in found.differences]
    assert seen == [
        ("calls.1", "calls"),
        ("only-here.1", "attempt"),
        *(("verdict.1", what) for what in ("claimed", "verified", "tree_sha256", "calls")),
    ]
    assert found.differences[1] == ParityDifference("only-here.1", "attempt", "present", "absent")
    assert found.differences[0].first == "call 2: 'true' completed, exit code 0"
    assert main(["report", "parity", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    text = capsys.readouterr().out
    assert text.startswith("scripted and scripted: 1 of 3 results agree\n")
    assert "verdict.1: verified: passed / failed" in text
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines() if "tree_sha256" not in line)
    assert main(["report", "parity", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "proofbox.parity/1"
    assert document["error"]["code"] == "RUN_PARITY"

    scripted(tmp_path / "c", mission("other", say("done"), verify=VERIFY))
    found = proofbox.compare_parity(tmp_path / "b", tmp_path / "c")
    assert (found.ok, found.compared) == (False, 0)
    assert found.error is not None
    assert found.error.message == "the runs have no result in common"


def test_call_that_was_cut_off_is_the_same_however_it_is_reported(tmp_path: Path) -> None:
    began = {"id": "1", "type": "command_execution", "command": "sleep 600", "status": "in_progress"}
    start = {"type": "item.started", "item": began}
    killed = {"type": "item.completed", "item": {**began, "status": "failed", "exit_code": -1, "aggregated_output": ""}}
    failed = {"type": "turn.failed", "error": {"message": "stopped"}}
    ways = {"abandoned": [start, failed], "killed": [start, killed, failed], "completed": [start, killed]}
    for name, lines in ways.items():
        shown = "".join(f"echo {shlex.quote(json.dumps(line))};" for line in lines)
        process = {"command": ["sh", "-c", shown], "output": "codex_exec"}
        source = HEAD + mission("cut", verify=VERIFY)
        out = tmp_path / name
        conduct(plan(source, out, tmp_path, chain="process!", runtimes={"process": process}), out)
    assert proofbox.compare_parity(tmp_path / "abandoned", tmp_path / "killed").ok
    found = proofbox.compare_parity(tmp_path / "killed", tmp_path / "completed").differences
    assert [each.what for each in found] == ["reason", "calls"]
