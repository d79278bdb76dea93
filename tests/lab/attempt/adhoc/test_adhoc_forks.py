"""Tests of diffs and forks of steps: attempts made by hand, and attempts of suites, from their evidence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, command, conduct, mission, plan, say, write

from proofbox.agents.registry import Registry
from proofbox.agents.runtimes.scripted.runtime import ScriptedRuntime
from proofbox.core.files.removal import remove_tree
from proofbox.errors import (
    AttemptUnknown,
    BundleCorrupt,
    BundleNotFound,
    CapabilityUnsupported,
    NotFoundError,
    StepDiffOmitted,
    StepFilesGone,
    UsageError,
    WorkspacePathRefused,
)
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.attempt import trace
from proofbox.lab.attempt.adhoc.fork import fork_attempt
from proofbox.lab.attempt.adhoc.home import copy_home, home_of
from proofbox.lab.attempt.adhoc.request import AttemptRun
from proofbox.lab.attempt.adhoc.run import run_attempt
from proofbox.lab.reports.steps import diff_attempt
from proofbox.lab.reports.validation import validate
from proofbox.workspace import registry
from proofbox.workspace.workspace import Workspace

pytestmark = pytest.mark.needs("bubblewrap")

WRITE = write("a.txt", "one\n")
RUN = command("echo two >> a.txt; cat a.txt")
TURNS = {
    "turn": [
        {"step": [WRITE, RUN, say("first")]},
        {"step": [command("echo @{turn} >> a.txt"), say("@{history}")]},
        {"step": [say("@{history}")]},
    ]
}


class NeverForks(ScriptedRuntime):
    """An agent that states only when it runs that it can't fork a thread, as some that speak ACP."""

    async def start_session(self, *options: Any, **others: Any) -> Any:
        async def refuse(*_: Any) -> str:
            raise CapabilityUnsupported("the agent can't fork", op="thread")

        session: Any = await super().start_session(*options, **others)
        session.fork_thread = refuse
        return session


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def attempt(project: Path, script: dict[str, Any], *, prompt: str = "one", **options: Any) -> AttemptRun:
    return run_attempt(
        prompt, project, strategies="scripted", settings={"script": script}, provider="bubblewrap", **options
    )


def test_diff_shows_what_each_step_changed(project: Path) -> None:
    made = attempt(project, {"step": [WRITE, RUN, command("true"), say("done")]})
    assert diff_attempt(made.bundle, 1).splitlines()[-1] == "+one"
    assert diff_attempt(made.bundle, 2).splitlines()[-2:] == [" one", "+two"]
    assert diff_attempt(made.bundle, 3) == ""
    assert diff_attempt(made.bundle).splitlines()[-2:] == ["+one", "+two"]
    with pytest.raises(NotFoundError, match="no step 4"):
        diff_attempt(made.bundle, 4)
    assert not Path(made.bundle, "diffs").exists(), "short diffs are not files"


def test_long_diff_is_a_file_that_step_and_attempt_share(project: Path) -> None:
    made = attempt(project, {"step": [write("a.txt", "x\n" * 2000), say("done")]})
    (file,) = Path(made.bundle).glob("diffs/*")
    assert file.read_text() == diff_attempt(made.bundle, 1) == diff_attempt(made.bundle)
    assert validate(load_bundle(made.bundle), strict=True) == []


def test_diff_is_redacted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "correct-horse-battery-staple"
    monkeypatch.setenv("MY_API_TOKEN", secret)
    made = attempt(project, {"step": [write("a.txt", f"key: {secret}\n"), say("done")]})
    shown = diff_attempt(made.bundle, 1)
    assert "+key: " in shown
    assert secret not in shown
    assert validate(load_bundle(made.bundle), strict=True) == []


def test_diff_beyond_the_limit_is_omitted_with_the_reason(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_DIFF_BYTES", 300)
    monkeypatch.setattr(trace, "MAX_DIFFS_BYTES", 400)
    script = [write("a.txt", "x" * 150 + "\n"), write("b.txt", "y" * 300 + "\n"), write("c.txt", "z" * 150 + "\n")]
    made = attempt(project, {"step": [*script, say("done")]})
    assert "+xxx" in diff_attempt(made.bundle, 1)
    with pytest.raises(StepDiffOmitted, match="the limit is 300"):
        diff_attempt(made.bundle, 2)
    with pytest.raises(StepDiffOmitted, match="limit of 400"):
        diff_attempt(made.bundle, 3)
    assert validate(load_bundle(made.bundle), strict=True) == []


def test_missing_diff_is_a_finding(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace.Trace, "_keep", lambda self, data, name: "0" * 64)
    made = attempt(project, {"step": [write("a.txt", "x\n" * 2000), say("done")]})
    found = validate(load_bundle(made.bundle), strict=False)
    assert [(each.code, each.path) for each in found] == [
        ("diff_missing", "attempt.json"),
        ("diff_missing", "steps.jsonl"),
    ]


def test_steps_of_a_suites_attempt_are_readable_after_the_run(tmp_path: Path) -> None:
    """The attempt's workspace is gone; its evidence has the diffs, and its store the files."""
    out = tmp_path / "out"
    made = plan(HEAD + mission("m", WRITE, RUN, say("done")), out, tmp_path)
    conduct(made, out)
    [row] = attempts(made, out).values()
    bundle = out / made.run_id / row.path
    assert not (out / ".work" / made.run_id).exists()
    assert diff_attempt(bundle, 2).splitlines()[-2:] == [" one", "+two"]
    assert validate(load_bundle(out / made.run_id), strict=True) == []
    forked = fork_attempt(bundle, 1, tmp_path / "one")
    assert (forked.attempt, forked.fork.exact) == (None, False)
    assert (tmp_path / "one/a.txt").read_text() == "one\n"
    assert fork_attempt(bundle, 0, tmp_path / "zero").fork.exact
    assert os.listdir(tmp_path / "zero") == []
    more = fork_attempt(bundle, 2, tmp_path / "two", prompt="again").attempt
    assert more is not None
    assert more.fork is not None
    assert (more.status, more.fork.exact) == ("completed", False)
    assert more.fork.why.startswith("the agent's thread was not kept")
    assert (more.strategy, len(more.steps)) == ("scripted", 2)  # with the settings of the attempt
    assert (tmp_path / "two/a.txt").read_text() == "one\ntwo\n"
    with pytest.raises(AttemptUnknown, match="not the bundle of an attempt"):
        diff_attempt(out / made.run_id, 1)


def test_fork_at_the_end_of_a_turn_is_exact(project: Path, tmp_path: Path) -> None:
    first = attempt(project, TURNS, out=tmp_path / "t1")
    (project / "a.txt").write_text("changed since\n")
    second = fork_attempt(tmp_path / "t1", 2, tmp_path / "fork", prompt="two", out=tmp_path / "t2").attempt
    assert second is not None
    assert second.fork is not None
    assert (second.fork.exact, second.fork.base_turn) == (True, first.turn_id)
    assert second.final_message == "one\ntwo"
    assert second.snapshot_before == first.snapshot_after
    assert (tmp_path / "fork/a.txt").read_text() == "one\ntwo\n2\n"
    assert (project / "a.txt").read_text() == "changed since\n"
    assert validate(load_bundle(tmp_path / "t2"), strict=True) == []
    # A fork of the fork, and a fork of its beginning.
    third = fork_attempt(tmp_path / "t2", 1, tmp_path / "fork3", prompt="three").attempt
    assert third is not None
    assert third.final_message == "one\ntwo\nthree"
    again = fork_attempt(tmp_path / "t2", 0, tmp_path / "fork4", prompt="other")
    assert again.attempt is not None
    assert again.attempt.final_message == "one\nother"
    assert again.fork.exact


def test_fork_within_a_turn_has_the_thread_before_it(project: Path, tmp_path: Path) -> None:
    attempt(project, TURNS, out=tmp_path / "t1")
    second = fork_attempt(tmp_path / "t1", 1, tmp_path / "fork", prompt="two").attempt
    assert second is not None
    assert second.fork is not None
    assert (second.fork.exact, second.fork.base_thread) == (False, "")
    assert "within a turn" in second.fork.why
    assert second.final_message == "first"  # the first turn of the thread, repeated
    with Workspace.open(tmp_path / "fork", track=False) as workspace:
        workspace.export(second.snapshot_before, tmp_path / "look")
    assert (tmp_path / "look/a.txt").read_text() == "one\n"


def test_fork_starts_a_new_thread_if_the_old_one_cannot_be_continued(project: Path, tmp_path: Path) -> None:
    made = attempt(project, TURNS, out=tmp_path / "t1")
    other = fork_attempt(
        tmp_path / "t1", 2, tmp_path / "other", prompt="x", strategies="process", settings={"command": ["cat"]}
    )
    assert (other.fork.exact, other.fork.base_thread) == (False, "")
    assert other.fork.why.startswith("the thread belongs to scripted")
    assert other.attempt is not None
    assert (other.attempt.status, other.attempt.final_message) == ("completed", "x")
    told = fork_attempt(tmp_path / "t1", 2, tmp_path / "told", prompt="x", registry=Registry({"scripted": NeverForks}))
    assert (told.fork.exact, told.fork.base_thread) == (False, "")
    assert told.fork.why.startswith("the agent can't fork: files as after the step, a new thread")
    assert told.attempt is not None
    assert (told.attempt.fork, told.attempt.final_message) == (told.fork, "first")
    with pytest.raises(CapabilityUnsupported):
        fork_attempt(
            tmp_path / "t1", 2, tmp_path / "required", prompt="x", required=("thread_fork",),
            registry=Registry({"scripted": NeverForks}),
        )  # fmt: skip
    remove_tree(home_of(made.attempt_id))
    assert fork_attempt(tmp_path / "t1", 2, tmp_path / "gone").fork.why.startswith("the agent's thread was not kept")


def test_invalid_forks_are_refused(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "t1"
    attempt(project, {"step": [WRITE, say("x")]}, out=out)
    with pytest.raises(NotFoundError, match="no step 7"):
        fork_attempt(out, 7, tmp_path / "fork")
    with pytest.raises(BundleNotFound):
        fork_attempt(tmp_path, 1, tmp_path / "fork")
    with pytest.raises(WorkspacePathRefused):
        fork_attempt(out, 1, project)
    with monkeypatch.context() as patched:
        patched.setattr(registry, "store_path", lambda id: tmp_path / "elsewhere")
        with pytest.raises(StepFilesGone, match="not on this machine"):
            fork_attempt(out, 1, tmp_path / "fork")
    steps = (out / "steps.jsonl").read_bytes()
    (out / "steps.jsonl").write_bytes(steps.replace(b'"changed":1', b'"changed":7'))
    with pytest.raises(BundleCorrupt):
        fork_attempt(out, 1, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


def test_home_is_copied_without_pipes_and_links(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    (home / "deep/file").write_text("kept")
    os.mkfifo(home / "deep/pipe")
    (home / "link").symlink_to("/etc/passwd")
    (home / "away").symlink_to("/etc")
    copy_home(home, tmp_path / "copy")
    assert (tmp_path / "copy/deep/file").read_text() == "kept"
    assert not (tmp_path / "copy/deep/pipe").exists()
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["deep"]


def test_home_that_is_too_deep_is_refused(deep_path: Path) -> None:
    home = deep_path / "home"
    home.mkdir()
    fd = os.open(home, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("a", dir_fd=fd)
        below = os.open("a", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(UsageError, match="deeper than 200 levels"):
        copy_home(home, deep_path / "copy")
