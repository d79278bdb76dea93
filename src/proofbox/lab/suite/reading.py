"""Reads a suite file, and reports all its problems, each with line, column and a suggestion."""

from __future__ import annotations

import tomllib
from pathlib import Path as FilePath
from typing import Any, TypeVar

import msgspec

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.digest import digest_of
from proofbox.core.spec_files.positions import read_toml
from proofbox.core.spec_files.problems import Problem, Problems, invalid, json_problem, refuse_other_kind, toml_problem
from proofbox.core.spec_files.shape import Shape
from proofbox.core.spec_files.text_files import Absent, Unreadable, read_text
from proofbox.errors import NotFoundError
from proofbox.lab.suite.checks import check_meaning, check_values
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.runnable import check_archive, check_mission, check_suite
from proofbox.lab.suite.spec import Mission, MissionFields, SuiteDocument, SuiteFields, other_table

SIZE_LIMIT = 4 << 20
BYTE_ORDER_MARK = "\ufeff"
T = TypeVar("T")


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A suite that can be run: every mission with the defaults filled in."""

    fields: SuiteFields
    missions: tuple[Mission, ...]
    base: FilePath
    """The directory that relative paths start from."""
    sha256: str
    """Digest of the parsed content, independent of formatting."""
    source: str
    pinned: FilePath | None = None
    """The directory with copies of the files that it names, made when a run was planned."""

    @property
    def id(self) -> str:
        return self.fields.id

    @property
    def not_comparable(self) -> dict[str, tuple[str, ...]]:
        """The missions whose results must not be compared with those of the system they were written for, and why."""
        found = {each.id: each.origin.not_comparable for each in self.missions if each.origin is not None}
        return {id: reasons for id, reasons in found.items() if reasons}

    def mission(self, id: str) -> Mission:
        return next(mission for mission in self.missions if mission.id == id)

    def at(self, path: str) -> FilePath:
        """Return the path of a file that the suite names: the pinned copy, once a run is planned."""
        return self.base / path if self.pinned is None else self.pinned / pinned_name(path)

    def prompt_of(self, mission: Mission) -> str:
        if mission.prompt is not None:
            return mission.prompt
        return self.at(mission.prompt_file or "").read_text("utf-8")


def pinned_name(path: str) -> str:
    """Return the name of the copy of a file, derived from its path, which may lead anywhere."""
    return digest_of(path)[:32]


def read_suite(path: FilePath, *, unpacking: bool = False) -> Suite:
    """Read a suite, or raise `SuiteInvalid` with every problem in it; `unpacking` also checks its archives."""
    try:
        text = read_text(path, SIZE_LIMIT)
    except Absent as why:
        raise NotFoundError(f"{path} {why}", op="suite", fix_hints=["check the path"]) from None
    except Unreadable as why:
        raise invalid(str(path), [Problem(f"it {why}", why.line, min(why.line, 1))]) from None
    return parse_suite(text, base=path.parent, name=str(path), json=path.suffix == ".json", unpacking=unpacking)


def parse_suite(
    text: str,
    *,
    base: FilePath,
    name: str = "suite",
    json: bool = False,
    pinned: FilePath | None = None,
    unpacking: bool = False,
) -> Suite:
    """Parse the text of a suite. With `pinned`, its files were checked and copied there before."""
    if text.startswith(BYTE_ORDER_MARK):
        raise invalid(name, [Problem("it starts with a byte order mark", 1, 1, "save it as UTF-8 without one")])
    try:
        values, positions = (parse_strict(text.encode()), None) if json else read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise invalid(name, [toml_problem(error, text)]) from None
    except CanonicalError as error:
        raise invalid(name, [json_problem(error, text)]) from None
    table = values if isinstance(values, dict) else {}
    problems = Problems(positions, table)
    refuse_other_kind(name, table, problems, "suite")
    check_values(values, problems)
    if not problems.found:
        Shape(problems, "suite", other_table).visit(SuiteDocument, values, ())
        _check_parts(table, base if pinned is None else None, problems, unpacking=unpacking)
    if problems.found:
        raise invalid(name, problems.found)
    document = msgspec.convert(_with_defaults(values), SuiteDocument)
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


def _check_parts(values: dict[str, Any], base: FilePath | None, problems: Problems, *, unpacking: bool) -> None:
    """Check the parts that have the right shape, so that a malformed part does not hide problems of the others."""
    suite = _converted(values.get("suite"), SuiteFields)
    defaults = values.get("defaults", {})
    if _converted(defaults, MissionFields) is None:
        defaults = {}
    missions = values.get("mission")
    found: dict[int, Mission] = {}
    for number, each in enumerate(missions if isinstance(missions, list) else ()):
        mission = _converted({**defaults, **each}, Mission) if isinstance(each, dict) else None
        if mission is not None:
            found[number] = mission
    if base is None:  # files were checked when the run was planned; its results must stay readable
        check_meaning(suite, found, None, problems)
        return
    with SuiteFiles(base) as files:
        check_meaning(suite, found, files, problems)
        if suite is not None:
            check_suite(suite, problems)
        for number, mission in found.items():
            if problems.enough:
                return
            check_mission(mission, problems, ("mission", number))
            if unpacking:
                check_archive(mission, files, problems, ("mission", number))


def _converted(value: Any, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
