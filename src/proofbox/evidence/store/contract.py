"""The contract of a bundle store: six operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from proofbox.errors import StoreTooLarge, StoreUnavailable, UsageError
from proofbox.evidence.bundle.paths import MAX_INDEX_BYTES, is_artifact_path

MAX_WHOLE_BYTES = MAX_INDEX_BYTES
"""Maximum size of an object that is read whole. Indexes are the largest."""


class Stored(NamedTuple):
    data: bytes
    version: str
    """Opaque; compared by `swap`."""


class BundleStore(Protocol):
    """Objects by key. Keys have the form of artifact paths. Every operation is atomic: no reader sees half an object.

    Failures of the store itself raise StoreError, which is retryable.
    """

    def create(self, key: str, data: bytes) -> str:
        """Create an object and return its version. Raises StoreConflict if the key exists."""
        ...

    def upload(self, key: str, pieces: Iterable[bytes]) -> None:
        """Create an object of any size piece by piece. If reading the pieces raises, nothing is stored.

        Raises StoreConflict if the key exists. Unlike `create`, two concurrent uploads may both succeed, so it is only
        for objects whose content is fixed in another way, such as by a claim.
        """
        ...

    def swap(self, key: str, data: bytes, version: str) -> str:
        """Replace an object that still has `version`, and return the new version. Raises StoreConflict otherwise."""
        ...

    def get(self, key: str, *, limit: int = MAX_WHOLE_BYTES) -> Stored | None:
        """Return the object or None. Raises StoreTooLarge, without reading it, beyond `limit` bytes."""
        ...

    def stream(self, key: str, *, limit: int) -> Iterator[bytes] | None:
        """Return the object's pieces or None. Raises StoreTooLarge, at once or later, beyond `limit` bytes."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return all keys below `prefix`, sorted. The prefix consists of whole segments; empty means all keys."""
        ...


def check_key(key: str) -> str:
    if not is_artifact_path(key):
        raise UsageError(
            f"invalid key: {key[:200]!r}", op="store", fix_hints=["use a relative key with forward slashes"]
        )
    return key


def bounded(key: str, pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Yield the pieces of an object. Raises StoreTooLarge beyond `limit` bytes in total."""
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > limit:
            raise too_large(key, limit)
        yield piece


def too_large(key: str, limit: int) -> StoreTooLarge:
    return StoreTooLarge(f"{key} has more than {limit} bytes", op="store get")


def open_store(url: str) -> BundleStore:
    """Open `s3://bucket/prefix` or a directory. S3 settings come from the AWS_… environment variables."""
    if match := re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,62})(?:/(.*?))?/*", url):
        try:
            from proofbox.evidence.store.s3 import S3
        except ImportError as error:
            raise StoreUnavailable("S3 needs the extra `s3`", op="store open") from error
        return S3(match[1], match[2] or "")
    if "://" in url:
        raise UsageError(
            f"unsupported store: {url[:200]!r}",
            op="store open",
            fix_hints=["use s3://bucket/prefix or the path of a directory"],
        )
    from proofbox.evidence.store.local import Local

    return Local(url)
