"""`up` at a real terminal, `init`, and `doctor`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import fake_engine
from terminal import Terminal

from proofbox.cli import main
from proofbox.core.dirs import state_dir
from proofbox.lab.run.limiter import Limiter
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.images.imports import import_image


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("PS1", "ready> ")
    found = Terminal(["up", "--provider", "bubblewrap", "--", "sh", "-i"], tmp_path)
    yield found
    os.close(found.fd)


@pytest.mark.needs("bubblewrap")
def test_up_is_a_real_terminal(terminal: Terminal) -> None:
    terminal.wait_for("$ ")
    terminal.type("stty size; tty; id -un\n")
    terminal.wait_for("30 90")
    terminal.wait_for("/dev/pts/")
    terminal.wait_for("box\r\n")
    terminal.resize(41, 101)
    terminal.type("until stty size | grep 41; do :; done\n")  # the new size takes a moment to arrive
    terminal.wait_for("41 101")
    terminal.type("echo go-$((3+3)); sleep 600; echo never-$((1+1))\n")
    terminal.wait_for("go-6")
    terminal.press_until("\x03", "$ ")
    terminal.type("echo after-$((2+2))\n")
    terminal.wait_for("after-4")
    terminal.type("sleep 600 &\njobs\n")
    terminal.wait_for("Running")
    terminal.type("exit 7\n")
    assert terminal.end() == 7


@pytest.mark.needs("bubblewrap")
def test_up_without_a_terminal_passes_bytes_through(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "proofbox", "up", "--provider", "bubblewrap", "--", "cat"]
    data = bytes(range(256)) * 10_000
    done = subprocess.run(words, input=data, capture_output=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == data


def test_the_terminal_is_restored_after_a_failure(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        words = [sys.executable, "-m", "proofbox", "up", "--provider", "off", "--", "no-such-command"]
        done = subprocess.run(words, stdin=slave, stdout=slave, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60)
        assert done.returncode == 127
        assert b"SANDBOX_COMMAND_NOT_FOUND" in done.stderr
        assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)


def test_init_writes_settings_and_refuses_to_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "project"
    project.mkdir()
    words = ["init", "--project", str(project), "--provider", "off", "--memory", "256", "--env", "CI", "--env", "TERM"]
    assert main(words) == 0
    assert 'env = ["CI","TERM"]' in (project / ".proofbox/config.toml").read_text()
    assert main(words) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*words, "--force", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["memory"] == 256
    assert main(["init", "--project", str(project), "--provider", "nonsense", "--force"]) == 2
    (project / ".proofbox/config.toml").write_text('provider = "off"\n')
    assert main(["exec", "--project", str(project), "--", "true"]) == 125
    assert main(["init", "--project", str(project), "--trust"]) == 0
    assert main(["exec", "--project", str(project), "--", "true"]) == 0


@pytest.mark.parametrize(
    ("answers", "code", "written"),
    [
        (["", "", "", "", "", "", "", ""], 0, "# Defaults"),
        (["off", "", "ro", "1.5", "256", "", "CI TERM", ""], 0, 'cpus = 1.5\nmemory = 256\nenv = ["CI","TERM"]'),
        (["", "", "sometimes", "", "", "", "", ""], 2, None),
        (["", "", "", "", "much", "", "", ""], 2, None),
    ],
)
def test_init_asks_at_a_terminal(tmp_path: Path, answers: list[str], code: int, written: str | None) -> None:
    master, slave = pty.openpty()
    try:
        os.write(master, "".join(f"{answer}\n" for answer in answers).encode())
        words = [sys.executable, "-m", "proofbox", "init"]
        done = subprocess.run(words, stdin=slave, capture_output=True, cwd=tmp_path, timeout=60)
        assert done.returncode == code, done.stderr
    finally:
        os.close(master)
        os.close(slave)
    file = tmp_path / ".proofbox/config.toml"
    assert written in file.read_text() if written is not None else not file.exists()


@pytest.mark.needs("bubblewrap")
def test_doctor_reports_and_stores_its_measurement(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    assert main(["doctor", "--quick", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert document["providers"]["bubblewrap"]["works"]["available"] is True
    assert {r["outcome"] for r in document["providers"]["bubblewrap"]["report"]["results"]} == {"passed"}
    assert document["providers"]["bubblewrap"]["exec_ms"] > 0
    assert document["providers"]["docker"]["works"]["available"] is False
    assert document["providers"]["docker"]["report"] is None
    assert not (state_dir() / "doctor.json").exists()  # quick results are not stored
    assert document["closed"] == []
    Limiter("https://model KEY", 1).usage_limited(9e11)
    assert main(["doctor", "--quick", "--provider", "off"]) == 0
    shown = capsys.readouterr().out
    assert "not enforced: network none, " in shown
    assert "usage limit (cut to 8 days: a later time was given): https://model KEY is not used until 2" in shown
    assert main(["doctor", "--quick", "--json", "--provider", "docker"]) == 1  # the requested provider is missing
    refused = json.loads(capsys.readouterr().out)
    assert (refused["ok"], refused["error"]["code"]) == (False, "SANDBOX_UNAVAILABLE")


@pytest.mark.needs("claude")
def test_doctor_finds_an_agent_that_lacks_only_its_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # other tests leave what they measured of this agent
    assert main(["doctor", "--quick", "--provider", "off"]) == 0
    [row] = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines() if line.startswith("claude_code ")]
    assert (row[1], row[3]) == ("yes", "yes")
    assert row[4].startswith("the variable ANTHROPIC_API_KEY is not set")


def test_doctor_lists_images_kernels_and_templates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "tree").mkdir()
    image = import_image(tmp_path / "tree", "tools")
    (images_dir() / "aa.template").mkdir()
    (images_dir() / f"{image.sha256}.tree").mkdir()
    with fake_engine(tmp_path / "engine") as engine:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
        engine.copies = [{"RepoTags": [f"proofbox-image/tools:{image.sha256}"], "Size": 2_000_000, "Created": 1}]
        assert main(["doctor", "--quick", "--provider", "off"]) == 0
        shown = capsys.readouterr().out
        assert main(["doctor", "--quick", "--provider", "off", "--json"]) == 0
    for line in (
        "the image tools\n",
        "the image tools, unpacked",
        "a template for virtual machines",
        "2.0 MB  the image tools, in the container engine",
    ):
        assert line in shown
    assert len(json.loads(capsys.readouterr().out)["images"]) == 4


def test_doctor_writes_its_report_to_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    assert main(["doctor", "--quick", "--provider", "off", "--report", str(place), "--json"]) == 0
    assert json.loads(place.read_bytes()) == json.loads(capsys.readouterr().out)
    assert main(["doctor", "--provider", "apple-vm", "--report", str(place)]) == 1
    written = json.loads(place.read_bytes())
    assert (written["ok"], list(written["providers"])) == (False, ["apple-vm"])
    assert "needs macOS" in written["error"]["message"]


def test_doctor_refuses_an_impossible_place_before_it_checks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", "--provider", "off", "--report", str(tmp_path / "missing/report.json"), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert "does not exist" in error["message"]
    assert error["fix_hints"] == [f"mkdir -p {tmp_path / 'missing'}"]
