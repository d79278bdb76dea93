"""Fork workers that use a workspace, kill them at random moments, and print the findings as JSON.

    python killing.py DIRECTORY ROUNDS SEED

A separate program, because a process with threads, such as a test runner, can't fork safely.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from proofbox import Workspace
from proofbox.workspace import registry

VERIFIED_EVERY = 20
CERTAIN_EVERY = 10
"""In these rounds the worker kills itself during a rollback, which random timing might never hit."""


def work(root: Path, seed: int, out: int) -> None:
    """Edit, snapshot and roll back until killed. Report each id after its snapshot has returned."""
    chance = random.Random(seed)  # noqa: S311
    with Workspace.open(root, track=bool(seed % 2)) as ws:
        ids = [snapshot.id for snapshot in ws.history()]
        os.write(out, b".")
        while True:
            for _ in range(chance.randint(1, 5)):
                path = root / f"d{chance.randint(0, 2)}" / f"f{chance.randint(0, 6)}"
                if chance.random() < 0.2 and path.exists():
                    path.unlink()
                else:
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(str(chance.random()) * chance.randint(1, 200))
            if chance.random() < 0.5:
                ws.rollback(chance.choice(ids))
            taken = ws.snapshot("x", sealed=chance.random() < 0.3)
            ids.append(taken.id)
            os.write(out, bytes.fromhex(taken.id))


def die_in_a_rollback() -> None:
    write = registry.write

    def dying(path: Path, body: Any) -> None:
        write(path, body)
        if path.name == "rollback.json":
            os.kill(os.getpid(), signal.SIGKILL)

    registry.write = dying


def killed_worker(root: Path, seed: int, after: int, delay: float, in_a_rollback: bool) -> list[str]:
    """Kill a worker `delay` seconds after `after` snapshots, unless it kills itself. Return the ids it reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            if in_a_rollback:
                die_in_a_rollback()
            work(root, seed, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb", buffering=0) as pipe:
        if pipe.read(1) != b".":
            raise RuntimeError(f"the worker of round {seed} did not open the workspace")
        output = b""
        if not in_a_rollback:
            output = b"".join(pipe.read(32) for _ in range(after))
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        output += b"".join(iter(lambda: pipe.read(65536), b""))
    os.waitpid(child, 0)
    return [output[at : at + 32].hex() for at in range(0, len(output) - 31, 32)]


def main() -> None:
    root, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)  # noqa: S311
    wrong: list[str] = []
    seen = {"rollback in progress": 0, "none": 0}
    with Workspace.init(root) as made:
        known = {made.snapshot("first").id}
        journal_path = registry.home_of(made.id) / "rollback.json"
    for number in range(rounds):
        after, delay = chance.randint(0, 3), chance.random() ** 2 * 0.03
        known |= set(killed_worker(root, number, after, delay, number % CERTAIN_EVERY == 0))
        journal = registry.read(journal_path, registry.Rollback)
        seen["none" if journal is None else "rollback in progress"] += 1
        with Workspace.open(root, track=False) as ws:
            history = ws.history()
            lost = known - {snapshot.id for snapshot in history}
            if lost:
                wrong.append(f"round {number}: lost {lost}")
            if journal is not None and (history[-1].kind, history[-1].id) != ("rollback", journal.target):
                wrong.append(f"round {number}: an interrupted rollback was not completed")
            if journal is not None and ws.status().changes:
                wrong.append(f"round {number}: a completed rollback left differences")
            wanted = chance.choice(sorted(known))
            ws.rollback(wanted)
            if ws.snapshot("after", sealed=True).id != wanted:
                wrong.append(f"round {number}: the rollback restored different files")
            if number % VERIFIED_EVERY == 0 or number == rounds - 1:
                wrong += [f"round {number}: {problem}" for problem in ws.verify().problems]
        if [name for name in os.listdir(root) if name.startswith(".proofbox")]:
            wrong.append(f"round {number}: a temporary file was left")
    print(json.dumps({"wrong": wrong, "seen": seen, "snapshots": len(known)}))


if __name__ == "__main__":
    main()
