"""The eight tools that work on files, for any tree. `commands.py` has the ninth."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple, cast

from proofbox.core.text import path_fields, printable
from proofbox.errors import ArgumentsInvalid, FileAbsent, FileTooLarge, ProofboxError
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.search.engines import SearchEngine
from proofbox.workspace.search.finder import Search, search
from proofbox.workspace.search.indexed import IndexedEngine
from proofbox.workspace.tools.contract import (
    LARGEST_FILE,
    LISTING_LIMIT,
    READ_LIMIT,
    ApplyPatch,
    EditFile,
    ListDirectory,
    ListFiles,
    R,
    ReadFile,
    RemoveFile,
    SearchText,
    ToolEnvironment,
    ToolRequest,
    WriteFile,
)
from proofbox.workspace.tools.environments import edit
from proofbox.workspace.tools.environments.patch import FilePatch, apply_hunks, parse, refusal
from proofbox.workspace.tools.environments.search_source import TreeSource
from proofbox.workspace.tools.results import (
    FileContent,
    FileEdited,
    FileRemoved,
    FileWritten,
    Listing,
    ListingEntry,
    Match,
    PatchApplied,
    PatchedFile,
    SearchResult,
)
from proofbox.workspace.tools.tree import DirectoryItem, FileTree, below

MAX_OFFSET = 1 << 30
"""Maximum number of bytes to skip before the first line: a sparse file may be almost endless."""
_PIECE = 1 << 16


class FileTools(ToolEnvironment):
    """The file tools. A tool that reads and then writes holds a lock, so that concurrent edits are not lost."""

    def __init__(self, tree: FileTree, *, ignore: Ignore | None = None, engine: SearchEngine | None = None) -> None:
        self._tree = tree
        self._ignore = ignore or Ignore(())
        self._engine = IndexedEngine(tree.host, self._ignore, engine)
        self._changing = threading.RLock()

    @property
    def root(self) -> str:
        return self._tree.root

    def close(self) -> None:
        """Remove what searches have stored."""
        self._engine.close()

    def call(self, request: ToolRequest[R]) -> R:
        return cast("R", getattr(self, f"_{request.tool}")(request))

    def _read_file(self, request: ReadFile) -> FileContent:
        first_line, max_lines = request.first_line, request.max_lines
        _require(first_line >= 1 and (max_lines is None or max_lines >= 1), "first_line and max_lines must be positive")
        with self._tree.open(request.path) as found:
            data, truncated = _lines(found.stream, first_line, max_lines, READ_LIMIT)
        content = data.decode("utf-8", "replace")
        exact = None if content.encode() == data else base64.b64encode(data).decode("ascii")
        return FileContent(
            content=content,
            content_b64=exact,
            size=found.size,
            first_line=first_line,
            truncated=truncated,
            **path_fields(found.path),
        )

    def _write_file(self, request: WriteFile) -> FileWritten:
        data = _encoded(request.content)
        with self._changing:
            real, created = self._tree.write(request.path, data, request.executable)
        return FileWritten(size=len(data), created=created, **path_fields(real))

    def _remove_file(self, request: RemoveFile) -> FileRemoved:
        with self._changing:
            return FileRemoved(**path_fields(self._tree.remove(request.path)))

    def _list_directory(self, request: ListDirectory) -> Listing:
        real, items = self._tree.directory(request.path)
        entries = tuple(_entry(real, item) for item in items[:LISTING_LIMIT])
        return Listing(entries=entries, truncated=len(items) > LISTING_LIMIT, **path_fields(real or "."))

    def _list_files_recursive(self, request: ListFiles) -> Listing:
        depth, max_entries = request.depth, request.max_entries
        _require(depth >= 1 and 1 <= max_entries <= 10 * LISTING_LIMIT, "depth or max_entries is out of range")
        real, items = self._tree.directory(request.path)
        entries: list[ListingEntry] = []
        truncated = False
        for folder, item in below(self._tree, real, items, depth):
            if len(entries) == max_entries:
                truncated = True
                break
            entries.append(_entry(folder, item))
        return Listing(entries=tuple(entries), truncated=truncated, **path_fields(real or "."))

    def _search_text(self, request: SearchText) -> SearchResult:
        _require(1 <= request.max_matches <= LISTING_LIMIT, f"max_matches must be from 1 to {LISTING_LIMIT}")
        _require(0 <= request.context <= 20, "context must be from 0 to 20 lines")
        wanted = Search(
            request.pattern,
            glob=request.glob,
            max_matches=request.max_matches,
            context=request.context,
            ignore_case=request.ignore_case,
            literal=request.literal,
        )
        found = search(wanted, TreeSource(self._tree, request.path, self._ignore), self._engine)
        return SearchResult(
            pattern=request.pattern,
            matches=tuple(
                Match(line=each.line, text=each.text, before=each.before, after=each.after, **path_fields(each.path))
                for each in found.lines
            ),
            truncated=found.truncated,
        )

    def _edit_file(self, request: EditFile) -> FileEdited:
        old, new = _encoded(request.old), _encoded(request.new)
        with self._changing:
            data, _, real = self._read_whole(request.path)
            changed = edit.replace(data, old, new, path=real, everywhere=request.replace_all)
            self._tree.write(request.path, _encoded(changed.data), None)
        return FileEdited(
            replacements=changed.replacements,
            size=len(changed.data),
            first_line=changed.first_line,
            **path_fields(real),
        )

    def _apply_patch(self, request: ApplyPatch) -> PatchApplied:
        with self._changing:
            planned = [self._plan(each) for each in parse(request.patch)]
            places = [place for step in planned for place in step.places]
            if len(set(places)) != len(places):  # two spellings, or a link: each was planned without the other
                raise refusal("it names a file twice")
            self._carry_out(planned)
        return PatchApplied(files=tuple(step.summary for step in planned))

    # Internal

    def _read_whole(self, path: str) -> tuple[bytes, bool, str]:
        with self._tree.open(path) as found:
            data = found.stream.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise _too_large(found.size)
        return data, found.executable, found.path

    def _plan(self, each: FilePatch) -> _Step:
        """Return the planned change of one file, after all checks. Changes nothing yet."""
        before: bytes | None = None
        was_executable = False
        places = set()
        if each.old is not None:
            before, was_executable, real = self._read_whole(each.old)
            places.add(real)
        after: bytes | None = _encoded(apply_hunks(before or b"", each))
        if each.new is None:
            if after:
                raise refusal(f"the patch deletes {printable(str(each.old)[:200])}, but not all of its lines")
            after = None
        if each.new is not None:
            places.add(self._tree.check("write", each.new))
            if each.new != each.old and self._exists(each.new):
                raise refusal(f"{printable(each.new[:200])} already exists")
        if each.old is not None and each.old != each.new:
            self._tree.check("delete", each.old)
        executable = was_executable if each.executable is None else each.executable
        return _Step(each.old, each.new, before, was_executable, after, executable, frozenset(places))

    def _exists(self, path: str) -> bool:
        try:
            self._tree.is_file(path)
        except FileAbsent:
            return False
        return True

    def _carry_out(self, planned: Sequence[_Step]) -> None:
        done: list[_Step] = []
        try:
            for step in planned:
                done.append(step)
                if step.new is not None and step.after is not None:
                    self._tree.write(step.new, step.after, step.executable)
                if step.old is not None and step.old != step.new:
                    self._tree.remove(step.old)
        except ProofboxError:
            for step in reversed(done):
                self._undo(step)
            raise

    def _undo(self, step: _Step) -> None:
        with contextlib.suppress(ProofboxError):
            if step.old is not None and step.before is not None:
                self._tree.write(step.old, step.before, step.was_executable)
            if step.new is not None and step.new != step.old:
                self._tree.remove(step.new)


class _Step(NamedTuple):
    old: str | None
    new: str | None
    before: bytes | None
    was_executable: bool
    after: bytes | None
    executable: bool
    places: frozenset[str]
    """The resolved paths of its names."""

    @property
    def summary(self) -> PatchedFile:
        old, new = (None if name is None else path_fields(name)["path"] for name in (self.old, self.new))
        if new is None:
            return PatchedFile(str(old), "deleted")
        if old is None:
            return PatchedFile(new, "added")
        return PatchedFile(new, "modified") if old == new else PatchedFile(new, "renamed", old)


def _lines(stream: BinaryIO, first: int, most: int | None, room: int) -> tuple[bytes, bool]:
    """Return the lines from `first` on that fit, and whether more follow."""
    passed = 0
    for _ in range(first - 1):
        piece = b""
        while not piece.endswith(b"\n"):
            if passed > MAX_OFFSET:
                raise FileTooLarge(
                    f"line {first} is not within the first {MAX_OFFSET} bytes",
                    op="read_file",
                    details={"limit": MAX_OFFSET},
                )
            if not (piece := stream.readline(_PIECE)):
                return b"", False
            passed += len(piece)
    found: list[bytes] = []
    while most is None or len(found) < most:
        line = stream.readline(room + 1)
        if not line:
            return b"".join(found), False
        if len(line) > room:
            return (line[:room], True) if not found else (b"".join(found), True)
        found.append(line)
        room -= len(line)
    return b"".join(found), bool(stream.read(1))


def _entry(folder: str, item: DirectoryItem) -> ListingEntry:
    path = f"{folder}/{item.name}" if folder else item.name
    return ListingEntry(type=item.type, size=item.size, **path_fields(path))


def _encoded(content: str | bytes) -> bytes:
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ArgumentsInvalid("the text contains an unpaired surrogate", op="write_file") from None
    if len(data) > LARGEST_FILE:
        raise _too_large(len(data))
    return data


def _too_large(size: int) -> FileTooLarge:
    return FileTooLarge(
        f"{size} bytes exceed the limit of {LARGEST_FILE}",
        op="file",
        details={"size": size, "limit": LARGEST_FILE},
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ArgumentsInvalid(message, op="tool")
