"""The cost of starting proofbox, compared with starting Python alone in the same run.

    scripts/bench cli [--rounds N] [--sessions N] [--check]

Each figure is a median over interleaved rounds, in ms and as a ratio to `python -c pass` by the same interpreter. At
the end, that many sessions are started one after another, each used, and each stopped. With --check the run fails when
a ratio is past its threshold. The thresholds are ratios, because times depend on the machine and on its load.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from _history import at_most

PROGRAM = str(Path(sys.executable).with_name("proofbox"))
BASE = "python -c pass"
RATIOS = {
    "--help": 1.2,
    "--version": 1.2,
    "exec --help": 3.3,
    "doctor --help": 3.3,
    "suite run --help": 3.6,
    "exec -- true": 6.0,
    "session exec ID -- true": 5.0,
    "workspace status .": 6.4,
    "session start": 6.5,
    "session stop ID": 5.5,
}
"""Command lines, and the largest allowed ratio of each to the start of Python."""
MANY = ("session start", "session stop ID")
"""Command lines that are run for each of many sessions."""
BOX = {"exec -- true", "session exec ID -- true", *MANY}
"""Command lines that need bubblewrap."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="interleaved rounds", metavar="N")
    parser.add_argument("--sessions", type=int, default=200, help="sessions at the same time", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a ratio is past its threshold")
    options = parser.parse_args()
    names = [name for name in RATIOS if name not in BOX or shutil.which("bwrap")]
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as directory:
        times = measured_in(directory, names, options.rounds, options.sessions)
    names = [name for name in names if name in times]
    print(f"a whole process from start to end, {options.rounds} rounds")
    print(f"  {BASE:<24} {times[BASE]:6.1f} ms")
    kept = [shown(name, times[name], times[BASE]) for name in names]
    for name in RATIOS:
        if name not in names:
            print(f"  {name:<24} not measured: no bwrap on PATH, or --sessions 0")
    return 1 if options.check and not all(kept) else 0


def measured_in(directory: str, names: list[str], rounds: int, sessions: int) -> dict[str, float]:
    """Measure in a new project with a history and, if a command needs one, a session."""
    import proofbox

    # As installed: a clone whose bytecode is stale, and may not be written, would be compiled in every round.
    compileall.compile_dir(Path(proofbox.__file__).parent, quiet=1)
    home = Path(directory, "home")
    project = Path(directory, "project")
    project.mkdir()
    (project / "file.txt").write_text("a file\n")
    env = {**os.environ, **{f"XDG_{name}_HOME": str(home / name) for name in ("STATE", "CACHE", "CONFIG", "DATA")}}

    def proofbox_(*words: str) -> str:
        done = subprocess.run([PROGRAM, *words], cwd=project, env=env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    proofbox_("workspace", "init", ".")
    session = proofbox_("session", "start") if BOX & set(names) else "none"
    ways = {name: [PROGRAM, *name.replace("ID", session).split()] for name in names if name not in MANY}
    try:
        times = measured({BASE: [sys.executable, "-c", "pass"], **ways}, rounds, project, env)
    finally:
        if BOX & set(names):
            proofbox_("session", "stop", session)
    return times | many_sessions(proofbox_, sessions if BOX & set(names) else 0)


def many_sessions(proofbox_: Callable[..., str], count: int) -> dict[str, float]:
    """Start sessions one after another, use each, and stop each. Return medians in ms."""
    started: list[str] = []
    times: dict[str, list[float]] = {}

    def timed(name: str, *words: str) -> str:
        began = time.perf_counter()
        said = proofbox_(*words)
        times.setdefault(name, []).append((time.perf_counter() - began) * 1000)
        return said

    try:
        for _ in range(count):
            started.append(timed("session start", "session", "start"))
        for session in started:
            timed("session exec", "session", "exec", session, "--", "true")
    finally:
        for session in started:
            timed("session stop ID", "session", "stop", session)
    if count:
        print(f"{count} sessions: {', '.join(f'{name} {sum(each) / 1000:.1f} s' for name, each in times.items())}")
    return {name: median(each) for name, each in times.items()}


def measured(ways: dict[str, list[str]], rounds: int, cwd: Path, env: dict[str, str]) -> dict[str, float]:
    """Medians in ms. Each round runs all of them in turn, so that a slow moment of the machine affects all equally."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, argv in ways.items():
            began = time.perf_counter()
            subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
            if number:  # the first fills the caches
                times[name].append((time.perf_counter() - began) * 1000)
    return {name: median(values) for name, values in times.items()}


def shown(name: str, value: float, base: float) -> bool:
    ratio, most = value / base, RATIOS[name]
    print(f"  {name:<24} {value:6.1f} ms   ratio {ratio:5.2f} (at most {most}) {'ok' if ratio <= most else 'MISSED'}")
    times = {"ours": f"{value:.0f} ms", "theirs": f"{base:.0f} ms"}
    return at_most(f"`{name}`, to the start of Python", ratio, most, **times)


if __name__ == "__main__":
    sys.exit(main())
