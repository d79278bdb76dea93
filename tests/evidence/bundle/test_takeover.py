"""A bundle whose writer died can be taken over, and its existing files stay unchanged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.errors import BundleExists, BundleInProgress
from proofbox.evidence.bundle import identity
from proofbox.evidence.bundle import writer as writer_module
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.verify.verifier import verify

WRITER = """
import sys, time
from proofbox.evidence.bundle.writer import BundleWriter
with BundleWriter.create(sys.argv[1], run_id="r", expected=["never.json"]) as bundle:
    bundle.write_json("early.json", {"schema_version": "t/1"})
    with bundle.nested("attempts/whole") as whole:
        whole.write_bytes("a", b"a")
    torn = bundle.nested("attempts/torn", expected=["outcome.json"])
    torn.write_bytes("b", b"b")
    log = torn.open_log("log.jsonl")
    log.append({"n": 1})
    print("ready", flush=True)
    time.sleep(600)
"""


def killed(out: Path, script: str) -> Path:
    writer = subprocess.Popen([sys.executable, "-c", script, out], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    with pytest.raises(BundleInProgress), BundleWriter.take_over(out, "r"):
        pass
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    return out


@pytest.fixture
def interrupted(out: Path) -> Path:
    """An output directory with a run whose writer was killed in the middle of an attempt."""
    return killed(out, WRITER)


def test_run_is_taken_over_and_committed(interrupted: Path) -> None:
    with BundleWriter.take_over(interrupted, "r") as bundle:
        with BundleWriter.take_over_nested(bundle.path, "attempts/torn") as torn:
            torn.write_json("outcome.json", {"schema_version": "t/1"})
            torn.mark_partial("its writer died")
        bundle.write_json("never.json", {"schema_version": "t/1"})
    assert verify(interrupted).ok
    run = load_bundle(interrupted)
    assert run.index.status == "ok"
    assert {"early.json", "never.json"} <= set(run.artifacts)
    nested = run.nested["attempts/torn"]
    assert nested.index.status == "partial"
    assert {"b", "log.jsonl", "outcome.json"} <= set(nested.artifacts)


def test_takeover_keeps_expected_artifacts(interrupted: Path) -> None:
    with (
        BundleWriter.take_over(interrupted, "r") as bundle,
        BundleWriter.take_over_nested(bundle.path, "attempts/torn"),
    ):
        pass
    run = load_bundle(interrupted)
    assert run.index.status == "partial"
    assert "never.json" in run.index.missing
    assert "outcome.json" in run.nested["attempts/torn"].index.missing


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True), (False, False)])
def test_dry_run_stays_dry_after_a_takeover(tmp_path: Path, first: bool, second: bool) -> None:
    out = tmp_path / "out"
    with BundleWriter.create(out, run_id="real"):
        pass
    killed(out, WRITER.replace('run_id="r"', f'run_id="r", dry={first}'))
    with BundleWriter.take_over(out, "r", dry=second):
        pass
    dry = first or second
    assert load_bundle(out / "r").status.dry is dry
    assert (out / "LATEST").read_text().strip() == ("real" if dry else "r")


def test_takeover_overwrites_nothing(interrupted: Path) -> None:
    with BundleWriter.take_over(interrupted, "r") as bundle, pytest.raises(BundleExists):
        bundle.write_json("early.json", {"schema_version": "other/1"})
    assert b"t/1" in (interrupted / "r" / "early.json").read_bytes()


def test_a_committed_bundle_is_not_taken_over(interrupted: Path) -> None:
    with BundleWriter.take_over(interrupted, "r"):
        pass
    with pytest.raises(BundleInProgress), BundleWriter.take_over(interrupted, "r"):
        pass


def test_takeover_of_an_empty_bundle_starts_it(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path, run_id="r") as bundle:
        (bundle.path / "attempts/empty").mkdir(parents=True)
        with BundleWriter.take_over_nested(bundle.path, "attempts/empty") as nested:
            nested.write_bytes("a", b"a")
    assert verify(tmp_path).ok


# Writers that are not as dead as they seem


def test_a_process_of_another_pid_namespace_is_not_known_to_be_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = identity.process_identity()
    gone = {**me, "pid": 1 << 22, "start_ticks": 1}
    assert (identity.is_alive(me), identity.is_alive(gone)) == (True, False)
    monkeypatch.setattr(identity, "_pid_namespace", lambda: 1)
    assert (identity.is_alive(me), identity.is_alive(gone)) == (None, None)
    assert identity.is_alive({**gone, "boot_id": "another"}) is False, "no process outlives its boot"
    with BundleWriter.create(tmp_path, run_id="r"):
        monkeypatch.setattr(identity, "_pid_namespace", lambda: 2)
        with pytest.raises(BundleInProgress), BundleWriter.take_over(tmp_path, "r"):
            pass


@pytest.fixture
def taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every writer look dead, as after a bug or a clock change. The new writer has another identity."""
    real = identity.process_identity
    pids = iter(range(1 << 22, 1 << 23))
    monkeypatch.setattr(writer_module, "is_alive", lambda _: False)
    monkeypatch.setattr(writer_module, "process_identity", lambda: {**real(), "pid": next(pids)})


@pytest.mark.usefixtures("taken_for_dead")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("first", ["living", "taker"])
def test_one_of_two_writers_commits_and_its_bundle_stays(tmp_path: Path, nested: bool, first: str) -> None:
    opened = (
        (BundleWriter.create_nested, BundleWriter.take_over_nested)
        if nested
        else (lambda out, run_id: BundleWriter.create(out, run_id=run_id), BundleWriter.take_over)
    )
    living = opened[0](tmp_path, "r")
    living.write_bytes("a", b"a")
    taker = opened[1](tmp_path, "r")
    with pytest.raises(BundleExists, match="taken over"):
        living.mark_partial("still here")
    if first == "taker":
        taker.commit()
    with pytest.raises(BundleExists):
        living.commit()
    if first == "living":
        taker.commit()
    before = (tmp_path / "r" / "artifact_index.json").read_bytes()
    assert verify(tmp_path / "r").ok
    for again in ("mark_partial", "commit"):
        living._open = True  # as if it had not ended
        with pytest.raises(BundleExists, match="already committed"):
            getattr(living, again)(*(["late"] if again == "mark_partial" else []))
    assert (tmp_path / "r" / "artifact_index.json").read_bytes() == before
    assert verify(tmp_path / "r").ok


MARKER = """
import os, signal, sys
from proofbox.evidence.bundle.writer import BundleWriter
with BundleWriter.create(sys.argv[1], run_id="r") as bundle:
    nested = bundle.nested("a")
    nested.mark_partial("of the nested")
    bundle.mark_partial("of the run")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_partial_mark_survives_a_takeover(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MARKER, tmp_path], check=False)
    with BundleWriter.take_over(tmp_path, "r") as bundle:
        with BundleWriter.take_over_nested(bundle.path, "a"):
            pass
        bundle.mark_partial("of the taker")
    run = load_bundle(tmp_path)
    assert (run.index.status, run.status.partial_reasons) == ("partial", ("of the run", "of the taker"))
    assert run.nested["a"].index.status == "partial"
    assert run.nested["a"].status.partial_reasons == ("of the nested",)
