"""Who matches: ripgrep, or Python in a process of its own that can be killed.

Both are given text on stdin and say which lines match. ripgrep can also be let loose on a directory to say which files
may be worth reading: what it says is a hint, for it opens files by name, and a name may lead elsewhere a moment later.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

from proofbox.core.interpreter import script_child
from proofbox.errors import ToolError
from proofbox.workspace.search.dialect import SearchPattern

_WORKER = Path(__file__).with_name("worker.py")
_RIPGREP = (
    *("--no-config", "--color=never", "--no-ignore", "--hidden", "--no-messages", "--text", "--encoding=none"),
    *("--no-mmap", "--no-heading", "--case-sensitive", "--engine=default"),
)
_SEARCHED = 0, 1  # found, and not found


class SearchEngine(Protocol):
    name: str

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:
        """Files below `top` that may match, by their paths from `directory`, in any order, or None if it can't say.

        May name too many. Raises TimeoutError.
        """

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        """The first `most` lines that match, counted from 1. Raises TimeoutError."""


class RipgrepEngine:
    """Its own engine takes linear time, whatever the pattern."""

    name = "ripgrep"

    def __init__(self, program: str, patience: float = 10.0) -> None:
        self._program = program
        self._patience = patience

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:
        # Only to save time, and only where it does: what is called .git is left out afterwards anyway.
        git = ["--glob=!.git"] if os.path.isdir(os.path.join(directory, top, ".git")) else []
        options = ["--files-with-matches", "--null", *git]
        place = ["--", f"./{top}"]
        # So are files that are too large. Asking for the size of each costs a fifth of all: only when it drags on.
        patience = min(self._patience, seconds / 2)
        try:
            done = self._run(pattern, [*options, *place], patience, directory=directory)
        except TimeoutError:
            sized = [*options, "--max-filesize=16M", *place]
            done = self._run(pattern, sized, seconds - patience, directory=directory)
        # Status 2 is also for files that could not be read: only what it says on stderr tells them from a real failure.
        if done.returncode not in _SEARCHED and done.stderr:
            return None
        return [os.fsdecode(os.path.normpath(path)) for path in done.stdout.split(b"\0") if path]

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        options = ["--line-number", f"--max-count={most}", "--max-columns=1", "-"]
        done = self._run(pattern, options, seconds, text=text)
        if done.returncode not in _SEARCHED:
            raise ToolError(f"ripgrep failed: {done.stderr[-500:].decode(errors='replace')}", op="search_text")
        return [int(line.partition(b":")[0]) for line in done.stdout.splitlines()]

    def _run(
        self, pattern: SearchPattern, options: list[str], seconds: float, *, directory: str = "/", text: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                [self._program, *_RIPGREP, f"--regexp={pattern.rust}", *options],
                input=text,
                capture_output=True,
                cwd=directory,
                env={},
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError from None


class PythonEngine:
    """Python's own patterns, which may take exponential time: so in a process that is killed when its time is over."""

    name = "python"

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:  # noqa: ARG002
        return None

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        head = f"{most} {pattern.python}\n".encode("ascii")
        child = script_child(_WORKER)
        try:
            done = subprocess.run(
                child.argv,
                input=head + text,
                capture_output=True,
                cwd=child.cwd,
                env=child.env,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if done.returncode != 0:
            raise ToolError(f"the search failed: {done.stderr[-500:].decode(errors='replace')}", op="search_text")
        return [int(number) for number in done.stdout.split()]


def best_engine(root: str | None = None) -> SearchEngine:
    """Return ripgrep if it is on PATH and outside of `root`, else Python.

    The files below `root` may be an agent's: a program among them is not run on the host.
    """
    found = _ripgrep(os.environ.get("PATH"))
    if found is None or (root is not None and _is_below(found, os.path.realpath(root))):
        return PythonEngine()
    return RipgrepEngine(found)


def _is_below(program: str, root: str) -> bool:
    places = (os.path.realpath(program), os.path.realpath(os.path.dirname(program)))
    return any(os.path.commonpath((place, root)) == root for place in places)


@functools.lru_cache(maxsize=8)
def _ripgrep(path: str | None) -> str | None:
    found = shutil.which("rg", path=path)
    return None if found is None else os.path.abspath(found)
