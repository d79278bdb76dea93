"""The box agent without a provider: started directly, driven frame by frame, with helpers to find leftovers."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from proofbox.sandbox.client import wire
from proofbox.sandbox.client.wire import ExecFlag, Recv, Send
from proofbox.sandbox.host.binaries import program

PATIENCE = 60.0
PYTHON = (sys.executable, "-I", "-S", "-c")
ENV = {b"PATH": os.fsencode(os.environ.get("PATH", "/usr/bin:/bin"))}
_numbers = itertools.count()


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll `condition` and return its first true value, so that no test depends on the length of a pause."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.002)
    return value


# ---- processes


def state(pid: int) -> str:
    """Return the state letter from /proc/<pid>/stat; Z if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"


def resident_kb(pid: int, field: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise AssertionError(f"no {field} of {pid}")


def held(lock: Path) -> bool:
    """Return whether any process holds this lock. Children inherit a lock, however often they fork."""
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# ---- a process tree that resists killing

ESCAPEES = ("background", "setsid", "daemon", "deaf", "hopper")
_TREE = """
import fcntl, os, signal, sys, time
place, kinds, last = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
def hold(kind):
    lock = os.open(f"{place}/{kind}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with open(f"{place}/{kind}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{place}/{kind}.new", f"{place}/{kind}.ready")
def wait():
    signal.alarm(60)
    while True:
        signal.pause()
for kind in kinds:
    if os.fork():
        continue
    if kind == "setsid":
        os.setsid()
    elif kind == "daemon":
        os.setsid()
        if os.fork():
            os._exit(0)
    elif kind == "deaf":
        os.setpgid(0, 0)
        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM, signal.SIGCHLD}:
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
    hold(kind)
    if kind == "hopper":
        end = time.monotonic() + 25
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
        os._exit(0)
    wait()
while not all(os.path.exists(f"{place}/{kind}.ready") for kind in kinds):
    time.sleep(0.001)
print("ready", flush=True)
if last == "stay":
    wait()
"""


def tree(place: Path, kinds: Sequence[str] = ESCAPEES, *, stay: bool = True) -> list[str]:
    """Return a command that starts a process of each kind with a lock in `place`, prints `ready`, and stays or ends."""
    return [*PYTHON, _TREE, str(place), ",".join(kinds), "stay" if stay else "end"]


def survivors(place: Path) -> list[str]:
    return sorted(lock.stem for lock in place.glob("*.lock") if held(lock))


def assert_all_dead(place: Path, kinds: Sequence[str] = ESCAPEES) -> None:
    """Assert that all processes started, and wait until none is left."""
    assert {file.stem for file in place.glob("*.ready")} == set(kinds)
    wait_until(lambda: not survivors(place), f"the end of {survivors(place)}")


def kill_survivors(place: Path) -> None:
    """Kill processes that a test let escape on purpose, by their pids (a hopper ends by itself)."""
    for file in place.glob("*.ready"):
        if held(file.with_suffix(".lock")) and file.stem != "hopper":
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
    wait_until(lambda: not survivors(place), "the end of the survivors")


# ---- cgroups


def cgroup_mount() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        if kind == "cgroup2" and os.access(mount, os.W_OK) and os.geteuid() == 0:
            return Path(mount)
    return None


@contextlib.contextmanager
def cgroup() -> Iterator[Path]:
    mount = cgroup_mount()
    if mount is None:
        pytest.skip("needs root and a mounted cgroup v2 hierarchy")
    path = mount / f"proofbox-test.{os.getpid()}.{next(_numbers)}"
    path.mkdir()
    try:
        if not (path / "cgroup.kill").exists():
            pytest.skip("the kernel is older than 5.14: no cgroup.kill")
        yield path
    finally:
        with contextlib.suppress(OSError):
            (path / "cgroup.kill").write_text("1")

        def gone() -> bool:
            for directory in [*(child for child in path.iterdir() if child.is_dir()), path]:
                with contextlib.suppress(OSError):
                    directory.rmdir()
            return not path.exists()

        wait_until(gone, f"the removal of {path}")


# ---- the agent and its peers


@dataclass
class CommandRecord:
    """The frames that the agent sent about one command."""

    chunks: list[tuple[Recv, int, int, bytes]] = field(default_factory=list)
    acked: int = 0
    started: int | None = None
    exit: wire.Exit | None = None
    failed: tuple[int, int] | None = None

    @property
    def over(self) -> bool:
        return self.exit is not None or self.failed is not None

    @property
    def end(self) -> wire.Exit:
        assert self.exit is not None, self.failed
        return self.exit

    def stream(self, kind: Recv) -> bytes:
        return b"".join(data for of, _, _, data in self.chunks if of is kind)

    @property
    def stdout(self) -> bytes:
        return self.stream(Recv.STDOUT)

    @property
    def stderr(self) -> bytes:
        return self.stream(Recv.STDERR)


class Peer:
    """One end of a stream to the agent. It reads only while it waits, and sends credit only if `credit` is set."""

    def __init__(self, sock: socket.socket, *, greet: bool = True) -> None:
        self.sock = sock
        self.decoder = wire.FrameDecoder()
        self.commands: dict[int, CommandRecord] = {}
        self.hello: wire.Hello | None = None
        self.fatal: str | None = None
        self.pongs = 0
        self.ended = False
        self.credit = False
        if greet:
            self.send(wire.hello())
            self.until(lambda: self.hello)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_frame(self, kind: Send, id: int = 0, payload: bytes = b"") -> None:
        self.send(wire.frame(kind, id, payload))

    def start(
        self,
        argv: Sequence[str | bytes],
        id: int = 1,
        *,
        cwd: str = "/",
        env: Mapping[bytes, bytes] = ENV,
        stdin: bool = False,
        started: bool = False,
        pty: tuple[int, int] | None = None,
        timeout: float = 0,
        grace: float = 0,
        caps: tuple[int, int] = (0, 0),
        window: int = 0,
        limits: Mapping[int, int] | None = None,
    ) -> CommandRecord:
        record = self.commands[id] = CommandRecord()
        want = ExecFlag.STDIN * stdin | ExecFlag.STARTED * started | ExecFlag.PTY * (pty is not None)
        settings = wire.settings(
            cwd=os.fsencode(cwd),
            want=ExecFlag(want),
            timeout_ms=round(timeout * 1000),
            grace_ms=round(grace * 1000),
            caps=caps,
            window=window,
            size=pty or (0, 0),
            limits=limits or {},
        )
        command = wire.command(settings, [os.fsencode(word) for word in argv], wire.EncodedVariables(env))
        self.send(wire.execute(id, command))
        return record

    def run(self, argv: Sequence[str | bytes], id: int = 1, **options: Any) -> CommandRecord:
        record = self.start(argv, id, **options)
        self.until(lambda: record.over)
        return record

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Read until the condition holds; fail if the stream ends before."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            if self.ended:
                raise AssertionError(f"the stream ended first; fatal: {self.fatal}")
            if not select.select([self.sock], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"not within {seconds:g} s; received: {self.commands}"[:4000])
            self.receive()
        return value

    def until_ended(self, seconds: float = PATIENCE) -> str | None:
        """Read until the stream ends; return the text of the agent's FATAL frame, if any."""
        self.until(lambda: self.ended, seconds)
        return self.fatal

    def receive(self) -> None:
        try:
            data = self.sock.recv(256 << 10)
        except ConnectionResetError:
            data = b""
        if not data:
            self.ended = True
        for kind, id, payload in self.decoder.feed(data):
            self._handle(kind, id, payload)

    def _handle(self, kind: Recv, id: int, payload: bytes) -> None:
        if kind is Recv.HELLO:
            self.hello = wire.parse_hello(payload)
        elif kind is Recv.FATAL:
            assert self.fatal is None
            self.fatal = payload.decode()
        elif kind is Recv.PONG:
            self.pongs += 1
        else:
            record = self.commands[id]
            assert not record.over, f"a {kind.name} after the end of command {id}"
            if kind in (Recv.STDOUT, Recv.STDERR):
                chunk = wire.parse_chunk(payload)
                record.chunks.append((kind, *chunk))
                if self.credit:
                    self.send(wire.credit(id, len(chunk[2])))
            elif kind is Recv.STDIN_ACK:
                record.acked += wire.parse_count(payload)
            elif kind is Recv.STARTED:
                record.started = wire.parse_count(payload)
            elif kind is Recv.EXIT:
                record.exit = wire.parse_exit(payload)
            else:
                record.failed = wire.parse_failed(payload)

    def ping(self) -> None:
        """Make a round trip, after which the agent has processed everything sent before."""
        before = self.pongs
        self.send_frame(Send.PING)
        self.until(lambda: self.pongs > before)

    def close(self) -> None:
        self.sock.close()


def no_kill() -> None:
    """Do nothing: the `kill` callback of clients whose agent the test ends itself (test_silence.py tests real ones)."""


class Agent:
    """A box agent with one stream (`peer`) or listening (`connect` adds peers).

    The first peer of a listening agent connects and sends HELLO before the agent starts, so that no idle time passes.
    """

    def __init__(
        self,
        *,
        group: Path | None = None,
        ttl: int | None = None,
        binary: Path | None = None,
        greet: bool = True,
        env: Mapping[str, str] | None = None,
        popen: Mapping[str, Any] | None = None,
    ) -> None:
        self.group = group
        self.address: str | None = None
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with contextlib.ExitStack() as stack:
            if ttl is None:
                ours, theirs = socket.socketpair()
                stack.enter_context(theirs)
                options = ["--stream", str(theirs.fileno()), str(theirs.fileno())]
            else:
                theirs = stack.enter_context(socket.socket(socket.AF_UNIX))
                self.address = f"\0proofbox-test.{os.getpid()}.{next(_numbers)}"
                theirs.bind(self.address)
                theirs.listen(64)
                ours = socket.socket(socket.AF_UNIX)
                ours.connect(self.address)
                options = ["--listen", str(theirs.fileno()), "--ttl", str(ttl)]
            if greet:
                ours.sendall(wire.hello())
            pass_fds = [theirs.fileno()]
            if group is not None:
                directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, directory)
                pass_fds.append(directory)
                options += ["--cgroup", str(directory)]
            self.process = subprocess.Popen(
                [str(binary or program("boxagent")), *options],
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=dict(env or {}),
                cwd="/",
                start_new_session=True,
                **(popen or {}),
            )
        self.peers = [Peer(ours, greet=False)]
        if greet:
            self.peer.until(lambda: self.peer.hello)

    @property
    def peer(self) -> Peer:
        return self.peers[0]

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self, *, greet: bool = True) -> Peer:
        assert self.address is not None
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(self.address)
        except OSError:
            sock.close()
            raise
        peer = Peer(sock, greet=greet)
        self.peers.append(peer)
        return peer

    def account(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return the exit code."""
        return self.process.wait(seconds)

    def close(self) -> None:
        """End the agent in the ordinary way, and assert that it did not crash."""
        for peer in self.peers:
            peer.close()
        if self.address is not None and self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.wait()
            account = self.account()
            assert code in (0, 125), f"{code}: {account}"
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.errors.close()


@contextlib.contextmanager
def agent(mode: str = "minder", **options: Any) -> Iterator[Agent]:
    """Run an agent whose kill mechanism is `cgroup` or `minder`."""
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(cgroup()) if mode == "cgroup" else None
        running = Agent(group=group, **options)
        try:
            yield running
        finally:
            running.close()
        if group is not None and running.process.returncode == 0:
            assert not [child.name for child in group.iterdir() if child.is_dir()], "groups were left"


MODES = (pytest.param("cgroup", marks=pytest.mark.needs("root")), "minder")
