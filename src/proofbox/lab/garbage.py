"""Deletes old runs and leftovers in one call: what `proofbox gc` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proofbox.config.engine import EngineSettings, chosen_engine
from proofbox.config.settings import load_users
from proofbox.core.clock import SystemClock
from proofbox.core.plurals import counted
from proofbox.core.results import Document, ErrorBody
from proofbox.errors import NotFoundError, NotFreed, UsageError
from proofbox.lab.campaign.retention import collect_campaign, survey_campaign
from proofbox.lab.run.retention import PIN_SUFFIX, RetentionItem, RetentionRules, collect, survey

if TYPE_CHECKING:
    from proofbox.lab.run.crews.cluster.sweeping import SweptItem

DAY = 86400.0
MEGABYTE = 1 << 20


class CollectedGarbage(Document, frozen=True, kw_only=True):
    """The deleted and the kept items, each with the reason. `error`: something could not be deleted."""

    schema: str = "proofbox.gc/1"
    dry_run: bool
    """Whether this was a dry run, which deletes nothing."""
    freed: int
    """Bytes freed, or that a real run would free."""
    items: tuple[RetentionItem, ...]
    """Everything examined, including items that are kept; runs oldest first."""
    error: ErrorBody | None = None


def collect_garbage(
    out: str | os.PathLike[str] | None = None,
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    pin: str | None = None,
    unpin: str | None = None,
    include_promoted: bool = False,
    include_uncommitted: bool = False,
    dry_run: bool = False,
    engine: str | None = None,
) -> CollectedGarbage:
    """Delete old runs. Without a rule, only delete leftovers of killed processes and ended sessions.

    For example:

        for item in proofbox.collect_garbage("out", older_than=30, dry_run=True).items:
            print(item.path, item.bytes, item.free, item.reason)

    `out` is an output directory, or that of a campaign, which is deleted as a whole; None means `out`, if it exists.
    `older_than` is a number of days. `max_size` keeps the newest runs up to this number of MB in total. `pin` names a
    run that is never deleted, and `unpin` allows deleting it again. `engine` (`ray:HOST:PORT`) also deletes what killed
    workers left on the nodes of that cluster, and what the nodes keep but have not used for an hour.
    """
    if any(value is not None and not 0 <= value < 2**40 for value in (older_than, max_size)):
        raise UsageError(
            "--older-than or --max-size is out of range", op="gc", fix_hints=["give a number of days, or of MB"]
        )
    chosen = None if engine is None else chosen_engine(load_users().engine, engine, None, ())
    place = Path("out" if out is None else out)
    if out is not None and not place.is_dir():
        raise NotFoundError(f"{place} is not a directory", op="gc", fix_hints=["name the --out directory of your runs"])
    for run_id, pinned in ((pin, True), (unpin, False)):
        if run_id is not None:
            _pin(place, run_id, pinned=pinned)
    rules = RetentionRules(
        older_than=None if older_than is None else older_than * DAY,
        max_bytes=None if max_size is None else max_size * MEGABYTE,
        include_promoted=include_promoted,
        include_uncommitted=include_uncommitted,
    )
    now = SystemClock().now()
    items = (*survey_campaign(place, rules, now), *survey(place, rules, now))
    # The cluster first: one that can't be reached is reported before anything is deleted.
    on_nodes = _of_cluster(chosen, remove=not dry_run)
    freed = sum(item.bytes for item in items if item.free)
    if not dry_run:
        freed, items = collect(items, campaign=collect_campaign)
    swept = (*_of_machine(remove=not dry_run), *on_nodes)
    items, freed = (*items, *swept), freed + sum(item.bytes for item in swept if item.free)
    return CollectedGarbage(dry_run=dry_run, freed=freed, items=items, error=_not_freed(items))


def _of_cluster(engine: EngineSettings | None, *, remove: bool) -> list[RetentionItem]:
    """Return what is left on the nodes of an existing cluster, and remove it, if asked."""
    if engine is None or engine.address is None:
        return []
    from proofbox.lab.run.crews.cluster.sweeping import sweep_engine

    return [_retained(each) for each in sweep_engine(engine, remove=remove)]


def _of_machine(*, remove: bool) -> list[RetentionItem]:
    """Return what clusters left on this machine, and remove it, if asked."""
    from proofbox.lab.run.crews.cluster.sweeping import sweep_machine

    return [_retained(each) for each in sweep_machine(remove=remove)]


def _retained(item: SweptItem) -> RetentionItem:
    return msgspec.convert(item, RetentionItem, from_attributes=True)


def _pin(out: Path, run_id: str, *, pinned: bool) -> None:
    if not (out / run_id).is_dir() or "/" in run_id:
        raise UsageError(f"there is no run {run_id[:80]!r} in {out}", op="gc", fix_hints=["proofbox bundle list"])
    place = out / f"{run_id}{PIN_SUFFIX}"
    if pinned:
        place.touch()
    else:
        place.unlink(missing_ok=True)


def _not_freed(items: tuple[RetentionItem, ...]) -> ErrorBody | None:
    left = [item.left for item in items if item.left]
    if not left:
        return None
    return ErrorBody.of(NotFreed(f"{counted(len(left), 'item')} could not be deleted, the first: {left[0]}", op="gc"))
