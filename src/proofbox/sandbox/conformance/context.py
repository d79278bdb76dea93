"""The context of one check: a temporary project, boxes that use it, and functions that inspect the host.

Scripts use only plain `sh`, so that a box that has only busybox can be checked. Attacks are probes of the corpus
wherever they can name decoys (`probing.py`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, Unpack

from proofbox.config.settings import Settings, load, render
from proofbox.core.dirs import config_dir
from proofbox.core.files.removal import remove_tree
from proofbox.errors import ProofboxError
from proofbox.sandbox.conformance.check import SLOW, Failed, expect
from proofbox.sandbox.contract import Enforcement, ExecResult, Isolation, Provider
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.options import ExecOptions, PolicyOptions
from proofbox.sandbox.service import Sandboxes, Session

E = TypeVar("E", bound=ProofboxError)
COMMAND_TIMEOUT = 30.0  # long enough that a busy machine does not make a check fail
_DIRECTORIES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


class CheckContext:
    """The directories, boxes and helper processes of one check.

    Every file that the check creates is beneath `scratch`; every process that it starts has `marker` in its arguments.
    """

    def __init__(self, provider: Provider, enforcement: Enforcement) -> None:
        self.provider = provider.name
        self.isolation = enforcement.isolation
        self.enforcement = enforcement
        self.marker = f"proofbox-conformance-{secrets.token_hex(8)}"
        self.scratch = Path(tempfile.gettempdir()).resolve() / self.marker
        self.project = self.scratch / "project"
        self.outside = self.scratch / "outside"
        self._exit = contextlib.ExitStack()
        # World-readable on purpose: the box must hide `outside`, not its mode.
        for directory in (self.scratch, self.project, self.outside):
            directory.mkdir()
            directory.chmod(0o755)
        self._sessions: list[Session] = []
        self._settings = load(self.project)  # loaded now, because a check may redirect the configuration
        self.boxes = self.over(self.project)

    # Boxes

    def over(self, project: Path) -> Sandboxes:
        """Return a service for a project other than the check's own."""
        return self._exit.enter_context(Sandboxes(project, settings=self._settings))

    def session(self, boxes: Sandboxes | None = None, **policy: Unpack[PolicyOptions]) -> Session:
        session = (boxes or self.boxes).start_session(provider=self.provider, **policy)
        self._sessions.append(session)
        return session

    def sh(self, session: Session, script: str, *args: str, **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a script with the box's shell, with the marker as its $0 so that it can be found on the host."""
        options.setdefault("timeout", self.patience(COMMAND_TIMEOUT))
        return session.exec(["sh", "-c", script, self.marker, *args], **options)

    def patience(self, seconds: float) -> float:
        """Return how long to wait with this provider for what takes at most this long with the others."""
        return seconds * (SLOW if self.isolation is Isolation.VM else 1)

    def once(self, script: str, *args: str, **policy: Unpack[PolicyOptions]) -> ExecResult:
        """Run a script in a new box and stop the box."""
        session = self.session(**policy)
        try:
            return self.sh(session, script, *args)
        finally:
            session.stop()

    def alive(self, session: Session) -> None:
        result = self.sh(session, "echo alive")
        expect(result.stdout == "alive\n", f"the session answered {result.stdout!r}, exit {result.exit_code}")

    def fence(self, session: Session) -> None:
        """Fail unless the box hides the host; call this before an attack, which would otherwise hit this machine."""
        secret, text = self.secret("fence")
        with self.host_process():
            script = 'cat "$1"; for p in /proc/[0-9]*; do tr "\\0" " " < $p/cmdline; echo; done'
            seen = self.sh(session, f"({script}) 2>/dev/null", str(secret)).stdout
        if text in seen or f"{self.marker}-host" in seen:
            raise Failed("files or processes of the host are visible in the box; the attack was not attempted")

    def refused(self, kind: type[E], what: str, attempt: Callable[..., object], *args: Any, **options: Any) -> E:
        """Expect that the attempt raises this error with a message, and return the error."""
        try:
            attempt(*args, **options)
        except kind as error:
            expect(error.message, f"{what}: {error.code} has no message")
            return error
        except ProofboxError as error:
            raise Failed(f"{what}: {error.code} ({error.message}) instead of {kind.code}") from None
        raise Failed(f"{what}: not refused with {kind.code}")

    # The host

    def secret(self, name: str = "secret", mode: int = 0o644) -> tuple[Path, str]:
        """Create a file outside the project; return its path and its text, which no box may read."""
        text = f"kept-{secrets.token_hex(12)}"
        path = self.outside / name
        path.write_text(text + "\n")
        path.chmod(mode)
        return path, text

    @contextlib.contextmanager
    def host_process(self, env: dict[str, str] | None = None) -> Iterator[int]:
        """Run a process on the host that a box must not see; its arguments contain the marker followed by `-host`."""
        process = subprocess.Popen(
            ["sh", "-c", "read -r _", f"{self.marker}-host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), **(env or {})},
        )
        try:
            yield process.pid
        finally:
            process.kill()
            process.communicate()

    def close(self) -> list[str]:
        """Stop and remove everything that the check created; return what was left running or could not be removed."""
        problems: list[str] = []
        for session in self._sessions:
            with contextlib.suppress(Exception):  # a check that breaks a session has already reported it
                session.stop()
        with contextlib.suppress(Exception):
            self._exit.close()
        for pid in settled(lambda: processes_with(self.marker)):
            problems.append(f"still running: {pid} {command_line(pid)[:200]}")
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        problems += [f"left behind: {path}" for path in settled(left_groups)]
        problems += [f"cannot remove {self.scratch / left.path}: {left.reason}" for left in remove_tree(self.scratch)]
        return problems


@contextlib.contextmanager
def own_directories(settings: Settings) -> Iterator[None]:
    """Use temporary state, cache and configuration directories instead of the user's own.

    The user's images are also there. `settings` become the configuration in these directories, so that processes
    started by a check use them as well.

    This changes the environment of the whole process: nothing else in it may use proofbox in the meantime.
    """
    images = images_dir()
    with (
        tempfile.TemporaryDirectory(prefix="proofbox-conformance-state-") as directory,
        with_environment(**{name: f"{directory}/{name.split('_')[1].lower()}" for name in _DIRECTORIES}),
    ):
        (config_dir() / "config.toml").write_text(render(settings))
        if images.is_dir():
            images_dir().symlink_to(images)
        yield


@contextlib.contextmanager
def with_environment(**variables: str) -> Iterator[None]:
    """Set these variables in this process's environment, and restore it at the end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def processes_with(marker: str) -> list[int]:
    """Return the running processes of this machine whose arguments contain this text."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and marker in command_line(int(entry)):
            found.append(int(entry))
    return found


def commands_of(marker: str) -> list[int]:
    """Return the processes that have the marker as a whole argument: commands in a box, not what runs the box."""
    return [pid for pid in processes_with(marker) if marker in command_line(pid).split(" ")]


def command_line(pid: int) -> str:
    """Return the command line of a process; empty if it is a zombie or has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        # "pid (name) state ppid …", where the name may contain any character.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def left_groups() -> list[str]:
    """Return the control groups that this process created and that still exist."""
    tree, found = cgroups.tree(), []
    for home in {*tree.v1.values(), *([tree.unified] if tree.unified else [])}:
        with contextlib.suppress(OSError):
            found += [str(path) for path in home.iterdir() if path.name.endswith(f".{os.getpid()}")]
    return found


T = TypeVar("T")
SETTLE_SECONDS = 10.0
"""How long processes may take to die."""


def settled(find: Callable[[], list[T]], seconds: float | None = None) -> list[T]:
    """Call `find` until it returns nothing or the time is up; return its last result."""
    end = time.monotonic() + (SETTLE_SECONDS if seconds is None else seconds)
    while (found := find()) and time.monotonic() < end:
        time.sleep(0.02)
    return found
