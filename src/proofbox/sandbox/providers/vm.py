"""`vm`: a virtual machine with its own kernel, in QEMU, with KVM where that works and emulated where it does not.

The machine's root is composed as the root of a `bubblewrap` box, by bubblewrap, in two directories that virtiofsd
shares with the guest: the host's programs or an image, which the guest may cache, and the project and other mounts with
the requested access. In the guest, init (`boxvm`) builds the root from them and starts the box agent. Its stream, the
ports of an allowlist and doors are channels of one console port; there is no network device unless the policy asks for
the host's network.

QEMU and virtiofsd run in that bubblewrap sandbox, without capabilities over the host, as separate users if root starts
them: a guest that takes over QEMU is in a `bubblewrap` box with the same files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from proofbox.sandbox.contract import Box, BoxMount, CheckedSpec, Enforcement, Isolation, Policy
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.binaries import program, version_of
from proofbox.sandbox.host.local_box import InheritedDescriptors
from proofbox.sandbox.machines.acceleration import find_acceleration
from proofbox.sandbox.machines.initramfs import make_initramfs
from proofbox.sandbox.machines.kernel import find_kernel
from proofbox.sandbox.machines.late_devices import attach_commands, clone_command
from proofbox.sandbox.machines.qemu import (
    FILES,
    SYSTEM,
    find_qemu,
    find_virtiofsd,
    machine_size,
    qemu_command,
    virtiofsd_command,
)
from proofbox.sandbox.machines.template import MEMORY, STATE, find_template
from proofbox.sandbox.providers.bubblewrap import (
    AGENT_ID,
    INSIDE_ID,
    NET_INSIDE,
    PRIVATE,
    BoxIds,
    bwrap_program,
    find_root,
    has_overlay,
    landlock_options,
    launch_composed,
    launcher_command,
    namespace_options,
    proc_options,
    staging,
)
from proofbox.sandbox.providers.environment import BOX_HOME
from proofbox.sandbox.providers.host_root import directory, host_parts, image_parts
from proofbox.sandbox.providers.userns import explain

_BOXVM, _KERNEL, _INITRAMFS = "/run/boxvm", "/run/kernel", "/run/initramfs"
_MEMORY, _STATE = "/run/memory", "/run/state"
_TARGETS = "/run/targets"
_GUEST_FD, _GUEST_GROUP_FD = "20", "21"
# What virtiofsd needs over the files of the ids that are mapped for it.
_SHARING = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETGID",
    "SETUID",
    "MKNOD",
    "SETFCAP",
    "SYS_CHROOT",
    "SETPCAP",
)
# How many words follow each of bubblewrap's options that compose a root; the last is a place, except for --perms.
_WORDS = {"--symlink": 2, "--ro-bind": 2, "--bind": 2, "--dir": 1, "--tmpfs": 1, "--remount-ro": 1}


class Vm:
    name = "vm"
    isolation = Isolation.VM
    systems = frozenset({"Linux"})

    def identity(self) -> str:
        paths = [
            Path(bwrap_program()),
            Path(find_qemu()),
            Path(find_virtiofsd()),
            program("boxvm"),
            program("boxagent"),
        ]
        parts = [f"uid {os.geteuid()}", find_kernel().name]
        return " ".join([*parts, *map(version_of, paths)])

    def enforcement(self, policy: Policy | None = None) -> Enforcement:  # noqa: ARG002 (the same for every policy)
        overlay = has_overlay()
        gaps = {"runtime": "only containers have a runtime"}
        if not overlay:
            gaps |= dict.fromkeys(("access overlay", "layers", "disk"), "the kernel has no overlayfs")
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
            memory=True,
            cpus=True,
            pids=True,
            kill_tree="sure",
            isolation=self.isolation,
            gaps=gaps,
        )

    def start(self, spec: CheckedSpec) -> Box:
        policy, tree = find_root(spec)
        kernel = find_kernel()
        initramfs = make_initramfs(kernel)
        acceleration = find_acceleration(kernel / "vmlinux", initramfs)
        size = machine_size(policy.memory_mb, policy.cpus)
        template = find_template(kernel, acceleration, *size) if spec.template else None
        staged = staging(spec)
        ids = BoxIds.choose(spec.project)
        shifts = ids.shifts(spec, policy)
        group = cgroups.group(spec.label, Policy(), owner=ids.cgroup_owner)
        files = [each for each in spec.placed if not is_socket(each)]
        sockets = host_sockets(spec, policy)

        def argv(with_: InheritedDescriptors) -> list[str]:
            own = namespace_options(policy, ids)
            if not ids.root:
                own += [word for name in _SHARING for word in ("--cap-add", f"CAP_{name}")]
            own += [*host_parts(policy.network or "none"), *proc_options(), "--dev", "/dev"]
            own += ["--dev-bind", "/dev/kvm", "/dev/kvm"] if acceleration == "kvm" else []
            own += ["--perms", "0755", "--tmpfs", "/run", "--ro-bind", str(program("boxvm")), _BOXVM]
            if template is None:
                own += ["--ro-bind", str(kernel / "vmlinux"), _KERNEL, "--ro-bind", str(initramfs), _INITRAMFS]
            else:
                own += ["--ro-bind", str(template / MEMORY), _MEMORY, "--ro-bind", str(template / STATE), _STATE]
            own += directory(Path(_TARGETS))
            for count, (source, _) in enumerate(sockets):
                own += ["--ro-bind", str(source), f"{_TARGETS}/{count}"]
            for name, options in (
                (SYSTEM, _system_options(files, policy, tree)),
                (FILES, _files_options(files, staged, spec.home)),
            ):
                own += ["--perms", "0755", "--tmpfs", f"/{name}", *_below(f"/{name}", options)]
                own += ["--remount-ro", f"/{name}"]
            command = [_BOXVM, *with_.agent, *(["--userns", str(with_.spare_fds[0])] if ids.root else [])]
            command += [word for count in range(len(sockets)) for word in ("--target", f"{_TARGETS}/{count}")]
            command += ["--template", _MEMORY, _STATE] if template is not None else []
            command += [f"--{SYSTEM}", *virtiofsd_command(SYSTEM, cached=True)]
            command += [f"--{FILES}", *virtiofsd_command(FILES, cached=False)]
            network = policy.network == "full"
            if template is None:
                qemu = qemu_command(
                    acceleration,
                    _KERNEL,
                    _INITRAMFS,
                    memory_mb=policy.memory_mb,
                    cpus=policy.cpus,
                    network=network,
                )
            else:
                qemu = clone_command(acceleration, *size, network=network)
                command += ["--attach", *attach_commands(network=network)]
            command += ["--qemu", *qemu]
            command += ["--guest", *(("--attach",) if template is not None else ())]
            command += _init_options(spec, policy, files, [place for _, place in sockets])
            launcher = launcher_command(spec, policy, ids, shifts, staged, with_)
            return [*launcher, bwrap_program(), *own, *command]

        return launch_composed(argv, spec, policy, tree, group, self.isolation)

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        if "boxvm:" in stderr:
            return stderr, ["check the programs: proofbox doctor --provider vm"]
        return explain(stderr) if stderr else ("the machine ended without a message", [])


def _system_options(mounts: Sequence[BoxMount], policy: Policy, tree: Path | None) -> Iterator[str]:
    """Yield bubblewrap's options for the guest's programs, with an empty place for each mount."""
    network = policy.network or "none"
    if tree is None:
        yield from host_parts(network)
    else:
        yield from image_parts(tree, [Path(mount.place) for mount in mounts], network)
    for path in (*PRIVATE, "/proc", "/dev"):
        if path != "/dev/shm":  # noqa: S108
            yield from directory(Path(path))
    for mount in _outermost(mounts):
        if any(Path(private) in Path(mount.place).parents for private in PRIVATE):
            continue  # init makes its place
        if mount.source is None or mount.source.is_dir():
            yield from directory(Path(mount.place))
        else:
            yield from (*directory(Path(mount.place).parent), "--ro-bind", "/dev/null", mount.place)


def _files_options(mounts: Sequence[BoxMount], staged: Mapping[str, str], home: Path | None) -> Iterator[str]:
    """Yield bubblewrap's options for the project and the other mounts, at their paths in the guest."""
    for mount in mounts:
        if mount.source is None:
            yield from ("--tmpfs", mount.place, "--remount-ro", mount.place)
            continue
        yield from () if mount.cover else directory(Path(mount.place).parent)
        source = str(mount.source)
        yield from ("--bind" if mount.writable else "--ro-bind", staged.get(source, source), mount.place)
    if home is not None:
        yield from (*directory(Path(BOX_HOME).parent), "--bind", str(home), BOX_HOME)


def _outermost(mounts: Sequence[BoxMount]) -> list[BoxMount]:
    """Return the mounts that are not inside another one, where virtiofsd finds them by itself."""
    places = {Path(mount.place) for mount in mounts}
    return [mount for mount in mounts if places.isdisjoint(Path(mount.place).parents)]


def _below(top: str, options: Iterator[str]) -> Iterator[str]:
    """Move the places of bubblewrap's options below another directory."""
    for option in options:
        yield option
        if option == "--perms":
            yield next(options)
            continue
        for _ in range(_WORDS[option] - 1):
            yield next(options)
        yield top + next(options)


def _init_options(
    spec: CheckedSpec, policy: Policy, files: Sequence[BoxMount], sockets: Sequence[str]
) -> Iterator[str]:
    """Yield the options of the guest's init, and after `--` the box agent's."""
    if spec.home is not None:
        yield from ("--show", BOX_HOME)
    for mount in _outermost(files):
        yield from ("--show", mount.place)
    yield from ("--network",) if policy.network == "full" else ()
    yield from guest_options(spec, policy, sockets)


def guest_options(
    spec: CheckedSpec, policy: Policy, sockets: Sequence[str], user: tuple[int, int] = (INSIDE_ID, INSIDE_ID)
) -> Iterator[str]:
    """Yield the options of init that don't depend on how the root is built, and after `--` the box agent's."""
    for place in sockets:
        yield from ("--socket", place)
    if policy.memory_mb is not None:
        yield from ("--memory", str(policy.memory_mb << 20))
    if policy.pids is not None:
        yield from ("--pids", str(policy.pids))
    if policy.cpus is not None:
        yield from ("--cpu", f"{cgroups.cpu_quota(policy.cpus)} {cgroups.CPU_PERIOD_US}")
    yield from ("--", "boxagent")
    if spec.listen is None:
        yield from ("--stream", _GUEST_FD, _GUEST_FD)
    else:
        yield from ("--listen", _GUEST_FD, "--ttl", "@ttl")
    yield from ("--cgroup", _GUEST_GROUP_FD, "--report-oom", *_confinement(spec, policy, user))
    for count, forward in enumerate(spec.forwards):
        yield from ("--forward", str(forward.port), f"{NET_INSIDE}/{count}")
    for count, door in enumerate(policy.doors, len(spec.forwards)):
        yield from ("--forward", str(door.port), f"{NET_INSIDE}/{count}")


def _confinement(spec: CheckedSpec, policy: Policy, user: tuple[int, int]) -> Iterator[str]:
    """Yield the box agent's options that take rights from commands; without them they would be root in the guest."""
    yield from ("--as", str(AGENT_ID), str(AGENT_ID), "--user", *map(str, user))
    yield from () if spec.home is not None else ("--home", BOX_HOME)
    yield from ("--seccomp", "--no-suid", *landlock_options(spec.project, policy))


def host_sockets(spec: CheckedSpec, policy: Policy) -> list[tuple[Path, str]]:
    """Return the host's sockets that the guest may connect to, with their places in it."""
    found: list[Path] = []
    if spec.sockets is not None:
        found += [spec.sockets / forward.socket for forward in spec.forwards]
    found += [door.socket for door in policy.doors]
    named = [(path, f"{NET_INSIDE}/{count}") for count, path in enumerate(found)]
    return [
        *named,
        *((each.source, each.place) for each in spec.placed if each.source is not None and is_socket(each)),
    ]


def is_socket(mount: BoxMount) -> bool:
    return mount.source is not None and stat.S_ISSOCK(mount.source.lstat().st_mode)
