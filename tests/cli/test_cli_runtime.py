"""The `runtime` commands, for programs and for people."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proofbox.cli import main

PLAY = """
[[step]]
tool = "write_file"
args = { path = "answer.txt", content = "42\\n" }
[[step]]
tool = "run_command"
args = { command = "cat answer.txt; exit 3" }
[[step]]
usage = { input_tokens = 11, output_tokens = 7 }
[[step]]
say = "done \\u001b]0;title\\u0007"
"""
BOX = ("--provider", "bubblewrap")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "work").mkdir()
    (tmp_path / "play.toml").write_text(PLAY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0, group: str = "runtime") -> Any:
    assert main([group, *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.needs("bubblewrap")
def test_try_one_prompt_and_fork_its_steps(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(
        capsys, "try", "--strategies", "scripted", "--script", "play.toml", "--prompt", "go", "--workspace", "work",
        "--out", "record", *BOX,
    )  # fmt: skip
    assert (result["schema"], result["ok"], result["strategy"], result["status"]) == (
        "proofbox.runtime_try/1",
        True,
        "scripted",
        "completed",
    )
    assert result["chain"][0] | {"fix_hints": []} == {
        "strategy": "scripted", "used": True, "reason": "the first usable candidate", "code": "", "strict": False,
        "version": "1", "fix_hints": [],
    }  # fmt: skip
    assert [(each["tool"], each["exit_code"]) for each in result["tool_calls"]] == [
        ("write_file", None),
        ("command", 3),
    ]
    assert all(each["duration_ms"] > 0 for each in result["tool_calls"])
    assert [each["n"] for each in result["steps"]] == [1, 2]
    assert {"snapshot_before", "snapshot_after"} <= set(result["steps"][0])
    assert result["usage"] | {} == {
        "input_tokens": 11, "output_tokens": 7, "cached_input_tokens": 0, "reasoning_tokens": 0,
    }  # fmt: skip
    assert result["thread_id"].startswith("thread-")
    assert result["error"] is None
    assert result["bundle"] == str(place / "record")
    words = ("fork", "record", "other", "--step", "2", "--prompt", "on", "--out", "r2")
    again = call(capsys, *words, group="attempt")
    assert (again["fork"]["exact"], again["attempt"]["snapshot_before"]) == (True, result["snapshot_after"])
    assert again["attempt"]["bundle"] == str(place / "r2")
    assert (place / "other/answer.txt").read_text() == "42\n"
    here = call(capsys, "fork", "record", "--step", "1", group="attempt")
    assert (here["fork"]["exact"], here["attempt"]) == (False, None)
    assert Path(here["workspace"]).name == f"{result['attempt_id']}-step1"
    refused = call(capsys, "fork", "record", "--step", "9", "--prompt", "on", code=2, group="attempt")
    assert refused["error"]["code"] == "PROOFBOX_NOT_FOUND"


@pytest.mark.needs("bubblewrap")
def test_commands_for_attempts_read_an_attempt_of_runtime_try(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = call(capsys, "try", "--script", "play.toml", "--prompt", "go", "--workspace", "work", *BOX)
    assert made["bundle"] == str(place / "state/proofbox/attempts" / made["attempt_id"])
    reported = call(capsys, "explain", made["attempt_id"], group="attempt")
    assert (reported["attempt"]["attempt_id"], reported["attempt"]["bundle"]) == (made["attempt_id"], made["bundle"])
    assert any("cat answer.txt; exit 3 (exit 3" in line for line in reported["lines"])
    shown = call(capsys, "show", made["bundle"], group="attempt")
    assert shown["documents"]["attempt.json"]["attempt_id"] == made["attempt_id"]
    step = call(capsys, "diff", made["attempt_id"], "--step", "1", group="attempt")
    assert (step["step"], step["diff"].splitlines()[-1]) == (1, "+42")
    assert call(capsys, "diff", made["attempt_id"], group="attempt")["diff"] == step["diff"]
    assert main(["attempt", "diff", made["attempt_id"], "--step", "2"]) == 0
    assert capsys.readouterr().out == "no difference\n"
    for words in (["validate", made["bundle"], "--strict"], ["report", made["bundle"]], ["verify", made["bundle"]]):
        assert main(words) == 0
    assert made["attempt_id"] in capsys.readouterr().out
    assert main(["workspace", "diff", "work", made["snapshot_before"], made["snapshot_after"]]) == 0
    assert "+42" in capsys.readouterr().out


@pytest.mark.needs("bubblewrap")
def test_gc_removes_old_attempts_of_runtime_try(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = call(capsys, "try", "--script", "play.toml", "--prompt", "go", "--workspace", "work", *BOX)
    home = Path(f"{made['bundle']}.home")
    assert home.is_dir()
    kept = {item["path"]: item for item in call(capsys, group="gc")["items"]}
    assert (kept[made["bundle"]]["kind"], kept[made["bundle"]]["free"]) == ("attempt", False)
    assert (kept[str(home)]["kind"], kept[str(home)]["free"]) == ("home", False)
    call(capsys, "--older-than", "0", group="gc")
    assert not Path(made["bundle"]).exists()
    assert not home.exists()
    assert main(["workspace", "verify", "work"]) == 0  # its history is the user's


@pytest.mark.needs("bubblewrap")
def test_failed_turn_exits_1_with_a_document(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "play.toml").write_text('[[step]]\nfault = "usage_limit"\nresets_at = 1800000000\n')
    words = ("try", "--script", "play.toml", "--prompt", "go", "--workspace", "work", *BOX)
    result = call(capsys, *words, code=1)
    assert (result["ok"], result["schema"], result["status"]) == (False, "proofbox.runtime_try/1", "failed")
    assert result["error"]["code"] == "RUNTIME_USAGE_LIMIT"
    assert result["error"]["retryable"] is True
    assert result["error"]["details"]["resets_at"] == 1800000000
    assert main(["runtime", *words]) == 1
    assert "RUNTIME_USAGE_LIMIT" in capsys.readouterr().out


@pytest.mark.needs("bubblewrap")
def test_process_runtime_runs_a_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("try", "--strategy", "process!", "--prompt", "hello", "--workspace", "work", *BOX)
    result = call(capsys, *words, "--command", "sh -c 'cat; echo; pwd > where'", "--set", "output=plain")
    assert result["final_message"] == "hello\n"
    assert (place / "work/where").exists()
    assert result["steps"][0]["kind"] == "turn"
    refused = call(capsys, *words, code=3)
    assert refused["error"]["code"] == "RUNTIME_STRATEGY_UNAVAILABLE"


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["--strategy", "nowhere"], 2, "RUNTIME_STRATEGY_UNSUPPORTED"),
        (["--strategy", "process!,scripted"], 3, "RUNTIME_STRATEGY_UNAVAILABLE"),
        (
            ["--strategy", "process", "--command", "true", "--require", "turn_steer"],
            3,
            "RUNTIME_CAPABILITY_UNSUPPORTED",
        ),
        (["--strategy", "a,,b"], 2, "PROOFBOX_USAGE"),
        (["--model", "m"], 2, "PROOFBOX_USAGE"),
        (["--set", "nothing"], 2, "PROOFBOX_USAGE"),
        (["--approval", "perhaps:x"], 2, "PROOFBOX_USAGE"),
        (["--timeout", "-1"], 2, "PROOFBOX_USAGE"),
        (["--env", "OPENAI_API_KEY=x"], 2, "RUNTIME_ENV_POLICY"),
        (["--script", "absent.toml"], 2, "PROOFBOX_USAGE"),
        (["--require", "flying"], 2, "PROOFBOX_USAGE"),
    ],
)
def test_invalid_flags_of_an_attempt_are_explained(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], exit_code: int, code: str
) -> None:
    result = call(capsys, "try", "--prompt", "x", "--workspace", "work", *words, code=exit_code)
    assert result["error"]["code"] == code
    assert result["error"]["fix_hints"]
    assert call(capsys, "try", "--workspace", "work", code=2)["error"]["code"] == "PROOFBOX_USAGE"


def test_runtime_list_shows_the_capability_matrix(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "list")
    found = {each["strategy"]: each for each in result["runtimes"]}
    assert {"process", "scripted"} <= set(found)
    assert len(found["scripted"]["capabilities"]) == 9
    assert found["scripted"]["capabilities"]["supports_thread_fork"] is True
    assert (found["process"]["available"], found["process"]["fix_hints"] != []) == (False, True)
    assert (result["chain"], result["chain_origin"]) == ("scripted", "default")
    assert main(["runtime", "list"]) == 0
    assert "thread_fork" in capsys.readouterr().out


@pytest.mark.needs("bubblewrap")
def test_runtime_check_runs_the_conformance_suite(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "check", "scripted", "--only", "turns.a-turn-runs-its-command", *BOX)
    assert (result["ok"], result["passed"], result["failed"]) == (True, 1, 0)
    assert main(["runtime", "check", "process", "--only", "threads", *BOX]) == 0
    assert "3 of 3 checks passed" in capsys.readouterr().out


@pytest.mark.needs("bubblewrap")
def test_progress_on_a_terminal_is_escaped(place: Path) -> None:
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "proofbox", "runtime", "try", "--script", "play.toml", "--prompt", "go"]
    child = subprocess.Popen([*argv, "--workspace", "work", *BOX], stdout=slave, stderr=slave, stdin=slave, cwd=place)
    os.close(slave)
    seen = b""
    try:
        while piece := os.read(master, 4096):
            seen += piece
    except OSError:  # end of file on a terminal
        pass
    assert child.wait(60) == 0
    os.close(master)
    assert b"cat answer.txt; exit 3" in seen
    assert b"exit 3" in seen
    assert b"\x1b" not in seen


def to_the_process(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGINT)


def to_another_thread(child: subprocess.Popen[bytes]) -> None:
    """Send SIGINT to a thread that is not the main one: the kernel may choose any thread."""
    thread = next(int(name) for name in os.listdir(f"/proc/{child.pid}/task") if int(name) != child.pid)
    assert ctypes.CDLL(None).tgkill(child.pid, thread, signal.SIGINT) == 0


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("interrupt", [to_the_process, to_another_thread])
def test_ctrl_c_ends_the_agent_and_writes_the_record(
    place: Path, interrupt: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    (place / "play.toml").write_text('[[step]]\ntool = "run_command"\nargs = { command = "echo > up; sleep 304" }\n')
    argv = [sys.executable, "-m", "proofbox", "runtime", "try", "--script", "play.toml", "--prompt", "go", "--out", "r"]
    child = subprocess.Popen([*argv, "--workspace", "work", *BOX], cwd=place)
    end = time.monotonic() + 60
    while not (place / "work/up").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert (place / "work/up").exists()
    interrupt(child)
    assert child.wait(60) == 130
    assert json.loads((place / "r/attempt.json").read_text())["reason"] == "interrupted"
    assert main(["validate", str(place / "r"), "--strict"]) == 0
