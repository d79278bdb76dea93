"""Read a directory as a source, without following links. Each file is checked to be regular when it is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from proofbox.core.files.modes import git_mode
from proofbox.delivery.source.tree import FoundFile, Pieces, refused

CHUNK = 3 << 16


def directory_files(root: str) -> Iterator[FoundFile]:
    """Yield every file below `root`. A `.git` directory is yielded as one entry and not entered."""
    pending = [""]
    while pending:
        below = pending.pop()
        with os.scandir(os.path.join(root, below) if below else root) as entries:
            for entry in entries:
                path = f"{below}/{entry.name}" if below else entry.name
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    if entry.name == ".git":
                        yield FoundFile(path, "100644", lambda: iter(()))
                    else:
                        pending.append(path)
                elif stat.S_ISLNK(info.st_mode) or stat.S_ISREG(info.st_mode):
                    pieces = _link if stat.S_ISLNK(info.st_mode) else _file
                    yield FoundFile(path, git_mode(info.st_mode), pieces(os.path.join(root, path)))
                else:
                    raise refused("it is not a file, directory or link", path, "remove it")


def _file(place: str) -> Pieces:
    def pieces() -> Iterator[bytes]:
        try:
            fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise refused(f"it cannot be read ({error.strerror})", place, "check its permissions") from error
        with open(fd, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise refused("it is no longer a regular file", place)
            while piece := stream.read(CHUNK):
                yield piece

    return pieces


def _link(place: str) -> Pieces:
    return lambda: iter((os.fsencode(os.readlink(place)),))
