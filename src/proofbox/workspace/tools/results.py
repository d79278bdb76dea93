"""The results of an agent's tools.

Each result has `text()`, the text for the model. It is bounded and contains no control characters. Do not parse it.
"""

from __future__ import annotations

import base64
from typing import Literal

import msgspec

from proofbox.core.plurals import counted
from proofbox.workspace.tools import rendering

EntryType = Literal["file", "directory", "symlink", "other"]


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all results. Convert to JSON with `msgspec.to_builtins`."""

    def text(self, limit: int = rendering.TEXT_LIMIT) -> str:
        """Return at most `limit` bytes of UTF-8 for the model, without control characters; the middle is cut first."""
        return rendering.bounded(self.words(), limit)

    def words(self) -> str:
        """Return the full text, neither bounded nor escaped."""
        raise NotImplementedError


class FileContent(ToolResult, frozen=True, kw_only=True):
    path: str
    content: str
    """The content as UTF-8. Invalid bytes are U+FFFD here and exact in `content_b64`."""
    content_b64: str | None = None
    size: int
    """Size of the whole file in bytes."""
    first_line: int = 1
    truncated: bool = False
    """Whether the file continues after `content`."""
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
    """One name in a listing. `path` is relative to the root."""

    path: str
    type: EntryType
    size: int = 0
    """Size of a file."""
    path_b64: str | None = None


class Listing(ToolResult, frozen=True, kw_only=True):
    """The entries of a directory, sorted by the bytes of their paths."""

    path: str
    entries: tuple[ListingEntry, ...]
    truncated: bool = False
    path_b64: str | None = None

    def words(self) -> str:
        lines = [entry.path + _MARKS[entry.type] for entry in self.entries]
        if self.truncated:
            lines.append("[more follows: list a subdirectory, or raise the limit]")
        return "\n".join(lines) or "[nothing]"


_MARKS = {"file": "", "directory": "/", "symlink": "@", "other": "|"}


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """One matching line. Lines are counted from 1 and cut to `rendering.LINE_LIMIT` characters."""

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    path_b64: str | None = None


class SearchResult(ToolResult, frozen=True, kw_only=True):
    """Matching lines, sorted by path and line."""

    pattern: str
    matches: tuple[Match, ...]
    truncated: bool = False
    """The limit was reached, so there may be more matches."""

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
    """The result of a command that was started, whether it succeeded or not."""

    command: tuple[str, ...]
    cwd: str
    exit_code: int
    """124 if it timed out, 128 + n if signal n killed it."""
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False
    """Only the head and the tail of an output stream were kept."""
    duration_ms: float = 0.0
    provider: str = ""
    isolation: str = ""
    stdout_sha256: str = ""
    """SHA-256 of the kept bytes."""
    stderr_sha256: str = ""
    background: bool = False
    """The command left processes behind that hold its output open."""
    reach: tuple[str, ...] = ()
    """What it could affect outside the workspace: `host` (no isolation), `network`, `mounts` (other writable ones)."""

    def words(self) -> str:
        parts = [part for part in (self.stdout, self.stderr and f"[stderr]\n{self.stderr}") if part]
        end = f"[timed out after {self.duration_ms / 1000:.1f} s]" if self.timed_out else f"[exit {self.exit_code}]"
        return "\n".join([*(part.removesuffix("\n") for part in parts), end])


class FileEdited(ToolResult, frozen=True, kw_only=True):
    path: str
    replacements: int
    size: int
    first_line: int
    """The line of the first replacement."""
    path_b64: str | None = None

    def words(self) -> str:
        return f"edited {self.path}: {counted(self.replacements, 'replacement')}, first in line {self.first_line}"


class PatchedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    kind: Literal["added", "modified", "deleted", "renamed"]
    old_path: str | None = None


class PatchApplied(ToolResult, frozen=True, kw_only=True):
    """The files of an applied patch. A patch changes all of its files or, with an error, none."""

    files: tuple[PatchedFile, ...]

    def words(self) -> str:
        return "\n".join(f"{f.kind} {f.path}" + (f" (was {f.old_path})" if f.old_path else "") for f in self.files)
