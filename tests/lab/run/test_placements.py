"""`suite status` of a received run: neither an id in its ledger nor a link leads to a file elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox import suite_status
from proofbox.lab.run.ledger import Attempt, Ledger, PlannedAttempt
from proofbox.lab.run.placements import Placements
from proofbox.lab.run.plan import ledger_path

RUN = "run-1"


def claimed(out: Path, id: str) -> Attempt:
    """Return the only attempt of a run, which is claimed."""
    out.mkdir()
    with Ledger.create(ledger_path(out, RUN), {"epoch": "0"}, [PlannedAttempt(id, "m", 1)]) as ledger:
        found = ledger.claim("driver", ledger.begin_epoch(), 60.0)
    assert found is not None
    return found


@pytest.mark.parametrize("id", ["../../../../secret", "m.1\0", "/secret", "m.1/../../../../../secret", "..", ""])
def test_status_reads_nothing_for_an_id_that_no_attempt_has(tmp_path: Path, out: Path, id: str) -> None:
    attempt = claimed(out, id)
    (out / ".work" / RUN / "placed" / "m.1").mkdir(parents=True)
    (tmp_path / f"secret.e{attempt.epoch}").write_text("content")
    [running] = suite_status(out).running
    assert (running.attempt_id, running.node) == (id, None)


@pytest.mark.parametrize("link", [".work", f".work/{RUN}", f".work/{RUN}/placed"])
def test_status_follows_no_link(tmp_path: Path, out: Path, link: str) -> None:
    attempt = claimed(out, "m.1")
    work = out / ".work" / RUN
    work.mkdir(parents=True)
    placements = Placements(work)
    placements.set_node("node-a", "admitted")
    placements.place(attempt, "node-a")
    found = suite_status(out)
    assert ([each.node for each in found.running], [each.name for each in found.nodes]) == (["node-a"], ["node-a"])
    (out / link).rename(tmp_path / "elsewhere")
    (out / link).symlink_to(tmp_path / "elsewhere")
    found = suite_status(out)
    assert [each.node for each in found.running] == [None]
    assert len(found.nodes) == (link.endswith("placed"))
