"""The hash chain: the tamper-evident format of all append-only logs of proofbox.

Format `proofbox.chain/1`, specified completely so that others can implement it:

- A chain is a file of lines, each ended by one LF (0x0A). A line is the RFC 8785 canonical JSON of one object, at most
  16 MiB (2**24 bytes) without its LF and at most 128 levels deep. Canonical JSON holds no raw LF.
- Each object has the members `seq` and `prev`, which belong to the chain; all other members are the entry's payload.
- `seq` is the line's number, from 0, without gaps.
- `prev` is 64 lower-case hexadecimal digits: the SHA-256 of the previous line's bytes without its LF. On the first line
  it is the chain's origin, the SHA-256 of the canonical JSON `{"format":"proofbox.chain/1","name":NAME}`, where NAME is
  the chain's name. A chain under another name therefore doesn't verify.
- The head of a chain is the SHA-256 of its last line without its LF, or its origin while it is empty. The head commits
  to every byte before it.
- Bytes after the last LF are a torn line: an append that never finished. They are not part of the chain.

A chain by itself reveals edits, insertions, deletions and reordering before its last line. Truncating or rewriting its
end is detected only by comparison with a head (or count) recorded elsewhere, so later documents record the head. A
chain is not a signature: anyone who can write the file and all recorded heads can create another consistent chain.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from proofbox.core.canonical import (
    MAX_PARSED_TOGETHER,
    CanonicalError,
    canonical_bytes,
    encode_flat,
    parse_canonical,
    parse_lines,
    parse_strict,
)
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import declare
from proofbox.core.files.atomic import sync_directory
from proofbox.errors import CorruptError, UsageError

FORMAT = "proofbox.chain/1"
MAX_LINE_BYTES = 1 << 24
MAX_FINDINGS = 100

declare(
    FORMAT,
    at="every line of BUNDLE/*.jsonl, and of a workspace's effects.jsonl",
    meaning="The members that link a log line to its hash chain. All other members are the entry's payload.",
    shape={
        "type": "object",
        "properties": {
            "seq": {"type": "integer", "minimum": 0, "description": "The line's number, from 0, without gaps."},
            "prev": {
                "type": "string",
                "pattern": "^[0-9a-f]{64}$",
                "description": "The SHA-256 of the previous line; on the first line, the chain's origin.",
            },
        },
        "required": ["seq", "prev"],
    },
)

_ORIGIN = b'{"format":"%s","name":' % FORMAT.encode()
_BLOCK = 1 << 16
_Path = str | os.PathLike[str]
_datasync = getattr(os, "fdatasync", os.fsync)


def origin(name: str) -> str:
    """Return the `prev` of the first line of the chain called `name`, which is also its head while it is empty."""
    return hashlib.sha256(b"".join((_ORIGIN, canonical_bytes(name), b"}"))).hexdigest()


class TornTail(NamedTuple):
    """An unfinished last line that a writer removed: where it began, how long it was, and the SHA-256 of its bytes."""

    offset: int
    size: int
    sha256: str


class ChainFinding(NamedTuple):
    """One problem with a chain. `line` counts from 1; 0 means the chain as a whole.

    Codes: `unreadable`, `line_too_long`, `malformed` (not a canonical entry), `wrong_seq`, `wrong_prev`, `torn_tail`,
    `wrong_head`, `wrong_count`, and `more` if not all findings are listed.
    """

    line: int
    code: str
    message: str


class ChainReport(NamedTuple):
    """The result of `verify_chain`. `count` and `head` cover all complete lines, valid or not."""

    ok: bool
    count: int  # type: ignore[assignment]  # hides the method of tuples
    head: str
    findings: tuple[ChainFinding, ...]


class ChainWriter:
    """Appends to one chain file; the only writer while it is open.

    When `append` returns, the entry survives the death of this process; when `flush` returns, or after every
    `sync_every` appends, it survives a power cut. Before an existing file is extended, its first line and its end are
    checked; a torn last line (unfinished, or not JSON) is cut off and reported in `repaired`, for the caller to log.
    Any other damage at the end raises CorruptError, since a crash can't cause it. Thread-safe.
    """

    def __init__(self, path: _Path, name: str, *, sync_every: int = 256) -> None:
        if sync_every < 1:
            raise UsageError("sync_every must be at least 1", op="chain open")
        self.path = os.fspath(path)
        self.repaired: TornTail | None = None
        self._sync_every = sync_every
        self._named = False
        """Whether the file's name and a repair of its end would survive a power cut; the first sync ensures it."""
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o644)
        try:
            self._claim()
            # Count, head and size change in one assignment, so an interrupt never sees them disagree.
            self._end = self._resume(name)
            self._synced = self._end[0]  # entries
        except BaseException:
            self._abandon()
            raise

    @property
    def count(self) -> int:
        """The number of entries."""
        return self._end[0]

    @property
    def head(self) -> str:
        """The digest that commits to every entry so far."""
        return self._end[1]

    def append(self, payload: Mapping[str, Any]) -> str:
        """Add one entry and return the new head. Raises UsageError, and adds nothing, if the payload is invalid."""
        with self._lock:
            count, prev, _ = self._end
            line = _line(payload, count, prev)
            head = hashlib.sha256(line).hexdigest()
            self._write(line + b"\n", count + 1, head)
            return head

    def extend(self, payloads: Iterable[Mapping[str, Any]]) -> str:
        """Add several entries in one write, all of them or (UsageError) none, and return the new head."""
        with self._lock:
            if self._fd < 0:
                raise UsageError("the chain is closed", op="chain append")
            count, head, _ = self._end
            lines = []
            for payload in payloads:
                line = _line(payload, count, head)
                head = sha256_hex(line)
                count += 1
                lines.append(line)
            if lines:
                lines.append(b"")
                self._write(b"\n".join(lines), count, head)
            return head

    def flush(self) -> None:
        """Make every append so far survive a power cut."""
        with self._lock:
            self._sync()

    def close(self, *, sync: bool = True) -> None:
        """Flush and close the file. Closing twice is harmless. With `sync=False` the caller syncs the file itself."""
        with self._lock:
            try:
                if sync:
                    self._sync()
            finally:
                self._abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _claim(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise UsageError(f"{self.path} is not a regular file", op="chain open")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self.path} is being written by another writer", op="chain open") from None

    def _resume(self, name: str) -> tuple[int, str, int]:
        size = os.fstat(self._fd).st_size
        lines, torn = _tail(self._fd, size, self.path)
        if not torn and lines and not _is_json_object(lines[-1]):
            torn = lines.pop() + b"\n"
        end = self._end_of(lines, name)
        if torn:
            size -= len(torn)
            os.ftruncate(self._fd, size)
            self.repaired = TornTail(size, len(torn), sha256_hex(torn))
        return *end, size

    def _end_of(self, lines: list[bytes], name: str) -> tuple[int, str]:
        """Return count and head from the last lines. Raises CorruptError if they are not the end of this chain."""
        if not lines:
            return 0, origin(name)
        try:
            with open(self._fd, "rb", closefd=False) as stream:
                first = next(_stream_lines(stream))[0] or b""
            first_prev = _entry(first)[1]
            seq, prev = _entry(lines[-1])
            before = _entry(lines[-2])[0] if len(lines) > 1 else -1
        except CanonicalError as error:
            raise CorruptError(f"{self.path} is not a chain: {error}", op="chain open") from error
        if first_prev != origin(name):
            raise CorruptError(f"{self.path} is not the chain {name!r}", op="chain open")
        expected = sha256_hex(lines[-2]) if len(lines) > 1 else origin(name)
        if seq != before + 1 or prev != expected:
            raise CorruptError(f"the last line of {self.path} does not follow the one before it", op="chain open")
        return seq + 1, sha256_hex(lines[-1])

    def _write(self, data: bytes, count: int, head: str) -> None:
        if self._fd < 0:
            raise UsageError("the chain is closed", op="chain append")
        size = self._end[2]
        try:
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, data[written:])
            self._end = (count, head, size + written)
        except BaseException:
            # A full disk or an interrupt may leave half a line. Cut it off, or close the file: nothing may follow it.
            try:
                os.ftruncate(self._fd, self._end[2])
            except OSError:
                self._abandon()
            raise
        if count - self._synced >= self._sync_every:
            self._sync()

    def _sync(self) -> None:
        if (self._end[0] > self._synced or not self._named) and self._fd >= 0:
            try:
                _datasync(self._fd)
                if not self._named:
                    sync_directory(os.path.dirname(self.path) or ".")
                    self._named = True
            except OSError:
                # After a failed sync the kernel may have dropped the pages, so a later success would prove nothing.
                self._abandon()
                raise
            self._synced = self._end[0]

    def _abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def verify_chain(
    source: _Path | BinaryIO | bytes,
    name: str,
    expected_head: str | None = None,
    *,
    expected_count: int | None = None,
    limit: int | None = None,
) -> ChainReport:
    """Verify a whole chain: its content, a path or an open binary file. With `limit`, at most that many bytes are read.

    Never raises because of the chain's content, and keeps one line in memory at a time. Verification continues after a
    finding, so that the report shows the extent of the damage.
    """
    if isinstance(source, bytes) and (intact := intact_chain(source, name)) is not None:
        entries, head = intact
        if expected_head in (None, head) and expected_count in (None, len(entries)):
            return ChainReport(True, len(entries), head, ())
    findings: list[ChainFinding] = []
    count = unlisted = next_seq = 0
    head = origin(name)

    def found(line: int, code: str, message: str) -> None:
        nonlocal unlisted
        if len(findings) < MAX_FINDINGS:
            findings.append(ChainFinding(line, code, message))
        else:
            unlisted += 1

    try:
        for body, digest, complete in _lines(source, limit):
            if not complete:
                found(count + 1, "torn_tail", "the last line has no trailing newline: an append that never finished")
                break
            count += 1
            if body is None:
                found(count, "line_too_long", f"the line is longer than {MAX_LINE_BYTES} bytes")
            else:
                try:
                    seq, prev = _entry(body)
                except CanonicalError as error:
                    found(count, "malformed", f"not a canonical entry: {error}")
                else:
                    if prev != head:
                        found(count, "wrong_prev", "prev is not the digest of the previous line")
                    if seq != next_seq:
                        found(count, "wrong_seq", f"seq is {seq}, expected {next_seq}")
                        next_seq = seq
            next_seq += 1
            head = digest
    except OSError as error:
        found(0, "unreadable", error.strerror or type(error).__name__)
    if expected_count is not None and count != expected_count:
        found(0, "wrong_count", f"the chain has {count} lines, expected {expected_count}")
    if expected_head is not None and head != expected_head:
        found(0, "wrong_head", "the head is not the expected one: lines were removed, rewritten or added at the end")
    if unlisted:
        findings.append(ChainFinding(0, "more", f"{unlisted} further findings"))
    return ChainReport(not findings, count, head, tuple(findings))


def intact_chain(data: bytes, name: str) -> tuple[list[dict[str, Any]], str] | None:
    """Return the entries and the head of a short chain; None if it is long or may be damaged.

    It is parsed as a whole. `ChainFollower` and `verify_chain` read any chain, and say what is wrong with it.
    """
    return _continued(data, origin(name), 0)


def _continued(data: bytes, head: str, count: int) -> tuple[list[dict[str, Any]], str] | None:
    """Return the entries of some lines and the head after them; None unless they surely continue a chain."""
    entries = parse_lines(data)
    if entries is None:
        return None
    for number, (entry, line) in enumerate(zip(entries, data.split(b"\n"), strict=False), count):
        seq = entry.get("seq")
        if entry.get("prev") != head or seq != number or type(seq) is not int:
            return None
        head = hashlib.sha256(line).hexdigest()
    return entries, head


class ChainFollower:
    """Checks a chain entry by entry, for readers that use the entries on the way."""

    def __init__(self, name: str) -> None:
        self.head = origin(name)
        self.count = 0

    def follow_lines(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        """Yield the next entries. Raises CanonicalError if a line, the one after `count`, does not continue the chain.

        Short lines are parsed together, in half the time.
        """
        for block in _blocks(lines):
            intact = _continued(b"".join(block), self.head, self.count)
            if intact is None:
                yield from map(self.follow, block)
            else:
                self.count += len(block)
                self.head = intact[1]
                yield from intact[0]

    def follow(self, line: bytes) -> dict[str, Any]:
        """Return the next entry. Raises CanonicalError if the line does not continue the chain."""
        body = line.removesuffix(b"\n")
        if body == line:
            raise CanonicalError("the last line has no trailing newline: an append that never finished")
        value = _parsed(body)
        if value["prev"] != self.head:
            raise CanonicalError("prev is not the digest of the previous line")
        if value["seq"] != self.count:
            raise CanonicalError(f"seq is {value['seq']}, expected {self.count}")
        self.head = sha256_hex(body)
        self.count += 1
        return value


def _blocks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lines in lists of up to `MAX_PARSED_TOGETHER` bytes; a longer line by itself."""
    block, size = list[bytes](), 0
    for line in lines:
        size += len(line)
        if size > MAX_PARSED_TOGETHER and block:
            yield block
            block, size = [], len(line)
        block.append(line)
    if block:
        yield block


_Line = tuple[bytes | None, str, bool]  # the bytes without LF (None if too long), their digest, whether LF ended them


def _lines(source: _Path | BinaryIO | bytes, limit: int | None) -> Iterator[_Line]:
    if isinstance(source, bytes):
        return _stream_lines(io.BytesIO(source), limit) if len(source) > MAX_LINE_BYTES else _short_lines(source)
    return _file_lines(source, limit) if isinstance(source, str | os.PathLike) else _stream_lines(source, limit)


def _short_lines(data: bytes) -> Iterator[_Line]:
    *lines, torn = data.split(b"\n")
    for line in lines:
        yield line, sha256_hex(line), True
    if torn:
        yield torn, "", False


def _file_lines(source: _Path, limit: int | None) -> Iterator[_Line]:
    fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=1 << 18) as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        yield from _stream_lines(stream, limit)


def _stream_lines(stream: BinaryIO, limit: int | None = None) -> Iterator[_Line]:
    left = sys.maxsize if limit is None else limit
    while piece := stream.readline(min(MAX_LINE_BYTES + 1, left)):
        left -= len(piece)
        body = piece.removesuffix(b"\n")
        if len(body) <= MAX_LINE_BYTES:
            yield body, sha256_hex(body), piece.endswith(b"\n")
            continue
        digest = hashlib.sha256(body)
        while not piece.endswith(b"\n") and (piece := stream.readline(min(_BLOCK, left))):
            left -= len(piece)
            digest.update(piece.removesuffix(b"\n"))
        yield None, digest.hexdigest(), piece.endswith(b"\n")


def _line(payload: Mapping[str, Any], seq: int, prev: str) -> bytes:
    if "seq" in payload or "prev" in payload:
        raise UsageError("a payload can't have members called seq or prev", op="chain append")
    members = {**payload, "seq": seq, "prev": prev}
    try:
        line = encode_flat(members) or canonical_bytes(members)
    except CanonicalError as error:
        raise UsageError(f"the payload has no canonical JSON: {error}", op="chain append") from error
    if len(line) > MAX_LINE_BYTES:
        raise UsageError(f"the entry is {len(line)} bytes; the limit is {MAX_LINE_BYTES}", op="chain append")
    return line


def _entry(line: bytes) -> tuple[int, str]:
    """Return the seq and prev of a line. Raises CanonicalError."""
    value = _parsed(line)
    return value["seq"], value["prev"]


def _parsed(line: bytes) -> dict[str, Any]:
    value = parse_canonical(line)
    canonical = value is not None
    if not canonical:
        value = parse_strict(line)
    if type(value) is not dict or type(value.get("seq")) is not int or type(value.get("prev")) is not str:
        raise CanonicalError("not an object with seq and prev")
    if not canonical and canonical_bytes(value) != line:
        raise CanonicalError("not in canonical form")
    return value


def _is_json_object(line: bytes) -> bool:
    try:
        return type(parse_strict(line)) is dict
    except CanonicalError:
        return False


def _tail(fd: int, size: int, path: str) -> tuple[list[bytes], bytes]:
    """Return the last lines (at least three complete ones, or all) and the bytes after the last LF."""
    want = _BLOCK
    while True:
        data = os.pread(fd, min(want, size), max(0, size - want))
        if want >= size or data.count(b"\n") > 3:
            *lines, torn = data.split(b"\n")
            return lines, torn
        if want > 4 * MAX_LINE_BYTES:
            raise CorruptError(f"{path} ends in a line too long for a chain", op="chain open")
        want *= 4
