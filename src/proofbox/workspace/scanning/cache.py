"""Results of the last scan, kept between processes. Used only for speed: without it, every file is read again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from proofbox.core.files.locks import locked
from proofbox.workspace.tree import Directory

_VERSION = b"proofbox-scan-3\n"


class _Row(msgspec.Struct, array_like=True):
    """A directory: its depth, its name and its known entries. Parents come before their children."""

    depth: int
    name: bytes
    mode: int
    tree_id: bytes
    ctime_ns: int
    ino: int
    names: bytes
    records: bytes


class _Cache(msgspec.Struct, array_like=True):
    position: tuple[int, int, int]
    rows: list[_Row]


def save(path: Path, directory: Directory, position: tuple[int, int, int]) -> None:
    """Write the cache. `position` is a store position at which everything that `directory` refers to is stored."""
    rows: list[_Row] = []

    def add(each: Directory, depth: int, name: str) -> None:
        row = (each.mode, each.tree_id, each.ctime_ns, each.ino, *each.pack())
        rows.append(_Row(depth, os.fsencode(name), *row))
        for below, child in each.dirs.items():
            add(child, depth + 1, below)

    add(directory, 0, "")
    body = msgspec.msgpack.encode(_Cache(position, rows))
    temporary = path.with_name(path.name + ".new")
    with locked(path.with_name(path.name + ".lock")):  # several processes may close the workspace at the same time
        with temporary.open("wb") as file:
            file.write(_VERSION + hashlib.sha256(body).digest())
            file.write(body)
        temporary.replace(path)


def load(path: Path) -> tuple[Directory, tuple[int, int, int]]:
    """Return the cached directory and its store position, or an empty directory if there is no usable cache."""
    unknown = Directory(), (0, 0, 0)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return unknown
    start = len(_VERSION) + 32
    body = memoryview(data)[start:]
    if data[:start] != _VERSION + hashlib.sha256(body).digest():
        return unknown
    try:
        found = msgspec.msgpack.decode(body, type=_Cache)
    except msgspec.MsgspecError:
        return unknown
    line: list[Directory] = []
    for row in found.rows:
        each = Directory(row.mode, row.tree_id, row.ctime_ns, row.ino, (row.names, row.records))
        del line[row.depth :]
        if line:
            line[-1].dirs[os.fsdecode(row.name)] = each
        line.append(each)
    return (line[0], found.position) if line else unknown
