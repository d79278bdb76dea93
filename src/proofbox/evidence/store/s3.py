"""A store in an S3 bucket with conditional requests: If-None-Match to create, If-Match to swap.

Credentials, region and endpoint come from the AWS_… environment, never from the URL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import obstore
from obstore import exceptions
from obstore.store import S3Store

from proofbox.errors import StoreConflict, StoreError
from proofbox.evidence.store.contract import MAX_WHOLE_BYTES, Stored, bounded, check_key, too_large

_Result = TypeVar("_Result")
_CHUNK = 1 << 20
_PART, _CONCURRENT = 1 << 23, 2
"""Size and maximum number of the parts of an upload in memory."""


class S3:
    """A store in a bucket. A version is an ETag. Large objects are uploaded in parts of 8 MiB, up to 80 GB."""

    def __init__(self, bucket: str, prefix: str) -> None:
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        self._store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={"allow_http": plain, "timeout": "60s"},
            retry_config={"max_retries": 3},
        )

    def create(self, key: str, data: bytes) -> str:
        def put() -> str:
            return self._version(obstore.put(self._store, check_key(key), data, mode="create", use_multipart=False))

        return self._call("create", key, put)

    def upload(self, key: str, pieces: Iterable[bytes]) -> None:
        def put() -> None:
            try:
                obstore.head(self._store, check_key(key))
            except (exceptions.NotFoundError, FileNotFoundError):
                obstore.put(
                    self._store, key, iter(pieces), use_multipart=True, chunk_size=_PART, max_concurrency=_CONCURRENT
                )
            else:
                raise StoreConflict(f"{key} already exists", op="store upload")

        self._call("upload", key, put)

    def swap(self, key: str, data: bytes, version: str) -> str:
        def put() -> str:
            done = obstore.put(self._store, check_key(key), data, mode={"e_tag": version}, use_multipart=False)
            return self._version(done)

        return self._call("swap", key, put)

    def get(self, key: str, *, limit: int = MAX_WHOLE_BYTES) -> Stored | None:
        def read() -> Stored | None:
            found = self._found(key, limit)
            if found is None:
                return None
            return Stored(b"".join(_pieces(key, found, limit)), self._version(found.meta))

        return self._call("get", key, read)

    def stream(self, key: str, *, limit: int) -> Iterator[bytes] | None:
        found = self._call("get", key, lambda: self._found(key, limit))
        if found is None:
            return None
        pieces = _pieces(key, found, limit)

        def called() -> Iterator[bytes]:
            while (piece := self._call("get", key, lambda: next(pieces, None))) is not None:
                yield piece

        return called()

    def _found(self, key: str, limit: int) -> obstore.GetResult | None:
        """Return an object before its content is read. The size comes from the server and is checked again later."""
        try:
            found = obstore.get(self._store, check_key(key))
        except (exceptions.NotFoundError, FileNotFoundError):
            return None
        if found.meta["size"] > limit:
            raise too_large(key, limit)
        return found

    def list(self, prefix: str) -> list[str]:
        def pages() -> list[str]:
            return sorted(each["path"] for page in obstore.list(self._store, prefix or None) for each in page)

        return self._call("list", prefix, pages)

    def _version(self, facts: object) -> str:
        tag = facts.get("e_tag") if isinstance(facts, dict) else None
        if not tag:
            raise StoreError("the store returned no ETag, which compare-and-swap requires", op="store")
        return str(tag)

    def _call(self, what: str, key: str, work: Callable[[], _Result]) -> _Result:
        try:
            return work()
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise StoreConflict(f"{key} already exists or has changed", op=f"store {what}") from error
        except exceptions.NotFoundError as error:
            # A swap of a missing object. A missing bucket looks the same, and a retry does not help either.
            raise StoreConflict(f"{key} does not exist", op=f"store {what}") from error
        except exceptions.BaseError as error:
            first = str(error).splitlines()[0][:300]
            raise StoreError(
                f"{key}: {first}",
                op=f"store {what}",
                fix_hints=["check AWS_ENDPOINT_URL, AWS_REGION and the credentials in the environment"],
            ) from error


def _pieces(key: str, found: obstore.GetResult, limit: int) -> Iterator[bytes]:
    return bounded(key, map(bytes, found.stream(min_chunk_size=_CHUNK)), limit)
