"""The matching engines: ripgrep, or Python in a separate process that can be killed.

Both receive text on stdin and return the matching lines. ripgrep can also search a directory for candidate files. Its
answer is only a hint, because it opens files by name, and a name may point elsewhere a moment later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from proofbox.core.files.programs import is_inside, is_planted, locate_program
from proofbox.core.interpreter import script_child
from proofbox.errors import ToolError
from proofbox.workspace.search.dialect import SearchPattern

if TYPE_CHECKING:
    import subprocess

_WORKER = Path(__file__).with_name("worker.py")
_RIPGREP = (
    *("--no-config", "--color=never", "--no-ignore", "--hidden", "--no-messages", "--text", "--encoding=none"),
    *("--no-mmap", "--no-heading", "--case-sensitive", "--engine=default"),
)
_SEARCHED = 0, 1  # matches found, no matches
_OFFSET = re.compile(rb"^/proc/self/fd/([0-9]+)\0([0-9]+):", re.MULTILINE)


class SearchEngine(Protocol):
    name: str

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:
        """Return files below `top` that may match, as unordered paths relative to `directory`, or None if unknown.

        The list may contain files without a match. Raises TimeoutError.
        """

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        """Return the numbers of the first `most` matching lines, counted from 1. Raises TimeoutError."""

    def offsets(self, pattern: SearchPattern, files: list[int], most: int, seconds: float) -> list[list[int]] | None:
        """Return for each open file where its first `most` matching lines begin, or None if unknown.

        Raises TimeoutError.
        """


class RipgrepEngine:
    """ripgrep's default engine, which takes linear time for every pattern."""

    name = "ripgrep"

    def __init__(self, program: str, timeout: float = 10.0) -> None:
        self._program = program
        self._timeout = timeout

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:
        # These options only save time where that is easy: the caller excludes .git itself.
        git = ["--glob=!.git"] if os.path.isdir(os.path.join(directory, top, ".git")) else []
        options = ["--files-with-matches", "--null", *git]
        place = ["--", f"./{top}"]
        # The caller excludes large files as well. Checking each size costs 20 %, so do it only if the search is slow.
        timeout = min(self._timeout, seconds / 2)
        try:
            done = self._run(pattern, [*options, *place], timeout, directory=directory)
        except TimeoutError:
            sized = [*options, "--max-filesize=16M", *place]
            done = self._run(pattern, sized, seconds - timeout, directory=directory)
        # Exit code 2 also means unreadable files: only the output on stderr distinguishes them from a real failure.
        if done.returncode not in _SEARCHED and done.stderr:
            return None
        return [os.fsdecode(os.path.normpath(path)) for path in done.stdout.split(b"\0") if path]

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        options = ["--line-number", f"--max-count={most}", "--max-columns=1", "-"]
        done = self._run(pattern, options, seconds, text=text)
        if done.returncode not in _SEARCHED:
            raise ToolError(f"ripgrep failed: {done.stderr[-500:].decode(errors='replace')}", op="search_text")
        return [int(line.partition(b":")[0]) for line in done.stdout.splitlines()]

    def offsets(self, pattern: SearchPattern, files: list[int], most: int, seconds: float) -> list[list[int]] | None:
        # By a path, each file is read from its beginning, and ripgrep searches several at the same time.
        paths = [f"/proc/self/fd/{file}" for file in files]
        options = ["--with-filename", "--null", "--byte-offset", "--no-line-number", "--max-columns=1"]
        done = self._run(pattern, [*options, f"--max-count={most}", "--", *paths], seconds, files=files)
        if done.returncode not in _SEARCHED:
            return None
        found: dict[int, list[int]] = {file: [] for file in files}
        for file, offset in _OFFSET.findall(done.stdout):
            found[int(file)].append(int(offset))
        return list(found.values())

    def _run(
        self,
        pattern: SearchPattern,
        options: list[str],
        seconds: float,
        *,
        directory: str = "/",
        text: bytes = b"",
        files: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        import subprocess  # a slow import, and most commands search nothing

        try:
            return subprocess.run(
                [self._program, *_RIPGREP, f"--regexp={pattern.rust}", *options],
                input=text,
                capture_output=True,
                cwd=directory,
                env={},
                pass_fds=files,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError from None


class PythonEngine:
    """Python's regular expressions. They may take exponential time, so they run in a process killed at the timeout."""

    name = "python"

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:  # noqa: ARG002
        return None

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        import subprocess

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

    def offsets(self, pattern: SearchPattern, files: list[int], most: int, seconds: float) -> list[list[int]] | None:  # noqa: ARG002
        return None


def best_engine(root: str | None = None) -> SearchEngine:
    """Return ripgrep if it is on PATH and outside `root`, else Python.

    An agent may have written the files below `root`, so a program among them is never run on the host.
    """
    found = locate_program("rg")
    if found is None or is_planted(found) or (root is not None and is_inside(found, [Path(os.path.realpath(root))])):
        return PythonEngine()
    return RipgrepEngine(found)
