"""The cost of history, compared with git and `cp -a` on the same files in the same run.

    scripts/bench workspace [--sizes N,N] [--rounds N] [--snapshots N] [--check]

- a snapshot after one changed file and after a thousand, tracked by the kernel and by scan, against
  `git add -A && git write-tree`;
- a rollback of one file, against `git checkout -- .`;
- both on the command line, with one process each, against the same git commands;
- a fork, and a box over a snapshot, against `cp -a`; a fork also against `create_files`, a C program that only creates
  as many files and writes to them, in as many processes: what the kernel needs at least;
- as root, a mounted fork with a sealed snapshot, against `cp -a`, a fork by copy, and an overlay mount alone;
- the memory of a process that has the workspace open;
- the cost of the ten-thousandth snapshot, against that of the first ones.

Files are about 4 KiB, with twenty per directory. Git's data is outside, so that both see the same directory. Each ratio
is of medians over interleaved rounds; the first round, in which a snapshot is written out once for boxes, doesn't
count. With --check the run fails when a figure is past its threshold.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from _history import at_least, at_most

import proofbox as proofbox_package
from proofbox import Sandboxes, Workspace
from proofbox.workspace.scanning.stack import enter_private_mounts

PROGRAM = str(Path(sys.executable).with_name("proofbox"))
IN_DIRECTORY = 20
FILE_SYSTEM_BYTES = 40 << 30  # a sparse file
LIVE = {10_000: 10.0, 100_000: 20.0}
MEMORY_MB = 150
# `create_files` itself is only 2.5 to 4 times as fast as `cp -a`, so a fork can't be five times as fast.
LEAST_FORK, LEAST_OF_FLOOR = 2.0, 0.5
WORDS = [f"word{number}" for number in range(1000)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000", help="numbers of files", metavar="N,N")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds", metavar="N")
    parser.add_argument("--snapshots", type=int, default=10_000, help="snapshots of one workspace", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is past its threshold")
    options = parser.parse_args()
    held: list[bool] = []
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as directory, file_system(Path(directory)) as place:
        os.environ["XDG_STATE_HOME"] = f"{place}/state"
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        for size in [int(each) for each in options.sizes.split(",")]:
            held += Bench(place, size, options.rounds).all()
        if options.snapshots:
            held.append(flat(place, options.snapshots))
    return 1 if options.check and not all(held) else 0


@contextlib.contextmanager
def file_system(place: Path) -> Iterator[Path]:
    """Yield a directory on a new ext4, if root can mount one.

    Where files were deleted in the last minutes, ext4 without a journal creates files up to 25 times slower.
    """
    image, mounted = place / "ext4", place / "mounted"
    with image.open("wb") as file:
        file.truncate(FILE_SYSTEM_BYTES)
    mounted.mkdir()
    make = ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)]
    try:
        enter_private_mounts()  # so that the mount ends with this process
        _output(*make)
        # Direct: otherwise, each file would be cached twice, and memory that is used for the first time is slow.
        device = _output("losetup", "--find", "--show", "--direct-io=on", str(image))
        try:
            _output("mount", device, str(mounted))
        finally:
            _output("losetup", "--detach", device)  # takes effect when the device is unmounted
    except (OSError, subprocess.CalledProcessError):
        print("not on a new file system: mounting one takes root, mkfs.ext4 and a loop device")
        yield place
        return
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()


class Bench:
    """All comparisons on a tree of one size."""

    def __init__(self, place: Path, size: int, rounds: int) -> None:
        self.size = size
        self.rounds = rounds
        self.chance = random.Random(size)  # noqa: S311
        self.root = place / f"files-{size}"
        self.place = place
        self.files = make_files(self.root, size, self.chance)
        self.git = ["git", f"--git-dir={place}/git-{size}", f"--work-tree={self.root}"]
        subprocess.run([*self.git, "init", "-q"], check=True)
        self.git_snapshot()
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
        subprocess.run([*self.git, *identity, "commit", "-q", "-m", "first"], check=True)

    def all(self) -> list[bool]:
        print(f"{self.size} files, {self.rounds} rounds")
        began = time.perf_counter()
        with Workspace.init(self.root) as live:
            live.snapshot("first")
            print(f"  the first snapshot, everything read: {(time.perf_counter() - began) * 1000:.0f} ms")
            held = [*self.snapshots(live), self.rollback(live)]
            if self.size >= 100_000:
                held += self.copies(live)
        if self.size >= 50_000:
            held += self.command_line()
        if self.size >= 100_000:
            held.append(self.memory())
        shutil.rmtree(self.root)
        return held

    def snapshots(self, live: Workspace) -> list[bool]:
        held = []
        scanned = self.opened_and_scanned
        scanned()  # its cache is up to date, as git's index is
        ways: dict[str, Callable[[], object]] = {"git": self.git_snapshot, "live": live.snapshot, "scan": scanned}
        one = self.interleaved(ways, lambda: self.change(1))
        held.append(self.faster("one changed, live", one["live"], "git", one["git"], LIVE.get(self.size, 1.0)))
        held.append(self.faster("one changed, open + scan + close", one["scan"], "git", one["git"], 1.0))
        del ways["scan"]
        thousand = self.interleaved(ways, lambda: self.change(min(1000, self.size)))
        least = 5.0 if self.size >= 10_000 else 1.0
        held.append(self.faster("1,000 changed, live", thousand["live"], "git", thousand["git"], least))
        return held

    def rollback(self, live: Workspace) -> bool:
        self.git_snapshot()
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
        subprocess.run([*self.git, *identity, "commit", "-q", "-m", "next"], check=True)
        good = live.snapshot("good")
        ways: dict[str, Callable[[], object]] = {
            "git": lambda: subprocess.run([*self.git, "-C", str(self.root), "checkout", "-q", "--", "."], check=True),
            "rollback": lambda: live.rollback(good.id),
        }

        def spoil() -> None:
            self.change(1)
            live.snapshot("spoilt")

        times = self.interleaved(ways, spoil, each=True)
        least = 20.0 if self.size >= 100_000 else 1.0
        return self.faster("rollback of one file", times["rollback"], "git checkout", times["git"], least)

    def command_line(self) -> list[bool]:
        """A process for each snapshot and rollback, as in a shell."""
        # As installed: a clone whose bytecode is stale, and may not be written, would be compiled in every round.
        compileall.compile_dir(Path(proofbox_package.__file__).parent, quiet=1)

        def proofbox(command: str, *words: str) -> str:
            argv = [PROGRAM, "workspace", command, str(self.root), *words]
            return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout

        checkout = [*self.git, "-C", str(self.root), "checkout", "-q", "--", "."]
        good = proofbox("snapshot").split()[0]
        self.git_snapshot()
        snapshots = self.interleaved(
            {"git": self.git_snapshot, "proofbox": lambda: proofbox("snapshot")}, lambda: self.change(1)
        )
        proofbox("rollback", good)
        self.git_snapshot()
        rollbacks = self.interleaved(
            {"git": lambda: subprocess.run(checkout, check=True), "proofbox": lambda: proofbox("rollback", good)},
            lambda: self.change(1),
            each=True,
        )
        return [
            self.faster("one changed, CLI", snapshots["proofbox"], "git", snapshots["git"], 1.0),
            self.faster("rollback of one file, CLI", rollbacks["proofbox"], "git checkout", rollbacks["git"], 1.0),
        ]

    def copies(self, live: Workspace) -> list[bool]:
        head = live.snapshot("to be forked and boxed")
        made, number = self.place / "made", itertools.count()
        made.mkdir()

        def box() -> None:
            with live.overlay(head.id) as layers, Sandboxes(self.root) as boxes:
                with boxes.start_session(provider="bubblewrap", **layers.options()) as session:
                    session.exec(["sh", "-c", "echo changed > new && rm d000/00/file00.txt"])
                assert [change.kind for change in layers.changes()] == ["deleted", "added"]  # noqa: S101

        least = self.place / "create_files"
        source = Path(__file__).with_name("create_files.c")
        subprocess.run(["cc", "-O2", "-o", str(least), str(source)], check=True)
        shape = [str(max(2, os.cpu_count() or 1)), str(self.size), str(IN_DIRECTORY)]
        shape.append(str(sum(each.stat().st_size for each in self.files) // self.size))

        def create() -> None:
            subprocess.run([str(least), str(made / str(next(number))), *shape], check=True)

        ways: dict[str, Callable[[], object]] = {
            "cp -a": lambda: subprocess.run(["cp", "-a", str(self.root), str(made / str(next(number)))], check=True),
            "create": create,
            "fork": lambda: live.fork(head.id, made / str(next(number))).close(),
            "box": box,
        }
        # Nothing is removed in between: ext4 without a journal searches long past the inodes of removed files. Each
        # begins when earlier files are on the disk, because the kernel writes them on the same processors.
        times = self.interleaved(ways, os.sync, rounds=3, each=True)
        remove(made)
        if os.geteuid() == 0:
            return [*self.mounted(times), *self._copied(times)]
        return self._copied(times)

    def mounted(self, times: dict[str, float]) -> list[bool]:
        """Mount forks in a process with its own mount namespace."""
        code = """if True:
            import sys, time
            from pathlib import Path
            from statistics import median
            from proofbox.workspace.scanning.stack import Stack, enter_private_mounts
            from proofbox.workspace.workspace import Workspace
            enter_private_mounts()
            root, place, times = Path(sys.argv[1]), Path(sys.argv[2]), {"mount": [], "fork": []}
            place.mkdir()
            with Workspace.open(root, track=False) as origin:
                origin.status()
                for number in range(10):
                    at = place / f"mount-{number}"
                    at.mkdir()
                    began = time.perf_counter()
                    Stack(root, at, place / f"mount-{number}.layers").close()
                    times["mount"].append(time.perf_counter() - began)
                    began = time.perf_counter()
                    fork = origin.fork_over("HEAD", place / f"fork-{number}", place / f"fork-{number}.layers")
                    (fork.path / "new").write_text("new")
                    fork.snapshot("sealed", sealed=True)
                    fork.lower.require_unchanged()
                    fork.forget()
                    times["fork"].append(time.perf_counter() - began)
            print(*(median(each[1:]) * 1000 for each in times.values()))"""
        argv = [sys.executable, "-c", code, str(self.root), str(self.place / "mounted")]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
        remove(self.place / "mounted")
        mount, fork = map(float, done.stdout.split())
        return [
            self.faster("mounted fork, sealed and checked", fork, "cp -a", times["cp -a"], 5.0),
            self.faster("mounted fork, sealed and checked", fork, "fork", times["fork"], 10.0),
            self.faster("mounted fork, sealed and checked", fork, "mount alone", mount, 0.0),
        ]

    def _copied(self, times: dict[str, float]) -> list[bool]:
        return [
            self.faster("fork", times["fork"], "cp -a", times["cp -a"], LEAST_FORK),
            self.faster("fork", times["fork"], "create_files", times["create"], LEAST_OF_FLOOR),
            self.faster("a box by overlay, used and gone", times["box"], "cp -a", times["cp -a"], 50.0),
        ]

    def memory(self) -> bool:
        """The peak memory of a process that reads everything for a first snapshot, then tracks changes."""
        code = """if True:
            import sys
            from pathlib import Path
            from proofbox import Workspace
            with Workspace.init(sys.argv[1]) as live:
                live.snapshot("one")
                Path(sys.argv[1], "more").write_text("more")
                live.snapshot("two")
            status = Path("/proc/self/status").read_text()
            print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))"""
        done = subprocess.run(
            [sys.executable, "-c", code, str(self.root)],
            env={**os.environ, "XDG_STATE_HOME": f"{self.place}/another"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        used = int(done.stdout) // 1024
        verdict = "ok" if used < MEMORY_MB else "MISSED"
        print(f"  memory, the first snapshot and another: {used} MB (under {MEMORY_MB}) {verdict}")
        return used < MEMORY_MB

    def change(self, count: int) -> None:
        for path in self.chance.sample(self.files, count):
            path.write_text(f"{self.chance.random()}\n{text(self.chance)}")

    def git_snapshot(self) -> None:
        subprocess.run([*self.git, "add", "-A"], check=True, cwd=self.root)
        subprocess.run([*self.git, "write-tree"], check=True, stdout=subprocess.DEVNULL)

    def opened_and_scanned(self) -> None:
        with Workspace.open(self.root, track=False) as workspace:
            workspace.snapshot("scanned")

    def interleaved(
        self,
        ways: dict[str, Callable[[], object]],
        before: Callable[[], None],
        *,
        rounds: int = 0,
        each: bool = False,
    ) -> dict[str, float]:
        """Medians in ms. `before` is called before every round, or with `each` before every measurement."""
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range((rounds or self.rounds) + 1):
            if not each:
                before()
            for name, way in ways.items():
                if each:
                    before()
                began = time.perf_counter()
                way()
                if number:  # the first round is a warm-up
                    times[name].append((time.perf_counter() - began) * 1000)
        return {name: median(values) for name, values in times.items()}

    def faster(self, name: str, ours: float, other: str, theirs: float, least: float) -> bool:
        ratio = theirs / ours
        verdict = "ok" if ratio >= least else "MISSED"
        print(
            f"  {name:<34} {ours:8.1f} ms   {other:<12} {theirs:8.1f} ms   {ratio:7.1f} x (at least {least:g}) "
            f"{verdict}",
            flush=True,
        )
        times = {"ours": f"{ours:.1f} ms", "theirs": f"{theirs:.1f} ms"}
        return at_least(f"{name}, {self.size} files, faster than {other}", ratio, least, **times)


def flat(place: Path, count: int) -> bool:
    """The cost of a snapshot doesn't grow with their number."""
    chance = random.Random(1)  # noqa: S311
    root = place / "flat"
    files = make_files(root, 1000, chance)
    times = []
    with Workspace.init(root) as live:
        for number in range(count):
            chance.choice(files).write_text(str(chance.random()))
            began = time.perf_counter()
            live.snapshot(str(number))
            times.append((time.perf_counter() - began) * 1000)
    part = max(1, count // 10)
    first, last = median(times[1 : part + 1]), median(times[-part:])
    began = time.perf_counter()
    with Workspace.open(root, track=False) as again:
        again.snapshot("reopened")
    reopened = (time.perf_counter() - began) * 1000
    took = {"ours": f"{last:.2f} ms", "theirs": f"{first:.2f} ms"}
    ok = at_most(f"the last of {count} snapshots, to the first", last / first, 1.5, **took)
    print(
        f"{count} snapshots of 1000 files: the first tenth {first:.2f} ms each, the last {last:.2f} ms, "
        f"ratio {last / first:.2f} (at most 1.5) {'ok' if ok else 'MISSED'}; then open + scan + close {reopened:.0f} ms"
    )
    return ok


def make_files(root: Path, count: int, chance: random.Random) -> list[Path]:
    files = []
    for number in range(count):
        directory = root / f"d{number // IN_DIRECTORY // 100:03d}" / f"{number // IN_DIRECTORY % 100:02d}"
        if number % IN_DIRECTORY == 0:
            directory.mkdir(parents=True)
        files.append(directory / f"file{number % IN_DIRECTORY:02d}.txt")
        files[-1].write_text(text(chance))
    return files


def text(chance: random.Random) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(200, 800)))


def remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


if __name__ == "__main__":
    sys.exit(main())
