"""What is wrong with a suite or a task: each thing with its place, and all of them as one error."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from proofbox.core.canonical import CanonicalError
from proofbox.core.toml import TomlRefused
from proofbox.errors import SuiteInvalid
from proofbox.lab.suite.positions import Path, Position

MOST = 100
"""Of one file. A program that wrote it has told enough by then, and people have long stopped reading."""

# What `parse_toml` refuses has seldom a place of its own: these find it.
_LONG_NUMBER = re.compile(r"[0-9][0-9_]{1000,}")
_DEEP = re.compile(r"(?:[\[{]\s*(?:[\w\"'.-]+\s*=\s*)?){20}")


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong, and where."""

    message: str
    """What is wrong."""
    line: int = 0
    """In the file, from 1; absent: not known."""
    column: int = 0
    """In that line, from 1."""
    fix_hint: str = ""
    """What to do about it; absent: the message says it all."""

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        return f"{place}{self.message}" + (f" ({self.fix_hint})" if self.fix_hint else "")


class Problems:
    """Those of one file, as they are found. `positions` say where each key stands; none for what is no TOML. `values`
    are what it says, whatever that is: missions are called by their names."""

    def __init__(self, positions: Mapping[Path, Position] | None, values: Mapping[str, Any] | None = None) -> None:
        self._positions = positions
        self._missions = (values or {}).get("mission")
        self.found: list[Problem] = []

    @property
    def enough(self) -> bool:
        return len(self.found) >= MOST

    def say(self, path: Path, message: str, hint: str = "") -> None:
        """A complaint about what stands at `path`, or the nearest thing around it that has a place."""
        problem = Problem(message, *self._place(path), hint)
        if not self.enough and problem not in self.found:
            self.found.append(problem)

    def shown(self, path: Path) -> str:
        """What stands at `path`, in words: `verify.commands[0] of mission 'answer'`."""
        rest, name = path[2:], self._mission(path)
        if name is None:
            return shown(path)
        return f"{shown(rest)} of mission {name!r}" if rest else f"mission {name!r}"

    def _mission(self, path: Path) -> str | None:
        match path[:2], self._missions:
            case ("mission", int(number)), list(missions) if isinstance(missions[number], dict):
                name = missions[number].get("id")
                return name[:80] if isinstance(name, str) else None
        return None

    def _place(self, path: Path) -> Position:
        if self._positions is None:
            return Position(0, 0)
        around = (path[:n] for n in range(len(path), 0, -1))
        return next((self._positions[each] for each in around if each in self._positions), Position(1, 1))


def shown(path: Path) -> str:
    """A path as people write it: `mission[0].verify`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in path).lstrip(".")


def toml_problem(error: tomllib.TOMLDecodeError, text: str) -> Problem:
    """Why a text is no TOML, at its place."""
    message = re.sub(r" \(at .*\)$", "", str(error))
    if found := re.search(r"\(at line (\d+), column (\d+)\)", str(error)):
        return Problem(message, int(found[1]), int(found[2]))
    if isinstance(error, TomlRefused):
        culprit = _LONG_NUMBER.search(text) or _DEEP.search(text)
        found_at = culprit.start() if error.at is None and culprit else error.at or 0
        return Problem(message, *position(text, found_at))
    return Problem(message, *position(text, len(text)))


def json_problem(error: CanonicalError, text: str) -> Problem:
    """Why a text is no JSON, at its place where that is known."""
    found = re.search(r" at character (\d+)$", str(error))
    return Problem(str(error)[: found.start()], *position(text, int(found[1]))) if found else Problem(str(error))


def position(text: str, offset: int) -> Position:
    return Position(text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1)


def invalid(name: str, problems: list[Problem]) -> SuiteInvalid:
    """The error for all of them, in the order of the file."""
    problems = sorted(problems, key=lambda problem: (problem.line, problem.column))
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return SuiteInvalid(
        f"{name}:{problems[0]}{more}",
        op="suite",
        fix_hints=[problem.fix_hint for problem in problems if problem.fix_hint][:5],
        details={"problems": msgspec.to_builtins(problems)},
    )
