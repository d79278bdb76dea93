"""Making the files what a snapshot says, so that whoever dies on the way, it is finished.

A journal beside the store says what is under way, on the disk before the first file is touched; it is removed when the
files are what it says and the history has it. Who opens the workspace and finds one carries it out. Where that fails
(a full disk, say), the journal stays: the next open tries again, and another rollback takes its place.
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
        """Add the files as they were last looked at to the history."""


class Rollbacks:
    """Of one workspace, whose lock and store are held during every call but `interrupted`."""

    def __init__(
        self, path: Path, home: Path, store: ObjectStore, history: History, look: WorkingTree, record: RollbackRecord
    ) -> None:
        self._path = path
        self._journal = home / registry.ROLLBACK
        self._store = store
        self._history = history
        self._look = look
        self._record = record

    @property
    def interrupted(self) -> bool:
        return self._journal.exists()

    def carry_out(self, target: Snapshot) -> tuple[bytes, Mapping[str, str]]:
        """The tree that was left, and the paths that are not as the target has them, with the reason."""
        method = self._look.refresh()
        head = self._history.head()
        before = self._look.tree_id
        if head is None or bytes.fromhex(head.id) != before:
            self._record("snapshot", f"before a rollback to {target.id[:12]}", method)
        journal = Rollback(target.id, before.hex(), TEMPORARY_PREFIX + secrets.token_hex(8))
        # On the disk before the first file is touched: what is left behind, and that we are about to leave it.
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
            return  # whoever carried it out has finished
        with self._under_way(journal):
            Restorer(str(self._path), self._store, journal.temporary).remove_temporary()
            method = self._look.refresh()
            if self._look.tree_id.hex() not in (journal.before, journal.target):
                self._record("snapshot", f"found after an interrupted rollback to {journal.target[:12]}", method)
            self._restore(journal)

    @contextmanager
    def _under_way(self, journal: Rollback) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
            raise RollbackUnfinished(
                f"the rollback to {journal.target[:12]} is not finished: {error.strerror}{place}",
                op="workspace rollback",
                details={"path": str(self._path), "target": journal.target},
            ) from error

    def _restore(self, journal: Rollback) -> Mapping[str, str]:
        """Make the files the journal's target, record that, and be done with the journal."""
        target = self._history.find(journal.target)
        tree = bytes.fromhex(target.id)
        skipped = [exact(each.path, each.path_b64) for each in target.skipped]
        for _ in range(_TRIES):
            restorer = Restorer(str(self._path), self._store, journal.temporary, skipped)
            assert self._look.directory is not None  # noqa: S101 (refreshed by the caller)
            try:
                restorer.restore(self._look.directory, tree)
            except OSError as error:
                if error.errno not in SWAPPED:
                    raise
            method = self._look.refresh()
            if self._only_left(tree, restorer.left):
                break
        else:
            raise WorkspaceChanging(
                f"something keeps changing {self._path}",
                op="workspace rollback",
                fix_hints=["stop what is writing there, then open the workspace again: the rollback is finished then"],
            )
        head = self._history.head()
        if head is None or head.kind != "rollback" or head.id != self._look.tree_id.hex():
            context = SnapshotContext(cwd=target.cwd, env=target.env, effects_head=target.effects_head)
            self._record("rollback", f"rollback to {target.id[:12]}", method, context)
        registry.remove(self._journal)
        return restorer.left

    def _only_left(self, tree: bytes, left: Mapping[str, str]) -> bool:
        """Whether the files are that tree, but for what could not be put back and the directories on the way to it."""
        for each in differences(self._store, tree, self._look.tree_id):
            path = each.path + "/"
            if not any((other + "/").startswith(path) or path.startswith(other + "/") for other in left):
                return False
        return True
