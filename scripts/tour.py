"""Runs the tour of README.md: every `$` line between its markers, in order, in one shell, with its text in between.

scripts/tour            as a person watches it
scripts/tour --check    compare what came out with what README says, and exit 1 where they differ
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TOUR = re.compile(r"<!-- tour -->\n(.*?)<!-- /tour -->", re.DOTALL)
BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)


class Step(NamedTuple):
    command: str
    expected: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/tour", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with README and fail on a difference")
    options = parser.parse_args()
    if shutil.which("bwrap") is None:
        print("tour: it needs bubblewrap (Debian, Ubuntu: sudo apt-get install bubblewrap)", file=sys.stderr)
        return 1
    found = TOUR.search((ROOT / "README.md").read_text())
    if found is None:
        print("tour: README.md has no tour", file=sys.stderr)
        return 1
    # Not in a directory that the box hides (its own /tmp is private), nor with the user's own sessions.
    with tempfile.TemporaryDirectory(prefix="proofbox-tour-") as scratch:
        project = Path(scratch, "project")
        project.mkdir()
        (project / "hello.txt").write_text("hello\n")
        environment = {**os.environ, "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}", "LC_ALL": "C"}
        for name in ("STATE", "CACHE", "CONFIG"):
            environment[f"XDG_{name}_HOME"] = str(Path(scratch, name.lower()))
        try:
            return check(found[1], project, environment) if options.check else walk(found[1], project, environment)
        finally:
            end = [str(ROOT / ".venv/bin/proofbox"), "session", "prune", "--all"]
            subprocess.run(end, env=environment, stdout=subprocess.DEVNULL, check=False)


def walk(text: str, project: Path, environment: dict[str, str]) -> int:
    """The whole tour as one script, so that a variable of one step is there in the next."""
    bold, dim, plain = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")
    lines = ["exec 2>&1"]
    at = 0
    for block in BLOCK.finditer(text):
        lines.append(say(f"\n{dim}{text[at : block.start()].strip()}{plain}\n"))
        for step in steps(block[1]):
            lines += [say(f"{bold}$ {step.command}{plain}"), step.command]
        at = block.end()
    lines.append(say(f"\n{dim}That was README's tour. Next: proofbox --help, docs/, ./scripts/test{plain}"))
    return subprocess.run(["sh", "-c", "\n".join(lines)], cwd=project, env=environment, check=False).returncode


def check(text: str, project: Path, environment: dict[str, str]) -> int:
    mark = "--- the next step ---"
    all_steps = [step for block in BLOCK.finditer(text) for step in steps(block[1])]
    lines = ["exec 2>&1", *(line for step in all_steps for line in (step.command, f"echo '{mark}'"))]
    done = subprocess.run(
        ["sh", "-c", "\n".join(lines)], cwd=project, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    outputs = done.stdout.split(f"{mark}\n")[:-1]
    differences = 0
    for step, output in zip(all_steps, outputs, strict=True):
        if output != step.expected:
            differences += 1
            print(f"$ {step.command}")
            sys.stdout.writelines(
                difflib.unified_diff(step.expected.splitlines(True), output.splitlines(True), "README", "now")
            )
    print(f"tour: {len(all_steps)} steps, {differences} differ from README")
    return 1 if differences else 0


def steps(block: str) -> list[Step]:
    found: list[Step] = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        commands = [lines.pop(0)]
        while lines and lines[0].startswith("> "):  # a command that goes on
            commands.append(lines.pop(0)[2:])
        found.append(Step("".join(commands).rstrip("\n"), "".join(lines)))
    return found


def say(text: str) -> str:
    quoted = text.replace("'", "'\\''")
    return f"printf '%s\\n' '{quoted}'"


if __name__ == "__main__":
    sys.exit(main())
