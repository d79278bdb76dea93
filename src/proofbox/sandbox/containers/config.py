"""The configuration of a box's container in the engine's API, and the differences between engines."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import msgspec

from proofbox.errors import PathRefused
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.ownership import labels
from proofbox.sandbox.contract import CheckedSpec, Policy
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.providers.bubblewrap import AGENT_ID
from proofbox.sandbox.providers.environment import BOX_HOME

AGENT = "/.proofbox/boxagent"
SOCKETS = "/.proofbox/sockets"
NET = "/.proofbox/net"
DOORS = "/.proofbox/doors"
_AGENT_CAPABILITIES = ("SETUID", "SETGID", "KILL")
_MAX_LIMIT = 32768  # of open files and of processes per user, if they must be given
_INSTALLING = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP")
# Runtimes whose containers can't reach a unix socket on the host, by a part of their configured name.
_SEALED = ("runsc", "gvisor", "kata")
SEALED_GAPS = {
    "network allow": "this runtime does not pass sockets through, which an allowlist needs",
    "pids": "the host counts the sandbox's own threads, not the processes in it",
    "doors": "this runtime does not pass sockets through, which a door needs",
    "detached": "this runtime does not pass sockets through, so a session ends with its client",
    "memory kill": "to the host the sandbox is one process: at the memory limit the whole box ends",
    "agent hidden": "in gVisor all processes can read each other's environment, memory map and list of descriptors; "
    "those of the agent contain no secrets, and neither its memory nor its streams can be opened",
    "own streams": "a command's pipes belong to the agent, since gVisor would let others open them: not by /dev/stdout",
}


def is_sealed(policy: Policy | None) -> bool:
    """Return whether the runtime does not pass sockets through: gVisor, Kata."""
    return policy is not None and policy.runtime is not None and any(name in policy.runtime for name in _SEALED)


class Identity(msgspec.Struct, frozen=True):
    """The uid and gid of commands in the container, and whether the engine is Podman."""

    uid: int
    gid: int
    podman: bool = False

    @classmethod
    def of(cls, engine: ContainerEngine, project: Path) -> Identity:
        options = engine.call("GET", "/info", op="describe itself").get("SecurityOptions") or []
        parts = engine.call("GET", "/version", op="say its version").get("Components") or []
        podman = any("podman" in str(part.get("Name")).lower() for part in parts)
        if any("rootless" in str(option) for option in options):
            return cls(0, 0, podman)  # root in the container is the user who runs the engine
        st = project.stat()
        return cls(st.st_uid, st.st_gid, podman)


def container_config(
    spec: CheckedSpec,
    policy: Policy,
    identity: Identity,
    agent: list[str],
    sockets: Path | None,
    *,
    attach: bool,
) -> dict[str, Any]:
    """Return the body of the request that creates a box's container."""
    # Podman's tmpfs has no owner option, so the home must be writable for every user in the box.
    home = "mode=1777" if identity.podman else f"mode=700,uid={identity.uid},gid={identity.gid}"
    tmpfs = {"/tmp": "mode=1777", "/var/tmp": "mode=1777", "/run": "mode=755", BOX_HOME: home}  # noqa: S108
    mounts = [_bind(program("boxagent"), AGENT, writable=False)]
    for mount in spec.placed:
        if mount.source is None:
            tmpfs[mount.place] = "mode=700"
        else:
            mounts.append(_bind(mount.source, mount.place, mount.writable))
    if spec.sockets is not None:
        mounts.append(_bind(spec.sockets, NET, writable=False))
    mounts += [_bind(door.socket, f"{DOORS}/{door.port}", writable=False) for door in policy.doors]
    if sockets is not None:
        if os.geteuid() == 0 and not spec.preparing:
            os.chown(sockets, AGENT_ID, AGENT_ID)  # root in the container has no capability to bypass its mode
        mounts.append(_bind(sockets, SOCKETS, writable=True))
    if identity.podman:
        _refuse_what_podman_misreads(mounts)
        # Podman would copy the covered directory into each tmpfs, and that may be a hidden one.
        tmpfs = {place: f"{options},notmpcopyup" for place, options in tmpfs.items()}
    return {
        "Image": policy.image,
        "Entrypoint": [AGENT],
        "Cmd": agent,
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": labels(spec.label, str(spec.project)),
        "OpenStdin": attach,
        "StdinOnce": attach,  # the agent ends with its stream
        "AttachStdin": attach,
        "AttachStdout": attach,
        "AttachStderr": attach,
        "NetworkDisabled": policy.network != "full",
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": "default" if policy.network == "full" else "none",
            "ReadonlyRootfs": not spec.preparing,
            "CapDrop": ["ALL"],
            "CapAdd": [*_AGENT_CAPABILITIES, *_more_capabilities(spec, policy)],
            "SecurityOpt": ["no-new-privileges"],
            "IpcMode": "private",
            "Mounts": mounts,
            "Tmpfs": tmpfs,
            "LogConfig": {"Type": "none"},
            "Memory": (policy.memory_mb or 0) << 20,
            "MemorySwap": (policy.memory_mb or 0) << 20,
            "NanoCpus": round((policy.cpus or 0) * 1e9),
            "PidsLimit": policy.pids or 0,
            **({"Runtime": policy.runtime} if policy.runtime else {}),
            **({"Ulimits": _own_limits()} if identity.podman else {}),
        },
    }


def _more_capabilities(spec: CheckedSpec, policy: Policy) -> tuple[str, ...]:
    if spec.preparing:
        return _INSTALLING
    # Capabilities in the sandbox's own kernel: for --carry, and to drop what it needs before any command runs.
    return ("SYS_ADMIN", "SETPCAP") if is_sealed(policy) else ()


def _refuse_what_podman_misreads(mounts: list[dict[str, Any]]) -> None:
    """Refuse paths with a colon or a comma, which Podman would parse as options."""
    for mount in mounts:
        odd = [path for path in (mount["Source"], mount["Target"]) if ":" in path or "," in path]
        if odd:
            raise PathRefused(
                f"Podman can't mount {odd[0]!r}: it does not support paths with colons or commas",
                op="start",
                fix_hints=["rename the directory, or use a Docker engine"],
                details={"path": odd[0]},
            )


def _own_limits() -> list[dict[str, Any]]:
    """Return this process's limits: Podman's own defaults may exceed what the machine allows."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    return [
        {"Name": name, "Soft": _bounded(soft), "Hard": _bounded(hard)}
        for name, (soft, hard) in ((name, resource.getrlimit(each)) for name, each in limits.items())
    ]


def _bind(source: Path, target: str, writable: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": not writable}


def _bounded(limit: int) -> int:
    return _MAX_LIMIT if limit == resource.RLIM_INFINITY else min(limit, _MAX_LIMIT)
