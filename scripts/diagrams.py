"""Draws docs/diagrams/*.svg, each from the TOML file beside it: `scripts/docs diagrams`.

A diagram has its own background colours, so it looks the same on light and dark pages. Text widths are estimated,
and text that does not fit its box is an error. Everything in `names` must exist, as a path below src/proofbox, a
command, or a name in the code; tests/test_docs.py checks this.

    at = [x, y, width, height]      kind = plain, host, box, kept or outside: determines the colour
    along = 0.5                     the position of an arrow on the shared edge of two boxes, from 0 to 1
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

PLACE = Path(__file__).resolve().parent.parent / "docs/diagrams"
INK, MUTED, PANEL, LINE = "#1f2430", "#566072", "#faf9f5", "#cfc9ba"
TINTS = {"plain": "#ffffff", "host": "#f1eee4", "box": "#e3efe8", "kept": "#e6ecf6", "outside": "#f7e9e2"}
EDGES = {"plain": "#8a8f99", "host": "#cfc9ba", "box": "#3f7d5c", "kept": "#4a689b", "outside": "#b0683f"}
SANS, MONO = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", "ui-monospace, 'DejaVu Sans Mono', monospace"
TITLE, WORDS, NAME, STEP = 14.0, 12.0, 11.5, 17.0


class Box(NamedTuple):
    """A component: `text` describes it, and `names` lists its files."""

    at: tuple[int, int, int, int]
    title: str
    text: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    kind: str = "plain"
    id: str = ""


class Region(NamedTuple):
    """An area that contains boxes."""

    at: tuple[int, int, int, int]
    title: str
    kind: str = "host"


class Arrow(NamedTuple):
    start: str
    end: str
    label: str = ""
    both: bool = False
    dashed: bool = False
    along: float = 0.5


class Diagram(NamedTuple):
    name: str
    alt: str
    size: tuple[int, int]
    box: tuple[Box, ...]
    arrow: tuple[Arrow, ...]
    region: tuple[Region, ...] = ()


class Misfit(Exception):
    """Text does not fit into its box."""


def read(path: Path) -> Diagram:
    said: dict[str, Any] = tomllib.loads(path.read_text())
    kinds: dict[str, Any] = {"box": Box, "arrow": Arrow, "region": Region}
    lists: dict[str, Any] = {name: tuple(kind(**each) for each in said.pop(name, [])) for name, kind in kinds.items()}
    return Diagram(name=path.stem, **said, **lists)


def every_diagram() -> list[Diagram]:
    return [read(path) for path in sorted(PLACE.glob("*.toml"))]


def draw(diagram: Diagram) -> str:
    boxes = {box.id: box for box in diagram.box}
    width, height = diagram.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(diagram.alt)}">',
        f"<title>{escape(diagram.alt)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0.6 7 4 0 7.4z" fill="{MUTED}"/></marker></defs>',
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10" fill="{PANEL}" stroke="{LINE}"/>',
    ]
    for region in diagram.region:
        x, y, w, _ = region.at
        parts.append(_rect(region.at, region.kind, dashed=region.kind == "box"))
        parts.append(_text((x + 12, y + 20), region.title, WORDS, w - 24, colour=MUTED, bold=True))
    parts += [part for arrow in diagram.arrow for part in _arrow(arrow, boxes[arrow.start], boxes[arrow.end])]
    parts += [part for box in diagram.box for part in _box(box)]
    return "\n".join([*parts, "</svg>", ""])


def _box(box: Box) -> Iterator[str]:
    x, y, w, h = box.at
    lines = 1 + len(box.text) + len(box.names)
    if lines * STEP > h:
        raise Misfit(f"{box.title}: {lines} lines in a height of {h}")
    yield _rect(box.at, box.kind)
    top = y + (h - STEP * lines) / 2 + 12.5
    for number, text in enumerate((box.title, *box.text, *box.names)):
        place = (x + w / 2, top + STEP * number)
        if number == 0:
            yield _text(place, text, TITLE, w - 8, bold=True, middle=True)
        elif number <= len(box.text):
            yield _text(place, text, WORDS, w - 8, middle=True)
        else:
            yield _text(place, text, NAME, w - 8, colour=MUTED, family=MONO, middle=True)


def _arrow(arrow: Arrow, start: Box, end: Box) -> Iterator[str]:
    points = _way(start, end, arrow.along)
    more = ' stroke-dasharray="5 4"' if arrow.dashed else ""
    more += ' marker-start="url(#tip)"' if arrow.both else ""
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    yield (f'<polyline points="{line}" fill="none" stroke="{MUTED}" stroke-width="1.5" marker-end="url(#tip)"{more}/>')
    if arrow.label:
        (x1, y1), (x2, y2) = points[0], points[1]
        x, y, level = (x1 + x2) / 2, (y1 + y2) / 2, y1 == y2
        place, room = ((x, y - 6), abs(x2 - x1)) if level else ((x + 7, y + 4), 160.0)
        yield _text(place, arrow.label, NAME, room, colour=MUTED, middle=level)


def _way(start: Box, end: Box, along: float) -> list[tuple[float, float]]:
    """Return the points of an arrow: straight if the boxes face each other, otherwise with one corner."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = start.at, end.at
    top, bottom = max(y1, y2), min(y1 + h1, y2 + h2)
    left, right = max(x1, x2), min(x1 + w1, x2 + w2)
    if top < bottom:
        y = top + (bottom - top) * along
        return [(x1 + w1, y), (x2, y)] if x1 < x2 else [(x1, y), (x2 + w2, y)]
    if left < right:
        x = left + (right - left) * along
        return [(x, y1 + h1), (x, y2)] if y1 < y2 else [(x, y1), (x, y2 + h2)]
    corner = x2 + w2 * along, y1 + h1 / 2
    return [(x1 + w1 if x1 < x2 else x1, corner[1]), corner, (corner[0], y2 if y1 < y2 else y2 + h2)]


def _rect(at: tuple[int, int, int, int], kind: str, *, dashed: bool = False) -> str:
    x, y, w, h = at
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return (
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" fill="{TINTS[kind]}" stroke="{EDGES[kind]}" '
        f'stroke-width="1.2"{dashes}/>'
    )


def _text(
    place: tuple[float, float],
    text: str,
    size: float,
    room: float,
    *,
    colour: str = INK,
    family: str = SANS,
    bold: bool = False,
    middle: bool = False,
) -> str:
    width = len(text) * size * (0.61 if family == MONO else 0.56 if bold else 0.53)
    if width > room:
        raise Misfit(f"{text!r} is about {width:.0f} wide, and there is room for {room:.0f}")
    weight = ' font-weight="600"' if bold else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return (
        f'<text x="{place[0]:g}" y="{place[1]:g}" font-family="{family}" font-size="{size:g}"{weight} '
        f'fill="{colour}"{anchor}>{escape(text)}</text>'
    )


def main() -> int:
    drawn = every_diagram()
    for diagram in drawn:
        (PLACE / f"{diagram.name}.svg").write_text(draw(diagram))
    print(f"diagrams: {len(drawn)} in {PLACE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
