"""New directories written by `treewrite` and by Python."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import random
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proofbox import Workspace
from proofbox.errors import ProviderUnavailable, WorkspaceCorrupt
from proofbox.sandbox.host.binaries import program
from proofbox.workspace.scanning import scanner
from proofbox.workspace.store import generation, large_objects, pack
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.store.trees import rows_of
from proofbox.workspace.timeline import new_tree
from proofbox.workspace.timeline.new_tree import write_new
from proofbox.workspace.tree import UNSETTLED, Directory, KnownFile, times_of

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
    for name, mode in (("open", 0o1777), ("group", 0o2775), ("private", 0o700)):
        (root / name / "inside").mkdir(parents=True)
        (root / name / "file").write_text(name)
        (root / name).chmod(mode)
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


@pytest.mark.parametrize(("now", "shows_edits"), [(200, True), (101, True), (100, True), (90, True), (200, False)])
def test_files_are_settled_if_every_later_change_alters_their_times(now: int, shows_edits: bool) -> None:
    second = 1_000_000_000
    ctimes = {"early": 50 * second + 1, "late": 100 * second + 1, "whole": 100 * second, "same": 100 * second + 1}
    directory = Directory(ctime_ns=100 * second + 1)
    directory.files.update({name: KnownFile(0, b"", 0, 0, ctime, 1) for name, ctime in ctimes.items()})
    directory.dirs["below"] = Directory(ctime_ns=50 * second + 1)
    scanner._settle(directory, now * second, shows_edits)
    for name, ctime in ctimes.items():
        # A file system may store whole seconds only.
        latest = now * second - (2 * second if name == "whole" else 0)
        settled = shows_edits and ctime < latest
        assert directory.files[name].ctime_ns == (ctime if settled else UNSETTLED), name
    assert directory.ctime_ns == (100 * second + 1 if now > 100 else UNSETTLED)
    assert directory.dirs["below"].ctime_ns == 50 * second + 1


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
    offset, _ = ws._store._files.place(hashlib.sha256((root / "many/f\udcff299").read_bytes()).digest())
    byte = os.pread(ws._store.pack_fd, 1, offset)
    os.pwrite(ws._store.pack_fd, bytes([byte[0] ^ 1]), offset)
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
def test_known_state_is_that_of_the_files(ws: Workspace, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    whole = write_new(ws._store, str(made), bytes.fromhex(ws.resolve("HEAD").id))
    for path, directory in whole.walk():
        for name, record in directory.records():
            assert record[2:] == times_of((made / path / name).lstat()), f"{path}/{name}"
            assert stat.S_IFMT(record[0]) == stat.S_IFMT((made / path / name).lstat().st_mode)
        info = (made / path).stat()
        assert not path or (directory.ctime_ns, directory.ino) == (info.st_ctime_ns, info.st_ino), path
        assert not path or directory.mode == info.st_mode
        assert set(os.listdir(made / path)) == {*directory.files, *directory.dirs}


def test_objects_are_found_in_the_sorted_table_and_after_it(
    ws: Workspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.close()
    monkeypatch.setattr(generation, "_UNSORTED", 1)
    with Workspace.open(root):
        pass
    monkeypatch.undo()
    with Workspace.open(root) as again:
        assert len(again._store._files._lookup) > 1000
        (root / "many/new").write_text("new")
        again.snapshot("second")
        assert again._store._files._places
        with again.fork("HEAD", tmp_path / "fork") as fork:
            assert contents(fork.path) == contents(root)


def test_program_is_not_started_for_a_small_part_of_a_large_store(
    ws: Workspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_tree, "_OBJECTS", 1)
    monkeypatch.setattr(new_tree, "program", pytest.fail)
    with ws.fork("HEAD", tmp_path / "fork", track=False) as fork:
        assert contents(fork.path) == contents(root)


DIGEST = hashlib.sha256(b"file").digest()
REFUSED = {
    "a slash": (b"100644 a/b\0" + DIGEST, "malformed tree"),
    "the parent": (b"100644 ..\0" + DIGEST, "malformed tree"),
    "the directory itself": (b"100644 .\0" + DIGEST, "malformed tree"),
    "no name": (b"100644 \0" + DIGEST, "malformed tree"),
    "no order": (b"100644 b\0" + DIGEST + b"100644 a\0" + DIGEST, "malformed tree"),
    "the same name": (b"100644 a\0" + DIGEST + b"100644 a\0" + DIGEST, "malformed tree"),
    "no mode": (b" a\0" + DIGEST, "malformed tree"),
    "no octal mode": (b"100648 a\0" + DIGEST, "malformed tree"),
    "a long mode": (b"10100644 a\0" + DIGEST, "malformed tree"),
    "a short digest": (b"100644 a\0" + DIGEST[:-1], "malformed tree"),
    "no end of the name": (b"100644 a", "malformed tree"),
    "a page in a page": (b"1 00\0" + hashlib.sha256(b"1 01\0" + DIGEST).digest(), "malformed"),
    "a missing content": (b"100644 a\0" + bytes(32), "is missing"),
    "a missing directory": (b"40755 a\0" + bytes(32), "is missing"),
}


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize("what", REFUSED)
def test_trees_that_no_snapshot_writes_are_refused(tmp_path: Path, what: str) -> None:
    data, message = REFUSED[what]
    store = ObjectStore.create(tmp_path / "store")
    for blob in (b"file", b"1 01\0" + DIGEST):
        store.put(pack.BLOB, blob)
    below = store.put(pack.TREE, data)
    rows = [b"100644 f%03d\0" % number + DIGEST for number in range(200)]
    tree = store.put(pack.TREE, b"40755 a\0" + below + b"".join(rows))
    store.flush()
    made = tmp_path / "made"
    made.mkdir()
    with contextlib.closing(store), pytest.raises(WorkspaceCorrupt, match=message):
        write_new(store, str(made), tree)


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[Workspace]:
    """A workspace in which many files are written between the creation of `deep/er` and that of the file in it."""
    root = tmp_path / "project"
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/file").write_text("file")
    for number in range(3000):
        (root / f"deep/{number}").write_text(str(number))
    with Workspace.init(root) as made:
        made.snapshot("first")
        yield made


@pytest.mark.parametrize("swapped", ["deep", "deep/er"])
def test_program_writes_nothing_through_a_link_that_replaces_a_directory(
    nested: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """A box that can write to the new directory renames a part of it, and leaves a link in its place."""
    outside = tmp_path / "outside"
    (outside / "er").mkdir(parents=True)
    monkeypatch.setattr(new_tree, "_PROCESSES", (1, 1))  # so that `deep/er` is written after the files in `deep`

    def swap(made: Path, written: threading.Event) -> None:
        while not (made / "deep/er").exists() and not written.is_set():
            pass
        (made / swapped).rename(made / "moved")
        (made / swapped).symlink_to(outside / "er" if swapped == "deep/er" else outside)

    error = 0
    for number in range(50):  # until the link was there in time
        made, written = tmp_path / f"made-{number}", threading.Event()
        made.mkdir()
        swapping = threading.Thread(target=swap, args=(made, written))
        swapping.start()
        try:
            write_new(nested._store, str(made), bytes.fromhex(nested.resolve("HEAD").id))
        except OSError as refused:
            error = refused.errno or 0
        written.set()
        swapping.join()
        assert [each.name for each in outside.rglob("*")] == ["er"]
        if error in (errno.ELOOP, errno.ENOTDIR):
            break
    assert error in (errno.ELOOP, errno.ENOTDIR)


@pytest.mark.parametrize("swapped", ["deep", "deep/er"])
def test_python_writes_nothing_through_a_link_that_replaces_a_directory(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    made, outside = tmp_path / "made", tmp_path / "outside"
    for each in (made, outside / "er"):
        each.mkdir(parents=True)

    def replace(*args: Any) -> Any:
        place = made / swapped
        if (made / "deep/er").exists() and not place.is_symlink():
            place.rename(tmp_path / "moved")
            place.symlink_to(outside)
        return rows_of(*args)

    monkeypatch.setattr(new_tree, "_WORTH_A_PROCESS", 1 << 30)
    monkeypatch.setattr(new_tree, "rows_of", replace)
    with pytest.raises(OSError, match=r"deep|er"):
        write_new(ws._store, str(made), bytes.fromhex(ws.resolve("HEAD").id))
    assert [each.name for each in outside.rglob("*")] == ["er"]


def test_interrupted_fork_leaves_nothing(nested: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    communicate = subprocess.Popen.communicate
    written: list[int] = []

    def interrupt(process: subprocess.Popen[bytes]) -> Any:
        if not written:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while not children.read_text():
                pass
            written.append(0)
            raise KeyboardInterrupt
        communicate(process)
        written.append(len([*tmp_path.glob(".*/deep/*")]))

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        nested.fork("HEAD", tmp_path / "fork")
    assert written[-1] < 3000, "processes wrote on after the interrupt"
    assert [each.name for each in tmp_path.iterdir()] == ["project"]


@pytest.mark.needs("strace")
def test_killed_process_fails_the_fork(ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process waits for the directory that the killed one was about to create."""
    script = tmp_path / "killed"
    killing = "exec strace -f -o /dev/null -e inject=mkdirat:signal=KILL"
    script.write_text(f'#!/bin/sh\n{killing} {program("treewrite")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(new_tree, "program", lambda _: script)
    with pytest.raises(OSError, match="treewrite ended"):
        ws.fork("HEAD", tmp_path / "fork")
    assert {each.name for each in tmp_path.iterdir()} == {"project", "killed"}


@pytest.mark.needs("root")
def test_modes_of_directories_are_not_in_the_way_of_their_content(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "sealed/in/side").mkdir(parents=True)
    (root / "sealed/in/side/file").write_text("file")
    for path in ("sealed/in/side", "sealed/in", "sealed"):
        (root / path).chmod(0o400)
    made = tmp_path / "made"
    made.mkdir()
    os.chown(made, 65534, 65534)
    monkeypatch.setattr(subprocess, "Popen", functools.partial(subprocess.Popen, user=65534, extra_groups=[]))
    with Workspace.init(root) as workspace:
        tree = bytes.fromhex(workspace.snapshot("first").id)
        write_new(workspace._store, str(made), tree)
    assert contents(made) == contents(root)


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
