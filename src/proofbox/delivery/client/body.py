"""Request bodies of any size: JSON whose length is known in advance and whose files are read while it is sent.

Each file is hashed while it is sent. If it has changed since the plan, the request is aborted.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from proofbox.delivery.client.wire import InitialExport, Mode, PullRequest, RepositoryChange, UploadedFile
from proofbox.errors import SourceRefused

_CHUNK = 3 << 16  # a multiple of three, so that the base64 of the pieces can be joined without padding


class FileToSend(Protocol):
    """A file to send: its expected metadata, and how to read it."""

    @property
    def path(self) -> str: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    def pieces(self) -> Iterator[bytes]: ...


class Body:
    """A body of `length` bytes, generated for each attempt, because a request may be retried."""

    def __init__(self, length: int, pieces: Callable[[], Iterator[bytes]]) -> None:
        self.length = length
        self.pieces = pieces

    @classmethod
    def of(cls, document: msgspec.Struct) -> Body:
        data = msgspec.json.encode(document)
        return cls(len(data), lambda: iter((data,)))


def export_body(document: InitialExport, files: Sequence[FileToSend]) -> Body:
    """Return the document with `files` as its last member."""
    items = [
        (msgspec.json.encode(UploadedFile(path=each.path, mode=each.mode, content_base64=b"")), each) for each in files
    ]
    return _with_items(msgspec.json.encode(document), items)


def pull_request_body(document: PullRequest, changes: Iterable[tuple[RepositoryChange, FileToSend | None]]) -> Body:
    """Return the document with `changes` as its last member. A deletion has no content."""
    items = []
    for change, content in changes:
        filled = msgspec.structs.replace(change, content_base64=None if content is None else b"")
        items.append((msgspec.json.encode(filled), content))
    return _with_items(msgspec.json.encode(document), items)


def _with_items(document: bytes, items: Sequence[tuple[bytes, FileToSend | None]]) -> Body:
    head = document.removesuffix(b"[]}")
    length = len(head) + 1 + max(0, len(items) - 1) + 2
    for item, content in items:
        length += len(item) + (0 if content is None else (content.size + 2) // 3 * 4)

    def pieces() -> Iterator[bytes]:
        held = bytearray(head + b"[")
        for number, (item, content) in enumerate(items):
            if number:
                held += b","
            if content is None:
                held += item
            else:
                held += item.removesuffix(b'"}')
                for piece in _encoded(content):
                    held += piece
                    if len(held) >= _CHUNK:
                        yield bytes(held)
                        held.clear()
                held += b'"}'
        yield bytes(held + b"]}")

    return Body(length, pieces)


def _encoded(content: FileToSend) -> Iterator[bytes]:
    digest, size, rest = hashlib.sha256(), 0, b""
    for piece in content.pieces():
        digest.update(piece)
        size += len(piece)
        if size > content.size:
            break
        data = rest + piece
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield base64.b64encode(data[:whole])
    if size != content.size or digest.hexdigest() != content.sha256:
        raise SourceRefused(
            f"{content.path} changed while it was being sent",
            op="deliver send",
            fix_hints=["stop the program that writes to it and deliver again, or deliver a snapshot: --snapshot ID"],
            details={"path": content.path},
        )
    yield base64.b64encode(rest)
