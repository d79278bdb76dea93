"""A directory that somebody else wrote: looked through once, before anything in it is read or copied.

A link that leads out of it would put a file of this host into a prompt or a box; a pipe would be waited for without
end. Such a directory is refused as a whole.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from proofbox.core.digest import sha256_file
from proofbox.core.text import printable
from proofbox.errors import SuiteInvalid
from proofbox.lab import textfiles
from proofbox.lab.problems import Problem, invalid

MOST_ENTRIES = 100_000
MOST_BYTES = 8 << 30
LARGEST_TEXT = 1 << 20


def tree_sha256(root: Path, parts: Collection[str] | None = None, *, trusted: bool = False) -> str:
    """A digest of every path below `root`, its kind, its content and whether it can be executed.

    With `parts` only of these names in it. Raises `SuiteInvalid` for what can't be read, leads out, is no file, or is
    too much. One that is `trusted` may have links to anywhere and any number of files, and pipes, which don't count.
    """
    whole = hashlib.sha256()
    size = 0
    for number, (path, info) in enumerate(_entries(root, parts)):
        relative = os.fsencode(path.relative_to(root))
        if number >= MOST_ENTRIES and not trusted:
            raise _refused(root, f"it has more than {MOST_ENTRIES} files")
        if stat.S_ISLNK(info.st_mode):
            content = os.fsencode(os.readlink(path))
            if not trusted and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
                raise _refused(root, f"{path.relative_to(root)} is a link that leads out of it")
        elif stat.S_ISREG(info.st_mode):
            size += info.st_size
            if size > MOST_BYTES and not trusted:
                raise _refused(root, f"its files are larger than {MOST_BYTES >> 30} GiB")
            content = _digest(root, path)
        elif stat.S_ISDIR(info.st_mode):
            content = b""
        elif trusted:
            continue
        else:
            raise _refused(root, f"{path.relative_to(root)} is neither a file nor a directory")
        kind = f"{stat.S_IFMT(info.st_mode):o} {bool(info.st_mode & stat.S_IXUSR):d} {len(relative)} {len(content)} "
        whole.update(kind.encode() + relative + content)
    return whole.hexdigest()


def read_text(root: Path, name: str) -> str:
    """A file of a directory that `tree_sha256` has accepted."""
    try:
        return textfiles.read_text(root / name, LARGEST_TEXT)
    except textfiles.Unreadable as why:
        raise _refused(root, f"{name} {why}", why.line) from None


def _digest(root: Path, path: Path) -> bytes:
    try:
        return sha256_file(path)[0].encode()
    except OSError as error:
        raise _refused(root, f"{path.relative_to(root)} can't be read: {error.strerror}") from None


def _entries(root: Path, parts: Collection[str] | None) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below, in an order of its own, without following any link."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            found = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            raise _refused(root, f"{folder.relative_to(root)} can't be read: {error.strerror}") from None
        if folder == root and parts is not None:
            found = [entry for entry in found if entry.name in parts]
        for entry in found:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError as error:
                raise _refused(root, f"{Path(entry.path).relative_to(root)}: {error.strerror}") from None
            yield Path(entry.path), info
        waiting += [Path(entry.path) for entry in reversed(found) if entry.is_dir(follow_symlinks=False)]


def _refused(root: Path, what: str, line: int = 0) -> SuiteInvalid:
    problem = Problem(printable(what)[:1000], line, min(line, 1), "let the task hold its own files, and nothing else")
    return invalid(str(root), [problem])
