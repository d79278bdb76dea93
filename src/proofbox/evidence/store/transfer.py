"""Copying committed bundles to and from a store, behind the same barrier: the index comes last, and only once.

In a store a run is `<run_id>/<path>` for each of its files. Who pushes first claims the run's name with the digest of
its index, so that of several bundles of one name one gets in, whole, and the same one may be pushed again after an
interruption. LATEST moves by compare-and-swap.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proofbox.core.digest import sha256_hex
from proofbox.core.files.atomic import sync_directory, write_document
from proofbox.core.files.removal import remove_tree
from proofbox.errors import BundleCorrupt, BundleExists, BundleLocked, BundleNotFound, StoreConflict, StoreTooLarge
from proofbox.evidence.bundle.content import sync_all, write_new
from proofbox.evidence.bundle.index import Index, parse_index
from proofbox.evidence.bundle.lock import RunLock
from proofbox.evidence.bundle.paths import INDEX, LATEST, MAX_INDEX_BYTES, RUN_ID, enclosing, resolve, shown
from proofbox.evidence.bundle.reader import Bundle, as_bundle, refusal
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.pool import in_threads
from proofbox.evidence.store.contract import BundleStore, Stored
from proofbox.evidence.store.trial import check_store
from proofbox.evidence.verify.check import MAX_NESTING, check_bundle

_CLAIMS = ".proofbox/claims"
_UNFINISHED = ".proofbox-pull-"
MAX_LATEST_BYTES = 4096
_Path = str | os.PathLike[str]


def push_bundle(path: _Path, store: BundleStore) -> str:
    """Copy a committed bundle, checked in full first, into a store, and return its run id.

    Raises StoreConflict if another bundle of that name is there, and StoreUntrusted if the store fails its trial.
    """
    checked = check_bundle(resolve(path), chains=True)
    if not checked.ok:
        raise refusal(checked)
    bundle = as_bundle(checked)
    if os.path.realpath(bundle.path) != enclosing(bundle.path):
        raise BundleNotFound(
            "a nested bundle is pushed with its run", op="bundle push", fix_hints=["name the run's directory"]
        )
    check_store(store)
    _put(store, f"{_CLAIMS}/{bundle.run_id}", bundle.index_sha256.encode())

    def upload(work: tuple[str, Callable[[], bytes]]) -> None:
        _put(store, f"{bundle.run_id}/{work[0]}", work[1]())

    in_threads(upload, _contents(bundle, ""))
    index = bundle.directory.read(INDEX, MAX_INDEX_BYTES)
    if sha256_hex(index) != bundle.index_sha256:
        raise BundleCorrupt("the index changed while the bundle was pushed", op="bundle push")
    _put(store, f"{bundle.run_id}/{INDEX}", index)
    if bundle.index.status != "failed" and not bundle.status.dry:
        _move_latest(store, bundle.run_id)
    return bundle.run_id


def pull_bundle(store: BundleStore, out: _Path, run_id: str | None = None) -> Bundle:
    """Copy a run (default: the one that the store's LATEST names) into `out/<run_id>`, checked byte by byte.

    It appears there complete or not at all. LATEST in `out` is not moved: it names runs that were made there.
    """
    name = run_id if run_id is not None else _latest(store)
    if not RUN_ID.fullmatch(name):
        raise BundleNotFound(f"not the name of a run: {name[:200]!r}", op="bundle pull")
    os.makedirs(out, exist_ok=True)
    target = os.path.join(out, name)
    if os.path.lexists(target):
        raise _taken(target)
    with _unfinished(os.path.join(out, _UNFINISHED + name)) as place:
        found = store.get(f"{name}/{INDEX}")
        if found is None:
            raise BundleNotFound(
                f"the store has no committed run {name}",
                op="bundle pull",
                fix_hints=["push it first, or check the name"],
            )
        _download(store, name, place, "", found.data)
        checked = check_bundle(place, chains=True)
        if not checked.ok:
            raise refusal(checked)
        with RunLock(out, purpose=f"pull {name}"):
            if os.path.lexists(target):
                raise _taken(target)
            os.rename(place, target)
            sync_directory(out)
        if not checked.directory.is_at(target):
            raise BundleCorrupt(f"{shown(target)} is not the directory that was checked", op="bundle pull")
    return as_bundle(checked, path=target)


def _contents(bundle: Bundle, prefix: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Every file of a bundle but its own index, innermost first, each with what reads it checked."""
    for place, inner in bundle.nested.items():
        yield from _contents(inner, f"{prefix}{place}/")
    for path in bundle.artifacts:
        yield prefix + path, lambda path=path: bundle.read_bytes(path)  # type: ignore[misc]


def _download(
    store: BundleStore, run_id: str, place: str, prefix: str, index_bytes: bytes, depth: int = MAX_NESTING
) -> None:
    """The files that one index lists, then what nested indexes list, then the index itself."""
    if depth < 0:
        raise BundleCorrupt(f"bundles in the store are nested deeper than {MAX_NESTING}", op="bundle pull")
    try:
        index: Index = parse_index(index_bytes)
    except ShapeError as error:
        raise BundleCorrupt(f"{prefix}{INDEX} in the store is no index: {error}", op="bundle pull") from error
    if not prefix and index.run_id != run_id:
        raise BundleCorrupt(
            f"what the store calls {run_id} is the run {index.run_id}",
            op="bundle pull",
            fix_hints=["look at who wrote to the store: a push gives a run no other name than its own"],
        )

    def fetch(path: str) -> bytes | None:
        artifact = index.artifacts[path]
        key, limit = f"{run_id}/{prefix}{path}", artifact.file_size
        try:
            if artifact.is_nested_index:
                found = store.get(key, limit=min(limit, MAX_INDEX_BYTES))
                if found is not None and sha256_hex(found.data) == artifact.sha256:
                    return found.data
            else:
                pieces = store.stream(key, limit=limit)
                if pieces is not None and _write(place, prefix + path, pieces) == artifact.sha256:
                    return None
        except (StoreTooLarge, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise _differs(prefix + path) from error
        raise _differs(prefix + path)

    paths = list(index.artifacts)
    for path, nested in zip(paths, in_threads(fetch, paths), strict=True):
        if nested is not None:
            _download(store, run_id, place, prefix + path.removesuffix(INDEX), nested, depth - 1)
    sync_all(Path(place), [prefix + path for path, entry in index.artifacts.items() if not entry.is_nested_index])
    os.makedirs(os.path.join(place, prefix), exist_ok=True)
    write_document(os.path.join(place, prefix, INDEX), index_bytes)


def _write(place: str, path: str, pieces: Iterator[bytes]) -> str:
    """Put an object into a new file, and return its digest."""
    target = os.path.join(place, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return write_new(target, pieces, None).sha256


def _differs(path: str) -> BundleCorrupt:
    return BundleCorrupt(f"{path} in the store is not what the index says", op="bundle pull")


def _put(store: BundleStore, key: str, data: bytes) -> None:
    """Create, or find that the very same is there already: an interrupted push goes on where it stopped."""
    try:
        store.create(key, data)
    except StoreConflict:
        found = _get_small(store, key, len(data))
        if found is None or found.data != data:
            raise StoreConflict(
                f"the store holds something else at {key}",
                op="bundle push",
                fix_hints=["look at what is there: evidence is never overwritten"],
                details={"key": key},
            ) from None


def _get_small(store: BundleStore, key: str, limit: int) -> Stored | None:
    """What is there, if it has at most `limit` bytes."""
    try:
        return store.get(key, limit=limit)
    except StoreTooLarge:
        return None


def _move_latest(store: BundleStore, run_id: str) -> None:
    data = f"{run_id}\n".encode()
    for _ in range(100):
        found = store.get(LATEST, limit=MAX_LATEST_BYTES)
        try:
            if found is None:
                store.create(LATEST, data)
            elif found.data != data:
                store.swap(LATEST, data, found.version)
        except StoreConflict:
            continue
        return
    raise StoreConflict("LATEST kept changing", op="bundle push", fix_hints=["push once more"])


def _latest(store: BundleStore) -> str:
    found = store.get(LATEST, limit=MAX_LATEST_BYTES)
    if found is None:
        raise BundleNotFound("the store has no LATEST", op="bundle pull", fix_hints=["name the run"])
    return found.data.decode("ascii", "replace").removesuffix("\n")


@contextmanager
def _unfinished(place: str) -> Iterator[str]:
    """A directory for what is not complete yet, held by a lock: so a dead pull's is told from a living one's."""
    os.makedirs(place, exist_ok=True)
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BundleLocked(f"{shown(place)}: another process is pulling this run", op="bundle pull") from None
        for name in os.listdir(place):
            for left in remove_tree(name, dir_fd=fd):
                raise OSError(left.errno, left.reason, os.path.join(place, name))
        try:
            yield place
        finally:
            remove_tree(place)  # where the pull succeeded, it has another name by now
    finally:
        os.close(fd)


def _taken(target: str) -> BundleExists:
    return BundleExists(
        f"{shown(target)} is already there", op="bundle pull", fix_hints=["pull into another directory"]
    )
