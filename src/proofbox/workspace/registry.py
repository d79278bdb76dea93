"""Which directories are workspaces, and the small documents each has beside its store.

Below the user's state directory, out of reach of what runs in a workspace:

    workspaces/paths/<sha256 of the directory's path>   the workspace's id
    workspaces/<id>/workspace.json                      path, store, what to ignore
    workspaces/<id>/refs.json                           names for snapshots
    workspaces/<id>/rollback.json                       a rollback that is under way
    workspaces/<id>/cache                               what scans know of the files; may be lost at any time
    workspaces/<id>/cache.lock                          held while that is written
    workspaces/<id>/lock                                held while a snapshot or rollback is under way
    workspaces/stores/<id>/                             content and events, shared between forks

A document carries the digest of its body, so that a damaged one is noticed.
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
    WorkspaceCorrupt,
    WorkspaceExists,
    WorkspacePathRefused,
    WorkspaceReplaced,
    WorkspaceUnknown,
)
from proofbox.workspace.identity import identity_of

SCHEMA_VERSION = 1
REFS, ROLLBACK, CACHE, LOCK = "refs.json", "rollback.json", "cache", "lock"
T = TypeVar("T")


@stored("workspace.json", at="the member `body` of STATE/workspaces/WORKSPACE/workspace.json, with its `sha256`")
class Registration(msgspec.Struct, frozen=True):
    """A directory that has a history, and the store that holds it."""

    id: str
    """The workspace's id."""
    store: str
    """The id of the store, which forks share."""
    path_hex: str
    """The directory's path, whose bytes may not be text."""
    ignore: tuple[str, ...]
    """Patterns of what is never part of it."""
    created_at: str
    schema_version: int = SCHEMA_VERSION
    """Of this form; another one is refused."""
    identity: str = ""
    """The file system's handle of the directory, which another directory in its place does not have. Empty where the
    file system gives none."""

    @property
    def path(self) -> str:
        return os.fsdecode(bytes.fromhex(self.path_hex))


class Rollback(msgspec.Struct, frozen=True):
    """A rollback that is under way."""

    target: str
    before: str
    temporary: str


def base() -> Path:
    return state_dir() / "workspaces"


def home_of(workspace_id: str) -> Path:
    return base() / workspace_id


def _aside(workspace_id: str) -> Path:
    """Where a home is while it is made and while it is removed."""
    return base() / f"{TEMPORARY_PREFIX}{workspace_id}"


def store_path(store_id: str) -> Path:
    return base() / "stores" / store_id


def real_directory(path: str | os.PathLike[str]) -> str:
    """The one path of a directory that may be a workspace."""
    real = os.path.realpath(os.fspath(path))
    if not os.path.isdir(real):
        if os.path.lexists(real):
            problem, hint = "is not a directory", f"name the directory that holds it: {quote(os.path.dirname(real))}"
        else:
            problem, hint = "does not exist", f"mkdir -p {quote(real)} && {_command('init', real)}"
        raise WorkspacePathRefused(f"{os.fspath(path)} {problem}", op="workspace", fix_hints=[hint])
    refuse_own_state(real)
    return real


def _command(name: str, real: str) -> str:
    return f"proofbox workspace {name} {quote(real)}"


def refuse_own_state(real: str) -> None:
    """A workspace can't hold its own history, or lie in it."""
    state = os.path.realpath(base())
    if os.path.commonpath([real, state]) in (real, state):
        raise WorkspacePathRefused(
            f"{real} holds proofbox's own state, or is part of it",
            op="workspace",
            fix_hints=["choose a project's directory", "or set XDG_STATE_HOME to a place outside it"],
        )


def is_registered(real: str) -> bool:
    return _place(os.fsencode(real)).exists()


def register(registration: Registration, *, replace: bool = False) -> None:
    """Make the directory a workspace. Of two that try, one gets WorkspaceExists.

    `replace` is for a directory that was not there before: what is registered under its path was another one.
    """
    path = bytes.fromhex(registration.path_hex)
    home, unborn = home_of(registration.id), _aside(registration.id)
    unborn.mkdir(mode=0o700, parents=True)
    write(unborn / "workspace.json", registration)
    os.rename(unborn, home)  # so that there is no home of which nobody could say whose it is
    place = _place(path)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    if replace:
        place.unlink(missing_ok=True)
    try:
        create_only(place, registration.id.encode() + b"\n", mode=0o600)
    except FileExistsError:
        remove_tree(home)
        registered(registration.path)  # which says so where its history is that of another directory
        raise WorkspaceExists(
            f"{registration.path} is a workspace already",
            op="workspace init",
            fix_hints=[
                f"use it as it is: {_command('status', registration.path)}",
                f"or drop its history first: {_command('forget', registration.path)}",
            ],
        ) from None


def adopt(registration: Registration) -> Registration:
    """Give the history to the directory that is now at its path."""
    adopted = msgspec.structs.replace(registration, identity=identity_of(registration.path))
    write(home_of(registration.id) / "workspace.json", adopted)
    return adopted


def forget(registration: Registration) -> None:
    """The name first: killed in between, there is a home that nothing leads to, and never a name without one."""
    _place(bytes.fromhex(registration.path_hex)).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(home_of(registration.id), _aside(registration.id))
    remove_tree(_aside(registration.id))


def sweep(older_than: float = 3600.0) -> None:
    """Remove homes that were being made or removed, seconds ago, by somebody who was killed."""
    for path in base().glob(f"{TEMPORARY_PREFIX}ws-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > older_than:
                remove_tree(path)


def registered_below(directory: str | os.PathLike[str]) -> list[Registration]:
    """The workspaces whose directories are there, or were. One whose document is damaged could be anywhere: not it."""
    above = os.path.join(os.path.realpath(directory), "")
    found = []
    for home in base().glob("ws-*"):
        with contextlib.suppress(WorkspaceCorrupt):
            registration = read(home / "workspace.json", Registration)
            if registration is not None and registration.path.startswith(above):
                found.append(registration)
    return found


def drop_store(store_id: str) -> list[LeftoverPath]:
    """Remove a store, unless a workspace still has it. What of it could not be removed.

    Raises `WorkspaceCorrupt` where a damaged document keeps it from knowing.
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
    """Return the workspace that this directory is.

    Raises WorkspaceReplaced when the directory is not the one that its history was recorded in.
    """
    found = registered_at(real)
    if found.identity and identity_of(real) not in (found.identity, ""):
        raise WorkspaceReplaced(
            f"{real} is another directory than the one that was a workspace there",
            op="workspace",
            fix_hints=[
                f"keep the old history: {_command('adopt', real)}",
                f"or drop it and begin a new one: {_command('forget', real)} && {_command('init', real)}",
            ],
            details={"path": real, "workspace": found.id},
        )
    return found


def registered_at(real: str) -> Registration:
    """Return the workspace that was made at this path, whatever is there now."""
    try:
        workspace_id = _place(os.fsencode(real)).read_text("ascii").removesuffix("\n")
    except FileNotFoundError:
        above = next((str(each) for each in Path(real).parents if is_registered(str(each))), "")
        part_of = [f"it is part of the workspace {above}: {_command('status', above)}"] if above else []
        raise WorkspaceUnknown(
            f"{real} is not a workspace", op="workspace", fix_hints=[*part_of, f"make it one: {_command('init', real)}"]
        ) from None
    except UnicodeDecodeError as error:
        raise WorkspaceCorrupt(f"the entry of {real} is damaged", op="workspace") from error
    found = read(home_of(workspace_id) / "workspace.json", Registration)
    if found is None or found.id != workspace_id or found.path != real:
        raise WorkspaceCorrupt(f"the entry of {real} leads to another workspace", op="workspace")
    if found.schema_version != SCHEMA_VERSION:
        raise WorkspaceCorrupt(f"a workspace of version {found.schema_version} is not known here", op="workspace")
    return found


def _place(path: bytes) -> Path:
    return base() / "paths" / hashlib.sha256(path).hexdigest()


def write(path: Path, body: Any) -> None:
    """Put a document in its place."""
    plain = msgspec.to_builtins(body)
    write_document(path, canonical_bytes({"body": plain, "sha256": digest_of(plain)}) + b"\n", mode=0o600)


def remove(path: Path) -> None:
    """Take a document away, also for what comes after a power cut."""
    path.unlink()
    sync_directory(path.parent)


def read(path: Path, kind: type[T]) -> T | None:
    """The document, or None if there is none."""
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
