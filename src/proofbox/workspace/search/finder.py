"""Search files: which files are searched, in which order, and what is returned.

All regular files below the given path are searched, except `.git`, files that the workspace ignores, files that `glob`
excludes, binary files (a NUL byte in the first 8 KiB), files larger than 16 MiB, and unreadable files. Links are not
followed. A file that is given itself is searched regardless of its name. `.gitignore` is not used: it lists files that
are not committed, which may still be relevant.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from proofbox.core.clock import Clock, SystemClock
from proofbox.errors import ArgumentsInvalid, SearchTimedOut
from proofbox.workspace.search.dialect import SearchPattern, compile_pattern
from proofbox.workspace.search.engines import SearchEngine, best_engine
from proofbox.workspace.search.globs import Glob
from proofbox.workspace.tools.rendering import one_line

MAX_FILE_SIZE = 16 * 1024 * 1024
DEADLINE = 30.0
NEVER_SEARCHED = ".git"
_BINARY_LOOK = 8192
_FIRST_BATCH, _LARGEST_BATCH = 1 << 18, 1 << 23
_FIRST_FILES = 100
"""The maximum number of files in the first batch, after which a pattern counts as common or rare."""
_SOON = 8
"""A pattern is common if the batches so far have at least this share of the wanted lines."""


class Search(NamedTuple):
    pattern: str
    glob: str | None = None
    max_matches: int = 200
    context: int = 0
    ignore_case: bool = False
    literal: bool = False
    deadline: float = DEADLINE


class SearchSource(Protocol):
    """The files to search. Paths are relative to the root."""

    top: str
    """The directory to search ('' for the root), or a single file."""
    directory: str | None
    """The root's path on the host, if it has one: lets an engine find candidates itself."""

    def files(self) -> Iterator[str]:
        """Yield every regular file below `top`, sorted by the bytes of its path, or the single file."""

    def included(self, path: str) -> bool:
        """Return whether `files` would yield this file, which an engine found."""

    def read(self, path: str, limit: int) -> bytes | None:
        """Return at most `limit` bytes, or None if the file can't be read."""


class MatchedLine(NamedTuple):
    path: str
    line: int
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class SearchHits(NamedTuple):
    lines: tuple[MatchedLine, ...]
    truncated: bool


def search(
    request: Search, source: SearchSource, engine: SearchEngine | None = None, clock: Clock | None = None
) -> SearchHits:
    """Search for matching lines. Raises PatternRefused, SearchTimedOut, and ArgumentsInvalid for an invalid glob."""
    pattern = compile_pattern(request.pattern, ignore_case=request.ignore_case, literal=request.literal)
    selected = _file_filter(request.glob, source.top)
    engine = engine or best_engine(source.directory)
    clock = clock or SystemClock()
    end = clock.monotonic() + request.deadline

    def remaining() -> float:
        seconds = end - clock.monotonic()
        if seconds <= 0:
            raise timed_out(request)
        return seconds

    lines: list[MatchedLine] = []
    batches = 0

    def is_common(walked: int) -> bool:
        """Return whether reading the files in order is likely to find enough lines soon."""
        return len(lines) * _SOON >= request.max_matches if batches else walked < _FIRST_FILES

    try:
        paths = _paths(engine, pattern, source, remaining, is_common)
        for batch in _batches(source, (path for path in paths if selected(path))):
            remaining()
            lines += _matches(engine, pattern, batch, request, request.max_matches + 1 - len(lines), remaining)
            batches += 1
            if len(lines) > request.max_matches:
                return SearchHits(tuple(lines[: request.max_matches]), True)
    except TimeoutError:
        raise timed_out(request) from None
    return SearchHits(tuple(lines), False)


def timed_out(request: Search) -> SearchTimedOut:
    return SearchTimedOut(
        f"the search timed out after {request.deadline:g} s",
        op="search_text",
    )


def _paths(
    engine: SearchEngine,
    pattern: SearchPattern,
    source: SearchSource,
    remaining: Callable[[], float],
    is_common: Callable[[int], bool],
) -> Iterator[str]:
    """Yield the files to read, in order. An engine that can find candidates is asked only if matches are rare.

    A common pattern has enough matches in the first files: looking for it in all of them would waste time.
    """
    files = source.files()
    if source.directory is not None:
        last = b""
        for walked, path in enumerate(files):
            if not is_common(walked):
                files = itertools.chain((path,), files)
                break
            last = os.fsencode(path)
            yield path
        else:
            return
        found = engine.candidates(pattern, source.directory, source.top, remaining())
        if found is not None:
            rest = sorted((os.fsencode(path), path) for path in found if source.included(path))
            files = (path for key, path in rest if key > last)
    yield from files


def _file_filter(glob: str | None, top: str) -> Callable[[str], bool]:
    if glob is None:
        return lambda _: True
    try:
        compiled = Glob(glob.removeprefix("/") if "/" in glob else f"**/{glob}")
    except ValueError as error:
        raise ArgumentsInvalid(f"invalid glob {glob[:200]!r}: {error}", op="search_text") from None
    prefix = f"{top}/" if top else ""
    return lambda path: compiled.matches(path.removeprefix(prefix)) or path == top


_Batch = list[tuple[str, bytes]]


def _batches(source: SearchSource, paths: Iterator[str]) -> Iterator[_Batch]:
    """Yield batches of growing size, so that early matches are found quickly."""
    room = _FIRST_BATCH
    batch: _Batch = []
    size = 0
    for path in paths:
        data = source.read(path, MAX_FILE_SIZE + 1)
        if data is None or len(data) > MAX_FILE_SIZE or not is_text(data):
            continue
        batch.append((path, data))
        size += len(data)
        if size >= room:
            yield batch
            batch, size, room = [], 0, min(2 * room, _LARGEST_BATCH)
    if batch:
        yield batch


def is_text(data: bytes) -> bool:
    """Return whether the content of a file can match: it is neither binary nor empty."""
    return bool(data) and b"\0" not in data[:_BINARY_LOOK]


def _lines_containing(literal: bytes, text: bytes, most: int) -> Iterator[int]:
    """Yield the numbers of the first `most` lines that contain `literal`, counted from 1."""
    number, at = 1, 0
    while most > 0 and (begin := text.find(literal, at)) >= 0:
        number += text.count(b"\n", at, begin)
        yield number
        at = text.index(b"\n", begin) + 1
        number += 1
        most -= 1


def _matches(
    engine: SearchEngine,
    pattern: SearchPattern,
    batch: _Batch,
    request: Search,
    most: int,
    remaining: Callable[[], float],
) -> Iterator[MatchedLine]:
    """Match all files of the batch as one text. The line number identifies the file."""
    text = b"".join(data if data.endswith(b"\n") else data + b"\n" for _, data in batch)
    literal = pattern.literal
    numbers = (
        engine.lines(pattern, text, most, remaining())
        if literal is None
        else list(_lines_containing(literal, text, most))
    )
    files = iter(batch)
    path, lines, begin, end = "", [b""], 0, 0
    for number in numbers:
        while number > end:
            path, data = next(files)
            begin, end = end, end + data.count(b"\n") + (not data.endswith(b"\n"))
            if number <= end:
                lines = data.removesuffix(b"\n").split(b"\n")
        at = number - begin - 1
        yield MatchedLine(
            path,
            at + 1,
            one_line(lines[at]),
            tuple(map(one_line, lines[max(0, at - request.context) : at])),
            tuple(map(one_line, lines[at + 1 : at + 1 + request.context])),
        )
