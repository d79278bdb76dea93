"""Writes through a shared memory mapping, which may change no file time and cause no event."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox import Workspace
from proofbox.workspace.scanning import mappings, writeback
from proofbox.workspace.scanning.mappings import mapped_inodes

CLOCK_REALTIME_COARSE = 5
SIZE = 3 * mmap.PAGESIZE

WRITER = """if True:
    import mmap, os, sys
    with open(sys.argv[1], "r+b") as file:
        held = mmap.mmap(file.fileno(), 0)
    held[0]  # a page that was read may be written later without a fault
    print("mapped", flush=True)
    more = []
    for line in sys.stdin.buffer:
        if line.startswith(b"/"):
            with open(line[:-1], "r+b") as file:
                more.append(mmap.mmap(file.fileno(), 0))
        else:
            held[0] = line[0]
        print("done", flush=True)
"""


class Writer:
    """Another process that has mapped a file and writes a byte on request."""

    def __init__(self, path: Path) -> None:
        argv = [sys.executable, "-c", WRITER, str(path)]
        self._path = path
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()

    @property
    def pid(self) -> str:
        return str(self._process.pid)

    def store(self, byte: str) -> None:
        self._ask(byte)

    def map(self, path: Path) -> None:
        self._ask(str(path))

    def sleep(self) -> None:
        """Wait until the process waits for the next request, so that the kernel has counted its CPU time."""
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            os.sched_yield()

    def settle(self) -> None:
        """Wait until the clock of file times has advanced, so that the next scan can rely on times."""
        while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= self._path.stat().st_ctime_ns:
            os.sched_yield()

    def stop(self) -> None:
        self._process.communicate()

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline()


def content(ws: Workspace, snapshot: str, place: Path) -> str:
    """Return the first byte of the file in the snapshot."""
    ws.export(snapshot, place)
    return (place / "file").read_text()[0]


def fill(root: Path) -> None:
    """Write too many files to check each of them in a tracked snapshot."""
    (root / "more").mkdir()
    for number in range(mappings.MAX_CHECKED_FILES):
        (root / f"more/{number}").touch()


def observe(base: Path, track: bool, small: bool) -> dict[str, object]:
    """Return what a workspace shows of writes through an open mapping."""
    root = base / "project"
    (root / "file").write_text("a" * SIZE)
    if not small:
        fill(root)
    writer = Writer(root / "file")
    writer.store("b")
    writer.settle()
    found: dict[str, object] = {}
    with Workspace.init(root, track=track) as ws:
        first = ws.snapshot("first")
        writer.store("c")
        found["status"] = [change.path for change in ws.status().changes]
        writer.store("d")
        found["snapshot"] = content(ws, ws.snapshot("second").id, base / f"second-{track}")
        writer.settle()
        ws.snapshot("third")
        writer.store("e")
        with Workspace.open(root, track=False) as again:
            found["another process"] = content(again, again.snapshot("fourth").id, base / f"fourth-{track}")
        writer.settle()
        ws.snapshot("fifth")
        writer.store("f")
        ws.rollback(first.id)
        found["rollback"] = (root / "file").read_text()[0]
        writer.store("g")
        found["after a rollback"] = (root / "file").read_text()[0]
        writer.stop()
        writer = Writer(root / "file")
        writer.store("h")
        writer.settle()
        ws.snapshot("sixth")
        writer.store("i")
        writer.stop()
        found["sealed"] = content(ws, ws.snapshot("sealed", sealed=True).id, base / f"sealed-{track}")
    return found


COMPLETE = {
    "status": ["file"],
    "snapshot": "d",
    "another process": "e",
    "rollback": "b",
    "after a rollback": "b",
    "sealed": "i",
}

MOUNTS = {
    "bind mount": 'mount --bind "$1/other" "$1/project"',
    "ext4": 'truncate -s 64M "$1/image" && mkfs.ext4 -q "$1/image" && mount -o loop "$1/image" "$1/project"',
    "tmpfs": 'mount -t tmpfs none "$1/project"',
    "overlay": 'mount -t overlay none -o "lowerdir=$1/other,upperdir=$1/upper,workdir=$1/work" "$1/project"',
    "volatile overlay": 'mount -t overlay none -o "lowerdir=$1/other,upperdir=$1/upper,workdir=$1/work,volatile"'
    ' "$1/project"',
    "overlay on tmpfs": 'mount -t tmpfs none "$1/other" && mkdir "$1/other/lower" "$1/other/upper" "$1/other/work" && '
    'mount -t overlay none -o "lowerdir=$1/other/lower,upperdir=$1/other/upper,workdir=$1/other/work" "$1/project"',
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("project", "other", "upper", "work"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def writer(base: Path) -> Iterator[Writer]:
    (base / "project/file").write_text("a" * SIZE)
    made = Writer(base / "project/file")
    yield made
    made.stop()


@pytest.mark.parametrize(("track", "small"), [(False, True), (True, True), (True, False)])
def test_writes_through_an_open_mapping_are_found(base: Path, track: bool, small: bool) -> None:
    assert observe(base, track, small) == COMPLETE


@pytest.mark.needs("root")
@pytest.mark.parametrize(("track", "small"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("mount", MOUNTS)
def test_writes_through_an_open_mapping_are_found_on_every_file_system(
    base: Path, mount: str, track: bool, small: bool
) -> None:
    code = f"""if True:
        import json, pathlib, test_mapped_files
        print(json.dumps(test_mapped_files.observe(pathlib.Path({str(base)!r}), {track}, {small})))"""
    script = f'{{ {MOUNTS[mount]}; }} || exit 9; exec "$2" -c "$3"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(base), sys.executable, code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 9:
        pytest.skip(f"{mount} can't be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == COMPLETE


def test_sealed_snapshot_reads_files_with_unchanged_times(base: Path) -> None:
    """A change that the kernel does not report, such as disk corruption or a clock that was set back."""
    file = base / "project/file"
    file.write_text("a" * SIZE)
    with Workspace.init(base / "project", track=False) as ws:
        ws.snapshot("first")
        assert ws._working_tree.directory is not None
        known = ws._working_tree.directory.files["file"]
        file.write_text("b" * SIZE)
        info = file.stat()
        forged = known._replace(mtime_ns=info.st_mtime_ns, ctime_ns=info.st_ctime_ns)
        ws._working_tree.directory.files["file"] = forged
        assert not ws.status().changes
        assert ws.snapshot("sealed", sealed=True).changed == 1
        assert content(ws, "HEAD", base / "sealed") == "b"


def test_scan_does_not_read_unmapped_files_again(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "protects_on_writeback", lambda _fd: True)
    monkeypatch.setattr(writeback, "_cache_stat", lambda _fd: writeback._CacheStat())
    (base / "project/file").write_text("a" * SIZE)
    with Workspace.init(base / "project", track=False) as ws:
        while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= (base / "project/file").stat().st_ctime_ns:
            os.sched_yield()
        ws.snapshot("first")
        assert ws._working_tree.directory is not None
        monkeypatch.setattr("proofbox.workspace.scanning.scanner.Scanner._file", None)
        assert not ws.status().changes


@pytest.mark.parametrize("found", [None, writeback._CacheStat(evicted=1)])
def test_without_cachestat_the_scan_waits_for_writeback(
    base: Path, monkeypatch: pytest.MonkeyPatch, found: writeback._CacheStat | None
) -> None:
    flags: list[int] = []

    def sync(_fd: int, how: int) -> int:
        flags.append(how)
        return 0

    monkeypatch.setattr(writeback, "protects_on_writeback", lambda _fd: True)
    monkeypatch.setattr(writeback, "_cache_stat", lambda _fd: found)
    monkeypatch.setattr(writeback, "_sync_file_range", sync)
    with (base / "project/file").open("w") as file:
        info = os.fstat(file.fileno())
        assert writeback.Writeback().times_show_edits(file.fileno(), info.st_dev)
        assert flags == [writeback._START, writeback._START_AND_WAIT]
        assert not writeback.Writeback().times_show_edits(file.fileno(), info.st_dev, start=False)


def test_file_times_of_unknown_file_systems_are_not_trusted() -> None:
    with open("/proc/self/maps", "rb") as file:
        assert not writeback.protects_on_writeback(file.fileno())


def test_both_memory_map_readers_find_the_mapped_file(
    base: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    inode = (base / "project/file").stat().st_ino
    assert inode in mapped_inodes()
    monkeypatch.setattr(mappings, "_asked", {})
    monkeypatch.setattr(mappings, "_PROCMAP_QUERY", 0)  # an unknown request, as on an older kernel
    assert inode in mapped_inodes()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the processes whose memory maps are read."""
    processes: list[str] = []
    real = mappings._mapped_in

    def counted(process: str) -> Iterator[int]:
        processes.append(process)
        return real(process)

    monkeypatch.setattr(mappings, "_asked", {})
    monkeypatch.setattr(mappings, "_mapped_in", counted)
    return processes


def test_sleeping_process_is_asked_once(base: Path, writer: Writer, asked: list[str]) -> None:
    inode = (base / "project/file").stat().st_ino
    writer.sleep()
    for _ in range(3):
        assert inode in mapped_inodes()
    assert asked.count(writer.pid) == 1
    assert asked.count(str(os.getpid())) == 3, "a running process is always asked"


def test_mapping_made_since_the_last_call_is_found(base: Path, writer: Writer, asked: list[str]) -> None:
    (base / "project/other").write_text("a" * SIZE)
    inode = (base / "project/other").stat().st_ino
    writer.sleep()
    assert inode not in mapped_inodes()
    writer.map(base / "project/other")
    writer.sleep()
    assert inode in mapped_inodes()
    assert asked.count(writer.pid) == 2


def test_without_the_ids_of_its_namespace_every_process_is_asked(
    base: Path, writer: Writer, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    writer.sleep()
    for _ in range(2):
        assert (base / "project/file").stat().st_ino in mapped_inodes()
    assert asked.count(writer.pid) == 2


def test_small_workspace_is_checked_without_asking_processes(base: Path, writer: Writer, asked: list[str]) -> None:
    with Workspace.init(base / "project") as ws:
        ws.snapshot("first")
        writer.store("b")
        assert ws.snapshot("second").changed == 1
        assert not asked
        fill(base / "project")
        ws.snapshot("filled")
        writer.store("c")
        assert ws.snapshot("third").changed == 1
        assert writer.pid in asked


def test_large_file_is_not_read_for_every_snapshot(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "protects_on_writeback", lambda _fd: False)  # no times are trusted
    (base / "project/file").write_text("a" * (mappings.MAX_CHECKED_BYTES + 1))
    with Workspace.init(base / "project") as ws:
        ws.snapshot("first")
        monkeypatch.setattr("proofbox.workspace.scanning.scanner.Scanner._file", None)
        assert ws.snapshot("second").changed == 0


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("move", ["file", "directory"])
def test_mapped_file_is_found_after_a_move(base: Path, move: str, small: bool) -> None:
    root = base / "project"
    if not small:
        fill(root)
    (root / "old").mkdir()
    (root / "old/file").write_text("a" * SIZE)
    writer = Writer(root / "old/file")
    with Workspace.init(root) as ws:
        writer.store("b")
        ws.snapshot("first")
        if move == "file":
            (root / "old/file").rename(root / "old/moved")
        else:
            (root / "old").rename(root / "new")
        ws.snapshot("moved")
        writer.store("c")
        assert ws.snapshot("stored").method == "tracked"
        with Workspace.open(root, track=False) as again:
            assert not again.status().changes
    writer.stop()
