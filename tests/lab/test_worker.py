"""A worker process by itself: what it says before it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from suites import HEAD, mission, plan, say

from proofbox.lab.ledger import Ledger
from proofbox.lab.plan import ledger_path

pytestmark = pytest.mark.needs("bubblewrap")

# The ledger has the end, and nothing more to do, a while before the worker hears of it.
SLOW_TO_HEAR = """
import sys, time
from proofbox.lab import worker
end = worker.Ledger.end
def slow(*words):
    end(*words)
    time.sleep(0.5)
worker.Ledger.end = slow
worker.main(sys.argv[1:])
"""


def test_the_last_attempt_s_end_is_said_before_it_leaves(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + mission("answer", say("done")), out, tmp_path)
    ledger = Ledger(ledger_path(out, made.run_id))
    epoch = ledger.begin_epoch()
    ledger.close()
    (out / made.run_id).mkdir()
    argv = [sys.executable, "-c", SLOW_TO_HEAR, str(out), made.run_id, "w", str(epoch), "2", str(os.getpid())]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "ended"
