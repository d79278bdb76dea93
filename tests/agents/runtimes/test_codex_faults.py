"""Tests with a fake codex that lies, floods, hangs, crashes or is overloaded, and with programs that are not codex."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
from codex_lab import FAKE, Lab, run
from hypothesis import given
from hypothesis import strategies as st
from pacing import SOON, in_time

from proofbox.agents.contract import AgentRuntime, AgentSession, RuntimeProbe
from proofbox.agents.events import ApprovalDecision, Delta, Integrity, Notice, ToolCall, TurnEnded, Unrecognized
from proofbox.agents.runtimes.codex import CodexAppServer, CodexSettings, ending, supervisor
from proofbox.agents.runtimes.codex import session as session_module
from proofbox.agents.runtimes.codex.binary import check_version, find_binary
from proofbox.agents.runtimes.codex.listener import MAX_UNREQUESTED
from proofbox.agents.runtimes.codex.settings import config_toml
from proofbox.agents.runtimes.installed import parse_version
from proofbox.agents.settings import read_settings
from proofbox.errors import (
    AgentError,
    AuthFailed,
    Overloaded,
    RuntimeCrashed,
    RuntimeIncompatible,
    RuntimeProtocolError,
    RuntimeStartFailed,
    RuntimeTimedOut,
    StrategyUnavailable,
    TransportBroken,
    UsageError,
)

boxed = pytest.mark.needs("bubblewrap")


@boxed
def test_garbage_on_stdout_is_reported_and_the_turn_continues(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="garbage") as seat:
            result = await seat.turn("x")
            assert result.status == "completed"
            reported = seat.of(Integrity, code="GARBAGE_ON_STREAM")
            assert [event.details["size"] for event in reported][-1] == 50_000_000
            assert {event.message.rpartition("(")[2] for event in reported} == {
                "not_json)",
                "not_a_message)",
                "oversized)",
            }
            assert not [event for event in reported if "\x1b" in str(event.details)]
            assert seat.session.facts()["garbage_lines"] == len(reported) == 5
            new, item = seat.of(Unrecognized)
            assert (new.method, json.loads(new.payload)["secret"]) == ("brand/new", "kept")
            assert "holograph" in item.payload

    run(tmp_path, work)


@boxed
def test_slow_listener_receives_all_events_of_a_flood(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="flood") as seat:
            slow = 0

            async def listener(event: object) -> None:
                nonlocal slow
                slow += 1
                if slow % 2_000 == 0:
                    await anyio.sleep(0.01)

            seat.session.add_listener(listener)
            assert (await seat.turn("x")).status == "completed"
            assert [event.text for event in seat.of(Delta)] == [str(number) for number in range(20_000)]

    run(tmp_path, work)


@boxed
@pytest.mark.parametrize(("mode", "agree"), [("honest", True), ("lie", False)])
def test_tokens_that_bypass_the_gateway_are_a_finding(tmp_path: Path, mode: str, agree: bool) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake=mode) as seat:
            result = await seat.turn("x")
            assert result.usage is not None
            assert result.usage.input_tokens == 10  # the gateway's count, not the reported one
            found = seat.of(Integrity, code="USAGE_DISAGREES")
            assert len(found) == (0 if agree else 1)
            if found:
                assert found[0].details["reported"]["input_tokens"] == 30
                assert found[0].details["seen"]["input_tokens"] == 10

    run(tmp_path, work)


@boxed
def test_turn_that_is_announced_before_it_is_answered_is_the_requested_one(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="early") as seat:
            thread = await seat.session.start_thread()
            results = [await seat.turn("x", thread) for _ in range(MAX_UNREQUESTED + 2)]
            assert {result.status for result in results} == {"completed"}
            assert len({result.turn for result in results}) == len(seat.of(TurnEnded)) == len(results)
            assert not seat.of(Integrity, code="TOO_MANY_TURNS")

    run(tmp_path, work)


@boxed
def test_id_of_an_older_turn_is_refused(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="reused") as seat:
            thread = await seat.session.start_thread()
            assert (await seat.turn("x", thread)).status == "completed"
            with pytest.raises(RuntimeProtocolError, match="the id of another turn"):
                await seat.turn("x", thread)

    run(tmp_path, work)


@boxed
def test_overloaded_request_is_retried_then_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "OVERLOAD_SECONDS", 0.01)

    async def work(lab: Lab) -> None:
        async with lab.session(fake="busy-once") as seat:
            assert (await seat.turn("x")).status == "completed"
        async with lab.session(fake="busy") as seat:
            with pytest.raises(Overloaded) as caught:
                await seat.turn("x")
            assert caught.value.details["rpc_code"] == -32001
            assert not seat.of(TurnEnded)

    run(tmp_path, work)


@boxed
def test_program_that_keeps_crashing_is_not_restarted_again(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="die") as seat:
            thread = await seat.session.start_thread()
            for number in range(1, 5):
                result = await seat.turn("x", thread)
                assert isinstance(result.error, RuntimeCrashed)
                assert result.error.details["exit_code"] == 7
                assert "panicked at the disco" in result.error.details["stderr"]
                assert result.error.details["restarting"] is (number < 4)
            with pytest.raises(RuntimeCrashed):
                await seat.turn("x", thread)
            assert len(seat.session.facts()["recoveries"]) == 4
            assert [(call.status, call.command) for call in seat.of(ToolCall)] == [("abandoned", "make it")] * 4
            assert len(seat.of(Notice, kind="recovered")) == 3

    run(tmp_path, work)


@boxed
def test_crash_during_a_request_is_a_broken_transport(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="die-asked") as seat:
            thread = await seat.session.start_thread()
            with pytest.raises(TransportBroken) as caught:
                await seat.turn("x", thread)
            assert caught.value.retryable
            assert not seat.of(TurnEnded)
            assert (await seat.turn("x", thread)).status == "completed"

    run(tmp_path, work)


@boxed
def test_hanging_program_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "INTERRUPT_SECONDS", 0.3)

    async def work(lab: Lab) -> None:
        async with lab.session(fake="hang") as seat:
            thread = await seat.session.start_thread()
            turn = await seat.session.start_turn(thread, "x")
            began = time.monotonic()
            await seat.session.interrupt_turn(thread, turn)
            result = await seat.session.wait_turn(turn)
            assert (result.status, result.error.code if result.error else "") == ("interrupted", "RUNTIME_INTERRUPTED")
            assert time.monotonic() - began < SOON
        async with lab.session(fake="hang", stall_timeout=0.3) as seat:
            result = await seat.turn("x")
            assert (result.status, result.error.code if result.error else "") == ("failed", "RUNTIME_STALL")

    run(tmp_path, work)


@boxed
def test_missing_response_is_a_timeout(tmp_path: Path) -> None:
    def attempt(limit: float) -> str:
        asked = []

        async def work(lab: Lab) -> None:
            async with lab.session(fake="unanswered", request_timeout=limit) as seat:
                thread = await seat.session.start_thread()
                with pytest.raises(RuntimeTimedOut) as caught:
                    await seat.session.start_turn(thread, "x")
                asked.append(caught.value.details["method"])

        with contextlib.suppress(RuntimeTimedOut):  # of an earlier request: the machine is too slow for the limit
            run(tmp_path, work)
        return asked[0] if asked else ""

    assert in_time(attempt, bool) == "turn/start"


@boxed
def test_malformed_response_is_a_protocol_error(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="shapeless") as seat:
            with pytest.raises(RuntimeProtocolError):
                await seat.turn("x")

    run(tmp_path, work)


@boxed
def test_unexpected_turn_ends_and_requests(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="odd") as seat:
            result = await seat.turn("x")
            assert result.status == "failed"  # success is never inferred
            assert seat.of(Integrity, code="TURN_STATUS_UNKNOWN")
        async with lab.session(fake="twice") as seat:
            await seat.turn("x")
            assert len(seat.of(ToolCall)) == 1
            assert len(seat.of(Integrity, code="ITEM_ENDED_TWICE")) == 1
        async with lab.session(fake="ask") as seat:
            assert (await seat.turn("x")).status == "completed"
            replies = [json.loads(event.message) for event in seat.of(Notice, kind="warning")]
            assert replies[0]["result"] == {"answers": {}}
            assert replies[2]["error"]["code"] == -32601
            assert [event.answer for event in seat.of(ApprovalDecision)] == ["decline", "decline", "refused", "decline"]

    run(tmp_path, work)


@boxed
@pytest.mark.parametrize(
    ("mode", "error"),
    [("exit", RuntimeStartFailed), ("mute", RuntimeTimedOut), ("old", RuntimeIncompatible)],
)
def test_failed_start_leaves_nothing_behind(tmp_path: Path, mode: str, error: type[AgentError]) -> None:
    async def work(lab: Lab) -> None:
        with pytest.raises(error) as caught:
            async with lab.session(fake=mode, request_timeout=1.0 if mode == "mute" else 60.0):
                pass
        if mode == "exit":
            assert "no such luck" in caught.value.details["stderr"]

    run(tmp_path, work)


@boxed
def test_box_that_fails_to_start_is_a_startup_error(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        with pytest.raises(AgentError) as caught:
            async with lab.session(fake="", policy={"image": "busybox"}):
                pass
        assert caught.value.code == "RUNTIME_STARTUP"
        assert caught.value.details["cause"] == "SANDBOX_IMAGE_UNKNOWN"

    run(tmp_path, work)


@boxed
def test_links_in_an_existing_home_are_not_followed(tmp_path: Path) -> None:
    """An agent can write anything into its home, and the next session reads it with our privileges."""
    home, victim = tmp_path / "home", tmp_path / "victim"
    home.mkdir()
    victim.mkdir()
    (victim / "precious").write_text("kept")
    (home / "config.toml").symlink_to(victim / "precious")
    (home / "sessions").symlink_to(victim)
    before = [(path.stat().st_uid, path.stat().st_mode) for path in (victim, victim / "precious")]

    async def work(lab: Lab) -> None:
        async with lab.session(fake="", home=home) as seat:
            assert (await seat.turn("x")).status == "completed"
        assert not (home / "config.toml").is_symlink()
        with pytest.raises(UsageError, match="outside a box"):
            async with lab.session(fake="", home=home, sandboxed=False):
                pass

    run(tmp_path, work)
    assert (victim / "precious").read_text() == "kept"
    assert before == [(path.stat().st_uid, path.stat().st_mode) for path in (victim, victim / "precious")]


@boxed
def test_a_home_that_is_hard_to_remove_is_removed(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(fake="burrow") as seat:
            assert (await seat.turn("x")).status == "completed"

    run(tmp_path, work)


# ---- finding the program


def probe(**settings: Any) -> RuntimeProbe:
    return anyio.run(CodexAppServer().probe, settings)


def copy_of_fake(directory: Path, version: str = "0.166.0") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "codex"
    path.write_text(FAKE.read_text().replace('"FAKE_VERSION", "0.166.0"', f'"FAKE_VERSION", "{version}"'))
    path.chmod(0o755)
    return path


def test_program_is_found_by_setting_path_npm_and_pypi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = copy_of_fake(tmp_path / "plain")
    assert find_binary(str(plain)).found_by == "setting"
    found = find_binary(path=str(plain.parent))
    assert (found.path, found.found_by, found.package) == (plain, "PATH", None)
    modules = tmp_path / "lib/node_modules/@openai"
    native = copy_of_fake(modules / "codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin")
    (native.parent.parent / "codex-path").mkdir()
    if os.uname().machine != "x86_64":
        shutil.move(modules / "codex-linux-x64", modules / "codex-linux-arm64")
    script = modules / "codex/bin/codex.js"
    script.parent.mkdir(parents=True)
    script.write_text("#!/usr/bin/env node\n")
    script.chmod(0o755)
    links = tmp_path / "bin"
    links.mkdir()
    (links / "codex").symlink_to(script)
    found = find_binary(path=str(links))
    assert found.found_by == "npm"
    assert found.package == found.path.parent.parent
    with pytest.raises(StrategyUnavailable, match="not an executable"):
        find_binary(str(tmp_path / "nothing"))
    monkeypatch.chdir(plain.parent)
    with pytest.raises(StrategyUnavailable, match="relative path"):
        find_binary("./codex")
    monkeypatch.setattr("proofbox.agents.runtimes.codex.binary._pypi", lambda: None)
    with pytest.raises(StrategyUnavailable) as caught:
        find_binary(path=str(tmp_path))
    assert any("npm install" in hint for hint in caught.value.fix_hints)


@pytest.mark.needs("codex")
def test_real_codex_passes_its_probe() -> None:
    found = probe(base_url="http://127.0.0.1:9/v1")
    assert (found.available, found.compatible, found.code) == (True, True, "")
    assert parse_version(found.version)
    assert found == probe(base_url="http://127.0.0.1:9/v1")  # the second time from the cache


def test_unsupported_versions_and_methods_are_refused(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    assert probe(binary=str(copy_of_fake(tmp_path / "good")), base_url=url).available
    old = probe(binary=str(copy_of_fake(tmp_path / "old", "0.98.0")), base_url=url)
    assert (old.available, old.compatible, old.code) == (False, False, "RUNTIME_COMPATIBILITY")
    assert "0.98.0" in old.reason
    assert any("install" in hint for hint in old.fix_hints)
    lacking = copy_of_fake(tmp_path / "lacking")
    lacking.with_name("codex.old").touch()
    less = probe(binary=str(lacking), base_url=url)
    assert (less.code, less.compatible) == ("RUNTIME_COMPATIBILITY", False)
    assert "turn/start (ClientRequest)" in less.details["missing"]
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 9\n")
    silent.chmod(0o755)
    assert probe(binary=str(silent), base_url=url).code == "RUNTIME_STARTUP"
    with pytest.raises(RuntimeIncompatible):
        check_version("no numbers")


def test_missing_key_is_reported_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    fake = str(copy_of_fake(tmp_path))
    found = probe(binary=fake)
    assert (found.available, found.code) == (False, "RUNTIME_AUTH")
    assert found.details["api_key_env"] == "OPENAI_API_KEY"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    assert probe(binary=fake).available
    with pytest.raises(AuthFailed):
        CodexSettings(api_key_env="NOT_SET").endpoint({})


# ---- settings


@pytest.mark.parametrize(
    "settings",
    [
        {"modell": "x"},
        {"approval_policy": "always"},
        {"max_retries": -1},
        {"stream_idle_seconds": 0},
        {"extra_config": {"model_providers": {}}},
        {"extra_config": {"sandbox_mode": "read-only"}},
        {"extra_config": "x"},
        {"model": 5},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read_settings(CodexSettings, settings, "codex_app_server")


TOML = st.recursive(
    st.text(max_size=12) | st.booleans() | st.integers(-(2**53), 2**53),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8).map(lambda name: f"x{name}"), TOML, max_size=4))
def test_configuration_round_trips_through_toml(extra: dict[str, Any]) -> None:
    settings = CodexSettings(model='a"b', extra_config={**extra, "features": {"apps": True, "web": True}})
    read = tomllib.loads(config_toml(settings, "http://127.0.0.1:1/model"))
    assert {name: read[name] for name in extra} == extra
    assert read["model"] == 'a"b'
    assert read["model_providers"]["proofbox"]["base_url"] == "http://127.0.0.1:1/model"
    assert read["features"] == {
        "plugins": False,
        "apps": True,
        "unbounded_connection_retries": False,
        "web": True,
    }
    assert "env_key" not in read["model_providers"]["proofbox"]


def test_codex_implements_the_runtime_protocol() -> None:
    runtime: AgentRuntime = CodexAppServer()
    assert runtime.id == "codex_app_server"
    assert all(vars_of(runtime.capabilities).values())
    session: type[AgentSession] = session_module.CodexSession
    assert session.runtime == runtime.id


def vars_of(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
