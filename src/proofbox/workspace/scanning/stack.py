"""Overlay mounts that only this process and the processes it starts can see.

They end with the last of these processes, so that nothing remains on the host when a process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from pathlib import Path

import msgspec

from proofbox.core.files.nofollow import opened_directory
from proofbox.core.files.removal import remove_tree
from proofbox.errors import WorkspaceChanging
from proofbox.workspace.scanning.candidates import changed_candidates
from proofbox.workspace.scanning.scanner import beyond
from proofbox.workspace.tree import Directory

_NEW_MOUNTS = 0x20000
_NOSUID, _NODEV = 0x2, 0x4
_RECURSIVE, _SLAVE = 0x4000, 0x80000
_DETACH = 2
_OPTIONS = "redirect_dir=on,metacopy=off,index=off,volatile"

_private = False


def has_private_mounts() -> bool:
    """Return whether `enter_private_mounts` succeeded in this process."""
    return _private


def enter_private_mounts() -> None:
    """Give this process its own mount namespace. Call it before starting threads. Raises OSError if not permitted.

    Mounts and unmounts on the host still take effect here; those made here do not take effect on the host.
    """
    global _private
    if sys.platform != "linux":
        raise OSError("mount namespaces exist only on Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_NEW_MOUNTS), "unshare")
    _check(libc.mount(None, b"/", None, _RECURSIVE | _SLAVE, None), "/")
    _private = True


class Stack:
    """A directory mounted over a lower one, which stays as it is. `layers` is created and holds what is written.

    As with `cp -a` of the lower directory, directories can be renamed and every file can be changed.
    """

    def __init__(self, lower: Path, at: Path, layers: Path) -> None:
        if not _private:
            raise OSError("this process has no private mount namespace")
        self.path = at
        self._layers = layers
        self.upper = layers / "upper"
        self._owner = lower.stat()
        layers.mkdir()
        try:
            self.upper.mkdir()
            os.chown(self.upper, self._owner.st_uid, self._owner.st_gid)
            self.upper.chmod(0o755)
            (layers / "work").mkdir()
            self._mount(lower, at)
        except BaseException:
            remove_tree(layers)
            raise

    def _mount(self, lower: Path, at: Path) -> None:
        # Commas and colons have a meaning in options, so name the layers by their descriptors.
        with contextlib.ExitStack() as stack:
            options = _OPTIONS
            for key, path in (("lowerdir", lower), ("upperdir", self.upper), ("workdir", self._layers / "work")):
                fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                options += f",{key}=/proc/self/fd/{fd}"
            libc = ctypes.CDLL(None, use_errno=True)
            _check(libc.mount(b"proofbox", os.fsencode(at), b"overlay", _NOSUID | _NODEV, options.encode()), at)

    def directories(self) -> dict[str, None]:
        """Return every directory in which something was written, by its path in the stack; the root's is empty.

        The kernel copies a directory to the upper layer before it changes the directory or anything in it. What is too
        deep for a snapshot is left out.
        """
        found: dict[str, None] = {}
        waiting = [""]
        with opened_directory(str(self.upper), None) as top:
            while waiting:
                folder = waiting.pop()
                found[folder] = None
                try:
                    with opened_directory(folder or ".", top) as fd:
                        below = [each.name for each in os.scandir(fd) if each.is_dir(follow_symlinks=False)]
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise
                    continue  # removed or replaced in the meantime, which is a change of its parent
                paths = [f"{folder}/{name}" if folder else name for name in below]
                waiting += [path for path in paths if not beyond(path)]
        return found

    def give(self) -> None:
        """Give everything that was written to the owner of the lower directory."""
        # Through the mount: the kernel does not notice changes that are made to a layer directly.
        ids = self._owner.st_uid, self._owner.st_gid
        with opened_directory(str(self.upper), None) as upper, opened_directory(str(self.path), None) as merged:
            for folder in self.directories():
                with opened_directory(folder or ".", upper) as above, opened_directory(folder or ".", merged) as fd:
                    os.chown(fd, *ids)
                    for name in os.listdir(above):
                        with contextlib.suppress(FileNotFoundError):  # a mark of the kernel for a removed file
                            os.chown(name, *ids, dir_fd=fd, follow_symlinks=False)

    def close(self) -> None:
        """Unmount it, and discard what was written."""
        _check(ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(self.path), _DETACH), self.path)
        remove_tree(self._layers)

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LowerDirectory(msgspec.Struct, frozen=True):
    """The lower directory of a stack that is a workspace."""

    path: Path
    known: Directory
    """Its files when it was mounted."""
    stack: Stack

    def require_unchanged(self) -> None:
        """Raise WorkspaceChanging if a file's times show that the lower directory has changed since it was mounted."""
        with opened_directory(str(self.path), None) as root:
            found = changed_candidates(root, self.known)
        if found:
            changed = sorted(found)[0]
            raise WorkspaceChanging(
                f"{self.path / changed} has changed: all attempts at the mission share its files",
                op="workspace",
                fix_hints=["stop the process that writes there, and run again"],
                details={"path": str(self.path), "directory": changed},
            )


def _check(result: int, what: str | Path) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(what))
