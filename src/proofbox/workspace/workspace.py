"""A directory with history.

    with Workspace.open("project") as ws:
        before = ws.snapshot("before")
        ...                              # anything may change the files
        ws.rollback(before.id)

The directory remains an ordinary directory. While a workspace is open, the kernel reports changes, so the cost of a
snapshot depends on the number of changes and not on the number of files. History is append-only: a rollback first
records the current state, so it can be undone by another rollback, and adds its own entry to the history.

Several processes may open the same workspace; their snapshots and rollbacks run one after another. A Workspace object
is not thread-safe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.files.atomic import TEMPORARY_PREFIX
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource, is_id
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
from proofbox.workspace.scanning.stack import LowerDirectory, Stack
from proofbox.workspace.scanning.working_tree import Known, WorkingTree
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline import effects
from proofbox.workspace.timeline.diff import changes, differences
from proofbox.workspace.timeline.history import History
from proofbox.workspace.timeline.restore import Restorer
from proofbox.workspace.timeline.rollback import Rollbacks
from proofbox.workspace.tree import EMPTY_TREE, Directory

if TYPE_CHECKING:
    from proofbox.sandbox.service import Session
    from proofbox.workspace.timeline.overlay import Overlay

NOTHING = SnapshotContext()
SETTLE_SECONDS, SETTLE_TRIES = 0.02, 50
T = TypeVar("T")


class Workspace:
    """A workspace. Create one with `init`, `open` or `fork`; close it, or use it in a `with` statement.

    For example:

        with proofbox.Workspace.init("project") as workspace:
            before = workspace.snapshot("before")
            workspace.rollback(before.id)
    """

    def __init__(
        self,
        registration: Registration,
        *,
        track: bool,
        clock: Clock | None = None,
        on_progress: Callable[[int], None] | None = None,
        known: Known | None = None,
        lower: LowerDirectory | None = None,
        temporary: bool = False,
        store: ObjectStore | None = None,
    ) -> None:
        self.id = registration.id
        self.path = Path(registration.path)
        self._registration = registration
        self._clock: Clock = clock or SystemClock()
        self._home = registry.home_of(registration.id)
        self._temporary = temporary
        """Whether only this object can use the workspace, which is not registered and has no home."""
        self._mutex = threading.RLock()
        """Held during every operation: `close()` from another thread waits until the operation is complete."""
        self._released = False
        self._store = store or ObjectStore(registry.store_path(registration.store))
        self._history = History(self._store, self.id)
        ignore = Ignore(registration.ignore)
        self._working_tree = WorkingTree(
            self.path,
            self._store,
            ignore,
            self._home / CACHE,
            track=track,
            known=known,
            stack=None if lower is None else lower.stack,
            on_progress=on_progress,
        )
        self._rollbacks = Rollbacks(self.path, self._home, self._store, self._history, self._working_tree, self._record)
        self.lower = lower
        """The directory over which the files are mounted; None if the workspace is an ordinary directory."""
        self._lower_files: Directory | None = None
        """The files over which forks of this workspace are mounted. The forks share this copy, and never change it."""
        self.unfinished = ""
        """Why an interrupted rollback could not be completed; empty otherwise. The files are partly restored. A
        rollback to any snapshot replaces it; otherwise the next open tries again."""
        try:
            if not temporary and self._rollbacks.interrupted:
                self._finish_rollback()
            if track:
                with self._working():
                    self._working_tree.refresh()
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
        """Make a directory a workspace. `ignore` lists patterns of paths to exclude (rules: `scanning/ignore.py`)."""
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
        """Open a workspace, and complete an interrupted rollback. If that fails, `unfinished` gives the reason.

        Raises WorkspaceReplaced if the directory was replaced by another one: see `adopt`.

        Without `track`, every operation scans the files.

        `on_progress` is called from time to time with the number of files read so far.
        """
        registration = registry.registered(registry.real_directory(path))
        return cls(registration, track=track, clock=clock, on_progress=on_progress)

    @classmethod
    def from_store(
        cls, store_id: str, tree: str, dest: str | os.PathLike[str], *, track: bool = True, clock: Clock | None = None
    ) -> Workspace:
        """Create a workspace at `dest` with the files of a snapshot in a store, even if its workspace was forgotten.

        Raises SnapshotUnknown if the store is not on this machine or no longer has the snapshot.
        """
        from proofbox.workspace.timeline.fork import make_fork

        clock = clock or SystemClock()
        place = registry.store_path(store_id)
        if not is_id(store_id, "store") or not place.is_dir():
            raise SnapshotUnknown(f"the store {store_id[:80]} is not on this machine", op="workspace fork")
        with closing(ObjectStore(place)) as store, store.use():
            source = History(store, None).find(tree)
            origin = Registration(source.workspace, store_id, "", source.ignored, source.created_at)
            new, known = make_fork(store, origin, source, dest, clock)
        return cls(new, track=track, clock=clock, known=known)

    @classmethod
    def adopt(cls, path: str | os.PathLike[str], *, track: bool = True, clock: Clock | None = None) -> Workspace:
        """Open the workspace that was created at this path, although a different directory is there now.

        Use this for a directory that was restored from a backup, moved to another disk, or deleted and created again; a
        rollback then restores its files.
        """
        registration = registry.adopt(registry.registered_at(registry.real_directory(path)))
        return cls(registration, track=track, clock=clock)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop tracking, and write the scan cache and the history to disk."""
        with self._mutex:
            if self._released:
                return
            try:
                if not self._temporary:
                    self._working_tree.save()
            finally:
                self._release()

    def require_finished(self) -> None:
        """Raise RollbackUnfinished if a rollback is incomplete, because completing it could revert later edits."""
        if self.unfinished:
            raise RollbackUnfinished(self.unfinished, op="workspace", details={"path": str(self.path)})

    def forget(self) -> None:
        """Close the workspace and unregister its directory. Recorded content stays in the store for forks and for
        callers that know a snapshot's id."""
        self._release()
        if not self._temporary:
            registry.forget(self._registration)

    def _release(self) -> None:
        with self._mutex:
            if self._released:
                return
            self._released = True
            try:
                self._working_tree.close()
                if self.lower is not None:
                    self.lower.stack.close()
            finally:
                self._store.close()

    # Reading

    @property
    def store_id(self) -> str:
        """The id of the store that holds the history of this workspace and its forks."""
        return self._registration.store

    @property
    def head(self) -> Snapshot | None:
        """The latest entry of the history, including entries made by other processes."""
        with self._store.use():
            return self._history.head()

    def history(self) -> list[Snapshot]:
        """Return every snapshot, rollback and fork of this workspace, oldest first."""
        with self._store.use():
            return list(self._history)

    def status(self) -> Status:
        """Return the differences between the files and the latest snapshot."""
        with self._working():
            self._working_tree.refresh()
            head = self._history.head()
            return Status(
                workspace=self.id,
                path=str(self.path),
                head=head.id if head else None,
                changes=tuple(changes(self._store, _tree_of(head), self._working_tree.tree_id)),
                skipped=_skipped_paths(self._working_tree.skipped),
                ignored=self._registration.ignore,
                refs=self.refs(),
                unfinished=self.unfinished,
            )

    def diff(self, a: str | None = None, b: str | None = None) -> list[Change]:
        """Return the changes from `a` (default: the latest snapshot) to `b` (default: the current files)."""
        return self.compare(a, b, changes)

    def compare(self, a: str | None, b: str | None, how: Callable[[ObjectStore, bytes, bytes], T]) -> T:
        """Return `how` applied to the two trees that `diff` would compare."""
        with self._working():
            old = bytes.fromhex(self._resolve(a).id) if a is not None else _tree_of(self._history.head())
            if b is not None:
                return how(self._store, old, bytes.fromhex(self._resolve(b).id))
            self._working_tree.refresh()
            return how(self._store, old, self._working_tree.tree_id)

    def resolve(self, name: str) -> Snapshot:
        """Return the snapshot for an id, an id prefix of at least 4 digits, a reference name or HEAD."""
        with self._store.use():
            return self._resolve(name)

    # Writing

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
        """Record the current files. `sealed` reads every file and returns once the snapshot is synced to disk.

        `cwd`, `env` overrides and `effects_head` are stored for later users of the snapshot. `freeze` names a box that
        uses the files and is frozen during the snapshot. A box named by `beside` keeps running, and the snapshot
        records how many of its commands were running. If freezing fails, raises `PolicyRefused` or `NotFrozen` and
        takes no snapshot.
        """
        context = SnapshotContext(cwd=cwd, env=dict(env or {}), effects_head=effects_head)
        with self._working():
            with freeze.frozen() if freeze is not None else nullcontext():
                alive = beside.commands_alive() if beside is not None else None
                method = self._working_tree.refresh(sealed=sealed)
            if beside is not None and alive is not None:
                alive = max(alive, beside.commands_alive())
            return self._record("snapshot", message, method, context, frozen=freeze is not None, overlap=alive)

    def rollback(self, name: str) -> RollbackResult:
        """Restore the files of a snapshot. The current state is recorded first if it has changed.

        An interrupted rollback is completed at the next open. Raises WorkspaceChanging if another process keeps
        writing, and RollbackUnfinished on errors such as a full disk. Paths that cannot be changed are skipped and
        listed in `left`.
        """
        self._require_home()
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
            warning=f"{len(left)} paths differ from the snapshot" if left else "",
            left=_skipped_paths(left),
        )

    def fork(
        self, name: str, dest: str | os.PathLike[str], *, track: bool | None = None, temporary: bool = False
    ) -> Workspace:
        """Create a workspace with the files of a snapshot at `dest`, which must not exist or be empty.

        Its history starts at that snapshot, and it shares stored content with this one. The directory appears
        atomically.

        A `temporary` fork ends with the returned object: its directory is an ordinary one for every other process. It
        has no names for snapshots, no effect log and no rollbacks.
        """
        from proofbox.workspace.timeline.fork import make_fork

        with self._store.use():
            source = self._resolve(name)
            new, known = make_fork(self._store, self._registration, source, dest, self._clock, temporary=temporary)
            store = self._store.duplicate()
        tracked = self._working_tree.tracks if track is None else track
        return Workspace(new, track=tracked, clock=self._clock, known=known, temporary=temporary, store=store)

    def settle(self) -> None:
        """Wait until the times of every file show later writes. Raises WorkspaceChanging if that takes too long."""
        for _ in range(SETTLE_TRIES):
            with self._working():
                self._working_tree.refresh()
                if self._working_tree.is_settled():
                    return
            time.sleep(SETTLE_SECONDS)
        raise WorkspaceChanging(f"{self.path} keeps changing", op="workspace")

    def fork_over(self, name: str, dest: str | os.PathLike[str], layers: Path, *, temporary: bool = False) -> Workspace:
        """Create a workspace like `fork`, without a copy: the snapshot's files are mounted at `dest`.

        They are this workspace's own files, which must not change in the meantime (`LowerDirectory.require_unchanged`).
        Changes are written below `layers`, and discarded when the fork is closed. Only processes that this one starts
        see the files. Raises OSError if the files can't be mounted.
        """
        from proofbox.workspace.timeline.fork import make_fork

        with self._working():
            source = self._resolve(name)
            if self._working_tree.directory is None:
                self._working_tree.refresh()
            directory = self._working_tree.directory
            if directory is None or directory.tree_id.hex() != source.id or self._working_tree.skipped:
                raise WorkspaceChanging(f"{self.path} differs from the snapshot", op="workspace fork")
            if self._lower_files is None or self._lower_files.tree_id != directory.tree_id:
                self._lower_files = directory.copy()
            origin, files = self._registration, directory.copy()
            new, known = make_fork(self._store, origin, source, dest, self._clock, files, temporary=temporary)
        try:
            stack = Stack(self.path, Path(new.path), layers)
        except BaseException:
            if not temporary:
                registry.forget(new)
            os.rmdir(new.path)
            raise
        return Workspace(
            new,
            track=True,
            clock=self._clock,
            known=known,
            lower=LowerDirectory(self.path, self._lower_files, stack),
            temporary=temporary,
        )

    def export_over(self, name: str, dest: Path, layers: Path) -> Stack:
        """Write the files of a snapshot like `export`, without a copy. Only possible for a fork made by `fork_over`."""
        if self.lower is None:
            raise InternalError("the workspace is an ordinary directory", op="workspace export")
        dest.mkdir()
        with self._store.use():
            tree = bytes.fromhex(self._resolve(name).id)
            stack = Stack(self.lower.path, dest, layers)
            try:
                Restorer(str(dest), self._store, TEMPORARY_PREFIX + "export").restore(self.lower.known.copy(), tree)
            except BaseException:
                stack.close()
                raise
        return stack

    def export(self, name: str, dest: str | os.PathLike[str]) -> None:
        """Write the files of a snapshot to an ordinary directory without history, which must not exist or be empty."""
        from proofbox.workspace.timeline.new_tree import write_new

        path = os.path.realpath(os.fspath(dest))
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            hints = ["choose a new directory"]
            raise WorkspacePathRefused(f"{path} is not empty", op="workspace export", fix_hints=hints)
        with self._store.use():
            write_new(self._store, path, bytes.fromhex(self._resolve(name).id))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Patterns of paths that are excluded."""
        return self._registration.ignore

    @property
    def effects(self) -> effects.EffectLog:
        """The log of effects recorded in this workspace (`timeline/effects.py`)."""
        self._require_home()
        return effects.EffectLog(self._home, self.id, clock=self._clock)

    def overlay(self, name: str) -> Overlay:
        """Return a snapshot as a box's project. Changes are stored separately and discarded (`overlay.py`)."""
        from proofbox.workspace.timeline.overlay import Overlay

        with self._store.use():
            tree = bytes.fromhex(self._resolve(name).id)
            return Overlay(self._store, tree, self.path.stat().st_mode)

    def refs(self) -> dict[str, str]:
        """Return snapshot ids by reference name."""
        return {} if self._temporary else registry.read(self._home / REFS, dict[str, str]) or {}

    def name(self, name: str, snapshot_id: str) -> None:
        """Name a snapshot, or move an existing name to it. Named snapshots survive `gc`."""
        if not name or len(name) > 200 or not name.isprintable() or name == "HEAD" or _is_hex(name):
            raise UsageError(
                f"invalid snapshot name: {name[:200]!r}",
                op="workspace",
                fix_hints=["use at most 200 printable characters, not only hexadecimal digits, and not HEAD"],
            )
        self._require_home()
        with self._working():
            found = self._resolve(snapshot_id)
            self._store.sync()
            registry.write(self._home / REFS, {**self.refs(), name: found.id})

    def verify(self) -> HistoryVerification:
        """Read all stored data again, and check every digest and every tree's references."""
        from proofbox.workspace.timeline import maintenance

        return maintenance.verify(self._registration, self._store, self._history)

    def gc(self, *, keep: int | None = None) -> Collected:
        """Remove content that no snapshot references. `keep` cuts the history to its latest N and named snapshots."""
        if keep is not None and keep < 1:
            raise UsageError(
                "the latest snapshot cannot be removed", op="workspace gc", fix_hints=["use --keep 1 or more"]
            )
        from proofbox.workspace.timeline import maintenance

        with self._alone(), self._store.exclusive():
            return maintenance.collect(self._store, self._history, set(self.refs().values()), keep)

    # Internal

    def _finish_rollback(self) -> None:
        try:
            with self._working():
                self._rollbacks.finish()
        except (RollbackUnfinished, WorkspaceChanging, SnapshotUnknown) as error:
            self.unfinished = error.message

    def _alone(self) -> AbstractContextManager[None]:
        """Exclude other processes that use the workspace."""
        return nullcontext() if self._temporary else locked(self._home / LOCK)

    def _require_home(self) -> None:
        if self._temporary:
            raise InternalError("a temporary workspace has no home", op="workspace")

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._mutex, self._alone(), self._store.use():
            try:
                yield
                self._store.flush()  # the scan cache must not outlive the objects it refers to
            except BaseException:
                # Objects that were read may not have reached the store, so discard all cached knowledge of the files.
                self._working_tree.forget()
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
        if self._working_tree.directory is None:
            raise InternalError("the files have not been scanned", op="workspace")
        head = self._history.head()
        if _tree_of(head) == self._working_tree.before and not self._working_tree.skipped:
            changed = self._working_tree.changed
        else:
            changed = sum(1 for _ in differences(self._store, _tree_of(head), self._working_tree.tree_id))
        made = Snapshot(
            id=self._working_tree.tree_id.hex(),
            parent=head.id if head else None,
            message=message,
            created_at=isoformat(self._clock.now()),
            changed=changed,
            kind=kind,
            method=method,
            workspace=self.id,
            ignored=self._registration.ignore,
            skipped=_skipped_paths(self._working_tree.skipped),
            unstable=_skipped_paths(self._working_tree.unstable),
            cwd=context.cwd,
            env=context.env,
            effects_head=context.effects_head
            or (None if self._temporary else effects.current_head(self._home, self.id)),
            frozen=frozen,
            overlap=0 if frozen else overlap,
        )
        self._store.commit(msgspec.json.encode(made), sync=method == "sealed")
        return made

    def _resolve(self, name: str) -> Snapshot:
        try:
            return self._history.find(name if _is_hex(name) else self.refs().get(name, name))  # no reference is hex
        except SnapshotUnknown as error:
            hints = [f"list the snapshots: proofbox workspace log {quote(str(self.path))}"]
            raise SnapshotUnknown(error.message, op="workspace", fix_hints=hints) from None


def _tree_of(snapshot: Snapshot | None) -> bytes:
    return bytes.fromhex(snapshot.id) if snapshot else EMPTY_TREE


def _is_hex(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)


def _skipped_paths(found: Mapping[str, str]) -> tuple[SkippedPath, ...]:
    return tuple(SkippedPath(**path_fields(path), reason=reason) for path, reason in sorted(found.items()))
