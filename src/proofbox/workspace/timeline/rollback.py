"""Roll the files back to a snapshot, so that a rollback interrupted at any point is completed later.

A journal next to the store describes the rollback. It is synced before the first file is changed, and removed once the
files match and the history contains the rollback. Opening a workspace with a journal completes the rollback. If that
fails (for example, on a full disk), the journal stays: the next open tries again, and another rollback replaces it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from proofbox.core.files.atomic import TEMPORARY_PREFIX
from proofbox.errors import RollbackUnfinished, WorkspaceChanging
from proofbox.workspace import registry
from proofbox.workspace.model import Method, Snapshot, SnapshotContext, exact
from proofbox.workspace.registry import Rollback
from proofbox.workspace.scanning.working_tree import WorkingTree
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import differences
from proofbox.workspace.timeline.history import History
from proofbox.workspace.timeline.restore import SWAPPED, Restorer

_TRIES = 3


class RollbackRecord(Protocol):
    def __call__(
        self, kind: Literal["snapshot", "rollback"], message: str, method: Method, context: SnapshotContext = ..., /
    ) -> Snapshot:
        """Add the files as last scanned to the history."""


class Rollbacks:
    """The rollbacks of one workspace. Every call except `interrupted` requires the workspace's lock and the store."""

    def __init__(
        self,
        path: Path,
        home: Path,
        store: ObjectStore,
        history: History,
        working_tree: WorkingTree,
        record: RollbackRecord,
    ) -> None:
        self._path = path
        self._journal = home / registry.ROLLBACK
        self._store = store
        self._history = history
        self._working_tree = working_tree
        self._record = record

    @property
    def interrupted(self) -> bool:
        return self._journal.exists()

    def carry_out(self, target: Snapshot) -> tuple[bytes, Mapping[str, str]]:
        """Roll back. Return the tree before, and the paths that differ from the target, with the reason."""
        method = self._working_tree.refresh()
        head = self._history.head()
        before = self._working_tree.tree_id
        if head is None or bytes.fromhex(head.id) != before:
            self._record("snapshot", f"before a rollback to {target.id[:12]}", method)
        journal = Rollback(target.id, before.hex(), TEMPORARY_PREFIX + secrets.token_hex(8))
        # Synced before the first file is changed: the current state, and the journal of the rollback.
        self._store.make_durable()
        replaced = registry.read(self._journal, Rollback)
        registry.write(self._journal, journal)
        with self._under_way(journal):
            if replaced is not None:
                Restorer(str(self._path), self._store, replaced.temporary).remove_temporary()
            return before, self._restore(journal)

    def finish(self) -> None:
        journal = registry.read(self._journal, Rollback)
        if journal is None:
            return  # another process has completed it
        with self._under_way(journal):
            Restorer(str(self._path), self._store, journal.temporary).remove_temporary()
            method = self._working_tree.refresh()
            if self._working_tree.tree_id.hex() not in (journal.before, journal.target):
                self._record("snapshot", f"found after an interrupted rollback to {journal.target[:12]}", method)
            self._restore(journal)

    @contextmanager
    def _under_way(self, journal: Rollback) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
            raise RollbackUnfinished(
                f"the rollback to {journal.target[:12]} is incomplete: {error.strerror}{place}",
                op="workspace rollback",
                details={"path": str(self._path), "target": journal.target},
            ) from error

    def _restore(self, journal: Rollback) -> Mapping[str, str]:
        """Restore the journal's target, record the rollback, and remove the journal."""
        target = self._history.find(journal.target)
        tree = bytes.fromhex(target.id)
        skipped = [exact(each.path, each.path_b64) for each in target.skipped]
        for _ in range(_TRIES):
            restorer = Restorer(str(self._path), self._store, journal.temporary, skipped)
            assert self._working_tree.directory is not None  # noqa: S101 (refreshed by the caller)
            complete = False
            try:
                restorer.restore(self._working_tree.directory, tree)
                complete = not restorer.left
            except OSError as error:
                if error.errno not in SWAPPED:
                    raise
            # A change elsewhere since the last scan is a change after the rollback, which the next scan finds.
            method = self._working_tree.refresh(within=restorer.visited if complete else None)
            if self._only_left(tree, restorer.left):
                break
        else:
            raise WorkspaceChanging(
                f"another process keeps changing {self._path}",
                op="workspace rollback",
                fix_hints=["stop that process, then open the workspace again to complete the rollback"],
            )
        head = self._history.head()
        if head is None or head.kind != "rollback" or head.id != self._working_tree.tree_id.hex():
            context = SnapshotContext(cwd=target.cwd, env=target.env, effects_head=target.effects_head)
            self._record("rollback", f"rollback to {target.id[:12]}", method, context)
        registry.remove(self._journal)
        return restorer.left

    def _only_left(self, tree: bytes, left: Mapping[str, str]) -> bool:
        """Return whether the files match the tree, except for paths that could not be restored and their parents."""
        for each in differences(self._store, tree, self._working_tree.tree_id):
            path = each.path + "/"
            if not any((other + "/").startswith(path) or path.startswith(other + "/") for other in left):
                return False
        return True
