"""ripgrep and Python find the same lines, even for hostile patterns, and both refuse unsupported patterns."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from pacing import SOON

from proofbox.errors import PatternRefused, SearchTimedOut
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.search import finder
from proofbox.workspace.search.dialect import SearchPattern, compile_pattern
from proofbox.workspace.search.engines import PythonEngine, RipgrepEngine, SearchEngine, best_engine
from proofbox.workspace.search.finder import MAX_FILE_SIZE, Search, SearchHits, search
from proofbox.workspace.tools.environments.files import FileTools
from proofbox.workspace.tools.environments.handles import DirectoryTree
from proofbox.workspace.tools.environments.memory import MemoryEnvironment, MemoryTree
from proofbox.workspace.tools.environments.search_source import TreeSource

pytestmark = pytest.mark.needs("ripgrep")

# Text of few characters, so that patterns match: words, spaces, punctuation, non-ASCII, invalid UTF-8, newlines.
ALPHABET = [b"a", b"b", b"A", b"_", b"0", b" ", b".", b"-", b"\t", b"\r", b"\n", "é".encode(), "€".encode()]
ALPHABET += ["𝄞".encode(), b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\x0b", b"\x1b", "\u2028".encode()]
content = st.lists(st.sampled_from(ALPHABET), max_size=30).map(b"".join)
names = st.sampled_from(["a", "b.py", "d/a", "d/e/f.py", "d-a", ".hid", ".git/x", "d/.git", "node/x", "é"])
trees = st.dictionaries(names, content, max_size=6).filter(
    lambda files: not any(a != b and b.startswith(f"{a}/") for a in files for b in files)
)

letters = st.sampled_from(["a", "b", "A", "0", " ", "é", "€", "𝄞", r"\.", r"\-", r"\t", "_"])
members = st.sampled_from(["a", "a-z", "A-Z", "0-9", r"\d", r"\w", r"\S", r"\W", "é-€", r"\]", r"\^", "_", r"\\", "."])
classes = st.tuples(st.sampled_from(["", "^"]), st.lists(members, min_size=1, max_size=3)).map(
    lambda parts: f"[{parts[0]}{''.join(parts[1])}]"
)
atoms = st.one_of(letters, classes, st.sampled_from([".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"]))
repeats = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "{2}", "{0,2}", "{1,}", "??"])
anchors = st.sampled_from(["^", "$", r"\b"])


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(["(", "(?:"]), inner, repeats).map(lambda p: f"{p[0]}{p[1]}){p[2]}")
    return st.one_of(group, st.lists(inner, min_size=1, max_size=3).map("".join), st.tuples(inner, inner).map("|".join))


patterns = st.recursive(st.one_of(st.tuples(atoms, repeats).map("".join), anchors), grown, max_leaves=6)


def both(root: Path, request: Search, top: str = ".") -> tuple[SearchHits, SearchHits]:
    """Search by ripgrep and by Python. ripgrep finds the same among the first files as by looking for candidates."""
    found = []
    tree = DirectoryTree(root)
    try:
        for engine, first_files in ((best_engine(), 0), (best_engine(), 1), (best_engine(), 100), (PythonEngine(), 0)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(finder, "_FIRST_FILES", first_files)
                found.append(search(request, TreeSource(tree, top, Ignore(["node"])), engine))
    finally:
        tree.close()
    assert found[0] == found[1] == found[2]
    return found[0], found[3]


def fill(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def expected(files: dict[str, bytes], pattern: str) -> list[tuple[str, int]]:
    """Return the expected matches, line by line: a simple oracle that shares no code with the engines."""
    due = []
    for name in sorted(files, key=os.fsencode):
        if {".git", "node"} & set(name.split("/")) or b"\0" in files[name]:
            continue
        lines = files[name].split(b"\n")
        for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 1):
            if re.search(pattern, line.decode("utf-8", "surrogateescape"), re.ASCII):
                due.append((name, number))
    return due


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None)
@given(files=trees, pattern=patterns, ignore_case=st.booleans(), context=st.integers(0, 2), most=st.integers(1, 9))
@example(files={"a": b"x\n\n"}, pattern="^$", ignore_case=False, context=1, most=9)
@example(files={"a": b"\xff\xc3\xa9"}, pattern=".", ignore_case=False, context=0, most=9)
@example(files={"a": b"A\r\n"}, pattern="a$", ignore_case=True, context=0, most=9)
def test_both_engines_find_the_same_lines(
    files: dict[str, bytes],
    pattern: str,
    ignore_case: bool,
    context: int,
    most: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("tree")
    fill(root, files)
    request = Search(pattern, max_matches=most, context=context, ignore_case=ignore_case)
    try:
        compile_pattern(pattern)
    except PatternRefused:
        assume(False)
    ripgrep, python = both(root, request)
    assert ripgrep == python
    assert len(ripgrep.lines) <= most
    if not ignore_case and not re.search(r"\\[DWS]|\[\^|\.|é-", pattern):
        # Only for patterns without complements: the oracle's complements also match undecodable bytes.
        due = expected(files, pattern)
        assert [(line.path, line.line) for line in ripgrep.lines] == due[:most]
        assert ripgrep.truncated == (len(due) > most)


@given(st.text(max_size=12), st.booleans())
def test_any_pattern_is_refused_or_matches_the_same_in_both(pattern: str, ignore_case: bool) -> None:
    text = b"abc ABC 0-9_\n(a)[b]{c}\n\n" + pattern.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n"
    try:
        compiled = compile_pattern(pattern, ignore_case=ignore_case)
    except PatternRefused:
        return
    engine = best_engine()
    assert isinstance(engine, RipgrepEngine)
    assert engine.lines(compiled, text, 10, 20.0) == PythonEngine().lines(compiled, text, 10, 20.0)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), min_size=1, max_size=12))
def test_literal_search_finds_any_text(text: str) -> None:
    compiled = compile_pattern(text, literal=True)
    data = f"before\n{text}\nafter\n".encode()
    line = [n for n, each in enumerate(data.split(b"\n"), 1) if text.encode() in each]
    for engine in (best_engine(), PythonEngine()):
        assert engine.lines(compiled, data, 10, 20.0) == line
    found = search(Search(text, literal=True), TreeSource(MemoryTree({"f": data}), ".", Ignore(())))
    assert [each.line for each in found.lines] == line


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?=a)", "(?!a)", "(?<=a)", "(?<n>a)", "(?P<n>a)", "(?i)a", "(?#x)", r"\1", r"\k<n>", r"\p{L}", r"\x41"),
        *(
            r"\u0041",
            r"\Aa",
            r"a\Z",
            r"\B",
            r"\n",
            r"\N",
            "a\nb",
            "a\0",
            "a++",
            "a*+",
            "a**",
            "a{2}{3}",
            "{2}",
            "a{,3}",
        ),
        *(
            "a{3,1}",
            "a{1001}",
            "(a{100}){100}",
            "a{99999999999}",
            "[[:alpha:]]",
            "[a&&b]",
            "[a--b]",
            "[]",
            "[^]",
            "[b-a]",
        ),
        *("[a", "(a", "a)", "*a", "^*", r"\b+", "a\\", "[\\", "]", "}", "\ud800", "(" * 60 + ")" * 60, "a" * 1001, ""),
    ],
)
def test_unsupported_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        compile_pattern(pattern)


def test_exponential_pattern_times_out_in_python_but_not_in_ripgrep(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 40 + "!\n")
    request = Search("(a|a)*(a|a)*b$", deadline=1.0)
    tree = DirectoryTree(tmp_path)
    began = time.monotonic()
    with pytest.raises(SearchTimedOut) as caught:
        search(request, TreeSource(tree, ".", Ignore(())), PythonEngine())
    assert time.monotonic() - began < SOON
    assert caught.value.fix_hints
    assert search(Search(request.pattern), TreeSource(tree, ".", Ignore(())), best_engine()).lines == ()
    tree.close()


@pytest.mark.parametrize("first_files", [0, 100])
@pytest.mark.parametrize("engine", [best_engine(), PythonEngine()], ids=lambda each: each.name)
def test_binary_large_and_ignored_files_are_skipped(
    tmp_path: Path, engine: SearchEngine, first_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "_FIRST_FILES", first_files)
    fill(tmp_path, {"plain": b"needle", "binary": b"needle\0", "late": b"needle" + b" " * 9000 + b"\0"})
    fill(tmp_path, {".git/f": b"needle", "node/f": b"needle", ".gitignore": b"plain\nneedle", ".ignore": b"plain"})
    with (tmp_path / "giant").open("wb") as file:
        file.write(b"needle\n")
        file.truncate(MAX_FILE_SIZE + 1)
    (tmp_path / "secret").write_bytes(b"needle")
    (tmp_path / "link").symlink_to("plain")
    if os.geteuid() != 0:
        (tmp_path / "secret").chmod(0)
    else:
        (tmp_path / "secret").unlink()
    tree = DirectoryTree(tmp_path)
    found = search(Search("needle"), TreeSource(tree, ".", Ignore(["node"])), engine)
    assert [line.path for line in found.lines] == [".gitignore", "late", "plain"]
    [first] = [line for line in found.lines if line.path == "late"]
    assert len(first.text) == 500
    named = search(Search("needle"), TreeSource(tree, "node", Ignore(["node"])), engine)
    assert [line.path for line in named.lines] == ["node/f"]
    tree.close()


@pytest.mark.parametrize("first_files", [0, 100])
def test_giant_file_delays_the_search_by_at_most_the_patience(
    tmp_path: Path, first_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "_FIRST_FILES", first_files)
    (tmp_path / "plain").write_text("needle\n")
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(1 << 40)  # a hole: reads as a terabyte
    engine = RipgrepEngine(str(shutil.which("rg")), timeout=0.5)
    tree = DirectoryTree(tmp_path)
    found = search(Search("needle"), TreeSource(tree, ".", Ignore(())), engine)
    assert [line.path for line in found.lines] == ["plain"]
    tree.close()


def test_both_engines_search_files_in_memory(tmp_path: Path) -> None:
    files = {"a/b.py": b"one\ntwo\n", "c.txt": b"two"}
    for engine in (best_engine(), PythonEngine()):
        found = search(Search("two", glob="*.{py,txt}"), TreeSource(MemoryTree(files), ".", Ignore(())), engine)
        assert [(line.path, line.line) for line in found.lines] == [("a/b.py", 2), ("c.txt", 1)]
    assert MemoryEnvironment({"x": "y"}).search_text("y").matches[0].path == "x"


def test_python_engine_is_used_without_ripgrep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert best_engine().name == "python"


def test_both_engines_find_deeply_nested_files(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    file = os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here)
    os.write(file, b"needle")
    os.close(file)
    os.close(here)
    ripgrep, python = both(tmp_path, Search("needle"))
    assert ripgrep == python
    assert len(ripgrep.lines) == 1


def test_many_files_are_searched_in_batches(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count = rounds(600, 5000)
    files = {f"d{n % 7}/f{n:04}": (b"filler\n" * 200 + b"needle %d\n" % n) for n in range(count)}
    fill(tmp_path, files)
    ripgrep, python = both(tmp_path, Search("needle", max_matches=count))
    assert ripgrep == python
    assert [line.path for line in ripgrep.lines] == sorted(files)
    assert all(line.line == 201 for line in ripgrep.lines)


def test_ripgrep_inside_the_workspace_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "venv/bin/rg"
    planted.parent.mkdir(parents=True)
    planted.write_text("#!/bin/sh\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", str(planted.parent))
    assert best_engine(str(tmp_path)).name == "python"
    assert best_engine("/usr").name == best_engine().name == "ripgrep"


class _CountingEngine:
    """Counts how often all files are searched for candidates."""

    name = "counting"

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine
        self.asked = 0

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:
        self.asked += 1
        return self._engine.candidates(pattern, directory, top, seconds)

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        return self._engine.lines(pattern, text, most, seconds)

    def offsets(self, pattern: SearchPattern, files: list[int], most: int, seconds: float) -> list[list[int]] | None:
        return self._engine.offsets(pattern, files, most, seconds)


@pytest.mark.parametrize(("pattern", "asked"), [("common", 0), (r"com+on", 0), ("rare", 1), (r"ra[r]e", 1), ("no", 1)])
def test_common_pattern_is_found_in_the_first_files(tmp_path: Path, pattern: str, asked: int) -> None:
    for number in range(600):
        path = tmp_path / f"d{number % 7}" / f"e.{number % 3}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["common"] + ["rare"] * (number % 50 == 0) + ["x" * 4000]
        path.write_text("\n".join(lines) + "\n")
    tree = DirectoryTree(tmp_path)
    try:
        counting = _CountingEngine(best_engine())
        found = FileTools(tree, engine=counting).search_text(pattern, max_matches=300)
        assert found == FileTools(tree, engine=PythonEngine()).search_text(pattern, max_matches=300)
    finally:
        tree.close()
    assert counting.asked == asked
    assert len(found.matches) == {"common": 300, "com+on": 300, "no": 0}.get(pattern, 12)
