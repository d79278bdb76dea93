"""Parse a Markdown page as a program: blocks to run, files to write, and blocks to skip.

Recognized syntax, each at the start of a line:

    ```console                  run the `$` lines; the lines after one are its expected output
    ```python                   run it
    ```toml title="suite.toml"  any language with a title: a file to write
    <!-- not run: needs … -->   directly before a block: skip it, for this reason

In expected output, `…` matches any part of a line, and a line of only `…` matches any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"^(?P<marks>`{3,})(?P<language>[\w-]*)(?P<more>[^\n`]*)\n(?P<body>.*?)^(?P=marks)[ \t]*$", re.DOTALL | re.MULTILINE
)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^\n]+?) -->\s*\Z")
TITLE = re.compile(r'title="(?P<path>[^"]+)"')
TOUR = re.compile(r"<!-- tour -->\n(.*?)<!-- /tour -->", re.DOTALL)
ANYTHING = "…"
READ_ALONE = ("diff", "json", "text", "toml", "yaml")
RUN_ELSEWHERE = re.compile(r"\./scripts/(?:demo|test)\b")
"""Commands that are tested elsewhere: the demo has its own test, and a test cannot run all tests."""


class Block(NamedTuple):
    """One fenced block of a page, with the prose before it."""

    prose: str
    language: str
    title: str | None
    body: str
    line: int
    not_run: str | None

    @property
    def runs(self) -> bool:
        return self.language in ("console", "python") and self.title is None and self.not_run is None


class Step(NamedTuple):
    """One command and its expected output."""

    command: str
    expected: str


def blocks(text: str) -> Iterator[Block]:
    at = 0
    for found in FENCE.finditer(text):
        prose = text[at : found.start()]
        reason = NOT_RUN.search(prose)
        title = TITLE.search(found["more"])
        yield Block(
            prose,
            found["language"],
            title["path"] if title else None,
            found["body"],
            text.count("\n", 0, found.start()) + 1,
            reason["reason"] if reason else None,
        )
        at = found.end()


def tour_of(text: str) -> str:
    """Return the marked tour of a page, or the whole page if no part is marked."""
    found = TOUR.search(text)
    return found[1] if found else text


def steps(body: str) -> list[Step]:
    """Return the commands of a console block. A line that begins with `> ` continues the previous line."""
    found: list[Step] = []
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        commands = [lines.pop(0)]
        while lines and re.match(r">( |$)", lines[0]):
            commands.append(lines.pop(0)[2:] or "\n")
        found.append(Step("".join(commands).rstrip("\n"), "".join(lines)))
    return found


def agrees(expected: str, output: str) -> bool:
    """Return whether the output matches the expected output."""
    pattern = "".join(
        r"(?:[^\n]*\n)*" if line.strip() == ANYTHING else _pattern(line) for line in expected.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, output) is not None


def _pattern(line: str) -> str:
    return r"[^\n]*".join(re.escape(part) for part in line.split(ANYTHING))


def faults(page: Path, text: str) -> Iterator[str]:
    """Report commands on a page that no test would run, or that could not fail."""
    fenced = FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines = ["", *fenced.splitlines()]
    for number, (before, line) in enumerate(pairwise(lines), 1):
        if not before.strip() and re.match(r"(?: {4}|\t)\s*\S", line):
            yield f"{page}:{number}: an indented block; use console for commands, or text: {line.strip()}"
        if re.match(r"\s*```", line):
            yield f"{page}:{number}: a fence is unterminated or not at the start of a line"
    for block in blocks(text):
        place = f"{page}:{block.line}"
        if block.language not in ("console", "python", *READ_ALONE) and block.title is None:
            yield f"{place}: {block.language or 'no language'!r}; use console for commands, or text"
        if block.language not in ("console", "python") and block.not_run:
            yield f"{place}: `not run` before a block that is never run"
        if block.not_run and not block.not_run.startswith("needs "):
            yield f"{place}: `not run` must say what the block needs: {block.not_run}"
        if block.language == "text" and re.search(r"^(?:\$|proofbox) ", block.body, re.MULTILINE):
            yield f"{place}: commands in a text block; use console"
        if block.language == "console" and not block.body.startswith("$ "):
            yield f"{place}: a console block must begin with `$ `"
        if block.language == "console":
            for step in steps(block.body):
                if step.expected.strip() == ANYTHING:
                    yield f"{place}: no output is shown for `{step.command}`"
