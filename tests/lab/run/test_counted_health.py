"""Attempts count in the health of their strategy: those made by hand, and those whose worker died."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, conduct, mission, patch_workers, plan, say

import proofbox
from proofbox.agents.health.counters import health_dir, read_health
from proofbox.lab.run import conductor

pytestmark = pytest.mark.needs("bubblewrap")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_attempt_made_by_hand_is_counted(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    proofbox.run_attempt("do it", workspace=tmp_path / "work", strategies="nop", out=tmp_path / "record")
    found = read_health("nop")
    assert (found.attempts, found.infra, found.window) == (1, {}, 1)
    assert found.start_ms is not None


def test_attempt_whose_worker_died_is_counted_and_its_retry_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "MAX_LOST", 1)
    patch_workers(monkeypatch, "async def die(*_): os._exit(9)\nworker.run_attempt = die")
    made = plan(HEAD + mission("lost", say("done")), tmp_path / "out", tmp_path, concurrency=1)
    conduct(made, tmp_path / "out")
    ended = attempts(made, tmp_path / "out")
    found = read_health("scripted")
    assert found.attempts == len(ended) == 2
    assert (found.infra, found.attempt_retries, found.reliability) == ({"ATTEMPT_WORKER_LOST": 2}, 1, 0.0)


def test_counters_that_cannot_be_written_change_no_result(tmp_path: Path) -> None:
    place = health_dir()
    place.write_text("not a directory")
    made = plan(HEAD + mission("done", say("done"), verify={"commands": ["true"]}), tmp_path / "out", tmp_path)
    conduct(made, tmp_path / "out")
    result = attempts(made, tmp_path / "out")["done.1"].result
    assert result is not None
    assert (result.verified, result.infra) == ("passed", None)
    assert place.read_text() == "not a directory"
