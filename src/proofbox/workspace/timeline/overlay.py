"""A snapshot as the project of a box, without a copy: the box's changes are stored apart, listed and discarded.

    with ws.overlay("HEAD") as layers, Sandboxes(ws.path).start_session(**layers.options()) as session:
        session.exec(["make", "test"])
        layers.changes()

The box sees the files at the workspace's own path. The kernel merges the layers inside the box's mount namespace:
nothing is mounted on the host, and no mount remains when a process is killed. The snapshot is written to disk once
(`lower_trees`); for a similar snapshot, only the differences are written.

Each overlay has a directory `boxes/<id>/` below the store: `over` contains this snapshot's differences from the written
one, `change/upper` the box's changes. A lock next to it shows whether its owner is still alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from proofbox.core.files.nofollow import opened_directory
from proofbox.core.files.removal import remove_tree
from proofbox.sandbox.contract import Layers
from proofbox.workspace.model import Change
from proofbox.workspace.scanning.scanner import MAX_FILE_SIZE, beyond
from proofbox.workspace.store.large_objects import chunks_of
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import entries_of
from proofbox.workspace.timeline.diff import TreeDifference, as_changes, differences
from proofbox.workspace.timeline.lower_trees import LowerTree, LowerTrees
from proofbox.workspace.timeline.restore import unlink_if_there, write_file
from proofbox.workspace.tree import EMPTY_TREE, StoredEntry, kept_mode

if TYPE_CHECKING:
    from proofbox.sandbox.options import PolicyOptions

_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Overlay:
    """Created by `Workspace.overlay` of an open workspace; close it or use it in a `with`. Closing discards it."""

    def __init__(self, store: ObjectStore, tree: bytes, root_mode: int) -> None:
        self._store = store
        self._tree = tree
        self._works = 0
        boxes = store.directory / "boxes"
        boxes.mkdir(mode=0o700, exist_ok=True)
        _sweep(boxes)
        self._place, self._lock = _new_place(boxes)
        self._lower: LowerTree | None = None
        try:
            lower = self._lower = LowerTrees(store).near(tree)
            over, self._change = self._place / "over", self._place / "change"
            self.upper = self._change / "upper"
            self.upper.mkdir(parents=True)
            os.chmod(self.upper, stat.S_IMODE(root_mode))
            self._layers: tuple[Path, ...] = (lower.path,)
            if lower.over:
                over.mkdir()
                with opened_directory(str(over), None) as top:
                    _write_over(store, top, tree, lower.over)
                os.chmod(over, stat.S_IMODE(root_mode))
                self._layers = (over, lower.path)
        except BaseException:
            self.close()
            raise

    def options(self) -> PolicyOptions:
        """Return options for `start_session` or `exec`; the project must be the workspace. One box at a time."""
        self._works += 1
        work = self._change / f"work-{self._works}"
        work.mkdir()
        return {"access": "overlay", "layers": Layers(self._layers, self.upper, work)}

    def changes(self) -> list[Change]:
        """Return the box's changes to the snapshot, found from the files it has written."""
        with self._store.use(), opened_directory(str(self.upper), None) as upper:
            return as_changes(list(_differences(self._store, upper, self._tree, "")))

    def close(self) -> None:
        """Discard the box's changes. Stop the box first."""
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            try:
                _discard(self._place)
            finally:
                os.close(lock)
                if self._lower is not None:
                    self._lower.close()

    def __enter__(self) -> Overlay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_over(store: ObjectStore, top: int, tree: bytes, found: Iterable[TreeDifference]) -> None:
    """Write the layer that turns the files of another snapshot into this one, into an empty directory."""
    made = {"": StoredEntry(stat.S_IFDIR, tree)}
    read = functools.lru_cache(maxsize=64)(functools.partial(entries_of, store))

    def make(folder: str) -> None:
        """Create a directory of the layer as in `tree`. Its mode is set after everything is written."""
        if folder in made:
            return
        parent, _, name = folder.rpartition("/")
        make(parent)
        unlink_if_there(folder, top)  # the whiteout of a file at this path
        os.mkdir(folder, dir_fd=top)
        made[folder] = read(made[parent].digest)[name]

    deleted_prefix = "/"
    for path, old, new in found:
        if path.startswith(deleted_prefix):
            continue  # below a deleted directory
        folder, _, name = path.rpartition("/")
        make(folder)
        if new is not None and new.kind == "directory":
            make(path)
            continue
        with opened_directory(folder or ".", top) as fd:
            if new is None:
                os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=fd)  # a whiteout
                deleted_prefix = path + "/" if old is not None and old.kind == "directory" else "/"
            else:
                unlink_if_there(name, fd)  # the whiteout of a directory at this path
                write_file(store, fd, name, new)
    del made[""]
    for path in sorted(made, reverse=True):
        os.chmod(path, stat.S_IMODE(made[path].mode), dir_fd=top)


def _differences(store: ObjectStore, upper: int, tree: bytes, folder: str) -> Iterator[TreeDifference]:
    before = entries_of(store, tree)
    names = set(os.listdir(upper))
    for name in sorted(names | before.keys() if folder and _is_opaque(upper) else names):
        path = f"{folder}/{name}" if folder else name
        old = before.get(name)
        with _open_entry(upper, name, path) as (new, below):
            if old is not None and new is not None and old.kind == new.kind == "directory":
                if old.mode != new.mode:
                    yield TreeDifference(path, old, new)
                yield from _differences(store, below, old.digest, path)
                continue
            if old is not None and (new is None or "directory" in (old.kind, new.kind)):
                yield TreeDifference(path, old, None)
                if old.kind == "directory":
                    yield from differences(store, old.digest, EMPTY_TREE, path)
                old = None
            if new is not None and new != old:
                yield TreeDifference(path, old, new)
                if new.kind == "directory":
                    yield from _differences(store, below, EMPTY_TREE, path)


@contextlib.contextmanager
def _open_entry(folder: int, name: str, path: str) -> Iterator[tuple[StoredEntry | None, int]]:
    """Yield the entry that a snapshot would contain, with a descriptor if it is a directory. Yield None for deleted
    entries, and for entries that a snapshot cannot contain: the scanner's limits apply to the box as well."""
    with contextlib.ExitStack() as stack:
        entry, below = None, -1
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                if not beyond(path):
                    below = stack.enter_context(opened_directory(name, folder))
                    entry = StoredEntry(stat.S_IFDIR | stat.S_IMODE(os.fstat(below).st_mode), EMPTY_TREE)
            elif stat.S_ISLNK(info.st_mode):
                target = os.fsencode(os.readlink(name, dir_fd=folder))
                entry = StoredEntry(stat.S_IFLNK, hashlib.sha256(target).digest())
            elif stat.S_ISREG(info.st_mode):
                entry = _file(folder, name)
        except OSError:
            pass  # unreadable, or removed since
        yield entry, below


def _file(folder: int, name: str) -> StoredEntry | None:
    fd = os.open(name, _OPEN_FILE, dir_fd=folder)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE_SIZE:
            return None
        found = hashlib.sha256()
        for chunk in chunks_of(fd, MAX_FILE_SIZE):
            found.update(chunk)
        return StoredEntry(kept_mode(info.st_mode), found.digest())
    finally:
        os.close(fd)


def _is_opaque(directory: int) -> bool:
    """Return whether the kernel marked the directory as hiding the layers below. It uses an attribute that the box
    can't set; the box may be able to set the other one."""
    attribute = "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"
    try:
        return os.getxattr(directory, attribute) in (b"y", b"x")
    except OSError:
        return False


def _new_place(boxes: Path) -> tuple[Path, int]:
    """Create a name for a box's directory. Return it with its lock held."""
    while True:
        place = boxes / secrets.token_hex(8)
        lock = os.open(_lock_of(place), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _lock_of(place).exists():  # else a sweep removed it before it was locked
                return place, lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _lock_of(place: Path) -> Path:
    return place.with_suffix(".lock")


def _discard(place: Path) -> None:
    """Remove a box's directory. The lock goes last, and only if everything was removed, so that a sweep can retry."""
    if not remove_tree(place):
        _lock_of(place).unlink(missing_ok=True)


def _sweep(boxes: Path) -> None:
    """Remove the leftovers of killed processes."""
    for path in boxes.glob("*.lock"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another process removed it first
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _discard(path.with_suffix(""))
        except OSError:
            pass  # usually in use
        finally:
            os.close(fd)
