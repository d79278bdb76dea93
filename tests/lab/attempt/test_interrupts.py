"""An attempt can be interrupted in any state without affecting others, and the message says what happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan, results, say, write

from proofbox.cli import main
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.explain import explain
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
DOES_IT = (write("answer.txt", "42\n"), say("done"))
GOOD = mission("good", *DOES_IT, verify=ANSWER)
STOPPED = ("none", "none", None, "interrupted")
LONG = "sleep 20"


def interrupt(out: Path, id: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["attempt", "interrupt", id, "--run", str(out)]) == 0
    return capsys.readouterr().out


def when(event: str, id: str, act: Callable[[], None]) -> Callable[[dict[str, Any]], None]:
    def hear(told: dict[str, Any]) -> None:
        if (told["event"], told["attempt_id"]) == (event, id):
            act()

    return hear


@pytest.mark.parametrize(
    ("phase", "fields", "result", "words", "detail"),
    [
        (
            "preparing",
            {"setup": [LONG], "verify": ANSWER},
            STOPPED,
            "before its agent starts",
            "on request, during setup",
        ),
        (
            "verifying",
            {"verify": {"commands": [LONG]}, "expect": {"claimed": "success"}},
            ("success", "none", None, "interrupted"),
            "so it is not verified",
            "on request, during verification",
        ),
    ],
)
def test_interrupt_stops_setup_and_verifier(
    out: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    phase: str,
    fields: dict[str, Any],
    result: tuple[str, str, str | None, str],
    words: str,
    detail: str,
) -> None:
    made = plan(HEAD + mission("waits", *DOES_IT, **fields) + GOOD, out, tmp_path)
    said: list[str] = []
    run = conduct(made, out, when(phase, "waits.1", lambda: said.append(interrupt(out, "waits.1", capsys))))
    assert results(made, out) == {"waits.1": result, "good.1": ("success", "passed", None, "completed")}
    assert words in said[0]
    found = attempts(made, out)["waits.1"]
    assert document(out, made, found, "attempt.json")["detail"] == detail
    assert f"It was interrupted. ({detail})" in list(explain(found, run / found.path))
    assert verify(run).ok
    assert validate(load_bundle(run), strict=False) == []


def test_interrupted_queued_attempt_never_starts(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = HEAD + mission("waits", command(LONG), verify=ANSWER) + mission("queued", *DOES_IT, verify=ANSWER)
    made = plan(source, out, tmp_path, concurrency=1)
    said: list[str] = []
    events: list[tuple[str, str]] = []

    def hear(event: dict[str, Any]) -> None:
        events.append((event["attempt_id"], event["event"]))
        if events[-1] == ("waits.1", "running"):
            said.append(interrupt(out, "queued.1", capsys))
        if events[-1] == ("queued.1", "ended"):  # before its turn
            said.append(interrupt(out, "waits.1", capsys))

    run = conduct(made, out, hear)
    assert said == [
        "queued.1: it ends within seconds and is never started\n",
        "waits.1: its agent is stopped within seconds, and the files it left are verified\n",
    ]
    assert results(made, out) == {"waits.1": ("none", "failed", None, "interrupted"), "queued.1": STOPPED}
    assert [each for id, each in events if id == "queued.1"] == ["committing", "ended"]
    assert verify(run).ok
    assert validate(load_bundle(run), strict=False) == []
    inner = load_bundle(run).nested[attempts(made, out)["queued.1"].path]
    assert inner.index.status == "partial"
    assert {each.code for each in validate(inner, strict=True)} == {"artifact_missing"}


def test_interrupt_cancels_a_pending_retry(out: Path, tmp_path: Path) -> None:
    later = {"fault": "usage_limit", "resets_at": 4_000_000_000}
    made = plan(HEAD + mission("limited", later), out, tmp_path)

    def stop_it() -> None:
        with Ledger(ledger_path(out, made.run_id)) as ledger:
            ledger.interrupt("limited.1.r1")

    conduct(made, out, when("waiting", "limited.1.r1", stop_it))
    assert results(made, out) == {
        "limited.1": ("none", "none", "RUNTIME_USAGE_LIMIT", "infra_failed"),
        "limited.1.r1": STOPPED,
    }


def test_interrupt_without_a_conductor_takes_effect_on_resume(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = HEAD + mission("killed", *DOES_IT, verify=ANSWER) + mission("queued", *DOES_IT, verify=ANSWER) + GOOD
    made = plan(source, out, tmp_path)
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        claimed = ledger.claim("dead", ledger.begin_epoch(), 60)
    assert claimed is not None
    assert claimed.id == "killed.1"
    for id in ("killed.1", "queued.1"):
        assert "no process conducts the run; the attempt is stopped when the run is resumed" in interrupt(
            out, id, capsys
        )
    assert main(["attempt", "interrupt", "queued.1", "--run", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["conducted"] is False
    conduct(made, out)
    assert results(made, out) == {
        "killed.1": ("none", "none", "ATTEMPT_WORKER_LOST", "worker_lost"),
        "killed.1.r1": STOPPED,
        "queued.1": STOPPED,
        "good.1": ("success", "passed", None, "completed"),
    }


def test_interrupted_attempt_that_ended_with_its_run_is_not_retried(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after Ctrl-C: running attempts are closed, and would be retried when the run is resumed."""
    made = plan(HEAD + mission("waits", command("sleep 600"), verify=ANSWER), out, tmp_path)

    def leave(_: dict[str, Any]) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        conduct(made, out, leave)
    assert "it has already ended and is not retried" in interrupt(out, "waits.1", capsys)
    conduct(made, out)
    assert results(made, out)["waits.1.r1"] == STOPPED
