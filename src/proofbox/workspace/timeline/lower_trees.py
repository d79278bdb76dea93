"""Snapshots written to disk once, as the lower layer of any number of boxes. Stored out of sight of the boxes.

    lower/<tree id>/       the files of a snapshot
    lower/<tree id>.lock   held shared while they are used, exclusively while they are created or removed
    lower/.proofbox-tmp-<tree id>/   the files while they are written

They are copies: only the most recently used are kept, and `gc` removes all unused ones.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from proofbox.core.files.atomic import TEMPORARY_PREFIX
from proofbox.core.files.removal import remove_tree
from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import TreeDifference, differences
from proofbox.workspace.timeline.new_tree import write_new

KEPT = 4
NEAR = 2000
"""Up to this many differences are put on top of another snapshot's files, instead of writing all files again."""


class LowerTree:
    """A lower tree in use. `close` allows others to remove it."""

    def __init__(self, path: Path, lock: int, over: list[TreeDifference]) -> None:
        self.path = path
        self.over = over
        """The differences of the snapshot from these files."""
        self._lock = lock

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class LowerTrees:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._directory = store.directory / "lower"

    def near(self, tree: bytes) -> LowerTree:
        """Return the files of this tree, or of a similar one. Call within the store's `use`."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(self._existing(), key=lambda path: path.name != tree.hex()):
            lock = _locked(path, fcntl.LOCK_SH)
            over = self._distance(bytes.fromhex(path.name), tree) if path.is_dir() else None
            if over is not None:
                os.utime(lock)
                return LowerTree(path, lock, over)
            os.close(lock)
        return self._make(tree)

    def evict(self, keep: int) -> None:
        """Remove all but the `keep` most recently used trees, unless in use, and leftovers of killed processes."""
        for path in list(self._existing())[keep:]:
            self._remove_unused(path, path)
        for path in self._directory.glob(TEMPORARY_PREFIX + "*"):
            self._remove_unused(path, path.with_name(path.name.removeprefix(TEMPORARY_PREFIX)))

    def _remove_unused(self, path: Path, tree_path: Path) -> None:
        try:
            lock = _locked(tree_path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            remove_tree(path)
        finally:
            os.close(lock)

    def _existing(self) -> Iterator[Path]:
        """Yield the existing trees, most recently used first."""
        locks = self._directory.glob("*.lock")
        for lock in sorted(locks, key=lambda lock: lock.stat().st_mtime_ns, reverse=True):
            if (path := lock.with_suffix("")).is_dir():
                yield path

    def _distance(self, base: bytes, tree: bytes) -> list[TreeDifference] | None:
        try:
            found = list(itertools.islice(differences(self._store, base, tree), NEAR + 1))
        except WorkspaceCorrupt:
            return None  # removed by a collection in the meantime
        return found if len(found) <= NEAR else None

    def _make(self, tree: bytes) -> LowerTree:
        path = self._directory / tree.hex()
        lock = _locked(path, fcntl.LOCK_EX)
        try:
            if not path.is_dir():
                making = self._directory / (TEMPORARY_PREFIX + tree.hex())
                remove_tree(making)
                making.mkdir(mode=0o755)
                try:
                    write_new(self._store, str(making), tree)
                    making.rename(path)
                except BaseException:
                    remove_tree(making)
                    raise
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(lock)
        except BaseException:
            os.close(lock)
            raise
        self.evict(KEPT)
        return LowerTree(path, lock, [])


def _locked(path: Path, how: int) -> int:
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, how)
    except BaseException:
        os.close(lock)
        raise
    return lock
