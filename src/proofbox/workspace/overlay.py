"""A snapshot as the project of a box, without a copy: what the box changes goes elsewhere, is listed, and thrown away.

    with ws.overlay("HEAD") as layers, Sandboxes(ws.path).start_session(**layers.options()) as session:
        session.exec(["make", "test"])
        layers.changes()

The box sees the files at the workspace's own path. They are laid together by the kernel inside the box's mount
namespace: on the host nothing is mounted, and nothing stays mounted when a process is killed. The snapshot is written
out once (`lower`); another one that differs little from it costs what differs.

Below the store, one directory an overlay, `boxes/<id>/`: `over` has what this snapshot has differently from the one
that is written out, `change/upper` what the box has changed. A lock beside it tells a dead owner's from one in use.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from proofbox.core.removal import remove_tree
from proofbox.sandbox.contract import Layers
from proofbox.workspace.diff import Difference, differences, tell
from proofbox.workspace.lower import LowerTrees
from proofbox.workspace.model import Change
from proofbox.workspace.restore import write_file
from proofbox.workspace.store import Store
from proofbox.workspace.stored import entries_of
from proofbox.workspace.tree import EMPTY_TREE, Entry, kept_mode

if TYPE_CHECKING:
    from proofbox.sandbox.inside import PolicyOptions

_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


class Overlay:
    """Made by `Workspace.overlay`, while that is open; close it, or use it in a `with`. Closing throws it away."""

    def __init__(self, store: Store, tree: bytes, root_mode: int) -> None:
        self._store = store
        self._tree = tree
        self._works = 0
        boxes = store.directory / "boxes"
        boxes.mkdir(mode=0o700, exist_ok=True)
        _sweep(boxes)
        self._lower = LowerTrees(store).near(tree)
        self._place = boxes / secrets.token_hex(8)
        self._lock = os.open(self._place.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            over, self._change = self._place / "over", self._place / "change"
            self.upper = self._change / "upper"
            self.upper.mkdir(parents=True)
            os.chmod(self.upper, stat.S_IMODE(root_mode))
            self._layers: tuple[Path, ...] = (self._lower.path,)
            if self._lower.over:
                _write_over(store, over, tree, self._lower.over)
                os.chmod(over, stat.S_IMODE(root_mode))
                self._layers = (over, self._lower.path)
        except BaseException:
            self.close()
            raise

    def options(self) -> PolicyOptions:
        """For `start_session` or `exec` of a service whose project is the workspace. One box at a time."""
        self._works += 1
        work = self._change / f"work-{self._works}"
        work.mkdir()
        return {"access": "overlay", "layers": Layers(self._layers, self.upper, work)}

    def changes(self) -> list[Change]:
        """What the box has made different from the snapshot, found in what it has written alone."""
        with self._store.use():
            return tell(list(_differences(self._store, self.upper, self._tree, "")))

    def close(self) -> None:
        """Throw away what the box has changed. The box has to be stopped before."""
        if self._lock >= 0:
            remove_tree(self._place)
            self._place.with_suffix(".lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
            self._lower.close()

    def __enter__(self) -> Overlay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_over(store: Store, place: Path, tree: bytes, found: Iterable[Difference]) -> None:
    """A layer that makes another snapshot's files this one's."""
    place.mkdir()
    made = {"": Entry(stat.S_IFDIR, tree)}
    read = functools.lru_cache(maxsize=64)(functools.partial(entries_of, store))

    def make(folder: str) -> None:
        """A directory of the layer, as it is in `tree`; its mode is set when everything is written."""
        if folder in made:
            return
        parent, _, name = folder.rpartition("/")
        make(parent)
        (place / folder).unlink(missing_ok=True)  # the whiteout of a file that was there
        (place / folder).mkdir()
        made[folder] = read(made[parent].digest)[name]

    gone = "/"
    for path, old, new in found:
        if path.startswith(gone):
            continue  # below a directory that is not there any more
        make(os.path.dirname(path))
        if new is None:
            os.mknod(place / path, stat.S_IFCHR | 0o600, os.makedev(0, 0))  # a whiteout
            gone = path + "/" if old is not None and old.kind == "directory" else "/"
        elif new.kind == "directory":
            make(path)
        else:
            (place / path).unlink(missing_ok=True)  # the whiteout of a directory that was there
            fd = os.open((place / path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                write_file(store, fd, os.path.basename(path), new)
            finally:
                os.close(fd)
    del made[""]
    for path in sorted(made, reverse=True):
        os.chmod(place / path, stat.S_IMODE(made[path].mode))


def _differences(store: Store, upper: Path, tree: bytes, folder: str) -> Iterator[Difference]:
    before = entries_of(store, tree)
    opaque = bool(folder) and _is_opaque(upper)
    names = set(os.listdir(upper))
    for name in sorted(names | before.keys() if opaque else names):
        path = f"{folder}/{name}" if folder else name
        old, new = before.get(name), _entry(upper / name) if name in names else None
        if old is not None and new is not None and old.kind == new.kind == "directory":
            if old.mode != new.mode:
                yield Difference(path, old, new)
            yield from _differences(store, upper / name, old.digest, path)
            continue
        if old is not None and (new is None or "directory" in (old.kind, new.kind)):
            yield Difference(path, old, None)
            if old.kind == "directory":
                yield from differences(store, old.digest, EMPTY_TREE, path)
            old = None
        if new is not None and new != old:
            yield Difference(path, old, new)
            if new.kind == "directory":
                yield from _differences(store, upper / name, EMPTY_TREE, path)


def _entry(path: Path) -> Entry | None:
    """What a snapshot would hold; None for what was deleted, and for what no snapshot holds."""
    info = path.lstat()
    if stat.S_ISDIR(info.st_mode):
        return Entry(stat.S_IFDIR | stat.S_IMODE(info.st_mode), EMPTY_TREE)
    if stat.S_ISLNK(info.st_mode):
        return Entry(stat.S_IFLNK, hashlib.sha256(os.fsencode(os.readlink(path))).digest())
    if not stat.S_ISREG(info.st_mode):
        return None
    with open(os.open(path, _OPEN_FILE), "rb") as file:
        return Entry(kept_mode(info.st_mode), hashlib.file_digest(file, "sha256").digest())


def _is_opaque(path: Path) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(path, name) in (b"y", b"x"):
                return True
        except OSError:
            continue
    return False


def _sweep(boxes: Path) -> None:
    """Remove what processes left that were killed."""
    for path in boxes.glob("*.lock"):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path.with_suffix(""))
            path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
