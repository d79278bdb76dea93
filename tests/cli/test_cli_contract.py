"""The contract's snapshot, the public names, and a fast startup."""

from __future__ import annotations

import ast
import difflib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract_lines import contract_lines

import proofbox
from proofbox.cli import COMMANDS, GROUPS, main
from proofbox.cli.commands.setup.contract import make_contract
from proofbox.errors import error_classes

SNAPSHOT = Path(__file__).parent / "contract.txt"

# `proofbox --help` must load none of these: each takes longer than the rest of the startup.
HEAVY = (
    *("anyio", "asyncio", "cryptography", "dataclasses", "httpx2", "inspect", "json", "msgspec"),
    *("re", "socket", "stamina", "starlette", "subprocess", "typing", "uvicorn"),
)
# The help of one command may load the parser, but none of these.
TO_RUN = (
    *("anyio", "asyncio", "concurrent.futures", "cryptography", "http.client", "httpx2", "importlib.metadata", "ssl"),
    *("stamina", "starlette", "urllib.request", "uvicorn"),
    *("proofbox.agents.registry", "proofbox.delivery.client.sync_client", "proofbox.lab.attempt.documents"),
    *("proofbox.lab.run.conductor", "proofbox.sandbox.providers", "proofbox.workspace.workspace"),
)


def test_contract_matches_the_snapshot() -> None:
    """A change here affects every program that uses proofbox. If it is intended, run:

    .venv/bin/python tests/cli/contract_lines.py > tests/cli/contract.txt
    """
    now, before = contract_lines(), SNAPSHOT.read_text().splitlines()
    assert list(difflib.unified_diff(before, now, n=0, lineterm="")) == []


def test_printed_contract_is_the_one_of_the_snapshot(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["contract", "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out) == json.loads(msgspec.json.encode(make_contract()))


def _properties(value: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if isinstance(value.get("properties"), dict):
            yield from ((f"{at}.{name}", value["properties"]) for name in value["properties"])
        for name, inner in value.items():
            yield from _properties(inner, f"{at}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _properties(inner, f"{at}.{number}")


def test_every_change_of_a_member_changes_a_line(rounds: Callable[[int, int], int]) -> None:
    """Each member of each document, at any depth, is in the snapshot."""
    contract = json.loads(msgspec.json.encode(make_contract()))
    before = contract_lines(contract)
    places = [*_properties(contract["schemas"]), *_properties(contract["stored"])]
    assert len(places) > 1000
    for path, members in places[:: rounds(250, 1)]:
        name = path.rpartition(".")[2]
        kept = dict(members)
        members[name] = {"type": "string", "maxLength": 31}
        assert contract_lines(contract) != before, path
        del members[name]
        assert contract_lines(contract) != before, path
        members.clear()
        members.update(kept)


def test_every_document_member_has_a_description() -> None:
    """If this fails, add a docstring below the member in its class, or a `meaning`."""
    contract = make_contract()
    schemas = {
        **contract.schemas,
        **{name: each.json_schema for name, each in contract.stored.items()},
        **{f"[runtimes.{id}]": each.settings for id, each in contract.strategies.items()},
    }
    members = [(f"{name}: {path}", inner) for name, schema in schemas.items() for path, inner in _members(schema)]
    assert len(members) > 1000
    assert [place for place, inner in members if not inner.get("description", "").strip()] == []


def _members(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every member that a JSON Schema describes, at any depth, with its path."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{at}{name}", inner
        yield from _members(inner, f"{at}{name}.")
    for name, inner in schema.get("$defs", {}).items():
        yield from _members(inner, f"{name}.")
    for inner in (*schema.get("anyOf", ()), *schema.get("prefixItems", ())):
        yield from _members(inner, at)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _members(schema[key], at)


def test_contract_text_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contract"]) == 0
    text = capsys.readouterr().out
    assert all(command.path in text for command in COMMANDS)
    assert all(kind.code in text for kind in error_classes())


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["--version"], ["session", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    script = (
        "import sys; before = set(sys.modules); from proofbox.cli import main; main(sys.argv[1:]);"
        f"print(sorted(set({HEAVY!r}) & (set(sys.modules) - before)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr.strip() == "[]"


HELP_OF_EACH = f"""
import os, sys
from proofbox.cli import main
main([*sys.argv[1].split(), "--help"])  # loads what all of them need
sys.stdout.flush()
for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        code = main([*path.split(), "--help"])
        loaded = sorted(set({TO_RUN!r}) & set(sys.modules))
        print(path, code, *loaded, sep="|", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_command_help_loads_no_heavy_modules() -> None:
    """Each runs in a new process, because modules stay loaded."""
    paths = [each.path for each in COMMANDS if each.path != "contract"]
    done = subprocess.run([sys.executable, "-c", HELP_OF_EACH, *paths], capture_output=True, text=True, timeout=200)
    assert done.stderr.splitlines() == [f"{path}|0" for path in paths]
    assert done.stdout.count("Examples:") == 1 + len(paths)


def test_importing_proofbox_loads_nothing_heavy() -> None:
    script = f"import sys, proofbox; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=60, env=_bare())
    assert done.stdout.strip() == "[]", done.stderr


def _bare() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(proofbox.__file__).parent.parent)}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.path)
def test_every_command_has_help_with_an_example(
    command: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = getattr(command, "path")  # noqa: B009 (the fixture's type is opaque to parametrize)
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*path.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"proofbox {path}" in text
    assert "--json" in text


def test_groups_have_commands() -> None:
    paths = [command.path for command in COMMANDS]
    first = {path.split()[0] for path in paths if " " in path}
    assert first - set(paths) == set(GROUPS)
    assert first & set(paths) == {"report"}, "a command that has subcommands, but is not a group"


def test_all_public_names_can_be_imported() -> None:
    for name in proofbox.__all__:
        assert getattr(proofbox, name) is not None
    with pytest.raises(AttributeError):
        proofbox.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_public_names_agree_with_type_checking_imports() -> None:
    """Lazily loaded names are listed twice: for type checkers, and for Python."""
    source = Path(proofbox.__file__).read_text()
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    seen = {
        alias.asname: f"proofbox.{alias.name}" if node.module == "proofbox" else str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == proofbox._HOME


def test_public_api_is_small() -> None:
    """Only names that users call, construct or catch are exported; returned types are in their packages."""
    assert len(proofbox.__all__) <= 70


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command.path.split()[-1] in script for command in COMMANDS)


def test_completion_is_valid_bash(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    done = subprocess.run(["bash", "-n"], input=capsys.readouterr().out, text=True, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
