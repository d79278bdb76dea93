"""A store in a directory, for tests, shared file systems and copies on a disk."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from proofbox.core.digest import sha256_hex
from proofbox.core.files.atomic import TEMPORARY_PREFIX, create_only, write_document
from proofbox.errors import StoreConflict, StoreError
from proofbox.evidence.bundle.paths import TooLarge, read_bounded
from proofbox.evidence.store.contract import MAX_WHOLE_BYTES, Stored, bounded, check_key, too_large

_LOCK = ".store.lock"
_CHUNK = 1 << 20


class Local:
    """A store in a directory. A version is the digest of the content, so equal contents have the same version."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(directory)
        try:
            os.makedirs(self._root, exist_ok=True)
        except OSError as error:
            raise _failure("open", self._root, error) from error

    def create(self, key: str, data: bytes) -> str:
        self._create(key, data)
        return sha256_hex(data)

    def upload(self, key: str, pieces: Iterable[bytes]) -> None:
        self._create(key, pieces)

    def _create(self, key: str, data: bytes | Iterable[bytes]) -> None:
        path = self._path(key)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            create_only(path, data)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise StoreConflict(f"{key} already exists", op="store create") from error
        except OSError as error:
            raise _failure("create", key, error) from error

    def swap(self, key: str, data: bytes, version: str) -> str:
        with self._locked():
            found = self.get(key)
            if found is None or found.version != version:
                raise StoreConflict(f"{key} has changed since it was read", op="store swap")
            try:
                write_document(self._path(key), data)
            except OSError as error:
                raise _failure("swap", key, error) from error
        return sha256_hex(data)

    def get(self, key: str, *, limit: int = MAX_WHOLE_BYTES) -> Stored | None:
        try:
            data = read_bounded(self._path(key), limit)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except TooLarge as error:
            raise too_large(key, limit) from error
        except OSError as error:
            raise _failure("get", key, error) from error
        return Stored(data, sha256_hex(data))

    def stream(self, key: str, *, limit: int) -> Iterator[bytes] | None:
        try:
            fd = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failure("get", key, error) from error
        return bounded(key, _pieces(key, fd), limit)

    def list(self, prefix: str) -> list[str]:
        top = self._path(prefix) if prefix else self._root
        found = []
        for place, _, names in os.walk(top):
            below = os.path.relpath(place, self._root)
            for name in names:
                if name != _LOCK and not name.startswith(TEMPORARY_PREFIX):
                    found.append(name if below == "." else f"{below}/{name}")
        return sorted(found)

    def _path(self, key: str) -> str:
        return os.path.join(self._root, check_key(key))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(os.path.join(self._root, _LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _pieces(key: str, fd: int) -> Iterator[bytes]:
    with open(fd, "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _failure("get", key, OSError("not a regular file"))
        try:
            while piece := stream.read(_CHUNK):
                yield piece
        except OSError as error:
            raise _failure("get", key, error) from error


def _failure(what: str, key: str, error: OSError) -> StoreError:
    return StoreError(
        f"{key}: {error.strerror or error}", op=f"store {what}", fix_hints=["check that the directory is writable"]
    )
