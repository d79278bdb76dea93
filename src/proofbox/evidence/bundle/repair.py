"""Reindexing: check a bundle against its index, or rebuild the index with an audit trail.

A repair never improves a bundle's status. It indexes the current files, records the previous entries in
`repair_log.json`, permanently increments the index's repair count, and keeps every missing artifact listed as missing.
A failed run stays failed.
"""

from __future__ import annotations

import os
from typing import Any

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.digest import sha256_file, sha256_hex
from proofbox.core.documents import declare
from proofbox.core.files.atomic import write_document
from proofbox.core.text import preview, printable
from proofbox.errors import BundleInProgress, BundleRepairRefused, BundleSchemaUnknown
from proofbox.evidence.bundle.identity import PROCESS, process_identity, world_id
from proofbox.evidence.bundle.index import (
    Artifact,
    Index,
    SchemaUnknown,
    bounded_bytes,
    refuse_other_schema,
    schema_of,
)
from proofbox.evidence.bundle.lock import Mode, RunLock
from proofbox.evidence.bundle.packed import require_directory
from proofbox.evidence.bundle.paths import (
    INDEX,
    MAX_JSON_BYTES,
    MAX_STATUS_BYTES,
    REPAIR_LOG,
    STATUS,
    enclosing,
    is_artifact_path,
    read_bounded,
    resolve,
    shown,
    tidy,
)
from proofbox.evidence.documents import shape
from proofbox.evidence.pool import in_threads
from proofbox.evidence.verify.check import BundleCheck, check_bundle

SCHEMA = "proofbox.repair_log/1"
_ENTRY = shape.or_null(shape.table(shape.anything))
_NAMES = shape.array(shape.text())
_REPAIR = shape.record(
    {
        "at": shape.moment.meaning("When the index was rebuilt."),
        "by": PROCESS.meaning("The process that rebuilt it."),
        "index_before": shape.record(
            {
                "size": shape.count.meaning("Size in bytes; 0 if it could not be read."),
                "sha256": shape.text(64).meaning("SHA-256 of the file; empty if it could not be read."),
                "readable": shape.flag.meaning("Whether it was a valid index."),
                "status": shape.or_null(shape.text(16)).meaning("The status that it stated; null if not readable."),
                "missing": _NAMES.meaning("The paths that it listed as missing; empty if not readable."),
            }
        ).meaning("The index that was replaced."),
        "findings": shape.array(shape.table(shape.text(1 << 16))).meaning("The findings that led to the repair."),
        "changes": shape.array(
            shape.record(
                {
                    "path": shape.text(1 << 14).meaning("Relative to the bundle's directory."),
                    "before": _ENTRY.meaning("Null if it was not listed."),
                    "after": _ENTRY.meaning("Null if the file no longer exists."),
                }
            )
        ).meaning("The index's entries before and after."),
        "missing_after": _NAMES.meaning("The paths that the new index lists as missing."),
    }
)
_LOST = shape.record(
    {
        "at": shape.moment.meaning("When the loss was detected."),
        "size": shape.count.meaning("Size of the log in bytes; 0 if it could not be opened."),
        "sha256": shape.text(64).meaning("SHA-256 of the log; empty if it could not be opened."),
        "detail": shape.text(1000).meaning("Why the log could not be read."),
    }
)
_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        "repairs": shape.array(_REPAIR).meaning("One entry per repair, in order."),
    },
    {
        "lost": shape.array(_LOST).meaning(
            "Unreadable logs of earlier repairs, whose entries are lost. Absent if no log was lost."
        ),
    },
)
declare(
    SCHEMA,
    at="BUNDLE/repair_log.json",
    meaning="The findings and changes of each repair of an index.",
    shape=_DOCUMENT.json_schema,
)

MAX_CHANGES = 50_000
"""Maximum number of changes that one repair records."""
MAX_REPAIRED_BYTES = 1 << 34
"""Maximum size of a changed file that a repair lists."""
_Path = str | os.PathLike[str]


def reindex_strict(path: _Path) -> BundleCheck:
    """Check a bundle, including its logs, against its index. Changes nothing; the result has the findings."""
    return check_bundle(resolve(path), chains=True)


def reindex_repair(
    path: _Path, *, lock: Mode = "wait", lock_timeout: float = 30.0, clock: Clock | None = None
) -> tuple[Index, list[dict[str, Any]]]:
    """Rebuild the index from the current files. Return the new index and the changes recorded in the repair log.

    A bundle without findings is left unchanged, and its index is returned with no changes. Refuses a bundle in
    progress, one whose status can't be read, and one that contains links or special files.
    """
    directory = require_directory(path, "bundle reindex")
    now: Clock = clock or SystemClock()
    out = os.path.dirname(enclosing(directory))
    with RunLock(out, purpose=f"repair {os.path.basename(directory)}", mode=lock, timeout=lock_timeout, clock=now):
        checked = check_bundle(directory, chains=True)
        _refuse(checked, directory)
        if checked.ok and checked.index is not None:
            return checked.index, []
        return _rebuild(checked, directory, now)


def _refuse(checked: BundleCheck, directory: str) -> None:
    status = checked.status
    if any(finding.code == "in_progress" and finding.path in ("", STATUS) for finding in checked.findings):
        raise BundleInProgress(
            f"{shown(directory)} was never committed, so there is nothing to repair",
            op="bundle repair",
            fix_hints=["inspect it with open_bundle_unverified(), or run it again"],
        )
    irreparable = [
        each for each in checked.findings if each.code in ("symlink", "special", "unreadable", "schema_unknown")
    ]
    if status is None or irreparable:
        why = f"{irreparable[0].path}: {irreparable[0].detail}" if irreparable else "its run_status.json can't be read"
        raise BundleRepairRefused(
            f"{shown(directory)} can't be repaired without inventing data: {why}",
            op="bundle repair",
            fix_hints=["restore the bundle from a copy"],
        )


def _rebuild(checked: BundleCheck, directory: str, clock: Clock) -> tuple[Index, list[dict[str, Any]]]:
    status, before = checked.status, checked.index
    if status is None:
        raise BundleRepairRefused("its run_status.json can't be read", op="bundle repair")
    own, interrupted = tidy(directory).split()
    unnameable = sorted(shown(path) for path in own if not is_artifact_path(path))
    if unnameable:
        raise BundleRepairRefused(
            f"invalid artifact name: {unnameable[0]}",
            op="bundle repair",
            fix_hints=["rename or remove the file"],
        )
    listed = dict(before.artifacts) if before is not None else {}
    more = any(finding.code == "more" for finding in checked.findings)
    sound = set() if more else listed.keys() - {finding.path for finding in checked.findings}
    entries = in_threads(
        lambda path: listed[path] if path in sound else _measure(directory, path, listed.get(path)),
        sorted(own - {INDEX, REPAIR_LOG}),
    )
    artifacts = {entry.path: entry for entry in entries}
    paths = sorted((listed.keys() | artifacts.keys()) - {REPAIR_LOG})
    changed = [path for path in paths if listed.get(path) != artifacts.get(path)]
    if len(changed) > MAX_CHANGES:
        raise _unrecordable(directory, len(changed))
    changes = [
        {
            "path": path,
            "before": listed[path].as_json() if path in listed else None,
            "after": artifacts[path].as_json() if path in artifacts else None,
        }
        for path in changed
    ]
    wanted = {*listed, *status.expected, *interrupted, *(before.missing if before is not None else ())}
    missing = tuple(sorted(wanted - artifacts.keys() - {REPAIR_LOG}))
    repairs, lost = _past_repairs(directory, clock)
    count = max(before.repairs if before is not None else 0, len(repairs) + len(lost)) + 1
    repairs.append(
        {
            "at": isoformat(clock.now()),
            "by": process_identity(),
            "index_before": {
                "size": checked.index_size,
                "sha256": checked.index_sha256,
                "readable": before is not None,
                "status": before.status if before is not None else None,
                "missing": list(before.missing) if before is not None else [],
            },
            "findings": [finding.as_json() for finding in checked.findings],
            "changes": changes,
            "missing_after": list(missing),
        }
    )
    log = {"schema_version": SCHEMA, "repairs": repairs, **({"lost": lost} if lost else {})}
    try:
        encoded = canonical_bytes(log)
    except CanonicalError as error:
        raise _unrecordable(directory, len(changes)) from error
    write_document(os.path.join(directory, REPAIR_LOG), encoded)
    artifacts[REPAIR_LOG] = _measure(directory, REPAIR_LOG, None)
    index = Index(
        run_id=status.run_id,
        world_id=world_id(status.world),
        status=_status(status.state, before, missing),
        artifacts=artifacts,
        missing=missing,
        repairs=count,
    )
    write_document(os.path.join(directory, INDEX), bounded_bytes(index))
    return index, changes


def _status(state: str, before: Index | None, missing: tuple[str, ...]) -> str:
    """Return the new status: never better than before, and at most partial if the old index is unreadable."""
    if state == "failed" or (before is not None and before.status == "failed"):
        return "failed"
    return "ok" if before is not None and before.status == "ok" and not missing else "partial"


def _measure(directory: str, path: str, listed: Artifact | None) -> Artifact:
    fd = os.open(os.path.join(directory, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        limit = os.fstat(fd).st_size
        if limit > MAX_REPAIRED_BYTES:
            raise _unlistable(path, f"it has {limit} bytes; the limit is {MAX_REPAIRED_BYTES}")
        digest, size = sha256_file(fd, limit=limit)
    finally:
        os.close(fd)
    if size > limit:
        raise _unlistable(path, "it grew while it was read")
    if listed is not None and listed.sha256 == digest and listed.file_size == size:
        return listed
    schema = listed.schema_version if listed is not None else None
    if path.endswith(".json") and size <= MAX_STATUS_BYTES:
        schema = schema_of(read_bounded(os.path.join(directory, path), MAX_STATUS_BYTES))
    # Keep the anchor that the log's writer recorded: if the log no longer matches it, verification must still fail.
    return Artifact(path, size, digest, schema, listed.chain if listed is not None else None)


def _unlistable(path: str, why: str) -> BundleRepairRefused:
    return BundleRepairRefused(
        f"{shown(path)} can't be listed: {why}", op="bundle repair", fix_hints=["restore the file from a copy"]
    )


def _unrecordable(directory: str, changes: int) -> BundleRepairRefused:
    return BundleRepairRefused(
        f"{shown(directory)} can't be repaired: the log of its {changes} changes would be too large",
        op="bundle repair",
        fix_hints=["restore the bundle from a copy"],
    )


def _refuse_other_version(document: dict[str, Any]) -> None:
    """Refuse a log of an unknown version, which is not damaged and must not be replaced."""
    try:
        refuse_other_schema(document, SCHEMA)
    except SchemaUnknown as error:
        raise BundleSchemaUnknown(f"{REPAIR_LOG}: {error}", op="bundle repair") from error


def _past_repairs(directory: str, clock: Clock) -> tuple[list[Any], list[Any]]:
    """Return the repairs in the log, and the lost logs, including this one if it is unreadable."""
    data = b""
    try:
        data = read_bounded(os.path.join(directory, REPAIR_LOG), MAX_JSON_BYTES)
        document = parse_strict(data)
        if type(document) is dict and "schema_version" in document:
            _refuse_other_version(document)
        _DOCUMENT(document, REPAIR_LOG)
    except FileNotFoundError:
        return [], []
    except (OSError, CanonicalError, shape.ShapeError) as error:
        digest = sha256_hex(data) if data else ""
        detail = preview(printable(str(error)), 1000)[0]
        return [], [{"at": isoformat(clock.now()), "size": len(data), "sha256": digest, "detail": detail}]
    return document["repairs"], document.get("lost", [])
