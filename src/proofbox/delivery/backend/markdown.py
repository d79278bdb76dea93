"""Convert the Markdown subset of our summaries to HTML: headings, lists, tables, quotes, code and bold.

All text is escaped first, and the output only contains fixed tags without attributes. All other markup, such as links,
images and HTML, remains plain text.
"""

from __future__ import annotations

import html
import re

from proofbox.core.text import printable

_CODE = re.compile(r"`([^`\n]{1,1000})`")
_BOLD = re.compile(r"\*\*([^*\n]{1,1000})\*\*")
_CELL = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|(?:-+\|)+")


def to_html(text: str) -> str:
    """Convert Markdown to HTML, one block per run of lines of the same kind."""
    made: list[str] = []
    lines = printable(text).split("\n")
    at = 0
    while at < len(lines):
        kind = _kind(lines[at])
        end = at + 1
        while end < len(lines) and _kind(lines[end]) == kind and kind != "heading":
            end += 1
        made.append(_block(kind, lines[at:end]))
        at = end
    return "".join(made)


def _kind(line: str) -> str:
    if not line.strip():
        return "nothing"
    if line.startswith("## "):
        return "heading"
    if line.startswith("- "):
        return "list"
    if line == ">" or line.startswith("> "):
        return "quote"
    return "table" if line.startswith("|") and line.endswith("|") and len(line) > 2 else "words"


def _block(kind: str, lines: list[str]) -> str:
    if kind == "nothing":
        return ""
    if kind == "heading":
        return f"<h3>{_inline(lines[0][3:])}</h3>"
    if kind == "list":
        return "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>"
    if kind == "quote":
        return f"<blockquote>{'<br>'.join(_inline(line[2:]) for line in lines)}</blockquote>"
    if kind == "table":
        rows = [_CELL.split(line[1:-1]) for line in lines if not _RULE.fullmatch(line)]
        cells = ("".join(f"<td>{_inline(cell.strip())}</td>" for cell in row) for row in rows)
        return "<table><tbody>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</tbody></table>"
    return f"<p>{'<br>'.join(_inline(line) for line in lines)}</p>"


def _inline(text: str) -> str:
    escaped = html.escape(text.replace("\\|", "|"), quote=True)
    # Code first: markup inside code spans has no meaning.
    pieces = _CODE.split(escaped)
    return "".join(
        f"<code>{piece}</code>" if number % 2 else _BOLD.sub(r"<strong>\1</strong>", piece)
        for number, piece in enumerate(pieces)
    )
