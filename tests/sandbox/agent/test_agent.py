"""The box agent at the level of frames: what it does for commands, and that no process outlives it.

Tests about killing processes run with both kill mechanisms: a cgroup or a minder for each command.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from capabilities import OrdinaryUser
from hypothesis import given
from hypothesis import strategies as st
from pacing import SOON, in_time
from raw_agent import (
    ESCAPEES,
    MODES,
    PATIENCE,
    PYTHON,
    Agent,
    CommandRecord,
    Peer,
    agent,
    alive,
    assert_all_dead,
    kill_survivors,
    resident_kb,
    state,
    survivors,
    tree,
    wait_until,
)

from proofbox.sandbox.client import wire
from proofbox.sandbox.client.wire import Feature, Recv, Send, StartStage
from proofbox.sandbox.conformance.context import processes_with
from proofbox.sandbox.host.binaries import program


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def box(mode: str) -> Iterator[Agent]:
    with agent(mode) as running:
        yield running


@pytest.fixture
def peer(box: Agent) -> Peer:
    return box.peer


# ---- the handshake


@pytest.mark.parametrize(
    ("opening", "says"),
    [
        (wire.frame(Send.HELLO, 0, struct.pack("<IH", 0xDEAD, 1)), "not the box agent's protocol"),
        (wire.frame(Send.HELLO, 0, struct.pack("<IH", wire.MAGIC, 2)), "another protocol version"),
        (wire.frame(Send.HELLO, 0, struct.pack("<I", wire.MAGIC)), "not the box agent's protocol"),
        (wire.frame(Send.HELLO, 0, struct.pack("<IHB", wire.MAGIC, 1, 0)), "not the box agent's protocol"),
        (wire.frame(Send.PING), "not the box agent's protocol"),
        (wire.frame(Send.SHUTDOWN), "not the box agent's protocol"),
        (struct.pack("<IBI", 65, Send.HELLO, 0), "a frame of impossible length"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of impossible length"),
        (struct.pack("<I", 4) + b"....", "a frame of impossible length"),
    ],
)
def test_invalid_first_frame_ends_the_connection(opening: bytes, says: str) -> None:
    with agent(greet=False) as box:
        box.peer.send(opening)
        assert box.peer.until_ended() == says
        assert box.wait() == 0


def test_hello_sent_byte_by_byte_is_answered() -> None:
    with agent(greet=False) as box:
        for byte in wire.hello():
            box.peer.send(bytes([byte]))
        box.peer.until(lambda: box.peer.hello)


def test_second_hello_is_refused() -> None:
    with agent() as box:
        box.peer.send(wire.hello())
        assert box.peer.until_ended() == "unknown frame type"


def test_hello_lists_active_features(mode: str, box: Agent) -> None:
    hello = box.peer.hello
    assert hello is not None
    assert hello.version == wire.PROTOCOL
    assert hello.pid == box.pid
    assert bool(hello.features & Feature.CGROUP) == (mode == "cgroup")
    assert not hello.features & (Feature.PID1 | Feature.LISTENING | Feature.UID_SPLIT)


# ---- the environment of a command


def test_argv_cwd_and_env_arrive_unchanged(peer: Peer, tmp_path: Path) -> None:
    script = 'printf "%s|" "$0" "$@"; pwd; env'
    argv: list[str | bytes] = ["/bin/sh", "-c", script, "zero", "a b", "", b"\xff\xfe", "$HOME;`id`"]
    record = peer.run(argv, cwd=str(tmp_path), env={b"ONLY": b"\xffthis one", b"PWD": os.fsencode(tmp_path)})
    words, _, rest = record.stdout.rpartition(b"|")
    assert words.split(b"|") == [b"zero", b"a b", b"", b"\xff\xfe", b"$HOME;`id`"]
    assert set(rest.splitlines()) == {os.fsencode(tmp_path), b"ONLY=\xffthis one", b"PWD=" + os.fsencode(tmp_path)}


def test_command_is_searched_in_the_path_of_its_environment(peer: Peer, tmp_path: Path) -> None:
    tool = tmp_path / "only-here"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    (tmp_path / "second").mkdir()
    env = {b"PATH": b"/nonexistent:" + os.fsencode(tmp_path / "second") + b":" + os.fsencode(tmp_path)}
    assert peer.run(["only-here"], env=env).stdout == b"found\n"
    assert peer.run(["only-here"]).failed == (StartStage.EXEC, errno.ENOENT)
    assert peer.run(["only-here"], cwd=str(tmp_path), env={b"PATH": b""}).stdout == b"found\n"


def test_resource_limits_apply_to_the_command(peer: Peer) -> None:
    limits = {resource.RLIMIT_NOFILE: 77, resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 512 * 10}
    assert peer.run(["sh", "-c", "ulimit -n; ulimit -c; ulimit -f"], limits=limits).stdout == b"77\n0\n10\n"


def test_command_inherits_nothing_from_the_agent(peer: Peer) -> None:
    record = peer.run(["sh", "-c", "ls -l /proc/self/fd | grep -c -e '->'; readlink /proc/self/fd/0"])
    assert record.stdout.splitlines()[-1] == b"/dev/null"
    assert int(record.stdout.split()[0]) == 4, "0, 1, 2 and the directory that ls opened"
    record = peer.run(["sh", "-c", "grep -e SigBlk -e SigIgn /proc/self/status"])
    assert all(int(line.split()[1], 16) == 0 for line in record.stdout.splitlines()), record.stdout
    record = peer.run([*PYTHON, "import os; print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid())"])
    assert record.stdout == b"True True\n"


@pytest.mark.parametrize(
    ("argv", "options", "failure"),
    [
        (["/nonexistent/program"], {}, (StartStage.EXEC, errno.ENOENT)),
        ([""], {}, (StartStage.EXEC, errno.ENOENT)),
        (["/etc/passwd"], {}, (StartStage.EXEC, errno.EACCES)),
        (["/etc"], {}, (StartStage.EXEC, errno.EACCES)),
        (["/etc/passwd/x"], {}, (StartStage.EXEC, errno.ENOTDIR)),
        (["true"], {"cwd": "/nonexistent"}, (StartStage.CWD, errno.ENOENT)),
        (["true"], {"cwd": "/etc/passwd"}, (StartStage.CWD, errno.ENOTDIR)),
        (["true", "x" * 200_000], {}, (StartStage.EXEC, errno.E2BIG)),
        (["true"], {"limits": {200: 1}}, (StartStage.SETUP, errno.EINVAL)),
        (["true"], {"pty": (1, 1), "cwd": "/nonexistent"}, (StartStage.CWD, errno.ENOENT)),
    ],
)
def test_failed_start_reports_stage_and_errno(
    peer: Peer, argv: list[str], options: dict[str, Any], failure: tuple[int, int]
) -> None:
    for _ in range(3):
        assert peer.run(argv, stdin=True, **options).failed == failure
    assert peer.run(["echo", "on"]).stdout == b"on\n"


@pytest.mark.needs("root")  # other users can't inspect the agent, because it has capabilities
def test_failed_start_leaves_no_descriptor_and_no_process(box: Agent, peer: Peer) -> None:
    peer.run(["true"])
    peer.ping()
    before = len(os.listdir(f"/proc/{box.pid}/fd"))
    for id in range(50):
        peer.run(["/nonexistent/program"], id, stdin=True)
        peer.run(["/nonexistent/program"], id, pty=(1, 1))
    groups = [child for child in box.group.iterdir() if child.is_dir()] if box.group else []
    assert len(groups) < 10, "the group is reused"
    wait_until(lambda: len(os.listdir(f"/proc/{box.pid}/fd")) <= before + 3 * len(groups), "closed descriptors")
    children = Path(f"/proc/{box.pid}/task/{box.pid}/children")
    wait_until(lambda: not children.read_text(), "reaped children")


@pytest.mark.parametrize("data", [b"", b"\x01" * 40, b"\x00" * 36 + b"\x01\x00\x00\x00/" + bytes(8)])
def test_malformed_exec_ends_the_connection(data: bytes) -> None:
    with agent() as box:
        box.peer.send_frame(Send.EXEC, 1, data)
        assert box.peer.until_ended() == "malformed EXEC"


def test_nul_bytes_unknown_flags_and_trailing_bytes_are_malformed() -> None:
    def command(argv: list[bytes], want: int = 0, limits: int = 0) -> bytes:
        settings = wire.settings(
            cwd=b"/",
            want=want,
            timeout_ms=0,
            grace_ms=0,
            caps=(0, 0),
            window=0,
            size=(0, 0),
            limits=dict.fromkeys(range(limits), 1),
        )
        return wire.command(settings, argv, wire.EncodedVariables())

    commands = [
        command([b"tr\0ue"]),
        command([b"true"], want=8),
        command([b"true"], limits=17),
        command([b"true"]) + b"x",
    ]
    for malformed in commands:
        with agent() as box:
            box.peer.send(wire.execute(1, malformed))
            assert box.peer.until_ended() == "malformed EXEC"


# ---- stdin


def test_stdin_and_end_of_file_arrive(peer: Peer) -> None:
    record = peer.start(["cat"], stdin=True)
    peer.send_frame(Send.STDIN, 1, b"one ")
    peer.until(lambda: record.stdout == b"one ")
    peer.send_frame(Send.STDIN, 1, b"two")
    peer.send_frame(Send.STDIN_EOF, 1)
    peer.until(lambda: record.over)
    assert record.stdout == b"one two"
    assert record.end.code == 0
    assert record.acked == 7


def test_command_without_stdin_reads_end_of_file_immediately(peer: Peer) -> None:
    assert peer.run(["cat"]).end.code == 0


def test_more_stdin_than_the_window_is_fatal(mode: str) -> None:
    with agent(mode) as box:
        peer = box.peer
        record = peer.start(["sleep", "60"], stdin=True, started=True)
        peer.until(lambda: record.started)
        data = bytes(64 << 10)
        for _ in range(5):  # the capacity of a pipe, and the window
            peer.send_frame(Send.STDIN, 1, data)
        peer.ping()
        assert record.acked == len(data)
        peer.send_frame(Send.STDIN, 1, b"x")
        assert peer.until_ended() == "more stdin than the window allows"
        assert box.wait() == 0
        assert record.started is not None
        assert not alive(record.started)


@pytest.mark.parametrize(
    ("argv", "stdin"), [(["sleep", "60"], False), (["sh", "-c", "exec <&-; echo; sleep 60"], True)]
)
def test_unread_stdin_is_acknowledged_once_and_dropped(peer: Peer, argv: list[str], stdin: bool) -> None:
    record = peer.start(argv, stdin=stdin, started=True)
    peer.until(lambda: record.started and (record.stdout or not stdin))
    for total in range(1000, 11_000, 1000):
        peer.send_frame(Send.STDIN, 1, bytes(1000))
        peer.ping()
        assert record.acked == total
    peer.send_frame(Send.KILL, 1)
    peer.until(lambda: record.over)


@given(sizes=st.lists(st.integers(0, 70_000), max_size=12))
def test_stdin_acks_add_up_to_the_bytes_sent(sizes: list[int]) -> None:
    with agent() as box:
        peer = box.peer
        record = peer.start(["sh", "-c", "head -c 100000 >/dev/null; exec <&-; sleep 60"], stdin=True)
        sent = 0
        for size in sizes:
            sent += size
            peer.until(lambda total=sent: total - record.acked <= wire.STDIN_WINDOW)  # type: ignore[misc]
            peer.send_frame(Send.STDIN, 1, bytes(size))
            assert record.acked <= sent
        peer.until(lambda: record.acked == sent)
        peer.ping()
        assert record.acked == sent


# ---- output


def test_streams_are_separate_ordered_and_timed(peer: Peer) -> None:
    script = "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done; head -c 300000 /dev/zero; head -c 200000 /dev/zero"
    record = peer.run(["sh", "-c", script + " >&2"])
    assert record.stdout == b"o1\no2\no3\no4\no5\n" + bytes(300_000)
    assert record.stderr == b"e1\ne2\ne3\ne4\ne5\n" + bytes(200_000)
    for stream, total in ((Recv.STDOUT, record.end.stdout_bytes), (Recv.STDERR, record.end.stderr_bytes)):
        at = 0
        for _, _, offset, data in (chunk for chunk in record.chunks if chunk[0] is stream):
            assert offset == at
            at += len(data)
        assert at == total
    times = [at for _, at, _, _ in record.chunks]
    assert times == sorted(times)


def test_output_arrives_as_it_is_written(peer: Peer) -> None:
    record = peer.start(["sh", "-c", "echo first; read x; echo second >&2; read x; echo third"], stdin=True)
    peer.until(lambda: record.stdout == b"first\n")
    peer.send_frame(Send.STDIN, 1, b"\n")
    peer.until(lambda: record.stderr == b"second\n")
    assert not record.over
    peer.send_frame(Send.STDIN, 1, b"\n")
    peer.until(lambda: record.over)
    assert [at for _, at, _, _ in record.chunks] == sorted(at for _, at, _, _ in record.chunks)
    assert record.chunks[-1][1] <= record.end.wall_us + 1_000_000


_WRITER = """
import os, sys
for stream, offset, size in (map(int, word.split(",")) for word in sys.argv[1:]):
    data = b"".join(b"%07d\\n" % n for n in range(offset // 8, (offset + size) // 8 + 1))[offset % 8 :][:size]
    while data:
        data = data[os.write(stream, data) :]
"""


def numbered(size: int) -> bytes:
    return b"".join(b"%07d\n" % n for n in range(size // 8 + 1))[:size]


def kept(record: CommandRecord, stream: Recv) -> tuple[bytes, bytes, int]:
    """Return the output before the gap, the output after it, and the offset of the latter."""
    head, tail, at = b"", b"", 0
    for _, _, offset, data in (chunk for chunk in record.chunks if chunk[0] is stream):
        if not tail and offset == len(head):
            head += data
            continue
        if not tail:
            at = offset
        assert offset == at + len(tail)
        tail += data
    return head, tail, at


caps = st.one_of(st.sampled_from([0, 1, 2, 3, 64, 65_536, 131_072]), st.integers(0, 200_000))
writes = st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 90_000)), max_size=8)


@given(caps=st.tuples(caps, caps), writes=writes)
def test_caps_keep_exactly_the_head_and_the_tail(caps: tuple[int, int], writes: list[tuple[int, int]]) -> None:
    sizes = {1: 0, 2: 0}
    words = []
    for stream, size in writes:
        words.append(f"{stream},{sizes[stream]},{size}")
        sizes[stream] += size
    with agent() as box:
        record = box.peer.run([*PYTHON, _WRITER, *words], caps=caps)
    assert record.end.code == 0, record.stderr
    assert (record.end.stdout_bytes, record.end.stderr_bytes) == (sizes[1], sizes[2])
    for kind, cap, size in ((Recv.STDOUT, caps[0], sizes[1]), (Recv.STDERR, caps[1], sizes[2])):
        true = numbered(size)
        head, tail, at = kept(record, kind)
        if cap == 0 or size <= cap:
            assert head == true
            assert tail == b""
        else:
            assert head == true[: cap - cap // 2]
            assert tail == true[size - cap // 2 :] if cap > 1 else tail == b""
            assert not tail or at == size - len(tail)


def test_output_cap_bounds_agent_memory(box: Agent, peer: Peer) -> None:
    record = peer.run(["sh", "-c", "head -c 200000000 /dev/zero"], caps=(1 << 20, 1 << 20))
    assert record.end.stdout_bytes == 200_000_000
    assert len(record.stdout) == 1 << 20
    assert resident_kb(box.pid, "VmHWM") < 20_000


# ---- credit


def test_command_without_credit_waits_while_others_continue(box: Agent, peer: Peer) -> None:
    window = 100_000
    record = peer.start(["yes"], 1, window=window, started=True)
    peer.until(lambda: len(record.stdout) >= window)
    assert record.started is not None
    pid = record.started
    before = resident_kb(box.pid)
    for id in range(2, 12):
        assert len(peer.run(["head", "-c", "3000000", "/dev/zero"], id).stdout) == 3_000_000
    wait_until(lambda: state(pid) == "S", "the command to block on its reader")
    assert len(record.stdout) == window, "exactly the window"
    assert resident_kb(box.pid) < before + 8_000
    peer.send(wire.credit(1, 5000))
    peer.until(lambda: len(record.stdout) >= window + 5000)
    peer.ping()
    assert len(record.stdout) == window + 5000
    peer.send_frame(Send.KILL, 1)
    peer.until(lambda: record.over)
    assert record.end.killed, "the end of the command needs no credit"


def test_window_with_credit_delivers_all_output(peer: Peer) -> None:
    peer.credit = True
    record = peer.run([*PYTHON, _WRITER, "1,0,3000000"], window=4096)
    assert record.stdout == numbered(3_000_000)


def test_peer_that_does_not_read_uses_no_agent_memory(box: Agent, peer: Peer) -> None:
    record = peer.start(["yes"], started=True)
    peer.until(lambda: record.started)
    assert record.started
    pid = record.started
    # Stop reading: the socket fills, then the agent's buffer, then the pipe.
    wait_until(lambda: state(pid) == "S" and resident_kb(box.pid) > 0, "the command to block on its reader")
    assert resident_kb(box.pid, "VmHWM") < 20_000
    peer.send_frame(Send.KILL, 1)
    peer.until(lambda: record.over)
    assert record.stdout == b"y\n" * (len(record.stdout) // 2)


# ---- the end of a command


def test_exit_code_signal_and_usage(peer: Peer) -> None:
    assert peer.run(["sh", "-c", "exit 42"]).end.code == 42
    record = peer.run(["sh", "-c", "kill -SEGV $$"])
    assert (record.end.code, record.end.signal) == (-1, signal.SIGSEGV)
    end = record.end
    assert (end.timed_out, end.killed, end.survivors, end.pipes_held) == (False, False, False, False)
    busy = "import time; x = bytearray(60_000_000)\nwhile time.process_time() < 0.1: pass"
    usage = peer.run([*PYTHON, busy]).end
    assert usage.user_us + usage.sys_us > 90_000
    assert usage.wall_us > 90_000
    assert 60_000 < usage.max_rss_kb < 200_000
    assert peer.run(["true"]).end.max_rss_kb < 20_000, "each command's own"


def test_timeout_kills_the_command(peer: Peer) -> None:
    record = peer.run(["sleep", "60"], timeout=0.05)
    assert record.end.timed_out
    assert record.end.signal == signal.SIGKILL
    assert 50_000 <= record.end.wall_us < SOON * 1e6


def test_grace_period_lets_the_command_clean_up(peer: Peer) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo on; while :; do sleep 0.01; done"
    record = in_time(
        lambda limit: peer.run(["sh", "-c", script], timeout=limit, grace=PATIENCE),
        lambda record: b"on" in record.stdout,
    )
    assert record.end.timed_out
    assert (record.end.code, record.end.signal) == (3, 0)
    assert record.stdout == b"on\nbye\n"


def test_command_that_ignores_the_grace_period_is_killed(peer: Peer) -> None:
    script = "trap '' TERM; echo on; while :; do sleep 0.01; done"
    record = in_time(
        lambda limit: peer.run(["sh", "-c", script], timeout=limit, grace=0.2), lambda record: record.stdout == b"on\n"
    )
    assert record.end.timed_out
    assert record.end.signal == signal.SIGKILL
    assert record.end.wall_us >= 900_000


def test_shortest_timeout_still_sends_sigterm(peer: Peer) -> None:
    for _ in range(10):
        record = peer.run(["sleep", "60"], timeout=0.001, grace=PATIENCE)
        assert record.end.timed_out
        assert record.end.signal == signal.SIGTERM
        assert record.end.wall_us < SOON * 1e6


def test_command_that_obeys_sigterm_leaves_no_children(peer: Peer, tmp_path: Path) -> None:
    record = timed_out(peer, tmp_path, ("setsid", "daemon", "deaf"), grace=PATIENCE)
    assert record.end.timed_out
    assert record.end.signal == signal.SIGTERM
    assert not survivors(tmp_path), "the command is reported only when its process tree is dead"
    assert_all_dead(tmp_path, ("setsid", "daemon", "deaf"))


def test_command_that_ends_in_time_is_not_timed_out(peer: Peer) -> None:
    assert not peer.run(["true"], timeout=30, grace=30).end.timed_out


def test_signal_right_after_start_reaches_the_command(peer: Peer) -> None:
    for _ in range(10):
        record = peer.start(["sleep", "60"])
        peer.send_frame(Send.SIGNAL, 1, bytes([signal.SIGUSR1]))
        peer.until(lambda record=record: record.over)  # type: ignore[misc]
        assert record.end.signal == signal.SIGUSR1
        assert not record.end.killed


def test_signal_goes_to_the_process_group(peer: Peer) -> None:
    script = "import os, signal\nos.fork()\nsignal.signal(signal.SIGINT, lambda *_: os._exit(os.write(1, b'down\\n')))"
    record = peer.start([*PYTHON, script + "\nos.write(1, b'up\\n')\nwhile True: signal.pause()"])
    peer.until(lambda: record.stdout == b"up\nup\n")
    peer.send_frame(Send.SIGNAL, 1, bytes([signal.SIGINT]))
    peer.until(lambda: record.over)
    assert record.end.code == 5
    assert record.stdout.startswith(b"up\nup\ndown\n")


def test_invalid_signals_are_ignored(peer: Peer) -> None:
    record = peer.start(["sleep", "60"])
    for payload in (b"", b"\x00", b"\xff", bytes([65])):
        peer.send_frame(Send.SIGNAL, 1, payload)
    peer.ping()
    assert not record.over
    peer.send_frame(Send.KILL, 1)
    peer.until(lambda: record.over)
    assert record.end.killed
    assert record.end.signal == signal.SIGKILL


def test_frames_for_an_ended_command_are_ignored(peer: Peer) -> None:
    peer.run(["true"], 5)
    for kind, payload in ((Send.STDIN, b"x"), (Send.STDIN_EOF, b""), (Send.SIGNAL, b"\x09"), (Send.KILL, b"")):
        peer.send_frame(kind, 5, payload)
    peer.send(wire.resize(5, 1, 1) + wire.credit(5, 1))
    peer.ping()


def test_unknown_frame_types_end_the_connection() -> None:
    for kind in (0, 11, 65, 255):
        with agent() as box:
            box.peer.send(struct.pack("<IBI", 5, kind, 0))
            assert box.peer.until_ended() == "unknown frame type"


# ---- many commands


def test_two_hundred_concurrent_commands(box: Agent, peer: Peer) -> None:
    script = "echo {0}; read x; echo $x >&2; exit $(({0} % 100))"
    record = {id: peer.start(["sh", "-c", script.format(id)], id, stdin=True) for id in range(200)}
    peer.until(lambda: all(one.stdout for one in record.values()))
    assert not any(one.over for one in record.values()), "all run concurrently"
    for id in reversed(record):
        peer.send_frame(Send.STDIN, id, b"for %d\n" % id)
    peer.until(lambda: all(one.over for one in record.values()))
    for id, one in record.items():
        assert (one.stdout, one.stderr, one.end.code) == (b"%d\n" % id, b"for %d\n" % id, id % 100)
    assert resident_kb(box.pid, "VmHWM") < 30_000


def test_id_can_be_reused_after_its_command_ends(peer: Peer) -> None:
    for round in range(20):
        assert peer.run(["sh", "-c", f"echo {round}"], 7).stdout == b"%d\n" % round


def test_id_of_a_running_command_is_refused(mode: str) -> None:
    with agent(mode) as box:
        peer = box.peer
        record = peer.start(["sleep", "60"], 7, started=True)
        peer.until(lambda: record.started)
        peer.start(["true"], 7)
        assert peer.until_ended() == "malformed EXEC"
        assert record.started is not None
        box.wait()
        assert not alive(record.started)


# ---- processes left by a command


def test_background_process_with_the_pipes_does_not_delay_the_result(peer: Peer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    stray = f"read x < {tmp_path}/go; for i in $(seq 2000); do echo 0123456789012345678901234567890123456789; done"
    record = peer.run(["sh", "-c", f"({stray}; echo $$ > {tmp_path}/lived; exec sleep 60) & echo main; exit 4"])
    assert record.end.code == 4
    assert record.stdout == b"main\n"
    assert record.end.pipes_held
    assert not record.end.survivors
    (tmp_path / "go").write_text("\n")
    wait_until((tmp_path / "lived").exists, "the background process to write more than its pipe holds, without SIGPIPE")
    assert peer.run(["echo", "on"]).stdout == b"on\n"


def test_background_processes_survive_the_kill_of_another_command(peer: Peer, tmp_path: Path) -> None:
    peer.run(tree(tmp_path, ("background", "daemon"), stay=False))
    record = peer.start(["sleep", "60"], 2)
    peer.send_frame(Send.KILL, 2)
    peer.until(lambda: record.over)
    assert survivors(tmp_path) == ["background", "daemon"]


# ---- killing process trees


def killable(mode: str) -> tuple[str, ...]:
    """Return the kinds that this mode surely kills; a hopper forks faster than /proc can be read and needs a cgroup."""
    return ESCAPEES if mode == "cgroup" else tuple(kind for kind in ESCAPEES if kind != "hopper")


def timed_out(peer: Peer, place: Path, kinds: tuple[str, ...], grace: float = 0) -> CommandRecord:
    """Run a process tree that is complete when its timeout expires."""

    def run(limit: float) -> CommandRecord:
        for file in place.iterdir():
            file.unlink()
        return peer.run(tree(place, kinds), timeout=limit, grace=grace)

    return in_time(run, lambda record: record.stdout == b"ready\n")


def test_kill_kills_the_process_tree(mode: str, peer: Peer, tmp_path: Path) -> None:
    record = peer.start(tree(tmp_path, killable(mode)))
    peer.until(lambda: record.stdout == b"ready\n")
    assert survivors(tmp_path) == sorted(killable(mode))
    peer.send_frame(Send.KILL, 1)
    peer.until(lambda: record.over)
    assert not survivors(tmp_path), "the command is reported only when its process tree is dead"
    assert record.end.killed
    assert not record.end.survivors
    assert not record.end.pipes_held
    assert_all_dead(tmp_path, killable(mode))


def test_timeout_kills_the_process_tree(mode: str, peer: Peer, tmp_path: Path) -> None:
    record = timed_out(peer, tmp_path, killable(mode))
    assert record.end.timed_out
    assert not survivors(tmp_path)
    assert_all_dead(tmp_path, killable(mode))


def test_fork_hopper_without_a_cgroup_is_killed_or_reported(tmp_path: Path) -> None:
    with agent("minder") as box:
        record = box.peer.start(tree(tmp_path, ("hopper",)))
        box.peer.until(lambda: record.stdout == b"ready\n")
        box.peer.send_frame(Send.KILL, 1)
        box.peer.until(lambda: record.over)
        if not record.end.survivors:
            assert not survivors(tmp_path)
    kill_survivors(tmp_path)


@pytest.mark.parametrize("stay", [True, False])
def test_end_of_stream_kills_all_processes(mode: str, tmp_path: Path, stay: bool) -> None:
    with agent(mode) as box:
        record = box.peer.start(tree(tmp_path, killable(mode), stay=stay))
        box.peer.until(lambda: record.stdout == b"ready\n" and (stay or record.over))
        assert survivors(tmp_path) == sorted(killable(mode))
        box.peer.close()
        assert box.wait() == 0
        assert not survivors(tmp_path), "the agent exits last"
    assert_all_dead(tmp_path, killable(mode))


@pytest.mark.parametrize("how", ["shutdown", "SIGTERM", "SIGINT", "garbage"])
def test_ending_the_agent_kills_all_processes(mode: str, tmp_path: Path, how: str) -> None:
    with agent(mode) as box:
        record = box.peer.start(tree(tmp_path, killable(mode)))
        box.peer.until(lambda: record.stdout == b"ready\n")
        if how == "shutdown":
            box.peer.send_frame(Send.SHUTDOWN)
        elif how == "garbage":
            box.peer.send(b"\xff" * 100)
        else:
            box.process.send_signal(signal.Signals[how])
        box.peer.until_ended()
        assert box.wait() == 0
        assert not survivors(tmp_path)
    assert_all_dead(tmp_path, killable(mode))


def test_killing_the_agent_kills_minded_commands(tmp_path: Path) -> None:
    box = Agent()
    try:
        record = box.peer.start(tree(tmp_path, killable("minder")))
        box.peer.until(lambda: record.stdout == b"ready\n")
        box.process.kill()
        box.process.wait()
        assert_all_dead(tmp_path, killable("minder"))
    finally:
        box.peer.close()
        box.errors.close()
        kill_survivors(tmp_path)


@pytest.mark.needs("strace")
def test_killing_the_agent_kills_a_starting_command(tmp_path: Path) -> None:
    """The command runs, but its minder, slowed down by strace, has not yet reported that to the agent."""
    slow = tmp_path / "slow"
    inject = "-f -o /dev/null -e trace=write -e inject=write:delay_enter=1000000"
    slow.write_text(f'#!/bin/sh\nexec strace {inject} {program("boxagent")} "$@"\n')
    slow.chmod(0o755)
    mark = f"6543.{os.getpid()}"
    box = Agent(binary=slow, env={"PATH": os.environ["PATH"]})
    try:
        assert box.peer.hello is not None
        box.peer.start(["sleep", mark])
        [command] = wait_until(lambda: processes_with(f"sleep {mark} "), "the command")
        os.kill(box.peer.hello.pid, signal.SIGKILL)
        wait_until(lambda: not alive(command), "the command's end")
    finally:
        for pid in processes_with(f"sleep {mark} "):
            os.kill(pid, signal.SIGKILL)
        box.peer.close()
        box.process.wait(PATIENCE)
        box.errors.close()


def test_killing_a_minder_ends_the_agent(tmp_path: Path) -> None:
    """Processes can no longer be attributed to commands: the agent fails closed and ends other commands as well."""
    with agent("minder") as box:
        other = tmp_path / "other"
        other.mkdir()
        record = box.peer.start(tree(other, ("setsid",)), 1)
        box.peer.until(lambda: record.stdout == b"ready\n")
        script = tree(tmp_path, ("background",))
        script[4] = script[4].replace('print("ready"', 'os.kill(os.getppid(), 9); print("ready"')
        box.peer.start(script, 2)
        box.peer.until_ended()
        assert box.wait() == 125
        assert "minder was killed" in box.account()
        assert_all_dead(other, ("setsid",))
    with_main = [int(file.read_text()) for file in tmp_path.glob("background.ready")]
    assert with_main
    # Outside a pid namespace, the command that killed its minder survives: it leads its child's process group.
    for pid in with_main:
        if alive(pid):
            os.killpg(os.getpgid(pid), signal.SIGKILL)
    kill_survivors(tmp_path)


@pytest.mark.needs("root")
def test_cgroup_slots_are_reused_except_after_a_kill(tmp_path: Path) -> None:
    with agent("cgroup") as box:
        assert box.group is not None
        for _ in range(5):
            box.peer.run(["true"])
        groups = sorted(child.name for child in box.group.iterdir() if child.is_dir())
        assert groups == ["c0"]
        record = box.peer.start(["sleep", "60"])
        box.peer.send_frame(Send.KILL, 1)
        box.peer.until(lambda: record.over)
        assert box.peer.run(["echo", "on"]).stdout == b"on\n"
        spent = box.group / "c0"
        wait_until(lambda: not spent.exists(), "the removal of the spent group")


@pytest.mark.needs("root")
def test_removal_of_idle_cgroups_by_others_is_tolerated(tmp_path: Path) -> None:
    """A client that sweeps up after dead sessions may mistake an empty group for a stale one."""
    with agent("cgroup") as box:
        assert box.group is not None
        box.peer.run(tree(tmp_path, ("setsid", "daemon"), stay=False))
        box.peer.run(["true"])
        (box.group / "c1").rmdir()
        assert box.peer.run(["echo", "on"]).stdout == b"on\n"
        began = time.monotonic()
        box.peer.close()
        assert box.wait() == 0, box.account()
        assert time.monotonic() - began < SOON
        assert not survivors(tmp_path)


def test_tags_require_a_pid_namespace() -> None:
    """The agent kills processes without a tag; outside a pid namespace, that would be the whole machine."""
    words = [str(program("boxagent")), "--tag", "--user", "12345", "12345", "--stream", "0", "1"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 125
    assert "pid namespace" in done.stderr


# ---- terminals


def test_terminal_size_can_change(peer: Peer) -> None:
    record = peer.start(["sh", "-c", "stty -echo; stty size; tty; read x; stty size"], pty=(31, 97))
    peer.until(lambda: b"/dev/pts/" in record.stdout and record.stdout.endswith(b"\n"))
    assert record.stdout.startswith(b"31 97\r\n")
    peer.send(wire.resize(1, 50, 200))
    peer.send_frame(Send.STDIN, 1, b"\n")
    peer.until(lambda: record.over)
    assert record.stdout.endswith(b"50 200\r\n")
    assert record.end.code == 0
    assert not record.end.pipes_held


def test_resize_sends_sigwinch(peer: Peer) -> None:
    script = """
import os, signal
def resized(*_):
    os.write(1, b"%d %d\\n" % os.get_terminal_size())
    os._exit(0)
signal.signal(signal.SIGWINCH, resized)
os.write(1, b"up\\n")
while True:
    signal.pause()
"""
    record = peer.start([*PYTHON, script], pty=(10, 10))
    peer.until(lambda: b"up" in record.stdout)
    peer.send(wire.resize(1, 12, 34))
    peer.until(lambda: record.over)
    assert record.stdout == b"up\r\n34 12\r\n"


def test_control_c_interrupts_the_foreground_process(peer: Peer) -> None:
    record = peer.start(["sh", "-c", "echo up; exec sleep 60"], pty=(24, 80))
    peer.until(lambda: b"up" in record.stdout)
    peer.send_frame(Send.STDIN, 1, b"\x03")
    peer.until(lambda: record.over)
    assert record.end.signal == signal.SIGINT


def test_terminal_command_sees_end_of_input(peer: Peer) -> None:
    record = peer.start(["sh", "-c", "stty -echo; echo up; cat; echo end"], pty=(24, 80))
    peer.until(lambda: b"up" in record.stdout)
    peer.send_frame(Send.STDIN, 1, b"a line\n")
    peer.send_frame(Send.STDIN_EOF, 1)
    peer.until(lambda: record.over)
    assert record.stdout == b"up\r\na line\r\nend\r\n"
    assert record.end.code == 0


def test_terminal_command_is_killed_with_its_process_tree(mode: str, peer: Peer, tmp_path: Path) -> None:
    record = peer.start(tree(tmp_path, killable(mode)), pty=(24, 80))
    peer.until(lambda: record.stdout == b"ready\r\n")
    peer.send_frame(Send.KILL, 1)
    peer.until(lambda: record.over)
    assert_all_dead(tmp_path, killable(mode))


# ---- listening


def test_listening_agent_serves_peers_separately(mode: str) -> None:
    with agent(mode, ttl=600) as box:
        peers = [box.connect() for _ in range(10)]
        scripts = [f"echo {number}; read x; exit {number}" for number in range(10)]
        record = [peer.start(["sh", "-c", script], stdin=True) for peer, script in zip(peers, scripts, strict=True)]
        for number, (peer, one) in enumerate(zip(peers, record, strict=True)):
            peer.until(lambda one=one: one.stdout)  # type: ignore[misc]
            peer.send_frame(Send.STDIN_EOF, 1)
            peer.until(lambda one=one: one.over)  # type: ignore[misc]
            assert one.stdout == b"%d\n" % number
            assert one.end.code == number
            assert peer.hello is not None
            assert peer.hello.features & Feature.LISTENING


def test_disconnecting_peer_ends_only_its_own_commands(mode: str, tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    with agent(mode, ttl=600) as box:
        stays, goes = box.connect(), box.connect()
        record = stays.start(tree(mine, ("setsid",)))
        stays.until(lambda: record.stdout)
        one = goes.start(tree(theirs, killable(mode)), 1)
        goes.until(lambda: one.stdout)
        two = goes.start(["yes"], 2)  # with output in transit
        goes.until(lambda: two.stdout)
        goes.close()
        assert_all_dead(theirs, killable(mode))
        assert survivors(mine) == ["setsid"]
        assert stays.run(["echo", "on"], 2).stdout == b"on\n"
        assert not record.over


def test_malformed_frames_of_one_peer_do_not_affect_others(mode: str) -> None:
    with agent(mode, ttl=600) as box:
        good, bad, silent = box.connect(), box.connect(greet=False), box.connect(greet=False)
        record = good.start(["sh", "-c", "echo up; read x; echo down"], stdin=True)
        good.until(lambda: record.stdout)
        bad.send(b"\x00" * 64)
        assert bad.until_ended() == "a frame of impossible length"
        good.send_frame(Send.STDIN_EOF, 1)
        good.until(lambda: record.over)
        assert record.stdout == b"up\ndown\n"
        silent.close()
        good.ping()


def test_background_processes_survive_a_clean_disconnect(mode: str, tmp_path: Path) -> None:
    with agent(mode, ttl=600) as box:
        first = box.connect()
        first.run(tree(tmp_path, ("background", "daemon"), stay=False))
        first.close()
        assert box.connect().run(["echo", "on"]).stdout == b"on\n"
        assert survivors(tmp_path) == ["background", "daemon"]
        box.connect().send_frame(Send.SHUTDOWN)
        assert box.wait() == 0
        assert not survivors(tmp_path)


def test_idle_agent_exits_after_its_ttl(mode: str, tmp_path: Path) -> None:
    with agent(mode, ttl=1) as box:
        peer = box.peer
        peer.run(tree(tmp_path, ("daemon",), stay=False))
        record = peer.start(["sleep", "1.2"])
        peer.until(lambda: record.over)
        peer.ping()  # in use for longer than the TTL
        left = time.monotonic()
        peer.close()
        assert box.wait() == 0
        assert time.monotonic() - left > 0.9
        assert not survivors(tmp_path), "a background process does not keep a session alive and ends with it"


def test_ttl_starts_with_the_first_peer(mode: str) -> None:
    """On a busy machine, the client that started the agent may take longer than the TTL to connect."""
    with agent(mode, ttl=1, greet=False) as box:
        with pytest.raises(subprocess.TimeoutExpired):
            box.wait(1.5)
        box.peer.send(wire.hello())
        assert box.peer.run(["echo", "on"]).stdout == b"on\n"
        box.peer.close()
        assert box.wait() == 0


def test_silent_connections_do_not_extend_the_ttl(mode: str) -> None:
    """A connection that only tests whether the agent runs, as `session list` does, must not keep it alive."""
    with agent(mode, ttl=1) as box:
        box.peer.close()

        def refused() -> bool:
            try:
                box.connect(greet=False).close()
            except OSError:
                return True
            return False

        wait_until(refused, "the end of the agent despite connections")
        assert box.wait() == 0


# ---- inspection by commands


@pytest.mark.needs("root", "unprivileged-user")
def test_commands_of_the_same_user_cannot_inspect_the_agent(ordinary_user: OrdinaryUser) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103
        binary = Path(directory) / "boxagent"
        shutil.copy(program("boxagent"), binary)
        binary.chmod(0o755)
        inspect_agent(binary, ordinary_user)


def inspect_agent(binary: Path, ordinary_user: OrdinaryUser) -> None:
    identity = {"user": 65534, "group": 65534, "extra_groups": []}
    with agent("minder", binary=binary, env={"SECRET": "s3cret"}, popen=identity) as box:
        peer, pid = box.peer, box.pid
        assert peer.run(["id", "-u"]).stdout == b"65534\n"
        for name in ("environ", "mem", "maps", "fd", "cwd", "root"):
            place = f"/proc/{pid}/{name}"
            record = peer.run(["sh", "-c", f"ls {place}/ || cat {place} || readlink {place}"])
            assert record.stdout == b"", name
            assert record.end.code != 0, name
        attach = f"import ctypes; print(ctypes.CDLL(None).ptrace(16, {pid}, 0, 0))"
        assert peer.run([ordinary_user.python, "-I", "-S", "-c", attach]).stdout == b"-1\n"
        minder = int(peer.run(["sh", "-c", "echo $PPID"]).stdout)
        assert minder != pid
        assert peer.run(["sh", "-c", "cat /proc/$PPID/environ"]).end.code != 0


def test_version_and_invalid_arguments(tmp_path: Path) -> None:
    def answer(*words: str) -> tuple[int, str]:
        done = subprocess.run([str(program("boxagent")), *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert answer("--version") == (0, f"boxagent {wire.PROTOCOL}\n")
    for text in ("", "--nonsense", "--stream x y", "--stream 3", "--listen 99", "--stream 90 91"):
        words = text.split()
        code, output = answer(*words)
        assert code == 125, words
        assert output.startswith("boxagent: ")
