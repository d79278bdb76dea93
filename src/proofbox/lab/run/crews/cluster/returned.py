"""Checks the bundle that a node returned for an attempt. Nothing that a node says is trusted.

A bundle counts only if it is intact, all of its logs included, and claims nothing except the result of that attempt
on that node. Otherwise a node could damage the evidence of the whole run, or pass off files of another run as the
result of its attempt.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from proofbox.core.archives.unpack import ArchiveLimits, ArchiveRefused, unpack_tar
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import is_id
from proofbox.errors import BundleCorrupt
from proofbox.evidence.bundle.reader import Bundle, as_bundle, refusal
from proofbox.evidence.verify.check import check_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.context import RunContext
from proofbox.lab.attempt.documents import SuiteNamed
from proofbox.lab.run.closing import committed_result
from proofbox.lab.run.ledger import Attempt, Ended
from proofbox.workspace import registry

MAX_BUNDLE = ArchiveLimits(files=100_000, size=16 << 30)
MAX_ARCHIVE = MAX_BUNDLE.size + 4096 * MAX_BUNDLE.files
"""Bytes of the archive of such a bundle, with the headers and the padding of each file."""


class _FinalClaim(msgspec.Struct, frozen=True):
    store: str


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The members of an attempt's record that the conductor knows, and the store that it names."""

    attempt_id: str
    run_id: str
    suite: SuiteNamed
    mission_id: str
    replicate: int
    parent: str | None = None
    epoch: int
    final: _FinalClaim | None = None


def open_returned(archive: Path, dest: Path, index_sha256: str, attempt: Attempt, node: str, run: RunContext) -> Ended:
    """Unpack an attempt's bundle at `dest`, and return its result. Raises `BundleCorrupt` if it is not that bundle.

    `index_sha256` is the digest of the index that the node named.
    """
    _unpack(archive, dest)
    found = check_bundle(str(dest), chains=True)
    if not found.ok:
        raise refusal(found)
    bundle = as_bundle(found)
    ended = committed_result(bundle, run.run_id, attempt.id)
    if ended is None or bundle.index_sha256 != index_sha256:
        raise _refused("it contradicts itself")
    if bundle.nested:
        raise _refused("it contains other bundles")
    _check_claims(bundle, attempt, node, run)
    return ended


def _check_claims(bundle: Bundle, attempt: Attempt, node: str, run: RunContext) -> None:
    try:
        record = msgspec.convert(artifacts.read_json(bundle, artifacts.ATTEMPT), _Claims)
        named = artifacts.read_json(bundle, artifacts.NODE).get("name")
    except msgspec.ValidationError as error:
        raise _refused(f"{artifacts.ATTEMPT} is malformed: {error}") from error
    expected = _Claims(
        attempt_id=attempt.id,
        run_id=run.run_id,
        suite=SuiteNamed(run.suite.id, run.suite.sha256),
        mission_id=attempt.mission,
        replicate=attempt.replicate,
        parent=attempt.parent,
        epoch=attempt.epoch,
        final=record.final,
    )
    if record != expected:
        raise _refused("it is of another attempt")
    if named != run.redactor.redact(node):
        raise _refused("it names another node")
    store = None if record.final is None else record.final.store
    if store is not None and (not is_id(store, "store") or registry.store_path(store).exists()):
        raise _refused("it names a store of this machine, but its files are on the node")


def _refused(why: str) -> BundleCorrupt:
    return BundleCorrupt(f"the returned bundle is refused: {why}", op="attempt")


def _unpack(archive: Path, dest: Path) -> None:
    remove_tree(dest)
    dest.mkdir(parents=True, mode=0o700)
    try:
        with open(archive, "rb") as stream:
            unpack_tar(stream, dest, MAX_BUNDLE)
    except ArchiveRefused as error:
        raise BundleCorrupt(f"the node returned a malformed archive: {error}", op="transfer") from error
    archive.unlink()
