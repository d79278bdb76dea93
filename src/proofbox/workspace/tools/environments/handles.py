"""A directory of the host, accessed only through directory descriptors.

A path is walked name by name from the root's descriptor. Each directory is opened relative to the previous one and
never through a symbolic link. Links are read and resolved here, `..` goes back along the open descriptors, and neither
can leave the root. The guard checks the path that was actually walked, and the file is opened relative to the last
descriptor without following links: a link or directory that is swapped in during the walk is not followed, or the open
fails. If the kernel supports openat2, a path without links takes one call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from proofbox.core.files.atomic import TEMPORARY_PREFIX
from proofbox.core.files.nofollow import HANDLE, open_beneath
from proofbox.core.text import printable
from proofbox.errors import IoFailed, ProofboxError
from proofbox.workspace.tools.paths import refusal, split
from proofbox.workspace.tools.results import EntryType
from proofbox.workspace.tools.tree import Access, AllowAll, DirectoryItem, Guard, OpenedFile, absent, wrong_kind

_DIRECTORY = HANDLE | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
_MAX_HELD = 256


class ResolvedPath(NamedTuple):
    """A resolved path: a descriptor of the last existing directory, and the names after it."""

    folder: int
    names: tuple[str, ...]
    """Empty for the root itself. More than one name if directories are missing."""
    path: str
    info: os.stat_result | None
    """The stat result of the entry itself, not of a link's target. None if it does not exist."""


class DirectoryTree:
    """An open root directory and a guard. Close it after use."""

    def __init__(self, root: str | os.PathLike[str], guard: Guard | None = None, *, spelled: str | None = None) -> None:
        self.host: str = os.path.realpath(os.fspath(root))
        self.root = spelled or self.host
        self.guard: Guard = guard or AllowAll()
        self._fd = os.open(self.host, HANDLE | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def open(self, path: str) -> Iterator[OpenedFile]:
        with self._translated(path), self._place(path) as place:
            self.guard.check("read", place.path)
            if place.info is None:
                raise absent(path)
            fd = os.open(_name(place), _READ, dir_fd=place.folder)
            with os.fdopen(fd, "rb") as stream:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode):
                    raise wrong_kind(path, f"is a {_type(info.st_mode)}, not a file")
                yield OpenedFile(stream, info.st_size, bool(info.st_mode & 0o100), place.path)

    def write(self, path: str, data: bytes, executable: bool | None) -> tuple[str, bool]:
        with self._translated(path), self._place(path) as place:
            self.guard.check("write", place.path)
            self._refuse_other_than_file(path, place)
            with _made(place) as folder:
                _replace(folder, place.names[-1], data, place.info, executable)
        return place.path, place.info is None

    def remove(self, path: str) -> str:
        with self._translated(path), self._place(path, follow=False) as place:
            self.guard.check("delete", place.path)
            if place.info is None:
                raise absent(path)
            if stat.S_ISDIR(place.info.st_mode):
                raise wrong_kind(path, "is a directory, not a file")
            os.unlink(_name(place), dir_fd=place.folder)
        return place.path

    def check(self, access: Access, path: str) -> str:
        with self._translated(path), self._place(path, follow=access != "delete") as place:
            self.guard.check(access, place.path)
            if access == "write":
                self._refuse_other_than_file(path, place)
        return place.path

    def directory(self, path: str) -> tuple[str, list[DirectoryItem]]:
        with self._translated(path), self._place(path) as place:
            if place.path:
                self.guard.check("list", place.path)
            if place.info is None:
                raise absent(path)
            if not stat.S_ISDIR(place.info.st_mode):
                raise wrong_kind(path, "is not a directory")
            name = place.names[-1] if place.names else "."
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
            try:
                return place.path, self._items(fd, place.path)
            finally:
                os.close(fd)

    def is_file(self, path: str) -> bool:
        with self._translated(path), self._place(path) as place:
            if place.path:
                self.guard.check("list", place.path)
            if place.info is None:
                raise absent(path)
            return stat.S_ISREG(place.info.st_mode)

    def _items(self, fd: int, path: str) -> list[DirectoryItem]:
        items = []
        prefix = f"{path}/" if path else ""
        with os.scandir(fd) as found:
            for each in found:
                if not self.guard.visible(prefix + each.name):
                    continue
                try:
                    info = each.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                kind = _type(info.st_mode)
                items.append(DirectoryItem(each.name, kind, info.st_size if kind == "file" else 0))
        return sorted(items, key=lambda item: os.fsencode(item.name))

    def _refuse_other_than_file(self, path: str, place: ResolvedPath) -> None:
        if not place.names or (place.info is not None and not stat.S_ISREG(place.info.st_mode)):
            raise wrong_kind(path, "exists and is not a file")

    @contextmanager
    def _place(self, path: str, *, follow: bool = True) -> Iterator[ResolvedPath]:
        names = split(path, self.root)
        held: list[int] = []
        try:
            place = self._walk_fast(names, held) or self._walk(path, names, held, follow)
            if follow and place.info is not None and stat.S_ISLNK(place.info.st_mode):
                _close(held)  # the fast path ends at a link: walk it
                place = self._walk(path, names, held, follow)
            yield place
        finally:
            _close(held)

    def _walk_fast(self, names: list[str], held: list[int]) -> ResolvedPath | None:
        """Open all directories of a path in one call. Return None if unsupported or if the path contains links."""
        if len(names) < 2 or ".." in names:
            return None
        fd = open_beneath(self._fd, "/".join(names[:-1]))
        if fd is None:
            return None
        held.append(fd)
        return ResolvedPath(fd, (names[-1],), "/".join(names), _lstat(names[-1], fd))

    def _walk(self, path: str, names: list[str], held: list[int], follow: bool) -> ResolvedPath:
        walked: list[str] = []
        pending = deque(names)
        links = 0
        while pending:
            name = pending.popleft()
            if name in ("", "."):
                continue
            here = held[-1] if held else self._fd
            if name == "..":
                if not walked:
                    raise refusal(path, "leads outside the workspace")
                walked.pop()
                os.close(held.pop())
                continue
            info = _lstat(name, here)
            if info is None:
                missing = (name, *(each for each in pending if each not in ("", ".")))
                if ".." in missing:
                    raise absent(path)
                return ResolvedPath(here, missing, "/".join([*walked, *missing]), None)
            if stat.S_ISLNK(info.st_mode) and (pending or follow):
                links += 1
                if links > _MAX_LINKS:
                    raise refusal(path, "goes through too many symbolic links")
                target = os.readlink(name, dir_fd=here)
                if target.startswith("/"):
                    pending.extendleft(reversed(self._from_the_top(path, target)))
                    _close(held)
                    walked.clear()
                else:
                    pending.extendleft(reversed(target.split("/")))
                continue
            if not any(each not in ("", ".") for each in pending):
                return ResolvedPath(here, (name,), "/".join([*walked, name]), info)
            if len(held) == _MAX_HELD:
                raise refusal(path, f"is deeper than {_MAX_HELD} directories")
            held.append(os.open(name, _DIRECTORY, dir_fd=here))
            walked.append(name)
        if held:  # the last step went back to it
            return ResolvedPath(held[-1], (".",), "/".join(walked), os.fstat(held[-1]))
        return ResolvedPath(self._fd, (), "", os.fstat(self._fd))

    def _from_the_top(self, path: str, target: str) -> list[str]:
        for root in (self.host, self.root):
            if f"{target}/".startswith(f"{root}/"):
                return target[len(root) :].split("/")
        raise refusal(path, "is a symbolic link that leads outside the workspace")

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _typed(error, path) from None


def _name(place: ResolvedPath) -> str:
    return place.names[-1] if place.names else "."


def _typed(error: OSError, path: str) -> ProofboxError:
    if error.errno == errno.ENOENT:
        return absent(path)
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EINVAL):
        return wrong_kind(path, f"can't be used this way: {error.strerror}")
    if error.errno == errno.ENAMETOOLONG:
        return refusal(path, "contains a name that is too long")
    return IoFailed(f"{printable(path[:200])}: {error.strerror}", op="path", details={"path": printable(path)})


def _lstat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _type(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _close(held: list[int]) -> None:
    while held:
        os.close(held.pop())


@contextmanager
def _made(place: ResolvedPath) -> Iterator[int]:
    """Yield a descriptor of the directory for the last name. Creates missing directories."""
    folder = place.folder
    try:
        for name in place.names[:-1]:
            made = True
            try:
                os.mkdir(name, 0o777, dir_fd=folder)
            except FileExistsError:
                made = False
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            above, folder = folder, below
            try:
                if made and os.geteuid() == 0:
                    _give_to_owner(below, above)
            finally:
                if above != place.folder:
                    os.close(above)
        yield folder
    finally:
        if folder != place.folder:
            os.close(folder)


def _give_to_owner(made: int, folder: int) -> None:
    """Give a directory that root creates to the owner of its parent, so that commands in the box can write to it.

    Only an empty directory, so that one swapped in by another process exposes nothing.
    """
    owner = os.stat(".", dir_fd=folder)
    if os.fstat(made).st_uid == 0 != owner.st_uid and not os.listdir(made):
        os.fchown(made, owner.st_uid, owner.st_gid)


def _replace(folder: int, name: str, data: bytes, old: os.stat_result | None, executable: bool | None) -> None:
    temporary = TEMPORARY_PREFIX + secrets.token_hex(8)
    fd = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(data)
            owner = os.stat(".", dir_fd=folder) if old is None else old
            if os.geteuid() == 0:
                os.fchown(fd, owner.st_uid, owner.st_gid)
            mode = stat.S_IMODE(os.fstat(fd).st_mode if old is None else old.st_mode) & 0o777
            if executable is not None:
                mode = mode | (mode & 0o444) >> 2 if executable else mode & ~0o111
            os.fchmod(fd, mode)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
