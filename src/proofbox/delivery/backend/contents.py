"""The files of a commit, as the API tells them, and the changes that a request asks for, as edits of git.

Git knows a file by its own digest, the API by its SHA-256: what is known of a blob is kept in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proofbox.core.digest import sha256_hex
from proofbox.core.text import path_fields
from proofbox.delivery.backend.git import Edit, Git, blob_id
from proofbox.delivery.backend.ledger import BackendDatabase
from proofbox.delivery.backend.rules import BackendRefusal, check_clashes, check_edits
from proofbox.delivery.client.wire import ManifestFile, RepositoryChange

_HASHED_AT_ONCE = 200


def files_of(git: Git, commit: str, ledger: BackendDatabase) -> Iterator[ManifestFile]:
    blobs = list(git.blobs(commit))
    known = ledger.blobs({blob.oid for blob in blobs})
    new = sorted({blob.oid for blob in blobs} - known.keys())
    for at in range(0, len(new), _HASHED_AT_ONCE):
        some = new[at : at + _HASHED_AT_ONCE]
        found = {oid: (sha256_hex(data), len(data)) for oid, data in zip(some, git.contents(some), strict=True)}
        ledger.put_blobs((oid, *facts) for oid, facts in found.items())
        known |= found
    for blob in blobs:
        sha256, size = known[blob.oid]
        # An odd mode that some old tool has written is an ordinary file's.
        mode = blob.mode if blob.mode in ("100755", "120000") else "100644"
        yield ManifestFile(path=path_fields(blob.path)["path"], sha256=sha256, size_bytes=size, mode=mode)  # type: ignore[arg-type]


def edits_of(git: Git, base: str, changes: Sequence[RepositoryChange], max_file: int) -> list[Edit]:
    """The changes as edits, if the base has what they say it has."""
    there = {blob.path: blob for blob in git.blobs(base)}
    edits = []
    for change in changes:
        blob = there.get(change.path)
        if (blob is None) != (change.operation == "add"):
            state = "not there" if blob is None else "there already"
            raise BackendRefusal(
                409, "change_misfits", f"can't {change.operation} {change.path[:200]!r}: it is {state}"
            )
        if (change.content_base64 is None) != (change.operation == "delete"):
            raise BackendRefusal(422, "content_misfits", f"{change.operation} of {change.path[:200]!r} and its content")
        mode = change.mode or (blob.mode if blob else "100644")
        edits.append(Edit(change.path, mode, change.content_base64))
    if not edits:
        raise BackendRefusal(422, "nothing_to_change", "a pull request has at least one change")
    check_edits(edits, max_file)
    gone = {edit.path for edit in edits if edit.content is None}
    check_clashes({*(there.keys() - gone), *(edit.path for edit in edits if edit.content is not None)})
    # Removed first: a directory may take the place of a file.
    return sorted(edits, key=lambda edit: edit.content is not None)


def remember(edits: Sequence[Edit], ledger: BackendDatabase) -> None:
    ledger.put_blobs(
        (blob_id(edit.content), sha256_hex(edit.content), len(edit.content))
        for edit in edits
        if edit.content is not None
    )
