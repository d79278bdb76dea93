"""A single worker process: its events and its heartbeat."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from suites import HEAD, mission, plan, say

from proofbox.core.clock import SystemClock
from proofbox.errors import IoFailed
from proofbox.lab.run import resources, worker
from proofbox.lab.run.ledger import Attempt, Ended, Ledger
from proofbox.lab.run.plan import ledger_path, run_context

# The ledger has the end, and nothing more to do, a while before the worker notices.
SLOW_TO_HEAR = """
import sys, time
from proofbox.lab.run import worker
end = worker.Ledger.end
def slow(*words):
    end(*words)
    time.sleep(0.5)
worker.Ledger.end = slow
worker.main(sys.argv[1:])
"""


@pytest.mark.needs("bubblewrap")
def test_end_of_the_last_attempt_is_reported_before_the_worker_exits(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + mission("answer", say("done")), out, tmp_path)
    ledger = Ledger(ledger_path(out, made.run_id))
    epoch = ledger.begin_epoch()
    ledger.close()
    (out / made.run_id).mkdir()
    argv = [sys.executable, "-c", SLOW_TO_HEAR, str(out), made.run_id, "w", str(epoch), "2", str(os.getpid())]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "ended"


def test_blocking_attempts_do_not_delay_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run more blocking attempts than there are threads by default."""
    many, out = 50, tmp_path / "out"
    made = plan(HEAD + mission("waits", say("done"), replicates=many), out, tmp_path)
    (out / made.run_id).mkdir()
    ledger = Ledger(ledger_path(out, made.run_id))
    blocked, free, beats = threading.Barrier(many + 1), threading.Event(), threading.Semaphore(0)
    called = itertools.count()

    def block() -> None:
        blocked.wait(20)
        free.wait(20)

    async def blocks(attempt: Attempt, *_: object) -> Ended:
        await run_sync(block)
        return Ended(claimed="none", verified="none", infra=None, reason="completed", strategy="", index_sha256="")

    def heartbeat(worker: str, lease: float) -> list[str]:
        if not next(called):
            raise IoFailed("the ledger is busy", op="ledger")
        beats.release()
        return Ledger.heartbeat(ledger, worker, lease)

    monkeypatch.setattr(worker, "run_attempt", blocks)
    monkeypatch.setattr(worker, "BEAT", 0.01)
    monkeypatch.setattr(resources, "reason", lambda *_: "")
    monkeypatch.setattr(ledger, "heartbeat", heartbeat)

    def watch() -> bool:
        try:
            blocked.wait(20)
            while beats.acquire(blocking=False):
                pass
            return all(beats.acquire(timeout=20) for _ in range(3))
        finally:
            free.set()

    with ThreadPoolExecutor() as pool:
        beaten = pool.submit(watch)
        one = worker.Worker(
            "w",
            ledger.begin_epoch(),
            many,
            worker.WorkerInputs(made, ledger, run_context(made, out, "w"), None, SystemClock()),
        )

        async def work() -> None:
            with anyio.fail_after(60):
                await one.work()

        anyio.run(work)
        assert beaten.result(), "the heartbeat continues while everything blocks"
    assert ledger.counts()["ended"] == many
    ledger.close()
