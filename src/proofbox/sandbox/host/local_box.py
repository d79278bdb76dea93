"""A box whose agent is a process of this machine, reached over a socket pair: what `off` and `bubblewrap` start."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from proofbox.errors import StartFailed
from proofbox.sandbox.contract import BoxSpec, Isolation, Policy
from proofbox.sandbox.host.cgroups import Group
from proofbox.sandbox.host.processes import process_name
from proofbox.sandbox.host.readiness import readable
from proofbox.sandbox.host.released import let_go, note_ends
from proofbox.sandbox.host.unix_sockets import listen_at

ACCOUNT_LIMIT = 4096
KILL_PATIENCE = 5.0


class LocalBox:
    def __init__(
        self,
        *,
        process: subprocess.Popen[bytes],
        stream: socket.socket | None,
        group: Group | None,
        account: IO[bytes],
        isolation: Isolation,
        policy: Policy,
        project: str,
        environment: Mapping[str, str],
        places: tuple[tuple[Path, str], ...],
    ) -> None:
        self._process = process
        self._group = group
        self._account = account
        self.stream = stream
        self.isolation = isolation
        self.policy = policy
        self.project = project
        self.environment = environment
        self.places = places
        self.memory_group = group.memory if group is not None else None

    @property
    def holder(self) -> str:
        return process_name(self._process.pid)

    def account(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._account.seek(0)
            return self._account.read(ACCOUNT_LIMIT).decode("utf-8", "replace").strip()
        return ""

    def release(self) -> None:
        """Let it go on without us: only for a box that listens."""
        self._account.close()
        let_go(self._process)

    def kill(self) -> None:
        if self._group is not None:
            self._group.kill()
        if self._process.returncode is None:
            # The agent is in its launcher's process group, and as pid 1 of its namespace takes all with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            _ended(self._process, patience=KILL_PATIENCE)
        if self._group is not None:
            self._group.remove()

    def destroy(self) -> None:
        if self.stream is not None:
            self.stream.close()  # the agent ends when its stream does, and everything with it
        elif self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)  # one that listens has to be told
        if not _ended(self._process, patience=6.0):
            self.kill()
        self._process.wait()
        if self._group is not None:
            self._group.remove()
            self._group = None
        self._account.close()


def _ended(process: subprocess.Popen[bytes], patience: float) -> bool:
    """Wait for its end without the pauses that Popen.wait makes when it has a timeout."""
    if process.returncode is not None:
        return True
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return process.poll() is not None
    try:
        return readable(pidfd, patience)
    finally:
        os.close(pidfd)


class Plumbing(msgspec.Struct, frozen=True):
    """How the programs of a box are connected: options with the numbers of descriptors they inherit."""

    enter: list[str]
    """For boxlaunch: how to enter the box's control group."""
    agent: list[str]
    """For boxagent: its stream and its cgroup."""
    spare_fd: int
    """A number that no inherited descriptor has: for boxlaunch to hand something to boxagent."""


def launch(
    argv: Callable[[Plumbing], Sequence[str]],
    *,
    spec: BoxSpec,
    group: Group | None,
    isolation: Isolation,
    policy: Policy,
    project: str,
    environment: Mapping[str, str],
    places: tuple[tuple[Path, str], ...],
) -> LocalBox:
    """Start a program that ends up as the box agent. Failing, it leaves nothing behind, the control group included."""
    note_ends()
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as inherited:
        if group is not None:
            on_failure.callback(group.remove)
        ours: socket.socket | None = None
        pass_fds: list[int] = []
        options: list[str] = []
        enter: list[str] = []
        try:
            if spec.listen is not None:
                listener = listen_at(spec.listen)
                inherited.callback(listener.close)
                pass_fds.append(listener.fileno())
                options += ["--listen", str(pass_fds[0]), "--ttl", str(max(1, round(spec.ttl)))]
            else:
                ours, theirs = socket.socketpair()
                on_failure.callback(ours.close)
                inherited.callback(theirs.close)
                pass_fds.append(theirs.fileno())
                options += ["--stream", str(pass_fds[0]), str(pass_fds[0])]
            if group is not None:
                directory: int | None = None
                if group.unified is not None:
                    directory = os.open(group.unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    inherited.callback(os.close, directory)
                    pass_fds.append(directory)
                    options += ["--cgroup", str(directory)]
                enter = group.launch_options(directory)
            account = _account(spec)
            on_failure.callback(account.close)
            spare = next(number for number in itertools.count(20) if number not in pass_fds)
            process = subprocess.Popen(
                argv(Plumbing(enter, options, spare)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=account,
                pass_fds=pass_fds,
                cwd="/",
                env={},
                start_new_session=True,  # a Ctrl-C is the client's to handle
            )
        except OSError as error:
            many = error.errno in (errno.EMFILE, errno.ENFILE)
            raise StartFailed(
                f"the box did not start: {error}",
                op="start",
                fix_hints=["raise the limit of open files (ulimit -n), or hold fewer sessions"] if many else [],
            ) from error
        on_failure.pop_all()
    return LocalBox(
        process=process,
        stream=ours,
        group=group,
        account=account,
        isolation=isolation,
        policy=policy,
        project=project,
        environment=environment,
        places=places,
    )


def _account(spec: BoxSpec) -> IO[bytes]:
    if spec.log is not None:
        return spec.log.open("w+b")
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("proofbox-account"), "w+b", 0)
    return tempfile.TemporaryFile()
