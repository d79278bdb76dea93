"""What the file tools need of the thing that holds the files: a small contract with two implementations.

`handles.DirectoryTree` is a directory of the host, `memory.MemoryTree` a dictionary. Both check the same guard, on the
path of what is really opened, after every symbolic link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Literal, NamedTuple, Protocol

from proofbox.core.text import printable
from proofbox.errors import CapabilityDenied, FileAbsent, FileKindRefused, IoFailed, ToolError
from proofbox.workspace.tools.contract import EntryType

Access = Literal["read", "write", "delete", "list"]
"""`list` is for the names in a directory, `read` for content."""


class Guard(Protocol):
    """Who decides what may be done to a path. Paths are from the root, without `.`, `..` or symbolic links."""

    def check(self, access: Access, path: str) -> None:
        """Return, or raise CapabilityDenied."""

    def visible(self, path: str) -> bool:
        """Whether a listing may name it."""


class AllowAll:
    """The guard of an environment that has no capabilities."""

    def check(self, access: Access, path: str) -> None:
        pass

    def visible(self, path: str) -> bool:  # noqa: ARG002
        return True


class OpenedFile(NamedTuple):
    stream: BinaryIO
    size: int
    executable: bool
    path: str
    """Where it really is."""


class DirectoryItem(NamedTuple):
    name: str
    type: EntryType
    size: int


class FileTree(Protocol):
    guard: Guard

    @property
    def root(self) -> str:
        """As paths and commands spell it."""

    @property
    def host(self) -> str | None:
        """Its path on the host, where it has one."""

    def open(self, path: str) -> AbstractContextManager[OpenedFile]:
        """A regular file, to be read."""

    def write(self, path: str, data: bytes, executable: bool | None) -> tuple[str, bool]:
        """Put a file there, with its directories: where it really is, and whether it is new."""

    def remove(self, path: str) -> str:
        """Remove a file or link: where it really was."""

    def check(self, access: Access, path: str) -> str:
        """Whether `write` or `remove` would be let through: where it really is."""

    def directory(self, path: str) -> tuple[str, list[DirectoryItem]]:
        """A directory's real path and what is in it, sorted by the bytes of names, without what the guard hides."""

    def is_file(self, path: str) -> bool:
        """Whether a regular file is there; FileAbsent if nothing is."""


def below(
    tree: FileTree, folder: str, items: list[DirectoryItem], depth: int | None = None
) -> Iterator[tuple[str, DirectoryItem]]:
    """Everything in and below a directory that is no directory, each with its own; sorted by the bytes of the path.

    A directory that is gone, or may not be read, when its turn comes is left out.
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
            if real == path:  # else it has become a link
                levels.append((path, iter(_in_order(inside))))


def _in_order(items: list[DirectoryItem]) -> list[DirectoryItem]:
    return sorted(items, key=lambda item: os.fsencode(item.name) + (b"/" if item.type == "directory" else b""))


def absent(path: str) -> FileAbsent:
    return FileAbsent(
        f"there is no {printable(path[:200])}",
        op="path",
        details={"path": printable(path)},
    )


def wrong_kind(path: str, reason: str) -> FileKindRefused:
    return FileKindRefused(
        f"{printable(path[:200])} {reason}", op="path", details={"path": printable(path), "reason": reason}
    )
