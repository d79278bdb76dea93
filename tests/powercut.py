"""Compute which writes of a program a power cut could lose. Killing it is not enough: the page cache survives."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

TRACED = "openat,open,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat"
CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)\) += (-?\d+|\?)(.*)$")
PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
OF_DESCRIPTOR = re.compile(r"(?:AT_FDCWD|\d+)<([^>]*)>")


class Disk:
    """The files with unsynced content and the directories with unsynced entries, which a power cut could lose."""

    def __init__(self) -> None:
        self.dirty_files: set[str] = set()
        self.dirty_directories: set[str] = set()

    def happened(self, name: str, arguments: str, result: str) -> tuple[str, str] | None:
        """Record one call. Return the old and new path if it is a rename."""
        if result.startswith("-"):
            return None
        bases, names = OF_DESCRIPTOR.findall(arguments), PATH.findall(arguments)
        if name in ("write", "pwrite64", "ftruncate"):
            self.dirty_files.add(bases[0])
        elif name in ("fsync", "fdatasync"):
            self.dirty_files.discard(bases[0])
            self.dirty_directories.discard(bases[0])
        elif "O_CREAT" in arguments or name in ("mkdir", "mkdirat", "unlink", "unlinkat"):
            self.named(self.full(bases, names, 0))
        elif name in ("rename", "renameat", "renameat2"):
            old, new = self.full(bases, names, 0), self.full(bases, names, 1)
            self.named(old)
            self.named(new)
            self.dirty_files.discard(new)  # the previous file is replaced
            for pool in (self.dirty_files, self.dirty_directories):
                for path in [path for path in pool if path == old or path.startswith(old + "/")]:
                    pool.remove(path)
                    pool.add(new + path[len(old) :])
            return old, new
        return None

    def full(self, bases: list[str], names: list[str], which: int) -> str:
        base = bases[which] if which < len(bases) else ""
        return names[which] if names[which].startswith("/") else f"{base}/{names[which]}"

    def named(self, path: str) -> None:
        self.dirty_directories.add(path.rpartition("/")[0])


def calls_of(argv: Sequence[str], place: Path) -> Iterator[tuple[str, str, str, str]]:
    """Run a program under strace, and yield each line with the call's name, arguments and result."""
    trace = ["strace", "-f", "-y", "-s", "400", "-e", f"trace={TRACED}", "-o", str(place / "calls"), *argv]
    done = subprocess.run(trace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in _joined((place / "calls").read_text().splitlines()):
        if match := CALL.match(line):
            yield line, match[1], match[2], match[3]


def _joined(lines: list[str]) -> list[str]:
    """Join the parts of calls that strace split because another thread was scheduled, at the place where they ended."""
    begun: dict[str, str] = {}
    whole = []
    for line in lines:
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix(" <unfinished ...>")
        elif match := re.match(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$", line):
            whole.append(begun.pop(match[1], "") + match[2])
        else:
            whole.append(line)
    return whole
