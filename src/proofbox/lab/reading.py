"""Reading a suite's file: everything that is wrong with it, each with line, column and what may have been meant."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path as FilePath
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.digest import digest_of
from proofbox.core.nearest import nearest
from proofbox.core.toml import parse_toml
from proofbox.errors import NotFoundError, ProofboxError, SuiteInvalid
from proofbox.lab.positions import Path, Position, key_positions
from proofbox.lab.spec import Command, Document, Mission, SuiteFields
from proofbox.workspace.capabilities.grants import PRESETS
from proofbox.workspace.capabilities.grants import load as load_grants

SIZE_LIMIT = 4 << 20


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


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite that can be run: every mission with the defaults filled in."""

    fields: SuiteFields
    missions: tuple[Mission, ...]
    base: FilePath
    """Where relative paths start."""
    sha256: str
    """Of the meaning, not the spelling: two files that say the same have the same."""
    source: str
    pinned: FilePath | None = None
    """The directory with copies of what it names, made when a run was planned."""

    @property
    def id(self) -> str:
        return self.fields.id

    @property
    def not_comparable(self) -> dict[str, tuple[str, ...]]:
        """Missions whose results must not be set beside those of the system they were written for, and why."""
        found = {each.id: each.origin.not_comparable for each in self.missions if each.origin is not None}
        return {id: reasons for id, reasons in found.items() if reasons}

    def mission(self, id: str) -> Mission:
        return next(mission for mission in self.missions if mission.id == id)

    def at(self, path: str) -> FilePath:
        """Where something is that the suite names: as it was when the run was planned, once one is."""
        return self.base / path if self.pinned is None else self.pinned / pinned_name(path)

    def prompt_of(self, mission: Mission) -> str:
        if mission.prompt is not None:
            return mission.prompt
        return self.at(mission.prompt_file or "").read_text("utf-8")


def pinned_name(path: str) -> str:
    """What the copy of something is called: a suite may name it by any path, upwards too."""
    return digest_of(path)[:32]


def read_suite(path: FilePath) -> Suite:
    """The suite, or `SuiteInvalid` with every problem found in it."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
        if len(data) > SIZE_LIMIT:
            raise SuiteInvalid(f"{path} is larger than {SIZE_LIMIT >> 20} MiB", op="suite")
        text = data.decode("utf-8")
    except OSError as error:
        raise NotFoundError(
            f"{path} can't be read: {error.strerror}", op="suite", fix_hints=["check the path"]
        ) from None
    except UnicodeDecodeError as error:
        raise SuiteInvalid(f"{path} is not UTF-8: byte {error.start}", op="suite") from None
    return parse_suite(text, base=path.parent, name=str(path), json=path.suffix == ".json")


def parse_suite(
    text: str, *, base: FilePath, name: str = "suite", json: bool = False, pinned: FilePath | None = None
) -> Suite:
    """From its text. With `pinned` the files it names were found, and copied there, before."""
    positions: dict[Path, Position] = {}
    try:
        if json:
            values = parse_strict(text.encode())
        else:
            values = parse_toml(text)
            positions = key_positions(text)
    except tomllib.TOMLDecodeError as error:
        raise invalid(name, [toml_problem(error)]) from None
    except CanonicalError as error:
        raise invalid(name, [Problem(str(error))]) from None
    checker = _Checker(positions)
    checker.visit(Document, values, ())
    if checker.problems:
        raise invalid(name, checker.problems)
    document = msgspec.convert(_with_defaults(values), Document)
    _check_meaning(document, base if pinned is None else None, checker)
    if checker.problems:
        raise invalid(name, checker.problems)
    return Suite(
        fields=document.suite,
        missions=document.mission,
        base=base,
        sha256=digest_of(msgspec.to_builtins(document)),
        source=text,
        pinned=pinned,
    )


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a suite's file."""
    schema = msgspec.json.schema(Document)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "proofbox suite", **schema}


def toml_problem(error: tomllib.TOMLDecodeError) -> Problem:
    found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
    line, column = (int(found[1]), int(found[2])) if found else (0, 0)
    return Problem(re.sub(r" \(at .*\)$", "", str(error)), line, column)


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


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    defaults = values.get("defaults", {})
    return {**values, "mission": [{**defaults, **mission} for mission in values["mission"]]}


class _Checker:
    """Holds parsed values against the types of `spec.py`, and finds all that does not fit, not the first alone."""

    def __init__(self, positions: dict[Path, Position]) -> None:
        self._positions = positions
        self.problems: list[Problem] = []

    def say(self, path: Path, message: str, hint: str = "") -> None:
        """A complaint about what stands at `path`, or the nearest thing around it that has a place."""
        place = next((self._positions[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._positions), None)
        line, column = place or (0, 0)
        self.problems.append(Problem(message, line, column, hint))

    def visit(self, kind: Any, value: Any, path: Path) -> None:
        bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        options = get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,)
        struct = next((each for each in options if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)
        many = next((each for each in options if get_origin(each) is tuple and get_args(each)[1:] == (...,)), None)
        if struct is not None and isinstance(value, dict):
            self._struct(struct, value, path)
        elif many is not None and isinstance(value, list) and value:
            for number, each in enumerate(value):
                self.visit(get_args(many)[0], each, (*path, number))
        else:
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                self.say(path, f"{_shown(path) or 'the suite'}: {error}")

    def _struct(self, struct: type[msgspec.Struct], value: dict[str, Any], path: Path) -> None:
        fields = {field.name: field for field in msgspec.structs.fields(struct)}
        for name in value:
            if name not in fields:
                self.say(
                    (*path, name), f"{_shown(path) or 'a suite'} has no field {name[:80]!r}", nearest(name, fields)
                )
        for name, field in fields.items():
            if name in value:
                self.visit(field.type, value[name], (*path, name))
            elif field.required:
                self.say(path, f"{_shown(path) or 'the suite'} needs {name!r}")


def _check_capabilities(
    document: Document, mission: Mission, base: FilePath | None, checker: _Checker, at: Path
) -> None:
    """They say what the network is, so nothing else may; and they bind one workspace, so a box must have one."""
    if mission.network is not None:
        checker.say(at, "capabilities say what can be reached, and so does network", "leave one of them out")
    if document.suite.isolation == "shared":
        checker.say(at, "a process that attempts share can't be held to one's capabilities", 'isolation = "process"')
    if base is not None and mission.capabilities is not None:
        try:
            load_grants(mission.capabilities if mission.capabilities in PRESETS else base / mission.capabilities)
        except ProofboxError as error:
            checker.say(at, f"{mission.capabilities!r}: {error.message}", f"presets: {', '.join(PRESETS)}")


def _check_meaning(document: Document, base: FilePath | None, checker: _Checker) -> None:
    """What types can't say: names that are taken, files that aren't there, patterns that are none."""
    seen: set[str] = set()
    for number, mission in enumerate(document.mission):
        at: Path = ("mission", number)
        if mission.id in seen:
            checker.say((*at, "id"), f"there are two missions {mission.id!r}", "give each its own id")
        seen.add(mission.id)
        if (mission.prompt is None) == (mission.prompt_file is None):
            checker.say(
                at, f"mission {mission.id!r} needs one of prompt and prompt_file", "say what the agent is to do"
            )
        for field, value in (
            ("prompt_file", mission.prompt_file),
            ("workspace", mission.workspace),
            ("solution", mission.solution),
            ("verify.files", mission.verify.files),
            *(("files", each) for each in mission.files.values()),
            *(("verify.mounts", each) for each in mission.verify.mounts.values()),
        ):
            path = (*at, *field.split("."))
            if value is not None and base is not None and not (base / value).exists():
                checker.say(path, f"{value!r} is not there", f"paths start at {base}")
        if mission.capabilities is not None:
            _check_capabilities(document, mission, base, checker, (*at, "capabilities"))
        for place in mission.files:
            if place.startswith("/") or ".." in place.split("/"):
                checker.say((*at, "files"), f"{place!r} is no place in the workspace", "write it from its root")
        patterns: list[tuple[Path, str | None]] = [((*at, "expect", "result"), mission.expect.result)]
        for field in ("commands", "no_commands"):
            patterns += [((*at, "expect", field, n), each) for n, each in enumerate(getattr(mission.expect, field))]
        patterns += [
            ((*at, "verify", "commands", n, "stdout"), each.stdout)
            for n, each in enumerate(mission.verify.commands)
            if isinstance(each, Command)
        ]
        for path, pattern in patterns:
            try:
                re.compile(pattern or "")
            except re.error as error:
                checker.say(path, f"{_shown(path)} is no regular expression: {error}")


def _shown(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
