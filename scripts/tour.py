"""Runs the commands of a page in order, in one shell, in a temporary directory. The default page is README.md.

scripts/tour                    README's tour, with its output
scripts/tour docs/tutorial.md   another page
scripts/tour --check PAGE…      compare the output with the page, and exit 1 if they differ

`blocks.py` describes the page syntax. The directory contains one file, hello.txt. Each page has separate state, cache
and configuration directories. Port 3000 on a page is replaced by a free port, so that pages can run concurrently.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO, NamedTuple

from blocks import RUN_ELSEWHERE, Block, agrees, blocks, steps, tour_of

ROOT = Path(__file__).resolve().parent.parent
PORT = "3000"
MARK = "--- the next step ---"
PRELUDE = f"""exec 2>&1
mark() {{ status=$?; echo '{MARK}' $status; return $status; }}
"""
PATIENCE = 240.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/tour", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", nargs="*", type=Path, help="Markdown with console blocks; README.md unless named")
    parser.add_argument("--check", action="store_true", help="compare with the page and fail on a difference")
    options = parser.parse_args()
    if shutil.which("bwrap") is None:
        print("tour: it needs bubblewrap (Debian, Ubuntu: sudo apt-get install bubblewrap)", file=sys.stderr)
        return 1
    worst = 0
    for page in options.page or [ROOT / "README.md"]:
        text = page.read_text()
        with place() as (project, environment):
            done = check(page, text, project, environment) if options.check else walk(text, project, environment)
        worst = max(worst, done)
    return worst


@contextmanager
def place() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a temporary directory to run a page in, without the user's sessions and settings."""
    with tempfile.TemporaryDirectory(prefix="proofbox-tour-") as scratch:
        project = Path(scratch, "project")
        project.mkdir()
        (project / "hello.txt").write_text("hello\n")
        environment = {**os.environ, "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}", "LC_ALL": "C"}
        for name in ("STATE", "CACHE", "CONFIG"):
            environment[f"XDG_{name}_HOME"] = str(Path(scratch, name.lower()))
        try:
            yield project, environment
        finally:
            end = [str(ROOT / ".venv/bin/proofbox"), "session", "prune", "--all"]
            subprocess.run(end, env=environment, stdout=subprocess.DEVNULL, check=False)


def walk(text: str, project: Path, environment: dict[str, str]) -> int:
    """Run the page as one script, so that variables are kept between steps."""
    bold, dim, plain = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")
    lines = [PRELUDE]
    for block in blocks(tour_of(text)):
        lines.append(say(f"\n{dim}{re.sub(r'<!--.*?-->', '', block.prose, flags=re.DOTALL).strip()}{plain}\n"))
        for step in script(block):
            lines += [say(f"{bold}$ {step.command}{plain}"), step.run]
    lines.append(say(f"\n{dim}That's all. Next: proofbox --help, docs/, ./scripts/test{plain}"))
    return run_shell(lines, project, environment, None)


def run_shell(lines: list[str], project: Path, environment: dict[str, str], output: IO[str] | None) -> int:
    """Run a script in one shell, and kill the background processes that it leaves, such as a server."""
    shell = subprocess.Popen(
        ["sh", "-c", "\n".join(lines)],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,  # a file, not a pipe, because background processes may keep it open
        start_new_session=True,
    )
    try:
        return shell.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        print(f"tour: timed out after {PATIENCE:g} s", file=sys.stderr)
        return 124
    finally:
        end_group(shell)


def end_group(shell: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        end = time.monotonic() + seconds
        try:
            os.killpg(shell.pid, number)
            while time.monotonic() < end:
                shell.poll()
                os.killpg(shell.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            return


def check(page: Path, text: str, project: Path, environment: dict[str, str]) -> int:
    port = free_port()
    planned = [step for step in every_step(text) if not RUN_ELSEWHERE.match(step.command)]
    lines = [PRELUDE, *(line.replace(PORT, port) for step in planned for line in (step.run, "mark"))]
    with tempfile.TemporaryFile("w+", errors="replace") as heard:
        run_shell(lines, project, environment, heard)
        heard.seek(0)
        said = re.sub(rf"\b{port}\b", PORT, heard.read())
    came = re.split(rf"{MARK} (\d+)\n", said)
    # A page can't show that the last line has no newline.
    outputs = [output if output.endswith("\n") or not output else f"{output}\n" for output in came[:-1:2]]
    codes = came[1::2]
    differences = 0
    for step, output, code in zip(planned, outputs, codes, strict=False):
        # Otherwise a command that fails without output would match a page that shows no output.
        silent = code != "0" and not output
        if silent or (step.shown and not agrees(step.expected, output)) or (not step.shown and code != "0"):
            differences += 1
            print(f"$ {step.command}\n(exit code {code})")
            before, after = step.expected.splitlines(True), output.splitlines(True)
            sys.stdout.writelines(difflib.unified_diff(before, after, str(page), "now"))
    for step in planned[len(codes) :]:
        differences += 1
        print(f"$ {step.command}\n(not reached: the shell exited after printing {came[-1][-500:]!r})")
    print(f"tour: {page.name}: {len(planned)} steps, {differences} differ")
    return 1 if differences else 0


class Planned(NamedTuple):
    """One step of the script: its name on the page, the code to run, and the expected output."""

    command: str
    run: str
    expected: str
    shown: bool = True
    """Whether the page shows the output; if not, the step only has to succeed."""


def every_step(text: str) -> list[Planned]:
    found: list[Planned] = []
    imports: list[str] = []
    for block in blocks(text):
        if block.language == "python" and block.runs:
            found.append(python(block, imports))
            imports += [line for line in block.body.splitlines() if re.match(r"(?:import|from) ", line)]
        else:
            found += script(block)
    return found


def script(block: Block) -> list[Planned]:
    """Return shell code for a block: write a file, run commands, or nothing for other blocks."""
    if block.title is not None:
        directory = quote(os.path.dirname(block.title) or ".")
        return [Planned(f"(write {block.title})", f"mkdir -p {directory} && {put(block.body, block.title)}", "")]
    if block.language != "console" or not block.runs:
        return []
    return [Planned(step.command, step.command, step.expected) for step in steps(block.body)]


def python(block: Block, imports: list[str]) -> Planned:
    """Blocks run in order: imports of one block are available in the next."""
    source = "\n".join([*imports, block.body])
    return Planned(f"(python, line {block.line})", f"python3 -c {quote(source)}", "", shown=False)


def put(body: str, path: str) -> str:
    return f"printf '%s' {quote(body)} > {quote(path)}"


def say(text: str) -> str:
    return f"printf '%s\\n' {quote(text)}"


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
