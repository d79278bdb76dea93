"""Checks and digests a directory from an untrusted author before anything in it is read or copied.

A link that leads out of it could put a file of this host into a prompt or a box, and reading a pipe could block
forever. Such a directory is refused as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from proofbox.core.digest import sha256_file
from proofbox.core.files.nofollow import directory_below, open_regular
from proofbox.core.files.overlaying import Identity
from proofbox.core.spec_files import text_files
from proofbox.core.spec_files.problems import Problem, invalid
from proofbox.core.text import printable
from proofbox.errors import ProofboxError
from proofbox.lab.suite.files import SuiteFiles

MAX_ENTRIES = 100_000
MAX_BYTES = 8 << 30
LARGEST_TEXT = 1 << 20


def tree_sha256(
    root: Path,
    parts: Collection[str] | None = None,
    *,
    trusted: bool = False,
    at: int | None = None,
    skip: Collection[Identity] = (),
) -> str:
    """Return a digest of every path below `root`: its kind, its content and whether it is executable.

    Links are not followed. `at` is an open descriptor of the root, if available. Directories in `skip` are ignored.

    With `parts`, only entries with these names count. Raises `SuiteInvalid` for anything unreadable, a link that leads
    out, a special file, or too much data. A `trusted` tree may have links to anywhere, any number of files, and special
    files, which are ignored.
    """
    whole = hashlib.sha256()
    size = 0
    for number, (name, folder, info) in enumerate(_entries(root, parts, at, skip)):
        relative = os.fsencode(name)
        if number >= MAX_ENTRIES and not trusted:
            raise _refused(root, f"it has more than {MAX_ENTRIES} files")
        if stat.S_ISLNK(info.st_mode):
            content = os.fsencode(os.readlink(os.path.basename(name), dir_fd=folder))
            if not trusted and not Path(os.path.realpath(root / name)).is_relative_to(os.path.realpath(root)):
                raise _refused(root, f"{name} is a link that leads out of it")
        elif stat.S_ISREG(info.st_mode):
            size += info.st_size
            if size > MAX_BYTES and not trusted:
                raise _refused(root, f"its files are larger than {MAX_BYTES >> 30} GiB")
            content = _digest(root, name, folder)
        elif stat.S_ISDIR(info.st_mode):
            content = b""
        elif trusted:
            continue
        else:
            raise _refused(root, f"{name} is neither a file nor a directory")
        kind = f"{stat.S_IFMT(info.st_mode):o} {bool(info.st_mode & stat.S_IXUSR):d} {len(relative)} {len(content)} "
        whole.update(kind.encode() + relative + content)
    return whole.hexdigest()


def read_text(root: Path, name: str) -> str:
    """Read a file of a directory that `tree_sha256` has accepted."""
    try:
        with SuiteFiles(root) as files:
            found = files.find(name)
            if not found.outside:
                return files.read(found, LARGEST_TEXT)
    except text_files.Unreadable as why:
        raise _refused(root, f"{name} {why}", why.line) from None
    raise _refused(root, f"{name} leads out of it")  # a link swapped in since


def _digest(root: Path, name: str, folder: int) -> bytes:
    try:
        with open_regular(os.path.basename(name), folder) as file:
            return sha256_file(file.fileno())[0].encode()
    except OSError as error:
        raise _refused(root, f"{name} cannot be read: {error.strerror}") from None


def _entries(
    root: Path, parts: Collection[str] | None, at: int | None, skip: Collection[Identity]
) -> Iterator[tuple[str, int, os.stat_result]]:
    """Yield every entry below the root in a fixed order, with a descriptor of its directory. Links are not followed."""
    with contextlib.ExitStack() as stack:
        if at is None:
            try:
                at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise _refused(root, f". cannot be read: {error.strerror}") from None
            stack.callback(os.close, at)
        waiting = [""]
        while waiting:
            path = waiting.pop()
            try:
                with directory_below(at, path) as folder:
                    found = _listed(path, folder, None if path else parts, skip)
                    yield from ((name, folder, info) for name, info in found)
            except OSError as error:
                raise _refused(root, f"{path or '.'} cannot be read: {error.strerror}") from None
            waiting += [name for name, info in reversed(found) if stat.S_ISDIR(info.st_mode)]


def _listed(
    path: str, folder: int, parts: Collection[str] | None, skip: Collection[Identity]
) -> list[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    return [
        (f"{path}/{name}" if path else name, info)
        for name, info in sorted(found, key=lambda each: os.fsencode(each[0]))
        if (parts is None or name in parts) and (info.st_dev, info.st_ino) not in skip
    ]


def _refused(root: Path, what: str, line: int = 0) -> ProofboxError:
    problem = Problem(printable(what)[:1000], line, min(line, 1), "a task may only contain its own regular files")
    return invalid(str(root), [problem])
