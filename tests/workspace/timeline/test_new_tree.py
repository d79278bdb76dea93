"""New directories written by `treewrite` and by Python."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proofbox import Workspace
from proofbox.errors import ProviderUnavailable, WorkspaceCorrupt
from proofbox.workspace.store import large_objects
from proofbox.workspace.store.trees import rows_of
from proofbox.workspace.timeline import new_tree
from proofbox.workspace.timeline.new_tree import write_new

SOURCES = Path(new_tree.__file__).parents[2] / "sandbox/agent/treewrite"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with everything that a snapshot can contain, and enough files for several batches."""
    root = tmp_path / "project"
    chance = random.Random(1)  # noqa: S311
    for folder in ("", "many", "deep/er", "n\udcffme"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(3 if folder != "many" else 1200):
            (root / folder / f"f\udcff{number}").write_bytes(chance.randbytes(number % 300))
    for length in (0, 1, 55, 56, 63, 64, 65, 119, 120, 127, 128, 4096, 70_000):
        (root / f"length-{length}").write_bytes(chance.randbytes(length))
    (root / "large").write_bytes(b"x" * (large_objects.LARGE + 1))
    (root / "script").write_text("#!/bin/sh\n")
    (root / "script").chmod(0o755)
    (root / "sticky").write_text("sticky")
    (root / "sticky").chmod(0o1604)
    (root / "link").symlink_to("nowhere")
    (root / "empty").mkdir()
    (root / "closed/inside").mkdir(parents=True)
    (root / "closed/file").write_text("closed")
    (root / "closed").chmod(0o555)
    return root


@pytest.fixture
def ws(root: Path) -> Iterator[Workspace]:
    with Workspace.init(root) as made:
        made.snapshot("first")
        yield made


@pytest.fixture(params=["treewrite", "python", "no process"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def unavailable(name: str) -> Path:
        raise ProviderUnavailable(name, op="test")

    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError

    way = str(request.param)
    if way == "python":
        monkeypatch.setattr(new_tree, "program", unavailable)
    elif way == "no process":
        monkeypatch.setattr(subprocess, "Popen", refused)
    return way


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        data = os.fsencode(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(root))] = (0 if path.is_symlink() else stat.S_IMODE(mode), data)
    return found


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_fork_has_the_same_files_and_modes(ws: Workspace, root: Path, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        fork = ws.fork("HEAD", tmp_path / "fork")
    finally:
        os.umask(before)
    with fork:
        assert contents(fork.path) == contents(root)
        assert fork.status().changes == ()
        assert fork.snapshot("sealed", sealed=True).id == ws.resolve("HEAD").id


@pytest.mark.usefixtures("writer")
def test_changes_directly_after_a_fork_are_found(ws: Workspace, tmp_path: Path) -> None:
    with ws.fork("HEAD", tmp_path / "fork", track=False) as fork:
        (fork.path / "script").write_text("#!/bin/ls\n")
        (fork.path / "many/new").write_text("new")
        (fork.path / "length-56").unlink()
        (fork.path / "empty").rmdir()
        found = {(change.path, change.kind) for change in fork.status().changes}
    assert found == {("script", "modified"), ("many/new", "added"), ("length-56", "deleted"), ("empty", "deleted")}


def test_damaged_content_is_refused_and_nothing_is_left(ws: Workspace, root: Path, tmp_path: Path, writer: str) -> None:
    stored = ws._store.place(hashlib.sha256((root / "many/f\udcff299").read_bytes()).digest())
    assert stored is not None
    place = os.pread(ws._store.pack_fd, 1, stored[0])
    os.pwrite(ws._store.pack_fd, bytes([place[0] ^ 1]), stored[0])
    with pytest.raises(WorkspaceCorrupt, match="damaged"):
        ws.fork("HEAD", tmp_path / "fork")
    assert [each.name for each in tmp_path.iterdir()] == ["project"], writer


@pytest.mark.usefixtures("writer")
def test_existing_file_is_not_overwritten(ws: Workspace, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "length-64").write_text("mine")
    with pytest.raises(FileExistsError, match="length-64"):
        write_new(ws._store, str(made), bytes.fromhex(ws.resolve("HEAD").id))
    assert (made / "length-64").read_text() == "mine"


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize("swapped", ["deep", "deep/er"])
def test_nothing_is_written_through_a_link_that_replaces_a_directory(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """A box that can write to the new directory renames a part of it, and leaves a link in its place."""
    made, outside = tmp_path / "made", tmp_path / "outside"
    for each in (made, outside / "er"):
        each.mkdir(parents=True)

    def replace(*args: Any) -> Any:
        place = made / swapped
        if (made / "deep/er").exists() and not place.is_symlink():
            place.rename(tmp_path / "moved")
            place.symlink_to(outside)
        return rows_of(*args)

    monkeypatch.setattr(new_tree, "rows_of", replace)
    with pytest.raises(OSError, match=r"deep|er"):
        write_new(ws._store, str(made), bytes.fromhex(ws.resolve("HEAD").id))
    assert [each.name for each in outside.rglob("*")] == ["er"]


@pytest.mark.needs("cc")
def test_digests_without_instructions_of_the_processor_are_the_same(tmp_path: Path) -> None:
    main = """
        #include <stdio.h>
        #include "sha256.h"
        int main(void) {
            static uint8_t data[300], digest[32];
            for (int n = 0; n < 300; n++) data[n] = (uint8_t)(n * 7);
            for (size_t length = 0; length < 300; length++) {
                sha256(data, length, digest);
                fwrite(digest, 32, 1, stdout);
            }
        }"""
    (tmp_path / "main.c").write_text(main)
    program = tmp_path / "main"
    sources = [str(tmp_path / "main.c"), str(SOURCES / "sha256.c")]
    subprocess.run(["cc", "-O1", "-DPORTABLE", f"-I{SOURCES}", "-o", str(program), *sources], check=True)
    data = bytes(n * 7 % 256 for n in range(300))
    expected = b"".join(hashlib.sha256(data[:length]).digest() for length in range(300))
    assert subprocess.run([str(program)], capture_output=True, check=True).stdout == expected
