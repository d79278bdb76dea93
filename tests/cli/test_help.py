"""Help is complete: every command has a summary, examples, and a description of each flag."""

from __future__ import annotations

import re
import shlex
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import commandlines
import pytest

from proofbox.cli import COMMANDS, GROUPS, app, main, output
from proofbox.cli.describe import CommandFacts, commands
from proofbox.cli.output import columns
from proofbox.errors import UsageError
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.sandbox.providers import AUTO, PROVIDERS

# Names with two meanings, and why they are allowed.
TWO_THINGS = {
    "--run": "a run: by its directory on a disk, by its id in a store",
    "--keep": "of a demo, the directory; of a history, the number of entries",
}
# Each thing has one name. Another name for it, as a flag or an argument, is an error.
OTHER_NAMES = {
    "--output-dir": "--out",
    "--output": "--out",
    "--strategy": "--strategies",
    "--dir": "--project or --workspace",
    "--directory": "--project or --workspace",
    "--public-key": "--key",
    "--sandbox": "--provider",
    "--verbose": "nothing",
    "--yes": "--force",
    "--format": "--json",
}
ANOTHER_MEANING = {("promotion emit", "--format")}  # the format of the packet, not of the output
PATHS = [command.path for command in COMMANDS]


@cache
def facts() -> dict[str, CommandFacts]:
    return commands()


@pytest.mark.parametrize("path", PATHS)
def test_command_summary_is_one_line(path: str) -> None:
    summary = facts()[path].summary
    assert summary.endswith(".")
    assert "\n" not in summary
    assert len(summary) <= 80
    assert facts()[path].description.partition("\n")[0]


@pytest.mark.parametrize("path", PATHS)
def test_every_flag_is_explained(path: str) -> None:
    silent = [each.name for each in facts()[path].parameters if len(each.help) < 8]
    assert not silent


@pytest.mark.parametrize("path", PATHS)
def test_command_examples_are_valid(path: str) -> None:
    found = [words for line in facts()[path].examples for words in commandlines.invocations(line)]
    assert any(words[: len(path.split())] == path.split() for words in found)
    for words in found:
        commandlines.refuse_unknown(words)


@pytest.mark.parametrize("words", [["exec", "--no-such-flag", "x"], ["session", "begin"], ["suite", "run"]])
def test_invalid_examples_are_detected(words: list[str]) -> None:
    with pytest.raises((UsageError, AssertionError)):
        commandlines.refuse_unknown(words)


def test_parameters_have_consistent_names() -> None:
    wrong = [
        f"{path}: {each.name} is called {OTHER_NAMES[each.name]} elsewhere"
        for path, found in facts().items()
        for each in found.parameters
        if each.name in OTHER_NAMES and (path, each.name) not in ANOTHER_MEANING
    ]
    assert not wrong


def test_flags_with_the_same_name_have_the_same_type() -> None:
    """For example, every `--timeout` takes a number."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for path, found in facts().items():
        for each in found.parameters:
            if each.kind == "flag":
                kinds.setdefault(each.name, {}).setdefault(each.type, []).append(path)
    mixed = {name: found for name, found in kinds.items() if len(found) > 1}
    assert set(mixed) == set(TWO_THINGS)


@pytest.mark.parametrize("path", ["", "exec", "suite", "suite run"])
def test_help_as_a_command_is_the_help_option(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", *path.split()]) == main([*path.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text[: len(text) // 2] == text[len(text) // 2 :]


def test_help_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*_: object) -> NoReturn:
        raise AssertionError("the command was called")

    monkeypatch.setattr(app, "bind", call)
    for path in PATHS:
        for rest in (
            ["--", "sh"],
            ["--json", "--", "touch", "x"],
            ["x", "--", "--help"],
            ["--", "--", "x"],
            ["sh", "-c"],
        ):
            assert main(["help", *path.split(), *rest]) == 0
            assert capsys.readouterr().out.startswith(f"Usage: proofbox {path}")
    assert main(["help", "--", "exec", "--", "true"]) == 0
    monkeypatch.undo()
    assert main(["help", "exec", "--provider", "off", "--", "touch", str(tmp_path / "executed")]) == 0
    assert not list(tmp_path.iterdir())


def test_text_of_a_cell_cannot_imitate_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["NAME", "SCHEMA"], ["a", "e/1\nresults.json  42"], ["b\tc\n\x1b[31m", "x"]]
    wide = "NAME            SCHEMA\na               e/1\\nresults.json  42\nb\\tc\\n\\x1b[31m  x"
    assert columns(rows) == wide
    monkeypatch.setattr(output, "_terminal_width", lambda: 40)
    assert columns([["NAME", "SCHEMA"], ["a" * 12, "e/1\nforged  42 " + "x" * 20]]).splitlines()[1:] == [
        "a" * 12 + "  e/1\\nforged  42",
        " " * 14 + "x" * 20,
    ]


def test_bundle_cannot_imitate_lines_of_its_listing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        bundle.write_json("a.json", {"schema_version": "e/1\nresults.json  42  0000"})
    (bundle.path / "x\nfinding: forged").touch()
    for words in (["bundle", "show"], ["bundle", "reindex", "--strict"], ["verify"]):
        main([*words, str(bundle.path)])
        lines = capsys.readouterr().out.splitlines()
        assert not [line for line in lines if line.startswith(("results.json", "finding: forged"))]
        assert [line for line in lines if "x\\nfinding: forged" in line]


def test_last_column_of_a_table_is_wrapped_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["NAME", "MEANING"], ["first", "some words that need more than one line"], ["second", ""]]
    wide = "NAME    MEANING\nfirst   some words that need more than one line\nsecond"
    assert columns(rows) == wide
    monkeypatch.setattr(output, "_terminal_width", lambda: 40)
    assert columns(rows) == ("NAME    MEANING\nfirst   some words that need more than\n        one line\nsecond")
    monkeypatch.setattr(output, "_terminal_width", lambda: 20)
    assert columns(rows) == wide, "single words on each line would be harder to read"


def test_provider_help_lists_all_providers() -> None:
    text = next(each.help for each in facts()["exec"].parameters if each.name == "--provider")
    assert set(text.partition(".")[0].split(", ")) == {AUTO, *PROVIDERS}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("path", ["", *GROUPS, *PATHS])
def test_help_fits_the_terminal(
    path: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*path.split(), "--help"]) == 0
    text, _, examples = capsys.readouterr().out.partition("Examples:\n")
    assert [line for line in text.splitlines() if len(line) > width] == []
    if path in PATHS:
        assert tuple(line.removeprefix("  ") for line in examples.splitlines()) == facts()[path].examples != ()


def test_help_is_wrapped_by_the_terminal_and_not_by_the_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    main(["exec", "--help"])
    paragraph = capsys.readouterr().out.split("\n\n")[2].splitlines()
    assert len(paragraph) > 1
    for line, following in pairwise(paragraph):
        assert len(line) + 1 + len(following.split()[0]) > 60


@pytest.mark.parametrize("path", PATHS)
def test_help_shows_only_meaningful_defaults(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*path.split(), "--help"])
    assert re.findall(r"\[default: (?:\(\)|False|None|)\]", capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("exec", "proofbox exec [OPTIONS] -- COMMAND [ARG]..."),
        ("up", "proofbox up [OPTIONS] [-- COMMAND [ARG]...]"),
        ("session exec", "proofbox session exec [OPTIONS] SESSION_ID -- COMMAND [ARG]..."),
        ("bundle pull", "proofbox bundle pull [OPTIONS] STORE [OUT]"),
        ("mcp serve", "proofbox mcp serve --workspace PATH [OPTIONS]"),
    ],
)
def test_usage_shows_the_form_of_the_command_line(path: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*path.split(), "--help"])
    assert capsys.readouterr().out.splitlines()[0] == f"Usage: {usage}"


def test_list_of_commands_has_sections(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    sections: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            sections[line.removesuffix(":")] = []
        elif re.match(r"  \w", line) and sections:
            list(sections.values())[-1].append(line.split()[0])
    assert sections.pop("Examples")
    assert list(sections) == ["Run", "Agents and suites", "Workspaces", "Evidence", "Delivery", "Setup"]
    shown = [name for names in sections.values() for name in names]
    assert sorted(shown) == sorted({path.split()[0] for path in PATHS})
    assert sections["Run"] == ["exec", "up", "probe", "session", "run"]


@pytest.mark.parametrize("columns", ["0", "-1", "9" * 40, "wide", "½"])
def test_implausible_width_is_ignored(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["exec", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.partition("Examples:")[0].splitlines())) <= 120


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    words = {word for path in (*PATHS, *GROUPS) for word in path.split()}
    flags = {each.name for found in facts().values() for each in found.parameters if each.kind == "flag"}
    if shell == "fish":
        flags = {name.removeprefix("--") for name in flags}
    assert not [word for word in (*words, *flags) if word not in script]


ASK_BASH = """
offers() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _proofbox
  echo "${COMPREPLY[*]}"
}
"""


def offered_by_bash(lines: list[list[str]], capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return what bash offers for the last word of each command line."""
    main(["completion", "bash"])
    script = capsys.readouterr().out + ASK_BASH
    script += "\n".join(shlex.join(["offers", "proofbox", *words]) for words in lines)
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_offers_exactly_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    first, *inner = offered_by_bash([[""], *([group, ""] for group in GROUPS)], capsys)
    assert sorted(first) == sorted({path.split()[0] for path in PATHS})
    for group, offered in zip(GROUPS, inner, strict=True):
        assert [f"{group} {name}" for name in offered] == [path for path in PATHS if path.startswith(f"{group} ")]


def test_bash_offers_exactly_the_options_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    offers = offered_by_bash([[*path.split(), "--"] for path in PATHS], capsys)
    for path, offered in zip(PATHS, offers, strict=True):
        options = [each for each in facts()[path].parameters if each.kind == "flag"]
        long = [name for each in options for name in (each.name, *each.aliases) if name.startswith("--")]
        assert offered == [*long, "--help"], path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["exec", "--access", ""], ["rw", "ro", "overlay"]),
        (["exec", "--access", "=", "r"], ["rw", "ro"]),
        (["exec", "--provider", ""], []),
        (["exec", "--", "ls", "--js"], []),
        (["completion", "z"], ["zsh"]),
        (["suite", "run", "suite.toml", "--isol"], ["--isolation"]),
        (["no-such-command", "--"], []),
    ],
)
def test_bash_offers_values(words: list[str], offered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert offered_by_bash([words], capsys) == [offered]
