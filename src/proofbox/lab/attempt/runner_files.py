"""Files that common test runners load automatically: an agent could plant code there that runs inside the verifier.

A mission without `verify.protect` protects the configuration files of the runners in its `verify.commands`, and the
names under which a file of the agent would be imported instead of one of the runner's own modules. `unprotected` lists
for lint what is not covered.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from proofbox.lab.suite.spec import Verify, VerifyCommand
from proofbox.workspace.search.globs import Glob

ALWAYS = (
    "**/conftest.py",
    "**/sitecustomize.py",
    "**/usercustomize.py",
    "**/*.pth",
    "**/pytest.ini",
    "**/.pytest.ini",
    "**/tox.ini",
    "**/setup.cfg",
)
"""Hooks that are protected for all commands; missions seldom need to change them."""
COMPILED = (Glob("**/__pycache__/**"), Glob("**/*.pyc"))
"""Python loads a compiled file without checking its source. Every run of an agent creates some, so they are restored
without being reported."""
_NAMES = """
__future__ _pytest argparse array ast asyncio base64 bdb binascii bisect bz2 calendar cmd code codeop collections
colorsys concurrent contextlib contextvars copy copyreg csv dataclasses datetime decimal difflib dis email enum
errno exceptiongroup fcntl fnmatch fractions functools gettext glob gzip hashlib heapq hmac html http importlib
iniconfig inspect ipaddress itertools json keyword linecache locale logging lzma math mimetypes ntpath numbers
opcode operator packaging pathlib pdb pickle pkgutil platform pluggy pprint py pyexpat pygments pytest queue quopri
random re readline reprlib runpy select selectors shlex shutil signal socket ssl string stringprep struct
subprocess sysconfig tempfile textwrap threading token tokenize tomllib traceback types typing unicodedata unittest
urllib uuid warnings weakref xml zipfile zlib zoneinfo
"""
MODULES = frozenset(_NAMES.split())
"""Modules that `python -m unittest` and `python -m pytest` import. A file with one of these names in a directory that
Python searches first is loaded instead, before any test."""


class KnownRunner(NamedTuple):
    """A test runner, recognized by the words of a command that start it."""

    name: str
    words: re.Pattern[str]
    loads: tuple[str, ...] = ()
    """Globs of its configuration."""
    unprotected: str = ""
    """Other files of the agent that it loads, for the lint warning."""


def _runner(name: str, words: str, *loads: str, unprotected: str = "") -> KnownRunner:
    return KnownRunner(name, re.compile(rf"(?<![\w./-])(?:\S*/)?(?:{words})(?![\w-])"), loads, unprotected)


PYTHON = _runner("Python", r"python[0-9.]*|pytest|py\.test|unittest|tox|nox|coverage")
RUNNERS = (
    _runner("pytest", r"pytest|py\.test|tox|nox|coverage", "**/pyproject.toml", "**/pytest.toml", "**/.coveragerc"),
    _runner("nox", "nox", "noxfile.py"),
    _runner(
        "npm",
        "npm|npx|yarn|pnpm|bun|node|jest|vitest|mocha",
        *("**/package.json", "**/.npmrc", "**/.yarnrc*", "**/jest.config.*", "**/vitest.config.*", "**/vite.config.*"),
        *("**/vitest.workspace.*", "**/.mocharc*", "**/babel.config.*", "**/.babelrc*"),
        unprotected="programs and packages in node_modules",
    ),
    _runner("make", "g?make", "**/Makefile", "**/makefile", "**/GNUmakefile"),
    _runner("cargo", "cargo", "**/Cargo.toml", "**/build.rs", "**/.cargo/*", "**/rust-toolchain*"),
    _runner("go", "go", "**/go.work", unprotected="TestMain and init functions in any *_test.go file"),
    _runner("bundler", "bundle|rake|rspec", "**/Gemfile", "**/Rakefile", "**/.rspec", unprotected="spec_helper.rb"),
    _runner("maven", "mvnw?", "**/pom.xml", "**/.mvn/*"),
    _runner("gradle", "gradlew?", "**/*.gradle", "**/*.gradle.kts", "**/gradle/wrapper/*", "**/gradle.properties"),
)


class Protection:
    """The paths of a workspace that the verifier restores to their original content."""

    def __init__(self, verify: Verify) -> None:
        lines = [_line(each) for each in verify.commands]
        found = [each for each in RUNNERS if any(each.words.search(line) for line in lines)]
        self.by_default = verify.protect is None
        default = dict.fromkeys((*ALWAYS, *(glob for each in found for glob in each.loads)))
        self.patterns: tuple[str, ...] = tuple(default) if verify.protect is None else verify.protect
        self._globs = [_glob(pattern) for pattern in self.patterns]
        in_python = verify.protect is None and any(PYTHON.words.search(line) for line in lines)
        self._folders = {"", *filter(None, map(_script_folder, lines))} if in_python else set()
        self.runners = tuple(found)

    def covers(self, path: str, *, is_link: bool = False) -> bool:
        """Return whether a path is protected."""
        if any(glob.matches(path) for glob in self._globs):
            return True
        module = imported_as(path, is_link=is_link)
        if module is None:
            return False
        folder, _, name = module.rpartition("/")
        return folder in self._folders and name in MODULES


@lru_cache(maxsize=256)
def _glob(pattern: str) -> Glob:
    return Glob(pattern)  # compiled once: every attempt at a mission has the same patterns


class OverlaidFiles:
    """The files that are copied over the agent's; Python must not load anything in their place."""

    def __init__(self, files: Path | None) -> None:
        self._paths = frozenset() if files is None else frozenset(str(p.relative_to(files)) for p in files.rglob("*"))
        self._modules = {imported_as(path, is_link=False) for path in self._paths} - {None}

    def shadowed_by(self, path: str, *, is_link: bool) -> bool:
        """Return whether Python would load a path of the agent instead of one of these files."""
        return path not in self._paths and imported_as(path, is_link=is_link) in self._modules


def imported_as(path: str, *, is_link: bool) -> str | None:
    """Return the module that Python would load from a path, as a path without suffix; for `__init__`, the package.

    A directory without `__init__` shadows nothing, but a link may point to a directory that has one.
    """
    folder, slash, name = path.rpartition("/")
    stem, _, suffix = name.partition(".")
    if is_link and not suffix:
        return path
    if suffix.rpartition(".")[2] not in ("py", "pyc", "so"):
        return None
    return folder if stem == "__init__" else folder + slash + stem


def unprotected(verify: Verify, given: Sequence[str]) -> Iterator[str]:
    """Yield lint warnings for files that the verifier runs and the agent can change. `given` lists `verify.files`."""
    protection = Protection(verify)
    taken = [Glob(pattern) for pattern in verify.take]
    if not protection.by_default:
        for each in protection.runners:
            if left_out := [glob for glob in each.loads if glob not in protection.patterns]:
                yield f"verify.protect omits files that {each.name} loads automatically: {', '.join(left_out)}"
    for each in protection.runners:
        if each.unprotected:
            yield f"{each.name} loads {each.unprotected}, which are not protected"
    for command in verify.commands:
        program = _own_program(command)
        if program is None or program in given or protection.covers(program):
            continue
        if not taken or any(glob.matches(program) for glob in taken):
            yield f"{program} is run by the verifier but can be changed by the agent: move it to verify.files"
    path = verify.env.get("PATH")
    if path is not None and any(not entry.startswith("/") for entry in path.split(":")):
        yield "verify.env.PATH contains a relative directory: the agent could place a program there"


def _line(command: str | tuple[str, ...] | VerifyCommand) -> str:
    run = command.run if isinstance(command, VerifyCommand) else command
    return run if isinstance(run, str) else shlex.join(run)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # an unclosed quote: the shell will report it
        return line.split()


def _own_program(command: str | tuple[str, ...] | VerifyCommand) -> str | None:
    """Return the workspace path of the program or script that a command starts, or None."""
    words = [word for word in _words(_line(command)) if not re.fullmatch(r"\w+=.*", word)]
    if not words:
        return None
    interpreter = re.fullmatch(r"(?:/\S*/)?(?:python[0-9.]*|(?:ba|da)?sh|node|ruby|perl)", words[0])
    first = next((word for word in words[1:] if not word.startswith("-")), "") if interpreter else words[0]
    if interpreter and any(word in ("-c", "-m", "-e") for word in words[1:]):
        return None
    if not first or first.startswith("/") or (not interpreter and "/" not in first):
        return None
    return posixpath.normpath(first)


def _script_folder(line: str) -> str | None:
    """Return the directory of the Python script that a command line runs: Python imports from there first."""
    found = re.search(r"(?<![\w./-])(?:\S*/)?python[0-9.]*\s+(?:-[A-Za-z]+\s+)*([^\s-]\S*\.py)\b", line)
    return None if found is None else posixpath.dirname(posixpath.normpath(found[1])) or None
