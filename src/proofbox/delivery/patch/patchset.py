"""Compute the changes that bring the source's files into a repository: a three-way comparison by digests.

The three sides are the repository's manifest, the files that we delivered before (`baseline`), and the source. For each
path:

- the same in repository and source: nothing to do;
- absent from the repository, or delivered by us and unchanged there: add, modify or delete;
- changed in the repository by others: kept if the source has not changed since, a conflict otherwise;
- in the repository but never delivered by us: left alone if the source does not have it, a conflict otherwise.

So we never delete a file that we did not deliver, and never overwrite someone else's changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from proofbox.core.digest import digest_of, sha256_hex
from proofbox.delivery.client.wire import Operation, RepoManifest
from proofbox.delivery.patch.baseline import Baseline, FileState, same, states
from proofbox.delivery.source.tree import SourceTree
from proofbox.evidence.bundle.paths import above

BRANCH_PREFIX = "proofbox/"
_EMPTY = sha256_hex(b"")  # empty files are never treated as renamed


class PatchChange(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    operation: Operation
    before_sha256: str | None = None
    after_sha256: str | None = None
    before_mode: str | None = None
    after_mode: str | None = None
    size: int = 0
    """The size of the content to send."""
    renamed_from: str | None = None
    """For an added file with the content of a deleted one: the path of the deleted file."""
    renamed_to: str | None = None


class Conflict(msgspec.Struct, frozen=True):
    """A conflict that a person must resolve. A digest is null if that side does not have the file."""

    path: str
    kind: Literal["repo_has_file", "repo_modified_since_baseline"]
    """`repo_has_file`: a file is in the way. `repo_modified_since_baseline`: a file that we delivered was changed."""
    baseline_sha256: str | None
    repo_sha256: str | None
    source_sha256: str | None
    detail: str = ""


class Patchset(msgspec.Struct, frozen=True, kw_only=True):
    patch_id: str
    """The digest of the changes; equal changes have equal digests."""
    base_commit_sha: str | None
    changes: tuple[PatchChange, ...]
    conflicts: tuple[Conflict, ...]
    kept: tuple[str, ...]
    """Paths that others changed in the repository and that the source has not changed since; they are not touched."""
    unchanged: int
    not_ours: int
    """The number of files in the repository that we never delivered and that the source does not have."""

    @property
    def branch_name(self) -> str:
        return BRANCH_PREFIX + self.patch_id[:16]


def patchset(source: SourceTree, manifest: RepoManifest, baseline: Baseline) -> Patchset:
    """Return the changes from `manifest` to `source`, sorted by the bytes of their paths."""
    ours = {file.path: FileState(file.sha256, file.mode) for file in source.files}
    sizes = {file.path: file.size for file in source.files}
    repo = states(manifest)
    left_out = {left.path for left in source.left_out}
    changes: list[PatchChange] = []
    conflicts: list[Conflict] = []
    kept: list[str] = []
    unchanged = not_ours = 0
    for path in sorted({*ours, *repo, *baseline.files}, key=str.encode):
        mine, there, owned = ours.get(path), repo.get(path), baseline.files.get(path)
        if path in left_out and mine is None:
            # A left-out file is not deleted: the repository keeps its file at that path.
            not_ours += there is not None
        elif same(mine, there):
            unchanged += mine is not None
        elif owned is None and (there is None or mine is None):
            if mine is None:
                not_ours += 1
            else:
                changes.append(_change(path, None, mine, sizes[path]))
        elif owned is not None and owned.includes(there):
            changes.append(_change(path, there, mine, sizes.get(path, 0)))
        elif owned is not None and same(mine, owned.latest):
            kept.append(path)
        else:
            base = owned.settled if owned else None
            kind: Literal["repo_has_file", "repo_modified_since_baseline"] = (
                "repo_modified_since_baseline" if base else "repo_has_file"
            )
            conflicts.append(Conflict(path, kind, _sha(base), _sha(there), _sha(mine)))
    conflicts += _clashes(changes, repo, baseline)
    changes = _with_renames(changes)
    return Patchset(
        patch_id=patch_id(changes),
        base_commit_sha=manifest.base_commit_sha,
        changes=tuple(changes),
        conflicts=tuple(sorted(conflicts, key=lambda conflict: conflict.path.encode())),
        kept=tuple(kept),
        unchanged=unchanged,
        not_ours=not_ours,
    )


def patch_id(changes: Iterable[PatchChange]) -> str:
    """Hash the changes but not the base commit: the same change on a newer base has the same id."""
    return digest_of(
        [
            [each.path, each.operation, each.before_sha256, each.after_sha256, each.before_mode, each.after_mode]
            for each in changes
        ]
    )


def _change(path: str, before: FileState | None, after: FileState | None, size: int) -> PatchChange:
    operation: Operation = "delete" if after is None else "add" if before is None else "modify"
    return PatchChange(
        path=path,
        operation=operation,
        before_sha256=_sha(before),
        after_sha256=_sha(after),
        before_mode=before.mode if before else None,
        after_mode=after.mode if after else None,
        size=size,
    )


def _sha(state: FileState | None) -> str | None:
    return state.sha256 if state else None


def _clashes(changes: list[PatchChange], repo: Mapping[str, FileState], baseline: Baseline) -> list[Conflict]:
    """Find added paths that would need a path of the repository to be both a file and a directory."""
    gone = {each.path for each in changes if each.operation == "delete"}
    stays = {path for path in repo if path not in gone}
    folders = {folder for path in stays for folder in above(path)}
    found: dict[str, Conflict] = {}
    for each in changes:
        if each.operation != "add":
            continue
        blocking = [folder for folder in above(each.path) if folder in stays]
        if each.path in folders:
            blocking.append(next(path for path in sorted(stays) if path.startswith(each.path + "/")))
        for path in blocking:
            owned = baseline.files.get(path)
            detail = f"{each.path} would be added but cannot coexist with it"
            found[path] = Conflict(
                path, "repo_has_file", _sha(owned.settled) if owned else None, _sha(repo[path]), None, detail
            )
    return list(found.values())


def _with_renames(changes: list[PatchChange]) -> list[PatchChange]:
    """Pair deleted and added files with the same content as renames, in path order."""
    gone: dict[str, list[str]] = {}
    for each in changes:
        if each.operation == "delete" and each.before_sha256 and each.before_sha256 != _EMPTY:
            gone.setdefault(each.before_sha256, []).append(each.path)
    moved: dict[str, str] = {}
    paired = []
    for each in changes:
        candidates = gone.get(each.after_sha256 or "")
        if each.operation == "add" and candidates:
            old = candidates.pop(0)
            moved[old] = each.path
            paired.append(msgspec.structs.replace(each, renamed_from=old))
        else:
            paired.append(each)
    return [
        msgspec.structs.replace(each, renamed_to=moved[each.path])
        if each.operation == "delete" and each.path in moved
        else each
        for each in paired
    ]
