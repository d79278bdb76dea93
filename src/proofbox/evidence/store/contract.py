"""What a store must do. Five operations; everything that bundles need is made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from proofbox.errors import StoreTooLarge, StoreUnavailable, UsageError
from proofbox.evidence.bundle.paths import MAX_INDEX_BYTES, is_artifact_path

MAX_WHOLE_BYTES = MAX_INDEX_BYTES
"""Of an object that is read whole. An index is the largest of them."""


class Stored(NamedTuple):
    data: bytes
    version: str
    """Opaque; what `swap` compares."""


class BundleStore(Protocol):
    """Objects by key. Keys have the form of artifact paths. Every operation is atomic: no reader sees half an object.

    Failures of the store itself raise StoreError, which may be tried again.
    """

    def create(self, key: str, data: bytes) -> str:
        """Put `data` where there is nothing, and return its version; StoreConflict if there is anything at all."""
        ...

    def swap(self, key: str, data: bytes, version: str) -> str:
        """Replace what is there if it still has `version`, and return the new one; StoreConflict otherwise."""
        ...

    def get(self, key: str, *, limit: int = MAX_WHOLE_BYTES) -> Stored | None:
        """What is there, or None; StoreTooLarge if it has more than `limit` bytes, which are not read."""
        ...

    def stream(self, key: str, *, limit: int) -> Iterator[bytes] | None:
        """What is there, in pieces, or None; StoreTooLarge, at once or later, if it has more than `limit` bytes."""
        ...

    def list(self, prefix: str) -> list[str]:
        """All keys below `prefix`, a key's leading part of whole segments (or empty for all), sorted."""
        ...


def check_key(key: str) -> str:
    if not is_artifact_path(key):
        raise UsageError(
            f"not a key: {key[:200]!r}", op="store", fix_hints=["give a relative key, with forward slashes"]
        )
    return key


def bounded(key: str, pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """The pieces of an object, as long as they have at most `limit` bytes together."""
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limit:
            raise too_large(key, limit)
        yield piece


def too_large(key: str, limit: int) -> StoreTooLarge:
    return StoreTooLarge(f"{key} has more than {limit} bytes", op="store get")


def open_store(url: str) -> BundleStore:
    """`s3://bucket/prefix`, or the path of a directory. What S3 needs besides comes from the AWS_… environment."""
    if match := re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,62})(?:/(.*?))?/*", url):
        try:
            from proofbox.evidence.store.s3 import S3
        except ImportError as error:
            raise StoreUnavailable("S3 needs the extra `s3`", op="store open") from error
        return S3(match[1], match[2] or "")
    if "://" in url:
        raise UsageError(
            f"not a store: {url[:200]!r}",
            op="store open",
            fix_hints=["give s3://bucket/prefix, or the path of a directory"],
        )
    from proofbox.evidence.store.local import Local

    return Local(url)
