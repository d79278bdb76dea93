"""Snapshots in a store, without the workspace that they were taken of: for verifying an attempt's files again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from proofbox.core.ids import is_id
from proofbox.errors import SnapshotUnknown, StepFilesGone
from proofbox.lab.attempt.documents import FinalSnapshot
from proofbox.workspace import registry
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.history import History
from proofbox.workspace.timeline.restore import write_new


class StoredTrees:
    """The trees of a store, as the verifier needs them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def export(self, name: str, dest: str | os.PathLike[str]) -> None:
        os.makedirs(dest)
        write_new(self._store, os.path.realpath(dest), bytes.fromhex(name))

    def compare(self, a: str, b: str, how: Callable[[ObjectStore, bytes, bytes], None]) -> None:
        how(self._store, bytes.fromhex(a), bytes.fromhex(b))


@contextlib.contextmanager
def stored_trees(found: FinalSnapshot, attempt: str, op: str) -> Iterator[StoredTrees]:
    """Open the store with an attempt's final files. Raises `StepFilesGone` if it is not on this machine."""
    hints = [f"run `proofbox {op}` on the machine where it ran"]
    place = registry.store_path(found.store)
    if not is_id(found.store, "store") or not place.is_dir():
        why = f"the files of {attempt} cannot be restored: their store is not on this machine"
        raise StepFilesGone(why, op=op, fix_hints=hints)
    with contextlib.closing(ObjectStore(place)) as store, store.use():
        try:
            History(store, None).find(found.snapshot)
        except SnapshotUnknown as error:
            why = f"the files of {attempt} cannot be restored: {error.message}"
            raise StepFilesGone(why, op=op, fix_hints=hints) from None
        yield StoredTrees(store)
