"""An engine that looks for candidates in a packed copy of the files, once that is likely to save time.

Opening 100,000 files takes ripgrep longer than comparing their times and reading a copy of their text. Making the copy
takes as long as a few searches, so it is made only after several were slow, and given up if it does not pay.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING

from proofbox.core.clock import Clock, SystemClock
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.search.dialect import SearchPattern
from proofbox.workspace.search.engines import SearchEngine, best_engine
from proofbox.workspace.search.finder import NEVER_SEARCHED

if TYPE_CHECKING:
    from proofbox.workspace.search.packed import PackedTree

SLOW = 0.1
"""A search of all files that takes longer, in seconds, counts as slow."""
PATIENCE = 3
"""The copy is made by the search after this many slow ones. It takes as long as five or six of them."""
_TOLERATED = 0.25
"""The copy is given up when bringing it up to date takes more than this part of the work of making it. Times would
depend on what else the machine does."""
_REMEMBERED = 100


class IndexedEngine:
    """The engine `engine`, or the best one, with a packed copy of the files below `root`. Close it after use."""

    name = "indexed"

    def __init__(
        self, root: str | None, ignore: Ignore, engine: SearchEngine | None = None, clock: Clock | None = None
    ) -> None:
        self._root = root
        self._ignore = Ignore((*ignore.patterns, NEVER_SEARCHED))
        self._given = engine
        self._clock: Clock = clock or SystemClock()
        self._using = threading.Lock()
        self._packed: PackedTree | None = None
        self._made_in = 0.0
        """How long it took to make the copy."""
        self._seconds: dict[str, float] = {}
        """How long the last search of the files took, by the directory that was searched."""
        self._due: float = PATIENCE
        """The number of slow searches until a copy is made."""

    @property
    def has_copy(self) -> bool:
        return self._packed is not None

    def close(self) -> None:
        with self._using:
            self._give_up(math.inf)

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        return self._engine.lines(pattern, text, most, seconds)

    def offsets(self, pattern: SearchPattern, files: list[int], most: int, seconds: float) -> list[list[int]] | None:
        return self._engine.offsets(pattern, files, most, seconds)

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:
        end = self._clock.monotonic() + seconds
        found = None
        if self._using.acquire(blocking=False):  # another thread that searches at the same time does not wait
            try:
                found = self._search_copy(pattern, directory, top, end)
            finally:
                self._using.release()
        return self._search_files(pattern, directory, top, end) if found is None else found

    @property
    def _engine(self) -> SearchEngine:
        return self._given or best_engine(self._root)

    def _search_files(self, pattern: SearchPattern, directory: str, top: str, end: float) -> list[str] | None:
        began = self._clock.monotonic()
        if began >= end:
            raise TimeoutError
        found = self._engine.candidates(pattern, directory, top, end - began)
        if found is None:
            return None
        if len(self._seconds) == _REMEMBERED:
            self._seconds.clear()
        self._seconds[top] = self._clock.monotonic() - began
        self._due -= self._seconds[top] > SLOW
        return found

    def _search_copy(self, pattern: SearchPattern, directory: str, top: str, end: float) -> list[str] | None:
        """Return the candidates in an up-to-date copy, or None if the files have to be searched."""
        usual = self._seconds.get(top, 0.0)
        if usual <= SLOW or (self._packed is None and self._due > 0) or self._ignore.matches_within(top):
            return None
        from proofbox.workspace.search.packed import PackedTree, PackingStopped  # only for large trees

        began = self._clock.monotonic()
        is_new = self._packed is None
        try:
            if self._packed is None:
                self._packed = PackedTree(directory, self._ignore, self._clock)
            work = self._packed.update((began + end) / 2)
        except (PackingStopped, OSError):
            # A copy that was made before has grown by what changed since, and a new one may be small enough.
            self._give_up(math.inf if is_new else self._made_in / usual)
            return None
        except BaseException:
            self._give_up(math.inf)
            raise
        if is_new:
            self._made_in = self._clock.monotonic() - began
        try:
            found = self._packed.candidates(
                lambda files, most: self._engine.offsets(pattern, files, most, end - self._clock.monotonic()), top
            )
        except PackingStopped:
            self._give_up(math.inf)
            return None
        if not is_new and work > _TOLERATED:
            self._give_up(self._made_in / usual)
        return found

    def _give_up(self, due: float) -> None:
        """Remove the copy, and make the next one after `due` slow searches."""
        if self._packed is not None:
            with contextlib.suppress(OSError):
                self._packed.close()
        self._packed = None
        self._due = max(due, PATIENCE)
