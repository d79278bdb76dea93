"""Tab completion in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from terminal import Terminal

from proofbox.cli import main


def script(shell: str, place: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    file = place / "_proofbox"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.needs("bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("proofbox sess", {"session"}), ("proofbox session st", {"start", "stop"}), ("proofbox exec --js", {"--json"})],
)
def test_bash(typed: str, offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("bash", tmp_path, capsys)
    words = typed.split()
    ask = f"source {file}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _proofbox; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "--norc", "-c", ask], capture_output=True, text=True, timeout=60)
    assert (set(done.stdout.split()), done.stderr) == (offered, "")


@pytest.mark.needs("fish")
def test_fish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("fish", tmp_path, capsys)
    ask = f"source {file}; complete -C 'proofbox session st'"
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["fish", "--no-config", "-c", ask], capture_output=True, text=True, timeout=60, env=env)
    assert {line.partition("\t")[0] for line in done.stdout.splitlines()} == {"start", "stop"}, done.stderr


@pytest.mark.needs("zsh")
def test_zsh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script("zsh", tmp_path, capsys)
    terminal = Terminal(["-f", "-i"], tmp_path, program=[shutil.which("zsh") or "zsh"])
    try:
        terminal.type(
            f"PS1='ready> '; fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; echo $((6*7))\n"
        )
        terminal.wait_for("42", 60.0)  # the result, not the typed command
        terminal.wait_for("ready> ")
        terminal.type("proofbox session st\t\t")
        terminal.wait_for("start", 60.0)
        terminal.wait_for("stop")
        terminal.type("\x15proofbox exec --acces\t")
        terminal.wait_for("exec --access")
        terminal.type(" o\t")
        terminal.wait_for("verlay")
        terminal.type("\x15exit\n")  # Ctrl-U clears the line
        terminal.end()
    finally:
        os.close(terminal.fd)
