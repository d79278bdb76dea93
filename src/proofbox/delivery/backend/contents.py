"""List the files of a commit for the API, and convert requested changes into git edits.

Git identifies a file by its own digest, the API by its SHA-256; the ledger stores the mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proofbox.core.digest import sha256_hex
from proofbox.core.text import path_fields
from proofbox.delivery.backend.git import Edit, Git, blob_id
from proofbox.delivery.backend.ledger import BackendDatabase
from proofbox.delivery.backend.rules import BackendRefusal, check_clashes, check_edits
from proofbox.delivery.client.wire import ManifestFile, RepositoryChange

_BATCH = 200


def files_of(git: Git, commit: str, ledger: BackendDatabase) -> Iterator[ManifestFile]:
    blobs = list(git.blobs(commit))
    known = ledger.blobs({blob.oid for blob in blobs})
    new = sorted({blob.oid for blob in blobs} - known.keys())
    for at in range(0, len(new), _BATCH):
        some = new[at : at + _BATCH]
        found = {oid: (sha256_hex(data), len(data)) for oid, data in zip(some, git.contents(some), strict=True)}
        ledger.put_blobs((oid, *facts) for oid, facts in found.items())
        known |= found
    for blob in blobs:
        sha256, size = known[blob.oid]
        # An unusual mode, as written by old tools, means a regular file.
        mode = blob.mode if blob.mode in ("100755", "120000") else "100644"
        yield ManifestFile(path=path_fields(blob.path)["path"], sha256=sha256, size_bytes=size, mode=mode)  # type: ignore[arg-type]


def edits_of(git: Git, base: str, changes: Sequence[RepositoryChange], max_file: int) -> list[Edit]:
    """Return the changes as edits. Refuse changes that do not fit the base commit."""
    there = {blob.path: blob for blob in git.blobs(base)}
    edits = []
    for change in changes:
        blob = there.get(change.path)
        if (blob is None) != (change.operation == "add"):
            state = "does not exist" if blob is None else "already exists"
            raise BackendRefusal(409, "change_misfits", f"cannot {change.operation} {change.path[:200]!r}: it {state}")
        if (change.content_base64 is None) != (change.operation == "delete"):
            raise BackendRefusal(
                422,
                "content_misfits",
                f"{change.operation} of {change.path[:200]!r}: content is missing or not allowed",
            )
        mode = change.mode or (blob.mode if blob else "100644")
        edits.append(Edit(change.path, mode, change.content_base64))
    if not edits:
        raise BackendRefusal(422, "nothing_to_change", "a pull request must have at least one change")
    check_edits(edits, max_file)
    gone = {edit.path for edit in edits if edit.content is None}
    check_clashes({*(there.keys() - gone), *(edit.path for edit in edits if edit.content is not None)})
    # Deletions first: a directory may replace a file.
    return sorted(edits, key=lambda edit: edit.content is not None)


def remember(edits: Sequence[Edit], ledger: BackendDatabase) -> None:
    ledger.put_blobs(
        (blob_id(edit.content), sha256_hex(edit.content), len(edit.content))
        for edit in edits
        if edit.content is not None
    )
