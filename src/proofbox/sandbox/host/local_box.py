"""A box whose agent is a process on this machine, reached over a socket pair: used by `off` and `bubblewrap`."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from proofbox.errors import StartFailed
from proofbox.sandbox.contract import BoxSpec, Isolation, Policy
from proofbox.sandbox.host.cgroups import Group
from proofbox.sandbox.host.processes import process_name
from proofbox.sandbox.host.readiness import readable
from proofbox.sandbox.host.reaping import reap_later, reap_released
from proofbox.sandbox.host.unix_sockets import listen_at

STDERR_LIMIT = 4096
KILL_TIMEOUT = 5.0
SPARE_FDS = 40
"""More than a box needs, even if the descriptors that it inherits have some of these numbers."""


class LocalBox:
    def __init__(
        self,
        *,
        process: subprocess.Popen[bytes],
        stream: socket.socket | None,
        group: Group | None,
        stderr: IO[bytes],
        isolation: Isolation,
        policy: Policy,
        project: str,
        environment: Mapping[str, str],
        places: tuple[tuple[Path, str], ...],
    ) -> None:
        self._process = process
        self._group = group
        self._stderr = stderr
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

    def stderr(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._stderr.seek(0)
            return self._stderr.read(STDERR_LIMIT).decode("utf-8", "replace").strip()
        return ""

    def release(self) -> None:
        """Leave the box running when this process ends: only for a box that listens."""
        self._stderr.close()
        reap_later(self._process)

    def kill(self) -> None:
        if self._group is not None:
            self._group.kill()
        if self._process.returncode is None:
            # The agent is in its launcher's process group, and its pid namespace ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            _ended(self._process, timeout=KILL_TIMEOUT)
        if self._group is not None:
            self._group.remove()

    def destroy(self) -> None:
        if self.stream is not None:
            self.stream.close()  # the agent ends with its stream, and everything in the box with it
        elif self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)  # a listening agent does not end with a stream
        if not _ended(self._process, timeout=6.0):
            self.kill()
        self._process.wait()
        if self._group is not None:
            self._group.remove()
            self._group = None
        self._stderr.close()


def _ended(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait for the end of the process; Popen.wait with a timeout would poll with pauses."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "pidfd_open"):  # not on Linux
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        return process.returncode is not None
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return process.poll() is not None
    try:
        return readable(pidfd, timeout)
    finally:
        os.close(pidfd)


class InheritedDescriptors(msgspec.Struct, frozen=True):
    """How the programs of a box are connected: options with the numbers of inherited descriptors."""

    enter: list[str]
    """For boxlaunch: options to enter the box's control group."""
    agent: list[str]
    """For boxagent: options for its stream and its control group."""
    spare_fds: list[int]
    """Free descriptor numbers, for boxlaunch to pass descriptors: the first to boxagent, the others to bubblewrap."""


def launch(
    argv: Callable[[InheritedDescriptors], Sequence[str]],
    *,
    spec: BoxSpec,
    group: Group | None,
    isolation: Isolation,
    policy: Policy,
    project: str,
    environment: Mapping[str, str],
    places: tuple[tuple[Path, str], ...],
) -> LocalBox:
    """Start a program that becomes the box agent. On failure, leave nothing behind, and remove the control group."""
    reap_released()
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
            stderr = _stderr_file(spec)
            on_failure.callback(stderr.close)
            spare = [number for number in range(20, 20 + SPARE_FDS) if number not in pass_fds]
            process = subprocess.Popen(
                argv(InheritedDescriptors(enter, options, spare)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=pass_fds,
                cwd="/",
                env={},
                start_new_session=True,  # the client handles Ctrl-C
            )
        except OSError as error:
            many = error.errno in (errno.EMFILE, errno.ENFILE)
            raise StartFailed(
                f"the box did not start: {error}",
                op="start",
                fix_hints=["raise the limit of open files (ulimit -n), or keep fewer sessions open"] if many else [],
            ) from error
        on_failure.pop_all()
    return LocalBox(
        process=process,
        stream=ours,
        group=group,
        stderr=stderr,
        isolation=isolation,
        policy=policy,
        project=project,
        environment=environment,
        places=places,
    )


def _stderr_file(spec: BoxSpec) -> IO[bytes]:
    if spec.log is not None:
        return spec.log.open("w+b")
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("proofbox-stderr"), "w+b", 0)
    from tempfile import TemporaryFile

    return TemporaryFile()
