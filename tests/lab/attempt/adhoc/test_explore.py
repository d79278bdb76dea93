"""Tests of exploring an attempt: branches from a step, their verification, and which one is kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from async_parity import Ticker
from suites import HEAD, mission, say, write

from proofbox.agents.contract import RuntimeProbe, SessionOptions
from proofbox.agents.registry import Registry
from proofbox.agents.runtimes.scripted.runtime import ScriptedRuntime
from proofbox.core.files.removal import remove_tree
from proofbox.errors import ConsentRequired, NotFoundError, RunUnknown, UsageError
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.attempt import verifier
from proofbox.lab.attempt.adhoc import explore
from proofbox.lab.attempt.adhoc.explore import ExploredBranch, best, explore_attempt, explore_attempt_async
from proofbox.lab.attempt.adhoc.request import AttemptRun
from proofbox.lab.attempt.adhoc.run import MISSION, run_attempt, run_attempt_async
from proofbox.lab.reports import scoring
from proofbox.lab.reports.validation import validate
from proofbox.workspace.workspace import Workspace

FIRST = {"step": [write("a.txt", "start\n"), write("sitecustomize.py", "raise SystemExit(0)\n"), say("first")]}
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "wrong": [write("answer.txt", "41\n")],
    "long": [write("answer.txt", "42\n"), write("more.txt", "1\n2\n3\n")],
    "short": [write("answer.txt", "42\n"), {"usage": {"input_tokens": 900, "output_tokens": 9}}],
    "cheap": [write("answer.txt", "42\n"), {"usage": {"input_tokens": 100, "output_tokens": 9}}],
}


def runtime(name: str) -> type[ScriptedRuntime]:
    class Scripted(ScriptedRuntime):
        """The scripted agent with a different script in each, so that branches differ."""

        id = name

        async def probe(self, settings: Mapping[str, object]) -> RuntimeProbe:
            del settings
            return await super().probe({"script": {"step": SCRIPTS[name]}})

        async def start_session(self, options: SessionOptions, **others: Any) -> Any:
            from msgspec.structs import replace

            return await super().start_session(replace(options, settings={"script": {"step": SCRIPTS[name]}}), **others)

    return Scripted


REGISTRY = Registry({"scripted": ScriptedRuntime, **{name: runtime(name) for name in SCRIPTS}})
CHECK = 'test "$(cat answer.txt)" = 42 && test -e a.txt'


def branch(number: int, verified: Any, lines: int | None, tokens: int | None) -> ExploredBranch:
    return ExploredBranch(
        number=number, strategy="s", status="completed", verified=verified, changed_lines=lines, tokens=tokens
    )


def test_best_branch_is_verified_then_small_then_cheap() -> None:
    tried = [branch(1, "failed", 0, 0), branch(2, "passed", 9, 1), branch(3, "passed", 2, 50), branch(4, "none", 0, 0)]
    assert best(tried) == 3
    assert best([*tried, branch(5, "passed", 2, 40), branch(6, "passed", 2, None)]) == 5
    assert best([branch(1, "passed", None, 1), branch(2, "passed", 7, None)]) == 2
    assert best(tried[:1]) is None


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptRun:
    project = tmp_path / "project"
    project.mkdir()
    out = str(tmp_path / "t1")
    return run_attempt("go", project, strategies="scripted", settings={"script": FIRST}, provider="bubblewrap", out=out)


@pytest.mark.needs("bubblewrap")
def test_coroutines_of_attempts_never_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exploration forks the attempt that it continues, so this covers the coroutines of all three."""
    (tmp_path / "project").mkdir()
    ticker = Ticker(monkeypatch)
    for owner, name in ((Workspace, "snapshot"), (BundleWriter, "commit"), (explore, "_verification")):
        ticker.watch(owner, name)

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ticker.run)
            made = await run_attempt_async(
                "go", tmp_path / "project", strategies="scripted", settings={"script": FIRST}, out=tmp_path / "t1"
            )
            assert {"snapshot", "commit"} <= set(ticker.watched)
            done = await explore_attempt_async(
                made.bundle, 1, tmp_path / "tries", prompt="go on", branches=1, verify=[CHECK], strategies="short",
                registry=REGISTRY, settings={},
            )  # fmt: skip
            assert done.ok
            tasks.cancel_scope.cancel()

    anyio.run(work)
    assert set(ticker.watched) >= {"snapshot", "commit", "_verification"}


@pytest.mark.needs("bubblewrap")
def test_exploring_keeps_the_verified_best_and_all_evidence(tmp_path: Path, attempt: AttemptRun) -> None:
    done = explore_attempt(
        attempt.bundle, 1, tmp_path / "tries", prompt="go on", branches=4, verify=[CHECK], strategies=tuple(SCRIPTS),
        registry=REGISTRY, settings={},
    )  # fmt: skip
    found = done.exploration
    shown = [(each.strategy, each.verified, each.changed_lines, each.tokens) for each in found.branches]
    assert shown == [
        ("wrong", "failed", 1, None),
        ("long", "passed", 4, None),
        ("short", "passed", 1, 909),
        ("cheap", "passed", 1, 109),
    ]
    assert (done.ok, found.kept, found.selection) == (True, 4, "best_of_k")
    assert (tmp_path / "tries/4/workspace/a.txt").read_text() == "start\n"
    for each in found.branches:
        bundle = load_bundle(tmp_path / "tries" / each.bundle)
        assert bundle.read_json("attempt.json")["fork"]["step"] == 1
    assert load_bundle(Path(done.bundle)).read_json("exploration.json")["kept"] == 4
    assert validate(load_bundle(tmp_path / "tries/4/bundle"), strict=True) == []
    with pytest.raises(RunUnknown, match="its branches are separate attempts"):
        scoring.validate(done.bundle)
    assert verify(tmp_path / "tries/exploration").ok
    changed = tmp_path / "tries/2/bundle/attempt.json"
    changed.write_bytes(changed.read_bytes().replace(b'"replicate":1', b'"replicate":2'))
    assert {each.path for each in verify(done.bundle).findings} == {"2/bundle/attempt.json"}
    remove_tree(tmp_path / "tries/2/bundle")
    (tmp_path / "tries/3/bundle").rename(tmp_path / "tries/2/bundle")
    again = verify(done.bundle)
    assert [(each.code, each.path) for each in again.findings] == [("branch_mismatch", "2/bundle")]
    assert again.notes == ["the branch 3/bundle is not here, so it was not checked"]


@pytest.mark.needs("bubblewrap")
def test_hook_planted_before_the_step_does_not_pass_a_branch(
    tmp_path: Path, attempt: AttemptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that the original attempt started from decide what is restored, not those of the step."""
    boxes: list[tuple[str, Any]] = []

    def check_in_box(*args: Any, **options: Any) -> Any:
        boxes.append((options["provider"], {**options["policy"]}))
        return verifier.check(*args, **options)

    monkeypatch.setattr(explore, "check", check_in_box)
    check = f"{sys.executable if sys.executable.startswith('/usr') else '/usr/bin/python3'} -c 'raise SystemExit(7)'"
    done = explore_attempt(
        attempt.bundle, 2, tmp_path / "tries", prompt="go on", branches=1, verify=[check], strategies="cheap",
        registry=REGISTRY, settings={}, policy={"pids": 99, "network": "none"},
    )  # fmt: skip
    assert boxes == [("bubblewrap", {"pids": 99})]
    assert (tmp_path / "tries/1/workspace/sitecustomize.py").exists()
    assert (done.ok, done.exploration.kept, done.exploration.branches[0].verified) == (False, None, "failed")


@pytest.mark.needs("bubblewrap")
def test_branch_that_does_not_start_is_reported_and_the_others_continue(tmp_path: Path, attempt: AttemptRun) -> None:
    done = explore_attempt(
        attempt.bundle, 1, tmp_path / "tries", prompt="go on", branches=2, verify=[CHECK],
        strategies=("absent", "cheap"), registry=REGISTRY, settings={},
    )  # fmt: skip
    first, second = done.exploration.branches
    assert (first.status, first.code, first.bundle) == ("not_started", "RUNTIME_STRATEGY_UNSUPPORTED", "")
    assert (second.verified, done.exploration.kept) == ("passed", 2)


@pytest.mark.needs("bubblewrap")
def test_secret_that_an_agent_prints_is_not_recorded(
    tmp_path: Path, attempt: AttemptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that does not start says why, and that text is part of the exploration."""
    monkeypatch.setenv("SOME_API_KEY", "value-of-the-key-0123")

    class Talkative(ScriptedRuntime):
        async def probe(self, settings: Mapping[str, object]) -> RuntimeProbe:
            del settings
            return RuntimeProbe(strategy="scripted", available=False, reason="no access with value-of-the-key-0123")

    done = explore_attempt(
        attempt.bundle, 1, tmp_path / "tries", prompt="go on", branches=1, verify=[CHECK], strategies="scripted",
        registry=Registry({"scripted": Talkative}), settings={},
    )  # fmt: skip
    assert "no access with [redacted]" in done.exploration.branches[0].reason
    [recorded] = (tmp_path / "tries").rglob("exploration.json")
    assert "value-of-the-key-0123" not in recorded.read_text()


@pytest.mark.needs("bubblewrap")
def test_suite_of_a_stranger_runs_nothing_before_the_user_has_consented(tmp_path: Path, attempt: AttemptRun) -> None:
    marker = tmp_path / "made-on-the-host"
    verify = {"commands": [f"touch {marker}"]}
    suite = tmp_path / "suite.toml"
    suite.write_text(HEAD + mission(MISSION, say("done"), verify=verify, provider="off"))

    def explored(out: str, *, trust: bool = False) -> bool:
        place = tmp_path / out
        return explore_attempt(
            attempt.bundle, 1, place, prompt="go", branches=1, suite=suite, trust=trust, settings={"script": FIRST}
        ).ok

    with pytest.raises(ConsentRequired, match='asks for provider = "off"'):
        explored("refused")
    assert not (tmp_path / "refused").exists()
    assert not marker.exists()
    assert explored("trusted", trust=True)
    assert marker.exists()
    marker.unlink()
    assert explored("again"), "the consent was recorded"


@pytest.mark.needs("bubblewrap")
def test_consent_is_to_one_directory_however_it_is_named(
    tmp_path: Path, attempt: AttemptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = explore_attempt(Path(attempt.bundle).name, 1, "own", prompt="go", branches=1, verify=["test -e a.txt"])
    assert done.ok, "an attempt made here needs no consent"

    def explored(place: Path, **options: Any) -> bool:
        place.mkdir()
        monkeypatch.chdir(place)
        shutil.copytree(attempt.bundle, "received")
        return explore_attempt("received", 1, "tries", prompt="go", branches=1, verify=["true"], **options).ok

    assert explored(tmp_path / "one", trust=True)
    with pytest.raises(ConsentRequired) as required:
        explored(tmp_path / "other")
    assert required.value.fix_hints[0].endswith(": proofbox explore received --trust …")


@pytest.mark.needs("bubblewrap")
def test_conditions_of_a_mission_are_refused_instead_of_ignored(tmp_path: Path, attempt: AttemptRun) -> None:
    suite = tmp_path / "suite.toml"
    expect = {"claimed": "failure", "min_tool_calls": 50}
    suite.write_text(HEAD + mission(MISSION, say("done"), verify={"commands": ["true"]}, expect=expect))
    with pytest.raises(UsageError, match="conditions in expect"):
        explore_attempt(attempt.bundle, 1, tmp_path / "tries", prompt="go", branches=1, suite=suite)


@pytest.mark.needs("bubblewrap")
def test_suite_that_verifies_several_turns_is_refused(tmp_path: Path, attempt: AttemptRun) -> None:
    suite = tmp_path / "suite.toml"
    turn = {"prompt": "more", "verify": {"commands": ["true"]}}
    suite.write_text(HEAD + mission(MISSION, say("done"), verify={"commands": ["true"]}, then=[turn]))
    with pytest.raises(UsageError, match="several turns") as refused:
        explore_attempt(attempt.bundle, 1, tmp_path / "tries", prompt="go", branches=1, suite=suite)
    assert "--verify" in refused.value.fix_hints[0]
    assert not (tmp_path / "tries").exists()


@pytest.mark.needs("bubblewrap")
def test_explore_command_and_its_refusals(tmp_path: Path, attempt: AttemptRun) -> None:
    with pytest.raises(UsageError, match="either commands, or the attempt's suite"):
        explore_attempt(attempt.bundle, 1, tmp_path / "x", prompt="go")
    with pytest.raises(UsageError, match="is empty"):
        explore_attempt(attempt.bundle, 1, tmp_path / "x", prompt="go", verify=["true", " "])
    with pytest.raises(UsageError, match="between 1 and 32"):
        explore_attempt(attempt.bundle, 1, tmp_path / "x", prompt="go", branches=0, verify=["true"])
    with pytest.raises(NotFoundError, match="has no step 99"):
        explore_attempt(attempt.bundle, 99, tmp_path / "x", prompt="go", verify=["true"])
    assert not (tmp_path / "x").exists()
    words = [attempt.bundle, "--step", "1", "--branches", "2", "--prompt", "go", "--verify", "test -e a.txt"]
    argv = [sys.executable, "-m", "proofbox", "explore", *words, "--out", str(tmp_path / "tries")]
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (done.returncode, document["exploration"]["kept"]) == (0, 1), document
    again = subprocess.run([*argv, "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert (again.returncode, json.loads(again.stdout)["error"]["code"]) == (2, "PROOFBOX_USAGE")
    assert Workspace.open(tmp_path / "tries/1/workspace")
