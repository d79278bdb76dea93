"""Packages import each other only in the allowed order.

Every import is checked: at the top, inside a function, under TYPE_CHECKING, and `import_module` of a literal name. An
import that is not executed is still a dependency for readers.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"
PACKAGE = SRC / "proofbox"

# Package → the packages it may import, besides itself and `errors`. They need not exist yet.
BELOW_LAB = frozenset({"core", "config", "sandbox", "workspace", "agents", "evidence", "probes", "delivery"})
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "core": frozenset(),
    "config": frozenset({"core"}),
    "sandbox": frozenset({"core", "config"}),
    "workspace": frozenset({"core", "config", "sandbox"}),
    "agents": frozenset({"core", "config", "sandbox", "workspace"}),
    "evidence": frozenset({"core"}),
    "probes": frozenset({"core", "config", "sandbox", "evidence"}),
    "delivery": frozenset({"core", "evidence", "workspace"}),
    "lab": BELOW_LAB,
    "viewer": BELOW_LAB | {"lab"},
    # The public API, proofbox/__init__.py. Packages do not import it, which would bypass this table.
    "proofbox": BELOW_LAB | {"lab", "viewer"},
    "cli": BELOW_LAB | {"lab", "viewer", "proofbox"},
}

# The modules and packages that an auditor needs. They use only the standard library, so that they run on any Python.
BARE = ("errors", "core.files.atomic", "core.canonical", "core.chain", "core.digest", "core.documents")
# Imported only if it is installed: docs/design/0010. Below, each module is also loaded without it.
OPTIONAL = {("proofbox.core.canonical", "msgspec"), ("proofbox.core.canonical", "msgspec.json")}


class Import(NamedTuple):
    """An import of one of our modules, or of a top-level module of another project."""

    where: str
    name: str


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """`proofbox.sandbox.service` is in `sandbox`; the package itself is `proofbox`, its `__main__` part of the cli."""
    parts = module.split(".")
    if len(parts) == 1:
        return "proofbox"
    return "cli" if parts[1] == "__main__" else parts[1]


@cache
def ours() -> frozenset[str]:
    """Return every module and package of proofbox by dotted name, including packages that do not exist yet."""
    names = {dotted(path) for path in modules()}
    return frozenset(names | {f"proofbox.{name}" for name in ALLOWED if name != "proofbox"})


def imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_bytes(), filename=str(path))
    package = dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
    place = path.relative_to(SRC)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            continue
        where = f"{place}:{node.lineno}"
        match node:
            case ast.Import(names=names):
                yield from (Import(where, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = module or ""
                if level:
                    above = package.split(".")[: len(package.split(".")) - level + 1]
                    base = ".".join([*above, base] if base else above)
                for alias in names:
                    # `from proofbox import errors` imports a module, `from proofbox.core import ids` another.
                    full = f"{base}.{alias.name}"
                    yield Import(where, full if full in ours() else base)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
                if called in ("import_module", "__import__"):
                    relative = name.startswith(".")
                    yield Import(where, f"{package}{name}" if relative and not name.startswith("..") else name)


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "proofbox"


def test_every_package_has_a_place_in_the_import_order() -> None:
    packages = {package_of(dotted(path)) for path in modules()}
    assert packages <= set(ALLOWED), f"not in the import order: {sorted(packages - set(ALLOWED))}"


def test_imports_follow_the_allowed_order() -> None:
    wrong = [
        f"{found.where}: {package_of(dotted(path))} imports {found.name}"
        for path in modules()
        for found in imports_of(path)
        if is_ours(found.name)
        and package_of(found.name)
        not in {package_of(dotted(path)), "errors"} | ALLOWED.get(package_of(dotted(path)), frozenset())
    ]
    assert not wrong, "\n".join(["imports against the allowed order:", *wrong])


def bare_modules() -> list[str]:
    wanted = tuple(f"proofbox.{name}." for name in BARE)
    return [name for name in map(dotted, modules()) if f"{name}.".startswith(wanted)]


def test_auditor_modules_import_only_the_standard_library() -> None:
    bare = set(bare_modules())
    wrong = [
        f"{found.where}: imports {found.name}"
        for path in modules()
        if dotted(path) in bare
        for found in imports_of(path)
        if found.name not in bare and found.name.split(".")[0] not in sys.stdlib_module_names
        if (dotted(path), found.name) not in OPTIONAL
    ]
    assert not wrong, "\n".join(wrong)


def test_every_imported_package_is_a_dependency() -> None:
    project = tomllib.loads((SRC.parent / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[<>=;\[ ]", each)[0] for each in declared}
    names |= {"markupsafe", "Foundation", "Virtualization"}  # jinja2 and pyobjc-framework-virtualization have them
    imported = {
        found.name.split(".")[0]: found.where
        for path in modules()
        for found in imports_of(path)
        if not is_ours(found.name) and found.name.split(".")[0] not in sys.stdlib_module_names
    }
    assert {name: where for name, where in imported.items() if name not in names} == {}


@pytest.mark.parametrize("module", bare_modules())
def test_auditor_modules_load_without_installed_packages(module: str) -> None:
    # -S leaves out site-packages, so that imports of the packages' __init__ modules are checked as well.
    program = f"import sys; sys.path.insert(0, {str(SRC)!r}); import {module}"
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_package_is_empty() -> None:
    def says_something(path: Path) -> bool:
        body = ast.parse(path.read_bytes()).body
        plain = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
        return any(not (isinstance(node, ast.ImportFrom) and node.module == "__future__") for node in plain)

    empty = [
        str(init.parent.relative_to(SRC))
        for init in PACKAGE.rglob("__init__.py")
        if not any(says_something(path) for path in init.parent.rglob("*.py"))
    ]
    assert not empty, f"empty packages: {empty}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import proofbox.lab.run.ledger", {"proofbox.lab.run.ledger"}),
        ("from proofbox import errors, cli", {"proofbox.errors", "proofbox.cli"}),
        ("from proofbox import Sandboxes", {"proofbox"}),
        ("from .. import errors", {"proofbox.errors"}),
        ("from ..lab import ledger", {"proofbox.lab"}),
        ("from . import ids", {"proofbox.core"}),
        ("def f():\n    from proofbox.cli import main", {"proofbox.cli"}),
        ("if TYPE_CHECKING:\n    from proofbox.viewer import app", {"proofbox.viewer"}),
        ("importlib.import_module('proofbox.agents')", {"proofbox.agents"}),
        ("importlib.import_module('.ids', __package__)", {"proofbox.core.ids"}),
        ("import os.path", {"os.path"}),
    ],
)
def test_every_form_of_import_is_detected(
    source: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SRC", tmp_path)
    monkeypatch.setitem(globals(), "ours", lambda: frozenset(f"proofbox.{name}" for name in ALLOWED))
    path = tmp_path / "proofbox" / "core" / "sample.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert {found.name for found in imports_of(path)} == expected


def test_no_folder_has_more_than_sixteen_modules() -> None:
    found = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {str(folder.relative_to(SRC)): count for folder, count in found.items() if count > 16} == {}


def test_no_public_class_name_is_used_twice() -> None:
    found: dict[str, list[str]] = {}
    for path in modules():
        for name in re.findall(r"^class ([^\W_]\w*)", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert len(found) > 500  # the pattern still works
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
