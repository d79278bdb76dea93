"""Reading a suite's file: everything that is wrong with it, each with line, column and what may have been meant."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path as FilePath
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.digest import digest_of
from proofbox.core.nearest import nearest
from proofbox.errors import NotFoundError
from proofbox.lab.meaning import check_meaning, check_values
from proofbox.lab.positions import Path, read_toml
from proofbox.lab.problems import Problem, Problems, invalid, json_problem, shown, toml_problem
from proofbox.lab.spec import Document, Mission, SuiteFields
from proofbox.lab.textfiles import Absent, Unreadable, read_text

SIZE_LIMIT = 4 << 20


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
        text = read_text(path, SIZE_LIMIT)
    except Absent as why:
        raise NotFoundError(f"{path} {why}", op="suite", fix_hints=["check the path"]) from None
    except Unreadable as why:
        raise invalid(str(path), [Problem(f"it {why}", why.line, min(why.line, 1))]) from None
    return parse_suite(text, base=path.parent, name=str(path), json=path.suffix == ".json")


def parse_suite(
    text: str, *, base: FilePath, name: str = "suite", json: bool = False, pinned: FilePath | None = None
) -> Suite:
    """From its text. With `pinned` the files it names were found, and copied there, before."""
    try:
        values, positions = (parse_strict(text.encode()), None) if json else read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise invalid(name, [toml_problem(error, text)]) from None
    except CanonicalError as error:
        raise invalid(name, [json_problem(error, text)]) from None
    problems = Problems(positions)
    check_values(values, problems)
    if not problems.found:
        _Checker(problems).visit(Document, values, ())
    if not problems.found:
        document = msgspec.convert(_with_defaults(values), Document)
        check_meaning(document, base if pinned is None else None, problems)
    if problems.found:
        raise invalid(name, problems.found)
    return Suite(
        fields=document.suite,
        missions=document.mission,
        base=base,
        sha256=digest_of(msgspec.to_builtins(document)),
        source=text,
        pinned=pinned,
    )


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    defaults = values.get("defaults", {})
    return {**values, "mission": [{**defaults, **mission} for mission in values["mission"]]}


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(struct)}


class _Checker:
    """Holds parsed values against the types of `spec.py`, and finds all that does not fit, not the first alone."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def visit(self, kind: Any, value: Any, path: Path) -> None:
        bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        options = get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,)
        struct = next((each for each in options if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)
        many = next((each for each in options if get_origin(each) is tuple and get_args(each)[1:] == (...,)), None)
        if struct is not None and isinstance(value, dict):
            self._struct(struct, value, path)
        elif many is not None and isinstance(value, list) and value:
            for number, each in enumerate(value):
                if self._problems.enough:
                    return
                self.visit(get_args(many)[0], each, (*path, number))
        else:
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                self._problems.say(path, f"{shown(path) or 'the suite'}: {error}")

    def _struct(self, struct: type[msgspec.Struct], value: dict[str, Any], path: Path) -> None:
        fields = _fields(struct)
        for name in value:
            if name not in fields and not self._problems.enough:
                self._problems.say(
                    (*path, name), f"{shown(path) or 'a suite'} has no field {name[:80]!r}", nearest(name, fields)
                )
        for name, field in fields.items():
            if name in value:
                self.visit(field.type, value[name], (*path, name))
            elif field.required:
                self._problems.say(path, f"{shown(path) or 'the suite'} needs {name!r}")
