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

import base64
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from proofbox.core.atomic import TEMPORARY_PREFIX
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.ids import IdSource
from proofbox.core.text import path_fields
from proofbox.errors import UsageError, WorkspaceChanging, WorkspaceCorrupt, WorkspacePathRefused
from proofbox.workspace import cache, effects, registry
from proofbox.workspace.diff import changes, differences
from proofbox.workspace.history import History, reachable
from proofbox.workspace.ignore import Ignore
from proofbox.workspace.locks import locked
from proofbox.workspace.model import (
    Change,
    Collected,
    Left,
    Method,
    RollbackResult,
    Snapshot,
    Status,
    Verification,
)
from proofbox.workspace.registry import Registration, Rollback
from proofbox.workspace.restore import Restorer, write_new
from proofbox.workspace.scan import Scanner, distrust_missing, settle
from proofbox.workspace.store import Store
from proofbox.workspace.tracking import Tracker
from proofbox.workspace.tree import EMPTY_TREE, Directory

_TRIES = 3
T = TypeVar("T")


class Workspace:
    """Made by `init`, `open` and `fork`; close it, or use it in a `with`."""

    def __init__(self, registration: Registration, *, track: bool, clock: Clock | None = None) -> None:
        self.id = registration.id
        self.path = Path(os.fsdecode(bytes.fromhex(registration.path_hex)))
        self._registration = registration
        self._clock: Clock = clock or SystemClock()
        self._home = registry.home_of(registration.id)
        self._store = Store(registry.store_path(registration.store))
        self._history = History(self._store, self.id)
        self._tracker = Tracker() if track else None
        self._scanner = Scanner(str(self.path), self._store, Ignore(registration.ignore), self._tracker)
        self._directory: Directory | None = None
        self._generation = self._store.generation
        try:
            self._finish_rollback()
            if track:
                with self._working():
                    self._refresh()
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
        new = Registration(ids.new_id("ws"), ids.new_id("store"), os.fsencode(real).hex(), tuple(ignore), created_at)
        Store.create(registry.store_path(new.store)).close()
        registry.register(new)
        return cls(new, track=track, clock=clock)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, track: bool = True, clock: Clock | None = None) -> Workspace:
        """Open a workspace, and finish a rollback that was interrupted. Without `track` every look is a scan."""
        return cls(registry.registered(registry.real_directory(path)), track=track, clock=clock)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop tracking, and put what is known of the files and all history on the disk."""
        if self._directory is not None:
            cache.save(self._home / "cache", self._directory)
        self._release()

    def _release(self) -> None:
        self._directory = None
        if self._tracker:
            self._tracker.close()
        self._store.close()

    # Looking.

    @property
    def head(self) -> Snapshot | None:
        """The latest entry of the history: what the files were when it was made."""
        return self._history.head()

    def history(self) -> list[Snapshot]:
        """Every snapshot, rollback and fork of this workspace, oldest first."""
        with self._store.use():
            return list(self._history)

    def status(self) -> Status:
        """What the files have that the latest snapshot has not."""
        with self._working():
            self._refresh()
            self._store.flush()
            head = self._history.head()
            return Status(
                workspace=self.id,
                path=str(self.path),
                head=head.id if head else None,
                changes=tuple(changes(self._store, _tree_of(head), self._tree_id)),
                skipped=_left(self._scanner.skipped),
                ignored=self._registration.ignore,
                refs=self.refs(),
            )

    def diff(self, a: str | None = None, b: str | None = None) -> list[Change]:
        """What changed from `a` (the latest snapshot) to `b` (the files as they are now)."""
        return self.compare(a, b, changes)

    def compare(self, a: str | None, b: str | None, how: Callable[[Store, bytes, bytes], T]) -> T:
        """Apply `how` to the two trees that `diff` would compare."""
        with self._working():
            old = bytes.fromhex(self._resolve(a).id) if a is not None else _tree_of(self._history.head())
            if b is not None:
                return how(self._store, old, bytes.fromhex(self._resolve(b).id))
            self._refresh()
            self._store.flush()
            return how(self._store, old, self._tree_id)

    def resolve(self, name: str) -> Snapshot:
        """The snapshot that an id, its beginning (4 digits or more), a named reference or HEAD means."""
        with self._store.use():
            return self._resolve(name)

    # Changing.

    def snapshot(
        self,
        message: str = "",
        *,
        sealed: bool = False,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        effects_position: int = 0,
    ) -> Snapshot:
        """Record the files as they are. `sealed` scans everything and returns when it is on the disk.

        `cwd`, `env` and `effects_position` are kept for whoever goes on from here.
        """
        with self._working():
            method = self._refresh(sealed=sealed)
            return self._record("snapshot", message, method, cwd, dict(env or {}), effects_position)

    def rollback(self, name: str) -> RollbackResult:
        """Make the files what they were. The state that is left is recorded first, if it is not yet.

        Killed in between, it is finished at the next open. Raises WorkspaceChanging when something else keeps writing.
        """
        with self._working():
            target = self._resolve(name)
            method = self._refresh()
            head = self._history.head()
            before = self._tree_id
            if head is None or _tree_of(head) != before:
                self._record("snapshot", f"before a rollback to {target.id[:12]}", method)
            temporary = TEMPORARY_PREFIX + secrets.token_hex(8)
            journal = Rollback(target.id, before.hex(), temporary)
            registry.write(self._home / "rollback.json", journal, sync=False)
            left = self._carry_out(journal)
            restored = tuple(changes(self._store, before, bytes.fromhex(target.id)))
        return RollbackResult(
            id=target.id,
            before=before.hex(),
            restored=restored,
            irreversible_effects=effects.irreversible(self._home, target),
            warning=f"{len(left)} paths that no snapshot holds are still there" if left else "",
            left=left,
        )

    def fork(self, name: str, dest: str | os.PathLike[str]) -> Workspace:
        """A new workspace at `dest`, a directory that is not there or empty, with the files of that snapshot.

        Its history begins there, and its content is shared with this one's. The directory appears whole or not at all.
        """
        path = os.path.realpath(os.fspath(dest))
        parent, _ = os.path.split(path)
        if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
            raise WorkspacePathRefused(f"{path} is not empty", op="workspace fork", fix_hints=["name a new directory"])
        registry.refuse_own_state(path)
        with self._store.use():
            source = self._resolve(name)
            making = os.path.join(parent, TEMPORARY_PREFIX + secrets.token_hex(8))
            os.mkdir(making, 0o755)
            try:
                directory = write_new(self._store, making, bytes.fromhex(source.id))
                settle(directory)
                created_at = isoformat(self._clock.now())
                new = Registration(
                    IdSource(self._clock).new_id("ws"),
                    self._registration.store,
                    os.fsencode(path).hex(),
                    self._registration.ignore,
                    created_at,
                )
                event = msgspec.structs.replace(
                    source,
                    kind="fork",
                    parent=source.id,
                    message=f"fork of {self.id}",
                    created_at=created_at,
                    changed=0,
                    workspace=new.id,
                    effects_head=None,
                )
                self._store.commit(msgspec.json.encode(event))
                os.rename(making, path)
            except BaseException:
                shutil.rmtree(making, ignore_errors=True)
                raise
            # Last: killed before this, there is an ordinary directory, and never a workspace without one.
            registry.register(new)
            cache.save(registry.home_of(new.id) / "cache", directory)
        return Workspace(new, track=self._tracker is not None, clock=self._clock)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The patterns of what is never part of it."""
        return self._registration.ignore

    @property
    def effects(self) -> effects.EffectLog:
        """The log of what was done here: `effects.py`."""
        return effects.EffectLog(self._home, self.id, clock=self._clock)

    def refs(self) -> dict[str, str]:
        """Names for snapshots, and what they name."""
        return registry.read(self._home / "refs.json", dict[str, str]) or {}

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
            registry.write(self._home / "refs.json", {**self.refs(), name: found.id})

    def verify(self) -> Verification:
        """Read everything that is stored again: every byte against its digest, every tree for what it needs."""
        problems = self._store.damage()
        with self._store.use():
            snapshots = []
            live: set[bytes] = set()
            try:
                snapshots = list(self._history)
                self.refs()
                registry.registered(str(self.path))
            except WorkspaceCorrupt as error:
                problems.append(error.message)
            for each in snapshots:
                try:
                    reachable(self._store, bytes.fromhex(each.id), live)
                except (WorkspaceCorrupt, ValueError) as error:
                    problems.append(f"snapshot {each.id}: {error}")
            problems += effects.problems(self._home, self.id, snapshots)
            for name, meant in self.refs().items() if not problems else ():
                if meant not in {each.id for each in snapshots}:
                    problems.append(f"{name} names {meant}, which is not in the history")
        return Verification(
            sound=not problems, snapshots=len(snapshots), objects=len(live), problems=tuple(dict.fromkeys(problems))
        )

    def gc(self, *, keep: int | None = None) -> Collected:
        """Drop what no snapshot needs. `keep` cuts this history to the latest so many, and those with a name."""
        if keep is not None and keep < 1:
            raise UsageError("at least the latest snapshot is kept", op="workspace gc", fix_hints=["--keep 1 or more"])
        with locked(self._home / "lock"), self._store.alone():
            own = list(self._history)
            named = set(self.refs().values())
            dropped = [each for each in (own[:-keep] if keep else []) if each.id not in named]
            gone = {msgspec.json.encode(each) for each in dropped}
            events = [event for event in self._store.events() if event not in gone]
            live: set[bytes] = set()
            for event in events:
                reachable(self._store, bytes.fromhex(msgspec.json.decode(event, type=Snapshot).id), live)
            objects, freed = self._store.keep_only(live, events)
        return Collected(snapshots_dropped=len(dropped), objects_dropped=objects, bytes_freed=freed)

    # Inside.

    @contextmanager
    def _working(self) -> Iterator[None]:
        with locked(self._home / "lock"), self._store.use():
            try:
                yield
            except BaseException:
                # What was read may not have reached the store: nothing of it can be relied on.
                self._directory = None
                self._store.forget_pending()
                raise

    @property
    def _tree_id(self) -> bytes:
        return self._directory.tree_id if self._directory else b""

    def _refresh(self, *, sealed: bool = False) -> Method:
        """Bring what is known of the files up to date, and say how."""
        dirty: dict[str, set[str]] | None = None
        if self._directory is None:
            self._directory = cache.load(self._home / "cache")
            distrust_missing(self._directory, self._store)
            if self._tracker:
                self._tracker.drain()
        elif self._generation != self._store.generation:
            distrust_missing(self._directory, self._store)
            if self._tracker:
                self._tracker.drain()
        elif self._tracker:
            dirty = self._tracker.drain()
        self._generation = self._store.generation
        if dirty is None or sealed:
            self._scanner.all(self._directory, thorough=sealed)
            return "sealed" if sealed else "scan"
        self._scanner.some(self._directory, dirty)
        return "tracked"

    def _record(
        self,
        kind: Literal["snapshot", "rollback"],
        message: str,
        method: Method,
        cwd: str = "",
        env: dict[str, str] | None = None,
        effects_position: int = 0,
    ) -> Snapshot:
        head = self._history.head()
        made = Snapshot(
            id=self._tree_id.hex(),
            parent=head.id if head else None,
            message=message,
            created_at=isoformat(self._clock.now()),
            changed=sum(1 for _ in differences(self._store, _tree_of(head), self._tree_id)),
            kind=kind,
            method=method,
            workspace=self.id,
            ignored=self._registration.ignore,
            skipped=_left(self._scanner.skipped),
            unstable=_left(self._scanner.unstable),
            cwd=cwd,
            env=env or {},
            effects_position=effects_position,
            effects_head=effects.current_head(self._home, self.id),
        )
        self._store.commit(msgspec.json.encode(made), sync=method == "sealed")
        return made

    def _resolve(self, name: str) -> Snapshot:
        return self._history.find(self.refs().get(name, name))

    def _finish_rollback(self) -> None:
        if not (self._home / "rollback.json").exists():
            return
        with self._working():
            journal = registry.read(self._home / "rollback.json", Rollback)
            if journal is None:
                return  # whoever carried it out has finished
            Restorer(str(self.path), self._store, journal.temporary).remove_temporary()
            method = self._refresh()
            if self._tree_id.hex() not in (journal.before, journal.target):
                self._record("snapshot", f"found after an interrupted rollback to {journal.target[:12]}", method)
            self._carry_out(journal)

    def _carry_out(self, journal: Rollback) -> tuple[Left, ...]:
        """Make the files the journal's target, record that, and be done with the journal."""
        target = self._history.find(journal.target)
        tree = bytes.fromhex(target.id)
        for _ in range(_TRIES):
            restorer = Restorer(str(self.path), self._store, journal.temporary, _paths(target.skipped))
            assert self._directory is not None  # noqa: S101 (refreshed by the caller)
            try:
                restorer.restore(self._directory, tree)
            except (FileNotFoundError, NotADirectoryError, FileExistsError):
                pass  # swapped under our hands; look again
            method = self._refresh()
            if self._tree_id == tree or restorer.left:
                break
        else:
            raise WorkspaceChanging(
                f"something keeps changing {self.path}",
                op="workspace rollback",
                fix_hints=["stop what is writing there, then open the workspace again: the rollback is finished then"],
            )
        head = self._history.head()
        if head is None or head.kind != "rollback" or head.id != self._tree_id.hex():
            self._record(
                "rollback", f"rollback to {target.id[:12]}", method, target.cwd, target.env, target.effects_position
            )
        (self._home / "rollback.json").unlink()
        return _left(restorer.left)


def _tree_of(snapshot: Snapshot | None) -> bytes:
    return bytes.fromhex(snapshot.id) if snapshot else EMPTY_TREE


def _is_hex(text: str) -> bool:
    return all(digit in "0123456789abcdef" for digit in text)


def _left(found: Mapping[str, str]) -> tuple[Left, ...]:
    return tuple(Left(**path_fields(path), reason=reason) for path, reason in sorted(found.items()))


def _paths(left: Iterable[Left]) -> list[str]:
    return [os.fsdecode(base64.b64decode(each.path_b64)) if each.path_b64 else each.path for each in left]
