"""Command lines bind to the arguments they spell, however they are spelled; all others are refused."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.cli import COMMANDS, Command, flags, main
from proofbox.cli.app import function_of
from proofbox.cli.parameters import CommandInput, CommandSignature, Parameter
from proofbox.cli.parser import bind
from proofbox.errors import UsageError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXT,
    "path": TEXT.filter(bool).map(Path),
    "integer": st.integers(),
    "number": st.floats(allow_nan=False),
}


@cache
def signature_of(command: Command) -> CommandSignature:
    return CommandSignature(function_of(command))


class Spelled(msgspec.Struct):
    """A command line, and what it means."""

    command: Command
    words: list[str]
    arguments: list[Any]
    options: dict[str, Any]


def value_of(draw: st.DrawFn, each: CommandInput) -> tuple[str, Any]:
    """Draw a value as text, and what the function gets."""
    if each.choices:
        text = draw(st.sampled_from(each.choices))
        return text, text
    value = draw(VALUES[each.type])
    if each.declared.converter is flags.seconds:
        value = draw(st.floats(0, allow_nan=False, allow_infinity=False))
    return str(value), each.declared.converter(str(value)) if each.declared.converter else value


def option_words(draw: st.DrawFn, each: CommandInput) -> tuple[list[str], Any]:
    """Draw the words for an option, and the value that they mean."""
    if each.type == "switch":
        return [draw(st.sampled_from(each.declared.names))], True
    words, values = [], []
    for _ in range(draw(st.integers(1, 3)) if each.repeated else 1):
        name = draw(st.sampled_from(each.declared.names))
        text, value = value_of(draw, each)
        joined = f"{name}={text}" if name.startswith("--") else f"{name}{text}"
        apart = joined == name or not text.startswith("-") or is_number(text)
        words += [name, text] if (apart and draw(st.booleans())) or joined == name else [joined]
        values.append(value)
    return words, tuple(values) if each.repeated else values[0]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@st.composite
def spelled(draw: st.DrawFn) -> Spelled:
    command = draw(st.sampled_from(COMMANDS))
    signature = signature_of(command)
    options: dict[str, Any] = {}
    members: dict[str, dict[str, Any]] = {group: {} for group in signature.groups}
    parts: list[list[str]] = []
    for each in signature.inputs:
        if each.kind == "flag" and (each.required or draw(st.booleans())):
            words, value = option_words(draw, each)
            parts.append(words)
            (members[each.group] if each.group else options)[each.key] = value
    parts = draw(st.permutations(parts))
    accepted = [each for each in signature.inputs if each.kind == "argument"]
    least = sum(each.required for each in accepted)
    values = [value_of(draw, each) for each in accepted[: draw(st.integers(least, len(accepted)))]]
    behind: list[str] = []
    at = 0
    for text, _ in values:  # in their order, between the options or after `--`
        if behind or text.startswith("-") or draw(st.booleans()):
            behind.append(text)
        else:
            at = draw(st.integers(at, len(parts))) + 1
            parts.insert(at - 1, [text])
    arguments = [value for _, value in values]
    if any(each.kind == "command" for each in signature.inputs):
        line = draw(st.lists(TEXT, max_size=3))
        behind, arguments = behind + line, arguments + line
    words = [word for part in parts for word in part]
    built = {group: kind(**members[group]) for group, kind in signature.groups.items()}
    return Spelled(command, [*words, *(["--", *behind] if behind else [])], arguments, options | built)


@given(spelled())
def test_every_spelling_binds_to_the_same_arguments(line: Spelled) -> None:
    assert bind(signature_of(line.command), line.words) == (line.arguments, line.options)


class Shared(msgspec.Struct, frozen=True):
    memory: flags.Memory = None
    env: flags.Env = ()


NOTHING_SHARED = Shared()


def sample(
    spec: Annotated[Path, Parameter(help="A file.")],
    out: Annotated[Path, Parameter(help="A directory.")] = Path("out"),
    *,
    count: Annotated[int, Parameter(name=["-n", "--count"], help="How many.")] = 1,
    seconds: Annotated[float | None, Parameter(name="--seconds", help="How long.")] = None,
    text: Annotated[str, Parameter(name="--text", allow_leading_hyphen=True, help="Any text.")] = "",
    shared: Annotated[Shared, Parameter(name="*")] = NOTHING_SHARED,
    access: flags.Access = None,
    place: Annotated[Path | None, Parameter(name="--place", converter=flags.place, help="A directory.")] = None,
    json: flags.Json = False,
) -> None:
    """Do nothing."""


def run_command(*argv: str, json: flags.Json = False) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("words", "arguments", "options"),
    [
        (["a"], [Path("a")], {}),
        (["a", "b"], [Path("a"), Path("b")], {}),
        (["--", "-a", "--json"], [Path("-a"), Path("--json")], {}),
        (["-5"], [Path("-5")], {}),
        (["a", "-n", "3"], [Path("a")], {"count": 3}),
        (["-n3", "a"], [Path("a")], {"count": 3}),
        (["a", "--count=-3"], [Path("a")], {"count": -3}),
        (["a", "--seconds", "-1.5"], [Path("a")], {"seconds": -1.5}),
        (["a", "--text", "--json"], [Path("a")], {"text": "--json"}),
        (["a", "--text", "-"], [Path("a")], {"text": "-"}),
        (["a", "--text="], [Path("a")], {"text": ""}),
        (["a", "--text=b=c"], [Path("a")], {"text": "b=c"}),
        (["--env", "A=1", "a", "--env=B"], [Path("a")], {"shared": Shared(env=("A=1", "B"))}),
        (["a", "--memory", "64"], [Path("a")], {"shared": Shared(memory=64)}),
        (["a", "--memory", "2g"], [Path("a")], {"shared": Shared(memory="2g")}),
        (["a", "--access", "ro", "--json"], [Path("a")], {"access": "ro", "json": True}),
    ],
)
def test_words_are_bound(words: list[str], arguments: list[Any], options: dict[str, Any]) -> None:
    assert bind(CommandSignature(sample), words) == (arguments, {"shared": Shared(), **options})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "SPEC is required"),
        (["a", "b", "c", "d"], "unexpected arguments: 'c', 'd'"),
        (["a", "--cuont", "1"], "unknown option '--cuont' (did you mean --count?)"),
        (["a", "--JSON"], "unknown option '--JSON'"),
        (["a", "-x"], "unknown option '-x'"),
        (["a", "-"], "unknown option '-'"),
        (["a", "--count"], "--count requires a value"),
        (["a", "--count", "--json"], "--count requires a value"),
        (["a", "--text", "--", "b"], "--text requires a value"),
        (["a", "--count", "1.5"], "--count: '1.5' is not an integer"),
        (["a", "--count", "x" * 200], f"--count: '{'x' * 80}' is not an integer"),
        (["a", "--seconds", "soon"], "--seconds: 'soon' is not a number"),
        (["a", "--access", "all"], "--access: 'all' is not one of rw, ro, overlay"),
        (["a", "--place", ""], "--place: the path is empty"),
        (["a", "--count", "1", "-n", "2"], "-n was given more than once"),
        (["a", "--json", "--json"], "--json was given more than once"),
        (["a", "--json=true"], "--json does not take a value"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        bind(CommandSignature(sample), words)
    assert refused.value.message.startswith(message)


def test_words_after_the_separator_belong_to_the_command() -> None:
    signature = CommandSignature(run_command)
    assert bind(signature, ["--json", "--", "ls", "--json", "--", "-l"]) == (
        ["ls", "--json", "--", "-l"],
        {"json": True},
    )
    assert bind(signature, ["ls"]) == (["ls"], {})
    with pytest.raises(UsageError, match="unknown option '-l'"):
        bind(signature, ["ls", "-l"])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("exec ls -la", "put the command after --: proofbox exec -- ls -la"),
        ("exec --timeout 5 ls -l 'a b'", "put the command after --: proofbox exec --timeout 5 -- ls -l 'a b'"),
        ("session exec s-1 ls -l", "put the command after --: proofbox session exec s-1 -- ls -l"),
        (f"exec ls -l {'x' * 200}", "put the command after --: proofbox exec -- COMMAND"),
        ("session exec -l", "see: proofbox session exec --help"),
        ("workspace init a -l", "see: proofbox workspace init --help"),
    ],
)
def test_options_of_a_command_are_refused_with_the_separator(
    words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) in (2, 125)
    told = capsys.readouterr().err
    assert "unknown option '-l" in told
    assert f"  fix: {hint}\n" in told


def test_unsupported_type_is_refused() -> None:
    def wrong(*, when: Annotated[complex, Parameter(name="--when", help="A date.")]) -> None:
        """Do nothing."""

    function: Callable[..., Any] = wrong
    with pytest.raises(KeyError):
        CommandSignature(function)
