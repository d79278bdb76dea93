"""Swapping in a link between a check and an open gains nothing: outside files are never read, written or found."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proofbox.errors import CapabilityDenied, ProofboxError, ToolPathRefused
from proofbox.workspace.search.engines import PythonEngine, best_engine
from proofbox.workspace.tools.environments import handles
from proofbox.workspace.tools.environments.files import FileTools
from proofbox.workspace.tools.environments.handles import DirectoryTree
from proofbox.workspace.tools.tree import Access

EXCHANGE = 2
SECRET = "outside-needle"


def exchange(a: Path, b: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


class Swapper(threading.Thread):
    """Exchanges two names as fast as possible: a directory or file inside the root, and a link to the outside."""

    def __init__(self, *pairs: tuple[Path, Path]) -> None:
        super().__init__(daemon=True)
        self._pairs = pairs
        self._enough = threading.Event()

    def run(self) -> None:
        while not self._enough.is_set():
            for a, b in self._pairs:
                exchange(a, b)

    def stop(self) -> None:
        self._enough.set()
        self.join()


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path]:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "d", root / "kept", outside / "d"):
        folder.mkdir(parents=True)
    for place in (root / "d/f", root / "g"):
        place.write_text("ours-needle\n")
    for place in (outside / "d/f", outside / "g"):
        place.write_text(SECRET + "\n")
    (root / "kept/d").symlink_to(outside / "d")
    (root / "kept/g").symlink_to(outside / "g")
    return root, outside


@pytest.mark.parametrize("openat2", [True, False])
def test_swapped_in_link_is_not_followed(
    world: tuple[Path, Path], openat2: bool, rounds: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not openat2:
        monkeypatch.setattr(handles, "open_beneath", lambda *_: None)
    root, outside = world
    tree = DirectoryTree(root)
    env = FileTools(tree)
    swapper = Swapper((root / "d", root / "kept/d"), (root / "g", root / "kept/g"))
    swapper.start()
    done = refused = 0
    attempts: list[Callable[[], object]] = [
        lambda: env.read_file("d/f").content,
        lambda: env.read_file("g").content,
        lambda: env.write_file("d/new", "x"),
        lambda: env.write_file("g", "ours-needle\n"),
        lambda: env.edit_file("d/f", "ours", "ours-") and env.edit_file("d/f", "ours-", "ours"),
        lambda: env.list_directory("d"),
        lambda: env.list_files_recursive(),
        lambda: env.remove_file("d/new"),
    ]
    try:
        # Repeat until both sides of the race were seen: on one core, threads switch at unpredictable intervals.
        for number in itertools.count():
            if number >= rounds(2000, 40_000) and min(done, refused) > 50:
                break
            try:
                given = attempts[number % len(attempts)]()
            except ProofboxError:
                refused += 1
            else:
                done += 1
                assert SECRET not in str(given)
    finally:
        swapper.stop()
        tree.close()
    assert sorted(os.listdir(outside)) == ["d", "g"]
    assert os.listdir(outside / "d") == ["f"]
    assert (outside / "d/f").read_text() == (outside / "g").read_text() == SECRET + "\n"


@pytest.mark.parametrize("engine", [best_engine(), PythonEngine()], ids=lambda each: each.name)
def test_search_never_shows_files_behind_a_link(
    world: tuple[Path, Path], engine: PythonEngine, rounds: Callable[..., int]
) -> None:
    root, _ = world
    tree = DirectoryTree(root)
    env = FileTools(tree, engine=engine)
    swapper = Swapper((root / "d", root / "kept/d"), (root / "g", root / "kept/g"))
    swapper.start()
    found = 0
    try:
        for number in itertools.count():
            if number >= rounds(30, 500) and found:
                break
            try:
                matches = env.search_text("needle").matches
            except ProofboxError:
                continue
            found += len(matches)
            assert all(SECRET not in match.text for match in matches)
    finally:
        swapper.stop()
        tree.close()


def test_guard_checks_the_path_that_is_opened(tmp_path: Path, rounds: Callable[..., int]) -> None:
    """The same inside the root: `public` alternates between a directory and a link to `secret`."""

    class NoSecrets:
        def check(self, access: Access, path: str) -> None:
            if path.startswith("secret"):
                raise CapabilityDenied(path)

        def visible(self, path: str) -> bool:
            return not path.startswith("secret")

    root = tmp_path / "root"
    for folder, text in (("public", "fine"), ("secret", SECRET)):
        (root / folder).mkdir(parents=True)
        (root / folder / "f").write_text(text)
    (root / "other").symlink_to("secret")
    tree = DirectoryTree(root, NoSecrets())
    env = FileTools(tree)
    swapper = Swapper((root / "public", root / "other"))
    swapper.start()
    seen = denied = 0
    try:
        for number in itertools.count():
            if number >= rounds(1000, 40_000) and min(seen, denied) > 20:
                break
            try:
                assert env.read_file("public/f").content == "fine"
                seen += 1
            except CapabilityDenied:
                denied += 1
            except ProofboxError:
                pass
    finally:
        swapper.stop()
        tree.close()


def test_deep_paths_use_few_file_descriptors(deep_path: Path) -> None:
    """File descriptors are a limited resource of the process."""
    most = 0
    opening = os.open

    def counting(*args: Any, **how: Any) -> int:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))
        return opening(*args, **how)

    tree = DirectoryTree(deep_path)
    before = len(os.listdir("/proc/self/fd"))
    deep = "/".join(["a"] * 1500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", counting)
        tree.write(f"{deep}/file", b"here", None)
        with pytest.raises(ToolPathRefused, match="deeper than 256"):
            tree.write(f"{deep}/more/file", b"there", None)
    with tree.open(f"{deep}/file") as found:
        assert found.stream.read() == b"here"
    tree.close()
    assert most - before < 300
