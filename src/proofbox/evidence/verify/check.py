"""Check a bundle and report every difference between its index and its directory as a finding.

Codes of findings:

    in_progress       never committed: no index, or a status that says so
    status_absent, status_malformed, index_malformed     the status or index is missing or malformed
    too_large         the status or index exceeds its size limit
    schema_unknown    the status or index has an unsupported version
    inconsistent      index and status contradict each other
    missing, size_mismatch, digest_mismatch, unreadable  of a listed artifact
    not_checked       a file that exceeds the limit of this check; only of checks with a limit
    unlisted          a file or directory that no index covers
    symlink, special  not a regular file or directory; `unreadable`: a directory that can't be read
    chain_…           of a log, followed by the code of `verify_chain`
    schedule_malformed                                   a run's schedule is malformed, or was never closed
    attempt_absent, attempt_replaced, attempt_unplanned  the run's bundles do not match its schedule
    tree_base_absent  the base of an attempt's tree manifest is missing, has changed, or is not in the run's index
    more              not all findings are listed
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.chain import ChainFollower, verify_chain
from proofbox.core.digest import sha256_file, sha256_hex
from proofbox.core.text import path_fields
from proofbox.evidence.bundle.directory import BundleDirectory
from proofbox.evidence.bundle.identity import world_id
from proofbox.evidence.bundle.index import Artifact, Index, SchemaUnknown, parse_index
from proofbox.evidence.bundle.paths import (
    INDEX,
    IRREGULAR,
    MAX_INDEX_BYTES,
    MAX_JSON_BYTES,
    MAX_SCHEDULE_BYTES,
    MAX_STATUS_BYTES,
    STATUS,
    DirectoryContents,
    TooLarge,
    above,
)
from proofbox.evidence.bundle.status import RunStatus, parse_status
from proofbox.evidence.documents.base_tree import SCHEMA_OF_CHANGES, base_path, base_sha256, require_base
from proofbox.evidence.documents.schedule import PATH as SCHEDULE
from proofbox.evidence.documents.schedule import ScheduledAttempt, coverage_gaps, read_schedule
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.documents.tree import PATH as TREE
from proofbox.evidence.pool import in_threads

MAX_FINDINGS = 1000
MAX_NESTING = 8


@dataclass(frozen=True, slots=True)
class BundleFinding:
    """One failed check. `path` is relative to the bundle; empty means the bundle as a whole."""

    code: str
    path: str
    detail: str
    path_b64: str | None = None

    def as_json(self) -> dict[str, str]:
        found = {"code": self.code, "path": self.path, "detail": self.detail}
        return found if self.path_b64 is None else {**found, "path_b64": self.path_b64}


@dataclass(slots=True)
class CheckCounts:
    """The number of items checked."""

    files: int = 0
    bytes: int = 0
    bundles: int = 0
    chains: int = 0

    def add(self, other: CheckCounts) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.bundles += other.bundles
        self.chains += other.chains


@dataclass(slots=True)
class BundleCheck:
    """The result of checking a bundle and its nested bundles. Without findings, it matches its index."""

    path: str
    directory: BundleDirectory = field(repr=False, compare=False)
    """The directory that was checked, even if `path` now names another one."""
    status: RunStatus | None = None
    status_sha256: str = ""
    """The digest of the bytes that `status` was parsed from."""
    status_size: int = 0
    index: Index | None = None
    index_sha256: str = ""
    """The digest of the index file, which a packet pins and a signature covers."""
    index_size: int = 0
    nested: dict[str, BundleCheck] = field(default_factory=dict)
    schedule: Mapping[str, ScheduledAttempt] | None = None
    """The attempts that a run planned; None if it has no schedule that can be read."""
    schedule_intact: bool = False
    """Whether the chain of the schedule was verified when it was read."""
    findings: list[BundleFinding] = field(default_factory=list)
    checked: CheckCounts = field(default_factory=CheckCounts)
    contents: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The content of its small artifacts, as checked; empty except during a visit."""
    parsed: dict[tuple[object, str], Any] = field(default_factory=dict, repr=False, compare=False)
    """What readers made of small documents, by function and digest: see `Bundle.read_as`. The bundles of a check share
    it."""

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def committed(self) -> bool:
        return self.index is not None and self.status is not None and self.status.state != "in_progress"

    def every(self, prefix: str = "") -> Iterator[tuple[str, BundleCheck]]:
        """Yield this bundle and all nested bundles, each with its path."""
        yield prefix, self
        for place, inner in self.nested.items():
            yield from inner.every(f"{prefix}/{place}" if prefix else place)

    def found(self, code: str, path: str, detail: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            names = path_fields(path)
            self.findings.append(BundleFinding(code, names["path"], detail, names.get("path_b64")))
        elif self.findings[-1].code != "more":
            self.findings.append(BundleFinding("more", "", f"more than {MAX_FINDINGS} findings"))


class ReadBudget:
    """The bytes that a check may still read, shared by its threads. None: any number."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._mutex = threading.Lock()

    def take(self, size: int) -> bool:
        """Return whether a file of `size` bytes may be read."""
        if self._left is None:
            return True
        with self._mutex:
            if size > self._left:
                return False
            self._left -= size
            return True


Visit = Callable[[BundleCheck, str, BundleCheck], None]
"""Called with the check of a bundle so far, the path of a nested bundle, and the check of that."""


class _Scope(NamedTuple):
    """What a check covers."""

    chains: bool
    budget: ReadBudget
    visit: Visit | None


def check_bundle(
    directory: str | BundleDirectory, *, chains: bool = False, limit: int | None = None, visit: Visit | None = None
) -> BundleCheck:
    """Check a bundle and its nested bundles: every size and digest, and with `chains` every line of its logs.

    With `limit`, files beyond that many bytes in total are findings (`not_checked`) instead of being read. `visit` is
    called after the check of each bundle that is nested directly in this one. During the call, reading a small artifact
    returns the bytes that were checked, so that a reader of thousands of attempts opens each file once.
    """
    opened = BundleDirectory(directory) if isinstance(directory, str) else directory
    scope = _Scope(chains, ReadBudget(limit), visit)
    return _check(opened, scope, MAX_NESTING, lambda sha256: require_base(opened.path, sha256))


def _check(
    directory: BundleDirectory,
    scope: _Scope,
    depth: int,
    require: Callable[[str], None],
    *,
    visited: bool = False,
) -> BundleCheck:
    """`require` raises ShapeError if the enclosing bundle lacks a base, given by its digest. `visited`: the content of
    small artifacts is needed after the check."""
    bundle = BundleCheck(directory.path, directory)
    bundle.checked.bundles = 1
    # Read status, index and directory in this order. The index is written last, so a reader during a commit sees the
    # bundle as in progress or complete, never as damaged.
    _read_documents(bundle)
    listed: Mapping[str, Artifact] = {} if bundle.index is None else bundle.index.artifacts
    nested = {path.removesuffix(_INDEX_BELOW): path for path in listed if path.endswith(_INDEX_BELOW)}
    present = directory.walk(nested)
    for path, kind in sorted(present.irregular.items()):
        bundle.found(kind, path, f"{IRREGULAR[kind]}, which a bundle can't contain")
    if bundle.index is None:
        return bundle
    _check_consistency(bundle, bundle.index)
    inside = {
        path: place
        for place, path in nested.items()
        if depth and place in present.directories and not any(outer in nested for outer in above(place))
    }
    absent = _absent(directory, listed.keys() - present.files - inside.keys(), nested)
    files = [artifact for path, artifact in listed.items() if path not in absent and path not in inside]
    bundle.checked.files += len(files)
    bundle.checked.bytes += sum([artifact.file_size for artifact in files])
    wrong = _check_files(bundle, files, scope, keep=visited)
    if TREE in listed and TREE in present.files and TREE not in wrong:
        _check_base(bundle, listed[TREE], require)
    for path in sorted(absent):
        bundle.found("missing", path, "listed, but missing")
    _check_coverage(bundle, listed, nested, present)

    def listed_base(sha256: str) -> None:
        path = base_path(sha256)
        if path not in listed or listed[path].sha256 != sha256 or path in wrong or path not in present.files:
            raise ShapeError(f"its base {path} is missing from the run, or has changed")

    schedule = listed.get(SCHEDULE) if SCHEDULE in present.files and SCHEDULE not in wrong else None
    problem = None if schedule is None else _read_schedule(bundle, bundle.index, schedule)
    if nested and not depth:
        bundle.found("inconsistent", min(nested.values()), f"bundles are nested deeper than {MAX_NESTING}")
    visit = scope.visit if depth == MAX_NESTING else None
    waiting: list[tuple[str, BundleCheck]] = []
    size = 0
    for path, place in inside.items():
        inner = _check(directory.nested(place), scope, depth - 1, listed_base, visited=visit is not None)
        inner.parsed = bundle.parsed
        if not _add_nested(bundle, listed[path], place, inner) or visit is None:
            inner.contents.clear()
            continue
        waiting.append((place, inner))
        size += inner.checked.bytes
        if size > _SMALL_FILES:
            _visit(bundle, waiting, visit)
            size = 0
    if visit is not None:
        _visit(bundle, waiting, visit)
    if schedule is not None:
        _check_schedule(bundle, bundle.index, schedule, problem)
    if scope.chains:
        _check_chains(bundle, bundle.index)
    if not visited:
        bundle.contents.clear()
    return bundle


def _visit(bundle: BundleCheck, waiting: list[tuple[str, BundleCheck]], visit: Visit) -> None:
    """Visit nested bundles, and drop their content."""
    for place, inner in waiting:
        visit(bundle, place, inner)
        inner.contents.clear()
    waiting.clear()


def _add_nested(bundle: BundleCheck, listed: Artifact, place: str, inner: BundleCheck) -> bool:
    """Add the check of a nested bundle, unless it has no index. Return whether its index is the listed one."""
    if not inner.index_sha256 and not bundle.directory.has(listed.path):
        bundle.found("missing", listed.path, "listed, but missing")
        return False
    bundle.nested[place] = inner
    bundle.checked.add(inner.checked)
    bundle.checked.files += 1
    bundle.checked.bytes += listed.file_size
    intact = (inner.index_sha256, inner.index_size) == (listed.sha256, listed.file_size)
    if not intact:
        code, detail = _difference(bundle.directory, ReadBudget(None), listed) or _PARSED_DIFFERS
        bundle.found(code, listed.path, detail)
    for finding in inner.findings:
        below = finding.path if finding.path_b64 is None else os.fsdecode(base64.b64decode(finding.path_b64))
        bundle.found(finding.code, f"{place}/{below}" if below else place, finding.detail)
    return intact


def _read_documents(bundle: BundleCheck) -> None:
    try:
        data = bundle.directory.read(STATUS, MAX_STATUS_BYTES)
        bundle.status_sha256, bundle.status_size = sha256_hex(data), len(data)
        bundle.status = parse_status(data)
    except FileNotFoundError:
        bundle.found("status_absent", STATUS, "the status is missing")
    except OSError as error:
        bundle.found("too_large" if isinstance(error, TooLarge) else "status_malformed", STATUS, str(error))
    except ShapeError as error:
        bundle.found("schema_unknown" if isinstance(error, SchemaUnknown) else "status_malformed", STATUS, str(error))
    try:
        data = bundle.directory.read(INDEX, MAX_INDEX_BYTES)
    except FileNotFoundError:
        bundle.found("in_progress", "", "the bundle has no index: it was never committed")
        return
    except OSError as error:
        bundle.found("too_large" if isinstance(error, TooLarge) else "index_malformed", INDEX, str(error))
        return
    bundle.index_sha256, bundle.index_size = sha256_hex(data), len(data)
    try:
        bundle.index = parse_index(data)
    except ShapeError as error:
        bundle.found("schema_unknown" if isinstance(error, SchemaUnknown) else "index_malformed", INDEX, str(error))
    if bundle.status is not None and bundle.status.state == "in_progress":
        bundle.found("in_progress", STATUS, "the status says that the run is still writing")


def _check_consistency(bundle: BundleCheck, index: Index) -> None:
    status = bundle.status
    if STATUS not in index.artifacts:
        bundle.found("inconsistent", STATUS, "the index does not list the status")
    if status is None:
        return
    if status.run_id != index.run_id:
        bundle.found("inconsistent", INDEX, "index and status are of different runs")
    if world_id(status.world) != index.world_id:
        bundle.found("inconsistent", INDEX, "world_id is not the digest of the status's world")
    if (status.state == "failed") != (index.status == "failed"):
        bundle.found("inconsistent", INDEX, "index and status differ on whether the run failed")
    if index.status == "ok" and status.partial_reasons:
        bundle.found("inconsistent", INDEX, "the index has status ok, but the status has partial_reasons")
    absent = [path for path in status.expected if path not in index.artifacts and path not in index.missing]
    for path in absent:
        bundle.found("inconsistent", path, "expected, but neither listed nor named as missing")


_LIMITS = {STATUS: MAX_STATUS_BYTES, INDEX: MAX_INDEX_BYTES}
_INDEX_BELOW = "/" + INDEX
_PARSED_DIFFERS = "digest_mismatch", "the parsed bytes differ from the committed content"
_SMALL_FILE = 1 << 18
"""Maximum size of a file that each thread reads at once."""
_SMALL_FILES = 1 << 22
"""Maximum size of the artifacts of one bundle that are kept in memory, so that they are read once.

Nested bundles wait until they exceed it together, and are then visited one after the other: the processor runs the same
code many times in a row.
"""


def _check_files(bundle: BundleCheck, files: Sequence[Artifact], scope: _Scope, *, keep: bool) -> set[str]:
    """Compare files with the index, and return the paths of those that differ.

    The content of small ones stays in `contents`: of logs if their lines will be checked, and of all with `keep`.
    """
    directory, budget = bundle.directory, scope.budget
    status = (bundle.status_sha256, bundle.status_size) if bundle.committed else None
    todo = [each for each in files if each.path != STATUS or status != (each.sha256, each.file_size)]
    kept, left = dict[str, Artifact](), _SMALL_FILES
    for each in todo:
        size = each.file_size
        if size <= left and (keep or (each.chain is not None and scope.chains)) and each.path != STATUS:
            if budget.take(size):
                kept[each.path] = each
            left -= size
    bundle.contents.update(directory.read_matching(kept.values()))

    def compare(artifact: Artifact) -> tuple[str, str] | None:
        if artifact.path not in kept:
            if not (artifact.file_size <= _SMALL_FILE and budget.take(artifact.file_size)):
                return _difference(directory, budget, artifact)
            if directory.read_matching([artifact]):
                return None
        return _difference(directory, ReadBudget(None), artifact)

    differing = set()
    rest = [each for each in todo if each.path not in bundle.contents]
    for artifact, wrong in zip(rest, in_threads(compare, rest), strict=True):
        if wrong is None and artifact.path == STATUS and status is not None:
            wrong = _PARSED_DIFFERS
        if wrong is not None:
            bundle.found(wrong[0], artifact.path, wrong[1])
            differing.add(artifact.path)
    return differing


def _difference(directory: BundleDirectory, budget: ReadBudget, artifact: Artifact) -> tuple[str, str] | None:
    """Compare a file with its entry in the index. Return the code and the detail of a difference."""
    expected = artifact.file_size
    limit = _LIMITS.get(artifact.path.rpartition("/")[2])
    if limit is not None and expected > limit:
        return "too_large", f"{expected} bytes; the limit for this document is {limit}"
    try:
        fd = directory.open(artifact.path)
    except OSError as error:
        return "unreadable", error.strerror or type(error).__name__
    try:
        # Check the size first: a file of the wrong size is not read, and a growing file only up to its limit.
        info = os.fstat(fd)
        size, digest = info.st_size, ""
        if size == expected and not budget.take(size):
            return "not_checked", f"{size} bytes; only `proofbox verify` reads that much"
        if size == expected or not stat.S_ISREG(info.st_mode):
            digest, size = sha256_file(fd, limit=expected, info=info)
    except OSError as error:
        return "unreadable", error.strerror or type(error).__name__
    finally:
        os.close(fd)
    if size != expected:
        return "size_mismatch", f"{size} bytes, expected {expected}"
    return None if digest == artifact.sha256 else ("digest_mismatch", "the content differs from the committed content")


def _check_parsed(bundle: BundleCheck, artifact: Artifact, sha256: str) -> None:
    """Compare the parsed bytes of a document with the index, since hashing opened the file a second time."""
    if sha256 != artifact.sha256:
        bundle.found(_PARSED_DIFFERS[0], artifact.path, _PARSED_DIFFERS[1])


def _absent(directory: BundleDirectory, paths: Collection[str], nested: Collection[str]) -> set[str]:
    """Return the paths at which there is no file. Those that were not walked are in nested bundles."""
    return {path for path in paths if not (any(place in nested for place in above(path)) and directory.has(path))}


def _check_coverage(
    bundle: BundleCheck, listed: Mapping[str, Artifact], nested: Mapping[str, str], present: DirectoryContents
) -> None:
    """Find files and directories that no index covers. Nested bundles have their own, and were not walked."""
    for path in sorted(present.files - listed.keys() - {INDEX}):
        bundle.found("unlisted", path, "a file that no index covers")
    if present.directories:
        parents = {path.rpartition("/")[0] for path in (*present.files, *present.irregular, *nested.values())}
        holding = parents | {place for parent in parents for place in above(parent)}
        for path in sorted(present.directories - holding):
            bundle.found("unlisted", path, "an empty directory")


def _check_base(bundle: BundleCheck, manifest: Artifact, require: Callable[[str], None]) -> None:
    """Check that the base of a tree manifest is intact, if the manifest lists only what differs from it."""
    if manifest.schema_version != SCHEMA_OF_CHANGES:
        return
    try:
        data = bundle.contents.get(manifest.path)
        if data is None:
            data = bundle.directory.read(manifest.path, min(manifest.file_size, MAX_JSON_BYTES))
            _check_parsed(bundle, manifest, sha256_hex(data))
        named = base_sha256(parse_strict(data))
        if named is not None:
            require(named)
    except (OSError, CanonicalError, ShapeError) as error:
        bundle.found("tree_base_absent", manifest.path, str(error))


def _read_schedule(bundle: BundleCheck, index: Index, listed: Artifact) -> tuple[str, str] | None:
    """Set the schedule of a run. Return the code and the detail of a problem."""
    chain = ChainFollower(f"{index.run_id}/{SCHEDULE}")
    try:
        try:
            problem = _read_entries(bundle, index, listed, chain.follow_lines)
        except CanonicalError:  # as a log it is damaged; its entries may be readable
            return _read_entries(bundle, index, listed, _unchained)
    except OSError as error:
        return "too_large" if isinstance(error, TooLarge) else "unreadable", str(error)
    except (CanonicalError, ShapeError) as error:
        return "schedule_malformed", str(error)
    anchor = listed.chain
    bundle.schedule_intact = (
        problem is None and anchor is not None and (chain.count, chain.head) == (anchor.count, anchor.head)
    )
    return problem


def _read_entries(
    bundle: BundleCheck, index: Index, listed: Artifact, parse: Callable[[Iterable[bytes]], Iterator[Any]]
) -> tuple[str, str] | None:
    digest = hashlib.sha256()
    lines = bundle.directory.lines(SCHEDULE, min(listed.file_size, MAX_SCHEDULE_BYTES), digest)
    planned = read_schedule(parse(lines), cut_short=index.status == "failed")
    if digest.hexdigest() != listed.sha256:
        return _PARSED_DIFFERS
    bundle.schedule = planned
    return None


def _unchained(lines: Iterable[bytes]) -> Iterator[Any]:
    return (parse_strict(line.removesuffix(b"\n")) for line in lines)


def _check_schedule(bundle: BundleCheck, index: Index, listed: Artifact, problem: tuple[str, str] | None) -> None:
    """Compare the attempts of a run with its schedule, to detect dropped, swapped or added attempts."""
    if listed.chain is None:
        bundle.found("schedule_malformed", SCHEDULE, "the index does not list it as a log")
    if problem is not None:
        bundle.found(problem[0], SCHEDULE, problem[1])
    if bundle.schedule is not None:
        committed = {place: inner.index_sha256 for place, inner in bundle.nested.items()}
        for code, path, detail in coverage_gaps(bundle.schedule, committed, failed=index.status == "failed"):
            bundle.found(code, path, detail)


def _check_chains(bundle: BundleCheck, index: Index) -> None:
    """Verify every line of the logs."""
    for path, artifact in index.artifacts.items():
        if artifact.chain is None:
            continue
        bundle.checked.chains += 1
        if path == SCHEDULE and bundle.schedule_intact:
            continue
        try:
            fd = None if path in bundle.contents else bundle.directory.open(path)
        except OSError as error:
            if error.errno != errno.ENOENT:
                bundle.found("unreadable", path, error.strerror or type(error).__name__)
            continue
        anchor = artifact.chain
        name = f"{index.run_id}/{path}"
        if fd is None:
            report = verify_chain(bundle.contents[path], name, anchor.head, expected_count=anchor.count)
        else:
            with open(fd, "rb") as stream:
                limit = artifact.file_size + 1  # a file of another size is already a finding and may be endless
                report = verify_chain(stream, name, anchor.head, expected_count=anchor.count, limit=limit)
        for finding in report.findings:
            bundle.found(f"chain_{finding.code}", path, f"line {finding.line}: {finding.message}")
