"""What old runs leave on a disk, and taking it away: runs by age and size, and what interrupted processes left.

A run that is pinned, promoted, not committed or the latest stays, unless it is asked for by name. Nothing that a living
process may be using is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.clock import parse_isoformat
from proofbox.core.dirs import cache_dir
from proofbox.core.ids import is_id
from proofbox.evidence.listing import RunSummary, list_bundles
from proofbox.lab import artifacts
from proofbox.lab.plan import LEDGER_SUFFIX, WORK, ledger_path
from proofbox.lab.pressure import size_of
from proofbox.workspace import registry

PIN_SUFFIX = ".pin"
Kind = Literal["run", "work", "schema_cache"]


class Item(msgspec.Struct, frozen=True):
    """One thing on the disk, and why it goes or stays."""

    kind: Kind
    """`run`: evidence. `work`: what a run worked with. `schema_cache`: what was learned of an agent's protocol."""
    path: str
    bytes: int
    """On the disk."""
    free: bool
    """It goes; of a dry run, it would."""
    reason: str


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    older_than: float | None = None
    """Seconds."""
    max_bytes: int | None = None
    """Keep the newest runs up to this size in all."""
    include_promoted: bool = False
    include_uncommitted: bool = False


def survey(out: Path, rules: Rules, now: datetime) -> list[Item]:
    """What is there, oldest first, and what would be freed."""
    runs = list_bundles(out) if out.is_dir() else []
    return [*_runs(out, runs, rules, now), *_work(out, runs), *_caches()]


def collect(items: Sequence[Item]) -> int:
    """Take away what is to go; the bytes that were freed."""
    freed = 0
    for item in items:
        if not item.free:
            continue
        path = Path(item.path)
        if item.kind == "run":
            for store in _stores_of(path):
                registry.drop_store(store)
            # The evidence first: a ledger without its run says so, a run without its ledger would look whole.
            shutil.rmtree(path, ignore_errors=True)
            for suffix in ("", "-wal", "-shm"):
                Path(f"{ledger_path(path.parent, path.name)}{suffix}").unlink(missing_ok=True)
            (path.parent / f".{path.name}.conductor").unlink(missing_ok=True)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        freed += item.bytes
    return freed


def _runs(out: Path, runs: Sequence[RunSummary], rules: Rules, now: datetime) -> Iterator[Item]:
    sizes = {run.run_id: size_of(Path(run.path), 1 << 62) for run in runs}
    kept = 0
    over: set[str] = set()
    for run in reversed(runs):
        kept += sizes[run.run_id]
        if rules.max_bytes is not None and kept > rules.max_bytes:
            over.add(run.run_id)
    for run in runs:
        old = rules.older_than is not None and _age(run, now) > rules.older_than
        why = f"older than {rules.older_than:g} s" if old else "over the size" if run.run_id in over else ""
        stays = _protected(out, run, rules)
        free = bool(why) and not stays
        yield Item("run", run.path, sizes[run.run_id], free, stays or why or "within the rules")


def _protected(out: Path, run: RunSummary, rules: Rules) -> str:
    if (out / f"{run.run_id}{PIN_SUFFIX}").exists():
        return "pinned"
    if run.latest:
        return "the latest"
    if run.state == "in_progress":
        return "in progress"
    if run.status is None and not rules.include_uncommitted:
        return "not committed"
    if any(out.glob(f"{run.run_id}*.promotion.json")) and not rules.include_promoted:
        return "promoted"
    return ""


def _stores_of(run: Path) -> set[str]:
    """The stores with the files of its attempts."""
    found = set()
    for path in run.glob(f"attempts/*/{artifacts.FINAL_SNAPSHOT}"):
        with contextlib.suppress(OSError, CanonicalError, KeyError, TypeError):
            found.add(str(parse_strict(path.read_bytes())["store"]))
    return {store for store in found if is_id(store, "store")}


def _age(run: RunSummary, now: datetime) -> float:
    return (now - parse_isoformat(run.started_at)).total_seconds() if run.started_at else 0.0


def _work(out: Path, runs: Sequence[RunSummary]) -> Iterator[Item]:
    """Workspaces, scratch and agents' homes of runs that are committed or gone: their conductor was killed."""
    committed = {run.run_id for run in runs if run.status is not None}
    needed = {path.stem for path in out.glob(f"*{LEDGER_SUFFIX}")} - committed
    work = out / WORK
    for place in sorted(work.iterdir()) if work.is_dir() else ():
        free = place.name not in needed
        reason = "its run is committed or gone" if free else "its run can be resumed"
        yield Item("work", str(place), size_of(place, 1 << 62), free, reason)


def _caches() -> Iterator[Item]:
    """Schemas of agents' protocols, one for each version ever met; the newest of each runtime is kept."""
    found = sorted(cache_dir().glob("*-schema-*.json"), key=lambda path: path.stat().st_mtime)
    newest = {path.name.split("-schema-")[0]: path for path in found}
    for path in found:
        stays = newest[path.name.split("-schema-")[0]] == path
        size = os.stat(path).st_blocks * 512
        yield Item("schema_cache", str(path), size, not stays, "the newest" if stays else "made again when needed")
