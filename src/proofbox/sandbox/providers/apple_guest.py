"""The guest of `apple-vm`: the shared directories, the options of its init, and the process that runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from proofbox.errors import PolicyRefused
from proofbox.sandbox.contract import Box, BoxMount, CheckedSpec, Isolation, Policy
from proofbox.sandbox.covering import covers_dir, sources
from proofbox.sandbox.host.local_box import InheritedDescriptors, launch
from proofbox.sandbox.machines.apple_machine import AppleMachine, SharedDirectory
from proofbox.sandbox.machines.apple_signing import helper_command, signed_interpreter
from proofbox.sandbox.machines.initramfs import make_initramfs
from proofbox.sandbox.machines.kernel import find_kernel
from proofbox.sandbox.machines.qemu import machine_size
from proofbox.sandbox.providers.bubblewrap import find_image_root
from proofbox.sandbox.providers.environment import BOX_PATH, boxed
from proofbox.sandbox.providers.host_root import OWN_ETC
from proofbox.sandbox.providers.vm import guest_options, host_sockets, is_socket

HELPER = "proofbox.sandbox.machines.apple_machine"
_ETC = "etc"


def start_guest(spec: CheckedSpec, isolation: Isolation, user: tuple[int, int]) -> Box:
    """Start the machine of a box."""
    _refuse_unsupported(spec)
    policy, tree = _find_root(spec)
    kernel = find_kernel()
    mounts = [mount for mount in spec.placed if not is_socket(mount)]
    sockets = host_sockets(spec, policy)
    shares = _shares(mounts)
    memory_mb, cpus = machine_size(policy.memory_mb, policy.cpus)
    machine = AppleMachine(
        kernel=str(kernel / "vmlinux"),
        initramfs=str(make_initramfs(kernel, "pci")),
        memory_mb=memory_mb,
        cpus=cpus,
        system=str(tree),
        files=shares,
        targets=tuple(str(source) for source, _ in sockets),
        options=(
            *_root_options(tree, mounts),
            *_mount_options(mounts),
            # Files of the share keep their owner in the guest, so commands have the user's own ids.
            *guest_options(spec, policy, [place for _, place in sockets], user=user),
        ),
    )
    command = helper_command(signed_interpreter(), HELPER)

    def argv(with_: InheritedDescriptors) -> list[str]:
        return [*command, *with_.agent, msgspec.json.encode(machine).decode()]

    return launch(
        argv,
        spec=spec,
        group=None,
        isolation=isolation,
        policy=policy,
        project=str(spec.project),
        environment={**boxed(), "PATH": BOX_PATH},
        places=((spec.project, str(spec.project)), *((mount.host, mount.guest) for mount in policy.mounts)),
    )


def _refuse_unsupported(spec: CheckedSpec) -> None:
    """Raise PolicyRefused for options that `enforcement` does not cover."""
    if spec.policy.network == "full":
        raise PolicyRefused(
            "apple-vm can't enforce network full (its machines have no network device)",
            op="start",
            fix_hints=["name the hosts: --network allow:HOST", "use --provider docker"],
            details={"provider": "apple-vm"},
        )
    for mount in spec.placed:
        if mount.source is not None and not mount.cover and not mount.source.is_dir() and not is_socket(mount):
            raise PolicyRefused(
                f"apple-vm can't mount the file {mount.source} (macOS shares only directories)",
                op="start",
                fix_hints=["mount its directory", "use --provider docker"],
                details={"provider": "apple-vm", "path": str(mount.source)},
            )


def _find_root(spec: CheckedSpec) -> tuple[Policy, Path]:
    """Return the policy with its image resolved, and the image's files. Programs of macOS don't run in the guest."""
    from proofbox.sandbox.images.catalogue import resolve_default_image

    return find_image_root(spec, spec.policy.image or resolve_default_image().name)


def _shares(mounts: Sequence[BoxMount]) -> dict[str, SharedDirectory]:
    """Return the directories of the share `files`, by name: each mount by its position, and proofbox's own files."""
    loose = sources(mount for mount in mounts if not mount.cover)
    found = {
        str(count): SharedDirectory(str(mount.source), mount.writable, loose.get(str(mount.source)))
        for count, mount in enumerate(mounts)
        if not mount.cover
    }
    return {**found, _ETC: SharedDirectory(str(OWN_ETC), writable=False)}


def _root_options(tree: Path, mounts: Sequence[BoxMount]) -> Iterator[str]:
    """Yield init's options that compose the root from an image's files."""
    from proofbox.sandbox.images.tree import root_entries

    for source, place in root_entries(tree, [Path(mount.place) for mount in mounts]):
        if source.is_symlink():
            yield from ("--symlink", os.readlink(source), str(place))
        else:
            yield from ("--ro-bind", f"/system/{source.relative_to(tree)}", str(place))
    for name in ("passwd", "group", "hosts"):
        yield from ("--ro-bind", f"/files/{_ETC}/{name}", f"/etc/{name}")
    yield "--composed"


def _mount_options(mounts: Sequence[BoxMount]) -> Iterator[str]:
    """Yield init's options for the project, the other mounts, and the covers over parts of them."""
    for count, mount in enumerate(mounts):
        if not mount.cover:
            yield from ("--bind" if mount.writable else "--ro-bind", f"/files/{count}", mount.place)
        elif mount.source is None:
            yield from ("--ro-bind", "/covers/empty", mount.place)
        elif mount.source.parent == covers_dir():
            yield from ("--ro-bind", f"/covers/{'directory' if mount.source.is_dir() else 'file'}", mount.place)
        else:
            yield from ("--bind" if mount.writable else "--ro-bind", f"/new{mount.place}", mount.place)
