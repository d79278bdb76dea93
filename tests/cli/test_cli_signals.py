"""Signals and streams, with real processes and a real terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Generator, Iterator
from pathlib import Path

import anyio
import pytest
from terminal import Terminal

from proofbox import AsyncSandboxes, Sandboxes, Settings
from proofbox.cli import main
from proofbox.errors import RequestInvalid
from proofbox.sandbox.contract import RunningCommand

SIGNALS = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "WINCH")
TRAP = 'trap "echo got $1; exit 42" $1; echo ready; while :; do sleep 0.02; done'


@contextlib.contextmanager
def proofbox(*words: str, cwd: Path, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    with subprocess.Popen([sys.executable, "-m", "proofbox", *words], cwd=cwd, bufsize=0, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with Sandboxes(tmp_path_factory.mktemp("project"), settings=Settings(provider="bubblewrap")) as boxes:
        held = boxes.start_session(detached=True)
        held.detach()
        yield held.id
        boxes.stop_session(held.id)
        boxes.prune_sessions()


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("name", SIGNALS)
def test_exec_passes_a_signal_on(name: str, tmp_path: Path) -> None:
    words = ["exec", "--provider", "bubblewrap", "--", "sh", "-c", TRAP, "sh", name]
    with proofbox(*words, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.communicate(timeout=60)[0] == f"got {name}\n".encode()
        assert process.returncode == 42


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("name", SIGNALS)
def test_session_exec_passes_a_signal_on(name: str, session: str, tmp_path: Path) -> None:
    with proofbox("session", "exec", session, "--", "sh", "-c", TRAP, "sh", name, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.communicate(timeout=60)[0] == f"got {name}\n".encode()
        assert process.returncode == 42


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_killing_signal_determines_the_exit_code(number: signal.Signals, tmp_path: Path) -> None:
    words = ["exec", "--provider", "off", "--stdin", "-", "--", "cat"]  # not a shell: those handle SIGINT themselves
    with proofbox(*words, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ready\n")
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(60) == 128 + number


def test_ignored_signals_are_not_passed_on(tmp_path: Path) -> None:
    """nohup must also apply to the command in the box."""
    script = 'trap "" HUP; exec "$@"'
    command = [sys.executable, "-m", "proofbox", "exec", "--provider", "off", "--", "sh", "-c", TRAP, "sh", "USR1"]
    with subprocess.Popen(["sh", "-c", script, "sh", *command], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.read() == b"got USR1\n"


def test_output_is_streamed_in_order(tmp_path: Path) -> None:
    """Each piece arrives before the next is requested: nothing is buffered, and both streams stay in order."""
    script = 'while read -r n; do if [ $((n % 2)) = 0 ]; then printf "out%s" $n; else printf "err%s" $n >&2; fi; done'
    words = ["exec", "--provider", "off", "--stdin", "-", "--", "sh", "-c", script]
    with proofbox(*words, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for n in range(20):
            process.stdin.write(f"{n}\n".encode())
            expected = f"{'err' if n % 2 else 'out'}{n}".encode()
            assert process.stdout.read(len(expected)) == expected
        process.stdin.close()
        assert process.wait(60) == 0


def test_exec_does_not_wait_for_unread_stdin(tmp_path: Path) -> None:
    words = ["exec", "--provider", "off", "--stdin", "-", "--", "echo", "done"]
    with proofbox(*words, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert process.wait(60) == 0
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"done\n", b"")


def test_ctrl_c_at_a_terminal_reaches_the_command_of_exec(tmp_path: Path) -> None:
    terminal = Terminal(["exec", "--provider", "off", "--", "sh", "-c", TRAP, "sh", "INT"], tmp_path)
    terminal.wait_for("ready")
    terminal.type("\x03")
    terminal.wait_for("got INT")
    assert terminal.end() == 42
    assert termios.tcgetattr(terminal.fd) == terminal.before
    os.close(terminal.fd)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_killed_up_restores_the_terminal(number: signal.Signals, tmp_path: Path) -> None:
    terminal = Terminal(["up", "--provider", "off", "--", "sh", "-c", "echo up; exec cat"], tmp_path)
    terminal.wait_for("up")
    assert termios.tcgetattr(terminal.fd) != terminal.before
    os.kill(terminal.pid, number)
    assert terminal.end() == 128 + number
    assert termios.tcgetattr(terminal.fd) == terminal.before
    os.close(terminal.fd)


def test_up_without_a_terminal_passes_signals_on(tmp_path: Path) -> None:
    with proofbox("up", "--provider", "off", "--", "sh", "-c", TRAP, "sh", "TERM", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.communicate(timeout=60)[0] == b"got TERM\n"
        assert process.returncode == 42


def test_a_command_is_signalled_from_python(tmp_path: Path) -> None:
    held: list[RunningCommand] = []
    with Sandboxes(tmp_path, settings=Settings(provider="off")) as boxes, boxes.start_session() as session:
        result = session.exec(
            ["sh", "-c", TRAP, "sh", "USR1"],
            on_start=held.append,
            on_output=lambda piece: held[0].signal(signal.SIGUSR1) if piece.data == b"ready\n" else None,
        )
        assert (result.exit_code, result.stdout) == (42, "ready\ngot USR1\n")
        held[0].signal(signal.SIGUSR1)  # it has ended, so this has no effect
        with pytest.raises(RequestInvalid):
            held[0].signal(65)
        assert session.exec(["true"]).exit_code == 0


@pytest.mark.parametrize("stdin", [None, b"x" * 1_000_000])
def test_a_command_is_signalled_from_async_python(tmp_path: Path, stdin: bytes | None) -> None:
    held: list[RunningCommand] = []

    async def run() -> None:
        async with AsyncSandboxes(tmp_path, settings=Settings(provider="off")) as boxes:
            session = await boxes.start_session()
            result = await session.exec(
                ["sh", "-c", TRAP, "sh", "USR2"],
                stdin=stdin,
                on_start=held.append,
                on_output=lambda piece: held[0].signal(signal.SIGUSR2) if piece.data == b"ready\n" else None,
            )
            assert (result.exit_code, result.stdout) == (42, "ready\ngot USR2\n")
            held[0].signal(signal.SIGUSR2)
            assert (await session.exec(["true"])).exit_code == 0

    anyio.run(run)


def test_exec_help_lists_the_signals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exec", "--help"]) == 0
    assert "passed on to the command" in " ".join(capsys.readouterr().out.split())
