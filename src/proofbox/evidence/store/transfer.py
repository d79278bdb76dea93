"""Copy committed bundles to and from a store, behind the same commit barrier: the index is written last, and once.

In a store each file of a run has the key `<run_id>/<path>`. The first push claims the run's name with the digest of its
index, so only one of several bundles with the same name is stored, and an interrupted push can be repeated. LATEST is
updated by compare-and-swap.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proofbox.core.digest import sha256_hex
from proofbox.core.files.atomic import sync_directory, write_document
from proofbox.core.files.removal import remove_tree
from proofbox.errors import BundleCorrupt, BundleExists, BundleLocked, BundleNotFound, StoreConflict, StoreTooLarge
from proofbox.evidence.bundle.content import sync_all, write_new
from proofbox.evidence.bundle.index import Index, parse_index
from proofbox.evidence.bundle.lock import Mode, RunLock
from proofbox.evidence.bundle.paths import INDEX, LATEST, MAX_INDEX_BYTES, RUN_ID, enclosing, resolve, shown
from proofbox.evidence.bundle.reader import Bundle, as_bundle, refusal
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.pool import in_threads
from proofbox.evidence.store.contract import BundleStore, Stored
from proofbox.evidence.store.write_check import check_store
from proofbox.evidence.verify.check import MAX_NESTING, check_bundle

_CLAIMS = ".proofbox/claims"
_UNFINISHED = ".proofbox-pull-"
MAX_LATEST_BYTES = 4096
SMALL_BYTES = 1 << 20
"""Maximum size of an artifact that is uploaded in one piece."""
_Path = str | os.PathLike[str]


def push_bundle(path: _Path, store: BundleStore) -> str:
    """Verify a committed bundle, copy it into a store, and return its run id.

    Raises StoreConflict if the store has another bundle of that name, and StoreUntrusted if the store fails its trial.
    """
    checked = check_bundle(resolve(path), chains=True)
    if not checked.ok:
        raise refusal(checked)
    bundle = as_bundle(checked)
    if os.path.realpath(bundle.path) != enclosing(bundle.path):
        raise BundleNotFound(
            "a nested bundle cannot be pushed without its run",
            op="bundle push",
            fix_hints=["proofbox bundle push RUN STORE"],
        )
    check_store(store)
    _put(store, f"{_CLAIMS}/{bundle.run_id}", bundle.index_sha256.encode())

    in_threads(lambda work: _upload(store, f"{bundle.run_id}/{work[0]}", *work[1:]), _contents(bundle, ""))
    index = bundle.directory.read(INDEX, MAX_INDEX_BYTES)
    if sha256_hex(index) != bundle.index_sha256:
        raise BundleCorrupt("the index changed while the bundle was pushed", op="bundle push")
    _put(store, f"{bundle.run_id}/{INDEX}", index)
    if bundle.index.status != "failed" and not bundle.status.dry:
        _move_latest(store, bundle.run_id)
    return bundle.run_id


def pull_bundle(
    store: BundleStore, out: _Path, run_id: str | None = None, *, lock: Mode = "wait", lock_timeout: float = 30.0
) -> Bundle:
    """Copy a run (default: the one that the store's LATEST names) into `out/<run_id>`, and verify it.

    It appears complete or not at all. LATEST in `out` is not updated: it names runs that were created there.
    """
    name = run_id if run_id is not None else _latest(store)
    if not RUN_ID.fullmatch(name):
        raise BundleNotFound(f"invalid run id: {name[:200]!r}", op="bundle pull")
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
        with RunLock(out, purpose=f"pull {name}", mode=lock, timeout=lock_timeout):
            if os.path.lexists(target):
                raise _taken(target)
            os.rename(place, target)
            sync_directory(out)
        if not checked.directory.is_at(target):
            raise BundleCorrupt(f"{shown(target)} is not the directory that was checked", op="bundle pull")
    return as_bundle(checked, path=target)


def _contents(bundle: Bundle, prefix: str) -> Iterator[tuple[str, Bundle, str]]:
    """Yield every file of a bundle except its own index, innermost first: its key, and its bundle and path there."""
    for place, inner in bundle.nested.items():
        yield from _contents(inner, f"{prefix}{place}/")
    for path in bundle.artifacts:
        yield prefix + path, bundle, path


def _download(
    store: BundleStore, run_id: str, place: str, prefix: str, index_bytes: bytes, depth: int = MAX_NESTING
) -> None:
    """Download the files of one index, then those of nested indexes, then the index itself."""
    if depth < 0:
        raise BundleCorrupt(f"bundles in the store are nested deeper than {MAX_NESTING}", op="bundle pull")
    try:
        index: Index = parse_index(index_bytes)
    except ShapeError as error:
        raise BundleCorrupt(f"{prefix}{INDEX} in the store is not a valid index: {error}", op="bundle pull") from error
    if not prefix and index.run_id != run_id:
        raise BundleCorrupt(
            f"the store's run {run_id} is actually the run {index.run_id}",
            op="bundle pull",
            fix_hints=["check the program that wrote to the store: a push never renames a run"],
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
    """Write an object to a new file, and return its digest."""
    target = os.path.join(place, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    return write_new(target, pieces, None).sha256


def _differs(path: str) -> BundleCorrupt:
    return BundleCorrupt(f"{path} in the store does not match the index", op="bundle pull")


def _put(store: BundleStore, key: str, data: bytes) -> None:
    """Create an object, or accept an identical existing one, so that an interrupted push can be repeated."""
    try:
        store.create(key, data)
    except StoreConflict:
        found = _get_small(store, key, len(data))
        if found is None or found.data != data:
            raise _other_object(key) from None


def _upload(store: BundleStore, key: str, bundle: Bundle, path: str) -> None:
    """Store an artifact under `key`. A large one is not read whole."""
    artifact = bundle.artifacts[path]
    if artifact.file_size <= SMALL_BYTES:
        _put(store, key, bundle.read_bytes(path))
        return
    try:
        store.upload(key, bundle.read_pieces(path))
    except StoreConflict:
        if _stored_sha256(store, key, artifact.file_size) != artifact.sha256:
            raise _other_object(key) from None


def _stored_sha256(store: BundleStore, key: str, limit: int) -> str | None:
    """Return the digest of an object; None if it is missing or has more than `limit` bytes."""
    digest = hashlib.sha256()
    try:
        for piece in store.stream(key, limit=limit) or ():
            digest.update(piece)
    except StoreTooLarge:
        return None
    return digest.hexdigest()


def _other_object(key: str) -> StoreConflict:
    return StoreConflict(
        f"the store has a different object at {key}",
        op="bundle push",
        fix_hints=["inspect the existing object: evidence is never overwritten"],
        details={"key": key},
    )


def _get_small(store: BundleStore, key: str, limit: int) -> Stored | None:
    """Return the object; None if it is missing or has more than `limit` bytes."""
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
    raise StoreConflict("LATEST kept changing", op="bundle push", fix_hints=["push again"])


def _latest(store: BundleStore) -> str:
    found = store.get(LATEST, limit=MAX_LATEST_BYTES)
    if found is None:
        raise BundleNotFound("the store has no LATEST", op="bundle pull", fix_hints=["give the run id"])
    return found.data.decode("ascii", "replace").removesuffix("\n")


@contextmanager
def _unfinished(place: str) -> Iterator[str]:
    """Yield a locked directory for an incomplete pull. The lock distinguishes a running pull from a dead one."""
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
            remove_tree(place)  # after a successful pull it has been renamed
    finally:
        os.close(fd)


def _taken(target: str) -> BundleExists:
    return BundleExists(f"{shown(target)} already exists", op="bundle pull", fix_hints=["pull into another directory"])
