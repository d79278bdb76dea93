"""Control groups: limits for a whole box, and a kill that no process in it can escape.

Both hierarchies are supported, also together: on a hybrid machine memory, pids and CPU are on v1 while the unified tree
only has `cgroup.kill`. A controller that is missing or not writable is a gap with a reason; a limit that
needs it is refused.

Groups are below `proofbox/` and are named `<label>.<pid of the creator>`. An empty group whose creator is dead is a
leftover, and is removed when the next group is created.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proofbox.errors import PolicyRefused, StartFailed
from proofbox.sandbox.contract import Policy

CPU_PERIOD_US = 100_000
_CONTROLLERS = ("memory", "cpu", "pids")
_FIX = "run as root, or in a session with delegated controllers: systemd-run --user --scope -p Delegate=yes -- COMMAND"


def cpu_quota(cpus: float) -> int:
    """Return the microseconds of CPU time in each period. The kernel refuses less than 1000."""
    return max(1000, round(cpus * CPU_PERIOD_US))


class CgroupTree(msgspec.Struct, frozen=True):
    """Where groups can be created: a directory per v1 controller, one in the unified hierarchy, or the reason."""

    v1: dict[str, Path]
    unified: Path | None
    unified_controllers: frozenset[str]
    reason: str = ""

    def can_limit(self, controller: str) -> bool:
        return controller in self.v1 or controller in self.unified_controllers

    @property
    def can_kill(self) -> bool:
        return self.unified is not None


class Group:
    """The groups of one box: created, joined by its launcher, and removed after its end."""

    def __init__(self, tree: CgroupTree, label: str, policy: Policy, owner: tuple[int, int] | None) -> None:
        self._tree = tree
        self._name = f"{label}.{os.getpid()}"
        self._made: dict[Path, None] = {}
        self.unified: Path | None = None
        self.memory: Path | None = None
        try:
            if tree.unified is not None:
                self.unified = self._make(tree.unified)
                if owner is not None:  # the box agent creates a child group per command
                    os.chown(self.unified, *owner)
                    os.chown(self.unified / "cgroup.procs", *owner)
            self._limit(policy)
        except OSError as error:
            self.remove()
            raise StartFailed(
                f"the box's control group could not be set up: {error}", op="start", fix_hints=[_FIX]
            ) from error

    def launch_options(self, unified_fd: int | None) -> list[str]:
        """Return boxlaunch's options to enter this group: started in the unified one, moved into those of v1."""
        options = [] if unified_fd is None else ["--cgroup", str(unified_fd)]
        for directory in self._made:
            if directory != self.unified:
                options += ["--join", str(directory / "cgroup.procs")]
        return options

    def kill(self) -> None:
        if self.unified is not None:
            with contextlib.suppress(OSError):
                (self.unified / "cgroup.kill").write_text("1")

    def remove(self, timeout: float = 5.0) -> None:
        """Kill the remaining processes, if any, and remove the directories.

        A killed process takes a moment to leave its group: wait for that, but not for long.
        """
        deadline = time.monotonic() + timeout
        for directory in list(self._made):
            if not _remove(directory):
                self.kill()
                while not _remove(directory) and time.monotonic() < deadline:
                    time.sleep(0.0002)
            self._made.pop(directory, None)

    def _make(self, parent: Path) -> Path:
        directory = parent / self._name
        _make_in_home(directory)
        self._made[directory] = None
        if parent == self._tree.unified and self._tree.unified_controllers:
            _enable(parent.parent, parent)  # it may have been recreated in the meantime
        return directory

    def _limit(self, policy: Policy) -> None:
        if policy.memory_mb is not None:
            limit = policy.memory_mb << 20
            self.memory = self._controlled("memory")
            if "memory" in self._tree.v1:
                _write(self.memory / "memory.limit_in_bytes", limit)
                with contextlib.suppress(OSError):  # missing if swap is not accounted
                    _write(self.memory / "memory.memsw.limit_in_bytes", limit)
            else:
                _write(self.memory / "memory.max", limit)
                with contextlib.suppress(OSError):
                    _write(self.memory / "memory.swap.max", 0)
        if policy.cpus is not None:
            directory, quota = self._controlled("cpu"), cpu_quota(policy.cpus)
            if "cpu" in self._tree.v1:
                _write(directory / "cpu.cfs_period_us", CPU_PERIOD_US)
                _write(directory / "cpu.cfs_quota_us", quota)
            else:
                _write(directory / "cpu.max", f"{quota} {CPU_PERIOD_US}")
        if policy.pids is not None:
            _write(self._controlled("pids") / "pids.max", policy.pids)

    def _controlled(self, controller: str) -> Path:
        parent = self._tree.v1.get(controller)
        if parent is None:
            if self.unified is None:  # not reached: `enforcement` reports this gap first
                raise PolicyRefused(f"no control group for {controller}", op="start", fix_hints=[_FIX])
            return self.unified
        return self._make(parent)


@functools.cache
def tree() -> CgroupTree:
    """Find where this process can create groups."""
    v1: dict[str, Path] = {}
    unified: Path | None = None
    controllers: frozenset[str] = frozenset()
    reason = "no control groups are mounted"
    for kind, mount, options in _cgroup_mounts():
        if not os.access(mount, os.W_OK):
            here = _delegated(mount) if kind == "cgroup2" else None
            if here is None:
                reason = f"{mount} is not writable for uid {os.geteuid()}, and no part of it is delegated"
                continue
            mount = here
        if kind == "cgroup":
            for controller in _CONTROLLERS:
                if controller in options:
                    with contextlib.suppress(OSError):
                        v1[controller] = _home(mount)
        else:
            with contextlib.suppress(OSError), _pinned_home(mount) as unified:
                controllers = _enable(mount, unified)
                if not (unified / "cgroup.kill").exists():
                    unified, reason = None, "the kernel is older than 5.14: no cgroup.kill"
    found = CgroupTree(v1, unified, controllers - set(v1), reason)
    sweep(found)
    atexit.register(_leave, found)
    return found


def _leave(found: CgroupTree) -> None:
    """Remove the common directory. The kernel refuses as long as it contains a group."""
    for home in {*found.v1.values(), *([found.unified] if found.unified else [])}:
        with contextlib.suppress(OSError):
            home.rmdir()


def sweep(found: CgroupTree, label: str | None = None) -> None:
    """Remove the empty groups of dead creators, or those of one box that has ended, with its remaining processes."""
    # The unified group first: its kill also empties the others.
    for home in dict.fromkeys([*([found.unified] if found.unified else []), *found.v1.values()]):
        with contextlib.suppress(OSError):
            for directory in home.iterdir():
                name, _, maker = directory.name.rpartition(".")
                if label is not None:  # looks at no other group: there may be many
                    if name == label:
                        _end(directory)
                elif maker.isdigit() and not Path("/proc", maker).exists() and not _populated(directory):
                    _remove(directory)


def _populated(directory: Path) -> bool:
    """Return whether a box is alive in this group. Its agent reuses idle child groups."""
    try:
        return "populated 1" in (directory / "cgroup.events").read_text()
    except OSError:
        return False  # v1 has no such file, and no child groups


def _end(directory: Path, timeout: float = 2.0) -> None:
    """Kill the commands of an agent that was killed itself: without a pid namespace they would keep running."""
    deadline = time.monotonic() + timeout
    with contextlib.suppress(OSError):
        while not _remove(directory) and time.monotonic() < deadline:
            if (directory / "cgroup.kill").exists():  # not in v1, whose groups are empty by now
                (directory / "cgroup.kill").write_text("1")
            time.sleep(0.001)


def oom_kills(memory: Path | None) -> int:
    """Count the processes that were killed at this group's memory limit."""
    if memory is not None:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (memory / name).read_text().splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
    return 0


def _cgroup_mounts() -> list[tuple[str, Path, list[str]]]:
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, kind, options, *_ = line.split(" ")
            if kind in ("cgroup", "cgroup2"):
                found.append((kind, Path(mount), options.split(",")))
    return found


def _delegated(mount: Path) -> Path | None:
    """Return our own group if it is delegated to us (as in a systemd user session with Delegate=yes)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                here = mount / line[4:]
                # Processes can only be moved within the delegated part, so its top must be writable as well.
                if os.access(here, os.W_OK) and os.access(here / "cgroup.procs", os.W_OK):
                    return here
    return None


def _home(mount: Path) -> Path:
    home = mount / "proofbox"
    home.mkdir(exist_ok=True)
    return home


def _make_in_home(directory: Path) -> None:
    """Create a group. Another process may remove the common directory at any moment before."""
    for _ in range(1000):
        with contextlib.suppress(FileNotFoundError):
            return directory.mkdir()
        _home(directory.parent.parent)
    raise StartFailed(f"{directory.parent} was removed repeatedly by other processes", op="start")


@contextlib.contextmanager
def _pinned_home(mount: Path) -> Iterator[Path]:
    """Hold the common directory with a group in it, so that no other process removes it in the meantime."""
    pin = mount / "proofbox" / f"pin-{os.urandom(4).hex()}.{os.getpid()}"
    _make_in_home(pin)
    try:
        yield pin.parent
    finally:
        pin.rmdir()


def _enable(mount: Path, home: Path) -> frozenset[str]:
    """Enable the controllers for our groups; the kernel refuses if a group in between has processes."""
    enabled = []
    for controller in _CONTROLLERS:
        with contextlib.suppress(OSError):
            if controller in (mount / "cgroup.controllers").read_text().split():
                (mount / "cgroup.subtree_control").write_text(f"+{controller}")
                (home / "cgroup.subtree_control").write_text(f"+{controller}")
                enabled.append(controller)
    return frozenset(enabled)


def _remove(directory: Path) -> bool:
    """Remove a group; return False if a process is still in it or below it."""
    try:
        for name in os.listdir(directory):
            if name[0] == "c" and name[1:].isdigit():  # made by the box agent, one per command
                os.rmdir(directory / name)
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: Path, value: object) -> None:
    path.write_text(str(value))


def group_of(home: Path | None, label: str) -> Path | None:
    """Return a box's group in a common directory, even if another process created it; None if it does not exist."""
    names: list[str] = []
    if home is not None:
        with contextlib.suppress(OSError):
            names = os.listdir(home)
    return next((Path(f"{home}/{name}") for name in names if name.startswith(f"{label}.")), None)


def group(label: str, policy: Policy, owner: tuple[int, int] | None) -> Group | None:
    """Create the group of one box; None if there is nothing to limit and no `cgroup.kill`."""
    here = tree()
    if here.unified is None and policy.memory_mb is None and policy.cpus is None and policy.pids is None:
        return None
    return Group(here, label, policy, owner)
