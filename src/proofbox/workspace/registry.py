"""The registry of workspaces, and the small documents stored for each of them.

Stored in the user's state directory, which processes in a workspace cannot reach:

    workspaces/paths/<sha256 of the directory's path>   the workspace's id
    workspaces/<id>/workspace.json                      path, store, ignore patterns
    workspaces/<id>/refs.json                           names for snapshots
    workspaces/<id>/rollback.json                       a rollback in progress
    workspaces/<id>/cache                               results of earlier scans; may be lost at any time
    workspaces/<id>/cache.lock                          held while the cache is written
    workspaces/<id>/lock                                held during a snapshot or rollback
    workspaces/stores/<id>/                             content and events, shared between forks
    workspaces/stores/<id>/owner.json                   the run that it was made for, once its workspaces are forgotten

Each document contains the digest of its body, so that damage is detected.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import msgspec

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.core.digest import digest_of
from proofbox.core.dirs import state_dir
from proofbox.core.documents import stored
from proofbox.core.files.atomic import TEMPORARY_PREFIX, create_only, sync_directory, write_document
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import LeftoverPath, remove_tree
from proofbox.errors import (
    VersionUnknown,
    WorkspaceCorrupt,
    WorkspaceExists,
    WorkspacePathRefused,
    WorkspaceReplaced,
    WorkspaceUnknown,
)
from proofbox.workspace.identity import identity_of

SCHEMA_VERSION = 1
REFS, ROLLBACK, CACHE, LOCK, OWNER = "refs.json", "rollback.json", "cache", "lock", "owner.json"
T = TypeVar("T")


@stored("workspace.json", at="the member `body` of STATE/workspaces/WORKSPACE/workspace.json, with its `sha256`")
class Registration(msgspec.Struct, frozen=True):
    """A directory with history, and the store that holds the history."""

    id: str
    """The workspace's id."""
    store: str
    """The id of the store, which is shared with forks."""
    path_hex: str
    """The directory's path in hexadecimal, because its bytes may not be text."""
    ignore: tuple[str, ...]
    """Patterns of paths that are excluded."""
    created_at: str
    schema_version: int = SCHEMA_VERSION
    """Version of this format. Other versions are refused."""
    identity: str = ""
    """The file system's handle of the directory, which a replacement directory does not have. Empty if the file system
    has no handles."""

    @property
    def path(self) -> str:
        return os.fsdecode(bytes.fromhex(self.path_hex))


class Rollback(msgspec.Struct, frozen=True):
    """A rollback in progress."""

    target: str
    before: str
    temporary: str


class StoreOwner(msgspec.Struct, frozen=True):
    """The directory of a run whose files a store holds."""

    path_hex: str
    identity: str = ""
    """As in `Registration`. With it, the directory may be moved."""


def base() -> Path:
    return state_dir() / "workspaces"


def home_of(workspace_id: str) -> Path:
    return base() / workspace_id


def _temporary_home(workspace_id: str) -> Path:
    """Return the temporary path of a home while it is created or removed."""
    return base() / f"{TEMPORARY_PREFIX}{workspace_id}"


def store_path(store_id: str) -> Path:
    return base() / "stores" / store_id


def real_directory(path: str | os.PathLike[str]) -> str:
    """Return the canonical path of a directory that may be a workspace."""
    real = os.path.realpath(os.fspath(path))
    if not os.path.isdir(real):
        if os.path.lexists(real):
            problem, hint = "is not a directory", f"use its parent directory: {quote(os.path.dirname(real))}"
        else:
            problem, hint = "does not exist", f"mkdir -p {quote(real)} && {_command('init', real)}"
        raise WorkspacePathRefused(f"{os.fspath(path)} {problem}", op="workspace", fix_hints=[hint])
    refuse_own_state(real)
    return real


def _command(name: str, real: str) -> str:
    return f"proofbox workspace {name} {quote(real)}"


def refuse_own_state(real: str) -> None:
    """Raise WorkspacePathRefused if the directory contains proofbox's state directory or is inside it."""
    state = os.path.realpath(base())
    if os.path.commonpath([real, state]) in (real, state):
        raise WorkspacePathRefused(
            f"{real} contains proofbox's state directory or is inside it",
            op="workspace",
            fix_hints=["choose a project directory", "or set XDG_STATE_HOME to a directory outside it"],
        )


def is_registered(real: str) -> bool:
    return _entry_path(os.fsencode(real)).exists()


def register(registration: Registration, *, replace: bool = False) -> None:
    """Make the directory a workspace. If two processes try, one of them gets WorkspaceExists.

    `replace` is for a newly created directory: an existing registration of its path belongs to an earlier directory.
    """
    path = bytes.fromhex(registration.path_hex)
    home, temporary = home_of(registration.id), _temporary_home(registration.id)
    temporary.mkdir(mode=0o700, parents=True)
    write(temporary / "workspace.json", registration)
    os.rename(temporary, home)  # record the owner before the home appears
    place = _entry_path(path)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    if replace:
        place.unlink(missing_ok=True)
    try:
        create_only(place, registration.id.encode() + b"\n", mode=0o600)
    except FileExistsError:
        remove_tree(home)
        registered(registration.path)  # raises WorkspaceReplaced if the history belongs to another directory
        raise WorkspaceExists(
            f"{registration.path} is already a workspace",
            op="workspace init",
            fix_hints=[
                f"use it as it is: {_command('status', registration.path)}",
                f"or drop its history first: {_command('forget', registration.path)}",
            ],
        ) from None


def adopt(registration: Registration) -> Registration:
    """Assign the history to the directory that is now at its path."""
    adopted = msgspec.structs.replace(registration, identity=identity_of(registration.path))
    write(home_of(registration.id) / "workspace.json", adopted)
    return adopted


def forget(registration: Registration) -> None:
    """Remove a workspace. The path entry goes first: if killed in between, only an unreferenced home remains."""
    _entry_path(bytes.fromhex(registration.path_hex)).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(home_of(registration.id), _temporary_home(registration.id))
    remove_tree(_temporary_home(registration.id))


def sweep(older_than: float = 3600.0) -> None:
    """Remove temporary homes left by processes that were killed more than `older_than` seconds ago."""
    for path in base().glob(f"{TEMPORARY_PREFIX}ws-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > older_than:
                remove_tree(path)


def registered_below(directory: str | os.PathLike[str]) -> list[Registration]:
    """Return the workspaces whose directories are or were below `directory`. Damaged registrations are left out."""
    above = os.path.join(os.path.realpath(directory), "")
    found = []
    for home in base().glob("ws-*"):
        with contextlib.suppress(WorkspaceCorrupt):
            registration = read(home / "workspace.json", Registration)
            if registration is not None and registration.path.startswith(above):
                found.append(registration)
    return found


def assign_store(store_id: str, run: Path) -> None:
    """Record that a store belongs to a run. The first owner stays."""
    real = os.path.realpath(run)
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        owner = StoreOwner(os.fsencode(real).hex(), identity_of(real))
        create_only(store_path(store_id) / OWNER, _document(owner), mode=0o600)


def stores_of(run: Path) -> set[str]:
    """Return the stores that belong to a run. Those with damaged records are left out."""
    real = os.path.realpath(run)
    path, identity = os.fsencode(real).hex(), identity_of(real)
    found = set()
    for place in (base() / "stores").glob(f"*/{OWNER}"):
        with contextlib.suppress(WorkspaceCorrupt):
            owner = read(place, StoreOwner)
            if owner is not None and (owner.path_hex == path or (identity and owner.identity == identity)):
                found.add(place.parent.name)
    return found


def forget_workspaces(work: Path, run: Path) -> set[str]:
    """Unregister the templates and the workspaces of killed attempts in a work directory; return their stores.

    The stores hold what attempts left, and stay. They now belong to the run.
    """
    # A received run may have a link in this place. The workspaces behind it do not belong to the run.
    is_link = work.is_symlink() or work.parent.is_symlink()
    found = [] if is_link else registered_below(work)
    for each in found:
        assign_store(each.store, run)
        forget(each)
    sweep()
    return {each.store for each in found}


def drop_store(store_id: str) -> list[LeftoverPath]:
    """Remove a store unless a workspace still uses it. Return the paths that could not be removed.

    Raises `WorkspaceCorrupt` if a damaged document makes it impossible to know whether the store is in use.
    """
    place = store_path(store_id)
    used = any(
        found is not None and found.store == store_id
        for home in base().glob("ws-*")
        for found in [read(home / "workspace.json", Registration)]
    )
    if used or not place.is_dir():
        return []
    try:
        with locked(place / "use.lock", wait=False):
            return remove_tree(place)
    except BlockingIOError:
        return [LeftoverPath("", "a process is using it", errno.EBUSY)]


def registered(real: str) -> Registration:
    """Return the workspace registered for this directory.

    Raises WorkspaceReplaced if the directory is not the one whose history was recorded.
    """
    found = registered_at(real)
    if found.identity and identity_of(real) not in (found.identity, ""):
        raise WorkspaceReplaced(
            f"{real} is not the directory that was a workspace at this path: it was replaced",
            op="workspace",
            fix_hints=[
                f"keep the old history: {_command('adopt', real)}",
                f"or drop it and start a new one: {_command('forget', real)} && {_command('init', real)}",
            ],
            details={"path": real, "workspace": found.id},
        )
    return found


def registered_at(real: str) -> Registration:
    """Return the workspace that was created at this path, even if another directory is there now."""
    try:
        workspace_id = _entry_path(os.fsencode(real)).read_text("ascii").removesuffix("\n")
    except FileNotFoundError:
        above = next((str(each) for each in Path(real).parents if is_registered(str(each))), "")
        part_of = [f"it is part of the workspace {above}: {_command('status', above)}"] if above else []
        raise WorkspaceUnknown(
            f"{real} is not a workspace", op="workspace", fix_hints=[*part_of, f"make it one: {_command('init', real)}"]
        ) from None
    except UnicodeDecodeError as error:
        raise WorkspaceCorrupt(f"the registry entry of {real} is damaged", op="workspace") from error
    found = read(home_of(workspace_id) / "workspace.json", Registration)
    if found is None or found.id != workspace_id or found.path != real:
        raise WorkspaceCorrupt(f"the registry entry of {real} points to another workspace", op="workspace")
    if found.schema_version != SCHEMA_VERSION:
        why = f"{real} has version {found.schema_version}; this version of proofbox reads {SCHEMA_VERSION}"
        raise VersionUnknown(why, op="workspace")
    return found


def _entry_path(path: bytes) -> Path:
    return base() / "paths" / hashlib.sha256(path).hexdigest()


def write(path: Path, body: Any) -> None:
    """Write a document atomically."""
    write_document(path, _document(body), mode=0o600)


def _document(body: Any) -> bytes:
    plain = msgspec.to_builtins(body)
    return canonical_bytes({"body": plain, "sha256": digest_of(plain)}) + b"\n"


def remove(path: Path) -> None:
    """Remove a document durably."""
    path.unlink()
    sync_directory(path.parent)


def read(path: Path, kind: type[T]) -> T | None:
    """Return the document, or None if it does not exist."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        document = parse_strict(data)
        if canonical_bytes(document) + b"\n" == data and digest_of(document["body"]) == document["sha256"]:
            return msgspec.convert(document["body"], kind)
    except (CanonicalError, KeyError, TypeError, msgspec.ValidationError):
        pass
    raise WorkspaceCorrupt(f"{path} is damaged", op="workspace", details={"document": str(path)})
