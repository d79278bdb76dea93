"""The packages, modules, functions and tests named in ARCHITECTURE.md exist."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
from test_rooms import ALLOWED, PACKAGE

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
NAMES = sorted(set(re.findall(r"`(proofbox(?:\.\w+)+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", TEXT)))
PATHS = sorted(set(re.findall(r"`((?:src|scripts|docs)/[\w./]+)`", TEXT)) | set(re.findall(r"\]\(([^)#]+)\)", TEXT)))
ROOM = re.compile(r"^\| `(\w+)` \|([^|]*)\| [^|]+ \|$", re.MULTILINE)


def table(heading: str) -> str:
    return TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_package_table_matches_the_allowed_imports() -> None:
    there = {name for name in ALLOWED if name == "proofbox" or next(PACKAGE.glob(f"{name}*"), None)}
    every = there - {"errors", "proofbox", "cli"}
    words = {"every package except `cli`": every, "every package": every | {"proofbox"}}
    stated = {
        room: words.get(imports.strip(), set(re.findall(r"`(\w+)`", imports)))
        for room, imports in ROOM.findall(table("Packages"))
    }
    assert stated == {name: ALLOWED[name] & there for name in there}


@pytest.mark.parametrize("name", NAMES)
def test_every_named_module_and_function_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        assert hasattr(importlib.import_module(module), attribute)


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_bytes())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("name", TESTS)
def test_every_named_test_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert (ROOT / path).is_file()
    assert not function or function in functions(path)


@pytest.mark.parametrize("path", PATHS)
def test_every_named_file_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_each_step_and_invariant_names_its_code_and_test() -> None:
    steps = re.findall(r"^\| \d+ \|.*\|$", table("One attempt, from `suite run` to a pull request"), re.MULTILINE)
    assert len(steps) >= 15
    assert all("`proofbox." in step.rsplit("|", 2)[1] for step in steps)
    invariants = table("Invariants").partition("|---|---|---|\n")[2].strip().splitlines()
    assert len(invariants) >= 15
    for row in invariants:
        _, _, held, shown, _ = row.split("|")
        assert "`proofbox." in held, row
        assert "::test_" in shown, row
