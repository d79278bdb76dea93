"""The progress of a run: what `suite status` prints. It reads only the ledger, so it is quick for runs of any size."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from shlex import quote

import msgspec

from proofbox.core.clock import SystemClock
from proofbox.core.results import Document, ErrorBody
from proofbox.errors import RunInterrupted
from proofbox.evidence.bundle.paths import INDEX
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.placements import node_standings, placed_on
from proofbox.lab.run.plan import count_refused, find_run, is_conducted, ledger_path


class RunningAttempt(msgspec.Struct, frozen=True):
    """An attempt that a worker has claimed."""

    attempt_id: str
    mission_id: str
    state: str
    """claimed, preparing, running, stopping, verifying or committing."""
    seconds: float
    """Since it was claimed."""
    node: str | None
    """The node of a cluster that runs it; null on this machine, or before a node got it."""


class RunNode(msgspec.Struct, frozen=True):
    """A node of the cluster that runs the attempts."""

    name: str
    """Its host name, and the beginning of its id in the cluster."""
    standing: str
    """Whether it was admitted, refused or lost, and why."""
    running: int
    """Attempts that it runs now."""


class SuiteStatus(Document, frozen=True, kw_only=True):
    """The progress of a run. `ok`: it is committed, or a process is conducting it. `error`: it was interrupted."""

    schema: str = "proofbox.suite_status/1"
    run_id: str
    bundle: str
    committed: bool
    conducted: bool
    """Whether a process is conducting it."""
    waiting: int
    """Attempts that have not begun."""
    ended: int
    """Attempts that have ended, including those that are retried."""
    running: tuple[RunningAttempt, ...]
    """The attempts that workers have claimed."""
    nodes: tuple[RunNode, ...]
    """Of a run in progress on a cluster."""
    refused: int
    """How many bundles of nodes were refused, because their attempts had been taken over."""
    error: ErrorBody | None = None


def suite_status(run: str | os.PathLike[str] = "out") -> SuiteStatus:
    """Return a run's progress: which attempts are running, for how long and where. `load_run` returns its results.

    For example:

        for each in proofbox.suite_status("out").running:
            print(each.attempt_id, each.state, each.seconds, each.node)

    `run` is the run's directory, or an output directory, for its last run.
    """
    out, run_id = find_run(Path(run))
    bundle = out / run_id
    now = SystemClock().now().timestamp()
    with Ledger(ledger_path(out, run_id), read_only=True) as ledger:
        counts = ledger.counts()
        claimed = [each for each in ledger.attempts() if each.state == "claimed"]
        committed = ledger.get_value("committed") == "yes" or (bundle / INDEX).exists()
    running = tuple(
        RunningAttempt(
            each.id, each.mission, each.phase, max(0.0, now - (each.claimed_at or now)), placed_on(out, run_id, each)
        )
        for each in claimed
    )
    nodes = node_standings(out, run_id)
    busy = Counter(each.node for each in running)
    conducted = not committed and is_conducted(out, run_id)
    resume = f"resume with: proofbox suite resume {quote(str(bundle))}"
    error = RunInterrupted(f"{run_id} was interrupted", op="suite", fix_hints=[resume])
    return SuiteStatus(
        ok=committed or conducted,
        run_id=run_id,
        bundle=str(bundle),
        committed=committed,
        conducted=conducted,
        waiting=counts["planned"],
        ended=counts["ended"],
        running=running,
        nodes=tuple(RunNode(name, standing, busy[name]) for name, standing in sorted(nodes.items())),
        refused=count_refused(bundle),
        error=None if committed or conducted else ErrorBody.of(error),
    )
