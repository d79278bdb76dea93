"""All errors form one tree, each with a code and hints, and their messages have one style."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from proofbox import errors
from proofbox.cli import COMMANDS, GROUPS, describe
from proofbox.errors import ProofboxError, SessionUnknown, error_classes

SRC = Path(errors.__file__).resolve().parent.parent
KINDS = {kind.__name__: kind for kind in error_classes()}

# What may begin a message with a capital letter: names, as they are spelled.
NAMES = ("Debian", "Fedora", "Harbor", "Podman", "Ray")
COMMAND = "|".join({command.path.split()[0] for command in COMMANDS})


def test_every_code_has_one_class_and_a_place_in_the_tree() -> None:
    kinds = list(error_classes())
    assert len({kind.code for kind in kinds}) == len(kinds)
    drawn = errors.__doc__ or ""
    for kind in kinds[1:]:
        line = next(line for line in drawn.splitlines() if f" {kind.__name__} " in line)
        assert f" {kind.code} " in line
        assert f"exit {kind.exit_code}" in line
        assert ("retryable" in line) == kind.retryable


def test_every_error_class_is_exported() -> None:
    assert all(getattr(errors, name) is kind for name, kind in KINDS.items())


@pytest.mark.parametrize("kind", list(KINDS.values())[1:], ids=lambda kind: kind.__name__)
def test_every_error_class_has_a_docstring_and_hints(kind: type[ProofboxError]) -> None:
    assert kind.code == kind.code.upper()
    assert kind.exit_code in (1, 2, 3, 4, 126, 127, 130)
    assert kind.__doc__
    assert kind.hints
    assert not [problem for hint in kind.hints for problem in wrong_with(hint)]


def test_given_hints_replace_the_class_defaults() -> None:
    assert SessionUnknown("no such session").fix_hints == SessionUnknown.hints
    assert SessionUnknown("no such session", fix_hints=["look there"]).fix_hints == ("look there",)
    assert SessionUnknown("no such session").as_dict()["fix_hints"] == list(SessionUnknown.hints)


class Text(NamedTuple):
    """A message or a hint in the source, with `{}` for inserted values."""

    where: str
    text: str


def texts(node: ast.AST, where: str) -> Iterator[Text]:
    match node:
        case ast.Constant(value=str(text)):
            yield Text(where, text)
        case ast.JoinedStr(values=values):
            yield Text(where, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            for element in elements:
                yield from texts(element, where)
        case ast.IfExp(body=body, orelse=other):
            yield from texts(body, where)
            yield from texts(other, where)


reads_all_sources = pytest.mark.xdist_group("errors")
"""Tests that use `made`, in one worker, because reading all sources takes seconds."""


@cache
def made() -> list[tuple[str, ast.Call]]:
    """Return every error that the source creates, with its location."""
    return [
        (f"{path.relative_to(SRC)}:{node.lineno}", node)
        for path in sorted(SRC.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS
    ]


def raised(part: str) -> list[Text]:
    """Return the messages, or the keyword arguments of that name, that are literals."""
    found: list[Text] = []
    for where, node in made():
        named = [keyword.value for keyword in node.keywords if keyword.arg == part]
        for value in node.args[:1] if part == "message" else named:
            found += texts(value, where)
    return found


def wrong_with(text: str) -> list[str]:
    problems = []
    if not text.strip():
        problems.append("empty")
    if text.endswith((".", "?")):
        problems.append("a full stop or a question mark at its end")
    if re.match(r"[A-Z][a-z]", text) and not text.startswith(NAMES):
        problems.append("begins with a capital letter")
    if re.search(rf"(?<!: )(?<!`)(?<!^)\bproofbox ({COMMAND})\b", text):
        problems.append("a command within a sentence, without backticks")
    return problems


@reads_all_sources
@pytest.mark.parametrize("part", ["message", "fix_hints", "op"])
def test_raised_messages_have_one_style(part: str) -> None:
    found = raised(part)
    assert len(found) > 250, "the source was not read"
    wrong = [f"{each.where}: {problem}: {each.text}" for each in found for problem in wrong_with(each.text)]
    assert not wrong, "\n".join(wrong)


@reads_all_sources
def test_every_error_names_its_operation() -> None:
    without = [where for where, node in made() if not {"op", None} & {keyword.arg for keyword in node.keywords}]
    assert not without, f"no op: {without}"
    dotted = [f"{each.where}: {each.text}" for each in raised("op") if "." in each.text]
    assert not dotted, "words with spaces between, as a command has: " + "; ".join(dotted)


@reads_all_sources
def test_commands_in_hints_exist() -> None:
    commands = msgspec.to_builtins(describe.commands())
    flags = {each["name"] for facts in commands.values() for each in facts["parameters"]} | {"--help"}
    hints = [*raised("fix_hints"), *(Text(name, hint) for name, kind in KINDS.items() for hint in kind.hints)]
    wrong = []
    for where, text in hints:
        for first, second in re.findall(r"\bproofbox ([a-z]+)(?: ([a-z]+))?", text):
            if first in GROUPS and f"{first} {second}" not in commands:
                wrong.append(f"{where}: no command {first} {second}: {text}")
        if "proofbox " in text or text.startswith("--") or ": --" in text:
            ours = re.sub(r"'[^']*'", "", text)  # quoted text is for another program
            wrong += [
                f"{where}: no {flag}: {text}" for flag in re.findall(r"--[a-z][a-z-]+", ours) if flag not in flags
            ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        ("there is no run at {}", True),
        ("make one: proofbox init", True),
        ("proofbox images pull {}", True),
        ("name one of `proofbox images list`: --image NAME", True),
        ("There is no run", False),
        ("there is no run.", False),
        ("is there a run?", False),
        ("", False),
        ("then proofbox workspace log DIR lists them", False),
    ],
)
def test_style_check_detects_violations(text: str, sound: bool) -> None:
    assert (not wrong_with(text)) == sound
