"""The part of a run that a page shows: attempts filtered, sorted and paged, or the grid of missions and strategies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proofbox.viewer.runs import OUTCOMES, AttemptRow, RunView

ROWS: Final = 50
"""Rows of a page."""
SMALL_GRID: Final = 12
"""Maximum number of missions for a grid above the list of attempts."""
SORTS: Final = ("attempt", "mission", "outcome", "tokens", "seconds", "calls")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run's address that selects and orders its attempts."""

    q: str = ""
    outcome: str = ""
    strategy: str = ""
    mission: str = ""
    claim: str = ""
    sort: str = "attempt"
    view: str = "attempts"
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Query:
        """Read a query. Unknown values are replaced by the defaults."""
        text = {name: parameters.get(name, "")[:200] for name in ("q", "strategy", "mission")}
        outcome, sort = parameters.get("outcome", ""), parameters.get("sort", "")
        page = parameters.get("page", "")
        return cls(
            **text,
            outcome=outcome if outcome in OUTCOMES else "",
            claim="contradicted" if parameters.get("claim") == "contradicted" else "",
            sort=sort if sort.removeprefix("-") in SORTS else "attempt",
            view="grid" if parameters.get("view") == "grid" else "attempts",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
        )

    def address(self, **changes: Any) -> dict[str, str]:
        """Return the parameters of the same page with some values changed, without defaults."""
        changed = msgspec.structs.replace(self, **{"page": 1, **changes})
        plain = Query()
        return {
            name: str(value) for name, value in msgspec.structs.asdict(changed).items() if value != getattr(plain, name)
        }


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of one page, and how many there are."""

    rows: Sequence[AttemptRow]
    total: int
    page: int
    pages: int


def select(rows: Iterable[AttemptRow], query: Query) -> Selection:
    """Return a page of the attempts that match a query."""
    text = query.q.casefold()
    found = [
        row
        for row in rows
        if (not text or text in row.id.casefold() or text in row.reason.casefold() or text in row.infra.casefold())
        and (not query.outcome or row.outcome == query.outcome)
        and (not query.strategy or row.strategy == query.strategy)
        and (not query.mission or row.mission == query.mission)
        and (not query.claim or row.contradicts)
    ]
    name = query.sort.removeprefix("-")
    if query.sort != "attempt":
        found.sort(key=lambda row: _sort_key(row, name), reverse=query.sort.startswith("-"))
    pages = max(1, -(-len(found) // ROWS))
    page = min(query.page, pages)
    return Selection(found[(page - 1) * ROWS : page * ROWS], len(found), page, pages)


def _sort_key(row: AttemptRow, name: str) -> tuple[float | str, int]:
    if name == "outcome":
        return OUTCOMES.index(row.outcome), row.number
    if name == "mission":
        return row.mission, row.number
    if name == "attempt":
        return row.number, 0
    value = getattr(row, name)
    return -1.0 if value is None else float(value), row.number


@dataclass(frozen=True, slots=True)
class GridCell:
    """The results of one strategy at one mission."""

    counts: Mapping[str, int]
    contradicted: int

    @property
    def scored(self) -> int:
        return self.counts.get("passed", 0) + self.counts.get("failed", 0)

    @property
    def outcome(self) -> str:
        """The class of the cell: an outcome if all results share it, else `mixed`."""
        present = [name for name in OUTCOMES if self.counts.get(name)]
        return present[0] if len(present) == 1 else "mixed"


@dataclass(frozen=True, slots=True)
class Grid:
    strategies: Sequence[str]
    rows: Sequence[tuple[str, Mapping[str, GridCell]]]
    page: int
    pages: int


def grid(view: RunView, query: Query) -> Grid:
    """Return a page of the grid: the final results of every mission by strategy."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    contradicted: Counter[tuple[str, str]] = Counter()
    for row in view.rows:
        if not row.replaced:
            counts.setdefault(row.mission, {}).setdefault(row.strategy or "–", Counter())[row.outcome] += 1
            contradicted[row.mission, row.strategy or "–"] += row.contradicts
    missions = [mission for mission in counts if query.q.casefold() in mission.casefold()]
    pages = max(1, -(-len(missions) // ROWS))
    page = min(query.page, pages)
    shown = missions[(page - 1) * ROWS : page * ROWS]
    strategies = sorted({name for by_strategy in counts.values() for name in by_strategy})
    rows = [
        (mission, {name: GridCell(count, contradicted[mission, name]) for name, count in counts[mission].items()})
        for mission in shown
    ]
    return Grid(strategies, rows, page, pages)


def run_values(at: str, view: RunView, query: Query, *, current: bool = True, checked_at: str = "") -> dict[str, Any]:
    """Return what the page of a run shows. A view that is not `current` is read again soon."""
    values: dict[str, Any] = {"at": at, "run": view, "query": query, "grid": None}
    values |= {"current": current, "checked_at": checked_at}
    if view.checking:
        pages = max(1, -(-view.planned // ROWS))
        return {**values, "selection": Selection(view.rows, view.planned, min(query.page, pages), pages)}
    whole = msgspec.structs.replace(query, page=1, sort=Query().sort) == Query()
    small = whole and len({row.mission for row in view.rows}) <= SMALL_GRID
    return {
        **values,
        "selection": select(view.rows, query) if query.view == "attempts" else None,
        "grid": grid(view, query) if query.view == "grid" or small else None,
    }
