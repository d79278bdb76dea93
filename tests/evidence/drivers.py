"""Programs that tests run in separate processes, because they fork, die and race.

python drivers.py NAME DIRECTORY ARGUMENTS…    prints one JSON document
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proofbox.core.chain import verify_chain
from proofbox.errors import BundleInProgress, BundleLocked
from proofbox.evidence.bundle.lock import RunLock, read_holder
from proofbox.evidence.bundle.paths import list_runs
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter

SYSTEM_CALLS = (
    "open",
    "write",
    "pwrite",
    "fsync",
    "fdatasync",
    "replace",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "close",
)

CERTAIN = (1, 60, 1_000_000)
"""Calls at which the first runs die: the first, one in the middle, and none. Even a few runs cover every outcome."""


def drive(name: str, directory: Path, *arguments: object) -> Any:
    argv = [sys.executable, __file__, name, str(directory), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def kill(directory: str, rounds: str, seed: str) -> dict[str, Any]:
    """Kill runs at random: the process kills itself at a system call, or the parent kills it at any time.

    After each kill a reader must see a bundle in progress or a committed one, and every acknowledged line.
    """
    chance = random.Random(int(seed))
    seen = {"committed": 0, "in_progress": 0, "nothing": 0, "lines": 0}
    wrong: list[str] = []
    for number in range(int(rounds)):
        out = Path(directory) / str(number)
        acknowledged = _die(out, chance, certain=CERTAIN[number] if number < len(CERTAIN) else None)
        problem = _judge(out, acknowledged, seen)
        if problem:
            wrong.append(f"round {number}: {problem}")
    return {"wrong": wrong, "seen": seen}


def _die(out: Path, chance: random.Random, certain: int | None) -> int:
    """Start a run and kill it. Return the number of log lines that were acknowledged."""
    read_end, write_end = os.pipe()
    at = chance.randrange(1, 160) if certain is None else certain
    by_itself = certain is not None or chance.random() < 0.7
    lines = chance.randrange(1, 30)
    pid = os.fork()
    if pid == 0:
        acknowledge, really_write = write_end, os.write
        if by_itself:
            _die_at_call(at, before=chance.random() < 0.5)
        with BundleWriter.create(out, expected=["results.json"]) as bundle:
            with bundle.open_log("trace.jsonl", sync_every=4) as log:
                for n in range(lines):
                    log.append({"n": n, "event": "step"})
                    really_write(acknowledge, b".")
            bundle.write_json("results.json", {"passed": True})
            with bundle.nested("attempts/a-1") as attempt:
                attempt.write_bytes("blob", b"x" * 5000)
        os._exit(0)
    os.close(write_end)
    acknowledged = 0
    with open(read_end, "rb", buffering=0) as acknowledgements:
        if not by_itself:
            wanted = chance.randrange(0, lines + 1)
            while acknowledged < wanted and (more := acknowledgements.read(1)):
                acknowledged += len(more)
            for _ in range(chance.randrange(0, 30_000)):
                pass
            os.kill(pid, signal.SIGKILL)
        acknowledged += len(acknowledgements.read())
    os.waitpid(pid, 0)
    return acknowledged


def _die_at_call(at: int, *, before: bool) -> None:
    left = [at]

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **options)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for name in SYSTEM_CALLS:
        if hasattr(os, name):
            setattr(os, name, dying(getattr(os, name)))
    from proofbox.core import chain

    chain._datasync = os.fdatasync  # bound at import


def _judge(out: Path, acknowledged: int, seen: dict[str, int]) -> str:
    runs = list_runs(out) if out.is_dir() else []
    latest = (out / "LATEST").read_text().strip() if (out / "LATEST").exists() else None
    visible = sorted(path.name for path in out.iterdir() if path.name[0] != ".") if out.is_dir() else []
    if [name for name in visible if name != "LATEST"] != runs:
        return f"there are entries that are not runs: {visible}"
    if not runs:
        seen["nothing"] += 1
        return "lines were acknowledged, but there is no run" if acknowledged else ""
    (run,) = runs
    seen["lines"] += acknowledged
    log = out / run / "trace.jsonl"
    try:
        bundle = load_bundle(out / run)
    except BundleInProgress:
        seen["in_progress"] += 1
        if latest is not None:
            return "LATEST names a run in progress"
    else:
        seen["committed"] += 1
        if bundle.index.status != "ok" or bundle.status.state != "complete":
            return f"committed as {bundle.index.status}"
        if latest not in (None, run):
            return f"LATEST is {latest}"
    if acknowledged:
        complete = log.read_bytes().count(b"\n")
        report = verify_chain(log, f"{run}/trace.jsonl")
        if complete < acknowledged:
            return f"{acknowledged} lines acknowledged, {complete} found"
        if {finding.code for finding in report.findings} - {"torn_tail"}:
            return f"the chain is broken: {report.findings[0]}"
    return ""


def read_while_writing(directory: str, runs: str) -> dict[str, Any]:
    """Read runs while they are written: each must be in progress or committed at all times."""
    out = Path(directory) / "out"
    out.mkdir()
    pid = os.fork()
    if pid == 0:
        for number in range(int(runs)):
            with BundleWriter.create(out) as bundle:
                for n in range(number % 7):
                    bundle.write_json(f"{n}.json", {"n": n})
                with bundle.nested("attempts/a-1") as attempt, attempt.open_log("l.jsonl") as log:
                    log.append({"n": number})
        os._exit(0)
    seen = {"committed": 0, "in_progress": 0}
    wrong: list[str] = []
    done: set[str] = set()
    ended = False
    while not ended:
        ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        for run in list_runs(out):
            if run in done:
                continue
            try:
                load_bundle(out / run)
            except BundleInProgress:
                seen["in_progress"] += 1
            except Exception as error:
                wrong.append(repr(error))
            else:
                seen["committed"] += 1
                done.add(run)
    return {"wrong": wrong, "seen": seen, "runs": len(done)}


def exclude(directory: str, processes: str, times: str) -> dict[str, Any]:
    """Let several processes take the lock repeatedly. Only one may hold it at a time."""
    out = Path(directory)

    def take_turns() -> None:
        for _ in range(int(times)):
            with RunLock(out, purpose="turn", timeout=100):
                os.close(os.open(out / "inside", os.O_CREAT | os.O_EXCL))
                holder = read_holder(out)
                assert holder is not None
                assert holder.process["pid"] == os.getpid()
                count = int((out / "count").read_text())
                (out / "count").write_text(str(count + 1))
                os.unlink(out / "inside")

    (out / "count").write_text("0")
    failures = _fork_all([take_turns] * int(processes))
    return {"failures": failures, "count": int((out / "count").read_text())}


def commit_at_once(directory: str, processes: str) -> dict[str, Any]:
    out = Path(directory) / "out"

    def run() -> None:
        with BundleWriter.create(out, lock_timeout=100) as bundle:
            bundle.write_json("who.json", {"pid": os.getpid()})

    failures = _fork_all([run] * int(processes))
    loaded = [load_bundle(out / name).read_json("who.json")["pid"] for name in list_runs(out)]
    left = sorted(path.name for path in out.iterdir() if path.name.startswith("."))
    return {"failures": failures, "runs": len(set(loaded)), "latest": load_bundle(out).run_id, "left": left}


def die_with_lock(directory: str) -> dict[str, Any]:
    """Kill a holder whose forked child outlives it. Neither process may keep the lock."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        RunLock(directory, purpose="to the death").__enter__()
        if os.fork() == 0:
            os.read(read_end, 1)  # until the driver is done
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    before = read_holder(directory)
    # Wait instead of failing: right after the fork, the grandchild still has the descriptor.
    with RunLock(directory, purpose="after", timeout=60) as lock:
        inherited = lock.took_over_from
        now = read_holder(directory)
    os.close(write_end)
    assert before is not None
    assert inherited is not None
    assert now is not None
    return {
        "stale_before": before.stale,
        "pid_is_the_dead": before.process["pid"] == pid,
        "took_over": inherited.process["pid"] == pid and inherited.stale,
        "now_mine": now.process["pid"] == os.getpid() and now.alive,
        "after_release": read_holder(directory) is None,
    }


def refuse_while_held(directory: str) -> dict[str, Any]:
    """A refused process learns the lock's holder and does not change the holder's files."""
    with RunLock(directory, purpose="holding"):
        written = (Path(directory) / ".runtime.lock").read_bytes()
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                RunLock(directory, purpose="losing", mode="fail").__enter__()
            except BundleLocked as refused:
                os.write(write_end, json.dumps(refused.as_dict()).encode())
            os._exit(0)
        os.close(write_end)
        os.waitpid(pid, 0)
        with open(read_end, "rb") as output:
            error = json.loads(output.read())
        untouched = (Path(directory) / ".runtime.lock").read_bytes() == written
    return {"code": error["code"], "holder_is_me": error["holder"]["pid"] == os.getpid(), "untouched": untouched}


def _fork_all(works: list[Callable[[], None]]) -> int:
    """Run the functions in concurrent processes, and return how many failed."""
    pids = []
    for work in works:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException as error:
                print(repr(error), file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


def write_one(directory: str) -> dict[str, Any]:
    """Write one run with all kinds of files, for a test that traces the system calls."""
    with BundleWriter.create(Path(directory) / "out", expected=["results.json"]) as bundle:
        with bundle.open_log("logs/trace.jsonl", sync_every=10) as log:
            for n in range(25):
                log.append({"n": n})
        bundle.write_json("results.json", {"passed": True})
        bundle.write_bytes("deep/er/blob", b"x" * 300_000)
        with bundle.nested("attempts/a-1") as attempt:
            attempt.write_bytes("blob", b"y")
    return {"run": str(bundle.path)}


if __name__ == "__main__":
    program: Callable[..., dict[str, Any]] = globals()[sys.argv[1]]
    print(json.dumps(program(*sys.argv[2:])))
