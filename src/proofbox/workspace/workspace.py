"""A directory with history.

    with Workspace.open("project") as ws:
        before = ws.snapshot("before")
        ...                              # anything may change the files
        ws.rollback(before.id)

The directory stays an ordinary one. While a workspace is open, changes are tracked by the kernel; a snapshot then costs
what has changed, not what there is. History only grows: a rollback first records the state it leaves, so that rolling
back to that goes forward again, and is an entry of the history itself.

Several processes may have a workspace open; a snapshot or rollback of one waits for that of another. One object is for
one thread at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.core.text import path_fields
from proofbox.errors import (
    InternalError,
    RollbackUnfinished,
    SnapshotUnknown,
    UsageError,
    WorkspaceChanging,
    WorkspaceExists,
    WorkspacePathRefused,
    WorkspaceReplaced,
)
from proofbox.workspace import registry
from proofbox.workspace.identity import identity_of
from proofbox.workspace.model import (
    Change,
    Collected,
    EffectsHead,
    HistoryVerification,
    Method,
    RollbackResult,
    SkippedPath,
    Snapshot,
    SnapshotContext,
    Status,
)
from proofbox.workspace.registry import CACHE, LOCK, REFS, Registration
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.scanning.working_tree import Known, WorkingTree
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline import effects, maintenance
from proofbox.workspace.timeline.diff import changes, differences
from proofbox.workspace.timeline.fork import make_fork
from proofbox.workspace.timeline.history import History
from proofbox.workspace.timeline.overlay import Overlay
from proofbox.workspace.timeline.restore import write_new
from proofbox.workspace.timeline.rollback import Rollbacks
from proofbox.workspace.tree import EMPTY_TREE

if TYPE_CHECKING:
    from proofbox.sandbox.service import Session

NOTHING = SnapshotContext()
T = TypeVar("T")


class Workspace:
    """Made by `init`, `open` and `fork`; close it, or use it in a `with`."""

    def __init__(
        self,
        registration: Registration,
        *,
        track: bool,
        clock: Clock | None = None,
        on_progress: Callable[[int], None] | None = None,
        known: Known | None = None,
    ) -> None:
        self.id = registration.id
        self.path = Path(registration.path)
        self._registration = registration
        self._clock: Clock = clock or SystemClock()
        self._home = registry.home_of(registration.id)
        self._mutex = threading.RLock()
        """Held while it works: who closes it from another thread waits for that."""
        self._released = False
        self._store = ObjectStore(registry.store_path(registration.store))
        self._history = History(self._store, self.id)
        ignore = Ignore(registration.ignore)
        self._look = WorkingTree(
            self.path, self._store, ignore, self._home / CACHE, track=track, known=known, on_progress=on_progress
        )
        self._rollbacks = Rollbacks(self.path, self._home, self._store, self._history, self._look, self._record)
        self.unfinished = ""
        """Why an interrupted rollback is still not finished. The files are as far as it got; a rollback to any snapshot
        takes its place, else the next open tries again."""
        try:
            if self._rollbacks.interrupted:
                self._finish_rollback()
            if track:
                with self._working():
                    self._look.refresh()
        except BaseException:
            self._release()
            raise

    @classmethod
    def init(
        cls,
        path: str | os.PathLike[str],
        *,
        ignore: Sequence[str] = (),
        track: bool = True,
        clock: Clock | None = None,
    ) -> Workspace:
        """Make a directory a workspace. `ignore` lists what is never part of it (`ignore.py` has the rules)."""
        real = registry.real_directory(path)
        Ignore(ignore)
        ids = IdSource(clock)
        created_at = isoformat((clock or SystemClock()).now())
        new = Registration(
            *(ids.new_id("ws"), ids.new_id("store"), os.fsencode(real).hex(), tuple(ignore), created_at),
            identity=identity_of(real),
        )
        ObjectStore.create(registry.store_path(new.store)).close()
        try:
            registry.register(new)
        except (WorkspaceExists, WorkspaceReplaced):
            remove_tree(registry.store_path(new.store))
            raise
        return cls(new, track=track, clock=clock)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        track: bool = True,
        clock: Clock | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Workspace:
        """Open a workspace, and finish a rollback that was interrupted; `unfinished` says why it could not be.

        Raises WorkspaceReplaced when another directory has taken its place: see `adopt`.

        Without `track` every look is a scan.

        `on_progress` is told now and then how many files a look has read so far.
        """
        registration = registry.registered(registry.real_directory(path))
        return cls(registration, track=track, clock=clock, on_progress=on_progress)

    @classmethod
    def adopt(cls, path: str | os.PathLike[str], *, track: bool = True, clock: Clock | None = None) -> Workspace:
        """Open the workspace that was made at this path, although another directory is there now.

        For a directory that was restored from a backup or moved to another disk, and for one that was deleted: a
        rollback then writes its files again.
        """
        registration = registry.adopt(registry.registered_at(registry.real_directory(path)))
        return cls(registration, track=track, clock=clock)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop tracking, and put what is known of the files and all history on the disk."""
        with self._mutex:
            if self._released:
                return
            try:
                self._look.save()
            finally:
                self._release()

    def require_finished(self) -> None:
        """For whoever is to work in the files: raises RollbackUnfinished where a rollback would take them back."""
        if self.unfinished:
            raise RollbackUnfinished(self.unfinished, op="workspace", details={"path": str(self.path)})

    def forget(self) -> None:
        """Close it, and make its directory an ordinary one again. What it recorded stays in the store, for its forks
        and for whoever knows a snapshot's id."""
        self._release()
        registry.forget(self._registration)

    def _release(self) -> None:
        with self._mutex:
            if self._released:
                return
            self._released = True
            try:
                self._look.close()
            finally:
                self._store.close()

    # Looking

    @property
    def store_id(self) -> str:
        """The store that holds its history, and that of its forks."""
        return self._registration.store

    @property
    def head(self) -> Snapshot | None:
        """The latest entry of the history, whoever made it: what the files were then."""
        with self._store.use():
            return self._history.head()

    def history(self) -> list[Snapshot]:
        """Every snapshot, rollback and fork of this workspace, oldest first."""
        with self._store.use():
            return list(self._history)

    def status(self) -> Status:
        """What the files have that the latest snapshot has not."""
        with self._working():
            self._look.refresh()
            head = self._history.head()
            return Status(
                workspace=self.id,
                path=str(self.path),
                head=head.id if head else None,
                changes=tuple(changes(self._store, _tree_of(head), self._look.tree_id)),
                skipped=_left(self._look.skipped),
                ignored=self._registration.ignore,
                refs=self.refs(),
                unfinished=self.unfinished,
            )

    def diff(self, a: str | None = None, b: str | None = None) -> list[Change]:
        """What changed from `a` (the latest snapshot) to `b` (the files as they are now)."""
        return self.compare(a, b, changes)

    def compare(self, a: str | None, b: str | None, how: Callable[[ObjectStore, bytes, bytes], T]) -> T:
        """Apply `how` to the two trees that `diff` would compare."""
        with self._working():
            old = bytes.fromhex(self._resolve(a).id) if a is not None else _tree_of(self._history.head())
            if b is not None:
                return how(self._store, old, bytes.fromhex(self._resolve(b).id))
            self._look.refresh()
            return how(self._store, old, self._look.tree_id)

    def resolve(self, name: str) -> Snapshot:
        """The snapshot that an id, its beginning (4 digits or more), a named reference or HEAD means."""
        with self._store.use():
            return self._resolve(name)

    # Changing

    def snapshot(
        self,
        message: str = "",
        *,
        sealed: bool = False,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        effects_head: EffectsHead | None = None,
        freeze: Session | None = None,
        beside: Session | None = None,
    ) -> Snapshot:
        """Record the files as they are. `sealed` reads every file and returns when the snapshot is on the disk.

        `cwd`, `env` overrides and `effects_head` are kept for whoever goes on from here. A box that works on the files
        is held still meanwhile if it is named by `freeze`; named by `beside` it runs on, and the snapshot says whether
        any command of it was alive. Raises `PolicyRefused` or `NotFrozen` where freezing fails, and takes no snapshot.
        """
        context = SnapshotContext(cwd=cwd, env=dict(env or {}), effects_head=effects_head)
        with self._working():
            with freeze.frozen() if freeze is not None else nullcontext():
                alive = beside.commands_alive() if beside is not None else None
                method = self._look.refresh(sealed=sealed)
            if beside is not None and alive is not None:
                alive = max(alive, beside.commands_alive())
            return self._record("snapshot", message, method, context, frozen=freeze is not None, overlap=alive)

    def rollback(self, name: str) -> RollbackResult:
        """Make the files what they were. The state that is left is recorded first, if it is not yet.

        Killed in between, it is finished at the next open. Raises WorkspaceChanging when something else keeps writing,
        and RollbackUnfinished when the disk is full, say. What may not be changed is left, and named.
        """
        with self._working():
            target = self._resolve(name)
            before, left = self._rollbacks.carry_out(target)
            self.unfinished = ""
            restored = tuple(changes(self._store, before, bytes.fromhex(target.id)))
        return RollbackResult(
            id=target.id,
            before=before.hex(),
            restored=restored,
            irreversible_effects=effects.irreversible(self._home, target),
            warning=f"{len(left)} paths are not as the snapshot has them" if left else "",
            left=_left(left),
        )

    def fork(self, name: str, dest: str | os.PathLike[str], *, track: bool | None = None) -> Workspace:
        """A new workspace at `dest`, a directory that is not there or empty, with the files of that snapshot.

        Its history begins there, and its content is shared with this one's. The directory appears whole or not at all.
        """
        with self._store.use():
            new, known = make_fork(self._store, self._registration, self._resolve(name), dest, self._clock)
        tracked = self._look.tracks if track is None else track
        return Workspace(new, track=tracked, clock=self._clock, known=known)

    def export(self, name: str, dest: str | os.PathLike[str]) -> None:
        """The files of a snapshot in an ordinary directory without history, which is made, or empty."""
        path = os.path.realpath(os.fspath(dest))
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            hints = ["name a new directory"]
            raise WorkspacePathRefused(f"{path} is not empty", op="workspace export", fix_hints=hints)
        with self._store.use():
            write_new(self._store, path, bytes.fromhex(self._resolve(name).id))

    @property
    def ignored(self) -> tuple[str, ...]:
        """The patterns of what is never part of it."""
        return self._registration.ignore

    @property
    def effects(self) -> effects.EffectLog:
        """The log of what was done here: `effects.py`."""
        return effects.EffectLog(self._home, self.id, clock=self._clock)

    def overlay(self, name: str) -> Overlay:
        """That snapshot as the project of a box, whose changes are kept apart and thrown away; see `overlay.py`."""
        with self._store.use():
            tree = bytes.fromhex(self._resolve(name).id)
            return Overlay(self._store, tree, self.path.stat().st_mode)

    def refs(self) -> dict[str, str]:
        """Names for snapshots, and what they name."""
        return registry.read(self._home / REFS, dict[str, str]) or {}

    def name(self, name: str, snapshot_id: str) -> None:
        """Give a snapshot a name, or move it to another snapshot. Named snapshots survive `gc`."""
        if not name or len(name) > 200 or not name.isprintable() or name == "HEAD" or _is_hex(name):
            raise UsageError(
                f"not a name for a snapshot: {name[:200]!r}",
                op="workspace",
                fix_hints=["use letters that are no hexadecimal number, and not HEAD"],
            )
        with self._working():
            found = self._resolve(snapshot_id)
            self._store.sync()
            registry.write(self._home / REFS, {**self.refs(), name: found.id})

    def verify(self) -> HistoryVerification:
        """Read everything that is stored again: every byte against its digest, every tree for what it needs."""
        return maintenance.verify(self._registration, self._store, self._history)

    def gc(self, *, keep: int | None = None) -> Collected:
        """Drop what no snapshot needs. `keep` cuts this history to the latest so many, and those with a name."""
        if keep is not None and keep < 1:
            raise UsageError(
                "at least the latest snapshot is kept", op="workspace gc", fix_hints=["give --keep 1 or more"]
            )
        with locked(self._home / LOCK), self._store.alone():
            return maintenance.collect(self._store, self._history, set(self.refs().values()), keep)

    # Inside

    def _finish_rollback(self) -> None:
        try:
            with self._working():
                self._rollbacks.finish()
        except (RollbackUnfinished, WorkspaceChanging, SnapshotUnknown) as error:
            self.unfinished = error.message

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._mutex, locked(self._home / LOCK), self._store.use():
            try:
                yield
                self._store.flush()  # what is known of the files must not outlive what it refers to
            except BaseException:
                # What was read may not have reached the store: nothing of it can be relied on.
                self._look.forget()
                self._store.forget_pending()
                raise

    def _record(
        self,
        kind: Literal["snapshot", "rollback"],
        message: str,
        method: Method,
        context: SnapshotContext = NOTHING,
        *,
        frozen: bool = False,
        overlap: int | None = None,
    ) -> Snapshot:
        if self._look.directory is None:
            raise InternalError("nothing is known of the files", op="workspace")
        head = self._history.head()
        if _tree_of(head) == self._look.before and not self._look.skipped:
            changed = self._look.changed
        else:
            changed = sum(1 for _ in differences(self._store, _tree_of(head), self._look.tree_id))
        made = Snapshot(
            id=self._look.tree_id.hex(),
            parent=head.id if head else None,
            message=message,
            created_at=isoformat(self._clock.now()),
            changed=changed,
            kind=kind,
            method=method,
            workspace=self.id,
            ignored=self._registration.ignore,
            skipped=_left(self._look.skipped),
            unstable=_left(self._look.unstable),
            cwd=context.cwd,
            env=context.env,
            effects_head=context.effects_head or effects.current_head(self._home, self.id),
            frozen=frozen,
            overlap=0 if frozen else overlap,
        )
        self._store.commit(msgspec.json.encode(made), sync=method == "sealed")
        return made

    def _resolve(self, name: str) -> Snapshot:
        try:
            return self._history.find(self.refs().get(name, name))
        except SnapshotUnknown as error:
            hints = [f"list them: proofbox workspace log {quote(str(self.path))}"]
            raise SnapshotUnknown(error.message, op="workspace", fix_hints=hints) from None


def _tree_of(snapshot: Snapshot | None) -> bytes:
    return bytes.fromhex(snapshot.id) if snapshot else EMPTY_TREE


def _is_hex(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)


def _left(found: Mapping[str, str]) -> tuple[SkippedPath, ...]:
    return tuple(SkippedPath(**path_fields(path), reason=reason) for path, reason in sorted(found.items()))
