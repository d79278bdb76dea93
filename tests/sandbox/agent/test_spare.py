"""The spare: a child that the box agent forks ahead of the next command (`agent/boxagent/spare.c`)."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_agent import PYTHON, Agent, agent, alive, state, wait_until

from proofbox import Sandboxes
from proofbox.sandbox.client.wire import Recv, Send, StartStage

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def box() -> Iterator[Agent]:
    with agent("cgroup") as running:
        yield running


def processes(box: Agent) -> list[int]:
    """Return the processes in the groups of commands, where the spare waits as well."""
    assert box.group is not None
    return [int(pid) for file in box.group.glob("c[0-9]*/cgroup.procs") for pid in file.read_text().split()]


def spare(box: Agent) -> int:
    """Make the agent fork a spare: it does so after the second command."""
    for _ in range(2):
        assert box.peer.run(["true"]).end.code == 0
    [pid] = wait_until(lambda: processes(box), "the spare")
    wait_until(lambda: state(pid) == "S", "the spare waits")
    return int(pid)


def own_pid(box: Agent) -> int:
    return int(box.peer.run(["sh", "-c", "echo $$"]).stdout)


def group_mode(box: Agent) -> int:
    assert box.group is not None
    [group] = box.group.glob("c[0-9]*")
    return stat.S_IMODE(group.stat().st_mode)


def test_spare_becomes_the_next_command(box: Agent) -> None:
    pid = spare(box)
    assert group_mode(box) == 0o700
    record = box.peer.start([*PYTHON, "import os; print(os.getpid(), flush=True); input()"], stdin=True)
    box.peer.until(lambda: record.stdout)
    assert int(record.stdout) == pid
    assert group_mode(box) == 0o755
    box.peer.send_frame(Send.STDIN_EOF, 1)
    box.peer.until(lambda: record.over)


def test_single_command_makes_no_spare(box: Agent) -> None:
    box.peer.run(["true"])
    box.peer.ping()
    assert processes(box) == []


def test_unused_spare_ends(box: Agent) -> None:
    pid = spare(box)
    wait_until(lambda: not alive(pid), "the end of an idle spare")
    wait_until(lambda: group_mode(box) == 0o755, "the agent has noticed it")
    assert box.peer.run(["echo", "on"]).stdout == b"on\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
@pytest.mark.parametrize("at_once", [True, False])
def test_killed_or_stopped_spare_fails_no_command(box: Agent, number: signal.Signals, at_once: bool) -> None:
    for _ in range(20):
        pid = spare(box)
        os.kill(pid, number)
        if not at_once:
            wait_until(lambda: not alive(pid), "its end")  # noqa: B023 - called at once
        assert own_pid(box) != pid
        assert box.peer.commands[1].end.code == 0


def test_spare_stopped_and_killed_before_it_reads_is_replaced(box: Agent) -> None:
    """The request is already in its socket: a frozen group makes sure that the spare does not read it."""
    pid = spare(box)
    assert box.group is not None
    [group] = box.group.glob("c[0-9]*")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        (group / "cgroup.freeze").write_text("1")
        wait_until(lambda: "frozen 1" in (group / "cgroup.events").read_text(), "the frozen group")
        record = box.peer.start(["sh", "-c", "echo $$; cat"], stdin=True)
        box.peer.send_frame(Send.STDIN, 1, b"input")
        box.peer.send_frame(Send.STDIN_EOF, 1)
        box.peer.ping()
        os.kill(pid, number)
        (group / "cgroup.freeze").write_text("0")
        box.peer.until(lambda: record.over)  # noqa: B023 - called at once
        own, _, rest = record.stdout.partition(b"\n")
        assert (int(own) != pid, rest, record.end.code) == (True, b"input", 0)
        pid = spare(box)


def test_killed_command_is_not_restarted_from_a_spare(box: Agent) -> None:
    spare(box)
    assert box.group is not None
    [group] = box.group.glob("c[0-9]*")
    (group / "cgroup.freeze").write_text("1")
    wait_until(lambda: "frozen 1" in (group / "cgroup.events").read_text(), "the frozen group")
    record = box.peer.start(["sleep", "60"])
    box.peer.send_frame(Send.KILL, 1)
    box.peer.until(lambda: record.over)
    assert (record.end.killed, record.end.signal, record.end.pipes_held) == (True, signal.SIGKILL, False)
    assert box.peer.run(["echo", "on"]).stdout == b"on\n"


def test_no_spare_exists_while_a_process_of_a_command_runs(box: Agent) -> None:
    spare(box)
    record = box.peer.start(["sleep", "60"], 7, started=True)
    box.peer.until(lambda: record.started)
    for _ in range(3):
        box.peer.run(["true"])
        box.peer.ping()
        assert processes(box) == [record.started]
    script = "import os; print(os.fork() or os.setsid() or os.close(1) or os.close(2) or __import__('time').sleep(60))"
    left = int(box.peer.run([*PYTHON, script]).stdout)
    box.peer.send_frame(Send.KILL, 7)
    box.peer.until(lambda: record.over)
    for _ in range(3):
        box.peer.run(["true"])
        box.peer.ping()
        assert processes(box) == [left]
    os.kill(left, signal.SIGKILL)
    [pid] = wait_until(lambda: [pid for pid in processes(box) if pid != left], "a spare after the last process ended")
    assert own_pid(box) == pid


def readable_memory(pid: int) -> bytes:
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, flags, *rest = line.split()
            start, end = (int(part, 16) for part in addresses.split("-"))
            if "r" in flags and not rest[-1].startswith(("[vvar", "[vsyscall")):
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"".join(found)


def test_spare_has_no_data_of_earlier_commands(box: Agent) -> None:
    secret = os.urandom(12).hex().encode()

    def of(kind: str) -> bytes:
        return kind.encode() + b"=" + secret

    def run(command: list[str | bytes], size: int) -> None:
        env = {b"PATH": b"/usr/bin:/bin", b"SECRET": of("env") * size}
        record = box.peer.start(command, env=env, stdin=True, caps=(4000, 4000))
        box.peer.send_frame(Send.STDIN, 1, of("stdin") * 200)
        box.peer.send_frame(Send.STDIN_EOF, 1)
        box.peer.until(lambda: record.over)
        assert record.end.stdout_bytes > 4000

    script = 'cat; i=0; while [ $i -lt 300 ]; do echo "output=$1"; i=$((i+1)); done'
    for size in (1, 1000, 1):  # the second does not fit into a spare's buffer, and grows the agent's
        run(["sh", "-c", script, "sh", secret, of("argv") * size], size)
    box.peer.run(["/missing/" + of("path").decode()], cwd="/")
    [pid] = wait_until(lambda: processes(box), "the spare")
    wait_until(lambda: state(pid) == "S", "the spare waits")
    memory = readable_memory(pid)
    assert b"not the box agent's protocol" in memory  # a string of the program: the memory was read
    kinds = {memory[max(0, match.start() - 8) : match.start()] for match in re.finditer(re.escape(secret), memory)}
    assert not kinds, f"the spare's memory contains {kinds}"


def test_spare_has_no_descriptors_of_the_agent(box: Agent) -> None:
    pid = spare(box)
    open_files = {int(fd.name): os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    kinds = {number: name.partition(":")[0] for number, name in open_files.items()}
    assert [kinds.pop(number) for number in range(3)] == ["/dev/null", "pipe", "pipe"]
    # Beside its standard streams: the socket for its request, and the pipe for the report of its start.
    assert sorted(kinds.values()) == ["pipe", "socket"]


def test_agent_closes_what_it_no_longer_needs_soon_after_a_command(box: Agent) -> None:
    for _ in range(20):
        assert not box.peer.run(["true"]).end.pipes_held
    files = Path(f"/proc/{box.process.pid}/fd")
    # The ends of the spare's two outputs, and of the pipe for the report of its start.
    wait_until(lambda: sum(os.readlink(fd).startswith("pipe:") for fd in files.iterdir()) == 3, "closed pipes")
    assert state(*processes(box)) == "S"


def test_spare_ends_with_a_killed_agent() -> None:
    with agent("cgroup") as box:
        pid = spare(box)
        box.process.kill()
        wait_until(lambda: not alive(pid), "the end of the spare")
        box.process.wait()
        box.process.returncode = 0  # for the assertion that an agent did not crash
        for group in (box.group or Path()).glob("c[0-9]*"):
            wait_until(lambda: "populated 0" in (group / "cgroup.events").read_text(), "an empty group")  # noqa: B023
            group.rmdir()


def test_spare_does_what_a_forked_child_does(box: Agent, tmp_path: Path) -> None:
    """Every kind of request, first to a forked child and then to a spare."""
    script = 'echo "$PWD $1 $SOME"; echo e >&2; ulimit -n; tty; cd /proc/$$/fd; echo *; cut -d " " -f 5,6 ../stat'
    script += " | { read -r group session; [ $group = $session ] && [ $group = $$ ] && echo leader; }; cat; exit 3"
    outcomes = []
    for forked in (True, False):
        if not forked:
            spare(box)
        record = box.peer.start(
            ["sh", "-c", script, "sh", "word"],
            cwd=str(tmp_path),
            env={b"PATH": b"/usr/bin:/bin", b"SOME": b"value"},
            limits={7: 64},
            stdin=True,
            started=True,
        )
        box.peer.send_frame(Send.STDIN, 1, b"input")
        box.peer.send_frame(Send.STDIN_EOF, 1)
        box.peer.until(lambda: record.over)  # noqa: B023 - called at once
        assert record.started
        outcomes.append((record.stdout, record.stderr, record.end.code))
    assert outcomes[0] == outcomes[1]
    assert b"leader\ninput" in outcomes[0][0]

    spare(box)
    terminal = box.peer.run(["sh", "-c", "tty; stty size; exit 4"], pty=(7, 9))
    assert (b"/dev/pts/" in terminal.stdout, b"7 9" in terminal.stdout, terminal.end.code) == (True, True, 4)
    spare(box)
    assert box.peer.run(["cat"]).stdout == b""
    spare(box)
    large = b"x" * 100_000
    assert box.peer.run(["sh", "-c", 'printf %s "$1" | wc -c', "sh", large]).stdout.split() == [b"100000"]
    spare(box)
    assert box.peer.run(["/missing"]).failed == (StartStage.EXEC, 2)
    spare(box)
    assert box.peer.run(["true"], cwd="/missing").failed == (StartStage.CWD, 2)
    spare(box)
    assert box.peer.run(["sh", "-c", "kill -9 $$"]).end.signal == signal.SIGKILL
    spare(box)
    assert box.peer.run(["sleep", "60"], timeout=0.1).end.timed_out
    assert not [kind for kind, *_ in box.peer.commands[1].chunks if kind is Recv.STDERR]


@pytest.mark.parametrize("provider", ["off", pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap"))])
def test_waiting_child_is_not_a_running_command(provider: str, tmp_path: Path) -> None:
    with Sandboxes(tmp_path) as boxes, boxes.start_session(provider=provider) as session:
        for _ in range(5):
            session.exec(["true"])
            assert session.commands_alive() == 0
        session.exec(["sh", "-c", "sleep 60 >/dev/null 2>&1 &"])
        for _ in range(3):
            session.exec(["true"])
            assert session.commands_alive() == 1


def test_agent_recovers_after_it_had_no_free_descriptors(box: Agent) -> None:
    spare(box)
    resource.prlimit(box.process.pid, resource.RLIMIT_NOFILE, (100, 100))
    for _ in range(3):
        records = [box.peer.start(["sleep", "0.3"], number) for number in range(2, 62)]
        for record in records:
            box.peer.until(lambda: record.over)  # noqa: B023 - called at once
        assert any(record.failed for record in records), "the agent ran out of descriptors"
    assert box.peer.run(["echo", "on"]).stdout == b"on\n"
