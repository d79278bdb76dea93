"""`bubblewrap`: namespaces, as root and as an ordinary user, without a daemon and without an image.

The box sees an allowlisted, read-only part of the host (programs, libraries, a little of /etc), a private /tmp,
/home, /run, /proc and /dev, and the project at its own path. It never runs as host root. Started by root, everything
in it lives in a user namespace where the agent and the commands have unprivileged uids of their own, and an idmapped
mount gives them root's project; where the file system can't do that, the commands are uid 0 there, without any
capability. Started by an ordinary user, everything has that user's uid.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from proofbox.errors import ProviderUnavailable
from proofbox.sandbox import cgroups
from proofbox.sandbox.binaries import program
from proofbox.sandbox.contract import Box, BoxSpec, Enforcement, Isolation, Policy
from proofbox.sandbox.environment import BOX_HOME, boxed
from proofbox.sandbox.localbox import Plumbing, launch
from proofbox.sandbox.mounts import mount_of, mounts_below
from proofbox.sandbox.providers.covering import covers
from proofbox.sandbox.providers.hostroot import ROOT, directory, host_parts
from proofbox.sandbox.providers.own import frozen_within, hidden_within
from proofbox.sandbox.providers.userns import explain
from proofbox.sandbox.refusal import refuse_unenforceable

# Ids of no account and no container range: what the box leaves outside (nothing, by design) would stand out.
AGENT_ID = 2_000_000_061
COMMAND_ID = 2_000_000_062
INSIDE_ID = 1000

_AGENT_INSIDE = "/run/boxagent"
_NET_INSIDE = "/run/net"
_DOORS_INSIDE = "/run/doors"
# Its own, empty and gone with it. /run stays the agent's: a command has no business there.
_PRIVATE = {"/tmp": "1777", "/var/tmp": "1777", "/dev/shm": "1777", "/home": "1777", "/run": "0755"}  # noqa: S108


class Bubblewrap:
    name = "bubblewrap"
    isolation = Isolation.NAMESPACE
    systems = frozenset({"Linux"})

    def identity(self) -> str:
        parts = [f"uid {os.geteuid()}"]
        for path in (Path(_bwrap()), program("boxagent"), program("boxlaunch")):
            st = path.stat()
            parts.append(f"{path}:{st.st_ino}:{st.st_size}:{st.st_mtime_ns}")
        return " ".join(parts)

    def enforcement(self, policy: Policy | None = None) -> Enforcement:  # noqa: ARG002 (it changes nothing here)
        tree = cgroups.tree()
        limits = {name: tree.can_limit(name) for name in ("memory", "cpu", "pids")}
        gaps = {
            name: tree.reason or f"the {name} controller is not available here"
            for name, can in limits.items()
            if not can
        }
        overlay = _has_overlay()
        if not overlay:
            gaps["access overlay"] = gaps["layers"] = gaps["disk"] = "the kernel has no overlayfs"
        if not tree.can_kill:
            gaps["kill tree"] = f"{tree.reason}; a tree that can't be ended takes its box with it"
        gaps["image"] = "its root is the host's own, read-only; images are for docker"
        return Enforcement(
            network_none=True,
            network_allow=True,
            filesystem=True,
            access_ro=True,
            access_overlay=overlay,
            layers=overlay,
            disk=overlay,
            mounts=True,
            hidden=True,
            memory=limits["memory"],
            cpus=limits["cpu"],
            pids=limits["pids"],
            kill_tree="sure" if tree.can_kill else "fail-closed",
            isolation=self.isolation,
            gaps=gaps,
        )

    def start(self, spec: BoxSpec) -> Box:
        bwrap = _bwrap()
        refuse_unenforceable(self.name, spec.policy, self.enforcement())
        policy = msgspec.structs.replace(
            spec.policy, network=spec.policy.network or "none", access=spec.policy.access or "rw"
        )
        ids = _Ids.choose(spec.project)
        group = cgroups.group(spec.label, policy, owner=ids.cgroup_owner)

        def argv(with_: Plumbing) -> list[str]:
            before = [*with_.enter, *ids.launch_options(spec, policy, with_.spare_fd)]
            if policy.layers is not None:
                lower = [str(path) for path in policy.layers.lower]
                before += ["--layers", str(spec.project), str(len(lower)), *lower]
                before += [str(policy.layers.upper), str(policy.layers.work)]
            elif policy.access == "overlay":
                before += ["--overlay", str(spec.project), str((policy.disk_mb or 0) << 20)]
            if spec.home is not None and not spec.preparing:
                before += ["--overlay", str(spec.home), "0"]
            agent = [_AGENT_INSIDE, *with_.agent, *ids.agent_options(with_.spare_fd)]
            agent += [] if spec.home is not None else ["--home", BOX_HOME]
            agent += ["--seccomp", "--no-suid", *_writable(spec.project, policy)]
            agent += [w for f in spec.forwards for w in ("--forward", str(f.port), f"{_NET_INSIDE}/{f.socket}")]
            agent += [w for d in policy.doors for w in ("--forward", str(d.port), f"{_DOORS_INSIDE}/{d.port}")]
            net = ["--ro-bind", str(spec.sockets), _NET_INSIDE] if spec.sockets is not None else []
            net += directory(Path(_DOORS_INSIDE)) if policy.doors else []
            net += [w for d in policy.doors for w in ("--ro-bind", str(d.socket), f"{_DOORS_INSIDE}/{d.port}")]
            launcher = [str(program("boxlaunch")), *before, "--"] if before else []
            home = ["--bind", str(spec.home), BOX_HOME] if spec.home is not None else []
            return [*launcher, bwrap, *_box_options(spec.project, policy, ids), *home, *net, *agent]

        return launch(
            argv,
            spec=spec,
            group=group,
            isolation=self.isolation,
            policy=policy,
            project=str(spec.project),
            environment=boxed(),
            places=(
                (spec.project, str(spec.project)),
                *((mount.host, mount.guest) for mount in policy.mounts),
                *((Path("/", name), f"/{name}") for name in ROOT),
            ),
        )

    def explain(self, account: str) -> tuple[str, list[str]]:
        return explain(account)


class _Ids(msgspec.Struct, frozen=True):
    """Who is who: the host ids behind the agent's and the commands' ids, where root may choose them."""

    root: bool
    agent: int = 0
    command: tuple[int, int] = (0, 0)

    @classmethod
    def choose(cls, project: Path) -> _Ids:
        if os.geteuid() != 0:
            return cls(root=False)
        st = project.stat()
        if st.st_uid != 0:
            return cls(root=True, agent=AGENT_ID, command=(st.st_uid, st.st_gid))
        if _can_idmap(str(project)):
            return cls(root=True, agent=AGENT_ID, command=(COMMAND_ID, COMMAND_ID))
        return cls(root=True)

    @property
    def cgroup_owner(self) -> tuple[int, int] | None:
        return (self.agent, self.agent) if self.root else None

    @property
    def inside(self) -> int:
        return INSIDE_ID if self.command[0] or not self.root else 0

    def launch_options(self, spec: BoxSpec, policy: Policy, userns_fd: int) -> list[str]:
        if not self.root:
            return []
        if not self.command[0]:
            return ["--userns", str(userns_fd), "0 0 1", "0 0 1"]
        options = ["--userns", str(userns_fd), *(f"0 {self.agent} 1,{INSIDE_ID} {id} 1" for id in self.command)]
        homes = [spec.home] if spec.home is not None else []
        outside = [mount.host for mount in policy.mounts if not mount.host.is_relative_to(spec.project)]
        seen = (spec.project,) if policy.layers is None else policy.layers.lower
        mounts = [mount.host for mount in policy.mounts if mount.writable and mount.host in outside]
        for path in [*seen, *homes, *mounts]:
            st = path.stat()
            if (st.st_uid, st.st_gid) != self.command:
                options += ["--idmap", str(path), str(st.st_uid), str(st.st_gid), *map(str, self.command)]
        return options

    def agent_options(self, userns_fd: int) -> list[str]:
        if not self.root:
            return []
        return ["--userns", str(userns_fd), "--user", str(self.inside), str(self.inside)]


def command_line(project: Path, policy: Policy) -> list[str]:
    """bubblewrap as a box is started with it, without the agent and without what boxlaunch does before."""
    asked = msgspec.structs.replace(policy, network=policy.network or "none", access=policy.access or "rw")
    options = _box_options(project, asked, _Ids.choose(project))
    return [_bwrap(), *(option for option in options if option != "--as-pid-1")]


def _box_options(project: Path, policy: Policy, ids: _Ids) -> list[str]:
    options = [
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--as-pid-1",
        "--hostname",
        "box",
    ]
    options += ["--cap-drop", "ALL"]
    if policy.network != "full":
        options.append("--unshare-net")
    if not ids.root:
        options += ["--unshare-user", "--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), *_sealed_userns()]
    options += host_parts(policy.network or "none")
    options += ["--proc", "/proc", "--dev", "/dev"]
    for path, mode in _PRIVATE.items():
        options += ["--perms", mode, "--tmpfs", path]
    options += ["--ro-bind", str(program("boxagent")), _AGENT_INSIDE]
    binds = [(project, str(project), policy.access != "ro"), *((m.host, m.guest, m.writable) for m in policy.mounts)]
    for host, guest, writable in binds:
        options += directory(Path(guest).parent)
        options += ["--bind" if writable else "--ro-bind", str(host), guest]
        for covered in hidden_within(host, guest):
            options += ["--tmpfs", covered]
        for own, place in frozen_within(host, guest) if writable and policy.access != "overlay" else ():
            options += ["--ro-bind", str(own), place]
    for cover in covers(project, policy):
        options += ["--bind" if cover.writable else "--ro-bind", str(cover.source), str(cover.place)]
    return options


def _writable(project: Path, policy: Policy) -> list[str]:
    paths = [*_PRIVATE, "/dev", "/proc"]
    if policy.access != "ro":
        paths.append(str(project))
    paths += [mount.guest for mount in policy.mounts if mount.writable]
    return [word for path in paths for word in ("--rw", path)]


def _bwrap() -> str:
    found = _find_bwrap(os.environ.get("PATH"))
    if found is None or not os.access(found, os.X_OK):
        _find_bwrap.cache_clear()
        raise ProviderUnavailable(
            "bubblewrap is not installed: there is no bwrap on PATH",
            op="probe",
            fix_hints=["Debian, Ubuntu: sudo apt-get install bubblewrap", "Fedora: sudo dnf install bubblewrap"],
        )
    return found


@functools.lru_cache(maxsize=8)
def _find_bwrap(path: str | None) -> str | None:
    found = shutil.which("bwrap", path=path)
    return None if found is None else os.path.realpath(found)


@functools.cache
def _sealed_userns() -> tuple[str, ...]:
    """bubblewrap 0.8 can forbid user namespaces inside; before that they are possible, and gain nothing outside."""
    answer = subprocess.run([_bwrap(), "--help"], capture_output=True, check=False)
    return ("--disable-userns",) if b"--disable-userns" in answer.stdout + answer.stderr else ()


def _can_idmap(project: str) -> bool:
    """Whether the project takes an idmapped mount, with all that is mounted in it: by doing it, in a mount namespace of
    its own.

    Asked once a mount, since each attempt of a run has a project of its own; but what has mounts in it answers for
    itself alone.
    """
    if mounts_below(project):
        return _try_idmap(project)
    mount = mount_of(project)
    if mount not in _idmappable:
        _idmappable[mount] = _try_idmap(project)
    return _idmappable[mount]


_idmappable: dict[tuple[int, str], bool] = {}


def _try_idmap(project: str) -> bool:
    ids = ["0", "0", str(COMMAND_ID), str(COMMAND_ID)]
    command = [str(program("boxlaunch")), "--idmap", project, *ids, "--", str(program("boxlaunch")), "--version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _has_overlay() -> bool:
    listed = Path("/proc/filesystems").read_text()
    return "\toverlay\n" in listed or Path("/sys/module/overlay").exists()
