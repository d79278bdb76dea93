"""Help is complete: every command has a summary, examples, and a description of each flag."""

from __future__ import annotations

import subprocess
from functools import cache

import commandlines
import pytest

from proofbox.cli import COMMANDS, GROUPS, main
from proofbox.cli.describe import CommandFacts, commands
from proofbox.errors import UsageError
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
        if each.name in OTHER_NAMES
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


def test_provider_help_lists_all_providers() -> None:
    text = next(each.help for each in facts()["exec"].parameters if each.name == "--provider")
    assert set(text.partition(".")[0].split(", ")) == {AUTO, *PROVIDERS}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    words = {word for path in (*PATHS, *GROUPS) for word in path.split()}
    flags = {each.name for found in facts().values() for each in found.parameters if each.kind == "flag"}
    if shell == "fish":
        flags = {name.removeprefix("--") for name in flags}
    assert not [word for word in (*words, *flags) if word not in script]


def test_bash_completes_subcommands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Call the script like bash does, to complete `proofbox suite` and `proofbox suite run --`."""
    main(["completion", "bash"])
    script = capsys.readouterr().out
    ask = (
        'complete_for() { COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=();'
        " $(complete -p proofbox | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo \"${COMPREPLY[*]}\"; }\n"
        'complete_for proofbox suite ""\ncomplete_for proofbox suite run --\n'
    )
    done = subprocess.run(["bash", "-c", script + "\n" + ask], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    subcommands, flags = (set(line.split()) for line in done.stdout.splitlines()[-2:])
    assert {"run", "lint", "resume", "report", "schema"} <= subcommands
    assert {"--out", "--strategies", "--jsonl"} <= flags
