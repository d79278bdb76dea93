"""Checks the shape of a file: compares parsed values with the structs that describe it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from proofbox.core.nearest import nearest
from proofbox.core.spec_files.positions import Path
from proofbox.core.spec_files.problems import Problems

Elsewhere = Callable[[type[msgspec.Struct], str], str]


@cache
def fields_of(struct: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    """Return the fields of a struct by name."""
    return {field.name: field for field in msgspec.structs.fields(struct)}


def _words(kind: Any) -> list[Any]:
    """Return the values of a type that allows only some: a `Literal` or an enumeration."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.value for member in kind]
    return list(get_args(kind)) if get_origin(kind) is Literal else []


class Shape:
    """Reports every value that does not fit its type, not only the first.

    `noun` is the kind of file. `elsewhere` returns a hint for a field that is valid in another table.
    """

    def __init__(self, problems: Problems, noun: str, elsewhere: Elsewhere = lambda _struct, _name: "") -> None:
        self._problems = problems
        self._noun = noun
        self._elsewhere = elsewhere

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
                words = [word for each in options for word in _words(each)]
                hint = nearest(value, words) if words and isinstance(value, str) else ""
                self._problems.add(path, f"{self._problems.shown(path) or f'the {self._noun}'}: {error}", hint)

    def _struct(self, struct: type[msgspec.Struct], value: dict[str, Any], path: Path) -> None:
        fields = fields_of(struct)
        for name in value:
            if name not in fields and not self._problems.enough:
                self._problems.add(
                    (*path, name),
                    f"{self._problems.shown(path) or f'a {self._noun}'} has no field {name[:80]!r}",
                    self._elsewhere(struct, name) or nearest(name, fields),
                )
        for name, field in fields.items():
            if name in value:
                self.visit(field.type, value[name], (*path, name))
            elif field.required:
                self._problems.add(path, f"{self._problems.shown(path) or f'the {self._noun}'} needs {name!r}")
