"""The options and arguments of a command, read from the signature of its function.

A command declares a parameter as `Annotated[TYPE, Parameter(name="--flag", help="…")]`. Keyword-only parameters are
options, other parameters are arguments, and `*argv` is a command line after `--`. A frozen `msgspec.Struct` of options
that several commands share is declared with `Parameter(name="*")`. TYPE is bool (an option without a value), str, int,
float, Path, a Literal of strings, one of these `| None`, or `tuple[str, ...]` for an option that may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

HAS_ARGV = 0x04  # in a code object's flags: the function accepts `*argv`
NO_DEFAULT: Any = object()
InputKind = Literal["flag", "argument", "command"]


class Parameter:
    """What a signature states about a parameter in addition to its type and default."""

    __slots__ = ("allow_leading_hyphen", "converter", "help", "names")

    def __init__(
        self,
        *,
        name: str | list[str] = "",
        help: str = "",
        converter: Callable[[str], object] | None = None,
        allow_leading_hyphen: bool = False,
    ) -> None:
        names = name.split() if isinstance(name, str) else name
        self.names = tuple(sorted(names, key=lambda each: not each.startswith("--")))
        """The option's names, long names first; `*` for a struct of options."""
        self.help = help
        self.converter = converter
        """Converts the text of a value, or raises ValueError with the reason. Default: the converter of the type."""
        self.allow_leading_hyphen = allow_leading_hyphen
        """Whether the option's value may look like another option."""


class CommandInput:
    """One option or argument that a command accepts."""

    __slots__ = ("choices", "declared", "default", "group", "key", "kind", "repeated", "type")

    def __init__(self, key: str, kind: InputKind, hint: Any, default: Any, *, group: str = "") -> None:
        self.key = key
        """The parameter's name in the function or in the struct."""
        self.kind = kind
        """`command` is the command line after `--`."""
        self.group = group
        """The function's parameter that takes the struct, if the option is a member of one."""
        self.default = default
        self.declared = declared(hint)
        self.type, self.repeated, self.choices = _type(plain(hint))

    @property
    def required(self) -> bool:
        return self.default is NO_DEFAULT and self.kind != "command"

    @property
    def name(self) -> str:
        """`--timeout` for an option, `SPEC` for an argument."""
        if self.kind == "flag":
            return self.declared.names[0]
        return "COMMAND" if self.kind == "command" else self.key.upper()


class CommandSignature:
    """Everything that a command accepts."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.groups: dict[str, Callable[..., Any]] = {}
        """The structs of options that the function takes, by parameter."""
        self.inputs = tuple(self._read(function))
        """The options and arguments, in the order of the signature."""

    def _read(self, function: Callable[..., Any]) -> Iterator[CommandInput]:
        code, hints = function.__code__, get_type_hints(function, include_extras=True)
        last = code.co_argcount + code.co_kwonlyargcount
        arguments, options = code.co_varnames[: code.co_argcount], code.co_varnames[code.co_argcount : last]
        defaults = dict(zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False))
        defaults |= function.__kwdefaults__ or {}
        for key in arguments:
            yield CommandInput(key, "argument", hints[key], defaults.get(key, NO_DEFAULT))
        if code.co_flags & HAS_ARGV:
            yield CommandInput(code.co_varnames[last], "command", str, NO_DEFAULT)
        for key in options:
            if declared(hints[key]).names == ("*",):
                self.groups[key] = plain(hints[key])
                yield from _members(key, plain(hints[key]))
            else:
                yield CommandInput(key, "flag", hints[key], defaults.get(key, NO_DEFAULT))


def _members(group: str, kind: type[Struct]) -> Iterator[CommandInput]:
    defaults = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
    for key, hint in get_type_hints(kind, include_extras=True).items():
        yield CommandInput(key, "flag", hint, defaults.get(key, NO_DEFAULT), group=group)


def declared(hint: Any) -> Parameter:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Parameter)), _UNDECLARED)


def plain(hint: Any) -> Any:
    """Return the type without its `Annotated`."""
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


_UNDECLARED = Parameter()
_TYPES = {bool: "switch", int: "integer", float: "number", str: "text", Path: "path"}


def _type(hint: Any) -> tuple[str, bool, tuple[str, ...]]:
    """Return the name of a type, whether it may be given several times, and the values it accepts."""
    origin, inner = get_origin(hint), [each for each in get_args(hint) if each not in (type(None), Ellipsis)]
    if origin is tuple:
        return _type(inner[0])[0], True, ()
    if origin in (Union, UnionType):
        return _type(inner[0])
    if origin is Literal:
        return "text", False, tuple(inner)
    return _TYPES[hint], False, ()
