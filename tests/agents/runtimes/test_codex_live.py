"""Tests of the real codex in a box with a fake model: turns, threads, approvals, faults and cleanup."""

from __future__ import annotations

# ruff: noqa: ASYNC110, ASYNC240 (tests wait by polling; short blocking calls are fine)
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import private_engine
import pytest
from anyio.to_thread import run_sync
from capabilities import OrdinaryUser
from codex_lab import Lab, Seat, processes, run
from pacing import SOON

from proofbox.agents.contract import ApprovalRule, SessionOptions
from proofbox.agents.events import (
    ApprovalDecision,
    Delta,
    FileChange,
    Integrity,
    ItemStarted,
    Message,
    Notice,
    RateWindows,
    Reasoning,
    Retrying,
    ThreadStarted,
    TokenUsage,
    ToolCall,
    TurnEnded,
    TurnStarted,
    Unrecognized,
    Usage,
)
from proofbox.agents.fakemodel.script import ScriptedResponse, ScriptEntry
from proofbox.agents.runtimes.codex import CodexAppServer
from proofbox.errors import UsageError

pytestmark = pytest.mark.needs("codex", "bubblewrap")


def test_turn_runs_in_a_network_namespace_that_reaches_only_the_model(tmp_path: Path) -> None:
    look = "id -u; echo $CODEX_HOME; cat /proc/net/dev | grep -c :; wc -l < /proc/net/route; echo made > made.txt"

    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            prompt = f"[[think first look]] [[run {look}; exit 3]] [[limits primary=12]] [[say it is done]]"
            result = await seat.turn(prompt)
            assert (result.status, result.error, result.final_message) == ("completed", None, "it is done")
            [call] = seat.of(ToolCall)
            assert (call.command, call.exit_code, call.status) == (f"{look}; exit 3", 3, "failed")
            uid, home, devices, routes = call.output.splitlines()
            assert (home, devices, routes) == ("/run/codex/home", "1", "1")  # only lo, and a header line without routes
            assert uid != "0" or os.geteuid() != 0
            assert call.duration_ms is not None
            assert (lab.workspace / "made.txt").read_text() == "made\n"
            assert [event.text for event in seat.of(Message)] == ["it is done"]
            assert [event.text for event in seat.of(Reasoning)] == ["first look"]
            assert seat.of(Delta, kind="message")
            assert {event.source for event in seat.of(RateWindows)} == {"gateway", "runtime_reported"}
            twice = TokenUsage(input_tokens=2000, output_tokens=100, cached_input_tokens=800, reasoning_tokens=20)
            assert result.usage == twice
            assert {event.source: event.total for event in seat.of(Usage)} == {
                "gateway": twice,
                "runtime_reported": twice,
            }
            assert not seat.of(Unrecognized)
            assert not seat.of(Integrity)
            numbers = [event.seq for event in seat.events]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            [started], [ended] = seat.of(TurnStarted), seat.of(TurnEnded)
            assert (started.turn, ended.turn, ended.status) == (result.turn, result.turn, "completed")
            facts = seat.session.facts()
            assert (facts["sandboxed"], facts["provider"], facts["isolation"]) == (True, "bubblewrap", "namespace")
            assert facts["policy"]["network"] == "none"
            assert seat.session.version in facts["user_agent"]
        assert [(e.outcome, e.turn) for e in seat.session.exchanges] == [("completed", result.turn)] * 2

    run(tmp_path, work)


FAULTS = {
    "429 once": ("[[http 429 times=1 retry_after=1]] [[say ok]]", ""),
    "429 for ever": ("[[http 429 retry_after=0.1]]", "RUNTIME_RATE_LIMIT"),
    "usage limit": ("[[http 429 type=usage_limit_reached resets=60]]", "RUNTIME_USAGE_LIMIT"),
    "quota in the stream": ("[[fail insufficient_quota]]", "RUNTIME_USAGE_LIMIT"),
    "rate limit in the stream": ("[[fail rate_limit_exceeded message='try again in 0.1s']]", "RUNTIME_RATE_LIMIT"),
    "slow down": ("[[http 503 type=slow_down]]", "RUNTIME_RATE_LIMIT"),
    "401": ("[[http 401]]", "RUNTIME_AUTH"),
    "403": ("[[http 403]]", "RUNTIME_AUTH"),
    "404": ("[[http 404]]", "RUNTIME_MODEL_ERROR"),
    "400": ("[[http 400]]", "RUNTIME_MODEL_ERROR"),
    "500 once": ("[[http 500 times=1]] [[say ok]]", ""),
    "500 for ever": ("[[http 500]]", "RUNTIME_MODEL_ERROR"),
    "server error in the stream": ("[[fail server_error]]", "RUNTIME_MODEL_ERROR"),
    "overloaded": ("[[http 503 type=server_is_overloaded]]", "RUNTIME_OVERLOADED"),
    "context exceeded": ("[[fail context_length_exceeded]]", "RUNTIME_CONTEXT_EXCEEDED"),
    "dropped before": ("[[drop before]]", "RUNTIME_STREAM_DISCONNECT"),
    "dropped in the middle": ("[[drop mid]]", "RUNTIME_STREAM_DISCONNECT"),
    "dropped once": ("[[drop mid times=1]] [[say ok]]", ""),
    "idle": ("[[idle]]", "RUNTIME_STREAM_DISCONNECT"),
    "garbage": ("[[garbage]]", "RUNTIME_STREAM_DISCONNECT"),
}


RETRIED = {
    "429 once": "RUNTIME_RATE_LIMIT",
    "500 once": "RUNTIME_MODEL_ERROR",
    "dropped once": "RUNTIME_STREAM_DISCONNECT",
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_model_fault_ends_with_its_code_in_time(tmp_path: Path, name: str) -> None:
    prompt, code = FAULTS[name]

    async def work(lab: Lab) -> None:
        # A busy model is not idle yet.
        async with lab.session({"stream_idle_seconds": 2.0 if name == "idle" else 60.0}) as seat:
            began = time.monotonic()
            result = await seat.turn(prompt)
            assert time.monotonic() - began < SOON
            assert (result.error.code if result.error else "") == code
            assert result.status == ("failed" if code else "completed")
            [ended] = seat.of(TurnEnded)
            assert ended.code == code
            if name in ("429 once", "500 once", "dropped once"):
                assert [event.code for event in seat.of(Retrying)] == [RETRIED[name]]
            if name == "usage limit":
                assert result.error is not None
                assert result.error.details["resets_at"] > time.time()
            if name in ("rate limit in the stream", "429 for ever"):
                assert result.error is not None
                assert result.error.details["retry_after"] == pytest.approx(0.1)
            if name == "server error in the stream":
                assert result.error is not None
                assert result.error.retryable
            again = await seat.turn("[[say after]]", ended.thread)
            assert (again.status, again.final_message) == ("completed", "after")
        await seat.until(lambda: not lab.model.open)

    run(tmp_path, work)


def test_endpoint_that_refuses_connections_is_a_failure(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            async with lab.session({"base_url": f"http://127.0.0.1:{taken.getsockname()[1]}/v1"}) as seat:
                result = await seat.turn("[[say x]]")
                assert result.error is not None
                assert (result.error.code, result.error.retryable) == ("RUNTIME_STREAM_DISCONNECT", True)
                assert {exchange.outcome for exchange in seat.session.exchanges} == {"unreachable"}

    run(tmp_path, work)


def test_killed_program_is_a_crash_and_its_thread_is_resumed(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            thread = await seat.session.start_thread()
            await seat.turn("[[say remember the blue door]]", thread)
            turn = await seat.session.start_turn(thread, "[[run sleep 1234.5]] [[say never]]")
            await seat.until(lambda: seat.of(ItemStarted, kind="commandExecution"))
            await seat.until(lambda: list(processes("sleep 1234.5")))
            [pid] = [pid for pid in processes("/run/codex/") if b"app-server" in cmdline(pid)[-12:]]
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            result = await seat.session.wait_turn(turn)
            assert time.monotonic() - began < SOON
            assert result.error is not None
            assert (result.status, result.error.code) == ("failed", "RUNTIME_CRASH")
            assert (result.error.details["signal"], result.error.details["replayed"]) == (9, False)
            assert not list(processes("sleep 1234.5"))
            [call] = seat.of(ToolCall)
            assert (call.status, call.command) == ("abandoned", "sleep 1234.5")
            asked = len(lab.model.seen)
            after = await seat.turn("[[say back again]]", thread)
            assert (after.status, after.final_message) == ("completed", "back again")
            assert len(lab.model.seen) == asked + 1  # the crashed turn was not repeated
            assert "blue door" in str(lab.model.seen[-1].body["input"])
            [recovery] = seat.session.facts()["recoveries"]
            assert "signal 9" in recovery["reason"]
            assert seat.of(Notice, kind="recovered")
            assert not seat.of(Integrity)

    run(tmp_path, work)


def test_lost_box_is_a_crash_and_is_replaced(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            thread = await seat.session.start_thread()
            await seat.turn("[[say remember the red gate]]", thread)
            turn = await seat.session.start_turn(thread, "[[run sleep 1235.5]]")
            await seat.until(lambda: list(processes("sleep 1235.5")))
            began = time.monotonic()
            for pid in list(processes("/run/boxagent")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            result = await seat.session.wait_turn(turn)
            assert result.error is not None
            assert (result.status, result.error.code) == ("failed", "RUNTIME_CRASH")
            assert time.monotonic() - began < SOON
            assert not list(processes("sleep 1235.5"))
            assert (await seat.turn("[[say here]]", thread)).final_message == "here"
            assert "red gate" in str(lab.model.seen[-1].body["input"])

    run(tmp_path, work)


def own_process(lab: Lab, prompt: str, python: str = sys.executable, **options: Any) -> subprocess.Popen[str]:
    argv = [python, str(Path(__file__).parents[1] / "one_session.py"), str(lab.workspace.parent), lab.url, prompt]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **options)


def test_killing_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        with own_process(lab, "[[run setsid sleep 6543.5]]") as process:
            assert process.stdout is not None
            while "commandExecution" not in await run_sync(process.stdout.readline):
                pass
            while not (mark := set(processes("sleep 6543.5"))):
                await anyio.sleep(0.01)
            process.kill()
            process.wait()
        with anyio.fail_after(60):
            while any(Path(f"/proc/{pid}").exists() for pid in mark):
                await anyio.sleep(0.01)
        shutil.rmtree(lab.scratch)  # the caller removes the scratch directory
        lab.scratch.mkdir()

    run(tmp_path, work)


@pytest.mark.needs("unprivileged-user")
def test_ordinary_user_can_run_codex(ordinary_user: OrdinaryUser) -> None:
    place = Path(tempfile.mkdtemp(prefix="pb-user-"))
    try:
        os.chown(place, ordinary_user.uid, ordinary_user.uid)
        for name in ("workspace", "scratch"):
            (place / name).mkdir()
            os.chown(place / name, ordinary_user.uid, ordinary_user.uid)

        async def work(lab: Lab) -> None:
            options = {"env": dict(ordinary_user.env), **ordinary_user.identity}
            prompt = "[[run id -u; touch made; wc -l < /proc/net/route]] [[say ok]]"
            with own_process(lab, prompt, ordinary_user.python, **options) as process:
                printed, _ = await run_sync(process.communicate)
            last = json.loads(printed.splitlines()[-1])
            assert (last["status"], last["message"]) == ("completed", "ok")
            assert last["outputs"] == ["1000\n1\n"]
            assert (lab.workspace / "made").stat().st_uid == ordinary_user.uid

        run(place, work)
    finally:
        shutil.rmtree(place)


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")


def test_interrupt_ends_the_turn_and_its_command(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            thread = await seat.session.start_thread()
            other = await seat.session.start_thread()
            beside = await seat.session.start_turn(other, "[[run sleep 1; echo undisturbed]] [[say fine]]")
            command = "(setsid sh -c 'trap : TERM HUP; sleep 4321.5; sleep 4321.5' &); sleep 4321.5"
            turn = await seat.session.start_turn(thread, f"[[run {command}]] [[say never]]")
            with pytest.raises(UsageError, match="in progress"):
                await seat.session.start_turn(thread, "[[say second]]")
            await seat.until(lambda: seat.of(ItemStarted, kind="commandExecution", turn=turn))
            await seat.until(lambda: len(list(processes("sleep 4321.5"))) >= 3)
            await seat.session.interrupt_turn(thread, turn)
            result = await seat.session.wait_turn(turn)
            assert result.error is not None
            assert (result.status, result.error.code) == ("interrupted", "RUNTIME_INTERRUPTED")
            assert not list(processes("sleep 4321.5"))
            [call] = seat.of(ToolCall, turn=turn)
            assert call.late
            assert (await seat.session.wait_turn(beside)).final_message == "fine"
            [call] = seat.of(ToolCall, turn=beside)
            assert call.output == "undisturbed\n"
            await seat.session.interrupt_turn(thread, turn)  # no effect on a turn that has ended
            assert (await seat.turn("[[say on]]", thread)).final_message == "on"
            assert seat.session.facts()["recoveries"] == []
            # Also while the model is responding.
            turn = await seat.session.start_turn(thread, "[[idle]]")
            await seat.until(lambda: lab.model.open)
            await seat.session.interrupt_turn(thread, turn)
            assert (await seat.session.wait_turn(turn)).status == "interrupted"

    run(tmp_path, work)


def test_text_of_an_interrupted_turn_is_kept(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            thread = await seat.session.start_thread()
            turn = await seat.session.start_turn(thread, "[[idle 300 after=2]] [[say half of it is done]]")
            await seat.until(lambda: "".join(each.text for each in seat.of(Delta, kind="message")) == "half of ")
            await seat.session.interrupt_turn(thread, turn)
            result = await seat.session.wait_turn(turn)
            assert (result.status, result.final_message) == ("interrupted", "half of ")
            assert [event.text for event in seat.of(Message)] == ["half of "]
            assert (await seat.turn("[[drop mid times=1]] [[say all of it]]", thread)).final_message == "all of it"
            assert [event.text for event in seat.of(Message)] == ["half of ", "all of it"]

    run(tmp_path, work)


def test_steering_reaches_the_running_turn(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            thread = await seat.session.start_thread()
            turn = await seat.session.start_turn(thread, "[[run until [ -e go ]; do sleep 0.05; done]] [[say end]]")
            await seat.until(lambda: seat.of(ItemStarted, kind="commandExecution"))
            await seat.session.steer_turn(thread, turn, "also paint it green")
            (lab.workspace / "go").touch()
            assert (await seat.session.wait_turn(turn)).status == "completed"
            assert "paint it green" in str(lab.model.seen[-1].body["input"])
            with pytest.raises(UsageError):
                await seat.session.steer_turn(thread, turn, "too late")
            with pytest.raises(UsageError):
                await seat.session.steer_turn("other", turn, "wrong thread")

    run(tmp_path, work)


def test_threads_outlive_their_session_and_fork_at_a_turn(tmp_path: Path) -> None:
    home = tmp_path / "home"

    async def work(lab: Lab) -> None:
        async with lab.session(home=home) as seat:
            thread = await seat.session.start_thread()
            first = await seat.turn("[[say the first word]]", thread)
            await seat.turn("[[say the second word]]", thread)
        async with lab.session(home=home) as seat:
            assert await seat.session.resume_thread(thread) == thread
            await seat.turn("[[say third]]", thread)
            assert "the second word" in str(lab.model.seen[-1].body["input"])
            fork = await seat.session.fork_thread(thread, first.turn)
            assert fork != thread
            await seat.turn("[[say elsewhere]]", fork)
            printed = str(lab.model.seen[-1].body["input"])
            assert "the first word" in printed
            assert "the second word" not in printed
            assert [(event.origin, event.forked_from) for event in seat.of(ThreadStarted)] == [
                ("resume", ""),
                ("fork", thread),
            ]
            assert not seat.of(Integrity)

    run(tmp_path, work)


def test_approval_requests_are_answered_by_the_rules(tmp_path: Path) -> None:
    rules = (ApprovalRule(answer="accept", command="*touch yes*", name="yes files"),)

    async def work(lab: Lab) -> None:
        async with lab.session({"approval_policy": "untrusted"}, approvals=rules) as seat:
            result = await seat.turn("[[run touch yes]] [[run touch no]] [[say done]]")
            assert result.status == "completed"
            assert [(event.answer, event.rule) for event in seat.of(ApprovalDecision)] == [
                ("accept", "yes files"),
                ("decline", "no rule"),
            ]
            assert [event.status for event in seat.of(ToolCall)] == ["completed", "declined"]
            assert sorted(path.name for path in lab.workspace.iterdir()) == ["yes"]

    run(tmp_path, work)


def test_patch_is_a_file_change(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Add File: note.txt\n+hello\n*** End Patch"

    async def work(lab: Lab) -> None:
        async with lab.session({"model": "gpt-5.5"}) as seat:
            result = await seat.turn(f"[[patch {patch}]] [[say patched]]")
            assert (result.status, result.final_message) == ("completed", "patched")
            [change] = seat.of(FileChange)
            assert change.status == "completed"
            assert [Path(path).name for path in change.paths] == ["note.txt"]
            assert (lab.workspace / "note.txt").read_text() == "hello\n"

    run(tmp_path, work)


def test_text_typed_into_a_running_command_is_a_call(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        choose = lab.model._choose

        def with_session(conversation: Sequence[ScriptEntry]) -> list[ScriptedResponse]:
            session = re.findall(r"session ID (\d+)", "".join(entry.text for entry in conversation))
            return [
                msgspec.structs.replace(answer, text=answer.text.replace("SESSION", "".join(session[:1])))
                for answer in choose(conversation)
            ]

        lab.model._choose = with_session  # type: ignore[method-assign]
        typed = '[[call write_stdin {"session_id": SESSION, "chars": "touch typed.txt\\n"}]]'
        shell = '[[call exec_command {"cmd": "sh", "yield_time_ms": 500, "tty": true}]]'
        async with lab.session() as seat:
            await seat.turn(f"{shell} {typed} [[run until [ -e typed.txt ]; do sleep 0.05; done]] [[say done]]")
            assert [(call.tool, call.command) for call in seat.of(ToolCall)][:1] == [
                ("write_stdin", "touch typed.txt\n")
            ]
            assert not seat.of(Integrity)

    run(tmp_path, work)


def test_sub_agents_belong_to_the_thread_that_spawned_them(tmp_path: Path) -> None:
    message = json.dumps({"message": "[[run touch by-sub.txt]]"}).replace("[", "\\u005b").replace("]", "\\u005d")
    wait = "[[run until [ -e by-sub.txt ]; do sleep 0.05; done]]"

    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            thread, other = await seat.session.start_thread(), await seat.session.start_thread()
            await seat.turn(f"[[call multi_agent_v1.spawn_agent {message}]] {wait} [[say done]]", thread)
            [call] = seat.of(ToolCall, command="touch by-sub.txt")
            assert call.thread not in (thread, other)
            assert seat.session.owner_of(call.thread) == thread
            await seat.session.end_thread(thread)
            started, ended = seat.of(TurnStarted, thread=call.thread), seat.of(TurnEnded, thread=call.thread)
            assert [each.turn for each in started] == [each.turn for each in ended]
            assert (await seat.turn("[[say on]]", other)).final_message == "on"

    run(tmp_path, work)


def test_turn_without_activity_is_stopped(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session(stall_timeout=3.0) as seat:
            result = await seat.turn("[[idle]]")
            assert result.error is not None
            assert (result.status, result.error.code) == ("failed", "RUNTIME_STALL")
            assert (await seat.turn("[[say alive]]")).final_message == "alive"
            assert seat.session.facts()["recoveries"] == []

    run(tmp_path, work)


def test_failed_listener_ends_the_turn(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:

            async def full(event: object) -> None:
                if isinstance(event, ItemStarted) and event.kind == "commandExecution":
                    raise OSError("the disk is full")

            seat.session.add_listener(full)
            began = time.monotonic()
            result = await seat.turn("[[run sleep 2345.5]] [[say x]]")
            assert result.error is not None
            assert (result.status, result.error.code) == ("failed", "RUNTIME_LISTENER_FAILURE")
            assert time.monotonic() - began < SOON
            await seat.until(lambda: not list(processes("sleep 2345.5")))

    run(tmp_path, work)


def test_close_during_a_turn(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            thread = await seat.session.start_thread()
            turn = await seat.session.start_turn(thread, "[[run setsid sleep 5432.5]]")
            await seat.until(lambda: list(processes("sleep 5432.5")))
            began = time.monotonic()
            await seat.session.close()
            assert time.monotonic() - began < SOON
            result = await seat.session.wait_turn(turn)
            assert result.error is not None
            assert (result.status, result.error.code) == ("interrupted", "RUNTIME_INTERRUPTED")
            assert not list(processes("sleep 5432.5"))
            assert len(seat.of(TurnEnded)) == 1
            await seat.session.close()

    run(tmp_path, work)


def test_cancelled_start_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        for seconds in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
            with anyio.move_on_after(seconds):
                async with lab.session() as seat:
                    await seat.turn("[[run sleep 7654.5]]")
            assert not list(lab.scratch.iterdir())
        assert not list(processes("sleep 7654.5"))

    run(tmp_path, work)


# ---- the key

HUNT = """
import os, re
seen = 0
found = []
want = re.compile(b"sk-" + b"canary-[0-9a-f]{32}")
def look(path):
    global seen
    try:
        with open(path, "rb") as file:
            data = file.read(20_000_000)
    except OSError:
        return
    seen += 1
    if want.search(data):
        found.append(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "maps"):
        look(f"/proc/{pid}/{name}")
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            if os.path.isfile(path):
                look(path)
    except OSError:
        pass
system = {"proc", "sys", "usr", "bin", "sbin", "lib", "lib64", "lib32", "libx32", "opt"}  # as on the host, read-only
for top in sorted(set(os.listdir("/")) - system):
    for folder, _, names in os.walk("/" + top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and os.path.getsize(path) < 20_000_000:
                look(path)
print("looked at", seen, "found", sorted(found))
"""


def test_commands_can_not_find_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = f"sk-canary-{secrets.token_hex(16)}"
    monkeypatch.setenv("THE_KEY", key)

    async def work(lab: Lab) -> None:
        (lab.workspace / "hunt.py").write_text(HUNT)
        async with lab.session({"api_key_env": "THE_KEY"}) as seat:
            result = await seat.turn("[[run python3 hunt.py]] [[say searched]]")
            assert result.status == "completed"
            [call] = seat.of(ToolCall)
            assert call.output.startswith("looked at "), call.output
            assert int(call.output.split()[2]) > 20
            assert call.output.endswith("found []\n")
            assert key not in str(seat.session.facts()) + str(seat.events) + repr(vars(seat.session))
        assert {dict(seen.headers)["authorization"] for seen in lab.model.seen} == {f"Bearer {key}"}
        # Check that the search finds an existing value; otherwise the test would prove nothing.
        async with lab.session(env={"PLANTED": f"sk-canary-{secrets.token_hex(16)}"}) as seat:
            await seat.turn("[[run python3 hunt.py]] [[say searched]]")
            [call] = seat.of(ToolCall)
            assert "/environ" in call.output

    run(tmp_path, work)


# ---- concurrency


async def one_thread(seat: Seat, marker: str) -> tuple[str, str]:
    thread = await seat.session.start_thread()
    result = await seat.turn(f"[[run echo {marker} > {marker}.txt; sleep 0.2; echo {marker}]] [[say {marker}]]", thread)
    assert (result.status, result.final_message) == ("completed", marker)
    return thread, marker


def check_traces(seat: Seat, threads: dict[str, str]) -> None:
    for thread, marker in threads.items():
        trace = [event for event in seat.events if event.thread == thread]
        [call] = [event for event in trace if isinstance(event, ToolCall)]
        assert call.output == f"{marker}\n"
        others = set(threads.values()) - {marker}
        assert not [other for other in others if other in str(trace)]


def test_concurrent_threads_keep_separate_records(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        async with lab.session() as seat:
            threads: dict[str, str] = {}

            async def one(number: int) -> None:
                thread, marker = await one_thread(seat, f"marker-{number:02}-{secrets.token_hex(4)}")
                threads[thread] = marker

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(one, number)
            assert len(threads) == 20
            check_traces(seat, threads)
            assert not seat.of(Integrity)
        seen = {dict(each.headers)["thread-id"] for each in lab.model.seen}
        assert seen == set(threads)

    run(tmp_path, work)


def test_concurrent_programs_keep_separate_records(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    count = rounds(4, 20)

    async def work(lab: Lab) -> None:
        seats: list[Seat] = []
        markers: list[str] = []

        async def one(number: int) -> None:
            async with lab.session() as seat:
                marker = f"marker-{number:02}-{secrets.token_hex(4)}"
                await one_thread(seat, marker)
                seats.append(seat)
                markers.append(marker)

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
        assert len(seats) == count
        for seat, marker in zip(seats, markers, strict=True):
            assert marker in str(seat.events)
            assert not [other for other in markers if other != marker and other in str(seat.events)]

    run(tmp_path, work)


# ---- other providers


def test_unsandboxed_session_needs_a_request_and_is_recorded(tmp_path: Path) -> None:
    async def work(lab: Lab) -> None:
        options = SessionOptions(workspace=lab.workspace, scratch=lab.scratch, provider="off")
        with pytest.raises(UsageError, match="sandboxed"):
            await CodexAppServer().start_session(options)
        async with lab.session(sandboxed=False) as seat:
            result = await seat.turn("[[run echo out > here]] [[say ok]]")
            assert result.status == "completed"
            assert (lab.workspace / "here").read_text() == "out\n"
            facts = seat.session.facts()
            assert (facts["sandboxed"], facts["isolation"], facts["gateway"]) == (False, "none", "loopback of the host")

    run(tmp_path, work)


@pytest.mark.needs("docker")
def test_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with private_engine.private_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)

        async def work(lab: Lab) -> None:
            policy = {"image": private_engine.IMAGE}
            async with lab.session(provider="docker", policy=policy) as seat:
                result = await seat.turn("[[run echo contained > here; cat here]] [[say ok]]")
                assert (result.status, result.final_message) == ("completed", "ok")
                [call] = seat.of(ToolCall)
                assert call.output == "contained\n"
                assert seat.session.facts()["isolation"] == "container"

        run(tmp_path, work)
