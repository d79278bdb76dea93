"""`exec` and `suite run` reach the box agent, and commit evidence, through the modules that ARCHITECTURE.md lists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORDER = str(ROOT / "tests" / "hops.py")
PROGRAM = f"""\
exec(compile(open({RECORDER!r}).read(), {RECORDER!r}, "exec"), {{"__file__": {RECORDER!r}}})
import sys
from proofbox.cli import main
sys.exit(main(sys.argv[1:]))
"""
SUITE = """\
[suite]
id = "hops"

[[mission]]
id = "greet"
prompt = "Write a greeting."
verify = { commands = ["test -s greeting.txt"] }
script.step = [{ tool = "run_command", args = { command = "echo hello >greeting.txt" } }]
"""
ROW = re.compile(r"^\| `(exec|suite run)` \| ([^|]+) \| (\d+) \| \d+ \| `([^`]+)` \|$", re.MULTILINE)


def listed(command: str) -> set[tuple[str, ...]]:
    rows = [row for row in ROW.findall((ROOT / "ARCHITECTURE.md").read_text()) if row[0] == command]
    for _, purpose, hops, modules in rows:
        assert modules.count(" → ") == int(hops), purpose
    return {tuple(modules.split(" → ")) for _, _, _, modules in rows}


def taken(directory: Path, *argv: str) -> set[tuple[str, ...]]:
    """Run a command of proofbox and return the chains of modules through which it reached the targets."""
    record = directory / "hops"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv],
        cwd=directory,
        env={**os.environ, "HOPS_FILE": str(record)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {tuple(json.loads(line)) for line in record.read_text().splitlines()}


def test_exec_takes_the_listed_path(tmp_path: Path) -> None:
    assert taken(tmp_path, "exec", "--provider", "off", "--", "true") == listed("exec")


def test_suite_run_takes_the_listed_paths(tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    line = ("suite", "run", "suite.toml", "--strategies", "scripted", "--provider", "off", "--trust")
    assert taken(tmp_path, *line) == listed("suite run")


@pytest.mark.parametrize("command", ["exec", "suite run"])
def test_no_listed_path_passes_a_module_twice(command: str) -> None:
    paths = listed(command)
    assert paths
    for path in paths:
        assert len(set(path)) == len(path)
