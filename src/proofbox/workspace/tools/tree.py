"""The interface between the file tools and the storage of files, with two implementations.

`handles.DirectoryTree` is a directory of the host, `memory.MemoryTree` a dictionary. Both check the guard on the
resolved path that is actually opened, after all symbolic links.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Literal, NamedTuple, Protocol

from proofbox.core.text import printable
from proofbox.errors import CapabilityDenied, FileAbsent, FileKindRefused, IoFailed, ToolError
from proofbox.workspace.tools.results import EntryType

Access = Literal["read", "write", "delete", "list"]
"""`list` is access to the names in a directory, `read` to content."""


class Guard(Protocol):
    """Decides about access to a path. Paths are relative to the root, without `.`, `..` or symbolic links."""

    def check(self, access: Access, path: str) -> None:
        """Raise CapabilityDenied if the access is denied."""

    def visible(self, path: str) -> bool:
        """Return whether a listing may contain the path."""


class AllowAll:
    """The guard of an environment without capabilities."""

    def check(self, access: Access, path: str) -> None:
        pass

    def visible(self, path: str) -> bool:  # noqa: ARG002
        return True


class OpenedFile(NamedTuple):
    stream: BinaryIO
    size: int
    executable: bool
    path: str
    """The resolved path."""


class DirectoryItem(NamedTuple):
    name: str
    type: EntryType
    size: int


class FileTree(Protocol):
    guard: Guard

    @property
    def root(self) -> str:
        """The root's path as used in commands and absolute paths."""

    @property
    def host(self) -> str | None:
        """The root's path on the host, or None."""

    def open(self, path: str) -> AbstractContextManager[OpenedFile]:
        """Open a regular file for reading."""

    def write(self, path: str, data: bytes, executable: bool | None) -> tuple[str, bool]:
        """Write a file and create missing directories. Return its resolved path and whether it is new."""

    def remove(self, path: str) -> str:
        """Remove a file or link. Return its resolved path."""

    def check(self, access: Access, path: str) -> str:
        """Check whether `write` or `remove` would be allowed. Return the resolved path."""

    def directory(self, path: str) -> tuple[str, list[DirectoryItem]]:
        """Return a directory's resolved path and its visible entries, sorted by the bytes of their names."""

    def is_file(self, path: str) -> bool:
        """Return whether the path is a regular file. Raises FileAbsent if nothing is there."""


def below(
    tree: FileTree, folder: str, items: list[DirectoryItem], depth: int | None = None
) -> Iterator[tuple[str, DirectoryItem]]:
    """Yield everything below a directory except directories, with its parent path, sorted by the bytes of the path.

    Skips a directory that has been removed or is not readable when its turn comes.
    """
    levels = [(folder, iter(_in_order(items)))]
    while levels:
        here, rest = levels[-1]
        item = next(rest, None)
        if item is None:
            levels.pop()
        elif item.type != "directory":
            yield here, item
        elif depth is None or len(levels) < depth:
            path = f"{here}/{item.name}" if here else item.name
            try:
                real, inside = tree.directory(path)
            except (CapabilityDenied, ToolError, IoFailed):
                continue
            if real == path:  # otherwise it was replaced by a link
                levels.append((path, iter(_in_order(inside))))


def _in_order(items: list[DirectoryItem]) -> list[DirectoryItem]:
    return sorted(items, key=lambda item: os.fsencode(item.name) + (b"/" if item.type == "directory" else b""))


def absent(path: str) -> FileAbsent:
    return FileAbsent(
        f"{printable(path[:200])} does not exist",
        op="path",
        details={"path": printable(path)},
    )


def wrong_kind(path: str, reason: str) -> FileKindRefused:
    return FileKindRefused(
        f"{printable(path[:200])} {reason}", op="path", details={"path": printable(path), "reason": reason}
    )
