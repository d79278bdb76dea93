"""No command imports Python from the directory it is used in: not from the suite's, the bundle's or the project's."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from capabilities import ROOT

import proofbox
from proofbox.core import interpreter
from proofbox.core.interpreter import module_child, safe_import_path, script_child

PROOFBOX = str(Path(sys.executable).parent / "proofbox")
AUDIT = [sys.executable, "-I", str(ROOT / "src/proofbox/evidence/verify")]
SUITE = """
[suite]
id = "planted"
[defaults]
workspace = "app"
timeout = 60
[[mission]]
id = "answer"
prompt = "Write 42 to answer.txt."
verify = { commands = ["grep -qx 42 answer.txt"] }
[[mission.script.step]]
tool = "write_file"
args = { path = "answer.txt", content = "42\\n" }
[[mission.script.step]]
say = "done"
"""
PLAY = """
[[step]]
tool = "search_text"
args = { pattern = "hello" }
[[step]]
say = "done"
"""
EVERYTHING = """
import importlib, json, pkgutil, sys
import proofbox
for module in pkgutil.walk_packages(proofbox.__path__, "proofbox."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


class HostileDirectory:
    """A directory that someone else made: each name that proofbox could import is a module in it."""

    def __init__(self, place: Path, log: Path, names: set[str]) -> None:
        self.place = place
        self.log = log
        self._names = names
        (place / "app").mkdir(parents=True)
        (place / "app/hello.txt").write_text("hello\n")
        (place / "suite.toml").write_text(SUITE)
        (place / "play.toml").write_text(PLAY)
        for directory in (place, place / "app"):
            self.plant(directory)

    def plant(self, directory: Path) -> None:
        for name in self._names:
            (directory / f"{name}.py").write_text(f"open({str(self.log)!r}, 'a').write(__file__ + '\\n')\n")
        (directory / "planted.pth").write_text(f"import os; os.mknod({str(self.log)!r})\n")
        (directory / "pyvenv.cfg").write_text(f"home = {directory}\ninclude-system-site-packages = true\n")

    def run(self, *words: str, expected: int = 0) -> str:
        """Run a command there, and check that nothing planted was imported."""
        done = subprocess.run(words, cwd=self.place, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert self.imported() == [], f"{words} imported it: {done.stderr}"
        assert done.returncode == expected, (words, done.stdout, done.stderr)
        return done.stdout

    def proofbox(self, *words: str, expected: int = 0) -> str:
        return self.run(PROOFBOX, *words, expected=expected)

    def imported(self) -> list[str]:
        return sorted(set(self.log.read_text().split())) if self.log.exists() else []


@pytest.fixture(scope="module")
def names() -> set[str]:
    """The top-level names of all modules that a command or Python's startup may import."""
    done = subprocess.run([sys.executable, "-I", "-c", EVERYTHING], capture_output=True, text=True, check=True)
    found = set(json.loads(done.stdout)) | set(sys.stdlib_module_names) | {"sitecustomize", "usercustomize"}
    return found - {"__main__"}


@pytest.fixture
def hostile(tmp_path: Path, names: set[str]) -> HostileDirectory:
    return HostileDirectory(tmp_path / "theirs", tmp_path / "imported", names)


def test_a_planted_module_is_seen_when_python_imports_it(hostile: HostileDirectory) -> None:
    subprocess.run([sys.executable, "-c", "import anyio"], cwd=hostile.place, capture_output=True)
    assert str(hostile.place / "anyio.py") in hostile.imported()


@pytest.mark.needs("bubblewrap")
@pytest.mark.timeout(180)
def test_suites_and_their_evidence_import_nothing_from_their_directories(hostile: HostileDirectory) -> None:
    box = ("--provider", "bubblewrap")
    hostile.proofbox("suite", "lint", "suite.toml")
    hostile.proofbox("suite", "run", "suite.toml", "--out", "out", *box)
    run = (hostile.place / "out/LATEST").read_text().strip()
    hostile.proofbox("suite", "resume", "out")
    bundle = f"out/{run}"
    for words in (
        ("verify", "out"),
        ("validate", "out"),
        ("report", "out"),
        ("suite", "report", "out"),
        ("attempt", "explain", "answer.1", "--run", "out"),
        ("bundle", "show", bundle),
        ("promotion", "emit", f"{bundle}/attempts/answer.1.e1"),
        ("bundle", "list", "out"),
    ):
        hostile.proofbox(*words)


@pytest.mark.needs("bubblewrap")
def test_the_auditors_command_imports_nothing_from_the_bundles_directory(hostile: HostileDirectory) -> None:
    hostile.proofbox("suite", "run", "suite.toml", "--out", "out", "--provider", "bubblewrap")
    run = (hostile.place / "out/LATEST").read_text().strip()
    hostile.plant(hostile.place / "out")
    assert hostile.run(*AUDIT, "out").startswith(f"valid: {run}")
    inside = subprocess.run([*AUDIT, run], cwd=hostile.place / "out", capture_output=True, text=True)
    assert (inside.returncode, hostile.imported()) == (0, []), inside.stderr


@pytest.mark.needs("bubblewrap")
def test_boxes_and_sessions_import_nothing_from_the_project(hostile: HostileDirectory) -> None:
    box = ("--provider", "bubblewrap")
    hostile.proofbox("probe", *box)
    hostile.proofbox("exec", *box, "--", "true")
    hostile.proofbox("exec", *box, "--project", "app", "--", "true")
    started = hostile.proofbox("session", "start", *box, "--network", "allow:example.invalid", "--json")
    session = json.loads(started)["session"]["id"]
    hostile.proofbox("session", "exec", session, "--", "true")
    hostile.proofbox("session", "stop", session)


@pytest.mark.needs("bubblewrap")
@pytest.mark.timeout(180)
def test_doctor_imports_nothing_from_the_current_directory(hostile: HostileDirectory) -> None:
    hostile.proofbox("doctor", "--provider", "bubblewrap", "--quick")


@pytest.mark.needs("bubblewrap")
def test_agents_and_tools_import_nothing_from_the_workspace(
    hostile: HostileDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hostile.proofbox("runtime", "list")
    scripted = ("--strategies", "scripted", "--script", "play.toml", "--provider", "bubblewrap")
    hostile.proofbox("runtime", "try", *scripted, "--prompt", "go", "--workspace", "app", "--out", "record")
    search = ("workspace", "call", "app", "search_text", "--args", '{"pattern": "hello", "glob": "*.txt"}')
    assert "hello.txt" in hostile.proofbox(*search)
    (tmp_path / "bin").mkdir()  # without ripgrep, Python searches
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "hello.txt" in hostile.proofbox(*search)
    hostile.proofbox("mcp", "serve", "--workspace", "app")


@pytest.mark.needs("git")
def test_the_backend_and_deliveries_import_nothing_from_the_current_directory(
    hostile: HostileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERNAL_API_KEY", secrets.token_urlsafe(32))
    words = ("backend", "serve", "--port", "0", "--data", "data", "--json")
    with subprocess.Popen([PROOFBOX, *words], cwd=hostile.place, stdout=subprocess.PIPE) as backend:
        try:
            assert backend.stdout is not None
            monkeypatch.setenv("MOZAIKS_BACKEND_URL", json.loads(backend.stdout.readline())["url"])
            app = ("--app-id", "shop", "--source", "app")
            hostile.proofbox("deliver", "init", *app, "--allow-unpromoted")
            hostile.proofbox("deliver", "plan", *app)
        finally:
            backend.terminate()
    assert hostile.imported() == []


@pytest.mark.needs("bubblewrap", "git")
@pytest.mark.timeout(180)
def test_the_demo_with_its_backend_imports_nothing_from_the_current_directory(hostile: HostileDirectory) -> None:
    hostile.proofbox("demo", "--json")


def test_child_does_not_import_from_the_directory_of_the_parents_script(hostile: HostileDirectory) -> None:
    script = hostile.place / "app" / "main_program.py"
    script.write_text(
        "import sys\n"
        "sys.path.remove(sys.path[0])\n"
        "from proofbox.core.interpreter import safe_import_path\n"
        f"sys.path[:0] = ['', '.', {str(hostile.place)!r}, {str(hostile.place / 'app')!r}]\n"
        "sys.stdout.write(repr(safe_import_path()))\n"
    )
    path = ast.literal_eval(hostile.run(sys.executable, str(script)))
    assert not [entry for entry in path if entry in ("", ".") or entry.startswith(str(hostile.place))]


# The one place that starts interpreters


def test_import_path_keeps_absolute_entries_of_pythonpath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, installed = tmp_path / "here", tmp_path / "installed"
    here.mkdir()
    installed.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "link").symlink_to(here)
    monkeypatch.setattr(sys, "path", ["", ".", str(here), str(tmp_path / "link"), str(installed), *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "relative"]))
    path = safe_import_path()
    assert str(installed) in path
    assert not {"", ".", "relative", str(here), str(tmp_path / "link")} & set(path)
    monkeypatch.setenv("PYTHONPATH", f"{here}:")
    assert str(here) in safe_import_path()


def test_a_child_finds_packages_that_only_the_parent_can_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `pip install --target` or `--user`: -I alone would not find them."""
    (tmp_path / "only_here.py").write_text(
        "import os, sys, msgspec; print(sys.argv[1:], os.getcwd(), sys.flags.isolated)"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    child = module_child("only_here", "a word")
    done = subprocess.run(child.argv, cwd=child.cwd, env=child.env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("['a word'] / 1\n", "")


def test_a_child_without_an_interpreters_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "python3")
    with pytest.raises(proofbox.ProofboxError, match="path of the Python interpreter"):
        script_child("worker.py")


def sources() -> Iterator[Path]:
    for module in pkgutil.walk_packages(proofbox.__path__, "proofbox."):
        place = Path(proofbox.__path__[0]).parent.joinpath(*module.name.split("."))
        yield place / "__init__.py" if module.ispkg else place.with_suffix(".py")


def test_interpreters_are_started_in_one_place_only() -> None:
    own = Path(str(interpreter.__file__))
    using = [
        path
        for path in sources()
        if re.search("executable|multiprocessing", path.read_text())
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr == "executable" and ast.unparse(node) == "sys.executable")
        or (isinstance(node, ast.Import | ast.ImportFrom) and "multiprocessing" in ast.unparse(node))
    ]
    assert set(using) == {own}
