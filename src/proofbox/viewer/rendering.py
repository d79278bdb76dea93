"""Render pages with Jinja2: everything is escaped, and a page links only to other pages of the viewer.

The same templates make the pages of the server and the exported file. They differ in two places: links, and panes,
which show evidence. The server fills a pane with text that was verified when it was read. In an export, the browser
fills it, from embedded bytes whose digest matches the embedded index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

from proofbox.core.text import preview, printable
from proofbox.delivery.backend.style import base_style
from proofbox.lab.reports.campaigns.results import FlowReport
from proofbox.viewer.ansi import styled
from proofbox.viewer.attempts import MAX_TEXT, verify_command
from proofbox.viewer.timeline import duration

Mode = Literal["server", "export"]
SYMBOLS: Final = {
    "passed": "✓",
    "ok": "✓",
    "success": "✓",
    "valid": "✓",
    "failed": "✗",
    "failure": "✗",
    "invalid": "✗",
    "unverified": "○",
    "unknown": "○",
    "none": "○",
    "infra": "▲",
    "repaired": "▲",
    "writing": "…",
    "running": "…",
    "interrupted": "▲",
    "checking": "…",
    "mixed": "◐",
}
STYLE: Final = "viewer.css"
ASSETS: Final = (STYLE, "viewer.js", "htmx.min.js", "evidence.js", "icon.svg")
LABELS: Final = {"runtime_reported": "agent-reported", "observed": "observed", "gateway": "gateway"}


class Renderer:
    """Renders templates for the server, or for an export."""

    def __init__(self, mode: Mode = "server") -> None:
        self._environment = _environment(mode)

    def render(self, template: str, /, **values: Any) -> Markup:
        text = self._environment.get_template(template).render(**values)
        # Names of files that are not UTF-8 have characters that cannot be encoded.
        return Markup(text.encode("utf-8", "backslashreplace").decode())  # noqa: S704 (autoescaped)


@cache
def _environment(mode: Mode) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("proofbox.viewer", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        mode=mode,
        url=address if mode == "server" else anchor,
        symbols=SYMBOLS,
        labels=LABELS,
        asset=asset_url,
        verify_command=verify_command,
    )
    environment.tests["pasteable"] = is_pasteable
    environment.filters.update(
        visible=visible,
        cut=cut,
        plain=printable,
        terminal=terminal,
        diff=diff_lines,
        bytes=size,
        ms=duration,
        percent=percent,
        spent=spent,
        points=points,
    )
    for name in environment.list_templates():  # compiled now, and not while the first page waits
        environment.get_template(name)
    return environment


def address(page: str, /, **parameters: Any) -> str:
    """Return the address of a page, relative to the other pages."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{page}?{urlencode(given, errors='surrogateescape')}" if given else page


def anchor(page: str, /, **parameters: Any) -> str:
    """Return the place of a page in the exported file."""
    return "#" + "/".join([page, *(str(value) for value in parameters.values())])


def visible(text: object) -> str:
    """Return text from an agent with control and invisible characters shown; for one line."""
    return printable(str(text)).replace("\n", "⏎").replace("\t", " ")


def is_pasteable(command: str) -> bool:
    """Return whether a command can be pasted into a shell: it is one line, and nothing in it is invisible."""
    return visible(command) == command


def cut(text: object, length: int = 200) -> str:
    shown = visible(text)
    return shown if len(shown) <= length else shown[:length] + "…"


def terminal(text: str) -> Markup:
    """Return the output of a terminal as markup with classes; its text is escaped."""
    shown, more = preview(text, MAX_TEXT)
    pieces = [
        Markup('<span class="{}">{}</span>').format(piece.classes, piece.text)
        if piece.classes
        else Markup.escape(piece.text)
        for piece in styled(shown)
    ]
    return Markup("").join(pieces) + (Markup('<span class="cut">… cut here</span>') if more else Markup(""))


def diff_lines(text: str) -> Markup:
    """Return a unified diff as markup, each line with the class of its kind."""
    shown, more = preview(text, MAX_TEXT)
    lines = [
        Markup('<span class="{}">{}</span>').format(_line_kind(line), printable(line) or " ")
        for line in shown.removesuffix("\n").split("\n")
    ]
    return Markup("").join(lines) + (Markup('<span class="cut">… cut here</span>') if more else Markup(""))


def _line_kind(line: str) -> str:
    if line.startswith(("+++", "---", "diff ")):
        return "file"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")


def size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f}\N{NO-BREAK SPACE}%"


def spent(flow: FlowReport) -> str:
    """Return the known tokens of all attempts of a flow."""
    if not flow.tokens_unknown:
        return f"{flow.tokens_spent:,}"
    return f"{flow.tokens_spent:,}, {flow.tokens_unknown:,} unknown" if flow.tokens_spent else "unknown"


def points(value: float) -> str:
    """Return a difference of rates in percentage points, with its sign."""
    return f"{value * 100:+.1f}\N{NO-BREAK SPACE}points".replace("-", "\N{MINUS SIGN}")


@cache
def assets() -> Mapping[str, bytes]:
    """Return the style sheet and the scripts by name."""
    folder = files("proofbox.viewer") / "static"
    found = {name: (folder / name).read_bytes() for name in ASSETS}
    return {**found, STYLE: base_style().encode() + found[STYLE]}


def asset_url(name: str) -> str:
    """Return the address of an asset, which changes with its content, so that a browser may keep it."""
    return f"static/{hashlib.sha256(assets()[name]).hexdigest()[:16]}/{name}"
