"""Find what is below a directory: campaigns, runs, attempts made by hand, plan runs, deliveries, other bundles.

The list comes from names and unverified status documents; each page verifies what it shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from proofbox.core.clock import isoformat
from proofbox.errors import NotFoundError
from proofbox.evidence.bundle.listing import describe
from proofbox.evidence.bundle.paths import INDEX, STATUS
from proofbox.lab.attempt import artifacts
from proofbox.lab.campaign.layout import MANIFEST

Kind = Literal["campaign", "run", "attempt", "plan_run", "delivery", "bundle"]
MAX_DIRECTORIES = 20_000
MAX_DEPTH = 10
_MARKS: tuple[tuple[str, Kind], ...] = (
    (artifacts.ATTEMPT, "attempt"),
    (artifacts.TORN, "attempt"),
    ("run_manifest.json", "plan_run"),
    ("delivery.json", "delivery"),
    ("environment.json", "run"),
    ("schedule.jsonl", "run"),
)


@dataclass(frozen=True, slots=True)
class Item:
    """Something that has a page."""

    kind: Kind
    at: str
    """The path relative to the directory of the viewer; `.` is that directory."""
    id: str
    state: str
    """As the status document states, unverified: in_progress, complete, failed, interrupted or unreadable."""
    started_at: str | None


@dataclass(frozen=True, slots=True)
class Catalog:
    items: tuple[Item, ...]
    """The newest first."""
    complete: bool
    """Whether everything was looked at: the number of directories and their depth are limited."""


def find_items(root: Path) -> Catalog:
    """List everything below `root` that has a page. Links and hidden directories are not followed."""
    walk = _Walk(root)
    items = sorted(walk.items(), key=lambda item: (item.started_at or "", item.id), reverse=True)
    return Catalog(tuple(items), not walk.cut)


def kind_of(path: Path) -> Kind | None:
    """Return what a directory contains; None if it has no page."""
    if any(os.path.lexists(path / name) for name in (STATUS, INDEX)):
        return next((kind for name, kind in _MARKS if os.path.lexists(path / name)), "bundle")
    if os.path.lexists(path / MANIFEST) and (path / "flows").is_dir():
        return "campaign"
    return None


def place_of(root: Path, at: str) -> Path:
    """Return the directory that a request names. Raises NotFoundError unless it is below `root` and has a page."""
    try:
        path = (root / at).resolve()
        if path.is_relative_to(root.resolve()) and kind_of(path) is not None:
            return path
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a name that no file can have
        pass
    raise NotFoundError(f"there is nothing to show at {at[:200]!r}", op="view")


class _Walk:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._left = MAX_DIRECTORIES
        self.cut = False

    def items(self) -> Iterator[Item]:
        yield from self._below(self._root, 0)

    def _below(self, path: Path, depth: int) -> Iterator[Item]:
        if self._left == 0 or depth > MAX_DEPTH:
            self.cut = True
            return
        self._left -= 1
        kind = kind_of(path)
        if kind is not None:
            yield self._item(path, kind)
            return  # its page leads to what it contains: the runs of a campaign, the attempts of a run
        try:
            with os.scandir(path) as entries:
                inner = sorted(
                    entry.name
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
                )
        except OSError:
            return
        for name in inner:
            yield from self._below(path / name, depth + 1)

    def _item(self, path: Path, kind: Kind) -> Item:
        at = os.path.relpath(path, self._root)
        if kind == "campaign":
            since = datetime.fromtimestamp(os.lstat(path / MANIFEST).st_mtime, UTC)
            return Item(kind, at, path.resolve().name, "", isoformat(since))
        found = describe(str(path))
        return Item(kind, at, found.run_id, found.state, found.started_at)
