"""Finds the files that a suite names, and opens them through descriptors.

A suite may come from a stranger, and its paths may be absolute, lead upwards or go through links. A path is resolved
when it is looked up; a file outside the suite's directory is marked, and is read only after the user has consented to
the resolved path. Files are opened along the resolved path without following any link, from a descriptor of the suite's
directory (or of `/`, outside it), so a link swapped in after the check has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from proofbox.core.files.nofollow import READ, open_below
from proofbox.core.spec_files.text_files import Absent, Unreadable, decode, kind_of
from proofbox.lab.suite.spec import Mission, verifiers_of
from proofbox.workspace.capabilities.grants import PRESETS


class NamedFile(msgspec.Struct, frozen=True):
    """A file or directory that a suite names."""

    path: str
    """The path in the suite."""
    real: Path
    """Absolute, with links resolved."""
    outside: bool
    """Whether it is outside the suite's directory."""
    link: str | None = None
    """The target of a link that is copied as a link and not followed."""


def paths_of(mission: Mission) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every path of this host that a mission names, with the field that names it."""
    for field in ("workspace", "prompt_file", "solution"):
        if (path := getattr(mission, field)) is not None:
            yield (field,), path
    if mission.capabilities is not None and mission.capabilities not in PRESETS:
        yield ("capabilities",), mission.capabilities
    for place, path in mission.files.items():
        yield ("files", place), path
    for number, turn in enumerate(mission.then):
        if turn.solution is not None:
            yield ("then", number, "solution"), turn.solution
    for at, verify in verifiers_of(mission):
        if verify.files is not None:
            yield (*at, "files"), verify.files
        for place, path in verify.mounts.items():
            yield (*at, "mounts", place), path


class SuiteFiles:
    """The directory of a suite. Use it as a context manager: it holds a descriptor of the directory."""

    def __init__(self, base: Path) -> None:
        self.base = Path(os.path.realpath(base))
        self._root = -1
        self._found: dict[tuple[str, bool], NamedFile] = {}
        with suppress(OSError):  # without the directory, no file in it can be opened
            self._root = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def find(self, path: str, *, keep_link: bool = False) -> NamedFile:
        """Resolve a path of the suite, once. Raises `Unreadable` if it is not a valid path.

        With `keep_link`, a link in the suite's directory is returned as a link.
        """
        key = (path, keep_link)
        if key not in self._found:
            self._found[key] = (self._find_link(path) if keep_link else None) or self._resolve(path)
        return self._found[key]

    def named_by(self, mission: Mission) -> Iterator[tuple[tuple[str | int, ...], NamedFile]]:
        """Yield every file that a mission names, with the field that names it."""
        for field, path in paths_of(mission):
            yield field, self.find(path, keep_link=field[0] == "files")

    def _resolve(self, path: str) -> NamedFile:
        try:
            real = Path(os.path.realpath(self.base / path))
        except ValueError:
            raise Unreadable("is not a valid path: it contains a NUL") from None
        except OSError as error:
            raise Absent(f"cannot be accessed: {error.strerror}") from None
        return NamedFile(path, real, not real.is_relative_to(self.base))

    def kind(self, found: NamedFile) -> str:
        """Return `file` or `directory`, without opening it. Raises `Unreadable` for anything else."""
        return kind_of(found.real)

    @contextmanager
    def opened(self, found: NamedFile) -> Iterator[int]:
        """Open it for reading, and yield the descriptor. Raises `OSError`."""
        if found.outside:
            root, path = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), str(found.real)
        else:
            root, path = os.dup(self._root), str(found.real.relative_to(self.base))
        try:
            fd = open_below(root, path, READ)
        finally:
            os.close(root)
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, found: NamedFile, limit: int) -> str:
        """Return the text of a file. Raises `Unreadable`."""
        if self.kind(found) != "file":
            raise Unreadable("is a directory")
        try:
            with self.opened(found) as fd, open(os.dup(fd), "rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise Absent(f"cannot be read: {error.strerror}") from None
        return decode(data, limit)

    def _find_link(self, path: str) -> NamedFile | None:
        parent, slash, name = path.rpartition("/")
        folder = self._resolve(parent + slash)
        if folder.outside:
            return None
        try:
            with self.opened(folder) as fd:
                return NamedFile(path, folder.real / name, False, os.readlink(name, dir_fd=fd))
        except OSError:  # not a link, or missing: opening it as a file reports which
            return None
