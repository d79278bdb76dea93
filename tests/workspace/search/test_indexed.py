"""A search with a packed copy of the files finds the same lines as one without, whatever happens to the files."""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proofbox.errors import SearchTimedOut
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.scanning.writeback import protects_on_writeback
from proofbox.workspace.search import finder, indexed, packed
from proofbox.workspace.search.dialect import SearchPattern
from proofbox.workspace.search.engines import best_engine
from proofbox.workspace.search.finder import MAX_FILE_SIZE, Search, SearchHits, search
from proofbox.workspace.search.indexed import IndexedEngine
from proofbox.workspace.tools.environments.handles import DirectoryTree
from proofbox.workspace.tools.environments.search_source import TreeSource

pytestmark = pytest.mark.needs("ripgrep")

CLOCK_REALTIME_COARSE = 5
IGNORE = Ignore(["node"])
PATTERNS = ("needle", "^ab", "b$", "[^a-z]e")


class CountingEngine:
    """ripgrep, with the number of searches of all files, and of the copy."""

    name = "counting"

    def __init__(self) -> None:
        self._engine = best_engine()
        self.files = self.copy = 0

    def candidates(self, pattern: SearchPattern, directory: str, top: str, seconds: float) -> list[str] | None:
        self.files += 1
        return self._engine.candidates(pattern, directory, top, seconds)

    def lines(self, pattern: SearchPattern, text: bytes, most: int, seconds: float) -> list[int]:
        return self._engine.lines(pattern, text, most, seconds)

    def offsets(self, pattern: SearchPattern, files: list[int], most: int, seconds: float) -> list[list[int]] | None:
        self.copy += 1
        return self._engine.offsets(pattern, files, most, seconds)


class Searched:
    """A directory that is searched with a copy and without one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = DirectoryTree(root)
        self.counting = CountingEngine()
        self.engine = IndexedEngine(str(root), IGNORE, self.counting)
        self.engine._seconds = {"": 1.0, "d": 1.0, "node/x": 1.0, ".git": 1.0}  # as if searches were slow

    def find(self, pattern: str, top: str = ".", most: int = 200) -> SearchHits:
        """Search both ways, and return the equal results."""
        request = Search(pattern, max_matches=most)
        found = search(request, TreeSource(self.tree, top, IGNORE), self.engine)
        assert found == search(request, TreeSource(self.tree, top, IGNORE), best_engine())
        return found

    def paths(self, pattern: str = "needle", top: str = ".") -> list[str]:
        return [line.path for line in self.find(pattern, top).lines]

    def close(self) -> None:
        self.engine.close()
        self.tree.close()


@contextmanager
def eager() -> Iterator[pytest.MonkeyPatch]:
    """The copy is made by the first search, on every file system, and used by all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finder, "_FIRST_FILES", 0)
        patch.setattr(indexed, "SLOW", 1e-9)
        patch.setattr(indexed, "PATIENCE", 0)
        patch.setattr(indexed, "_TOLERATED", math.inf)
        patch.setattr(packed, "protects_on_writeback", lambda _fd: True)
        patch.setattr(packed, "MIN_FREE", 0)
        yield patch


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with eager() as made:
        yield made


@pytest.fixture
def searched(tmp_path: Path, patch: pytest.MonkeyPatch) -> Iterator[Searched]:
    root = tmp_path / "files"
    root.mkdir()
    made = Searched(root)
    yield made
    made.close()


class Edits:
    """Changes of files of every kind, with the mappings that stay open. An impossible one changes nothing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mapped: list[mmap.mmap] = []

    def apply(self, kind: str, first: str, second: str, data: bytes) -> None:
        with suppress(OSError, ValueError, shutil.Error):
            getattr(self, kind)(self._root / first, self._root / second, data)

    def write(self, path: Path, _other: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def append(self, path: Path, _other: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def truncate(self, path: Path, _other: Path, data: bytes) -> None:
        os.truncate(path, len(data) // 2)

    def disguise(self, path: Path, _other: Path, data: bytes) -> None:
        """Write without a change of the size and of the time of the last change."""
        before = path.stat()
        with path.open("r+b") as file:
            file.write(data[: before.st_size])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def map(self, path: Path, _other: Path, data: bytes) -> None:
        with path.open("r+b") as file:
            self._mapped.append(mmap.mmap(file.fileno(), 0))
        assert self._mapped[-1][0] >= 0
        self.store(path, _other, data)

    def store(self, _path: Path, _other: Path, data: bytes) -> None:
        for each in self._mapped:
            each[: len(data)] = data[: len(each)].ljust(len(data[: len(each)]))

    def rename(self, path: Path, other: Path, _data: bytes) -> None:
        other.parent.mkdir(parents=True, exist_ok=True)
        path.rename(other)

    def rename_parent(self, path: Path, other: Path, _data: bytes) -> None:
        if path.parent != self._root:
            path.parent.rename(other.parent if other.parent != self._root else other)

    def exchange(self, path: Path, other: Path, _data: bytes) -> None:
        spare = self._root / "spare"
        path.rename(spare)
        other.rename(path)
        spare.rename(other)

    def hard_link(self, path: Path, other: Path, _data: bytes) -> None:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.hardlink_to(path)

    def symbolic_link(self, path: Path, other: Path, _data: bytes) -> None:
        shutil.rmtree(other) if other.is_dir() and not other.is_symlink() else other.unlink(missing_ok=True)
        other.symlink_to(path)

    def remove(self, path: Path, _other: Path, _data: bytes) -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def settle(self, _path: Path, _other: Path, _data: bytes) -> None:
        """Wait until the clock of file times advances, so that the times of all files are trusted."""
        now = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
        while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) == now:
            os.sched_yield()

    def close(self) -> None:
        for each in self._mapped:
            each.close()


KINDS = [name for name in vars(Edits) if not name.startswith("_") and name not in ("apply", "close")]
names = st.sampled_from(["a", "b", "d/a", "d/b", "d/kept", "d/e/a", "f/a", ".git/a", "node/a", "d"])
texts = st.lists(st.sampled_from([b"needle", b"ab", b"\n", b" e", b"x" * 20, b"\0"]), min_size=1, max_size=8)
edits = st.tuples(st.sampled_from(KINDS), names, names, texts.map(b"".join))
steps = st.tuples(st.lists(edits, max_size=4), st.sampled_from(PATTERNS), st.sampled_from([".", ".", "d"]))
START = [("write", "a", "a", b"x" * 40 + b"\n"), ("write", "d/a", "a", b"needle\n"), ("settle", "a", "a", b"")]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps=st.lists(steps, min_size=1, max_size=8))
@example(steps=[(START, "needle", "."), ([("disguise", "a", "a", b"needle")], "needle", ".")])
@example(
    steps=[([*START, ("map", "a", "a", b"x"), ("settle", "a", "a", b"")], "needle", ".")]
    + [([("store", "a", "a", each)], "needle", ".") for each in (b"needle", b"absent", b"needle")]
)
@example(steps=[(START, "needle", "."), ([("rename_parent", "d/a", "f/a", b"")], "needle", ".")])
@example(steps=[(START, "needle", "."), ([("symbolic_link", "d", "f", b""), ("exchange", "d", "f", b"")], "^ab", ".")])
def test_edits_between_searches_never_change_the_results(
    steps: list[tuple[list[tuple[str, str, str, bytes]], str, str]],
) -> None:
    with TemporaryDirectory() as place, eager():
        searched, made = Searched(Path(place)), Edits(Path(place))
        searched_file(searched, "kept", b"")
        try:
            for changes, pattern, top in steps:
                for change in changes:
                    made.apply(*change)
                kept = searched.root / top / "kept"  # in a directory without files, nothing is searched
                is_file = kept.is_file() and kept.resolve() == searched.root.resolve() / top / "kept"
                searched.find(pattern, top if is_file else ".")
            assert searched.engine.has_copy
            assert searched.counting.copy == len(steps)
            assert searched.counting.files == 0
        finally:
            made.close()
            searched.close()


def test_unchanged_files_are_not_read_again(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    with searched_file(searched, "a").open("rb") as file:
        if not protects_on_writeback(file.fileno()):
            pytest.skip("the times of files are not trusted on this file system")
    Edits(searched.root).settle(searched.root, searched.root, b"")
    assert searched.paths() == ["a"]
    assert searched.paths() == ["a"]  # the directory was listed within a clock tick of its change
    patch.setattr(packed._PackedText, "put", None)
    assert searched.paths() == ["a"]


def searched_file(searched: Searched, name: str, data: bytes = b"a needle\n") -> Path:
    path = searched.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_binary_and_large_files_are_found_once_they_are_text(searched: Searched) -> None:
    binary = searched_file(searched, "binary", b"\0needle")
    large = searched_file(searched, "large", b"needle\n" + b"x" * MAX_FILE_SIZE)
    assert searched.paths() == []
    binary.write_bytes(b"needle")
    os.truncate(large, MAX_FILE_SIZE)
    assert searched.paths() == ["binary", "large"]
    assert searched.counting.files == 0


def test_ignored_directory_is_searched_without_the_copy(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    searched_file(searched, "node/x/a")
    searched_file(searched, ".git/a")
    assert searched.paths() == []
    assert searched.counting.files == 0
    patch.setattr(packed.PackedTree, "update", None)  # it would be brought up to date in vain
    assert searched.paths(top="node/x") == ["node/x/a"]
    assert searched.paths(top=".git") == [".git/a"]
    assert searched.counting.files == 2


def test_directory_that_is_too_deep_for_a_copy_is_searched(searched: Searched) -> None:
    path = "/".join(["d"] * 202) + "/a"
    searched_file(searched, path)
    assert searched.paths() == [path]
    assert not searched.engine.has_copy


def test_frequent_matches_are_searched_in_the_files(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed, "_MOST_LINES", 5)
    searched_file(searched, "a", b"needle\n" * 4)
    assert len(searched.find("needle").lines) == 4
    searched_file(searched, "b", b"needle\n" * 5)
    assert len(searched.find("needle", most=7).lines) == 7
    assert searched.counting.files == 1


# Limits


def test_copy_is_made_after_several_slow_searches(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    searched_file(searched, "a")
    patch.setattr(indexed, "PATIENCE", 3)
    engine = IndexedEngine(str(searched.root), IGNORE, searched.counting)
    searched.engine = engine
    made = []
    for _ in range(5):
        searched.paths()
        made.append(engine.has_copy)
    assert made == [False, False, False, True, True]
    patch.setattr(indexed, "SLOW", 1e9)
    searched.paths()
    assert (searched.counting.files, searched.counting.copy) == (4, 2)


def test_file_system_without_trusted_times_has_no_copy(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed, "protects_on_writeback", lambda _fd: False)
    searched_file(searched, "a")
    assert searched.paths() == searched.paths() == ["a"]
    assert not searched.engine.has_copy


def test_tree_that_is_too_large_has_no_copy(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed, "MAX_SIZE", 20)
    searched_file(searched, "a", b"needle" * 5)
    assert searched.paths() == searched.paths() == ["a"]
    assert not searched.engine.has_copy
    assert searched.counting.copy == 0


def test_copy_that_has_grown_is_recreated(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packed, "MAX_SIZE", 100)
    for number in range(50):
        searched_file(searched, "a", b"needle %d\n" % number)
        assert searched.paths(f"needle {number}$") == ["a"]
        assert searched.engine._packed is None or searched.engine._packed._text._size <= 100
    assert searched.counting.copy > searched.counting.files > 0


@pytest.mark.parametrize("failure", ["full", "almost full", "no cache directory"])
def test_copy_that_cannot_be_written_is_given_up(
    searched: Searched, patch: pytest.MonkeyPatch, failure: str, tmp_path: Path
) -> None:
    class FullDisk:
        def write(self, _data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    searched_file(searched, "a")
    assert searched.paths() == ["a"]
    copy = searched.engine._packed
    assert copy is not None
    if failure == "full":
        files = [shard.file for shard in copy._text._shards]
        for shard in copy._text._shards:
            patch.setattr(shard, "file", FullDisk())
        patch.setattr(copy._text, "close", lambda: [file.close() for file in files])
    else:
        searched.engine._give_up(0)
        patch.setattr(packed, "MIN_FREE", 1 << 62)
        if failure == "no cache directory":
            patch.setenv("XDG_CACHE_HOME", str(searched_file(searched, "file", b"")))
    searched_file(searched, "b")
    assert searched.paths() == ["a", "b"]
    assert not searched.engine.has_copy
    assert not list(tmp_path.glob("cache/**/tmp*"))


def test_copy_has_no_name_and_ends_with_the_engine(searched: Searched) -> None:
    searched_file(searched, "a")
    searched.paths()
    assert searched.engine._packed is not None
    files = [shard.file for shard in searched.engine._packed._text._shards]
    info = os.fstat(files[0].fileno())
    assert (info.st_nlink, info.st_mode & 0o777) == (0, 0o600)
    assert not os.get_inheritable(files[0].fileno())
    searched.engine.close()
    assert all(file.closed for file in files)
    assert searched.paths() == ["a"]
    assert not searched.engine.has_copy


@pytest.mark.parametrize(("work", "is_kept"), [(0.2, True), (0.3, False), (None, False)])
def test_copy_is_given_up_when_most_files_have_changed(
    searched: Searched, patch: pytest.MonkeyPatch, work: float | None, is_kept: bool
) -> None:
    """How many unchanged files a scan reads again depends on when the kernel has written them to the disk."""
    patch.setattr(indexed, "_TOLERATED", 0.25)
    for _ in range(2):
        for number in range(40):
            searched_file(searched, f"{number}/a")
        assert len(searched.paths()) == 40
        if work is not None and searched.engine._packed is not None:
            patch.setattr(searched.engine._packed, "update", lambda _end: work)
    assert searched.engine.has_copy == is_kept
    assert searched.counting.files == 0


def test_copy_that_cannot_be_searched_is_given_up(searched: Searched, patch: pytest.MonkeyPatch) -> None:
    searched_file(searched, "a")
    patch.setattr(searched.counting, "offsets", lambda *_: None)
    assert searched.paths() == searched.paths() == ["a"]
    assert not searched.engine.has_copy


def test_search_with_a_copy_times_out(searched: Searched) -> None:
    searched_file(searched, "a")
    searched.paths()
    with pytest.raises(SearchTimedOut):
        search(Search("needle", deadline=1e-6), TreeSource(searched.tree, ".", IGNORE), searched.engine)
    assert searched.paths() == ["a"]
