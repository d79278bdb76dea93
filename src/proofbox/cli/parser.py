"""Bind the words of a command line to the parameters of a command's function.

Options are accepted before, between and after arguments, as `--name VALUE`, `--name=VALUE`, `-n VALUE` or `-nVALUE`.
All words after the first `--` are arguments. A word that starts with a hyphen is an option, unless it is a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import length_hint
from pathlib import Path
from typing import Any

from proofbox.cli.parameters import CommandInput, CommandSignature
from proofbox.core.nearest import nearest
from proofbox.errors import UsageError

CONVERTERS: dict[str, Callable[[str], object]] = {"text": str, "integer": int, "number": float, "path": Path}
LONGEST_HINT = 200
NOUNS = {"integer": "an integer", "number": "a number", "path": "a path"}


def bind(signature: CommandSignature, words: Sequence[str], path: str = "") -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments and keyword arguments to call the command's function with. `path` names it in hints."""
    options, arguments = _split(signature, words, path)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    members: dict[str, dict[str, Any]] = {group: {} for group in signature.groups}
    for each in signature.inputs:
        if each.kind == "command":
            positional += arguments
            arguments = []
        elif each.kind == "argument" and arguments:
            positional.append(_convert(each, arguments.pop(0)))
        elif each in options:
            values = [True if text is None else _convert(each, text) for text in options[each]]
            target = members[each.group] if each.group else named
            target[each.key] = tuple(values) if each.repeated else values[0]
        elif each.required:
            raise UsageError(f"{each.name} is required", op="usage")
    if arguments:
        raise UsageError(f"unexpected arguments: {', '.join(map(quoted, arguments))[:200]}", op="usage")
    return positional, named | {group: kind(**members[group]) for group, kind in signature.groups.items()}


def _split(
    signature: CommandSignature, words: Sequence[str], path: str
) -> tuple[dict[CommandInput, list[str | None]], list[str]]:
    """Return the options with their values (None for one without a value), and the arguments."""
    known = {name: each for each in signature.inputs if each.kind == "flag" for name in each.declared.names}
    found: dict[CommandInput, list[str | None]] = {}
    arguments: list[str] = []
    positional = [each.kind for each in signature.inputs if each.kind != "flag"]
    before = positional.index("command") if "command" in positional else None
    begins: int | None = None
    pending = iter(words)
    for word in pending:
        if word == "--":
            arguments += pending
        elif not _looks_like_option(word):
            if begins is None and len(arguments) == before:
                begins = len(words) - length_hint(pending) - 1
            arguments.append(word)
        else:
            hints = [] if begins is None else [_after_dashes(path, words, begins)]
            name, value = _name_and_value(word, known, hints)
            option = known[name]
            if option.type == "switch":
                if value is not None:
                    raise UsageError(f"{name} does not take a value", op="usage")
            elif value is None:
                value = next(pending, "--")
                if value == "--" or (_looks_like_option(value) and not option.declared.allow_leading_hyphen):
                    raise UsageError(f"{name} requires a value", op="usage")
            if option in found and not option.repeated:
                raise UsageError(f"{name} was given more than once", op="usage")
            found.setdefault(option, []).append(value)
    return found, arguments


def _looks_like_option(word: str) -> bool:
    if not word.startswith("-"):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _after_dashes(path: str, words: Sequence[str], begins: int) -> str:
    from shlex import join

    line = join(["proofbox", *path.split(), *words[:begins], "--", *words[begins:]])
    return "put the command after --: " + (line if len(line) <= LONGEST_HINT else f"proofbox {path} -- COMMAND")


def _name_and_value(word: str, known: dict[str, CommandInput], hints: Sequence[str] = ()) -> tuple[str, str | None]:
    if word in known:
        return word, None
    name, equals, value = word.partition("=")
    if equals and name in known:
        return name, value
    if word[:2] in known and known[word[:2]].type != "switch":
        return word[:2], word[2:]
    raise UsageError(f"unknown option {quoted(name)} ({nearest(name[:80], known)})", op="usage", fix_hints=hints)


def _convert(declared: CommandInput, text: str) -> object:
    if declared.choices and text not in declared.choices:
        raise UsageError(f"{declared.name}: {quoted(text)} is not one of {', '.join(declared.choices)}", op="usage")
    convert = declared.declared.converter
    try:
        return (convert or CONVERTERS[declared.type])(text)
    except ValueError as error:
        reason = error if convert else f"{quoted(text)} is not {NOUNS[declared.type]}"
        raise UsageError(f"{declared.name}: {reason}", op="usage") from None


def quoted(word: str) -> str:
    return repr(word[:80])
