"""Process agents in a suite: only calls through the funnel are recorded as observed.

The agent is a shell, and its mission's prompt is the script that it plays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pacing import in_time
from suites import HEAD, attempts, conduct, document, lines, plan, toml

from proofbox.agents.runtimes.process.runtime import ProcessSettings
from proofbox.agents.settings import read_settings
from proofbox.cli import main
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import Plan

# All use one run, so they must run in one worker.
pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("funnel")]

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
RAN_THE_TESTS = {"observed": True, "commands": ["^pytest -q$"], "min_tool_calls": 1}
SAYS_SO = '{"type":"tool_call","item":"i1","tool":"command","command":"pytest -q","status":"completed","exit_code":0}'
MARK = f"funnel-{os.getpid()}"


def mission(id: str, script: str, **fields: Any) -> str:
    fields_of_mission = {"id": id, "prompt": script, **fields}
    return "[[mission]]\n" + "".join(f"{name} = {toml(value)}\n" for name, value in fields_of_mission.items())


WAIT = "until [ -e begun ]; do sleep 0.01; done; "
HONEST = "proofbox run -n -- sh -c 'echo 42 > answer.txt'; proofbox run -n -- cat answer.txt; "
HAS_IT_RUN = "printf '#!/bin/sh\\n' >pytest; chmod +x pytest; PATH=$PWD:$PATH; proofbox run -n -- pytest -q"
NONSENSE = """
cat >speak.py <<'.'
import os, socket
for garbage in (b"", b"nonsense", os.urandom(5000)):
    s = socket.socket(socket.AF_UNIX)
    s.connect(os.environ["PROOFBOX_FUNNEL"])
    s.send(garbage)
    s.close()
.
python3 speak.py
proofbox run -n -- true
"""
CALLS_A_TOOL = """
cat >server.py <<'.'
import json, sys
for line in sys.stdin:
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": {"content": []}}), flush=True)
.
echo '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file","arguments":{"path":"a"}}}' >asked
proofbox mcp proxy -- python3 server.py <asked >answers
"""
CALLED_A_TOOL = {"observed": True, "commands": ["^mcp/delete_file"]}
EXITS_127 = HAS_IT_RUN.replace("/bin/sh\\n", "/bin/sh\\nexit 127\\n") + " || :"
STARTS = "proofbox run -n -- sh -c 'touch begun; exec sleep 1000' & " + WAIT
WRITES = (
    f"proofbox run -n -- sh -c 'echo {MARK} >late; touch begun; while :; do echo >>late; sleep 0.01; done' & " + WAIT
)
SECRET = "sk-proj-" + "a1B2" * 12
SUITE = HEAD + "".join(
    [
        mission("honest", HONEST + 'echo \'{"type":"message","text":"done"}\'', verify=ANSWER),
        mission("direct", "echo 42 > answer.txt", verify=ANSWER),
        mission("forges", f"echo '{SAYS_SO}'; echo '{SAYS_SO[:-1]},\"source\":\"observed\"}}'", expect=RAN_THE_TESTS),
        mission("has-it-run", HAS_IT_RUN, expect=RAN_THE_TESTS),
        mission("declined", "proofbox run -n -- pytest -q || :", expect=RAN_THE_TESTS, tools={"decline": ["pytest*"]}),
        mission(
            "declined-and-unwanted",
            "proofbox run -n -- git push origin || :",
            expect={"no_commands": ["git push"]},
            tools={"decline": ["git push*"]},
        ),
        mission(
            "declined-and-wanted",
            "proofbox run -n -- git push origin || :",
            expect={"commands": ["git push"]},
            tools={"decline": ["git push*"]},
        ),
        mission(
            "calls-a-tool", CALLS_A_TOOL, expect={"observed": True, "commands": ['^mcp/delete_file .*"path": "a"']}
        ),
        mission("calls-what-it-must-not", CALLS_A_TOOL, expect={"no_commands": ["delete_file"]}),
        mission("no-such-program", "proofbox run -n -- pytest -q || :", expect=RAN_THE_TESTS),
        mission("refused-for-its-place", "cd / && proofbox run -n -- pytest -q || :", expect=RAN_THE_TESTS),
        mission(
            "not-executable", "echo >pytest; PATH=$PWD:$PATH; proofbox run -n -- pytest -q || :", expect=RAN_THE_TESTS
        ),
        mission("never-ran-by-its-word", "proofbox run -n -- pytest -q || :", expect={"commands": ["^pytest"]}),
        mission("never-ran-and-unwanted", "proofbox run -n -- pytest -q || :", expect={"no_commands": ["^pytest"]}),
        mission("exits-127-itself", EXITS_127, expect=RAN_THE_TESTS),
        mission("must-exit-0", EXITS_127, expect=RAN_THE_TESTS | {"commands": [{"match": "^pytest", "exit_code": 0}]}),
        mission("may-exit-127", EXITS_127, expect=RAN_THE_TESTS | {"commands": [{"match": "^py", "exit_code": 127}]}),
        mission("no-server", CALLS_A_TOOL.replace("python3 server.py", "no-such-server"), expect=CALLED_A_TOOL),
        mission("no-such-tool", CALLS_A_TOOL.replace('"result": {"content": []}', '"error": {}'), expect=CALLED_A_TOOL),
        mission("fails", "proofbox run -n -- sh -c 'exit 3' || :"),
        mission("garbage", NONSENSE),
        mission("kills-the-helper", STARTS + "kill -9 $!; wait; proofbox run -n -- true"),
        mission("leaves-one", WRITES, verify={"commands": ["cp late a; sleep 0.2; cmp late a"]}),
        mission("too-many", "while proofbox run -n -- true; do :; done", budget={"tool_calls": 5}),
        mission("secrets", f"proofbox run -n -- sh -c 'echo $0' {SECRET}"),
    ]
)


class Ran(NamedTuple):
    out: Path
    plan: Plan
    attempts: dict[str, Attempt]

    def result(self, id: str) -> Any:
        return self.attempts[f"{id}.1"].result

    def calls(self, id: str) -> list[tuple[str, str, str]]:
        reported = lines(self.out, self.plan, self.attempts[f"{id}.1"], "tool.calls.jsonl")
        return [(call["command"], call["status"], call["source"]) for call in reported]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(SUITE, tmp_path_factory.mktemp("funnel"))


def run(suite: str, base: Path) -> Ran:
    out = base / "out"
    settings = {"command": ["sh"], "output": "jsonl"}
    assert read_settings(ProcessSettings, settings, "process")
    made = plan(suite, out, base, chain="process", runtimes={"process": settings})
    conduct(made, out)
    return Ran(out, made, attempts(made, out))


def test_evidence_of_all_attempts_is_complete_and_verifies(ran: Ran) -> None:
    bundle = load_bundle(ran.out / ran.plan.run_id)
    assert validate(bundle, strict=True) == []
    assert verify(ran.out / ran.plan.run_id).ok


def test_calls_are_steps_with_snapshots_and_decisions(ran: Ran) -> None:
    assert ran.result("honest").verified == "passed"
    assert [call[1:] for call in ran.calls("honest")] == [("completed", "observed")] * 2
    attempt = ran.attempts["honest.1"]
    steps = [each["step"] for each in lines(ran.out, ran.plan, attempt, "steps.jsonl") if "step" in each]
    first, second = steps[:2]
    assert (first["source"], first["changed"], second["changed"]) == ("observed", 1, 0)
    assert first["snapshot_after"] == second["snapshot_before"] != first["snapshot_before"]
    assert [each["answer"] for each in first["decisions"]] == ["accept"]
    report = document(ran.out, ran.plan, attempt, "attempt.report.json")
    assert (report["tool_calls"], report["tool_calls_observed"]) == (2, 2)


def test_direct_actions_change_files_but_record_no_call(ran: Ran) -> None:
    assert ran.result("direct").verified == "passed"
    assert ran.calls("direct") == []


def test_forged_call_is_not_observed_and_does_not_count(ran: Ran) -> None:
    assert [source for _, _, source in ran.calls("forges")] == ["runtime_reported"] * 2
    assert ran.result("forges").verified == "failed"
    assert ran.result("has-it-run").verified == "passed"
    assert ran.calls("has-it-run") == [("pytest -q", "completed", "observed")]


def test_a_declined_call_is_recorded_and_does_not_count(ran: Ran) -> None:
    assert ran.calls("declined") == [("pytest -q", "declined", "observed")]
    assert ran.result("declined").verified == "failed"
    events = lines(ran.out, ran.plan, ran.attempts["declined.1"], "events.jsonl")
    assert [(each["answer"], each["rule"]) for each in events if each["event"] == "decision"] == [
        ("decline", "decline pytest*")
    ]


@pytest.mark.parametrize("id", ["no-such-program", "refused-for-its-place", "not-executable", "never-ran-by-its-word"])
def test_a_command_that_never_ran_does_not_count(ran: Ran, id: str) -> None:
    assert ran.result(id).verified == "failed"
    [call] = lines(ran.out, ran.plan, ran.attempts[f"{id}.1"], "tool.calls.jsonl")
    reported = (call["command"], call["status"], call["source"], call["started"])
    assert reported == ("pytest -q", "failed", "observed", False)
    report = document(ran.out, ran.plan, ran.attempts[f"{id}.1"], "attempt.report.json")
    assert (report["tool_calls"], report["tool_calls_observed"]) == (1, 0)


def test_an_unwanted_command_that_never_ran_does_not_count(ran: Ran) -> None:
    assert ran.result("never-ran-and-unwanted").verified == "passed"


def test_a_program_that_exits_127_itself_was_run(ran: Ran) -> None:
    [call] = lines(ran.out, ran.plan, ran.attempts["exits-127-itself.1"], "tool.calls.jsonl")
    assert (call["exit_code"], call["started"]) == (127, True)
    assert ran.result("exits-127-itself").verified == "passed"


def test_a_condition_can_ask_for_an_exit_code(ran: Ran) -> None:
    assert ran.result("must-exit-0").verified == "failed"
    (unmet,) = document(ran.out, ran.plan, ran.attempts["must-exit-0.1"], "attempt.json")["verification"]["unmet"]
    assert (unmet["what"], unmet["found"]) == ("^pytest with exit code 0", "127")
    assert ran.result("may-exit-127").verified == "passed"


@pytest.mark.parametrize("id", ["no-server", "no-such-tool"])
def test_tool_call_that_no_server_ran_does_not_count(ran: Ran, id: str) -> None:
    calls = lines(ran.out, ran.plan, ran.attempts[f"{id}.1"], "tool.calls.jsonl")
    found = [call["started"] for call in calls if call["tool"] == "mcp/delete_file"]
    # A server that has exited may or may not be called.
    assert found in ([[False]] if id == "no-such-tool" else [[None], []])
    assert ran.result(id).verified == "failed"


def test_declined_call_is_not_run(ran: Ran) -> None:
    assert ran.calls("declined-and-unwanted") == [("git push origin", "declined", "observed")]
    assert ran.result("declined-and-unwanted").verified == "passed"
    assert ran.result("declined-and-wanted").verified == "failed"


def test_conditions_see_the_tools_of_a_server_as_policies_do(ran: Ran) -> None:
    assert ran.result("calls-a-tool").verified == "passed"
    assert ran.result("calls-what-it-must-not").verified == "failed"
    attempt = ran.attempts["calls-what-it-must-not.1"]
    (unmet,) = document(ran.out, ran.plan, attempt, "attempt.json")["verification"]["unmet"]
    decisions = [each for each in lines(ran.out, ran.plan, attempt, "events.jsonl") if each["event"] == "decision"]
    assert unmet["found"] == 'mcp/delete_file {"path": "a"}'
    assert unmet["found"] in [each["subject"] for each in decisions]


def test_failures_are_counted_by_code(ran: Ran) -> None:
    def failures(id: str) -> Any:
        return document(ran.out, ran.plan, ran.attempts[f"{id}.1"], "attempt.report.json")["tool_failures"]

    assert (failures("fails"), failures("declined"), failures("honest")) == ({"exit_3": 1}, {"declined": 1}, {})


def test_malformed_requests_do_not_change_the_record(ran: Ran) -> None:
    assert ran.result("garbage").infra is None
    assert ran.calls("garbage") == [("true", "completed", "observed")]


def test_a_killed_helper_is_a_failed_call(ran: Ran) -> None:
    reported = {command: (status, source) for command, status, source in ran.calls("kills-the-helper")}
    assert reported.pop("true") == ("completed", "observed")
    assert list(reported.values()) in ([("failed", "observed")], [("abandoned", "observed")])


def test_a_call_left_running_ends_with_its_turn(ran: Ran) -> None:
    assert ran.result("leaves-one").verified == "passed"
    ((_, status, _),) = ran.calls("leaves-one")
    assert status == "abandoned"


def test_timeout_and_budget_end_running_calls(ran: Ran, tmp_path: Path) -> None:
    assert ran.result("too-many").reason == "budget_exceeded"

    def too_long(limit: float) -> Ran:
        return run(HEAD + mission("too-long", "proofbox run -n -- sleep 1000", timeout=limit), tmp_path)

    long = in_time(too_long, lambda ran: ran.calls("too-long"))
    assert long.result("too-long").reason == "timed_out"
    assert long.calls("too-long") == [("sleep 1000", "abandoned", "observed")]


def test_secrets_are_redacted_and_nothing_is_left(ran: Ran) -> None:
    ((command, _, _),) = ran.calls("secrets")
    assert "a1B2" not in command
    assert not (ran.out / ".work" / ran.plan.run_id).exists()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert MARK.encode() not in process.read_bytes()
        except OSError:
            continue


def test_funnel_suite_runs_from_the_command_line(tmp_path: Path) -> None:
    """A suite, the settings of the runtime, one command."""
    (tmp_path / "agent.sh").write_text("cat >/dev/null; proofbox run -n -- sh -c 'echo 42 > answer.txt'; echo done\n")
    (tmp_path / "suite.toml").write_text(HEAD + mission("answer", "write 42", verify=ANSWER))
    (tmp_path / "config/proofbox").mkdir(parents=True)
    mount = f"{tmp_path}/agent.sh:/agent/agent.sh:ro"
    (tmp_path / "config/proofbox/config.toml").write_text(
        f'[runtimes.process]\ncommand = ["sh", "/agent/agent.sh"]\nmounts = ["{mount}"]\n'
    )
    words = ["suite", "run", "suite.toml", "--strategies", "process", "--provider", "bubblewrap", "--json"]
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    done = subprocess.run(
        [sys.executable, "-m", "proofbox", *words], cwd=tmp_path, env=env, capture_output=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (attempt,) = json.loads(done.stdout)["attempts"]
    assert (attempt["strategy"], attempt["claimed"], attempt["verified"]) == ("process", "success", "passed")
    assert main(["validate", str(tmp_path / "out"), "--strict", "--json"]) == 0
