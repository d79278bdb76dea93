"""A box whose agent is a process of this machine, reached over a socket pair: what `off` and `bubblewrap` start."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from proofbox.errors import StartFailed
from proofbox.sandbox.cgroups import Group
from proofbox.sandbox.contract import BoxSpec, Isolation, Policy

ACCOUNT_LIMIT = 4096


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

    def account(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._account.seek(0)
            return self._account.read(ACCOUNT_LIMIT).decode("utf-8", "replace").strip()
        return ""

    def release(self) -> None:
        """Let it go on without us: only for a box that listens."""
        self._account.close()
        self._process.returncode = 0  # it is nobody's to wait for; init reaps it

    def destroy(self) -> None:
        if self.stream is not None:
            self.stream.close()  # the agent ends when its stream does, and everything with it
        if not _ended(self._process, patience=6.0):
            # The agent is in its launcher's process group, and as pid 1 of its namespace takes all with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
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
        return bool(select.select([pidfd], [], [], patience)[0])
    finally:
        os.close(pidfd)


def launch(
    argv: Callable[[Sequence[str], Sequence[str]], Sequence[str]],
    *,
    spec: BoxSpec,
    group: Group | None,
    isolation: Isolation,
    policy: Policy,
    project: str,
    environment: Mapping[str, str],
    places: tuple[tuple[Path, str], ...],
) -> LocalBox:
    """Start a program that ends up as the box agent.

    `argv` makes it from two lists: how boxlaunch enters the box's cgroup, and the agent's options for its stream and
    cgroup.
    """
    theirs: socket.socket | None = None
    ours: socket.socket | None = None
    pass_fds: list[int] = []
    options: list[str] = []
    with contextlib.ExitStack() as stack:
        if spec.listen is not None:
            pass_fds.append(spec.listen.fileno())
            options += ["--listen", str(spec.listen.fileno()), "--ttl", str(max(1, round(spec.ttl)))]
        else:
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            pass_fds.append(theirs.fileno())
            options += ["--stream", str(theirs.fileno()), str(theirs.fileno())]
        directory: int | None = None
        if group is not None and group.unified is not None:
            directory = os.open(group.unified, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, directory)
            pass_fds.append(directory)
            options += ["--cgroup", str(directory)]
        account: IO[bytes]
        if spec.log is not None:
            account = spec.log.open("w+b")
        elif hasattr(os, "memfd_create"):
            account = os.fdopen(os.memfd_create("proofbox-account"), "w+b", 0)
        else:
            account = tempfile.TemporaryFile()  # noqa: SIM115 (the box closes it)
        try:
            process = subprocess.Popen(
                argv(group.launch_options(directory) if group is not None else [], options),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=account,
                pass_fds=pass_fds,
                cwd="/",
                env={},
                start_new_session=True,  # a Ctrl-C is the client's to handle
            )
        except OSError as error:
            account.close()
            if ours is not None:
                ours.close()
            if group is not None:
                group.remove()
            raise StartFailed(
                f"the box did not start: {error}", op="start", details={"provider": spec.label}
            ) from error
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
