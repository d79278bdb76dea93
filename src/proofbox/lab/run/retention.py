"""Removes old runs by age and size, and what interrupted processes left.

A run that is pinned, promoted, uncommitted or the latest stays unless it is named explicitly. Nothing that a living
process may be using is touched. The files of a run are in stores outside its directory. They are removed with it, as
the registry of this machine assigns them, unless a workspace elsewhere uses the store too. The run's own documents are
not consulted: a received run may name the stores of another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from proofbox.config import consent
from proofbox.core.clock import parse_isoformat
from proofbox.core.dirs import cache_dir, state_dir
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import is_id
from proofbox.core.text import path_fields
from proofbox.errors import ProofboxError, UsageError
from proofbox.evidence.bundle.listing import ListedRun, describe
from proofbox.evidence.bundle.paths import INDEX, list_runs
from proofbox.lab.attempt.adhoc.home import HOME_SUFFIX, attempts_dir
from proofbox.lab.run.plan import REFUSED_SUFFIX, WORK, conductor_lock, ledger_path
from proofbox.lab.run.resources import size_of
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.scratch import abandoned_scratch
from proofbox.sandbox.images.unused_files import engine_copies, image_files, signed_interpreters
from proofbox.sandbox.probing.leftovers import abandoned_decoys
from proofbox.sandbox.sessions import SessionStore
from proofbox.workspace import registry
from proofbox.workspace.model import exact

PIN_SUFFIX = ".pin"
NOTES_SUFFIX = ".notes.jsonl"
"""Notes that people added in the viewer, beside the bundle; removed with it."""
CAMPAIGN = "campaign.json"
"""The manifest of a campaign, in a directory that belongs to one (`proofbox.lab.campaign.retention`)."""
STARTING = 3600.0
"""Seconds after which a session directory without a record counts as abandoned; starting takes less than one."""
Kind = Literal[
    "run",
    "campaign",
    "work",
    "attempt",
    "home",
    "session",
    "decoys",
    "schema_cache",
    "image",
    "engine_image",
    "node",
    "parcel",
]
_RESUMABLE = "its run can be resumed"


class RetentionItem(msgspec.Struct, frozen=True, kw_only=True):
    """A removable item on disk, and why it is removed or kept."""

    kind: Kind
    """`run`: evidence. `campaign`: all runs of a campaign, and its own evidence. `work`: working files of a run.
    `attempt`: evidence of an attempt of `runtime try`, in the state directory. `home`: the files that its agent kept
    for itself. `session`: what is left of a sandbox session. `decoys`: the targets of probes that a killed plan run
    left. `schema_cache`: cached schemas of an agent's protocol. `image`: the archive or the unpacked files of an
    image, or files of virtual machines. `engine_image`: the container engine's copy of an image, with its name in
    place of a path. `node`: files of a killed worker or a killed cluster on a node; a node that could not be examined
    has its name in place of a path. `parcel`: files that were sent to a node for a run, and are kept there."""
    path: str
    path_b64: str | None = None
    """The exact bytes, if the path is not UTF-8."""
    bytes: int
    """Size on disk."""
    free: bool
    """Whether it is removed; in a dry run, whether it would be."""
    reason: str
    left: str = ""
    """What could not be removed, and why; empty if nothing."""

    @property
    def place(self) -> Path:
        return Path(exact(self.path, self.path_b64))


class RetentionRules(msgspec.Struct, frozen=True, kw_only=True):
    older_than: float | None = None
    """Seconds."""
    max_bytes: int | None = None
    """Keep the newest runs up to this total size."""
    include_promoted: bool = False
    include_uncommitted: bool = False


class _Run(NamedTuple):
    path: Path
    about: ListedRun
    size: int


def survey(out: Path, rules: RetentionRules, now: datetime) -> list[RetentionItem]:
    """List the items, oldest first, and what would be freed."""
    found: list[RetentionItem] = []
    if out.is_dir() and not (out / CAMPAIGN).exists():  # the runs of a campaign are kept or removed together
        found = list(_runs(out, rules, now))
        found += leftover_work(out, {item.place.name for item in found if item.free})
    return [
        *found,
        *_made_by_hand(rules, now),
        *_sessions(now),
        *_decoys(),
        *_caches(),
        *_images(now),
        *_engine_images(now),
    ]


def collect(
    items: Sequence[RetentionItem], *, campaign: Callable[[RetentionItem], RetentionItem] | None = None
) -> tuple[int, tuple[RetentionItem, ...]]:
    """Remove the items marked `free`. Return the bytes freed, and the updated items. `campaign` removes a campaign."""
    freed = 0
    done = []
    for item in items:
        remove = campaign if item.kind == "campaign" and campaign is not None else _collect
        found = remove(item) if item.free else item
        done.append(found)
        if found.free:
            freed += item.bytes - (_still_there(item) if found.left else 0)
    return freed, tuple(done)


def _still_there(item: RetentionItem) -> int:
    """Return the size of the remaining files."""
    return min(item.bytes, size_of(item.place, item.bytes)) if item.place.is_dir() else item.bytes


def _collect(item: RetentionItem) -> RetentionItem:
    path = item.place
    if item.kind == "session":
        return _collect_session(item)
    if item.kind == "engine_image":
        return _collect_engine_image(item)
    if item.kind == "decoys":
        left = next((_remove(each) for each in abandoned_decoys() if each == path), "")
        return msgspec.structs.replace(item, left=left)
    if item.kind in ("attempt", "home", "schema_cache", "image"):
        left = _remove(path)
        if item.kind == "attempt" and not left:
            left = _remove(Path(f"{path}{NOTES_SUFFIX}"))
        return msgspec.structs.replace(item, left=left)
    out = path.parent if item.kind == "run" else path.parent.parent
    lock = conductor_lock(out, path.name)
    try:
        # Any process that plans, conducts or resumes the run holds this lock, so none can start while we hold it.
        with locked(lock, wait=False):
            if item.kind == "work" and _is_resumable(out, path.name):
                return msgspec.structs.replace(item, free=False, reason=_RESUMABLE)
            left = remove_run(path) if item.kind == "run" else _remove_work(path)
            if not left and not ledger_path(out, path.name).exists():
                lock.unlink()
    except BlockingIOError:
        return msgspec.structs.replace(item, free=False, reason="in use by a process")
    except OSError as error:
        left = f"{path_fields(path.name)['path']}: {error.strerror}"
    except ProofboxError as error:  # a damaged ledger or workspace: keep what cannot be identified
        left = f"{path_fields(path.name)['path']}: {error.message}"
    return msgspec.structs.replace(item, left=left)


def _collect_session(item: RetentionItem) -> RetentionItem:
    path = item.place
    left = ""
    if path.parent != _sessions_dir():
        left = next((_remove(each) for each in abandoned_scratch() if each == path), "")
    elif SessionStore(path.parent).running(path.name):
        return msgspec.structs.replace(item, free=False, reason="running")
    else:
        left = _remove(path)
        cgroups.sweep(cgroups.tree(), path.name)
    return msgspec.structs.replace(item, left=left)


def _collect_engine_image(item: RetentionItem) -> RetentionItem:
    from proofbox.sandbox.containers.images import remove_copy

    try:
        remove_copy(item.path)
    except ProofboxError as error:
        return msgspec.structs.replace(item, left=f"{item.path}: {error.message}")
    return item


def _remove_work(path: Path) -> str:
    """Remove a work directory, and its stores if the run itself no longer exists."""
    out = path.parent.parent
    stores = registry.forget_workspaces(path, out / path.name)
    gone = not ledger_path(out, path.name).exists() and not (out / path.name).exists()
    left = _drop(stores) if gone else ""
    return _remove(path) or left


def _drop(stores: set[str]) -> str:
    left = [left for store in sorted(stores) for left in registry.drop_store(store)]
    return f"its store: {left[0].reason}" if left else ""


def remove_run(path: Path) -> str:
    """Remove a run with its stores and its ledger. Return what could not be removed, and why."""
    registry.forget_workspaces(path.parent / WORK / path.name, path)
    in_store = _drop(registry.stores_of(path))
    # The evidence first: a ledger without its run reports that, but a run without its ledger would look complete.
    left = _remove(path)
    if left:
        return left
    for suffix in ("", "-wal", "-shm"):
        left = left or _remove(Path(f"{ledger_path(path.parent, path.name)}{suffix}"))
    for suffix in (NOTES_SUFFIX, REFUSED_SUFFIX):
        left = left or _remove(Path(f"{path}{suffix}"))
    if not left:
        consent.forget_run(path.name)
    return left or in_store


def _remove(path: Path) -> str:
    """Remove a tree. Return the first path that could not be removed, and why."""
    for left in remove_tree(path):
        return f"{path_fields(os.path.join(path.name, left.path))['path']}: {left.reason}"
    return ""


def _runs(out: Path, rules: RetentionRules, now: datetime) -> Iterator[RetentionItem]:
    places = [out / name for name in list_runs(out)]
    runs = [_Run(path, describe(os.fspath(path)), size_of(path, 1 << 62)) for path in places]
    runs.sort(key=lambda run: (run.about.started_at or "", run.path.name))
    kept = 0
    over: set[Path] = set()
    for run in reversed(runs):
        kept += run.size
        if rules.max_bytes is not None and kept > rules.max_bytes:
            over.add(run.path)
    for run in runs:
        old = rules.older_than is not None and _age(run.about, now) > rules.older_than
        why = f"older than {rules.older_than:g} s" if old else "over the size limit" if run.path in over else ""
        stays = _protected(run, rules)
        free = bool(why) and not stays
        yield _item("run", run.path, run.size, free, stays or why or "within the limits")


def _made_by_hand(rules: RetentionRules, now: datetime) -> Iterator[RetentionItem]:
    """Yield attempts of `runtime try` in the state directory, and agents' homes, oldest first. Only age counts."""
    for path in sorted(attempts_dir().iterdir()):
        kind: Kind = "home" if path.name.endswith(HOME_SUFFIX) else "attempt"
        if not is_id(path.name.removesuffix(HOME_SUFFIX), "attempt"):
            continue
        with contextlib.suppress(FileNotFoundError):
            age = now.timestamp() - path.stat().st_mtime
            state = describe(os.fspath(path)).state if kind == "attempt" else ""
            running = state == "in_progress" or (state == "unreadable" and age < STARTING)
            old = rules.older_than is not None and age > rules.older_than and not running
            why = f"older than {rules.older_than:g} s" if old else "in progress" if running else "within the limits"
            yield _item(kind, path, size_of(path, 1 << 62), old, why)


def _protected(run: _Run, rules: RetentionRules) -> str:
    out, name = run.path.parent, run.path.name
    if (out / f"{name}{PIN_SUFFIX}").exists():
        return "pinned"
    if run.about.latest:
        return "latest run"
    if run.about.state == "in_progress":
        return "in progress"
    if run.about.status is None and not rules.include_uncommitted:
        return "not committed"
    if any(out.glob(f"{name}*.promotion.json")) and not rules.include_promoted:
        return "promoted"
    return ""


def _age(run: ListedRun, now: datetime) -> float:
    return (now - parse_isoformat(run.started_at)).total_seconds() if run.started_at else 0.0


def leftover_work(out: Path, going: Collection[str] = ()) -> Iterator[RetentionItem]:
    """Yield work directories of runs that are committed or removed: their conductor was killed. The directory itself
    may be gone, with its workspaces still registered in the state directory."""
    work = out / WORK
    if work.is_symlink():  # a received directory may contain links; their targets are not ours to remove
        return
    real = os.path.realpath(work)
    names = {os.path.relpath(each.path, real).split("/")[0] for each in registry.registered_below(work)}
    for name in sorted(names.union(os.listdir(work) if work.is_dir() else ())):
        free = name in going or not _is_resumable(out, name)
        reason = "its run is removed" if name in going else "its run is committed or removed" if free else _RESUMABLE
        place = work / name
        yield _item("work", place, size_of(place, 1 << 62) if place.exists() else 0, free, reason)


def _is_resumable(out: Path, name: str) -> bool:
    return ledger_path(out, name).exists() and not (out / name / INDEX).exists()


def _sessions_dir() -> Path:
    return state_dir() / "sessions"


def _sessions(now: datetime) -> Iterator[RetentionItem]:
    """Yield what `session prune` would remove, except sessions that may be starting."""
    place = _sessions_dir()
    store = SessionStore(place)
    for record in store.records():
        runs = store.running(record.id)
        path = place / record.id
        yield _item("session", path, size_of(path, 1 << 62), not runs, "running" if runs else "ended")
    for path in (place / id for id in store.leftovers()):
        with contextlib.suppress(FileNotFoundError):
            old = now.timestamp() - path.stat().st_mtime > STARTING
            reason = "its start was interrupted" if old else "it may be starting"
            yield _item("session", path, size_of(path, 1 << 62), old, reason)
    for path in abandoned_scratch():
        yield _item("session", path, size_of(path, 1 << 62), True, "left by a killed process")


def _decoys() -> Iterator[RetentionItem]:
    for path in abandoned_decoys():
        yield _item("decoys", path, size_of(path, 1 << 62), True, "left by a killed plan run")


def _caches() -> Iterator[RetentionItem]:
    """Yield cached protocol schemas, one per version of a runtime; the newest of each runtime is kept."""
    found = sorted(cache_dir().glob("*-schema-*.json"), key=lambda path: path.stat().st_mtime)
    newest = {path.name.split("-schema-")[0]: path for path in found}
    for path in found:
        stays = newest[path.name.split("-schema-")[0]] == path
        size = os.stat(path).st_blocks * 512
        yield _item("schema_cache", path, size, not stays, "newest version" if stays else "recreated when needed")


def _images(now: datetime) -> Iterator[RetentionItem]:
    with contextlib.suppress(UsageError):  # keep everything if the names can't be read; `images list` reports it
        for path, free, reason in (*image_files(now.timestamp()), *signed_interpreters(now.timestamp())):
            size = size_of(path, 1 << 62) if path.is_dir() else os.stat(path).st_blocks * 512
            yield _item("image", path, size, free, reason)


def _engine_images(now: datetime) -> Iterator[RetentionItem]:
    with contextlib.suppress(UsageError):
        for each in engine_copies(now.timestamp()):
            yield _item("engine_image", Path(each.reference), each.size, each.free, each.reason)


def _item(kind: Kind, path: Path, size: int, free: bool, reason: str) -> RetentionItem:
    return RetentionItem(kind=kind, **path_fields(os.fspath(path)), bytes=size, free=free, reason=reason)
