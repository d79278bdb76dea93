"""What the last scan knew, kept between processes. Only for speed: without it everything is read again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from proofbox.workspace.tree import UNSETTLED, Directory

_VERSION = b"proofbox-scan-1\n"


def save(path: Path, directory: Directory) -> None:
    try:
        body = msgspec.msgpack.encode(directory)
    except UnicodeEncodeError:
        body = msgspec.msgpack.encode(_textual(directory))
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(_VERSION + hashlib.sha256(body).digest())
        file.write(body)
    temporary.replace(path)


def load(path: Path) -> Directory:
    """The directory as it was known, or an empty one of which nothing is known."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Directory()
    start = len(_VERSION) + 32
    body = memoryview(data)[start:]
    if data[:start] != _VERSION + hashlib.sha256(body).digest():
        return Directory()
    try:
        return msgspec.msgpack.decode(body, type=Directory)
    except msgspec.MsgspecError:
        return Directory()


def _textual(directory: Directory) -> Directory:
    """Without the names that are not UTF-8, which the format can't hold: those files are read again."""
    files = {name: known for name, known in directory.files.items() if _is_text(name)}
    dirs = {name: _textual(child) for name, child in directory.dirs.items() if _is_text(name)}
    if len(files) == len(directory.files) and len(dirs) == len(directory.dirs):
        return Directory(directory.mode, files, dirs, directory.tree_id, directory.ctime_ns, directory.ino)
    return Directory(directory.mode, files, dirs, b"", UNSETTLED, directory.ino)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
