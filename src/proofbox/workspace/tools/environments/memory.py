"""Files in memory only: for tests, for plans, and for agents without disk access.

There are no symbolic links, owners or commands. The search's worker process receives content on stdin and opens no
files.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from proofbox.errors import CommandsUnavailable
from proofbox.sandbox.contract import ExecResult
from proofbox.sandbox.options import ExecOptions
from proofbox.workspace.tools.environments.commands import CommandTools
from proofbox.workspace.tools.paths import refusal, split
from proofbox.workspace.tools.tree import Access, AllowAll, DirectoryItem, Guard, OpenedFile, absent, wrong_kind

ROOT = "/workspace"
_NAME_MAX = 255


class MemoryTree:
    def __init__(self, files: Mapping[str, bytes] | None = None, guard: Guard | None = None) -> None:
        self.root = ROOT
        self.host = None
        self.guard: Guard = guard or AllowAll()
        self._lock = threading.RLock()
        self._files: dict[str, tuple[bytes, bool]] = {}
        self._folders: set[str] = {""}
        for path, data in (files or {}).items():
            self.write(path, data, None)

    @contextmanager
    def open(self, path: str) -> Iterator[OpenedFile]:
        real = self._real(path)
        self.guard.check("read", real)
        found = self._files.get(real)
        if found is None:
            raise wrong_kind(path, "is a directory, not a file") if real in self._folders else absent(path)
        yield OpenedFile(io.BytesIO(found[0]), len(found[0]), found[1], real)

    def write(self, path: str, data: bytes, executable: bool | None) -> tuple[str, bool]:
        with self._lock:
            real = self.check("write", path)
            old = self._files.get(real)
            folders = real.split("/")[:-1]
            self._folders.update("/".join(folders[: n + 1]) for n in range(len(folders)))
            was = old[1] if old else False
            self._files[real] = (data, was if executable is None else executable)
            return real, old is None

    def remove(self, path: str) -> str:
        with self._lock:
            real = self.check("delete", path)
            if real in self._folders:
                raise wrong_kind(path, "is a directory, not a file")
            if self._files.pop(real, None) is None:
                raise absent(path)
            return real

    def check(self, access: Access, path: str) -> str:
        real = self._real(path)
        self.guard.check(access, real)
        if access == "write" and real in self._folders:
            raise wrong_kind(path, "exists and is not a file")
        return real

    def directory(self, path: str) -> tuple[str, list[DirectoryItem]]:
        real = self._real(path)
        if real:
            self.guard.check("list", real)
        with self._lock:
            if real in self._files:
                raise wrong_kind(path, "is not a directory")
            if real not in self._folders:
                raise absent(path)
            items = [
                DirectoryItem(_last(each), "directory", 0) for each in self._folders if each and _parent(each) == real
            ]
            items += [
                DirectoryItem(_last(p), "file", len(data)) for p, (data, _) in self._files.items() if _parent(p) == real
            ]
        prefix = f"{real}/" if real else ""
        shown = [item for item in items if self.guard.visible(prefix + item.name)]
        return real, sorted(shown, key=lambda item: os.fsencode(item.name))

    def is_file(self, path: str) -> bool:
        real = self._real(path)
        if real:
            self.guard.check("list", real)
        if real not in self._files and real not in self._folders:
            raise absent(path)
        return real in self._files

    def _real(self, path: str) -> str:
        """Return the path without `..`. Every parent must be a directory, as on a disk."""
        walked: list[str] = []
        names = split(path, self.root)
        for number, name in enumerate(names):
            if len(os.fsencode(name)) > _NAME_MAX:
                raise refusal(path, "contains a name that is too long")
            here = "/".join(walked)
            if here in self._files:
                raise wrong_kind(path, "can't be used this way: Not a directory")
            if name == "..":
                if not walked:
                    raise refusal(path, "leads outside the workspace")
                walked.pop()
            elif here not in self._folders and ".." in names[number:]:
                raise absent(path)
            else:
                walked.append(name)
                if "/".join(walked) not in self._folders and ".." in names[number + 1 :]:
                    is_file = "/".join(walked) in self._files
                    raise wrong_kind(path, "is not a directory") if is_file else absent(path)
        return "/".join(walked)


class MemoryEnvironment(CommandTools):
    """An environment without any access to the host."""

    def __init__(self, files: Mapping[str, str | bytes] | None = None, guard: Guard | None = None) -> None:
        content = {path: data.encode() if isinstance(data, str) else data for path, data in (files or {}).items()}
        super().__init__(MemoryTree(content, guard))

    def _exec(self, argv: Sequence[str], options: ExecOptions) -> ExecResult:  # noqa: ARG002
        raise CommandsUnavailable(
            "an environment in memory can't run commands",
            op="run_command",
            fix_hints=["use the file tools", "or use a workspace on disk with a sandbox"],
        )


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _last(path: str) -> str:
    return path.rpartition("/")[2]
