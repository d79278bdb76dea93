"""Read evidence for display: verified if it is committed, and always bounded.

A bundle is checked once, and again whenever the status of a file in it shows a change. Every read of an artifact
compares the digest of the whole artifact with the index, even if only a part of it is shown.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.clock import SystemClock, isoformat
from proofbox.errors import BundleArtifactAbsent, BundleError, BundleNotFound
from proofbox.evidence.bundle.directory import BundleDirectory
from proofbox.evidence.bundle.index import parse_index
from proofbox.evidence.bundle.paths import INDEX, MAX_INDEX_BYTES, MAX_JSON_BYTES, enclosing, read_bounded, shown
from proofbox.evidence.bundle.reader import Bundle, as_bundle
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.verify.check import BundleCheck, BundleFinding, check_bundle
from proofbox.lab.attempt import artifacts

MAX_OPEN = 8
"""Maximum number of bundles whose check is remembered."""
MAX_LINE = 1 << 20
INDEX_LOST = "it was committed, but its index is missing"
_PIECE = 1 << 20
_ABSURD = 1e15
_LINE = msgspec.json.Decoder(dict[str, Any])
_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class OpenedEvidence:
    """A bundle in any state, for display."""

    path: Path
    bundle: Bundle | None
    """None while the bundle is being written, or if its index or status cannot be read."""
    directory: BundleDirectory
    findings: tuple[BundleFinding, ...]
    """Why the bundle is invalid; empty if it is valid or still being written."""
    in_progress: bool
    checked_at: str
    """When the check began."""

    @property
    def integrity(self) -> str:
        """`valid`, `invalid`, `repaired` (valid, but reindexed after its commit) or `writing`."""
        if self.in_progress:
            return "writing"
        if self.findings or self.bundle is None:
            return "invalid"
        return "repaired" if self.bundle.repaired else "valid"

    @property
    def awaits_index(self) -> bool:
        """Whether there is no index yet: the bundle is being written or committed, or lost its index."""
        return self.in_progress or any(each.detail == INDEX_LOST for each in self.findings)

    def has(self, name: str) -> bool:
        return name in self.bundle.artifacts if self.bundle is not None else self.directory.has(name)

    def size(self, name: str) -> int:
        """Return the size of an artifact; 0 if it does not exist."""
        if self.bundle is not None:
            return self.bundle.artifacts[name].file_size if name in self.bundle.artifacts else 0
        try:
            return os.lstat(self.path / name).st_size
        except OSError:
            return 0

    def line_count(self, log: str) -> int | None:
        """Return the number of lines of a log; None while it is being written."""
        artifact = None if self.bundle is None else self.bundle.artifacts.get(log)
        return None if artifact is None or artifact.chain is None else artifact.chain.count

    def document(self, name: str) -> dict[str, Any]:
        """Return a JSON artifact; empty if it is absent, or damaged, which is a finding already."""
        try:
            found = (
                parse_strict(self.directory.read(name, MAX_JSON_BYTES))
                if self.bundle is None
                else self.bundle.read_json(name)
            )
        except (BundleError, OSError, CanonicalError):
            return {}
        return found if isinstance(found, dict) else {}

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield an artifact in pieces. Raises BundleCorrupt after the last piece if it does not match the index."""
        if self.bundle is not None:
            yield from self.bundle.read_pieces(name)
            return
        try:
            with open(self.directory.open(name), "rb", buffering=0) as stream:
                left = os.fstat(stream.fileno()).st_size
                while left > 0 and (piece := stream.read(min(_PIECE, left))):
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise BundleArtifactAbsent(f"{name} cannot be read: {error}", op="view") from error

    def part(self, name: str, start: int, length: int) -> bytes:
        """Return some bytes of an artifact."""
        found = bytearray()
        position = 0
        for piece in self.pieces(name):
            if position < start + length and position + len(piece) > start:
                found += piece[max(0, start - position) : start + length - position]
            position += len(piece)
        return bytes(found)

    def lines(self, log: str, first: int, count: int) -> Iterator[dict[str, Any]]:
        """Yield some lines of a log. The first line has number 0. Malformed lines are empty.

        Raises BundleCorrupt after the last line if the log does not match the index.
        """
        read = 0

        def go_on() -> bool:
            return read < first + count

        for line in self._split(log, go_on):
            read += 1
            if first < read <= first + count:
                yield _parsed(line)

    def find(
        self, log: str, kind: type[_T], member: str, wanted: Mapping[str, int], *, before: int | None = None
    ) -> dict[str, list[_T]]:
        """Return the first entries of a log for each value of `member` in `wanted`, which has their number.

        Entries from line number `before` on are not searched.
        """
        found: dict[str, list[_T]] = {value: [] for value in wanted}
        left = sum(wanted.values())
        decoder = msgspec.json.Decoder(kind)

        def go_on() -> bool:
            return left > 0

        for number, line in enumerate(self._split(log, go_on)):
            if number == before:
                left = 0
                continue
            try:
                entry = decoder.decode(line)
            except (msgspec.DecodeError, RecursionError):
                continue
            entries = found.get(getattr(entry, member))
            if entries is not None and len(entries) < wanted[getattr(entry, member)]:
                entries.append(entry)
                left -= 1
        return found

    def _split(self, log: str, go_on: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the lines of a log while `go_on`. The rest is read without splitting it, to check the digest."""
        if not self.size(log):
            return
        rest = b""
        for piece in self.pieces(log):
            if not go_on():
                rest = b""
                continue
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line
                if not go_on():
                    rest = b""
                    break
            rest = rest[: MAX_LINE + 1]
        if rest and go_on():
            yield rest


def table(value: object) -> dict[str, Any]:
    """Return a JSON object; empty if a document has something else in its place."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """Return the objects of a JSON array; none if a document has something else in its place."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def number(value: object) -> float:
    """Return a number of a document; 0 if it has something else in its place, or the number is absurd."""
    return float(value) if isinstance(value, int | float) and abs(value) < _ABSURD else 0.0


def final_snapshot(evidence: OpenedEvidence) -> dict[str, Any]:
    """Return the record of an attempt's final files; empty if no final snapshot was taken."""
    return table(evidence.document(artifacts.ATTEMPT).get("final"))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        return _LINE.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}


class EvidenceCache:
    """Opens bundles, and remembers the checks of the last ones. Safe to use from several threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._known: OrderedDict[str, tuple[object, OpenedEvidence]] = OrderedDict()

    def open(self, path: Path) -> OpenedEvidence:
        """Open a bundle and check it, without the bundles nested in it, unless nothing changed since the last check."""
        key, mark = str(path), (tree_mark(path), _outer_mark(path))
        with self._mutex:
            known = self._known.get(key)
            if known is not None and known[0] == mark:
                self._known.move_to_end(key)
                return known[1]
        found = open_evidence(path)
        with self._mutex:
            self._known[key] = (mark, found)
            self._known.move_to_end(key)
            while len(self._known) > MAX_OPEN:
                self._known.popitem(last=False)
        return found


def open_evidence(path: Path) -> OpenedEvidence:
    """Open and check a bundle. Raises BundleNotFound if the directory cannot be read."""
    since = isoformat(SystemClock().now())  # changes before the check begins are found, later ones perhaps not
    try:
        checked = check_bundle(str(path))
    except OSError as error:
        raise BundleNotFound(f"{shown(str(path))} cannot be read: {error.strerror}", op="view") from error
    findings = list(checked.findings)
    committed = [*_covered(path, checked), *_lost_index(checked)]
    in_progress = bool(findings) and not committed and all(each.code == "in_progress" for each in findings)
    bundle = None
    if not in_progress:
        findings += committed
        if checked.index is not None and checked.status is not None:
            bundle = as_bundle(checked)
    return OpenedEvidence(
        path=path,
        bundle=bundle,
        directory=checked.directory,
        findings=() if in_progress else tuple(findings),
        in_progress=in_progress,
        checked_at=since,
    )


def _covered(path: Path, checked: BundleCheck) -> list[BundleFinding]:
    """Return a finding if the committed bundle around a nested one does not cover this index."""
    outer = Path(enclosing(path))
    if outer == path.resolve() or not os.path.lexists(outer / INDEX):
        return []
    name = f"{path.resolve().relative_to(outer)}/{INDEX}"
    try:
        covered = parse_index(read_bounded(outer / INDEX, MAX_INDEX_BYTES)).artifacts.get(name)
    except (OSError, ShapeError) as error:
        return [BundleFinding("index_malformed", INDEX, f"the index of the run cannot be read: {error}")]
    if covered is None:
        return [BundleFinding("unlisted", name, "the index of the run does not cover this attempt")]
    if covered.sha256 != checked.index_sha256:
        return [BundleFinding("digest_mismatch", name, "the index of the run covers another version of this attempt")]
    return []


def _lost_index(checked: BundleCheck) -> list[BundleFinding]:
    """Return a finding if a bundle was committed according to its status, but has no index."""
    if checked.index is None and checked.status is not None and checked.status.state != "in_progress":
        return [BundleFinding("missing", INDEX, INDEX_LOST)]
    return []


def tree_mark(path: Path) -> int:
    """Return a value that changes when a file below `path` is written, replaced or removed."""
    mark = 0
    pending = [str(path)]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    mark = hash((mark, entry.path, *_times(info)))
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            mark = hash((mark, directory))
    return mark


def _outer_mark(path: Path) -> tuple[int, ...]:
    """Return a value that changes when the index around a nested bundle is written or replaced."""
    try:
        return _times(os.lstat(os.path.join(enclosing(path), INDEX)))
    except OSError:
        return ()


def _times(info: os.stat_result) -> tuple[int, ...]:
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
