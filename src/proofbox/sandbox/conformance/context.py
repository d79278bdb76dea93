"""What a check works with: a project of its own, boxes over it that are gone afterwards, and eyes on the host.

Scripts are for a plain `sh`, so that a box with nothing but busybox can be checked. What takes system calls or
sockets is in `probing.py`, for whichever interpreter the box has.
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
from proofbox.sandbox.box_handle import ExecOptions, PolicyOptions
from proofbox.sandbox.conformance.check import Failed, expect
from proofbox.sandbox.contract import Enforcement, ExecResult, Provider
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.service import Sandboxes, Session

E = TypeVar("E", bound=ProofboxError)
PATIENCE = 30.0  # a busy machine is no finding
_DIRECTORIES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


class CheckContext:
    """One check's own world.

    Everything it makes lies beneath `scratch` and bears `marker` in its name or its arguments.
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
        # Open to everyone on purpose: what hides `outside` must be the box, not a mode.
        for directory in (self.scratch, self.project, self.outside):
            directory.mkdir()
            directory.chmod(0o755)
        self._sessions: list[Session] = []
        self._settings = load(self.project)  # now: a check may point the configuration elsewhere
        self.boxes = self.over(self.project)

    # Boxes

    def over(self, project: Path) -> Sandboxes:
        """A service over another project than the usual one."""
        return self._exit.enter_context(Sandboxes(project, settings=self._settings))

    def session(self, boxes: Sandboxes | None = None, **policy: Unpack[PolicyOptions]) -> Session:
        session = (boxes or self.boxes).start_session(provider=self.provider, **policy)
        self._sessions.append(session)
        return session

    def sh(self, session: Session, script: str, *args: str, **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a script by the box's shell, with our marker as its $0, so that it can be found on the host."""
        options.setdefault("timeout", PATIENCE)
        return session.exec(["sh", "-c", script, self.marker, *args], **options)

    def once(self, script: str, *args: str, **policy: Unpack[PolicyOptions]) -> ExecResult:
        """The same in a box of its own."""
        session = self.session(**policy)
        try:
            return self.sh(session, script, *args)
        finally:
            session.stop()

    def alive(self, session: Session) -> None:
        result = self.sh(session, "echo alive")
        expect(result.stdout == "alive\n", f"the session answered {result.stdout!r}, exit {result.exit_code}")

    def fence(self, session: Session) -> None:
        """Before an attack: that there is a box at all. Without one it would be this machine that is attacked."""
        secret, text = self.secret("fence")
        with self.host_process():
            script = 'cat "$1"; for p in /proc/[0-9]*; do tr "\\0" " " < $p/cmdline; echo; done'
            seen = self.sh(session, f"({script}) 2>/dev/null", str(secret)).stdout
        if text in seen or f"{self.marker}-host" in seen:
            raise Failed("files or processes of the host can be seen from inside: nothing was attacked")

    def refused(self, kind: type[E], what: str, attempt: Callable[..., object], *args: Any, **options: Any) -> E:
        """The attempt must raise this error, and say something in it."""
        try:
            attempt(*args, **options)
        except kind as error:
            expect(error.message, f"{what}: the {error.code} says nothing")
            return error
        except ProofboxError as error:
            raise Failed(f"{what}: {error.code} ({error.message}) instead of {kind.code}") from None
        raise Failed(f"{what}: was not refused with {kind.code}")

    # The host

    def secret(self, name: str = "secret", mode: int = 0o644) -> tuple[Path, str]:
        """A file outside the project, and the text in it that must not come out of a box."""
        text = f"kept-{secrets.token_hex(12)}"
        path = self.outside / name
        path.write_text(text + "\n")
        path.chmod(mode)
        return path, text

    @contextlib.contextmanager
    def host_process(self, env: dict[str, str] | None = None) -> Iterator[int]:
        """A process of the host that a box must not see; found by the marker and `-host` in its arguments."""
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
        """End everything the check made; what had to be ended by force, or could not be removed."""
        problems: list[str] = []
        for session in self._sessions:
            with contextlib.suppress(Exception):  # a check that breaks a session has said so itself
                session.stop()
        with contextlib.suppress(Exception):
            self._exit.close()
        for pid in settled(lambda: processes_with(self.marker)):
            problems.append(f"left running: {pid} {command_line(pid)[:200]}")
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        problems += [f"left behind: {path}" for path in settled(left_groups)]
        problems += [
            f"could not be removed: {self.scratch / left.path}: {left.reason}" for left in remove_tree(self.scratch)
        ]
        return problems


@contextlib.contextmanager
def own_directories(settings: Settings) -> Iterator[None]:
    """State, cache and configuration elsewhere, so that the user's own sessions and settings are left alone.

    The settings to check with are the configuration there: other processes that a check starts find them too.

    It changes this process's environment while it lasts: nothing else may use proofbox in it meanwhile.
    """
    with (
        tempfile.TemporaryDirectory(prefix="proofbox-conformance-state-") as directory,
        with_environment(**{name: f"{directory}/{name.split('_')[1].lower()}" for name in _DIRECTORIES}),
    ):
        (config_dir() / "config.toml").write_text(render(settings))
        yield


@contextlib.contextmanager
def with_environment(**variables: str) -> Iterator[None]:
    """This process's environment with these, for a while."""
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
    """The living processes of this machine whose arguments hold this text."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and marker in command_line(int(entry)):
            found.append(int(entry))
    return found


def commands_of(marker: str) -> list[int]:
    """Those that have it as an argument of its own: what we started in a box, and not what carries the box."""
    return [pid for pid in processes_with(marker) if marker in command_line(pid).split(" ")]


def command_line(pid: int) -> str:
    """Empty for a zombie, and for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        # "pid (name) state ppid …", where the name may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def left_groups() -> list[str]:
    """Control groups that this process made and that are still there."""
    tree, found = cgroups.tree(), []
    for home in {*tree.v1.values(), *([tree.unified] if tree.unified else [])}:
        with contextlib.suppress(OSError):
            found += [str(path) for path in home.iterdir() if path.name.endswith(f".{os.getpid()}")]
    return found


T = TypeVar("T")


def settled(look: Callable[[], list[T]], seconds: float = 10.0) -> list[T]:
    """What is still there after a while: dying takes a moment, and that is no finding."""
    end = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < end:
        time.sleep(0.02)
    return found
