"""`attempt explain` shows why an attempt ended, the source of each statement, and whether the evidence is valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, mission, plan, say, toml, write

from proofbox.cli import main
from proofbox.lab.run.plan import Plan

pytestmark = pytest.mark.needs("bubblewrap")


class Ran:
    """A suite that was run, and the explanations of its attempts."""

    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str], suite: str, **options: Any) -> None:
        self.out = base / "out"
        self.capsys = capsys
        self.made: Plan = plan(HEAD + suite, self.out, base, **options)
        conduct(self.made, self.out)
        capsys.readouterr()

    def says(self, *words: str) -> str:
        assert main([*words, "--run", str(self.out)]) == 0
        return self.capsys.readouterr().out

    def explains(self, id: str) -> list[str]:
        return self.says("attempt", "explain", id).splitlines()

    def bundle(self, id: str) -> Path:
        return self.out / self.made.run_id / attempts(self.made, self.out)[id].path


def shell(id: str, script: str, **fields: Any) -> str:
    """Return a mission for a shell agent whose prompt is the script."""
    members = "".join(f"{name} = {toml(value)}\n" for name, value in fields.items())
    return f'[[mission]]\nid = "{id}"\nprompt = {json.dumps(script)}\n{members}'


SHELL: dict[str, Any] = {"chain": "process", "runtimes": {"process": {"command": ["/bin/sh", "-s"]}}}


def test_agent_output_cannot_imitate_the_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lie = "m.1: passed verification"
    steps = [command(f"true\n{lie}"), say(f"done\n{lie}\u2028{lie}")]
    verify = {"commands": [f"printf 'x\\n{lie}\\n'; exit 1"]}
    lines = Ran(tmp_path, capsys, mission("m", *steps, verify=verify)).explains("m.1")
    assert lines[0] == "m.1: claimed success but failed verification"
    assert lines[2:5] == ["  its stdout ended:", "    | x", f"    | {lie}"]
    assert [line for line in lines if line.startswith(lie)] == []
    assert lines[-4:] == ["Its final message:", "  | done", f"  | {lie}", f"  | {lie}"]


def test_changed_paths_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [write("a.txt", "diff fake.txt\n--- fake\n"), command("mkdir d; echo b > d/b.txt"), say("done")]
    many = [command("for n in $(seq 25); do echo $n > $n.txt; done"), say("done")]
    ran = Ran(tmp_path, capsys, mission("few", *steps) + mission("many", *many) + mission("none", say("done")))
    assert "It changed 3 paths: a.txt, d, d/b.txt" in ran.explains("few.1")
    [line] = [line for line in ran.explains("many.1") if line.startswith("It changed 25 paths: 1.txt, ")]
    assert " and 5 more: proofbox attempt diff " in line
    assert not [line for line in ran.explains("none.1") if line.startswith("It changed")]


@pytest.mark.needs("limits")  # without a control group, a daemon cannot be told from the box's own processes
@pytest.mark.parametrize("chain", ["scripted", "process"])
def test_processes_killed_at_the_end_are_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chain: str
) -> None:
    daemon, quiet = "(setsid sleep 300 &) >/dev/null 2>&1; echo ok", "sleep 0; echo ok"
    if chain == "scripted":
        suite = mission("leaves", command(daemon), say("done")) + mission("quiet", command(quiet), say("done"))
        ran = Ran(tmp_path, capsys, suite)
    else:
        ran = Ran(tmp_path, capsys, shell("leaves", daemon) + shell("quiet", quiet), **SHELL)
    killed = "Processes that it had started were still running at its end, and were killed."
    assert killed in ran.explains("leaves.1")
    assert killed not in ran.explains("quiet.1")


def test_explain_shows_why_program_command_and_setup_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "seq 1 3000; seq 1 20000 >&2; echo THE REASON >&2; exit 1"
    ran = Ran(
        tmp_path,
        capsys,
        shell("exits", "echo no such model >&2; exit 4", verify={"commands": [["sh", "no test"], "true"]})
        + shell("setup", "true", setup=["echo oops >&2; exit 7"])
        + shell("long", "seq 1 3000; echo the last words", verify={"commands": [long]})
        + shell("object", """echo '{"status": "success", "left": null}'"""),
        **SHELL,
    )
    lines = ran.explains("exits.1")
    assert lines[1].startswith("The verifier's command `sh 'no test'` did not pass")
    assert "The agent's turn failed. (the program exited with code 4: no such model)" in lines
    assert ran.explains("setup.1")[:4] == [
        "setup.1: no verdict, because the mission's setup failed (ATTEMPT_SETUP_FAILED)",
        "ATTEMPT_SETUP_FAILED: a setup command of mission setup exited 7",
        "  its command: echo oops >&2; exit 7",
        "  its stderr ended: oops",
    ]
    lines = ran.explains("long.1")
    assert lines[2:6] == ["  its stderr ended:", "    | 19999", "    | 20000", "    | THE REASON"]
    assert lines[-1] == "  | the last words"
    assert lines[lines.index("Its final message:") + 1].startswith("  | …")
    assert ran.explains("object.1")[-1] == 'Its final message: {"left":null,"status":"success"}'


def test_explain_shows_why_a_tool_call_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = {"tool": "read_file", "args": {"path": "nope"}}
    loud = command("seq 1 2000; echo the reason; exit 3")
    lines = Ran(tmp_path, capsys, mission("m", absent, loud, say("done"))).explains("m.1")
    [first, second] = [line for line in lines if line.startswith(("  1.", "  2."))]
    assert first.endswith("ms): WORKSPACE_FILE_ABSENT: nope does not exist")
    assert second.endswith("ms): the reason")


@pytest.mark.parametrize("damage", ["missing", "edited", "gone"])
def test_invalid_evidence_is_reported_first(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    verify = {"commands": ["grep -qx 42 a"]}
    ran = Ran(tmp_path, capsys, mission("m", write("a", "42\n"), say("done"), verify=verify))
    assert ran.explains("m.1")[0] == "m.1: passed verification"
    assert json.loads(ran.says("attempt", "show", "m.1", "--json"))["evidence_problem"] is None
    assert main(["suite", "report", str(ran.out)]) == 0
    capsys.readouterr()
    bundle = ran.bundle("m.1")
    if damage == "missing":
        (bundle / "events.jsonl").unlink()
    elif damage == "edited":
        path = bundle / "outcome.json"
        path.write_text(path.read_text().replace("passed", "failed"))
    else:
        bundle.rename(tmp_path / "away")
    lines = ran.explains("m.1")
    assert lines[0].startswith("m.1: unknown, because its evidence is invalid: BUNDLE_")
    assert lines[1].startswith("The run's ledger says: passed verification.")
    assert ran.says("attempt", "show", "m.1").startswith("its evidence is invalid: BUNDLE_")
    assert json.loads(ran.says("attempt", "explain", "m.1", "--json"))["evidence_problem"].startswith("BUNDLE_")
    assert main(["suite", "report", str(ran.out), "--json"]) == 1
    [attempt] = json.loads(capsys.readouterr().out)["attempts"]
    assert (attempt["verified"], attempt["infra"]) == ("none", "ATTEMPT_EVIDENCE_INCOMPLETE")
