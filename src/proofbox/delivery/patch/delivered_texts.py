"""Store the text of delivered files by digest, because the backend only returns digests and plans show lines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from proofbox.delivery.source.tree import SourceFile
from proofbox.workspace.store import pack
from proofbox.workspace.store.objects import ObjectStore

MAX_BYTES = 256 << 10


class Remembered:
    """The stored texts, next to the baseline. If they are lost, plans show digests."""

    def __init__(self, directory: Path) -> None:
        place = directory / "content"
        self._store = ObjectStore(place) if place.is_dir() else ObjectStore.create(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._store.close()

    def keep(self, files: Iterable[SourceFile]) -> None:
        for file in files:
            if file.size <= MAX_BYTES and bytes.fromhex(file.sha256) not in self._store:
                self._store.put(pack.BLOB, b"".join(file.pieces()))
        self._store.flush()

    def text(self, sha256: str | None) -> bytes | None:
        digest = bytes.fromhex(sha256 or "")
        return self._store.get(digest) if digest and digest in self._store else None
