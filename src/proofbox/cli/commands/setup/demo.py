"""`demo`: the whole pipeline in a minute, without a key, a container engine or a network."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, show
from proofbox.cli.parameters import Parameter
from proofbox.core.interpreter import ChildInterpreter, module_child
from proofbox.core.text import require_utf8
from proofbox.errors import DemoFailed, ProofboxError

ANSWER_TIMEOUT = 30.0
BOLD, DIM, CYAN = "1", "2", "36"
HIGHLIGHTS = {  # the start of a line, and its colour
    "valid:": "32",
    "INVALID:": "31",
    "lie.1: claimed success but failed": "31",
    "+++": BOLD,
    "---": BOLD,
    "+": "32",
    "-": "31",
    "@@": CYAN,
}


class StepFacts(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.demo_step/1"
    what: str
    """What the step shows."""
    command: str
    exit_code: int


class DemoDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.demo/1"
    steps: tuple[StepFacts, ...]
    kept: str | None
    error: ErrorBody | None = None


def demo(
    *,
    codex: Annotated[bool, Parameter(name="--codex", help="Use the real Codex, with a built-in fake model.")] = False,
    keep: Annotated[Path | None, Parameter(name="--keep", help="Keep all files in this new directory.")] = None,
    json: flags.Json = False,
) -> int:
    """Show the whole pipeline: missions, evidence, a false claim, a flipped byte, a signature, a pull request.

    All files are deleted at the end, unless --keep names a directory.

    For example:
      proofbox demo
      proofbox demo --keep demo-1
    """
    if keep is not None and keep.exists():
        raise DemoFailed(f"{keep} already exists", op="demo", fix_hints=["choose a new directory: --keep DIR"])
    if keep is not None:
        require_utf8(keep.absolute(), "the directory to keep", "demo")
    with contextlib.ExitStack() as stack:
        if keep is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proofbox-demo-")))
        else:
            keep.mkdir(parents=True)
            place = keep.resolve()
        stage = DemoStage(place, quiet=json)
        error: ProofboxError | None = None
        try:
            play(stage, stack, codex=codex)
        except DemoFailed as failed:
            error = failed
        document = DemoDocument(
            ok=error is None,
            steps=tuple(stage.steps),
            kept=None if keep is None else str(place),
            error=None if error is None else ErrorBody.of(error),
        )
        show(document, lambda: _closing_text(document), as_json=json)
    return 0 if error is None else 1


class DemoStage:
    """Runs each step as a command line, and shows the command and its output."""

    def __init__(self, place: Path, *, quiet: bool) -> None:
        self.place = place
        self.steps: list[StepFacts] = []
        self._quiet = quiet
        self._at_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._in_colour = self._at_terminal and not os.environ.get("NO_COLOR")
        self.env = {**os.environ, "LC_ALL": "C.UTF-8"}
        for name in ("STATE", "CACHE", "CONFIG"):
            self.env[f"XDG_{name}_HOME"] = str(place / "home" / name.lower())

    def child(self, module: str, *words: str) -> ChildInterpreter:
        """Return how to start a proofbox module in the demo's directory."""
        return module_child(module, *words, cwd=self.place, env=self.env)

    def print_title(self, text: str) -> None:
        if not self._quiet:
            print("\n" + self._coloured(text, BOLD), flush=True)

    def run(self, what: str, *words: str, expected: int = 0) -> None:
        """Run one proofbox command. An unexpected exit code ends the demo."""
        if not self._quiet:
            print("$ " + self._coloured(folded(["proofbox", *words]), CYAN), flush=True)
        child = self.child("proofbox", *words)
        done = subprocess.run(
            child.argv,
            cwd=child.cwd,
            env=child.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if not self._quiet:
            for line in done.stdout.replace(f"{self.place}/", "").splitlines():
                colour = next((colour for start, colour in HIGHLIGHTS.items() if line.startswith(start)), None)
                for part in self._wrapped(line):
                    print(self._coloured(part, colour), flush=True)
            if done.returncode:
                print(self._coloured(f"(exit {done.returncode})", DIM), flush=True)
        ok = done.returncode == expected
        self.steps.append(
            StepFacts(ok=ok, what=what, command=shlex.join(["proofbox", *words]), exit_code=done.returncode)
        )
        if not ok:
            raise DemoFailed(
                f"{what}: exit code {done.returncode}, expected {expected}",
                op="demo",
                fix_hints=["see what works on this machine: proofbox doctor"],
            )

    def _wrapped(self, line: str) -> list[str]:
        """Wrap a long line between words if stdout is a terminal."""
        if not self._at_terminal or len(line) <= _width():
            return [line]
        return textwrap.wrap(line, _width(), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)

    def _coloured(self, text: str, colour: str | None) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._in_colour and colour else text


def folded(words: Sequence[str]) -> str:
    """Format a command line that can be copied, wrapped to the terminal's width, with each flag next to its value."""
    pieces: list[str] = []
    for word in map(shlex.quote, words):
        if pieces and pieces[-1].startswith("-") and " " not in pieces[-1] and not word.startswith("-"):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(f"$ {lines[-1]} {piece} \\") > _width():
            lines.append(f"    {piece}")
        else:
            lines[-1] += f" {piece}"
    return " \\\n".join(lines)


def _width() -> int:
    return max(40, shutil.get_terminal_size().columns)


def play(stage: DemoStage, stack: contextlib.ExitStack, *, codex: bool) -> None:
    place = stage.place
    for name in ("suite.toml", "model.toml", "app", "hidden"):
        with as_file(files("proofbox.cli") / "demo_files" / name) as source:
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, place / name)
    agent = ["--strategies", "scripted"]
    if codex:
        url = stack.enter_context(_serving(stage.child("proofbox.agents.fakemodel", "--rules", "model.toml")))
        agent = ["--strategies", "codex_app_server!", "--base-url", url, "--model", "fake-model"]

    stage.print_title("1. An agent in a box gets three missions: one succeeds, one lies, one hangs.")
    stage.run("missions", "suite", "run", "suite.toml", "--out", "out", "-n", "3", *agent, expected=1)
    stage.run("the lie", "attempt", "explain", "lie.1", "--run", "out")

    stage.print_title("2. The run left evidence that anyone can check, offline.")
    stage.run("verify", "verify", "out")
    run = (place / "out" / "LATEST").read_text().strip()
    attempt = f"out/{run}/attempts/fix.1.e1"
    shutil.copytree(place / "out", place / "copy")
    _flip(place / "copy" / run / "attempts/lie.1.e1/outcome.json")
    stage.print_title("   In a copy, one byte is flipped.")
    stage.run("a flipped byte is found", "verify", "copy", expected=1)

    stage.print_title("3. A verified attempt can be promoted: a signed packet pins it.")
    stage.run("key", "key", "new", "demo")
    packet = "fix.promotion.json"
    stage.run("promote", "promotion", "emit", attempt, "--require-promotable", "--sign", "demo", "--output", packet)
    stage.run("check the packet", "promotion", "verify", packet, "--key", "demo.pub")
    lie = attempt.replace("fix.1", "lie.1")
    stage.run("a lie is not promotable", "promotion", "emit", lie, "--require-promotable", expected=1)

    stage.print_title("4. Promoted code becomes a pull request; only the backend holds credentials.")
    stage.env["INTERNAL_API_KEY"] = secrets.token_urlsafe(24)
    port = _free_port()
    stage.env["MOZAIKS_BACKEND_URL"] = f"http://127.0.0.1:{port}"
    stack.enter_context(_backend(stage, port))
    app = ("--app-id", "slug")
    stage.run("first export", "deliver", "init", *app, "--source", "app", "--allow-unpromoted")
    stage.run("plan", "deliver", "plan", *app, "--source", attempt)
    stage.run("pull request", "deliver", "pr", *app, "--source", attempt, "--packet", packet, "--key", "demo.pub")


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@contextlib.contextmanager
def _serving(child: ChildInterpreter) -> Iterator[str]:
    """Run a server that prints its URL when it is ready, and yield the URL."""
    server = subprocess.Popen(child.argv, cwd=child.cwd, env=child.env, stdout=subprocess.PIPE, text=True)
    try:
        yield (server.stdout.readline() if server.stdout else "").strip()
    finally:
        server.terminate()
        server.communicate()


@contextlib.contextmanager
def _backend(stage: DemoStage, port: int) -> Iterator[None]:
    child = stage.child("proofbox", "backend", "serve", "--port", str(port), "--data", "backend")
    log = (stage.place / "backend.log").open("wb")
    with log:
        server = subprocess.Popen(child.argv, cwd=child.cwd, env=child.env, stdout=log, stderr=log)
        try:
            end = time.monotonic() + ANSWER_TIMEOUT
            while not _answers(port):
                if server.poll() is not None or time.monotonic() > end:
                    raise DemoFailed(
                        "the backend did not start",
                        op="demo",
                        fix_hints=["run with --keep DIR and read DIR/backend.log"],
                    )
                time.sleep(0.05)
            yield
        finally:
            server.terminate()
            server.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _closing_text(document: DemoDocument) -> str:
    if not document.ok:
        return f"\nThe demo failed: {document.error and document.error.message}"
    where = f"Everything is in {document.kept}." if document.kept else "All files were deleted; --keep DIR keeps them."
    shown = shlex.quote(document.kept) if document.kept else "DIR"
    return "\n".join(
        [
            "",
            where,
            "Next:",
            f"  proofbox view {shown:<22} the runs, the lie and the changed byte, in a browser",
            "  proofbox doctor                      what the sandboxes on this machine enforce",
            "  proofbox exec -- COMMAND             one command in a box",
            "  proofbox suite run suite.toml        your own missions (docs/lab.md)",
            "  proofbox runtime list                which agents can be used here",
        ]
    )
