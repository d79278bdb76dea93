"""The tools of an agent: nine requests, and the environment that answers them.

A `ToolEnvironment` works on one directory, its root. Paths are relative to it, with `/` as separator; a path that leads
outside, through `..` or a symbolic link, is refused. An absolute path is accepted if it is inside the root and starts
with the environment's own spelling of it (`root`). Names that are not UTF-8 are represented as in Python, with
surrogate escapes; in JSON they are `path` (escaped) and `path_b64`.

The class of a request defines a tool: its name, its description and its parameters, for function calling, MCP, the
layers and every environment alike. An environment answers a request with a frozen result (`results.py`), or raises a
class of `proofbox.errors`; calls are synchronous and thread-safe. A result never means failure, and no text has to be
parsed to detect one. A command that ran is a result, even if it failed.

Errors, besides those listed at each request:

- `ToolPathRefused`: the path leads outside, or is not a valid path.
- `CapabilityDenied`: the capabilities deny access to the resolved path.
- `FileAbsent`, `FileKindRefused`: the path does not exist, or is not a file (for listings: not a directory).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Meta

from proofbox.workspace.tools.results import (
    CommandResult,
    FileContent,
    FileEdited,
    FileRemoved,
    FileWritten,
    Listing,
    PatchApplied,
    SearchResult,
    ToolResult,
)

READ_LIMIT = 256 * 1024
"""Maximum number of bytes that one `read_file` returns."""
LARGEST_FILE = 16 * 1024 * 1024
"""Maximum size of a file that is edited, patched, written or searched, because it is held in memory."""
LISTING_LIMIT = 10_000
MATCH_LIMIT = 200
COMMAND_TIMEOUT = 120.0
OUTPUT_LIMIT = 1024 * 1024

Path = Annotated[str, Meta(description="A path inside the workspace, relative to its root.")]
Folder = Annotated[str, Meta(description="A directory inside the workspace, relative to its root.")]


R = TypeVar("R", bound=ToolResult)


class ToolRequest(msgspec.Struct, Generic[R], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of a tool that returns an `R`. The first line of a class's docstring is the tool's description."""

    tool: ClassVar[str]
    read_only: ClassVar[bool] = False


class ReadFile(ToolRequest[FileContent], frozen=True, kw_only=True):
    """Read a file of the workspace, completely or from a line on.

    Returns whole lines, unless a single line exceeds `READ_LIMIT`.
    """

    tool: ClassVar[str] = "read_file"
    read_only: ClassVar[bool] = True
    path: Path
    first_line: Annotated[int, Meta(ge=1, description="The first line to read, counted from 1.")] = 1
    max_lines: Annotated[int, Meta(ge=1, description="Maximum number of lines.")] | None = None


class WriteFile(ToolRequest[FileWritten], frozen=True, kw_only=True):
    """Create a file or replace its content. Creates missing directories.

    Atomic. The mode is kept, except that `executable` sets or clears the executable bits. Raises FileTooLarge.
    """

    tool: ClassVar[str] = "write_file"
    path: Path
    content: Annotated[str, Meta(description="The complete new content of the file.")]
    executable: Annotated[bool, Meta(description="Whether it is executable; unchanged if not given.")] | None = None


class RemoveFile(ToolRequest[FileRemoved], frozen=True, kw_only=True):
    """Remove a file or a symbolic link.

    Never removes the target of the link.
    """

    tool: ClassVar[str] = "remove_file"
    path: Path


class ListDirectory(ToolRequest[Listing], frozen=True, kw_only=True):
    """List the entries of a directory.

    Symbolic links are listed as links.
    """

    tool: ClassVar[str] = "list_directory"
    read_only: ClassVar[bool] = True
    path: Folder = "."


class ListFiles(ToolRequest[Listing], frozen=True, kw_only=True):
    """List every file below a directory.

    Links are listed, and not followed.
    """

    tool: ClassVar[str] = "list_files_recursive"
    read_only: ClassVar[bool] = True
    path: Folder = "."
    depth: Annotated[int, Meta(ge=1, description="Maximum depth of directories.")] = 32
    max_entries: Annotated[int, Meta(ge=1, le=10 * LISTING_LIMIT, description="Maximum number of entries.")] = 1000


class SearchText(ToolRequest[SearchResult], frozen=True, kw_only=True):
    """Find lines that match a pattern in one or more files.

    Patterns: `search/dialect.py`. `glob` selects files: without a slash by name, with a slash by the path relative to
    `path`. Raises PatternRefused, SearchTimedOut.
    """

    tool: ClassVar[str] = "search_text"
    read_only: ClassVar[bool] = True
    pattern: Annotated[
        str, Meta(description="A regular expression, matched line by line: no look-around, no back references.")
    ]
    path: Annotated[str, Meta(description="A directory or file to search.")] = "."
    glob: Annotated[str, Meta(description="Files to search: *.py by name, src/**/*.py by path.")] | None = None
    max_matches: Annotated[int, Meta(ge=1, le=LISTING_LIMIT, description="Maximum number of lines.")] = MATCH_LIMIT
    context: Annotated[int, Meta(ge=0, le=20, description="Lines to show before and after each match.")] = 0
    ignore_case: bool = False
    literal: Annotated[bool, Meta(description="Treat the pattern as plain text.")] = False


class RunCommand(ToolRequest[CommandResult], frozen=True, kw_only=True):
    """Run a command in the workspace's sandbox and return its output.

    Raises CommandsUnavailable and the errors of a sandbox.
    """

    tool: ClassVar[str] = "run_command"
    command: (
        Annotated[str, Meta(description="A shell command, run with sh.")]
        | Annotated[tuple[str, ...], Meta(min_length=1, description="A program and its arguments, without a shell.")]
    )
    cwd: Folder = "."
    timeout: Annotated[float, Meta(gt=0, le=3600, description="Timeout in seconds.")] = COMMAND_TIMEOUT
    env: Annotated[dict[str, str], Meta(description="Environment variables to set.")] | None = None
    stdin: Annotated[str, Meta(description="Text passed to its standard input.")] | None = None


class EditFile(ToolRequest[FileEdited], frozen=True, kw_only=True):
    """Replace an exact text in a file.

    Raises EditRefused if the text does not occur, or occurs more than once without `replace_all`, and FileTooLarge.
    """

    tool: ClassVar[str] = "edit_file"
    path: Path
    old: Annotated[str, Meta(min_length=1, description="The exact text to replace. It must occur exactly once.")]
    new: Annotated[str, Meta(description="The replacement text.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence.")] = False


class ApplyPatch(ToolRequest[PatchApplied], frozen=True, kw_only=True):
    """Apply a unified diff to one or more files: all of it, or nothing.

    Every context line must match exactly. Raises PatchRefused, FileTooLarge.
    """

    tool: ClassVar[str] = "apply_patch"
    patch: Annotated[str, Meta(min_length=1, description="A unified diff in the format of git diff.")]


class ToolEnvironment(ABC):
    """The interface of an agent's tools. Wrap an environment to add behaviour (`environments/layers.py`)."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The root's path as used in commands and absolute paths."""

    @abstractmethod
    def call(self, request: ToolRequest[R]) -> R:
        """Answer a request. The methods below are shorthands; their options are the fields of the request."""

    def read_file(self, path: str, **options: Any) -> FileContent:
        return self.call(ReadFile(path=path, **options))

    def write_file(self, path: str, content: str | bytes, **options: Any) -> FileWritten:
        """Write text, or any bytes."""
        text = content if isinstance(content, str) else content.decode("utf-8", "surrogateescape")
        return self.call(WriteFile(path=path, content=text, **options))

    def remove_file(self, path: str) -> FileRemoved:
        return self.call(RemoveFile(path=path))

    def list_directory(self, path: str = ".") -> Listing:
        return self.call(ListDirectory(path=path))

    def list_files_recursive(self, path: str = ".", **options: Any) -> Listing:
        return self.call(ListFiles(path=path, **{"max_entries": LISTING_LIMIT, **options}))

    def search_text(self, pattern: str, path: str = ".", **options: Any) -> SearchResult:
        return self.call(SearchText(pattern=pattern, path=path, **options))

    def run_command(self, command: str | Sequence[str], **options: Any) -> CommandResult:
        """Run a program, or a string with `sh -c`."""
        return self.call(RunCommand(command=command if isinstance(command, str) else tuple(command), **options))

    def edit_file(self, path: str, old: str, new: str, **options: Any) -> FileEdited:
        return self.call(EditFile(path=path, old=old, new=new, **options))

    def apply_patch(self, patch: str) -> PatchApplied:
        return self.call(ApplyPatch(patch=patch))
