"""The size of a change in lines, for ranking changes. An agent chooses the content, so every changed file counts.

For text, the size is the smallest number of added and removed lines. Binary files and very long lines are counted by
their bytes. Any other change of a file, such as its mode or path, counts as one line.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import as_changes, differences
from proofbox.workspace.timeline.unified_diff import text_lines
from proofbox.workspace.tree import StoredEntry

LINE_BYTES = 100
"""Bytes of a binary file that count as a line."""
LONG_LINE = 1000
"""Lines of at least this many characters are counted by their length."""
MAX_COMPARED = 100_000
"""Lines after which the rest is counted by bytes, because comparing is slow."""
MAX_STEPS = 5_000_000_000
"""Pairs of lines that are compared in one tree, which takes some seconds. Two files have at most 250 million."""


def changed_lines(store: ObjectStore, old: bytes, new: bytes) -> int:
    """Return how many lines differ between two trees."""
    found = list(differences(store, old, new))
    before = {each.path: each.old for each in found if each.old is not None}
    after = {each.path: each.new for each in found if each.new is not None}
    total, comparison = 0, LineComparison()
    for change in as_changes(found):
        was = before.get(change.exact_old_path) if change.kind != "added" else None
        now = after.get(change.exact_path) if change.kind != "deleted" else None
        sides = [None if entry is None or entry.kind == "directory" else entry for entry in (was, now)]
        if any(sides):
            total += max(1, _size(store, *sides, comparison=comparison if total < MAX_COMPARED else None))
    return total


def _size(
    store: ObjectStore, was: StoredEntry | None, now: StoredEntry | None, *, comparison: LineComparison | None
) -> int:
    if was is not None and now is not None and was.digest == now.digest:
        return 0
    one, other = (None if comparison is None else text_lines(store, entry) for entry in (was, now))
    if comparison is None or one is None or other is None:
        return sum(-(-store.size(entry.digest) // LINE_BYTES) for entry in (was, now) if entry is not None)
    return comparison.changed_lines(one, other)


class LineComparison:
    """Counts the lines that differ between texts, with a bound on the time that all of them take together."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.steps = steps
        """Pairs of lines that may still be compared."""

    def changed_lines(self, one: Sequence[str], other: Sequence[str]) -> int:
        """Return how many lines were removed and added: the fewest that turn one text into the other.

        Once too many lines were compared, it is an upper bound: all lines between the first and the last that differ.
        """
        one, other = _without_common_ends(one, other)
        ids: dict[str, int] = {}
        left, right = (_units(lines, ids) for lines in (one, other))
        shared = set(left) & set(right)
        kept, opposite = ([each for each in units if each in shared] for units in (left, right))
        steps = len(kept) * len(opposite)
        if steps > self.steps:
            return len(left) + len(right)
        self.steps -= steps
        return len(left) + len(right) - 2 * _longest_common(kept, opposite)


def _without_common_ends(one: Sequence[str], other: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    start, limit = 0, min(len(one), len(other))
    while start < limit and one[start] == other[start]:
        start += 1
    end = 0
    while end < limit - start and one[-1 - end] == other[-1 - end]:
        end += 1
    return one[start : len(one) - end], other[start : len(other) - end]


def _units(lines: Sequence[str], ids: dict[str, int]) -> list[Hashable]:
    """Return one value per line, and of a long line as many as it counts for, which are equal for equal lines."""
    found: list[Hashable] = []
    for line in lines:
        id = ids.setdefault(line, len(ids))
        if len(line) < LONG_LINE:
            found.append(id)
        else:
            found += [(id, part) for part in range(-(-len(line) // LINE_BYTES))]
    return found


def _longest_common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence.

    A bit of `ends` is clear where the length grows along `one`, so that a number holds a row of the usual table, and a
    few operations compute the next one: H. Hyyrö, Bit-parallel LCS-length computation revisited, 2004.
    """
    places: dict[Hashable, int] = {}
    for number, each in enumerate(one):
        places[each] = places.get(each, 0) | 1 << number
    every = (1 << len(one)) - 1
    ends = every
    for each in other:
        matching = ends & places[each]
        ends = ((ends + matching) | (ends - matching)) & every
    return len(one) - ends.bit_count()
