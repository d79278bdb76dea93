"""Validation of consistent and inconsistent evidence, and removal of old runs."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from forging import rewrite_log
from suites import HEAD, attempts, command, conduct, mission, plan, say, write

from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.core.clock import SystemClock
from proofbox.core.dirs import cache_dir, state_dir
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import LeftoverPath, remove_tree
from proofbox.core.ids import IdSource
from proofbox.errors import RunUnknown
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.repair import reindex_repair
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.lab.reports.validation import validate
from proofbox.lab.run import retention
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, ledger_path
from proofbox.lab.run.retention import RetentionRules, collect, survey
from proofbox.lab.suite import pinning
from proofbox.lab.suite.pinning import pin
from proofbox.sandbox.service import Sandboxes
from proofbox.workspace import registry
from proofbox.workspace.identity import identity_of
from proofbox.workspace.workspace import Workspace

# Most use one run, so they must run in one worker.
pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("upkeep")]

SUITE = HEAD + mission(
    "answer",
    write("answer.txt", "42\n"),
    command("seq 1 2000"),
    {"usage": {"input_tokens": 70, "output_tokens": 30}},
    say("done"),
    verify={"commands": ["grep -x 42 answer.txt"]},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("upkeep")
    return conduct(plan(SUITE, base / "out", base), base / "out")


def test_run_validates_and_has_its_figures(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(run), "--strict", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == 1
    assert main(["report", str(run), "--strict", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert (report["tool_calls"], report["verified"], report["steps"]) == (2, "passed", 2)
    assert main(["report", str(run)]) == 0
    assert "answer.1" in capsys.readouterr().out


def edited(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(canonical_bytes(document))


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("feedback.json", lambda it: it.update(result_json={}), "feedback_ambiguous"),
        ("feedback.json", lambda it: it.update(claimed="failure"), "contradiction"),
        ("outcome.json", lambda it: it["verified"].update(result="failed"), "contradiction"),
        ("attempt.report.json", lambda it: it.update(tool_calls=7), "contradiction"),
        ("attempt.report.json", lambda it: it.update(tool_calls_observed=1), "contradiction"),
        ("attempt.report.json", lambda it: it["tokens"]["runtime_reported"].update(input_tokens=1), "contradiction"),
        ("attempt.report.json", lambda it: it["tokens"].clear(), "contradiction"),
        ("attempt.report.json", lambda it: it.update(responses_without_usage=1), "contradiction"),
        ("attempt.report.json", lambda it: it.pop("reason"), "artifact_malformed"),
        ("attempt.json", lambda it: it["verification"]["commands"][0].pop("stdout_sha256"), "contradiction"),
        ("attempt.json", lambda it: it["verification"]["commands"][0].pop("stdout"), "contradiction"),
        ("attempt.json", lambda it: it.pop("final"), "contradiction"),
    ],
)
def test_contradictions_are_found_even_if_all_digests_match(
    run: Path, tmp_path: Path, name: str, change: Callable[[Any], None], code: str
) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    attempt = copy / "attempts/answer.1.e1"
    edited(attempt / name, change)
    reindex_repair(attempt)
    assert code in {each.code for each in validate(load_bundle(attempt), strict=True)}


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("tool.calls.jsonl", lambda it: it[1].pop("output_sha256"), "output_missing"),
        ("tool.calls.jsonl", lambda it: it[0].update(turn="turn-other"), "contradiction"),
        ("events.jsonl", lambda it: it[0].update(thread="thread-other"), "contradiction"),
        ("events.jsonl", lambda it: it[0].pop("session"), "contradiction"),
        ("events.jsonl", lambda it: [each.pop("turn", None) for each in it], "contradiction"),
    ],
)
def test_lines_that_contradict_other_logs_are_found(
    run: Path, tmp_path: Path, name: str, change: Callable[[list[dict[str, Any]]], object], code: str
) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    attempt = copy / "attempts/answer.1.e1"
    entries = [json.loads(line) for line in (attempt / name).read_bytes().splitlines()]
    change(entries)
    rewrite_log(attempt, name, entries)
    assert {each.code for each in validate(load_bundle(attempt), strict=True)} == {code}


def test_missing_artifacts_are_reported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy)
    attempt = copy / "attempts/answer.1.e1"
    (output,) = (attempt / "outputs").iterdir()
    output.unlink()
    (attempt / "prompt.txt").unlink()
    reindex_repair(attempt)
    assert main(["validate", str(attempt), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {each["code"] for each in document["findings"]} == {"artifact_missing", "output_missing"}
    assert document["error"]["code"] == "ATTEMPT_EVIDENCE_INCOMPLETE"


def test_old_runs_are_removed_and_protected_ones_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = [conduct(plan(SUITE, out, tmp_path), out) for _ in range(4)]
    (out / f"{runs[0].name}.pin").touch()
    (out / f"{runs[2].name}.refused/answer.1.e1").mkdir(parents=True)
    packet = emit_promotion(runs[1])
    assert packet.promotable
    (out / f"{runs[1].name}.promotion.json").touch()
    unfinished = plan(SUITE, out, tmp_path)
    stores = set(os.listdir(state_dir() / "workspaces/stores"))
    later = SystemClock().now() + timedelta(days=10)
    items = survey(out, RetentionRules(older_than=5 * 86400.0), later)
    assert {Path(each.path).name: each.reason for each in items if each.kind == "run"} == {
        runs[0].name: "pinned",
        runs[1].name: "promoted",
        runs[2].name: "older than 432000 s",
        runs[3].name: "latest run",
    }
    freed, done = collect(items)
    assert freed == sum(each.bytes for each in items if each.free) > 0
    assert done == tuple(items), "everything to be removed was removed"
    assert not (out / f".{runs[2].name}.conductor").exists()
    assert sorted(path.name for path in out.glob("run-*") if path.is_dir()) == sorted(
        each.name for each in (runs[0], runs[1], runs[3])
    )
    assert not (out / f"{runs[2].name}.ledger").exists()
    assert len(stores - set(os.listdir(state_dir() / "workspaces/stores"))) == 1, "its files were removed with it"
    conduct(unfinished, out)
    (attempt,) = attempts(unfinished, out).values()
    assert attempt.result is not None
    assert attempt.result.verified == "passed"


def test_pipe_in_place_of_an_artifact_does_not_block(tmp_path: Path) -> None:
    out = tmp_path / "out"
    old, _ = (conduct(plan(SUITE, out, tmp_path), out) for _ in range(2))
    (place,) = old.glob("attempts/*/attempt.json")
    place.unlink()
    os.mkfifo(place)
    collect(survey(out, RetentionRules(older_than=5 * 86400.0), SystemClock().now() + timedelta(days=10)))
    assert not old.exists()


def test_leftovers_of_a_killed_conductor_are_freed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    left = out / ".work" / "run-gone" / "attempts"
    left.mkdir(parents=True)
    (left / "file").write_bytes(b"x" * 8192)
    assert main(["gc", str(out), "--dry-run", "--json"]) == 0
    assert left.exists()
    assert main(["gc", str(out), "--json"]) == 0
    assert not left.exists()
    for wrong in (["--older-than", "-1"], ["--pin", "nothing"], ["--pin", "../x"]):
        assert main(["gc", str(out), *wrong]) == 2
    capsys.readouterr()


def test_gc_removes_nothing_behind_a_link_to_another_directory(tmp_path: Path) -> None:
    """The output directory may have been received, with a link in place of its work directory."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "files").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.work").symlink_to(elsewhere)
    assert main(["gc", str(tmp_path / "out"), "--older-than", "0"]) == 0
    assert (elsewhere / "files").exists()


def test_gc_forgets_no_workspace_behind_a_link(tmp_path: Path) -> None:
    """A received output directory has a link in place of the work directory of a run."""
    project = tmp_path / "code/project"
    project.mkdir(parents=True)
    (project / "file").write_text("content")
    with Workspace.init(project) as mine:
        mine.snapshot("first")
    (tmp_path / "out/.work").mkdir(parents=True)
    (tmp_path / "out/.work/run-x").symlink_to(tmp_path / "code")
    assert main(["gc", str(tmp_path / "out")]) == 0
    assert not (tmp_path / "out/.work/run-x").is_symlink()
    with Workspace.open(project) as mine:
        assert len(mine.history()) == 1


def test_path_that_is_not_utf_8_is_freed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "out"
    old, _ = (conduct(plan(SUITE, made, tmp_path), made) for _ in range(2))
    out = made.rename(tmp_path / os.fsdecode(b"\xff out"))
    old = out / old.name
    (out / ".work/run-gone").mkdir()
    assert main(["gc", str(out), "--older-than", "0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    gone = {os.path.basename(each["path"]): each for each in document["items"] if each["free"]}
    assert gone.keys() == {old.name, "run-gone"}
    assert base64.b64decode(gone[old.name]["path_b64"]) == os.fsencode(old)
    assert document["freed"] == sum(each["bytes"] for each in gone.values()) > 0
    assert not old.exists()
    assert os.listdir(out / ".work") == []


def test_unremovable_files_are_reported_and_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    for version in "12":  # the older one is to be removed
        (cache / f"upkeep-schema-{version}.json").write_bytes(b"x" * 8192)
    left = tmp_path / ".work" / "run-gone"
    left.mkdir(parents=True)
    (left / "file").write_bytes(b"x" * 8192)
    monkeypatch.setattr(
        retention, "remove_tree", lambda _: [LeftoverPath("file", "Operation not permitted", errno.EPERM)]
    )
    assert main(["gc", str(tmp_path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["freed"] == 0
    work = [each["left"] for each in document["items"] if each["kind"] == "work"]
    assert work == ["run-gone/file: Operation not permitted"]
    assert document["error"]["code"] == "RUN_NOT_FREED"
    assert main(["gc", str(tmp_path)]) == 1
    assert "not deleted: run-gone/file: Operation not permitted" in capsys.readouterr().out
    for version in "12":
        (cache / f"upkeep-schema-{version}.json").unlink()


def test_run_being_planned_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    found = []

    def planning(*args: Any) -> dict[str, str]:
        (work,) = (each for each in survey(out, RetentionRules(), SystemClock().now()) if each.kind == "work")
        found.append(collect([work]))
        return pin(*args)

    with monkeypatch.context() as patch:
        patch.setattr(pinning, "pin", planning)
        made = plan(SUITE, out, tmp_path)
    ((freed, (work,)),) = found
    assert (freed, work.free, work.reason) == (0, False, "in use by a process")
    conduct(made, out)
    (attempt,) = attempts(made, out).values()
    assert attempt.result is not None
    assert attempt.result.verified == "passed"


# A conductor that stops where it is, because its listener failed.
STOPS = """
import os, pathlib, sys
from proofbox.lab.run.conductor import Conductor
def leave(event):
    if event["event"] == "running":
        os._exit(7)
Conductor(pathlib.Path(sys.argv[1]), sys.argv[2], on_event=leave).conduct()
"""


def state() -> dict[str, set[str]]:
    """Return what the state directory has of workspaces."""
    place = state_dir() / "workspaces"
    listed = {name: set(os.listdir(place / name)) if (place / name).is_dir() else set() for name in ("paths", "stores")}
    return {**listed, "homes": {path.name for path in place.glob("ws-*")}}


def interrupted(made: Plan, out: Path) -> Path:
    """Create a run that stopped with workspaces in its work directory, as after a kill."""
    ran = subprocess.run([sys.executable, "-c", STOPS, str(out), made.run_id], check=False, timeout=120)
    assert ran.returncode == 7
    place = out / ".work" / made.run_id / "attempts/left/workspace"
    place.mkdir(parents=True)
    Workspace.init(place, track=False).close()
    return out / made.run_id


def test_stores_of_failed_attempts_are_removed_with_their_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = state()
    failing = HEAD + mission("answer", say("done"), setup=["false"])
    runs = [conduct(plan(failing, out, tmp_path), out) for _ in range(2)]
    conduct(plan(SUITE, out, tmp_path), out)
    kept = state()["stores"] - before["stores"]
    later = SystemClock().now() + timedelta(days=10)
    collect(survey(out, RetentionRules(older_than=0.0, include_uncommitted=True), later))
    assert not any(run.exists() for run in runs)
    left = state()
    assert (left["paths"], left["homes"]) == (before["paths"], before["homes"])
    assert len(left["stores"] - before["stores"]) < len(kept), "only stores of the latest run remain"
    [store] = {json.loads(each.read_bytes())["final"]["store"] for each in out.glob("run-*/attempts/*/attempt.json")}
    assert store in left["stores"]


def test_resumed_run_leaves_no_killed_workspaces(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = state()
    made = plan(SUITE, out, tmp_path)
    interrupted(made, out)
    assert state()["homes"] > before["homes"]
    conduct(made, out)
    assert (state()["paths"], state()["homes"]) == (before["paths"], before["homes"])


def test_uncommitted_run_is_removed_with_its_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = state()
    made = plan(SUITE, out, tmp_path)
    run = interrupted(made, out)
    later = SystemClock().now() + timedelta(days=10)
    rules = RetentionRules(older_than=0.0)
    items = [each for each in survey(out, rules, later) if each.kind in ("run", "work")]
    assert [(each.free, each.reason) for each in items] == [(False, "not committed"), (False, "its run can be resumed")]
    rules = RetentionRules(older_than=0.0, include_uncommitted=True)
    items = [each for each in survey(out, rules, later) if each.kind in ("run", "work")]
    assert [(each.free, each.reason) for each in items] == [(True, "older than 0 s"), (True, "its run is removed")]
    _, done = collect(items)
    assert not any(each.left for each in done)
    assert not run.exists()
    assert os.listdir(out / ".work") == []
    assert state() == before


def test_store_used_by_another_workspace_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(SUITE, out, tmp_path)
    run = interrupted(made, out)
    inner = out / ".work" / made.run_id / "attempts/left/workspace"
    with Workspace.open(inner, track=False) as workspace:
        snapshot = workspace.snapshot("for later").id
        mine = workspace.fork(snapshot, tmp_path / "mine")
        mine.close()
    later = SystemClock().now() + timedelta(days=10)
    collect(survey(out, RetentionRules(older_than=0.0, include_uncommitted=True), later))
    assert not run.exists()
    workspace = Workspace.open(tmp_path / "mine", track=False)
    assert workspace.verify().sound
    workspace.forget()
    registry.drop_store(mine.store_id)


def test_received_run_does_not_take_the_stores_of_another_run_with_it(tmp_path: Path) -> None:
    """A received run, here with its ledger, can name any store of this machine. The store stays with its own run, even
    if that is moved."""
    out, received = tmp_path / "out", tmp_path / "received"
    before = state()["stores"]
    run = conduct(plan(SUITE, out, tmp_path), out)
    made = state()["stores"] - before
    shutil.copytree(run, received / run.name)
    shutil.copy(f"{run}.ledger", received)
    with Ledger(ledger_path(received, run.name)) as ledger:
        ledger.set_value("stores", " ".join(made))
    rules, later = RetentionRules(older_than=0.0), SystemClock().now() + timedelta(days=10)
    collect(survey(received, rules, later))
    assert not (received / run.name).exists()
    assert state()["stores"] - before == made != set()

    moved = out.rename(tmp_path / "moved") if identity_of(str(run)) else out  # overlayfs cannot identify directories
    (moved / "LATEST").unlink()
    collect(survey(moved, rules, later))
    assert not (moved / run.name).exists()
    assert state()["stores"] == before


def test_store_in_use_is_not_removed(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path, track=False)
    store = workspace.store_id
    workspace.forget()
    with locked(registry.store_path(store) / "use.lock", shared=True):
        assert [left.reason for left in registry.drop_store(store)] == ["a process is using it"]
    assert registry.drop_store(store) == []
    assert not registry.store_path(store).exists()


def test_registrations_of_deleted_work_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = state()
    place = out / ".work/run-gone/attempts/answer.1.e1/workspace"
    place.mkdir(parents=True)
    Workspace.init(place, track=False).close()
    remove_tree(out / ".work")
    (item,) = (each for each in survey(out, RetentionRules(), SystemClock().now()) if each.kind == "work")
    assert (Path(item.path).name, item.bytes, item.free) == ("run-gone", 0, True)
    collect([item])
    assert state() == before


def test_ended_sessions_are_freed_and_running_ones_kept(tmp_path: Path) -> None:
    def start() -> str:
        argv = [sys.executable, "-m", "proofbox", "session", "start", "--provider", "off", "--json"]
        started = subprocess.run(argv, cwd=tmp_path, stdout=subprocess.PIPE, check=True, timeout=60)
        return str(json.loads(started.stdout)["session"]["id"])

    place = state_dir() / "sessions"
    with Sandboxes(tmp_path) as boxes:
        ended, runs = start(), start()
        boxes.stop_session(ended)
        beginning, begun = place / IdSource().new_id("ses"), place / IdSource().new_id("ses")
        for path in (beginning, begun):
            path.mkdir()
        os.utime(begun, (0, 0))
        try:
            _, items = collect(
                [each for each in survey(tmp_path, RetentionRules(), SystemClock().now()) if each.kind == "session"]
            )
            found = {Path(each.path).name: (each.free, each.reason) for each in items}
            assert found[ended] == (True, "ended")
            assert found[runs] == (False, "running")
            assert found[begun.name] == (True, "its start was interrupted")
            assert found[beginning.name] == (False, "it may be starting")
            assert not (place / ended).exists()
            assert not begun.exists()
            assert beginning.exists()
            assert boxes.get_session(runs).state == "running"
        finally:
            boxes.stop_session(runs)
            beginning.rmdir()
            boxes.prune_sessions()


def test_missing_directory_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["gc", str(tmp_path / "nowhere"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "PROOFBOX_NOT_FOUND"
    monkeypatch.chdir(tmp_path)  # leftover sessions are found even without runs
    assert main(["gc", "--json"]) == 0
    capsys.readouterr()


def test_a_plan_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> dict[str, str]:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(pinning, "pin", fail)
    with pytest.raises(OSError, match="full"):
        plan(SUITE, tmp_path / "out", tmp_path)
    assert [path.name for path in (tmp_path / "out").rglob("*")] == [".work"]


def test_a_run_that_was_removed_is_not_conducted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(SUITE, out, tmp_path)
    conductor = Conductor(out, made.run_id)
    remove_tree(out / f"{made.run_id}.ledger")
    with pytest.raises(RunUnknown):
        conductor.conduct()
    conductor.close()
