"""A file tree as the source of a search: sorted files, read through the tree's own descriptors."""

from __future__ import annotations

from collections.abc import Iterator

from proofbox.errors import ProofboxError
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.search.finder import NEVER_SEARCHED
from proofbox.workspace.tools.tree import DirectoryItem, FileTree, below


class TreeSource:
    def __init__(self, tree: FileTree, path: str, ignore: Ignore) -> None:
        self._tree = tree
        self._ignore = ignore
        self._only_file = tree.is_file(path)
        if self._only_file:
            with tree.open(path) as found:
                self.top = found.path
            self._items: list[DirectoryItem] = []
        else:
            self.top, self._items = tree.directory(path)
        self.directory = None if self._only_file else tree.host

    def files(self) -> Iterator[str]:
        if self._only_file:
            yield self.top
            return
        for folder, item in below(self._tree, self.top, self._items):
            path = f"{folder}/{item.name}" if folder else item.name
            if item.type == "file" and not self._excluded(path):
                yield path

    def included(self, path: str) -> bool:
        return self._tree.guard.visible(path) and not self._excluded(path)

    def read(self, path: str, limit: int) -> bytes | None:
        try:
            with self._tree.open(path) as found:
                return found.stream.read(limit) if found.path == path else None
        except (ProofboxError, OSError):
            return None

    def _excluded(self, path: str) -> bool:
        """Return whether a name below the search path excludes the file. A path given explicitly is never excluded."""
        names = path[len(self.top) :].strip("/").split("/")
        folder = self.top
        for name in names:
            if name == NEVER_SEARCHED or (self._ignore and self._ignore.matches(folder, name)):
                return True
            folder = f"{folder}/{name}" if folder else name
        return False
