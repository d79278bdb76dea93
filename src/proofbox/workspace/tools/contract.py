"""The tools an agent has: nine methods, what each gives back, and what each may refuse.

A `ToolEnvironment` acts on one directory, its root. Paths are relative to it, with `/` between names; a path that
leads outside, by `..` or by a symbolic link, is refused. An absolute path is taken when it names something inside the
root as the environment itself would spell it (`root`). Names that are not UTF-8 come as Python gives them, with
surrogate escapes; in JSON they are `path` (escaped) and `path_b64`.

Every method is synchronous, may be called from many threads, and either gives a frozen result or raises a class of
`proofbox.errors`: never a result that means failure, never a string that has to be read to find out. A command that
ran is a result, however it ended.

Each result has `text()`: what a model is shown. It is bounded, it holds no control characters, and nothing should be
parsed from it.

Errors, besides those named at each method:

- `ToolPathRefused`: the path leads outside, or can't be one.
- `CapabilityDenied`: a capability says no, about what was really opened.
- `FileAbsent`, `FileKindRefused`: nothing is there, or something that is no file (no directory, for listings).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from proofbox.core.words import counted
from proofbox.workspace.tools import rendering

READ_LIMIT = 256 * 1024
"""Bytes of a file that one `read_file` gives, unless told otherwise."""
LARGEST_FILE = 16 * 1024 * 1024
"""A file that is edited, patched, written or searched is held in memory: no larger one is."""
LISTING_LIMIT = 10_000
MATCH_LIMIT = 200
COMMAND_TIMEOUT = 120.0
OUTPUT_LIMIT = 1024 * 1024

EntryType = Literal["file", "directory", "symlink", "other"]


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What every result has. JSON-ready by `msgspec.to_builtins`."""

    def text(self, limit: int = rendering.TEXT_LIMIT) -> str:
        """For the model: at most `limit` bytes of UTF-8, without control characters; the middle is left out first."""
        return rendering.bounded(self.words(), limit)

    def words(self) -> str:
        """The whole of what there is to say, neither bounded nor safe to show."""
        raise NotImplementedError


class FileContent(ToolResult, frozen=True, kw_only=True):
    path: str
    content: str
    """UTF-8; bytes that are none are U+FFFD here and exact in `content_b64`."""
    content_b64: str | None = None
    size: int
    """Bytes of the whole file."""
    first_line: int = 1
    truncated: bool = False
    """There is more after `content`."""
    path_b64: str | None = None

    @property
    def data(self) -> bytes:
        return self.content.encode() if self.content_b64 is None else base64.b64decode(self.content_b64)

    def words(self) -> str:
        more = f"\n[more follows: the file has {self.size} bytes]" if self.truncated else ""
        return self.content + more


class FileWritten(ToolResult, frozen=True, kw_only=True):
    path: str
    size: int
    created: bool
    path_b64: str | None = None

    def words(self) -> str:
        return f"{'created' if self.created else 'wrote'} {self.path} ({self.size} bytes)"


class FileRemoved(ToolResult, frozen=True, kw_only=True):
    path: str
    path_b64: str | None = None

    def words(self) -> str:
        return f"removed {self.path}"


class ListingEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One name in a listing. `path` is from the root."""

    path: str
    type: EntryType
    size: int = 0
    """Of a file."""
    path_b64: str | None = None


class Listing(ToolResult, frozen=True, kw_only=True):
    """Sorted by path, as bytes."""

    path: str
    entries: tuple[ListingEntry, ...]
    truncated: bool = False
    path_b64: str | None = None

    def words(self) -> str:
        lines = [entry.path + _MARKS[entry.type] for entry in self.entries]
        if self.truncated:
            lines.append("[more follows: list a directory below, or raise the limit]")
        return "\n".join(lines) or "[nothing]"


_MARKS = {"file": "", "directory": "/", "symlink": "@", "other": "|"}


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line that matches; lines are counted from 1 and cut to `rendering.LINE_LIMIT` characters."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    path_b64: str | None = None


class SearchResult(ToolResult, frozen=True, kw_only=True):
    """Sorted by path, then line."""

    pattern: str
    matches: tuple[Match, ...]
    truncated: bool = False
    """The limit was reached: there may be more."""

    def words(self) -> str:
        lines: list[str] = []
        for match in self.matches:
            first = match.line - len(match.before)
            lines += [f"{match.path}-{first + n}-{text}" for n, text in enumerate(match.before)]
            lines.append(f"{match.path}:{match.line}:{match.text}")
            lines += [f"{match.path}-{match.line + 1 + n}-{text}" for n, text in enumerate(match.after)]
            if match.before or match.after:
                lines.append("--")
        if self.truncated:
            lines.append("[more follows: narrow the pattern, path or glob]")
        return "\n".join(lines) or "[no match]"


class CommandResult(ToolResult, frozen=True, kw_only=True):
    """What a command did. It is a result when the command ran at all, however it ended."""

    command: tuple[str, ...]
    cwd: str
    exit_code: int
    """124 when it timed out, 128 + n when signal n ended it."""
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False
    """Of a stream only the head and the tail were kept."""
    duration_ms: float = 0.0
    provider: str = ""
    isolation: str = ""
    stdout_sha256: str = ""
    """Of the bytes that were kept."""
    stderr_sha256: str = ""
    background: bool = False
    """It left processes behind that hold its output open."""
    reach: tuple[str, ...] = ()
    """What it could touch besides the workspace: `host` (no isolation), `network`, `mounts` (others, writable)."""

    def words(self) -> str:
        parts = [part for part in (self.stdout, self.stderr and f"[stderr]\n{self.stderr}") if part]
        end = f"[timed out after {self.duration_ms / 1000:.1f} s]" if self.timed_out else f"[exit {self.exit_code}]"
        return "\n".join([*(part.removesuffix("\n") for part in parts), end])


class FileEdited(ToolResult, frozen=True, kw_only=True):
    path: str
    replacements: int
    size: int
    first_line: int
    """Where the first replacement begins."""
    path_b64: str | None = None

    def words(self) -> str:
        return f"edited {self.path} in {counted(self.replacements, 'place')}, from line {self.first_line}"


class PatchedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    kind: Literal["added", "modified", "deleted", "renamed"]
    old_path: str | None = None


class PatchApplied(ToolResult, frozen=True, kw_only=True):
    """Every file of the patch: all of them were changed, or (an error) none."""

    files: tuple[PatchedFile, ...]

    def words(self) -> str:
        return "\n".join(f"{f.kind} {f.path}" + (f" (was {f.old_path})" if f.old_path else "") for f in self.files)


@runtime_checkable
class ToolEnvironment(Protocol):
    """What an agent's tools act through. Wrap one in another to add to what it does (`middleware.py`)."""

    @property
    def root(self) -> str:
        """The root as commands and absolute paths spell it."""

    def read_file(
        self, path: str, *, first_line: int = 1, max_lines: int | None = None, max_bytes: int = READ_LIMIT
    ) -> FileContent:
        """A file's content from a line on. Whole lines, unless one alone is over `max_bytes`."""

    def write_file(self, path: str, content: str | bytes, *, executable: bool | None = None) -> FileWritten:
        """Make a file's content this, and its directories as need be. Readers see the old or the new content.

        The mode stays what it was; `executable` changes that part of it. Raises FileTooLarge.
        """

    def remove_file(self, path: str) -> FileRemoved:
        """Remove a file or a symbolic link (never what it leads to)."""

    def list_directory(self, path: str = ".") -> Listing:
        """What is in a directory. Symbolic links are listed as such."""

    def list_files_recursive(self, path: str = ".", *, depth: int = 32, max_entries: int = LISTING_LIMIT) -> Listing:
        """Every file and link below a directory, `depth` directories deep; no link is followed."""

    def search_text(
        self,
        pattern: str,
        path: str = ".",
        *,
        glob: str | None = None,
        max_matches: int = MATCH_LIMIT,
        context: int = 0,
        ignore_case: bool = False,
        literal: bool = False,
    ) -> SearchResult:
        """The lines that match, in a file or every file below a directory; `search/dialect.py` has the patterns.

        `glob` chooses files: without a slash by name, with one by the path from `path`. Raises PatternRefused,
        SearchTimedOut.
        """

    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str = ".",
        timeout: float = COMMAND_TIMEOUT,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        max_output: int = OUTPUT_LIMIT,
    ) -> CommandResult:
        """Run a program, or (a string) `sh -c` with it. Raises CommandsUnavailable and the errors of a sandbox."""

    def edit_file(self, path: str, old: str, new: str, *, replace_all: bool = False) -> FileEdited:
        """Put `new` where `old` is: exactly that text, exactly once, or everywhere with `replace_all`.

        Raises EditRefused when it is not there, or there more than once; FileTooLarge.
        """

    def apply_patch(self, patch: str) -> PatchApplied:
        """Apply a unified diff (as `git diff` writes it) to every file it names, or to none.

        Every line of context must be what the patch says it is. Raises PatchRefused, FileTooLarge.
        """
