"""`bubblewrap`: namespaces, as root and as an ordinary user, without a daemon.

The box sees an allowlisted, read-only part of the host (programs, libraries, a little of /etc) or an image's files, a
private /tmp, /home, /run, /proc and /dev, and the project at its own path. It never runs as host root. If root starts
it, everything in it runs in a user namespace where the agent and the commands have separate unprivileged uids, and an
idmapped mount gives them access to root's project; a project whose file system does not support idmapped mounts is
refused. If an ordinary user starts it, everything has that user's uid.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from proofbox.core.dirs import state_dir
from proofbox.core.files.programs import find_program
from proofbox.errors import IdmapUnsupported, ProviderUnavailable
from proofbox.sandbox.contract import Box, BoxMount, CheckedSpec, Enforcement, Isolation, Policy
from proofbox.sandbox.covering import placed, refuse_missing_place
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.binaries import program, version_of
from proofbox.sandbox.host.local_box import InheritedDescriptors, LocalBox, launch
from proofbox.sandbox.host.mounts import file_systems, mount_of, mount_points_below
from proofbox.sandbox.providers.environment import BOX_HOME, BOX_PATH, boxed
from proofbox.sandbox.providers.host_root import ROOT, copied_files, directory, host_parts, image_parts, with_copies
from proofbox.sandbox.providers.userns import explain, forbidding_settings

# Outside the ids of accounts and containers: a file that the box left outside (by design, none) would be noticed.
AGENT_ID = 2_000_000_061
COMMAND_ID = 2_000_000_062
INSIDE_ID = 1000

_AGENT_INSIDE = "/run/boxagent"
NET_INSIDE = "/run/net"
DOORS_INSIDE = "/run/doors"
# Private and temporary. /run belongs to the agent: commands don't need it.
PRIVATE = {"/tmp": "1777", "/var/tmp": "1777", "/dev/shm": "1777", "/home": "1777", "/run": "0755"}  # noqa: S108
# Entries of /proc that reveal the host's kernel and users; container runtimes mask the same ones.
_MASKED_PROC = (
    *("acpi", "asound", "interrupts", "kcore", "keys", "latency_stats"),
    *("sched_debug", "scsi", "timer_list", "timer_stats"),
)


class Bubblewrap:
    name = "bubblewrap"
    isolation = Isolation.NAMESPACE
    systems = frozenset({"Linux"})

    def identity(self) -> str:
        paths = (Path(bwrap_program()), program("boxagent"), program("boxlaunch"))
        return " ".join([f"uid {os.geteuid()}", *map(version_of, paths)])

    def enforcement(self, policy: Policy | None = None) -> Enforcement:  # noqa: ARG002 (the same for every policy)
        tree = cgroups.tree()
        limits = {name: tree.can_limit(name) for name in ("memory", "cpu", "pids")}
        gaps = {
            name: tree.reason or f"the {name} controller is not available here"
            for name, can in limits.items()
            if not can
        }
        overlay = has_overlay()
        if not overlay:
            gaps["access overlay"] = gaps["layers"] = gaps["disk"] = "the kernel has no overlayfs"
        if not tree.can_kill:
            gaps["kill tree"] = f"{tree.reason}; if a process tree can't be killed, its box is"
        gaps["runtime"] = "only containers have a runtime"
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
            images=True,
            memory=limits["memory"],
            cpus=limits["cpu"],
            pids=limits["pids"],
            kill_tree="sure" if tree.can_kill else "fail-closed",
            isolation=self.isolation,
            gaps=gaps,
        )

    def start(self, spec: CheckedSpec) -> Box:
        bwrap = bwrap_program()
        policy, tree = find_root(spec)
        staged = staging(spec)
        ids = BoxIds.choose(spec.project)
        shifts = ids.shifts(spec, policy)
        group = cgroups.group(spec.label, policy, owner=ids.cgroup_owner)

        def argv(with_: InheritedDescriptors) -> list[str]:
            # An ordinary user would own the copies in the box, and could change them there.
            opened = dict(zip(copied_files(), with_.spare_fds[1:], strict=False)) if ids.root and tree is None else {}
            devices = _devices() if ids.root else None
            launcher = launcher_command(spec, policy, ids, shifts, staged, with_, opened, devices)
            agent = [_AGENT_INSIDE, *with_.agent, *ids.agent_options(with_.spare_fds[0])]
            agent += [] if spec.home is not None else ["--home", BOX_HOME]
            agent += ["--seccomp", "--no-suid", *landlock_options(spec.project, policy)]
            agent += [w for f in spec.forwards for w in ("--forward", str(f.port), f"{NET_INSIDE}/{f.socket}")]
            agent += [w for d in policy.doors for w in ("--forward", str(d.port), f"{DOORS_INSIDE}/{d.port}")]
            net = ["--ro-bind", str(spec.sockets), NET_INSIDE] if spec.sockets is not None else []
            net += directory(Path(DOORS_INSIDE)) if policy.doors else []
            net += [w for d in policy.doors for w in ("--ro-bind", str(d.socket), f"{DOORS_INSIDE}/{d.port}")]
            home = ["--bind", str(spec.home), BOX_HOME] if spec.home is not None else []
            options = _box_options(spec.placed, staged, policy, ids, tree, opened, devices)
            return [*launcher, bwrap, *options, *home, *net, *agent]

        return launch_composed(argv, spec, policy, tree, group, self.isolation)

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        return explain(stderr)


class IdShift(msgspec.Struct, frozen=True):
    """A directory that the commands' ids do not own. An idmapped mount makes it theirs in the box."""

    path: Path
    uid: int
    gid: int


class BoxIds(msgspec.Struct, frozen=True):
    """The host ids of the agent and the commands, if root can choose them. They are never 0."""

    root: bool
    agent: int = AGENT_ID
    command: tuple[int, int] = (COMMAND_ID, COMMAND_ID)

    @classmethod
    def choose(cls, project: Path) -> BoxIds:
        if os.geteuid() != 0 or not _is_host_root():
            return cls(root=False)
        st = project.stat()
        if st.st_uid == 0:
            return cls(root=True)
        return cls(root=True, command=(st.st_uid, st.st_gid or COMMAND_ID))

    @property
    def cgroup_owner(self) -> tuple[int, int] | None:
        return (self.agent, self.agent) if self.root else None

    def shifts(self, spec: CheckedSpec, policy: Policy) -> list[IdShift]:
        """Return the directories that need an idmapped mount. Raises IdmapUnsupported if one does not support it."""
        if not self.root:
            return []
        homes = [spec.home] if spec.home is not None else []
        outside = [mount.host for mount in policy.mounts if not mount.host.is_relative_to(spec.project)]
        seen = (spec.project,) if policy.layers is None else policy.layers.lower
        mounts = [mount.host for mount in policy.mounts if mount.writable and mount.host in outside]
        owners = [(path, path.stat()) for path in [*seen, *homes, *mounts]]
        shifts = [IdShift(path, st.st_uid, st.st_gid) for path, st in owners if (st.st_uid, st.st_gid) != self.command]
        for shift in shifts:
            if not _can_idmap(str(shift.path)):
                if fixes := forbidding_settings():
                    raise ProviderUnavailable("this machine forbids user namespaces", op="start", fix_hints=fixes)
                raise self._unsupported(shift)
        return shifts

    def launch_options(self, shifts: list[IdShift], userns_fd: int) -> list[str]:
        if not self.root:
            return []
        options = ["--userns", str(userns_fd), *(f"0 {self.agent} 1,{INSIDE_ID} {id} 1" for id in self.command)]
        for shift in shifts:
            options += ["--idmap", str(shift.path), str(shift.uid), str(shift.gid), *map(str, self.command)]
        return options

    def agent_options(self, userns_fd: int) -> list[str]:
        if not self.root:
            return []
        return ["--userns", str(userns_fd), "--user", str(INSIDE_ID), str(INSIDE_ID)]

    def _unsupported(self, shift: IdShift) -> IdmapUnsupported:
        from shlex import quote

        found = file_systems(str(shift.path))
        kinds = " with ".join(kind if place == "." else f"{kind} at {place}" for place, kind in found)
        owner = ":".join(str(INSIDE_ID if id == COMMAND_ID else id) for id in self.command)
        chown = f"chown -R {owner} {quote(str(shift.path))}"
        return IdmapUnsupported(
            f"{shift.path} belongs to {shift.uid}:{shift.gid}, and its file system ({kinds}) does not support idmapped"
            " mounts: a box never runs with root's ids, so its commands could not use it",
            op="start",
            fix_hints=[
                f"change its owner to an ordinary user, who then runs the commands: {chown}",
                "or move it to ext4, XFS or Btrfs, or to a tmpfs on Linux 6.3 or newer",
                "or run proofbox as an ordinary user who owns it",
            ],
            details={"path": str(shift.path), "file_systems": [kind for _, kind in found]},
        )


@functools.cache
def _is_host_root() -> bool:
    """Return whether uid 0 here is the host's. In a user namespace where it is not, /proc/sys has another owner."""
    return os.stat("/proc/sys").st_uid == 0


def command_line(project: Path, policy: Policy) -> list[str]:
    """Return the bubblewrap command that starts a box without the agent and without boxlaunch.

    If root starts it, there is no user namespace: setpriv drops root's ids, so that no command runs with them.
    """
    full = msgspec.structs.replace(policy, network=policy.network or "none", access=policy.access or "rw")
    ids = BoxIds.choose(project)
    options = [option for option in _box_options(list(placed(project, full)), {}, full, ids) if option != "--as-pid-1"]
    if not ids.root:
        return [bwrap_program(), *options]
    drop = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "setpriv", "--no-new-privs", "--inh-caps", "-all"]
    return [
        bwrap_program(),
        *options,
        *drop,
        "--clear-groups",
        "--reuid",
        str(ids.command[0]),
        "--regid",
        str(ids.command[1]),
    ]


def find_root(spec: CheckedSpec) -> tuple[Policy, Path | None]:
    """Return the policy with its image resolved, and the image's files; without an image, the root is the host's."""
    if spec.policy.image is None:
        _refuse_missing_places(spec.policy)
        return spec.policy, None
    return find_image_root(spec, spec.policy.image)


def find_image_root(spec: CheckedSpec, image: str) -> tuple[Policy, Path]:
    """Return the policy with an image resolved, and the image's files."""
    from proofbox.sandbox.images.pull import runnable_image
    from proofbox.sandbox.images.tree import unpacked

    found = runnable_image(image, spec.project)
    return msgspec.structs.replace(spec.policy, image=found.reference), unpacked(found)


def launch_composed(
    argv: Callable[[InheritedDescriptors], list[str]],
    spec: CheckedSpec,
    policy: Policy,
    tree: Path | None,
    group: cgroups.Group | None,
    isolation: Isolation,
) -> LocalBox:
    """Start a box whose root bubblewrap composes from the host's programs, or from an image's files (`tree`)."""
    return launch(
        argv,
        spec=spec,
        group=group,
        isolation=isolation,
        policy=policy,
        project=str(spec.project),
        environment=boxed() if tree is None else {**boxed(), "PATH": BOX_PATH},
        places=(
            (spec.project, str(spec.project)),
            *((mount.host, mount.guest) for mount in policy.mounts),
            *((Path("/", name), f"/{name}") for name in ROOT if tree is None),
        ),
    )


def _refuse_missing_places(policy: Policy) -> None:
    """Refuse a mount at a path of the host's root that does not exist: the root is read-only."""
    for mount in policy.mounts:
        top = Path(mount.guest).parts[1]
        if top in ROOT and not any(
            Path(mount.guest).is_relative_to(each.guest) for each in policy.mounts if each != mount
        ):
            refuse_missing_place(mount, Path(mount.guest), f"/{top}", writable=False)


def staging(spec: CheckedSpec) -> dict[str, str]:
    """Return where boxlaunch pins each source that another box could replace in the meantime."""
    return {str(each.source): f"{_stage()}/{count}" for count, each in enumerate(spec.placed) if each.loose}


def launcher_command(
    spec: CheckedSpec,
    policy: Policy,
    ids: BoxIds,
    shifts: list[IdShift],
    staged: Mapping[str, str],
    with_: InheritedDescriptors,
    opened: Mapping[str, int] = {},
    devices: str | None = None,
) -> list[str]:
    """Return the part of a command line that runs boxlaunch before bubblewrap; empty if it has nothing to prepare.

    `opened` are files that bubblewrap copies, and the descriptors that it reads them from. `devices` is the directory
    where boxlaunch makes the box's /dev.
    """
    before = [*with_.enter, *ids.launch_options(shifts, with_.spare_fds[0])]
    before += [word for path, number in opened.items() for word in ("--open", str(number), path)]
    if policy.layers is not None:
        lower = [str(path) for path in policy.layers.lower]
        before += ["--layers", str(spec.project), str(len(lower)), *lower]
        before += [str(policy.layers.upper), str(policy.layers.work)]
    elif policy.access == "overlay":
        before += ["--overlay", str(spec.project), str((policy.disk_mb or 0) << 20)]
    if spec.home is not None and not spec.preparing:
        before += ["--overlay", str(spec.home), "0"]
    before += ["--stage", _stage()] if staged else []
    before += [word for source, place in staged.items() for word in ("--pin", source, place)]
    if devices is not None:
        before += ["--devices", devices, *without_sys(spec.placed)]
    return [str(program("boxlaunch")), *before, "--"] if before else []


def without_sys(mounts: Sequence[BoxMount]) -> list[str]:
    """Return the option that shortens the mount table: a box has no /sys, where a host has many mounts."""
    sources = [each.source for each in mounts if each.source is not None]
    return [] if any(source.is_relative_to("/sys") for source in sources) else ["--without", "/sys"]


def _stage() -> str:
    """Return the empty directory over which boxlaunch mounts a staging area, in its own mount namespace."""
    return _mount_point("stage")


def _devices() -> str:
    """Return the empty directory over which boxlaunch mounts a box's /dev.

    bubblewrap makes the same with seven mounts, and reads the table of all mounts for each.
    """
    return _mount_point("dev")


def _mount_point(name: str) -> str:
    path = state_dir() / name
    path.mkdir(mode=0o700, exist_ok=True)
    return str(path)


def namespace_options(policy: Policy, ids: BoxIds) -> list[str]:
    options = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1"]
    options += ["--hostname", "box", "--cap-drop", "ALL", *([] if policy.network == "full" else ["--unshare-net"])]
    if not ids.root:
        options += ["--unshare-user", "--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), *sealed_userns()]
    return options


def _box_options(
    mounts: Sequence[BoxMount],
    staged: Mapping[str, str],
    policy: Policy,
    ids: BoxIds,
    tree: Path | None = None,
    opened: Mapping[str, int] = {},
    devices: str | None = None,
) -> list[str]:
    options = namespace_options(policy, ids)
    if tree is None:
        options += with_copies(host_parts(policy.network or "none"), opened)
    else:
        options += image_parts(tree, [Path(mount.place) for mount in mounts], policy.network or "none")
    options += [*proc_options(), *(("--dev", "/dev") if devices is None else ("--dev-bind", devices, "/dev"))]
    for path, mode in PRIVATE.items():
        options += ["--perms", mode, "--tmpfs", path]
    options += ["--ro-bind", str(program("boxagent")), _AGENT_INSIDE]
    for mount in mounts:
        if mount.source is None:
            options += ["--tmpfs", mount.place]
            continue
        options += [] if mount.cover else directory(Path(mount.place).parent)
        source = str(mount.source)
        options += ["--bind" if mount.writable else "--ro-bind", staged.get(source, source), mount.place]
    return options


@functools.cache
def proc_options() -> tuple[str, ...]:
    """Mount /proc read-only as a whole: a single writable key of /proc/sys can run a program as host root.

    bubblewrap skips its own read-only mount of /proc/sys, because access(2) reports that directory as not writable.
    Commands can't write /proc/self/oom_score_adj and similar files either; programs continue without it.
    """
    options = ["--proc", "/proc"]
    for path in (Path("/proc", name) for name in _MASKED_PROC):
        if path.is_dir():
            options += ["--perms", "0555", "--tmpfs", str(path), "--remount-ro", str(path)]
        elif path.exists():
            options += ["--ro-bind", "/dev/null", str(path)]
    return (*options, "--remount-ro", "/proc")


def landlock_options(project: Path, policy: Policy) -> list[str]:
    paths = [*PRIVATE, "/dev"]
    if policy.access != "ro":
        paths.append(str(project))
    paths += [mount.guest for mount in policy.mounts if mount.writable]
    return [word for path in paths for word in ("--rw", path)]


def bwrap_program() -> str:
    found = find_program("bwrap")
    if found is None:
        raise ProviderUnavailable(
            "bubblewrap is not installed: there is no bwrap on PATH",
            op="probe",
            fix_hints=["Debian, Ubuntu: sudo apt-get install bubblewrap", "Fedora: sudo dnf install bubblewrap"],
        )
    return os.path.realpath(found)


@functools.cache
def sealed_userns() -> tuple[str, ...]:
    """Forbid user namespaces in the box with bubblewrap 0.8 or later. Without that they gain nothing outside."""
    answer = subprocess.run([bwrap_program(), "--help"], capture_output=True, check=False)
    return ("--disable-userns",) if b"--disable-userns" in answer.stdout + answer.stderr else ()


def _can_idmap(project: str) -> bool:
    """Return whether the project supports an idmapped mount, including mounts inside it, by a trial in a separate mount
    namespace.

    The result is cached per mount, since each attempt of a run has a separate project. A project with mounts inside is
    tried every time.
    """
    if mount_points_below(project):
        return _try_idmap(project)
    mount = mount_of(project)
    if mount not in _idmappable:
        _idmappable[mount] = _try_idmap(project)
    return _idmappable[mount]


_idmappable: dict[tuple[int, str], bool] = {}


def _try_idmap(project: str) -> bool:
    ids = ["0", "0", str(COMMAND_ID), str(COMMAND_ID)]
    command = [str(program("boxlaunch")), "--idmap", project, *ids, "--", str(program("boxlaunch")), "--version"]
    quiet = subprocess.DEVNULL  # not pipes, which take longer to read than the trial takes
    return subprocess.run(command, stdout=quiet, stderr=quiet, check=False).returncode == 0


def has_overlay() -> bool:
    listed = Path("/proc/filesystems").read_text()
    return "\toverlay\n" in listed or Path("/sys/module/overlay").exists()
