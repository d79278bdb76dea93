"""Unusual files, timing, sizes and machines."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from capabilities import OrdinaryUser
from hypothesis import given
from hypothesis import strategies as st

from proofbox import Workspace
from proofbox.core.dirs import state_dir
from proofbox.errors import WorkspaceExists
from proofbox.evidence.documents.tree import TreeEntry, parse_tree_manifest, tree_manifest
from proofbox.workspace import tree
from proofbox.workspace.scanning import candidates, scanner
from proofbox.workspace.scanning.tracker import Tracker
from proofbox.workspace.store import generation, pack
from proofbox.workspace.store.large_objects import chunks_of
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.unified_diff import unified
from proofbox.workspace.tree import EMPTY_FILE, PAGED, KnownFile


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    (made / "file").write_text("one")
    return made


@pytest.fixture
def ws(root: Path) -> Iterator[Workspace]:
    with Workspace.init(root) as made:
        yield made


def store_of(ws: Workspace) -> Path:
    return state_dir() / "workspaces/stores" / ws._registration.store


# Special files


def test_special_files_are_reported_and_left_alone(ws: Workspace, root: Path) -> None:
    first = ws.snapshot("first")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    second = ws.snapshot("second")
    assert second.id == first.id
    assert [(left.path, left.reason) for left in second.skipped] == [
        (name, "not a file, directory or symbolic link") for name in ("fifo", "socket")
    ]
    (root / "file").write_text("two")
    ws.rollback(first.id)
    assert stat.S_ISFIFO((root / "fifo").stat().st_mode)
    assert (root / "file").read_text() == "one"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create devices")
def test_devices_are_never_opened(ws: Workspace, root: Path) -> None:
    os.mknod(root / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))  # endless zeros
    assert [left.path for left in ws.snapshot("device").skipped] == ["device"]


def test_non_utf8_names_are_exact(ws: Workspace, root: Path) -> None:
    ws.snapshot("first")
    name = os.fsencode(root) + b"/\xff\n"
    with open(name, "wb") as file:
        file.write(b"odd")
    second = ws.snapshot("second")
    (change,) = ws.diff(second.parent, second.id)
    assert (change.path_b64, change.kind) == ("/wo=", "added")
    os.unlink(name)
    ws.rollback(second.id)
    with open(name, "rb") as file:
        assert file.read() == b"odd"


@pytest.mark.parametrize("track", [True, False])
def test_sealed_snapshot_finds_edit_through_hard_link(root: Path, tmp_path: Path, track: bool) -> None:
    os.link(root / "file", tmp_path / "elsewhere")
    with Workspace.init(root, track=track) as ws:
        first = ws.snapshot("first")
        (tmp_path / "elsewhere").write_text("two")
        second = ws.snapshot("sealed", sealed=True)
        assert second.id != first.id
        assert second.method == "sealed"
        ws.rollback(first.id)
    assert (root / "file").read_text() == "one"
    assert (tmp_path / "elsewhere").read_text() == "two", "the hard link was broken, and the other name is unchanged"


def test_sparse_file_is_restored_sparse(ws: Workspace, root: Path) -> None:
    size = 64 << 20
    with (root / "sparse").open("wb") as file:
        file.seek(size // 2)
        file.write(b"in the middle")
        file.truncate(size)
    first = ws.snapshot("sparse")
    (root / "sparse").unlink()
    ws.rollback(first.id)
    info = (root / "sparse").stat()
    assert info.st_size == size
    assert info.st_blocks * 512 < size // 8
    with (root / "sparse").open("rb") as file:
        file.seek(size // 2)
        assert file.read(13) == b"in the middle"
    assert ws.verify().sound


def test_giant_file_is_skipped_with_the_reason(ws: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws._working_tree._scanner, "_max_file_size", 1000)
    (root / "giant").write_bytes(bytes(1001))
    (left,) = ws.snapshot("giant").skipped
    assert left.path == "giant"
    assert "1000" in left.reason


def test_storing_a_large_file_does_not_block_other_writers(ws: Workspace) -> None:
    with_lock = ObjectStore(store_of(ws))
    other = ObjectStore(store_of(ws))

    def chunks() -> Iterator[bytes]:
        yield b"a" * 100
        other.commit(b"{}")  # would block forever if the lock were held
        yield b"b" * 100

    digest = with_lock.put_stream(chunks())
    assert b"".join(with_lock.chunks(digest)) == b"a" * 100 + b"b" * 100
    with_lock.close()
    other.close()


def test_file_that_keeps_changing_is_unstable(ws: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = scanner.Scanner._content

    def content(self: scanner.Scanner, fd: int, size: int) -> tuple[bytes, int]:
        found = read(self, fd, size)
        with (root / "file").open("a") as file:
            file.write("more")
        return found

    monkeypatch.setattr(scanner.Scanner, "_content", content)
    (root / "file").write_text("two")
    assert [left.path for left in ws.snapshot("unstable").unstable] == ["file"]
    monkeypatch.undo()
    settled = ws.snapshot("settled", sealed=True)
    assert settled.unstable == ()
    (root / "file").rename(root / "kept")
    ws.rollback(settled.id)
    assert (root / "file").read_text().startswith("two")


def test_cost_of_special_files_is_linear(ws: Workspace, root: Path) -> None:
    (root / "pipes/below").mkdir(parents=True)
    for number in range(50):
        os.mkfifo(root / f"pipes/{number}")
    os.mkfifo(root / "pipes/below/pipe")

    class Counted(dict[str, Any]):
        visited = 0

        def __iter__(self) -> Iterator[str]:
            Counted.visited += len(self)
            return super().__iter__()

    ws._working_tree._scanner._skipped = Counted()
    assert len(ws.snapshot("pipes", sealed=True).skipped) == 51
    assert Counted.visited <= 51
    (root / "pipes").rename(root / "moved")
    assert {left.path.rpartition("/")[0] for left in ws.snapshot("moved").skipped} == {"moved", "moved/below"}
    subprocess.run(["rm", "-r", root / "moved"], check=True)
    assert ws.snapshot("gone").skipped == ()


def test_file_that_outgrows_the_limit_before_it_is_read_is_skipped(
    ws: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ws._working_tree._scanner, "_max_file_size", 1000)
    read = scanner.Scanner._file

    def growing(self: scanner.Scanner, folder: int, path: str, name: str, before: KnownFile | None) -> KnownFile:
        (root / "file").write_bytes(bytes(1001))
        return read(self, folder, path, name, before)

    monkeypatch.setattr(scanner.Scanner, "_file", growing)
    (root / "file").write_text("two")
    (left,) = ws.snapshot("grown").skipped
    assert "larger than 1000 bytes" in left.reason
    with (root / "file").open("rb") as file:
        assert sum(map(len, chunks_of(file.fileno(), 0))) == 1001, "one chunk"


# Timing


@pytest.mark.parametrize("track", [True, False])
def test_edits_within_one_clock_tick_are_found(root: Path, track: bool) -> None:
    seen: dict[str, str] = {}
    with Workspace.init(root, track=track) as ws:
        for number in range(300):
            text = str(number % 7)
            (root / "file").write_text(text)
            assert seen.setdefault(ws.snapshot().id, text) == text
    assert len(seen) == 7


def test_resetting_file_times_hides_no_change(root: Path) -> None:
    with Workspace.init(root, track=False) as ws:
        first = ws.snapshot("first")
        before = (root / "file").stat()
        (root / "file").write_text("two")
        os.utime(root / "file", ns=(before.st_atime_ns, before.st_mtime_ns))
        assert ws.snapshot("second").id != first.id


def test_queue_overflow_causes_a_scan(ws: Workspace, root: Path) -> None:
    ws.snapshot("first")
    events = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(100):
        (root / f"{number}").write_text("new")
    for number in range(events):
        os.utime(root / f"{number % 2}")  # alternating, because the kernel merges identical consecutive events
    (root / "file").unlink()
    taken = ws.snapshot("after")
    assert taken.method == "scan"
    assert taken.changed == 101
    (root / "file").write_text("again")
    assert ws.snapshot("tracked again").method == "tracked"
    assert ws.status().changes == ()


def test_without_watches_every_snapshot_scans(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofbox.workspace.scanning.tracker._MASK", 0)
    monkeypatch.setattr(
        "proofbox.workspace.scanning.tracker._ONLYDIR", 0
    )  # an empty watch mask, which the kernel refuses
    with Workspace.init(root) as ws:
        first = ws.snapshot("first")
        (root / "file").write_text("two")
        second = ws.snapshot("second")
        assert (first.method, second.method, second.changed) == ("scan", "scan", 1)


def test_unwatchable_directory_causes_scans(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a/b").mkdir(parents=True)
    Workspace.init(root).close()
    real = os.open

    def refusing(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "a/b":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refusing)
        ws = Workspace.open(root)
    with ws:
        first = ws.snapshot("first")
        (root / "a/b/file").write_text("new")
        second = ws.snapshot("second")
        assert (second.method, second.changed, second.parent) == ("scan", 1, first.id)


def test_moved_directory_stays_tracked(ws: Workspace, root: Path) -> None:
    (root / "z/below").mkdir(parents=True)
    (root / "z/below/one").write_text("one")
    ws.snapshot("first")
    for old, new in (("z", "a"), ("a", "m"), ("m/below", "below"), ("below", "m/again")):
        (root / old).rename(root / new)
        moved = ws.snapshot(f"{old} to {new}")
        place = next(root.rglob("one"))
        place.write_text(new)
        written = ws.snapshot("written")
        assert (moved.method, written.method, written.changed) == ("tracked", "tracked", 1)
        place.write_text("one")
    ws.snapshot("last")
    assert ws.snapshot("sealed", sealed=True).changed == 0


@pytest.mark.parametrize("track", [True, False])
def test_scan_includes_a_directory_that_was_briefly_missing(
    root: Path, track: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that could not be opened for a moment is scanned completely, although it is watched."""
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_text("one")
    with Workspace.init(root, track=track) as ws:
        first = ws.snapshot("first")
        (root / "a/b/file").write_text("two")
        (root / "a/b/new").mkdir()

        def away(*arguments: Any, **options: Any) -> Any:
            (root / "a").rename(root.parent / "elsewhere")
            found = candidates.changed_candidates(*arguments, **options)
            (root.parent / "elsewhere").rename(root / "a")
            return found

        monkeypatch.setattr(scanner, "changed_candidates", away)
        if track:
            monkeypatch.setattr(Tracker, "drain", lambda _tracker: None)  # the kernel's queue overflowed
        second = ws.snapshot("second")
        assert second.method == "scan"
        assert {change.path for change in ws.diff(first.id, second.id)} == {"a/b/file", "a/b/new"}


def test_unopenable_directory_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_text("one")
    with Workspace.init(root) as ws:
        ws.snapshot("first")
        (root / "a/b/file").write_text("two")
        real = os.open

        def refusing(path: Any, *arguments: Any, **options: Any) -> int:
            if path == "a":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, "open", refusing)
        assert [left.path for left in ws.snapshot("refused").skipped] == ["a"]
        monkeypatch.undo()
        again = ws.snapshot("again", sealed=True)
        assert (again.skipped, again.changed) == ((), 3)


FAR = [
    -(1 << 62),
    13_569_465_600 * 10**9,
    (1 << 63) - 1,
    1 << 63,
    4_000_000_000 * 10**9,
]  # 1823, 2400, 2262, 2262 and 2096


@pytest.mark.parametrize("program", [True, False])
def test_extreme_file_times_are_handled(root: Path, program: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_WORTH_A_PROCESS", 0 if program else 1 << 30)
    for number, time_ns in enumerate(FAR):
        (root / str(number)).write_text("old")
        os.utime(root / str(number), ns=(0, time_ns))
    with Workspace.init(root) as ws:
        first = ws.snapshot("first", sealed=True)
        assert (first.changed, first.skipped) == (1 + len(FAR), ())
    with Workspace.open(root, track=False) as ws:
        assert ws.snapshot("the same", sealed=True).id == first.id
        (root / "1").write_text("new")
        os.utime(root / "1", ns=(0, FAR[1] + 1))
        assert ws.snapshot("changed").changed == 1
        ws.rollback(first.id)
        assert (root / "1").read_text() == "old"


@given(st.integers(-(1 << 70), 1 << 70), st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_file_time_fits_in_64_bits(far: int, near: int) -> None:
    assert tree.int64(near) == near
    assert -(1 << 63) <= tree.int64(far) < 1 << 63
    assert (tree.int64(far) - far) % (1 << 64) == 0


def test_setuid_bits_are_not_restored(ws: Workspace, root: Path, tmp_path: Path) -> None:
    for name, mode in (("file", 0o4755), ("group", 0o2755), ("below/both", 0o6711)):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
        (root / name).chmod(mode)
    (root / "below").chmod(0o3775)
    made = ws.snapshot("first")
    ws.export(made.id, tmp_path / "export")
    with ws.fork(made.id, tmp_path / "fork") as fork:
        assert fork.snapshot("the same", sealed=True).id == made.id
    for name in ("file", "group", "below/both"):
        (root / name).unlink()
    ws.rollback(made.id)
    for place in (tmp_path / "export", tmp_path / "fork", root):
        modes = {name: stat.S_IMODE((place / name).stat().st_mode) for name in ("file", "group", "below/both", "below")}
        assert modes == {"file": 0o755, "group": 0o755, "below/both": 0o711, "below": 0o3775}


def test_setuid_bits_of_old_snapshots_are_ignored(
    ws: Workspace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "file").chmod(0o4755)
    with monkeypatch.context() as patched:
        patched.setattr(scanner, "kept_mode", lambda mode: mode)
        old = ws.snapshot("stored by a version that kept them")
    (root / "file").write_text("two")
    assert ws.snapshot("second").id != old.id
    ws.export(old.id, tmp_path / "export")
    assert ws.rollback(old.id).left == ()
    for place in (tmp_path / "export", root):
        assert ((place / "file").read_text(), stat.S_IMODE((place / "file").stat().st_mode)) == ("one", 0o755)


# Sizes


def test_large_directory_is_stored_in_pages(root: Path, tmp_path: Path) -> None:
    chance = random.Random(3)  # noqa: S311
    for number in range(PAGED + 200):
        (root / f"n{number}").write_text(str(number))
    (root / "below").mkdir()
    trees: dict[str, dict[str, str]] = {}
    with Workspace.init(root) as ws:
        for step in range(15):
            names = [path for path in root.iterdir() if path.is_file()]
            for path in chance.sample(names, 5 if step % 3 else 150):  # crosses the limit in both directions
                path.unlink()
            for number in range(5 if step % 3 else 150):
                (root / f"s{step}-{number}").write_text(str(chance.random()))
            (root / "below/file").write_text(str(step))
            trees[ws.snapshot().id] = {path.name: path.read_text() for path in root.iterdir() if path.is_file()}
        with Workspace.open(root, track=False) as again:
            assert again.snapshot("the same", sealed=True).id == list(trees)[-1]
        for wanted in chance.sample(sorted(trees), 5):
            ws.rollback(wanted)
            assert {path.name: path.read_text() for path in root.iterdir() if path.is_file()} == trees[wanted]
        with ws.fork(wanted, tmp_path / "fork") as fork:
            assert {path.name: path.read_text() for path in fork.path.iterdir() if path.is_file()} == trees[wanted]
            assert fork.snapshot("sealed", sealed=True).id == wanted
        ws.gc(keep=3)
        assert ws.verify().sound


def test_longest_snapshot_path_fits_in_a_manifest() -> None:
    longest = TreeEntry(b"\xff" * (scanner.MAX_PATH + len("/") + 255), "100644", 0, EMPTY_FILE.hex())
    assert parse_tree_manifest(tree_manifest([longest])) == [longest]


# Machines, users, other processes


def test_damaged_lookup_table_is_rebuilt(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "_UNSORTED", 1)
    for number in range(20):
        (root / str(number)).write_text(str(number))
    with Workspace.init(root) as ws:
        first = ws.snapshot("first")
        table = store_of(ws) / "lookup.1"
    whole = table.read_bytes()
    assert len(whole) > 1000
    for damaged in (b"", whole[:-1], whole[:-20] + b"x" + whole[-19:], whole + b"\0", b"\0" * len(whole)):
        table.write_bytes(damaged)
        with Workspace.open(root, track=False) as ws:
            assert ws.verify().sound
            (root / "file").write_text(str(len(damaged)))
            ws.rollback(first.id)
            assert (root / "file").read_text() == "one"


def test_objects_lost_in_a_power_failure_are_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workspace.init(root) as ws:
        first = ws.snapshot("first")
        files = store_of(ws)
    ws = Workspace.open(root)
    (root / "file").write_text("two")
    ws.snapshot("lost")
    ws._store.sync = ws._store.close = lambda: None  # type: ignore[method-assign]
    ws.close()  # leaves a cache that refers to objects that are about to be lost
    pack_file = files / "pack-1"
    with pack_file.open("r+b") as file:
        file.truncate(pack_file.stat().st_size - 40)
    monkeypatch.setattr(pack, "this_boot", lambda: 12345)
    with Workspace.open(root) as ws:
        assert [each.id for each in ws.history()] == [first.id]
        again = ws.snapshot("again")
        assert ws.verify().sound
        ws.rollback(first.id)
        ws.rollback(again.id)
    assert (root / "file").read_text() == "two"


def test_gc_removes_leftovers_of_a_killed_gc(ws: Workspace, root: Path) -> None:
    ws.snapshot("first")
    ws.gc()
    kept = sorted(path.name for path in store_of(ws).iterdir())
    for name in ("pack-1", "index-1", "lookup.1", "pack-7", "index-7"):
        (store_of(ws) / name).write_bytes(b"old")
    (root / "file").write_text("two")
    ws.snapshot("second")
    ws.gc()
    assert sorted(path.name for path in store_of(ws).iterdir()) == [name.replace("2", "3") for name in kept]
    assert ws.verify().sound


def test_init_of_an_existing_workspace_leaves_nothing_behind(ws: Workspace, root: Path) -> None:
    there = sorted((state_dir() / "workspaces").rglob("*"))
    with pytest.raises(WorkspaceExists):
        Workspace.init(root)
    assert sorted((state_dir() / "workspaces").rglob("*")) == there


def test_concurrent_closes_are_safe(ws: Workspace, root: Path) -> None:
    ws.snapshot("first")
    opened = [Workspace.open(root, track=False) for _ in range(8)]
    for each in opened:
        each.status()
    barrier = threading.Barrier(len(opened))

    def save(each: Workspace) -> None:
        barrier.wait()
        for _ in range(20):
            each._working_tree.save()

    with ThreadPoolExecutor(len(opened)) as pool:
        list(pool.map(save, opened))
    for each in opened:
        each.close()


def test_file_replaced_by_directory_is_shown_as_two_changes(ws: Workspace, root: Path) -> None:
    first = ws.snapshot("first")
    (root / "file").unlink()
    (root / "file").mkdir()
    second = ws.snapshot("second")
    shown = [line.text for line in ws.compare(first.id, second.id, unified)]
    assert [text for text in shown if text.startswith(("new", "deleted", "mode"))] == [
        "new directory, mode 40755",
        "deleted file, mode 100644",
    ]
    assert shown.count("-one") == 1


def test_two_processes_share_one_workspace(ws: Workspace, root: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from proofbox import Workspace
        with Workspace.open(sys.argv[1]) as ws:
            for number in range(20):
                Path(sys.argv[1], sys.argv[2]).write_text(f"{sys.argv[2]} {number}")
                print(ws.snapshot(f"{sys.argv[2]} {number}").id)"""
    clients = [
        subprocess.Popen([sys.executable, "-c", code, str(root), name], stdout=subprocess.PIPE, text=True)
        for name in ("left", "right")
    ]
    taken = [line for client in clients for line in client.communicate()[0].split()]
    assert [client.returncode for client in clients] == [0, 0]
    head = ws.head
    assert head is not None
    assert head.message.endswith("19"), "this object sees snapshots of other processes"
    history = ws.history()
    assert len(history) == 40
    assert {each.id for each in history} == set(taken)
    assert ws.snapshot("all of it").id == head.id
    assert ws.verify().sound


def test_fork_replaces_a_removed_fork(ws: Workspace, tmp_path: Path) -> None:
    first = ws.snapshot("first")
    for _ in range(2):
        with ws.fork(first.id, tmp_path / "fork") as fork:
            (fork.path / "file").unlink()
        (tmp_path / "fork").rmdir()
    (tmp_path / "fork").mkdir()
    with pytest.raises(WorkspaceExists):
        ws.fork(first.id, tmp_path / "fork")


AS_ORDINARY_USER = """if True:
    import json, os, sys
    from pathlib import Path
    from proofbox import Sandboxes, Workspace
    root = Path(os.environ["HOME"], "project")
    (root / "closed").mkdir(parents=True)
    (root / "file").write_text("one")
    (root / "secret").write_text("secret")
    (root / "closed/below").write_text("below")
    with Workspace.init(root) as ws:
        first = ws.snapshot("first")
        (root / "secret").chmod(0)
        (root / "closed").chmod(0)
        (root / "file").write_text("two")
        second = ws.snapshot("second")
        (root / "closed").chmod(0o755)
        ws.rollback(first.id)
        result = {"skipped": [left.path for left in second.skipped], "file": (root / "file").read_text(),
                "secret": (root / "secret").read_text(), "below": (root / "closed/below").read_text()}
        ws.rollback(second.id)
        result["kept"] = (root / "secret").exists()
        if sys.argv[1:]:
            with ws.overlay(first.id) as layers, Sandboxes(root) as boxes:
                done = boxes.exec(["sh", "-c", "cat file; rm -r closed secret; echo new > file"], provider="bubblewrap",
                                  **layers.options())
                result["box"] = done.stdout or done.stderr
                result["changes"] = [[change.path, change.kind] for change in layers.changes()]
        print(json.dumps(result))"""


@pytest.mark.needs("unprivileged-user", "bubblewrap")
def test_workspace_works_for_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    done = subprocess.run(
        [ordinary_user.python, "-c", AS_ORDINARY_USER, "box"],
        env=dict(ordinary_user.env),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **ordinary_user.identity,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "skipped": ["closed", "secret"],
        "file": "one",
        "secret": "secret",
        "below": "below",
        "kept": True,
        "box": "one",
        "changes": [["closed", "deleted"], ["closed/below", "deleted"], ["file", "modified"], ["secret", "deleted"]],
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_rollback_crosses_mount_points(root: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from proofbox import Workspace
        root = Path(sys.argv[1])
        (root / "mounted/file").write_text("one")
        with Workspace.init(root) as ws:
            first = ws.snapshot("first")
            (root / "mounted/file").write_text("two")
            (root / "mounted/new").write_text("new")
            ws.rollback(first.id)
            print((root / "mounted/file").read_text(), (root / "mounted/new").exists(), ws.status().changes)
            (root / "mounted/file").unlink()
            empty = ws.snapshot("empty")
            (root / "mounted/file").write_text("three")
            print(ws.rollback(empty.id).left)"""
    (root / "mounted").mkdir()
    script = 'mount -t tmpfs none "$1/mounted" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(root), sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "one False ()\n()\n"


def test_tracking_and_scanning_find_the_same(ws: Workspace, root: Path) -> None:
    for folder in range(30):
        (root / f"d{folder}/below").mkdir(parents=True)
        for number in range(5):
            (root / f"d{folder}/below/f\udcff{number}").write_text("x")
    ws.snapshot("first")
    assert ws._working_tree.directory is not None
    jobs = list(ws._working_tree.directory.walk())
    (root / "d1/below/f\udcff1").write_text("changed")
    (root / "d2/below/f\udcff2").unlink()
    (root / "d3/below").rename(root / "d3/moved")
    (root / "d4").rename(root / "d5/d4")
    (root / "d6/below").chmod(0o700)
    (root / "d7/new").symlink_to("nowhere")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        by_python = candidates._merged(candidates._compare_in_python(fd, jobs))
        assert candidates._merged(candidates._compare_with_treestat(fd, [jobs[:20], jobs[20:]]) or ()) == by_python
    finally:
        os.close(fd)
    assert len(by_python) >= 7
