"""The async client behaves like the sync one, on asyncio and on trio, and its service has the same interface."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from async_parity import assert_same_interface, blocking_calls, coroutines
from pacing import SOON
from raw_agent import ENV, PATIENCE, PYTHON, Agent, agent, no_kill, resident_kb, survivors, tree, wait_until

from proofbox import AsyncSandboxes, Sandboxes
from proofbox.core.clock import ManualClock
from proofbox.core.ids import IdSource
from proofbox.errors import CommandNotFound, PolicyRefused, RequestInvalid, SandboxLost, SessionUnknown
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.client import async_connection as module
from proofbox.sandbox.client.async_connection import AsyncConnection
from proofbox.sandbox.client.requests import make_request, make_settings
from proofbox.sandbox.client.wire import EncodedVariables
from proofbox.sandbox.contract import Event, ExecResult, Isolation, Output, Policy
from proofbox.sandbox.service import Session

LOOPS = ["asyncio", *(["trio"] if importlib.util.find_spec("trio") else [])]


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def go(loop: str, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
    async def bounded() -> None:
        with anyio.fail_after(PATIENCE * 2):
            await work(*arguments)

    anyio.run(bounded, backend=loop)


def with_box(loop: str, work: Callable[[Agent, AsyncConnection], Awaitable[None]], mode: str = "minder") -> None:
    with agent(mode, greet=False) as box:

        async def connected() -> None:
            await work(box, AsyncConnection(box.peer.sock, no_kill))

        go(loop, connected)


async def run(
    connection: AsyncConnection, argv: list[str], on_output: Callable[[Output], None] | None = None, **options: Any
) -> ExecResult:
    settings = make_settings("/", streamed=on_output is not None, **options)
    request = make_request(argv, settings, EncodedVariables(ENV))
    call = await connection.run(request, on_output)
    return call.result(provider="test", isolation=Isolation.NONE, policy=Policy(), diagnostics={}, oom_killed=False)


async def until(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)


def test_each_of_32_tasks_gets_its_own_output(loop: str) -> None:
    async def work(_: Agent, connection: AsyncConnection) -> None:
        async def one(task: int) -> None:
            for round in range(3):
                script = f"cat; echo {task}.{round} >&2; head -c {task * 10_000} /dev/zero; exit {task}"
                seen: list[Output] = []
                watch = seen.append if round % 2 else None
                result = await run(connection, ["sh", "-c", script], watch, stdin=f"in {task}.{round}\n".encode())
                assert result.stdout_bytes == f"in {task}.{round}\n".encode() + bytes(task * 10_000)
                assert result.stderr == f"{task}.{round}\n"
                assert result.exit_code == task

        async with anyio.create_task_group() as tasks:
            for task in range(32):
                tasks.start_soon(one, task)

    with_box(loop, work)


@pytest.mark.parametrize("stdin", [None, b"x" * 1_000_000])
def test_cancellation_kills_the_process_tree(loop: str, tmp_path: Path, stdin: bytes | None) -> None:
    async def work(_: Agent, connection: AsyncConnection) -> None:
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                await run(connection, tree(tmp_path, ("setsid", "daemon")), stdin=stdin)

            tasks.start_soon(one)
            await until(lambda: len(list(tmp_path.glob("*.ready"))) == 2)
            tasks.cancel_scope.cancel()
        assert not survivors(tmp_path), "the tree is dead before the cancelled call returns"
        assert (await run(connection, ["echo", "on"])).stdout == "on\n"

    with_box(loop, work)


def test_cancelled_reader_task_hands_over_to_another(loop: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")

    async def work(_: Agent, connection: AsyncConnection) -> None:
        results: list[ExecResult] = []

        async def other() -> None:
            results.append(await run(connection, ["sh", "-c", f"read x < {tmp_path}/gate; echo mine"]))

        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as inner:
                    inner.start_soon(run, connection, ["sleep", "60"])
                    await until(lambda: connection._reading)
                    tasks.start_soon(other)
                    await until(lambda: len(connection._calls) == 2)
                    scope.cancel()
            await anyio.to_thread.run_sync((tmp_path / "gate").write_text, "\n")
        assert [result.stdout for result in results] == ["mine\n"]

    with_box(loop, work)


@pytest.mark.parametrize("argv", [["yes"], ["sh", "-c", "echo up; sleep 60"]])
@pytest.mark.parametrize("stdin", [None, b"x" * 1_000_000])
def test_exception_in_on_output_kills_the_command(loop: str, argv: list[str], stdin: bytes | None) -> None:
    def stop(_: Output) -> None:
        raise ValueError("enough")

    async def work(_: Agent, connection: AsyncConnection) -> None:
        began = time.monotonic()
        with pytest.raises(ValueError, match="enough"):
            await run(connection, argv, stop, stdin=stdin)
        assert time.monotonic() - began < SOON
        assert (await run(connection, ["echo", "on"])).stdout == "on\n"

    with_box(loop, work)


def test_fifty_megabytes_both_ways_in_constant_memory(loop: str) -> None:
    class Source(io.RawIOBase):
        left = 50 << 20

        def read(self, count: int = -1) -> bytes:
            count = min(count, self.left)
            self.left -= count
            return bytes(count)

    total = 0

    def count(output: Output) -> None:
        nonlocal total
        total += len(output.data)

    async def work(box: Agent, connection: AsyncConnection) -> None:
        before = resident_kb(os.getpid())
        result = await run(connection, ["cat"], count, stdin=Source(), max_output=1 << 20)
        assert (result.exit_code, total) == (0, 50 << 20)
        assert resident_kb(os.getpid()) - before < 24_000
        assert resident_kb(box.pid, "VmHWM") < 24_000

    with_box(loop, work)


def test_stdin_sources_that_end_early_or_fail(loop: str) -> None:
    closed = io.BytesIO()
    closed.close()

    async def work(_: Agent, connection: AsyncConnection) -> None:
        assert (await run(connection, ["head", "-c", "3"], stdin=b"abcdef" * 1_000_000)).stdout == "abc"
        assert (await run(connection, ["wc", "-c"], stdin=b"x" * 3_000_000)).stdout.strip() == "3000000"
        for source in (closed, io.StringIO("text")):
            with pytest.raises(RequestInvalid, match="stdin"):
                await run(connection, ["cat"], stdin=source)
        with pytest.raises(CommandNotFound):
            await run(connection, ["no-such-program"], stdin=b"x" * 1_000_000)
        assert (await run(connection, ["echo", "on"])).stdout == "on\n"

    with_box(loop, work)


def test_loss_of_the_box_reaches_all_waiters_immediately(loop: str) -> None:
    async def work(box: Agent, connection: AsyncConnection) -> None:
        lost: list[SandboxLost] = []

        async def one() -> None:
            with pytest.raises(SandboxLost) as caught:
                await run(connection, ["sleep", "60"])
            lost.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for _number in range(16):
                tasks.start_soon(one)
            await until(lambda: connection.hello)
            began = time.monotonic()
            box.process.send_signal(signal.SIGTERM)
        assert time.monotonic() - began < SOON
        assert len(lost) == 16

    with_box(loop, work)


def test_closing_ends_all_waiters(loop: str) -> None:
    async def work(_: Agent, connection: AsyncConnection) -> None:
        async def one() -> None:
            with pytest.raises(SandboxLost):
                await run(connection, ["sleep", "60"])

        async with anyio.create_task_group() as tasks:
            for _number in range(4):
                tasks.start_soon(one)
            await until(lambda: connection.hello)
            connection.close()
        assert connection._sock.fileno() == -1

    with_box(loop, work)


@pytest.mark.parametrize("stdin", [None, b"x" * (4 << 20)])
def test_unresponsive_agent_is_lost_after_the_timeout(
    loop: str, stdin: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(box: Agent, connection: AsyncConnection) -> None:
        await run(connection, ["true"])
        monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.3)
        box.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(SandboxLost, match="does not answer"):
                await run(connection, ["cat"], timeout=0.2, grace=0.1, stdin=stdin)
            await connection.shutdown()
            assert time.monotonic() - began < SOON
        finally:
            box.process.send_signal(signal.SIGCONT)

    with_box(loop, work)


def test_timeout_and_streamed_output_beyond_the_cap(loop: str) -> None:
    async def work(_: Agent, connection: AsyncConnection) -> None:
        assert (await run(connection, ["sleep", "60"], timeout=0.05)).timed_out
        whole = b""

        def slow(output: Output) -> None:
            nonlocal whole
            whole += output.data

        result = await run(connection, [*PYTHON, "print('x' * 5_000_000, end='')"], slow, max_output=100)
        assert whole == b"x" * 5_000_000
        assert result.truncated.stdout

    with_box(loop, work)


# ---- the service


@pytest.mark.parametrize(("sync", "other"), [(Sandboxes, AsyncSandboxes), (Session, AsyncSession)])
def test_sync_and_async_have_the_same_interface(sync: type, other: type) -> None:
    assert_same_interface(sync, other)


def test_blocking_calls_are_detected(tmp_path: Path) -> None:
    with blocking_calls() as found, Sandboxes(tmp_path) as boxes:
        boxes.list_sessions()
    assert found


@pytest.fixture
def empty_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open(os.devnull) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield


@pytest.mark.usefixtures("empty_stdin")
@pytest.mark.parametrize("provider", ["off", pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap"))])
def test_no_call_blocks_the_event_loop(loop: str, provider: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    called: set[str] = set()
    blocked: dict[str, list[str]] = {}

    async def do(name: str, work: Awaitable[Any]) -> Any:
        called.add(name)
        with blocking_calls() as found:
            try:
                return await work
            finally:
                if found:
                    blocked[name] = found

    async def use(session: AsyncSession) -> None:
        await do("AsyncSession.exec", session.exec(["pwd"], cwd="sub"))
        with pytest.raises(CommandNotFound):
            await do("AsyncSession.exec", session.exec(["no-such-program"]))
        await do("AsyncSession.commands_alive", session.commands_alive())
        with contextlib.suppress(PolicyRefused):  # no control groups here
            freezing = await do("AsyncSession.frozen", session.frozen())
            await do("AsyncSession.frozen", freezing.__aenter__())
            await do("AsyncSession.frozen", freezing.__aexit__(None, None, None))

    async def work() -> None:
        boxes = AsyncSandboxes(project_root=tmp_path)
        await do("AsyncSandboxes.probe", boxes.probe(provider))
        await do("AsyncSandboxes.exec", boxes.exec(["true"], provider=provider))
        if provider == "off" or os.geteuid() == 0:
            with contextlib.suppress(PolicyRefused):  # no control groups here
                await do("AsyncSandboxes.exec", boxes.exec(["true"], provider=provider, memory=64))
        await do("AsyncSandboxes.start", boxes.start(["true"], provider=provider))
        session = await do("AsyncSandboxes.start_session", boxes.start_session(provider=provider))
        await use(session)
        await do("AsyncSandboxes.exec_in_session", boxes.exec_in_session(session.id, ["true"]))
        await do("AsyncSession.stop", session.stop())
        left = await do("AsyncSandboxes.start_session", boxes.start_session(provider=provider, detached=True, ttl=60))
        await do("AsyncSandboxes.exec_in_session", boxes.exec_in_session(left.id, ["true"]))
        await do("AsyncSandboxes.get_session", boxes.get_session(left.id))
        await do("AsyncSandboxes.list_sessions", boxes.list_sessions())
        await do("AsyncSession.detach", left.detach())
        await do("AsyncSandboxes.stop_session", boxes.stop_session(left.id))
        await do("AsyncSandboxes.prune_sessions", boxes.prune_sessions())
        last = await boxes.start_session(provider=provider)
        await last.exec(["true"])
        await do("AsyncSession.cut_off", last.cut_off())
        await do("AsyncSandboxes.cut_off", boxes.cut_off())
        with pytest.raises(SandboxLost):
            await do("AsyncSession.exec", last.exec(["true"]))
        await do("AsyncSandboxes.close", boxes.close())

    go(loop, work)
    assert blocked == {}
    assert called == {f"{kind.__name__}.{name}" for kind in (AsyncSandboxes, AsyncSession) for name in coroutines(kind)}


@pytest.mark.usefixtures("empty_stdin")
def test_interactive_start_uses_the_clock_and_ids_of_its_service(loop: str, tmp_path: Path) -> None:
    clock = ManualClock(datetime(2001, 2, 3, tzinfo=UTC))
    events: list[Event] = []

    async def work() -> None:
        boxes = AsyncSandboxes(tmp_path, on_event=events.append, clock=clock, ids=IdSource(clock, bytes))
        await boxes.start(["true"], provider="off")

    go(loop, work)
    assert {event.name for event in events} == {IdSource(clock, bytes).new_id("ses")}


def test_service_works_as_documented(loop: str, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("found")
    events: list[Event] = []

    async def work() -> None:
        async with AsyncSandboxes(project_root=tmp_path, on_event=events.append) as boxes:
            assert (await boxes.exec(["cat", "here"], provider="off", timeout=PATIENCE)).stdout == "found"
            async with await boxes.start_session(provider="off") as session:
                assert (await session.exec(["pwd"])).stdout == f"{tmp_path}\n"
                assert (await boxes.exec_in_session(session.id, ["echo", "x"])).stdout == "x\n"
                assert (await boxes.get_session(session.id)).state == "running"
                assert session.id in [info.id for info in await boxes.list_sessions()]
            left = await boxes.start_session(provider="off")
            assert (await boxes.stop_session(left.id)).state == "stopped"
            with pytest.raises(SessionUnknown):
                await boxes.get_session("ses-nonsense")
            forgotten = await boxes.start_session(provider="off")
            pid = int((await forgotten.exec(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"])).stdout)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of a session's background process")

    go(loop, work)
    assert {("session", "starting"), ("exec", "started"), ("exec", "finished"), ("session", "stopped")} <= {
        (event.kind, event.phase) for event in events
    }


def test_detached_session_outlives_its_async_client(loop: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncSandboxes(project_root=tmp_path) as boxes:
            made = await boxes.start_session(provider="off", detached=True, ttl=60)
        async with AsyncSandboxes(project_root=tmp_path) as boxes:
            try:
                assert (await boxes.exec_in_session(made.id, ["echo", "still here"])).stdout == "still here\n"
            finally:
                assert (await boxes.stop_session(made.id)).state == "stopped"
            assert (await boxes.stop_session(made.id)).state == "stopped"
            with pytest.raises(SandboxLost):
                await boxes.exec_in_session(made.id, ["true"])
            assert await boxes.prune_sessions() == [made.id]
        made._core.connection.close()

    go(loop, work)
