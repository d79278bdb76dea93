"""Problems of a file, each with its position, and one error that reports them all."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from shlex import quote
from typing import Any

import msgspec

from proofbox.core.canonical import CanonicalError
from proofbox.core.parsing.toml import TomlRefused
from proofbox.core.spec_files.positions import Path, Position
from proofbox.errors import ProofboxError, SuiteInvalid

MAX_PROBLEMS = 100
"""The maximum number reported per file."""

KINDS = ("suite", "campaign", "plan")
"""The kinds of files, each named by its first table, with a command of the same name."""

# `parse_toml` rarely reports a position for these; the patterns find it.
_LONG_NUMBER = re.compile(r"[0-9][0-9_]{1000,}")
_DEEP = re.compile(r"(?:[\[{]\s*(?:[\w\"'.-]+\s*=\s*)?){20}")


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem and its position."""

    message: str
    """What is wrong."""
    line: int = 0
    """Line number, from 1; absent if unknown."""
    column: int = 0
    """Column number, from 1."""
    fix_hint: str = ""
    """How to fix it; absent if the message says it."""

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        return f"{place}{self.message}" + (f" ({self.fix_hint})" if self.fix_hint else "")


class Problems:
    """Collects the problems of one file. `positions` maps keys to positions, None for JSON. `values` is the parsed
    file, valid or not: the tables of an array are referred to by their ids."""

    def __init__(self, positions: Mapping[Path, Position] | None, values: Mapping[str, Any] | None = None) -> None:
        self._positions = positions
        self._values = values or {}
        self.found: list[Problem] = []

    @property
    def enough(self) -> bool:
        return len(self.found) >= MAX_PROBLEMS

    def add(self, path: Path, message: str, hint: str = "") -> None:
        """Report a problem with the value at `path`, at its position or that of the nearest enclosing value."""
        problem = Problem(message, *self._place(path), hint)
        if not self.enough and problem not in self.found:
            self.found.append(problem)

    def shown(self, path: Path) -> str:
        """Describe a path in words: `verify.commands[0] of mission 'answer'`."""
        rest, name = path[2:], self._named(path)
        if name is None:
            return shown(path)
        return f"{shown(rest)} of {path[0]} {name!r}" if rest else f"{path[0]} {name!r}"

    def _named(self, path: Path) -> str | None:
        """Return the id of the table of an array that the path leads into."""
        match path[:2]:
            case (str(array), int(number)):
                tables = self._values.get(array)
                table = tables[number] if isinstance(tables, list) and number < len(tables) else None
                name = table.get("id") if isinstance(table, dict) else None
                return name[:80] if isinstance(name, str) else None
        return None

    def _place(self, path: Path) -> Position:
        if self._positions is None:
            return Position(0, 0)
        enclosing = (path[:n] for n in range(len(path), 0, -1))
        return next((self._positions[each] for each in enclosing if each in self._positions), Position(1, 1))


def shown(path: Path) -> str:
    """Format a path as people write it: `mission[0].verify`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in path).lstrip(".")


def toml_problem(error: tomllib.TOMLDecodeError, text: str) -> Problem:
    """Return why text is not TOML, with the position."""
    message = re.sub(r" \(at .*\)$", "", str(error))
    if found := re.search(r"\(at line (\d+), column (\d+)\)", str(error)):
        return Problem(message, int(found[1]), int(found[2]))
    if isinstance(error, TomlRefused):
        culprit = _LONG_NUMBER.search(text) or _DEEP.search(text)
        found_at = culprit.start() if error.at is None and culprit else error.at or 0
        return Problem(message, *position(text, found_at))
    return Problem(message, *position(text, len(text)))


def json_problem(error: CanonicalError, text: str) -> Problem:
    """Return why text is not JSON, with the position if known."""
    found = re.search(r" at character (\d+)$", str(error))
    return Problem(str(error)[: found.start()], *position(text, int(found[1]))) if found else Problem(str(error))


def position(text: str, offset: int) -> Position:
    return Position(text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1)


def invalid(
    name: str, problems: list[Problem], kind: type[ProofboxError] = SuiteInvalid, op: str = "suite"
) -> ProofboxError:
    """Return one error for all problems, in the order of the file."""
    problems = sorted(problems, key=lambda problem: (problem.line, problem.column))
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    first = msgspec.structs.replace(problems[0], fix_hint="")  # the hint is among the others
    return kind(
        f"{name}:{first}{more}",
        op=op,
        fix_hints=list(dict.fromkeys(problem.fix_hint for problem in problems if problem.fix_hint))[:5],
        details={"problems": msgspec.to_builtins(problems)},
    )


def refuse_other_kind(
    name: str, values: Mapping[str, Any], problems: Problems, wanted: str, kind: type[ProofboxError] = SuiteInvalid
) -> None:
    """Raise the error with the right command if the file is of another kind, such as a campaign given as a suite."""
    other = next((each for each in KINDS if each in values), None)
    if wanted in values or other is None:
        return
    problems.add((other,), f"this is a {other}, not a {wanted}", f"proofbox {other} run {quote(name)}")
    raise invalid(name, problems.found, kind, wanted)
