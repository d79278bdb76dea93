"""Read bundles, either verified or explicitly unverified.

bundle = load_bundle("out")               # resolves LATEST, checks everything, or raises
bundle.read_json("results.json")

debris = open_bundle_unverified("out/run-01…")   # to investigate a failure
debris.missing, debris.digest_mismatches, debris.unlisted
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.chain import verify_chain
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
from proofbox.evidence.bundle.index import Artifact, Index
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
from proofbox.evidence.verify.check import BundleCheck, BundleFinding, check_bundle

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
        artifact = self.artifact(path)
        if limit is not None and artifact.file_size > limit:
            raise BundleTooLarge(f"{path} has {artifact.file_size} bytes; the limit is {limit}", op="bundle read")
        try:
            data = self.directory.read(path, artifact.file_size)
        except OSError as error:
            raise _changed(path, error.strerror or "it is larger or no longer a regular file") from error
        if sha256_hex(data) != artifact.sha256:
            raise _changed(path, "its digest differs")
        return data

    def read_json(self, path: str, *, schema: str | None = None, limit: int = MAX_JSON_BYTES) -> Any:
        """Read a JSON document. Raises BundleSchemaUnknown if its `schema_version` is not `schema`, if given."""
        try:
            value = parse_strict(self.read_bytes(path, limit=limit))
        except CanonicalError as error:
            raise BundleCorrupt(f"{path} is not JSON: {error}", op="bundle read") from error
        if schema is not None:
            stated = value.get("schema_version") if type(value) is dict else None
            if stated != schema:
                raise BundleSchemaUnknown(
                    f"{path} has schema_version {str(stated)[:100]!r}; expected {schema!r}", op="bundle read"
                )
        return value

    def read_log(self, path: str, *, limit: int = MAX_LOG_BYTES) -> Iterator[dict[str, Any]]:
        """Yield the entries of a log in order, each with its `seq` and `prev`, after checking its chain."""
        for place, inner in self.nested.items():
            if path.startswith(place + "/"):
                yield from inner.read_log(path[len(place) + 1 :], limit=limit)
                return
        anchor = self.artifact(path).chain
        if anchor is None:
            raise BundleCorrupt(f"{path} is not listed as a log", op="bundle read")
        data = self.read_bytes(path, limit=limit)
        report = verify_chain(
            io.BytesIO(data), f"{self.run_id}/{path}", anchor.head, expected_count=anchor.count, limit=len(data) + 1
        )
        if not report.ok:
            first = report.findings[0]
            raise BundleCorrupt(f"{path} line {first.line}: {first.message}", op="bundle read")
        for line in io.BytesIO(data):
            yield parse_strict(line)


def load_bundle(path: _Path) -> Bundle:
    """Load a committed bundle: a run's directory, or an output directory with LATEST.

    Raises BundleNotFound, BundleInProgress, BundleSchemaUnknown or BundleCorrupt (with every finding in its details).
    """
    directory = resolve(path)
    found = check_bundle(directory)
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
    return Bundle(called, found.index, found.status, found.index_sha256, nested, found.directory)


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
    """Open a bundle in any state (in progress, damaged, failed) and list the differences from its index."""
    found = check_bundle(resolve(path))

    def named(*codes: str) -> tuple[str, ...]:
        return tuple(sorted({finding.path for finding in found.findings if finding.code in codes}))

    return UnverifiedBundle(
        path=found.path,
        status=found.status,
        index=found.index,
        missing=tuple(sorted({*named("missing"), *(found.index.missing if found.index else ())})),
        digest_mismatches=named("size_mismatch", "digest_mismatch"),
        unlisted=named("unlisted"),
        findings=tuple(found.findings),
    )
