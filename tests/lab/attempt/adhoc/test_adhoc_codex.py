"""Attempts made by hand with the real codex and a fake model: the record, its steps, and forks of files and thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from proofbox.agents.fakemodel import FakeModel
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.attempt.adhoc.fork import fork_attempt_async
from proofbox.lab.attempt.adhoc.home import home_of
from proofbox.lab.attempt.adhoc.request import AttemptRun
from proofbox.lab.attempt.adhoc.run import run_attempt_async
from proofbox.lab.reports.explain import explain
from proofbox.lab.reports.steps import diff_attempt
from proofbox.lab.reports.stored_attempts import find_attempt
from proofbox.lab.reports.validation import validate

pytestmark = pytest.mark.needs("bubblewrap", "codex")


def with_model(work: Callable[[FakeModel, dict[str, Any]], Awaitable[None]]) -> None:
    async def run() -> None:
        model = FakeModel()
        async with model.listening() as url:
            with anyio.fail_after(250):
                await work(model, {"base_url": url, "model": "fake-model", "max_retries": 1})

    anyio.run(run)


async def attempt(base: Path, prompt: str, settings: dict[str, Any], **more: Any) -> AttemptRun:
    (base / "project").mkdir(exist_ok=True)
    given: Any = {"strategies": "codex_app_server!", "provider": "bubblewrap", "timeout": 200}
    return await run_attempt_async(prompt, base / "project", **{**given, "settings": settings, **more})


def crash_error(model: FakeModel) -> str:
    """Return the texts of the agent's latest request."""
    return str(model.seen[-1].body["input"])


def test_fork_contains_the_files_and_the_thread_of_a_step(tmp_path: Path) -> None:
    async def work(model: FakeModel, flags: dict[str, Any]) -> None:
        prompt = "[[run echo one > a.txt]] [[run echo two >> a.txt; exit 4]] [[say first words]]"
        first = await attempt(tmp_path, prompt, flags, out=tmp_path / "t1")
        assert (first.status, first.final_message) == ("completed", "first words")
        assert [(call.command, call.exit_code) for call in first.tool_calls] == [
            ("echo one > a.txt", 0),
            ("echo two >> a.txt; exit 4", 4),
        ]
        assert [step.ends_turn for step in first.steps] == [False, True]
        assert first.usage is not None
        assert first.usage.input_tokens == 3000
        assert (home_of(first.attempt_id) / "config.toml").exists()
        assert validate(load_bundle(tmp_path / "t1"), strict=True) == []
        assert diff_attempt(tmp_path / "t1", 2).splitlines()[-2:] == [" one", "+two"]
        found = find_attempt(str(tmp_path / "t1"), tmp_path)
        assert any("echo two >> a.txt; exit 4 (exit 4" in line for line in explain(found.attempt, found.bundle))

        prompt = "[[run cat a.txt]] [[say more]]"
        fork = await fork_attempt_async(tmp_path / "t1", 2, tmp_path / "w2", prompt=prompt, out=tmp_path / "t2")
        second = fork.attempt
        assert second is not None
        assert (second.status, second.final_message) == ("completed", "more")
        assert second.fork is not None
        assert second.fork.exact
        assert second.thread_id != first.thread_id
        assert "first words" in crash_error(model)
        assert (tmp_path / "w2/a.txt").read_text() == "one\ntwo\n"

        prompt = "[[run cat a.txt > b.txt]] [[say else]]"
        third = (await fork_attempt_async(tmp_path / "t1", 1, tmp_path / "w3", prompt=prompt)).attempt
        assert third is not None
        assert third.status == "completed"
        assert third.fork is not None
        assert not third.fork.exact
        assert "first words" not in crash_error(model)
        assert (tmp_path / "w3/b.txt").read_text() == "one\n"

    with_model(work)


def test_timeout_leaves_a_record_and_no_process(tmp_path: Path) -> None:
    async def work(model: FakeModel, flags: dict[str, Any]) -> None:
        del model
        prompt = "[[run echo begun > a.txt; sleep 306]] [[say never]]"
        for limit in (4, 16, 64):  # until the turn has enough time to start
            trial: AttemptRun = await attempt(tmp_path, prompt, flags, out=tmp_path / f"t{limit}", timeout=limit)
            if (tmp_path / "project/a.txt").exists():
                break
        assert trial.error is not None
        assert (trial.status, trial.error.code) == ("failed", "RUNTIME_TIMEOUT")
        assert trial.steps[-1].snapshot_after == trial.snapshot_after
        assert (tmp_path / "project/a.txt").read_text() == "begun\n"

    with_model(work)


BACKGROUND = '[[call exec_command {"cmd": "echo begun; sleep 306.5", "yield_time_ms": 1000}]] [[say done]]'
KILLS_CODEX = "for p in /proc/[0-9]*; do grep -qz '[a]pp-server' $p/cmdline && kill -9 ${p#/proc/}; done; sleep 9"


def test_command_that_outlives_its_turn_is_in_the_record(tmp_path: Path) -> None:
    async def work(model: FakeModel, flags: dict[str, Any]) -> None:
        del model
        trial = await attempt(tmp_path, BACKGROUND, flags, out=tmp_path / "t1")
        assert (trial.status, trial.final_message, trial.calls_complete) == ("completed", "done", True)
        [call] = trial.tool_calls
        assert (call.command, call.status) == ("echo begun; sleep 306.5", "failed")
        assert trial.steps[-1].late

    with_model(work)


def test_command_that_kills_codex_at_once_is_in_the_record(tmp_path: Path) -> None:
    async def work(model: FakeModel, flags: dict[str, Any]) -> None:
        del model
        trial = await attempt(tmp_path, f"[[run {KILLS_CODEX}]]", flags, out=tmp_path / "t1")
        assert trial.error is not None
        assert (trial.error.code, trial.calls_complete) == ("RUNTIME_CRASH", True)
        assert [(call.command, call.status) for call in trial.tool_calls] == [(KILLS_CODEX, "abandoned")]

    with_model(work)


def test_no_key_is_in_the_record_or_in_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "house-key-2718281828459045"
    monkeypatch.setenv("HOUSE_MODEL", key)

    async def work(model: FakeModel, flags: dict[str, Any]) -> None:
        look = "cat /proc/*/environ /proc/*/cmdline; env; cat /run/codex/home/*.toml"
        prompt = f"[[run ({look}) 2>/dev/null | tr '\\0' '\\n' > seen.txt]] [[say {key}]]"
        flags = {**flags, "api_key_env": "HOUSE_MODEL"}
        trial = await attempt(tmp_path, prompt, flags, out=tmp_path / "t1")
        assert trial.status == "completed"
        sent = dict(model.seen[-1].headers)
        assert key in str({name.lower(): value for name, value in sent.items()}.get("authorization"))
        assert "CODEX_HOME=" in (tmp_path / "project/seen.txt").read_text(errors="replace")
        kept = [path for path in (tmp_path / "t1").rglob("*") if path.is_file()]
        for path in [tmp_path / "project/seen.txt", *kept]:
            text = path.read_text(errors="replace")
            assert key not in text, path

    with_model(work)
