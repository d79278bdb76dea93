"""Decoys: files, processes and listeners that a run creates as the targets of its probes.

Each lane has separate decoys, and each probe has separate files, so that probes do not affect each other. Their modes
allow everything: only the sandbox can keep a probe from its decoy. Other users are kept out by the directory above,
except for root, whose boxes run as another user.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from proofbox.core.files.removal import remove_tree
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.probing.leftovers import PREFIX, decoy_directory
from proofbox.sandbox.probing.listeners import Listeners
from proofbox.sandbox.probing.operations import READS, Answer, Oracle
from proofbox.sandbox.probing.plan import Probe

ENVIRONMENT_VARIABLE: Final = "PROOFBOX_PROBE_DECOY"
DRIVER: Final = ".probe/driver"
HIDDEN: Final = "hidden"
FROZEN: Final = "frozen"
"""Directories of the project that a profile's rules hide and make read-only."""
FILES: Final = ("directory", "frozen", "hidden", "inside", "mounted", "victim", "victim_link")
"""Placeholders for paths that only this probe uses: a directory in the project, a file in its frozen and in its hidden
directory, a file in the project, in the mounted directory and outside, and a link in the project to one outside."""
NEW: Final = ("new_by_link", "new_dev", "new_frozen", "new_inside", "new_mounted", "new_outside", "new_tmp")
"""Placeholders for paths that do not exist and that only this probe uses. `new_by_link` is outside, through a link in
the project; `new_dev` and `new_tmp` are in `/dev` and `/tmp`."""
LISTENERS: Final = ("tcp_port", "udp_port", "abstract", "socket")
"""Placeholders for listeners of the run."""
SHARED: Final = (
    *("project", "outside", "secret", "link", "root_link", "parent_link"),
    *("pid", "variable", "mark"),
)
PLACEHOLDERS: Final = frozenset((*FILES, *NEW, *LISTENERS, *SHARED))

_SIGNALS_THAT_KILL: Final = {str(int(number)) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)}


class Decoys:
    """The decoys of one lane. Removed with everything in them when the block ends."""

    def __init__(self, root: Path, driver: Path) -> None:
        self.root = root
        self.project, self.outside, self.mounted = root / "project", root / "outside", root / "mounted"
        self.secret = f"decoy-{secrets.token_hex(16)}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._before: dict[str, list[tuple[str, str]]] = {}
        self._marks: dict[str, str] = {}
        self._elsewhere: list[Path] = []
        root.mkdir(0o700)
        self._lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # if this process is killed, `gc` finds the directory without a lock
        try:
            self._create(root, driver)
            self.listeners = Listeners(self.outside / "socket", f"proofbox-{secrets.token_hex(8)}")
        except BaseException:
            remove_tree(root)
            os.close(self._lock)
            raise

    def _create(self, root: Path, driver: Path) -> None:
        ruled = (self.project / HIDDEN, self.project / FROZEN)
        for directory in (self.project, self.outside, self.mounted, *ruled):
            directory.mkdir()
            directory.chmod(0o777)
        root.chmod(0o711 if os.geteuid() == 0 else 0o700)
        (self.project / DRIVER).parent.mkdir()
        shutil.copyfile(driver, self.project / DRIVER)
        self.driver_sha256 = _sha256(self.project / DRIVER)
        (self.project / DRIVER).chmod(0o755)
        _write(self.outside / "secret", self.secret)
        links = {"link": self.outside / "secret", "root-link": Path("/"), "parent-link": Path("..")}
        for name, target in {**links, "outside-link": self.outside}.items():
            (self.project / name).symlink_to(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
        self.listeners.close()
        for path in self._elsewhere:
            path.unlink(missing_ok=True)
        remove_tree(self.root)
        os.close(self._lock)

    @property
    def driver(self) -> Path:
        return self.project / DRIVER

    def driver_intact(self) -> bool:
        """Return whether the driver in the project is still the one that was copied there."""
        return _sha256(self.driver) == self.driver_sha256

    def arguments(self, probe: Probe) -> list[str]:
        """Create the probe's decoys, and return its arguments with their names filled in."""
        mark = self._marks.setdefault(probe.id, f"mark-{secrets.token_hex(8)}")
        names = _Names(self, probe, mark)
        filled = [argument.format_map(names) for argument in probe.args]
        self._before[probe.id] = [(path, _state(path)) for path in names.own]
        return filled

    def remove_later(self, path: Path) -> None:
        """Remove a file when the block ends, if a probe created it on this host."""
        self._elsewhere.append(path)

    def process(self, probe_id: str) -> int:
        """Start a process for the probe to act on."""
        process = subprocess.Popen(
            ["sh", "-c", "read -r _", "proofbox-decoy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes[probe_id] = process
        return process.pid

    def knows(self, probe: Probe) -> str:
        """Return the secret that proves that the probe reached its decoy, or an empty string."""
        if probe.operation in READS and _names_secret(probe.args):
            return self.secret
        return self.secret if probe.operation == "env-read" and "{variable}" in probe.args else ""

    def seen(self, probe: Probe, answer: Answer | None) -> Oracle | None:
        """Look from outside whether the probe took effect. None if nothing outside would show it."""
        listened = any(f"{{{name}}}" in each for name in LISTENERS for each in probe.args)
        if listened and any("{mark}" in each for each in probe.args):
            arrived = self.listeners.received(self._marks[probe.id])
            return Oracle(arrived, "the listener received it" if arrived else "the listener received nothing")
        if probe.operation == "signal" and probe.id in self._processes and probe.args[1:2] != ("0",):
            if not _SIGNALS_THAT_KILL & {*probe.args[1:2]}:
                return None
            sent = answer is not None and answer.result == 0
            dead = _died(self._processes[probe.id], 5.0 if sent else 0.2)
            return Oracle(dead, "the process died" if dead else "the process is alive")
        before = self._before.get(probe.id, [])
        if not before:
            return None
        changed = [path for path, state in before if _state(path) != state]
        where = ", ".join(os.path.basename(path) for path in changed)
        return Oracle(bool(changed), f"changed on the host: {where}" if changed else "unchanged on the host")


def driver_digest() -> str:
    """Return the SHA-256 of the driver."""
    return _sha256(program("boxprobe"))


@contextlib.contextmanager
def new_decoys() -> Iterator[Decoys]:
    """Create decoys in a separate directory. Their variable is set in this process: a box must not receive it."""
    with Decoys(decoy_directory() / f"{PREFIX}{secrets.token_hex(8)}", program("boxprobe")) as decoys:
        os.environ[ENVIRONMENT_VARIABLE] = decoys.secret
        try:
            yield decoys
        finally:
            os.environ.pop(ENVIRONMENT_VARIABLE, None)


class _Names(dict[str, object]):
    """The values of the placeholders for one probe. A decoy is created when its name is first used."""

    def __init__(self, decoys: Decoys, probe: Probe, mark: str) -> None:
        super().__init__()
        self._decoys, self._probe, self._mark = decoys, probe, mark
        self.own: list[str] = []

    def __missing__(self, name: str) -> object:
        decoys, listeners = self._decoys, self._decoys.listeners
        if name in FILES or name in NEW:
            return self.setdefault(name, self._own_path(name))
        found: dict[str, object] = {
            "project": decoys.project,
            "outside": decoys.outside,
            "secret": decoys.outside / "secret",
            "link": decoys.project / "link",
            "root_link": decoys.project / "root-link",
            "parent_link": decoys.project / "parent-link",
            "tcp_port": listeners.tcp_port,
            "udp_port": listeners.udp_port,
            "abstract": listeners.abstract,
            "socket": listeners.path,
            "variable": ENVIRONMENT_VARIABLE,
            "mark": self._mark,
        }
        if name == "pid":
            return self.setdefault(name, decoys.process(self._probe.id))
        return found[name]

    def _own_path(self, name: str) -> Path:
        decoys = self._decoys
        places = {
            "directory": decoys.project,
            "frozen": decoys.project / FROZEN,
            "hidden": decoys.project / HIDDEN,
            "inside": decoys.project,
            "mounted": decoys.mounted,
            "new_by_link": decoys.project / "outside-link",
            "new_dev": Path("/dev"),
            "new_frozen": decoys.project / FROZEN,
            "new_inside": decoys.project,
            "new_mounted": decoys.mounted,
            "new_tmp": Path("/tmp"),  # noqa: S108 (the name below it is random)
            "victim_link": decoys.project,
        }
        # No id contains the separator, so no other probe has a decoy of this name.
        path = places.get(name, decoys.outside) / f"{self._probe.id}@{name}"
        if name in ("new_dev", "new_tmp"):
            path = path.with_name(f"{decoys.root.name}-{path.name}")
            decoys.remove_later(path)
        elif name == "directory":
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        elif name == "victim_link":
            target = self._own_path("victim")
            path.symlink_to(target)
        elif name in FILES:
            _write(path, self._mark)
        self.own.append(str(path))
        return path


def _write(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text)
        path.chmod(0o666)


def _state(path: str) -> str:
    """Describe a file so that every change a probe can make shows: its kind, mode, owner, links and content."""
    try:
        found = os.lstat(path)
    except OSError:
        return "absent"
    link = os.readlink(path) if os.path.islink(path) else ""
    regular = not link and os.path.isfile(path)
    content = _sha256(Path(path)) if regular else ""
    return f"{found.st_mode:o} {found.st_uid} {found.st_gid} {found.st_nlink} {link} {content}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _names_secret(args: Sequence[str]) -> bool:
    return any(each in args[0] for each in ("{secret}", "{link}", "{outside}/secret", "/outside/secret"))


def _died(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)  # a signal that was sent is delivered at once; death takes a moment
        return True
    return False
