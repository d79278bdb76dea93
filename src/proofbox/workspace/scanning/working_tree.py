"""The known state of a workspace's files, updated from kernel notifications or by a scan.

The first update starts from the cache of the last process (`cache.py`), or from the files that a fork has just written.
If the tracker has missed nothing since the last update, only the reported names are read; otherwise, and for sealed
snapshots, all files are scanned. If the files are a stack (`stack.py`), the directories in which nothing was written
are known to be those of the lower directory, which the caller has to check. They are neither scanned nor tracked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path

from proofbox.core.files.nofollow import opened_directory
from proofbox.workspace.model import Method
from proofbox.workspace.scanning import cache
from proofbox.workspace.scanning.candidates import changed_candidates
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.scanning.scanner import Scanner, invalidate_missing
from proofbox.workspace.scanning.stack import Stack
from proofbox.workspace.scanning.tracker import Tracker
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.tree import Directory

LISTED = 200
"""The maximum number of directories written in a stack that every update lists. With more, every directory is watched:
an update then takes the same time however many there are."""
WORTH_SAVING = 50
"""The cache is written again if scanning the changes again would take more than one step for this many files."""
Known = tuple[Directory, tuple[int, int, int]]
"""The known files, and the store position at that time."""


class WorkingTree:
    def __init__(
        self,
        path: Path,
        store: ObjectStore,
        ignore: Ignore,
        cached: Path,
        *,
        track: bool,
        known: Known | None = None,
        stack: Stack | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self._path = str(path)
        self._store = store
        self._cached = cached
        self._known = known
        self._stack = stack
        self._tracker = Tracker() if track else None
        self._scanner = Scanner(str(path), store, ignore, self._tracker)
        self._scanner.on_progress = on_progress
        self._watches_all = False
        """Whether even those directories of a stack are watched that nothing was written to so far."""
        self._generation = store.generation
        self._since_cached: int | None = None
        """The steps of all scans since the cache was read; None if the cache can't be used again."""
        self.directory: Directory | None = None
        """None if nothing is known or the knowledge is unreliable."""
        self.before = b""
        """The tree before the last update."""

    @property
    def tracks(self) -> bool:
        return self._tracker is not None

    @property
    def tree_id(self) -> bytes:
        return self.directory.tree_id if self.directory else b""

    @property
    def skipped(self) -> dict[str, str]:
        return self._scanner.skipped

    @property
    def unstable(self) -> dict[str, str]:
        return self._scanner.unstable

    @property
    def changed(self) -> int:
        """Number of paths that the last update found to differ from `before`."""
        return self._scanner.changed

    def refresh(self, *, sealed: bool = False, within: Collection[str] | None = None) -> Method:
        """Update the known state of the files, and return the method used.

        If the files were scanned just before and the caller has changed them `within` some directories only, a scan is
        limited to these.
        """
        known = self.directory is not None and self._generation == self._store.generation
        dirty: dict[str, set[str]] | None = None
        complete = True  # whether everything outside the directories in which a stack was written is known
        if self.directory is None:
            complete = self._known is not None
            self._since_cached = 0 if self._known is None else None
            self.directory, position = self._known or cache.load(self._cached)
            self._known = None  # only used for the first update
            if not self._store.still_has(position):
                self._since_cached = None
                complete = invalidate_missing(self.directory, self._store) and complete
            if self._tracker:
                self._tracker.drain()
        elif self._generation != self._store.generation:
            self._since_cached = None
            complete = invalidate_missing(self.directory, self._store)
            if self._tracker:
                self._tracker.drain()
        elif self._tracker:
            dirty = self._tracker.drain()
        self._generation = self._store.generation
        self.before = self.directory.tree_id
        if dirty is None or sealed:
            changed = self._stack.directories() if self._stack is not None and complete else None
            if within is not None and changed is None and known and not self._tracker and not sealed:
                changed = dict.fromkeys(within)
            self._scanner.all(self.directory, thorough=sealed, within=changed)
            self._count_steps()
            return "sealed" if sealed else "scan"
        written: Collection[str] = ()
        if self._stack is not None and not self._watches_all:
            written = self._stack.directories()
            if len(written) > LISTED:
                self._watches_all = True
                written = [path for path, _ in self.directory.walk()]
        self._scanner.scan_names(self.directory, dirty, written)
        self._count_steps()
        return "tracked"

    def is_settled(self) -> bool:
        """Return whether the times of every file are as known, and every later write will change them."""
        if self.directory is None:
            return False
        with opened_directory(self._path, None) as root:
            return not changed_candidates(root, self.directory)

    def _count_steps(self) -> None:
        if self._since_cached is not None:
            self._since_cached += self._scanner.steps

    def save(self) -> None:
        """Write the cache for the next process, unless the workspace was forgotten in the meantime.

        If little was scanned since the cache was read, it stays: scanning that again takes less time than writing it.
        """
        if self.directory is not None and self._since_cached is not None:
            files = sum(each.weight for _, each in self.directory.walk())
            if self._since_cached * WORTH_SAVING < files:
                return
        known = self._known if self.directory is None else (self.directory, self._store.position)
        if known is not None:
            with contextlib.suppress(FileNotFoundError):
                cache.save(self._cached, *known)

    def forget(self) -> None:
        self.directory = None

    def close(self) -> None:
        self.forget()
        if self._tracker:
            self._tracker.close()
