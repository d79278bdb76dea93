"""Read bundles, either verified or explicitly unverified.

bundle = load_bundle("out")               # resolves LATEST, checks everything, or raises
bundle.read_json("results.json")

debris = open_bundle_unverified("out/run-01…")   # to investigate a failure
debris.missing, debris.digest_mismatches, debris.unlisted
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, TypeVar

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.chain import ChainFollower, intact_chain
from proofbox.core.digest import sha256_hex
from proofbox.errors import (
    BundleArtifactAbsent,
    BundleCorrupt,
    BundleError,
    BundleInProgress,
    BundleSchemaUnknown,
    BundleTooLarge,
    NotFoundError,
)
from proofbox.evidence.bundle.directory import BundleDirectory
from proofbox.evidence.bundle.index import Anchor, Artifact, Index
from proofbox.evidence.bundle.paths import (
    MAX_JSON_BYTES,
    MAX_LOG_BYTES,
    check_artifact_path,
    is_artifact_path,
    read_bounded,
    resolve,
    shown,
)
from proofbox.evidence.bundle.status import RunStatus
from proofbox.evidence.documents.schedule import ScheduledAttempt
from proofbox.evidence.verify.check import BundleCheck, BundleFinding, Visit, check_bundle

MAX_UNVERIFIED_BYTES = 1 << 30
"""Maximum number of bytes that `open_bundle_unverified` reads; takes a few seconds."""
_PIECE = 1 << 20
_SMALL_DOCUMENT = 1 << 12
_PARSED_DOCUMENTS = 64
"""Maximum number of results that `read_as` keeps, of documents of up to `_SMALL_DOCUMENT` bytes."""
_Result = TypeVar("_Result")
_Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A committed bundle whose files all matched its index when it was loaded.

    Every read checks the file again, so that a later change raises an error.
    """

    path: str
    index: Index
    status: RunStatus
    index_sha256: str
    """The digest of the index file. A copy kept elsewhere identifies exactly this bundle."""
    nested: Mapping[str, Bundle]
    directory: BundleDirectory = field(repr=False, compare=False)
    """The directory that was checked. All reads use it, even if `path` now names another directory."""
    schedule: Mapping[str, ScheduledAttempt] | None = field(default=None, repr=False, compare=False)
    """The attempts that a run planned; None without a schedule."""
    schedule_intact: bool = field(default=False, repr=False, compare=False)
    """Whether the chain of the schedule was verified as well."""
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The content of small artifacts during the visit of a check, which has just compared it with the index."""
    parsed: dict[tuple[object, str], Any] = field(default_factory=dict, repr=False, compare=False)
    """The results of `read_as`, by function and digest, which the bundles of a visited run share."""
    _parsed: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The JSON documents in `contents` that were read."""

    @property
    def run_id(self) -> str:
        return self.index.run_id

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        return self.index.artifacts

    @property
    def repaired(self) -> bool:
        """Whether this bundle, or one nested in it, was reindexed after its commit."""
        return self.index.repairs > 0 or any(inner.repaired for inner in self.nested.values())

    def artifact(self, path: str) -> Artifact:
        """Return the index entry of an artifact, in this bundle or a nested one."""
        artifact = self.artifacts.get(path)
        if artifact is None:
            for place, inner in self.nested.items():
                if path.startswith(place + "/"):
                    return inner.artifact(path[len(place) + 1 :])
            raise BundleArtifactAbsent(
                f"the bundle {self.run_id} has no artifact {path[:200]!r}",
                op="bundle read",
                fix_hints=["list its artifacts: proofbox bundle show PATH"],
            )
        return artifact

    def read_bytes(self, path: str, *, limit: int | None = None) -> bytes:
        """Read a whole artifact. Raises BundleTooLarge, without reading, beyond `limit` bytes."""
        artifact = self._within(path, limit)
        if path in self.contents:
            return self.contents[path]
        try:
            data = self.directory.read(path, artifact.file_size)
        except OSError as error:
            raise _changed(path, error.strerror or "it is larger or no longer a regular file") from error
        if sha256_hex(data) != artifact.sha256:
            raise _changed(path, "its digest differs")
        return data

    def read_pieces(self, path: str) -> Iterator[bytes]:
        """Yield an artifact of any size in pieces. If it has changed, raise BundleCorrupt after the last piece."""
        artifact = self.artifact(path)
        digest = hashlib.sha256()
        left = artifact.file_size
        try:
            with open(self.directory.open(path), "rb", buffering=0) as stream:
                while piece := stream.read(min(_PIECE, left + 1)):
                    left -= len(piece)
                    if left < 0:
                        raise _changed(path, "it is larger")
                    digest.update(piece)
                    yield piece
        except OSError as error:
            raise _changed(path, error.strerror or str(error)) from error
        if digest.hexdigest() != artifact.sha256:
            raise _changed(path, "its digest differs")

    def _within(self, path: str, limit: int | None) -> Artifact:
        artifact = self.artifact(path)
        if limit is not None and artifact.file_size > limit:
            raise BundleTooLarge(f"{path} has {artifact.file_size} bytes; the limit is {limit}", op="bundle read")
        return artifact

    def read_json(self, path: str, *, schema: str | None = None, limit: int = MAX_JSON_BYTES) -> Any:
        """Read a JSON document. Raises BundleSchemaUnknown if its `schema_version` is not `schema`, if given."""
        value = self._parsed.get(path)
        if value is not None:
            self._within(path, limit)
        else:
            try:
                value = parse_strict(self.read_bytes(path, limit=limit))
            except CanonicalError as error:
                raise BundleCorrupt(f"{path} is not JSON: {error}", op="bundle read") from error
            if path in self.contents:
                self._parsed[path] = value
        if schema is not None:
            stated = value.get("schema_version") if type(value) is dict else None
            if stated != schema:
                raise BundleSchemaUnknown(
                    f"{path} has schema_version {str(stated)[:100]!r}; expected {schema!r}", op="bundle read"
                )
        return value

    def read_as(self, path: str, parse: Callable[[Any], _Result]) -> _Result:
        """Return what `parse` makes of a JSON document. Its result must not change or depend on anything else.

        Attempts at the same mission often have equal small documents, which are parsed once during a visit.
        """
        artifact = self.artifact(path)
        if path not in self.contents or artifact.file_size > _SMALL_DOCUMENT:
            return parse(self.read_json(path))
        key = parse, artifact.sha256
        found: _Result | None = self.parsed.get(key)
        if found is None:
            found = parse(self.read_json(path))
            if len(self.parsed) >= _PARSED_DOCUMENTS:
                del self.parsed[next(iter(self.parsed))]
            self.parsed[key] = found
        return found

    def read_log(self, path: str, *, limit: int = MAX_LOG_BYTES) -> Iterator[dict[str, Any]]:
        """Return the entries of a log in order, each with its `seq` and `prev`, and check its chain on the way.

        The log is read line by line. Whether it is complete is known only at its end: if it is not, that raises
        BundleCorrupt after its last entry.
        """
        for place, inner in self.nested.items():
            if path.startswith(place + "/"):
                return inner.read_log(path[len(place) + 1 :], limit=limit)
        artifact = self._within(path, limit)
        if artifact.chain is None:
            raise BundleCorrupt(f"{path} is not listed as a log", op="bundle read")
        if path in self.contents:
            intact = intact_chain(self.contents[path], f"{self.run_id}/{path}")
            if intact is not None and (len(intact[0]), intact[1]) == (artifact.chain.count, artifact.chain.head):
                return iter(intact[0])
        return self._follow(artifact, artifact.chain)

    def _follow(self, artifact: Artifact, anchor: Anchor) -> Iterator[dict[str, Any]]:
        chain = ChainFollower(f"{self.run_id}/{artifact.path}")
        try:
            yield from chain.follow_lines(self._lines(artifact))
        except CanonicalError as error:
            raise BundleCorrupt(f"{artifact.path} line {chain.count + 1}: {error}", op="bundle read") from error
        if (chain.head, chain.count) != (anchor.head, anchor.count):
            raise BundleCorrupt(f"{artifact.path} does not end where its index says", op="bundle read")

    def _lines(self, artifact: Artifact) -> Iterator[bytes]:
        path = artifact.path
        if path in self.contents:
            yield from io.BytesIO(self.contents[path])
            return
        digest = hashlib.sha256()
        try:
            yield from self.directory.lines(path, artifact.file_size, digest)
        except OSError as error:
            raise _changed(path, error.strerror or str(error)) from error
        if digest.hexdigest() != artifact.sha256:
            raise _changed(path, "its digest differs")


def load_bundle(path: _Path) -> Bundle:
    """Load a committed bundle: a run's directory, or an output directory with LATEST.

    For example:

        results = proofbox.load_bundle("evidence").read_json("results.json")

    Raises BundleNotFound, BundleInProgress, BundleSchemaUnknown or BundleCorrupt (with every finding in its details).
    """
    return load_visiting(path, None)


def load_visiting(path: _Path, visit: Visit | None) -> Bundle:
    """Load a bundle like `load_bundle`, and call `visit` for each nested bundle: see `check_bundle`."""
    found = check_bundle(resolve(path), visit=visit)
    if not found.ok:
        raise refusal(found)
    return as_bundle(found)


def as_bundle(found: BundleCheck, *, path: str | None = None) -> Bundle:
    """Return a readable bundle from the result of a check; each artifact is checked again when it is read.

    `path` is the bundle's current path, if it was renamed after the check.
    """
    if found.index is None or found.status is None:
        raise refusal(found)
    called = found.path if path is None else path
    nested = {place: as_bundle(inner, path=os.path.join(called, place)) for place, inner in found.nested.items()}
    return Bundle(
        called,
        found.index,
        found.status,
        found.index_sha256,
        nested,
        found.directory,
        found.schedule,
        found.schedule_intact,
        found.contents,
        found.parsed,
    )


def refusal(found: BundleCheck) -> BundleError:
    """Return the error for a bundle with findings."""
    findings = [finding.as_json() for finding in found.findings]
    first = findings[0] if findings else {"code": "", "path": "", "detail": "unknown"}
    where = shown(found.path)
    codes = {finding.code for finding in found.findings if not finding.path or "/" not in finding.path}
    kind: type[BundleError] = BundleCorrupt
    hints = ["see all findings: proofbox verify " + where]
    if "schema_unknown" in codes:
        kind, hints = BundleSchemaUnknown, ["use the version of proofbox that wrote it, or a newer version"]
    elif "in_progress" in codes:
        kind = BundleInProgress
        hints = [
            f"wait for its run to end; if a suite's run died, resume it: proofbox suite resume {quote(where)}",
            "inspect the incomplete bundle: open_bundle_unverified()",
        ]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return kind(
        f"{where}: {first['path']}{': ' if first['path'] else ''}{first['detail']}{more}",
        op="bundle load",
        fix_hints=hints,
        details={"findings": findings},
    )


def _changed(path: str, why: str) -> BundleCorrupt:
    return BundleCorrupt(f"{path} has changed since the bundle was loaded: {why}", op="bundle read")


@dataclass(frozen=True, slots=True)
class UnverifiedBundle:
    """The unverified content of a bundle. Even without findings it may be incomplete, and it can't be promoted."""

    path: str
    status: RunStatus | None
    index: Index | None
    missing: tuple[str, ...]
    """Paths that are listed or expected but do not exist."""
    digest_mismatches: tuple[str, ...]
    """Paths whose size or content does not match the index."""
    unlisted: tuple[str, ...]
    findings: tuple[BundleFinding, ...]

    @property
    def state(self) -> str:
        """in_progress, complete or failed, as the bundle states; in_progress without a status or an index."""
        return self.status.state if self.status is not None and self.index is not None else "in_progress"

    def read_bytes(self, path: str, *, limit: int = 1 << 30) -> bytes:
        """Read a file in its current state, without verification."""
        if not is_artifact_path(path):
            check_artifact_path(path, "bundle read")
        try:
            return read_bounded(os.path.join(self.path, path), limit)
        except OSError as error:
            raise NotFoundError(f"{path} can't be read: {error}", op="bundle read") from error


def open_bundle_unverified(path: _Path) -> UnverifiedBundle:
    """Open a bundle in any state (in progress, damaged, failed) and list the differences from its index.

    At most `MAX_UNVERIFIED_BYTES` are read; larger files are findings (`not_checked`).

    For example:

        print(proofbox.open_bundle_unverified("out").missing)
    """
    found = check_bundle(resolve(path), limit=MAX_UNVERIFIED_BYTES)

    def named(*codes: str) -> tuple[str, ...]:
        return tuple(sorted({finding.path for finding in found.findings if finding.code in codes}))

    return UnverifiedBundle(
        path=found.path,
        status=found.status,
        index=found.index,
        missing=tuple(sorted({*named("missing"), *_absent(found)})),
        digest_mismatches=named("size_mismatch", "digest_mismatch"),
        unlisted=named("unlisted"),
        findings=tuple(found.findings),
    )


def _absent(found: BundleCheck) -> Iterable[str]:
    """Return the paths that the bundle states as missing; before the commit, the expected ones that do not exist."""
    if found.index is not None:
        return found.index.missing
    if found.status is None:
        return ()
    return (path for path in found.status.expected if not found.directory.has(path))
