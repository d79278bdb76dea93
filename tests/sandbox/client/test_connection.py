"""The client's connection: concurrent threads, interrupts, loss, and an unresponsive agent."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pacing import SOON
from raw_agent import ENV, MODES, PATIENCE, PYTHON, Agent, agent, no_kill, resident_kb, survivors, tree, wait_until

from proofbox.errors import CommandNotFound, ProtocolError, RequestInvalid, SandboxLost
from proofbox.sandbox.client import connection as connection_module
from proofbox.sandbox.client import wire
from proofbox.sandbox.client.calls import ActiveCall
from proofbox.sandbox.client.connection import Connection
from proofbox.sandbox.client.requests import make_request, make_settings
from proofbox.sandbox.client.wire import EncodedVariables, Recv
from proofbox.sandbox.contract import ExecResult, Isolation, Output, Policy


@pytest.fixture(params=MODES)
def box(request: pytest.FixtureRequest) -> Iterator[Agent]:
    with agent(str(request.param), greet=False) as running:
        yield running


@pytest.fixture
def connection(box: Agent) -> Connection:
    return Connection(box.peer.sock, no_kill)


def run(
    connection: Connection, argv: list[str], on_output: Callable[[Output], None] | None = None, **options: Any
) -> ExecResult:
    settings = make_settings("/", streamed=on_output is not None, **options)
    request = make_request(argv, settings, EncodedVariables(ENV))
    return outcome(connection.run(request, on_output))


def outcome(call: ActiveCall) -> ExecResult:
    return call.result(provider="test", isolation=Isolation.NONE, policy=Policy(), diagnostics={}, oom_killed=False)


def test_each_of_32_threads_gets_its_own_output(connection: Connection) -> None:
    def work(thread: int) -> None:
        for round in range(5):
            script = f"cat; echo {thread}.{round} >&2; head -c {thread * 10_000} /dev/zero; exit {thread}"
            seen: list[Output] = []
            result = run(
                connection,
                ["sh", "-c", script],
                seen.append if round % 2 else None,
                stdin=f"in {thread}.{round}\n".encode(),
            )
            assert result.stdout_bytes == f"in {thread}.{round}\n".encode() + bytes(thread * 10_000)
            assert result.stderr == f"{thread}.{round}\n"
            assert result.exit_code == thread
            if round % 2:
                assert b"".join(o.data for o in seen if o.stream == "stdout") == result.stdout_bytes

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))


def test_long_waiting_threads_do_not_block_others(connection: Connection, tmp_path: Path) -> None:
    """The thread that reads for all hands over when its own command ends, in any order of ends."""
    gates = [tmp_path / str(number) for number in range(8)]
    for gate in gates:
        os.mkfifo(gate)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(run, connection, ["sh", "-c", f"read x < {gate}; echo {gate.name}"]) for gate in gates]
        for number in (3, 0, 7, 1, 2, 6, 5, 4):
            assert not waiting[number].done()
            gates[number].write_text("\n")
            assert waiting[number].result(PATIENCE).stdout == f"{number}\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("argv", [["yes"], ["sh", "-c", "echo up; sleep 60"]])
def test_exception_in_on_output_kills_the_command(
    box: Agent, connection: Connection, error: type[BaseException], argv: list[str]
) -> None:
    def stop(_: Output) -> None:
        raise error("enough")

    began = time.monotonic()
    with pytest.raises(error):
        run(connection, argv, stop)
    assert time.monotonic() - began < SOON
    assert run(connection, ["echo", "on"]).stdout == "on\n"


def test_interrupt_while_waiting_kills_the_process_tree(connection: Connection, tmp_path: Path) -> None:
    main = threading.get_ident()
    kinds = ("setsid", "daemon")

    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.glob("*.ready"))) == 2, "the tree")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(connection, tree(tmp_path, kinds))
    thread.join()
    assert not survivors(tmp_path)
    assert run(connection, ["echo", "on"]).stdout == "on\n"


def test_abandoned_command_does_not_affect_others(connection: Connection, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run, connection, ["sh", "-c", f"read x < {tmp_path}/gate; echo mine"])

        def stop(_: Output) -> None:
            raise RuntimeError

        for _ in range(5):
            with pytest.raises(RuntimeError):
                run(connection, ["yes"], stop)
        (tmp_path / "gate").write_text("\n")
        assert other.result(PATIENCE).stdout == "mine\n"


def test_streaming_is_ordered_timed_and_complete(connection: Connection) -> None:
    seen: list[Output] = []
    result = run(connection, ["sh", "-c", "seq 200000; echo end >&2"], seen.append, max_output=1000)
    whole = b"".join(o.data for o in seen if o.stream == "stdout")
    assert whole == "".join(f"{n}\n" for n in range(1, 200_001)).encode()
    assert [o.at_ms for o in seen] == sorted(o.at_ms for o in seen)
    assert result.truncated.stdout
    assert not result.truncated.stderr
    assert result.stdout_bytes.startswith(whole[:500] + b"\n[proofbox: ")
    assert result.stdout_bytes.endswith(b"bytes left out]\n" + whole[-500:])


def test_fifty_megabytes_both_ways_in_constant_memory(box: Agent, connection: Connection) -> None:
    size, total, wrong = 50 << 20, 0, 0
    block = bytes(range(256)) * 256

    class Source(io.RawIOBase):
        left = size

        def read(self, count: int = -1) -> bytes:
            at = (size - self.left) % len(block)
            data = block[at : at + min(count, self.left)]
            self.left -= len(data)
            return data

    def check(output: Output) -> None:
        nonlocal total, wrong
        at = total % 256
        wrong += output.data[:256] != (block + block)[at : at + min(256, len(output.data))]
        total += len(output.data)

    before = resident_kb(os.getpid())
    result = run(connection, ["cat"], check, stdin=Source(), max_output=1 << 20)
    assert result.exit_code == 0
    assert (total, wrong) == (size, 0)
    assert resident_kb(os.getpid()) - before < 24_000
    assert resident_kb(box.pid, "VmHWM") < 24_000


def test_partly_read_stdin_is_not_an_error(connection: Connection) -> None:
    assert run(connection, ["head", "-c", "3"], stdin=b"abcdef" * 1_000_000).stdout == "abc"
    assert run(connection, ["true"], stdin=b"x" * 10_000_000).exit_code == 0
    assert run(connection, ["wc", "-c"], stdin=b"x" * 3_000_000).stdout.strip() == "3000000"
    assert run(connection, ["wc", "-c"], stdin=b"").stdout.strip() == "0"


class Broken(io.RawIOBase):
    def read(self, count: int = -1) -> bytes:
        raise OSError("gone")


def closed() -> io.BytesIO:
    file = io.BytesIO(b"x")
    file.close()
    return file


@pytest.mark.parametrize("source", [Broken(), closed(), io.StringIO("text")], ids=["broken", "closed", "text"])
def test_failing_stdin_source_is_reported_and_kills_the_command(connection: Connection, source: Any) -> None:
    began = time.monotonic()
    with pytest.raises(RequestInvalid, match="stdin") as caught:
        run(connection, ["cat"], stdin=source, timeout=PATIENCE)
    assert time.monotonic() - began < SOON
    assert caught.value.fix_hints
    assert run(connection, ["echo", "on"]).stdout == "on\n"


def test_loss_of_the_box_reaches_all_waiters_immediately() -> None:
    with agent("minder", greet=False) as box:
        connection = Connection(box.peer.sock, no_kill)
        with ThreadPoolExecutor(16) as pool:
            waiting = [pool.submit(run, connection, ["sh", "-c", "echo up; exec sleep 60"]) for _ in range(16)]
            wait_until(lambda: len(connection._calls) == 16, "commands under way")
            connection.wait_for_hello(PATIENCE)
            began = time.monotonic()
            box.process.send_signal(signal.SIGTERM)
            for one in waiting:
                with pytest.raises(SandboxLost):
                    one.result(PATIENCE)
            box.wait()
            assert time.monotonic() - began < SOON
        with pytest.raises(SandboxLost):
            run(connection, ["true"])


def test_killed_agent_is_a_loss_not_a_result() -> None:
    box = Agent(greet=False)
    connection = Connection(box.peer.sock, no_kill)
    try:
        with ThreadPoolExecutor(1) as pool:
            seen: list[Output] = []
            waiting = pool.submit(run, connection, ["sh", "-c", "echo up; exec sleep 60"], seen.append)
            wait_until(lambda: seen or waiting.done(), "output")
            began = time.monotonic()
            box.process.kill()
            with pytest.raises(SandboxLost) as caught:
                waiting.result(PATIENCE)
            assert time.monotonic() - began < SOON
            assert caught.value.retryable
    finally:
        connection.close()
        box.process.wait()
        box.errors.close()


@contextlib.contextmanager
def frozen(patience: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Agent, Connection]]:
    """An agent that keeps its stream open and does nothing."""
    with agent("minder", greet=False) as box:
        with monkeypatch.context() as patch:
            patch.setattr(connection_module, "ANSWER_TIMEOUT", patience)  # for sending, it applies from the start
            connection = Connection(box.peer.sock, no_kill)
        assert run(connection, ["echo", "up"]).stdout == "up\n"
        monkeypatch.setattr(connection_module, "ANSWER_TIMEOUT", patience)
        box.process.send_signal(signal.SIGSTOP)
        try:
            yield box, connection
        finally:
            box.process.send_signal(signal.SIGCONT)


def test_unresponsive_agent_is_lost_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with frozen(0.3, monkeypatch) as (_, connection):
        began = time.monotonic()
        with pytest.raises(SandboxLost, match="does not answer") as caught:
            run(connection, ["true"], timeout=0.2, grace=0.1)
        assert 0.5 < time.monotonic() - began < SOON
        assert caught.value.fix_hints
        with pytest.raises(SandboxLost):
            run(connection, ["true"], timeout=0.2)


def test_agent_that_stops_reading_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with frozen(0.3, monkeypatch) as (_, connection):
        began = time.monotonic()
        with pytest.raises(SandboxLost):
            run(connection, ["cat"], timeout=0.2, stdin=b"x" * (4 << 20))
        assert time.monotonic() - began < SOON


def test_agent_that_reads_only_part_of_a_request_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with frozen(0.3, monkeypatch) as (_, connection):
        began = time.monotonic()
        with pytest.raises(SandboxLost):
            run(connection, ["true", *["x" * 1000] * 2000], timeout=0.2)
        assert time.monotonic() - began < SOON


def test_all_threads_waiting_for_a_frozen_agent_get_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    with frozen(0.3, monkeypatch) as (_, connection), ThreadPoolExecutor(8) as pool:
        began = time.monotonic()
        for one in [pool.submit(run, connection, ["true"], timeout=0.2) for _ in range(8)]:
            with pytest.raises(SandboxLost):
                one.result(PATIENCE)
        assert time.monotonic() - began < SOON


@pytest.mark.needs("root")  # to see where a thread waits
def test_waiting_client_is_not_woken_when_the_agent_takes_the_request() -> None:
    """A wakeup for nothing takes a processor from the command that is about to start."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        connection = Connection(ours, no_kill)
        thread = pool.submit(threading.get_native_id).result()
        waiting = pool.submit(run, connection, ["true"])
        try:
            task = Path(f"/proc/self/task/{thread}")

            def switches_asleep() -> str | None:
                # It waits for the agent, and not for the interpreter's lock or for work.
                if "poll" not in (wait := (task / "wchan").read_text()) and "unix" not in wait:
                    return None
                return (task / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2]

            before = wait_until(switches_asleep, "the client waits")
            assert theirs.recv(1 << 16)
            assert wait_until(switches_asleep, "the client waits") == before
        finally:
            theirs.close()
        with pytest.raises(SandboxLost):
            waiting.result()


def test_missing_hello_is_a_loss() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        began = time.monotonic()
        with pytest.raises(SandboxLost):
            Connection(ours, theirs.close).wait_for_hello(0.2)
        assert 0.1 < time.monotonic() - began < SOON


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack("<IBI", 5, 200, 0),
        struct.pack("<IBI", 5, Recv.HELLO, 0),
        struct.pack("<IBIIHIII", 23, Recv.HELLO, 0, wire.MAGIC, 9, 0, 1, 0),
        struct.pack("<IBI", 5 + 4, Recv.FATAL, 0) + b"oops",
        struct.pack("<IBI", 6, Recv.EXIT, 1) + b"x",
        struct.pack("<IBI", 5, Recv.STDOUT, 1),
    ],
)
def test_another_program_as_peer_is_a_protocol_error(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        with pytest.raises(ProtocolError):
            run(Connection(ours, theirs.close), ["true"], timeout=PATIENCE)


def test_stream_that_ends_within_a_frame_is_a_loss() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(struct.pack("<IBI", 100, Recv.STDOUT, 1) + b"half")
        theirs.shutdown(socket.SHUT_WR)
        with theirs, pytest.raises(SandboxLost):
            run(Connection(ours, theirs.close), ["true"], timeout=PATIENCE)


def test_closing_the_connection_ends_all_waiters(connection: Connection, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(run, connection, ["sleep", "60"]) for _ in range(4)]
        wait_until(lambda: len(connection._calls) == 4, "commands under way")
        connection.close()
        for one in waiting:
            with pytest.raises(SandboxLost):
                one.result(PATIENCE)


def test_connection_survives_a_command_that_was_not_found(connection: Connection) -> None:
    for _ in range(3):
        with pytest.raises(CommandNotFound):
            run(connection, ["no-such-program"])
    assert run(connection, ["echo", "on"]).stdout == "on\n"


def test_shutdown_returns_when_all_processes_are_dead(box: Agent, connection: Connection, tmp_path: Path) -> None:
    run(connection, tree(tmp_path, ("setsid", "daemon"), stay=False))
    assert survivors(tmp_path) == ["daemon", "setsid"]
    connection.shutdown()
    assert not survivors(tmp_path)
    assert box.wait() == 0
    connection.shutdown()  # closing twice is allowed


def test_timeouts_and_signals_use_shell_exit_codes(connection: Connection) -> None:
    result = run(connection, ["sleep", "60"], timeout=0.05)
    assert (result.exit_code, result.timed_out, result.signal) == (124, True, signal.SIGKILL)
    result = run(connection, ["sh", "-c", "kill -TERM $$"])
    assert (result.exit_code, result.timed_out, result.signal) == (143, False, signal.SIGTERM)
    result = run(connection, ["sh", "-c", "sleep 60 & exit 3"])
    assert (result.exit_code, result.background) == (3, True)
    assert run(connection, [*PYTHON, "print(end='x')"]).duration_ms > 0
