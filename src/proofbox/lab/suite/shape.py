"""Checks the shape of a suite: compares parsed values with the types of `spec.py`."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from proofbox.core.nearest import nearest
from proofbox.lab.suite.positions import Path
from proofbox.lab.suite.problems import Problems
from proofbox.lab.suite.spec import MissionFields, SuiteDocument, SuiteFields


@cache
def _fields(struct: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(struct)}


class Shape:
    """Reports every value that does not fit its type, not only the first."""

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
                words = [word for each in options if get_origin(each) is Literal for word in get_args(each)]
                hint = nearest(value, words) if words and isinstance(value, str) else ""
                self._problems.say(path, f"{self._problems.shown(path) or 'the suite'}: {error}", hint)

    @staticmethod
    def _elsewhere(struct: type[msgspec.Struct], name: str) -> str:
        """Return a hint for a field that is valid in another table, or under another name."""
        if struct is SuiteFields and name == "most":
            return "did you mean max_concurrent?"
        if struct in (SuiteFields, SuiteDocument) and name in _fields(MissionFields):
            return f"write it in [defaults] for every mission, or in a [[mission]]: {name} = ..."
        if struct in (SuiteDocument, MissionFields) and name in _fields(SuiteFields):
            return f"write it in [suite]: {name} = ..."
        return ""

    def _struct(self, struct: type[msgspec.Struct], value: dict[str, Any], path: Path) -> None:
        fields = _fields(struct)
        for name in value:
            if name not in fields and not self._problems.enough:
                self._problems.say(
                    (*path, name),
                    f"{self._problems.shown(path) or 'a suite'} has no field {name[:80]!r}",
                    self._elsewhere(struct, name) or nearest(name, fields),
                )
        for name, field in fields.items():
            if name in value:
                self.visit(field.type, value[name], (*path, name))
            elif field.required:
                self._problems.say(path, f"{self._problems.shown(path) or 'the suite'} needs {name!r}")
