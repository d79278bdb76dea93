"""The cost of a delivery, compared with git doing the same to the same files in the same run.

    scripts/bench delivery [--files N] [--bytes N] [--check]

Through the command line and a backend process, over HTTP: the initial export of many files; then, with every file
changed, the plan and the pull request, which request the manifest of all files. They are compared with `git add`,
`git commit` and `git push` to a bare repository. Memory is the highest resident size of the client's processes and of
the backend.

With --check the run fails when a figure is past its threshold: 10 s and 200 MB, and 3 times git's time. Times are CPU
seconds of both sides and of the git processes that the backend runs: on an idle machine, a delivery takes no longer
than that, and on a busy one, wall-clock time depends on other programs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS, MEGABYTES, RATIO = 10.0, 200.0, 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000, metavar="N")
    parser.add_argument("--bytes", type=int, default=4_000, help="of each file, on average", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is past its threshold")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place:
        base = Path(place)
        for name in ("STATE", "CACHE", "CONFIG"):
            os.environ[f"XDG_{name}_HOME"] = str(base / name.lower())
            (base / name.lower()).mkdir(mode=0o700)
        held = measure(base, options.files, options.bytes)
    return 1 if options.check and not held else 0


def measure(base: Path, files: int, size: int) -> bool:
    source = base / "source"
    fill(source, files, size, "one")
    print(f"{files} files of {size} bytes on average")
    deliver = ["--app-id", "bench", "--source", str(source), "--json"]
    with backend(base / "data") as process:
        init = timed("deliver init", lambda: proofbox("deliver", "init", *deliver, "--allow-unpromoted"))
        init_cpu = sum(CPU) + cpu_of(process.pid)
        git_init = timed("git, the same", lambda: git_export(source, base / "bare"))
        fill(source, files, size, "two")
        plan = timed("deliver plan", lambda: proofbox("deliver", "plan", *deliver))
        pull = timed("deliver pr", lambda: proofbox("deliver", "pr", *deliver, "--allow-unpromoted"))
        git_pull = timed("git, the same", lambda: git_change(source, base / "bare"))
        server = peak_of(process.pid)
        pull_cpu = sum(CPU) + cpu_of(process.pid) - init_cpu
    held = [
        verdict(f"manifest, plan and pull request ({plan + pull:.2f} s on the wall)", pull_cpu, SECONDS, "s"),
        verdict(f"initial export ({init:.2f} s on the wall)", init_cpu, SECONDS, "s"),
        verdict("memory of the client", max(CLIENTS), MEGABYTES, "MB"),
        verdict("memory of the backend", server, MEGABYTES, "MB"),
        verdict("ratio of init to git", init / git_init, RATIO, ""),
        verdict("ratio of pr to git", pull / git_pull, RATIO, ""),
    ]
    return all(held)


def fill(place: Path, files: int, size: int, word: str) -> None:
    """Files that differ, from a few bytes to twice the average, and compress as text does."""
    for number in range(files):
        path = place / f"{number % 100:02d}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = hashlib.sha256(f"{word} {number}".encode()).hexdigest()
        length = int(seed[:4], 16) * 2 * size // 0xFFFF
        path.write_text((f"{seed}\n" * (length // 65 + 1))[:length] + seed[:8])


@contextmanager
def backend(data: Path) -> Iterator[subprocess.Popen[str]]:
    os.environ["INTERNAL_API_KEY"] = secrets.token_urlsafe(24)
    argv = [sys.executable, "-m", "proofbox", "backend", "serve", "--port", "0", "--data", str(data), "--json"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # noqa: S101
        os.environ["MOZAIKS_BACKEND_URL"] = json.loads(process.stdout.readline())["url"]
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


CLIENTS: list[float] = []
"""The highest resident size of each client process."""
CPU: list[float] = []
"""The processor time of each."""


def proofbox(*words: str) -> None:
    process = subprocess.Popen([sys.executable, "-m", "proofbox", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    CLIENTS.append(usage.ru_maxrss / 1024)
    CPU.append(usage.ru_utime + usage.ru_stime)


def git_export(source: Path, bare: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", str(bare)], check=True)
    git(source, bare, "init", "--quiet", "--initial-branch=main", ".")
    git_change(source, bare)


def git_change(source: Path, bare: Path) -> None:
    git(source, bare, "add", "-A")
    git(source, bare, "commit", "--quiet", "-m", "change")
    git(source, bare, "push", "--quiet", str(bare), "HEAD:main")


def git(source: Path, bare: Path, *words: str) -> None:
    """Its own directory is next to the files, so that a delivery does not see it."""
    identity = ["-c", "user.name=b", "-c", "user.email=b@localhost", "-c", "gc.auto=0"]
    places = [f"--git-dir={bare}.work", f"--work-tree={source}"]
    subprocess.run(["git", *identity, *places, *words], cwd=source, check=True, stdout=subprocess.DEVNULL)


def timed(name: str, work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    print(f"  {name:<16} {took:6.2f} s")
    return took


def cpu_of(pid: int) -> float:
    """The processor time of a process and of the children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def peak_of(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def verdict(name: str, value: float, threshold: float, unit: str) -> bool:
    print(f"  {name}: {value:.2f} {unit}   (at most {threshold:g}) {'ok' if value <= threshold else 'MISSED'}")
    return value <= threshold


if __name__ == "__main__":
    sys.exit(main())
