"""The cost of attempts: scripted agents in boxes, with full evidence, verified and committed.

    scripts/bench lab [--attempts N] [--many N] [--template N] [--provider P] [--check]

- attempts per second on all cores, each with a tool call and a verifier, compared with the two bare boxes that an
  attempt needs at least: with their CPU time, divided by the number of cores;
- the CPU time of an attempt, in all processes, compared with theirs;
- the memory of the processes that run them, and of the one that conducts them, at the end of the longest run;
- the CPU time of one attempt in a run of few and in a run of many: it must be the same;
- the CPU time of the commands that read the longest run, compared with a loop that reads and hashes its files;
- the bytes and files of the evidence of an attempt without files;
- as root, the time and the evidence of an attempt on many files, compared with an attempt without files.

With --check the run fails when a figure is past its threshold. `--many 10000` is the full count, and takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from _history import at_most

from proofbox.core.ids import IdSource
from proofbox.lab.run.conductor import Conductor, create_run
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, ledger_path
from proofbox.sandbox.contract import Policy
from proofbox.sandbox.providers.bubblewrap import command_line

CONCURRENT = 16
"""Attempts wait for the disk and for boxes to start and end. Running more of them concurrently takes no more CPU time
for each.
"""
MOST_TIME, MOST_WORK = 3.2, 2.7
CHILD_SUBREAPER = 36
MAX_MEMORY_MB = 200
FLAT = 1.1
LARGE, EVIDENCE = 4.0, 1.2
MAX_BYTES, MAX_FILES = 10_000, 12
READERS = {"verify": 1.8, "report": 1.7, "validate": 2.4, "attempt list": 1.9, "suite resume": 2.1, "gc": 1.2}
"""The maximum ratio of each command's CPU time on a run to that of `READ`."""
READ_ROUNDS = 5
READ = """
import hashlib, os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            hashlib.sha256(file.read()).digest()
"""
SUITE = """
[suite]
id = "bench"
[[mission]]
id = "answer"
prompt = "Write 42 into answer.txt"
verify = { commands = ["grep -qx 42 answer.txt"] }
[[mission.script.step]]
tool = "write_file"
args = { path = "answer.txt", content = "42\\n" }
[[mission.script.step]]
say = "done"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=1000, metavar="N", help="attempts of the timed run")
    parser.add_argument("--many", type=int, default=2000, metavar="N", help="attempts of the long run")
    parser.add_argument("--template", type=int, default=50_000, metavar="N", help="files of a large template")
    parser.add_argument("--provider", default="bubblewrap", metavar="P")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is past its threshold")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place:
        os.environ["XDG_STATE_HOME"] = place
        floor = 2 * bare_box(Path(place) / "box") if options.provider == "bubblewrap" else None
        _, few, _ = run(Path(place) / "few", 100, options.provider)
        timed, work, _ = run(Path(place) / "timed", options.attempts, options.provider)
        _, many, memory = run(Path(place) / "many", options.many, options.provider)
        held = readers(Path(place) / "many")
        large = one_by_one(Path(place) / "large", options.template) if os.geteuid() == 0 else None
        small = one_by_one(Path(place) / "small", 0)
    rate = options.attempts / timed
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    held += [
        told("memory of a worker", f"{memory} MB", f"under {MAX_MEMORY_MB}", memory < MAX_MEMORY_MB),
        told("and of the conductor", f"{own} MB", f"under {MAX_MEMORY_MB}", own < MAX_MEMORY_MB),
    ]
    if floor is None:
        print(f"{options.attempts} attempts: {rate:.1f} a second")
    else:
        cores = len(os.sched_getaffinity(0))
        ratio = cores / rate / floor
        ok = at_most(
            *("time of an attempt on all cores, to two bare boxes", ratio, MOST_TIME),
            ours=f"{1000 / rate:.1f} ms",
            theirs=f"{floor / cores * 1000:.1f} ms",
        )
        each = f"{rate:.1f} a second; each takes {ratio:.1f} x two bare boxes on {cores} cores"
        held.append(told(f"{options.attempts} attempts", each, f"at most {MOST_TIME:g}", ok))
        ratio = work / options.attempts / floor
        each = f"{work / options.attempts * 1000:.1f} ms, two bare boxes {floor * 1000:.1f} ms: {ratio:.1f}"
        ok = at_most("CPU time of an attempt, to two bare boxes", ratio, MOST_WORK)
        held.append(told("CPU of an attempt", each, f"at most {MOST_WORK:g}", ok))
    ratio = (many / options.many) / (few / 100)
    each = (
        f"{few * 10:.1f} ms in a run of 100, {many / options.many * 1000:.1f} ms in one of {options.many}: {ratio:.2f}"
    )
    flat = at_most(f"an attempt in a run of {options.many}, to one in a run of 100", ratio, FLAT)
    held.append(told("one attempt", each, f"at most {FLAT}", flat))
    ok = at_most("bytes of evidence of an attempt", small[1], MAX_BYTES)
    ok &= at_most("files of evidence of an attempt", small[2], MAX_FILES)
    each = f"{small[1]:.0f} bytes in {small[2]} files"
    held.append(told("evidence of an attempt", each, f"at most {MAX_BYTES} in {MAX_FILES}", ok))
    if large is not None:
        ratio, times = large[1] / small[1], large[0] / small[0]
        each = f"{large[0] * 1000:.0f} ms, without files {small[0] * 1000:.0f} ms: {times:.1f}; evidence: {ratio:.2f}"
        on = f"an attempt on {options.template} files, to one without files"
        ok = at_most(on, times, LARGE) & at_most(f"evidence of {on}", ratio, EVIDENCE)
        held.append(told(f"on {options.template} files", each, f"at most {LARGE:g} and {EVIDENCE:g}", ok))
    return 1 if options.check and not all(held) else 0


def bare_box(project: Path, count: int = 50) -> float:
    """CPU seconds of a box that bubblewrap starts without proofbox, with the same mounts."""
    project.mkdir()
    command = [*command_line(project.resolve(), Policy()), "true"]
    prctl = ctypes.CDLL(None).prctl
    prctl(CHILD_SUBREAPER, 1, 0, 0, 0)  # bubblewrap does not wait for the process that makes the mounts
    began = cpu_seconds(resource.RUSAGE_CHILDREN)
    for _ in range(count):
        os.posix_spawn(command[0], command, os.environ)
        with contextlib.suppress(ChildProcessError):  # all have ended
            while os.waitpid(-1, 0)[1] == 0:
                pass
    prctl(CHILD_SUBREAPER, 0, 0, 0, 0)
    return (cpu_seconds(resource.RUSAGE_CHILDREN) - began) / count


def cpu_seconds(*processes: int) -> float:
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, processes))


def run(out: Path, count: int, provider: str) -> tuple[float, float, int]:
    """Seconds and CPU seconds for this many attempts, and the peak memory of any of its workers, in MB."""
    plan = Plan(
        run_id=IdSource().new_id("run"),
        suite_name="bench",
        suite_source=SUITE,
        base=str(out.parent),
        chain="scripted",
        chain_origin="flag",
        concurrency=CONCURRENT,
        provider=provider,
        replicates=count,
    )
    create_run(plan, out)
    began, used = time.perf_counter(), cpu_seconds(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    conductor = Conductor(out, plan.run_id)
    path = conductor.conduct()
    conductor.close()
    took = time.perf_counter() - began
    used = cpu_seconds(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) - used
    totals = json.loads((path / "summary.json").read_bytes())["totals"]
    if totals["passed"] != count:
        raise SystemExit(f"only {totals['passed']} of {count} passed: {totals}")
    print(f"  {count} attempts in {took:.1f} s, {used / count * 1000:.1f} ms of CPU time each", flush=True)
    return took, used, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def readers(out: Path) -> list[bool]:
    """Compare the commands that read a run with a loop that reads and hashes the same files."""
    place = next(path for path in out.glob("run-*") if path.is_dir())
    asked = {command: ["-m", "proofbox", *command.split(), str(place)] for command in READERS}
    asked["gc"] = ["-m", "proofbox", "gc", str(out), "--older-than", "1"]
    times: dict[str, list[float]] = {command: [] for command in ("read", *READERS)}
    for _ in range(READ_ROUNDS):  # in turns, because other processes on the machine change the speed of all of them
        times["read"].append(cpu_time("-c", READ, str(place)))
        for command, argv in asked.items():
            times[command].append(cpu_time(*argv))
    floor = median(times["read"])
    held = []
    for command, most in READERS.items():
        ratio = median(times[command]) / floor
        ok = at_most(f"CPU time of `{command}`, to reading the files", ratio, most)
        held.append(told(command, f"{ratio:.1f} x reading the files", f"at most {most:g}", ok))
    return held


def cpu_time(*argv: str) -> float:
    """Return the CPU seconds of a Python process and its children. Raises if it fails."""
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *argv], stdout=subprocess.DEVNULL, check=True)
    return cpu_seconds(resource.RUSAGE_CHILDREN) - before


def one_by_one(out: Path, files: int, count: int = 9) -> tuple[float, float, int]:
    """Seconds, and bytes and files of evidence, of an attempt on this many files, without the first, which creates the
    template.
    """
    base = out.with_suffix(".suite")
    for number in range(files):
        path = base / f"files/{number // 2500}/{number // 50 % 50}/{number % 50}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"number = {number}\n" * 20)
    source = SUITE.replace("verify =", 'workspace = "files"\nverify =') if files else SUITE
    base.mkdir(exist_ok=True)
    plan = Plan(
        run_id=IdSource().new_id("run"),
        suite_name="bench",
        suite_source=source,
        base=str(base),
        chain="scripted",
        chain_origin="flag",
        concurrency=1,
        provider="bubblewrap",
        replicates=count,
    )
    create_run(plan, out)
    conductor = Conductor(out, plan.run_id)
    path = conductor.conduct()
    conductor.close()
    with Ledger(ledger_path(out, plan.run_id), read_only=True) as ledger:
        attempts = ledger.attempts()[1:]
    seconds = [(each.ended_at or 0.0) - (each.claimed_at or 0.0) for each in attempts]
    sizes = [[file.stat().st_size for file in (path / each.path).rglob("*.*")] for each in attempts]
    return median(seconds), median(map(sum, sizes)), max(map(len, sizes))


def told(name: str, figure: str, threshold: str, ok: bool) -> bool:
    print(f"{name:<20} {figure}   ({threshold}) {'ok' if ok else 'MISSED'}")
    return ok


if __name__ == "__main__":
    sys.exit(main())
