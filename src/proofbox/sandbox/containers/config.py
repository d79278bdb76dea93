"""What a container is to be: the engine's own words for a box, and where engines differ."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from proofbox.errors import PathRefused
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.ownership import labels
from proofbox.sandbox.contract import BoxSpec, Policy
from proofbox.sandbox.environment import BOX_HOME
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.providers.bubblewrap import AGENT_ID
from proofbox.sandbox.providers.covering import Placed

AGENT = "/.proofbox/boxagent"
SOCKETS = "/.proofbox/sockets"
NET = "/.proofbox/net"
DOORS = "/.proofbox/doors"
_AGENT_CAPABILITIES = ("SETUID", "SETGID", "KILL")
_MOST = 32768  # of open files, and of processes of one user, where they have to be said
_INSTALLING = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP")
# Runtimes whose containers can't reach a socket of the host, by a part of the name they are configured under.
_SEALED = ("runsc", "gvisor", "kata")
SEALED_GAPS = {
    "network allow": "such a runtime passes no sockets on, which an allowlist needs",
    "pids": "to the host the sandbox's own threads are what is counted, not the processes in it",
    "detached": "such a runtime passes no sockets on, so that a session ends with its client",
    "memory kill": "to the host the sandbox is one process: at its limit the whole box ends",
    "agent hidden": "gVisor shows every process's environment, memory map and list of descriptors to all; the agent "
    "has no secret in them, and neither its memory nor its streams can be opened",
    "own streams": "a command's pipes are the agent's, since gVisor would let others open them: not by /dev/stdout",
}


def is_sealed(policy: Policy | None) -> bool:
    """Whether its runtime passes no sockets on: gVisor, Kata."""
    return policy is not None and policy.runtime is not None and any(name in policy.runtime for name in _SEALED)


class Identity(msgspec.Struct, frozen=True):
    """Who commands run as, by the container's numbers, and by whose engine."""

    uid: int
    gid: int
    podman: bool = False

    @classmethod
    def of(cls, engine: ContainerEngine, project: Path) -> Identity:
        options = engine.call("GET", "/info", op="describe itself").get("SecurityOptions") or []
        parts = engine.call("GET", "/version", op="say its version").get("Components") or []
        podman = any("podman" in str(part.get("Name")).lower() for part in parts)
        if any("rootless" in str(option) for option in options):
            return cls(0, 0, podman)  # its root is the user who runs it
        st = project.stat()
        return cls(st.st_uid, st.st_gid, podman)


def container_config(
    spec: BoxSpec,
    policy: Policy,
    placed: Iterable[Placed],
    identity: Identity,
    agent: list[str],
    sockets: Path | None,
    *,
    attach: bool,
) -> dict[str, Any]:
    """The body of a request to create the container of a box."""
    # Podman's tmpfs takes no owner: a home that everybody in the box may write is then the nearest.
    home = "mode=1777" if identity.podman else f"mode=700,uid={identity.uid},gid={identity.gid}"
    tmpfs = {"/tmp": "mode=1777", "/var/tmp": "mode=1777", "/run": "mode=755", BOX_HOME: home}  # noqa: S108
    mounts = [_bind(program("boxagent"), AGENT, writable=False)]
    for mount in placed:
        if mount.source is None:
            tmpfs[mount.place] = "mode=700"
        else:
            mounts.append(_bind(mount.source, mount.place, mount.writable))
    if spec.sockets is not None:
        mounts.append(_bind(spec.sockets, NET, writable=False))
    mounts += [_bind(door.socket, f"{DOORS}/{door.port}", writable=False) for door in policy.doors]
    if sockets is not None:
        if os.geteuid() == 0 and not spec.preparing:
            os.chown(sockets, AGENT_ID, AGENT_ID)  # root in the container has no capability to get past its mode
        mounts.append(_bind(sockets, SOCKETS, writable=True))
    if identity.podman:
        _refuse_what_podman_misreads(mounts)
        # It would fill each with what it covers, which may be what is to be hidden.
        tmpfs = {place: f"{options},notmpcopyup" for place, options in tmpfs.items()}
    return {
        "Image": policy.image,
        "Entrypoint": [AGENT],
        "Cmd": agent,
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": labels(spec.label, str(spec.project)),
        "OpenStdin": attach,
        "StdinOnce": attach,  # the end of the stream is the end of the agent
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


def _more_capabilities(spec: BoxSpec, policy: Policy) -> tuple[str, ...]:
    if spec.preparing:
        return _INSTALLING
    # Of the sandbox's own kernel: for --carry, and to drop what it needs before any command runs.
    return ("SYS_ADMIN", "SETPCAP") if is_sealed(policy) else ()


def _refuse_what_podman_misreads(mounts: list[dict[str, Any]]) -> None:
    """It takes apart what it is given whole: a path with a colon or a comma would be read as options."""
    for mount in mounts:
        odd = [path for path in (mount["Source"], mount["Target"]) if ":" in path or "," in path]
        if odd:
            raise PathRefused(
                f"Podman can't mount {odd[0]!r}: a path there has neither colons nor commas",
                op="start",
                fix_hints=["rename the directory, or use a Docker engine"],
                details={"path": odd[0]},
            )


def _own_limits() -> list[dict[str, Any]]:
    """Podman asks for limits of its own, which a machine may not have to give; such as ours are to be had."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    return [
        {"Name": name, "Soft": _bounded(soft), "Hard": _bounded(hard)}
        for name, (soft, hard) in ((name, resource.getrlimit(each)) for name, each in limits.items())
    ]


def _bind(source: Path, target: str, writable: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": not writable}


def _bounded(limit: int) -> int:
    return _MOST if limit == resource.RLIM_INFINITY else min(limit, _MOST)
