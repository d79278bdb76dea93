"""`docker`: any OCI image, unprepared, in a container of a Docker or Podman engine.

Nothing is needed in the image, not even a shell: the box agent is a static program, mounted into the container and
started as its pid 1. It calls us back over a unix socket that is mounted too, so that a command costs no call of the
engine. Where an engine's runtime doesn't pass sockets on (gVisor), the container's attached streams take that place.

The container has no network unless asked for, a read-only root, no new privileges, and no capability but those the
agent needs to start commands as another user: the project's owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.dirs import state_dir
from proofbox.errors import EngineRefused, PolicyRefused, ProofboxError, StartFailed
from proofbox.sandbox.binaries import program
from proofbox.sandbox.contract import Box, BoxSpec, Enforcement, Isolation, Mount, Policy
from proofbox.sandbox.demux import AttachedStream
from proofbox.sandbox.engine import Engine
from proofbox.sandbox.environment import BOX_HOME, forwarded
from proofbox.sandbox.providers.bubblewrap import AGENT_ID
from proofbox.sandbox.providers.covering import covers
from proofbox.sandbox.providers.own import frozen_within, hidden_within
from proofbox.sandbox.readiness import readable
from proofbox.sandbox.refusal import refuse_unenforceable
from proofbox.sandbox.unixpath import SOCKET, listen_at

LABEL = "proofbox.session"
START_PATIENCE = 30.0
REMOVE_PATIENCE = 20.0
_AGENT = "/.proofbox/boxagent"
_SOCKETS = "/.proofbox/sockets"
_NET = "/.proofbox/net"
_DOORS = "/.proofbox/doors"
_OWN_VARIABLES = {"PATH", "HOME", "USER", "SHELL", "TMPDIR"}  # the image's, or the box's
# Runtimes whose containers can't reach a socket of the host.
_SEALED_RUNTIMES = ("runsc", "gvisor", "kata")


class Docker:
    name = "docker"
    isolation = Isolation.CONTAINER
    systems = frozenset({"Linux", "Darwin"})

    def identity(self) -> str:
        engine = Engine.find()
        version = engine.call("GET", "/version", op="say its version", timeout=10)
        return f"{engine.address} {version.get('Version')} {version.get('ApiVersion')} uid {os.geteuid()}"

    def enforcement(self) -> Enforcement:
        overlay = "a container's project can't be an overlay yet"
        return Enforcement(
            network_none=True,
            network_allow=True,
            filesystem=True,
            access_ro=True,
            mounts=True,
            hidden=True,
            images=True,
            memory=True,
            cpus=True,
            pids=True,
            kill_tree="fail-closed",
            gaps={"access overlay": overlay, "layers": overlay, "disk": overlay},
        )

    def start(self, spec: BoxSpec) -> Box:
        refuse_unenforceable(self.name, spec.policy, self.enforcement())
        policy = msgspec.structs.replace(
            spec.policy, network=spec.policy.network or "none", access=spec.policy.access or "rw"
        )
        if policy.image is None:
            raise PolicyRefused(
                "docker needs an image to run", op="start", fix_hints=["name one that the engine has: --image NAME"]
            )
        engine = Engine.find()
        image = find_image(engine, policy.image)
        box = DockerBox(engine, spec, policy, _environment(image))
        try:
            box.start(_Identity.of(engine, spec.project))
        except BaseException:
            box.destroy()
            raise
        return box

    def explain(self, account: str) -> tuple[str, list[str]]:
        return account or "the container ended without a word", ["`docker events` and the engine's log may say more"]


class _Identity(msgspec.Struct, frozen=True):
    """Who commands run as, by the container's numbers."""

    uid: int
    gid: int

    @classmethod
    def of(cls, engine: Engine, project: Path) -> _Identity:
        options = engine.call("GET", "/info", op="describe itself").get("SecurityOptions") or []
        if any("rootless" in str(option) for option in options):
            return cls(0, 0)  # its root is the user who runs it
        st = project.stat()
        return cls(st.st_uid, st.st_gid)


class DockerBox:
    def __init__(self, engine: Engine, spec: BoxSpec, policy: Policy, environment: dict[str, str]) -> None:
        self._engine = engine
        self._spec = spec
        self._container: str | None = None
        self._attached: AttachedStream | None = None
        self._sockets: Path | None = None
        self.isolation = Isolation.SANDBOXED_KERNEL if policy.runtime in _SEALED_RUNTIMES else Isolation.CONTAINER
        self.policy = policy
        self.project = str(spec.project)
        self.environment: Mapping[str, str] = environment
        self.places = ((spec.project, self.project), *((mount.host, mount.guest) for mount in policy.mounts))
        self.memory_group: Path | None = None
        self.stream: socket.socket | None = None

    def start(self, identity: _Identity) -> None:
        agent = ["--seccomp", "--as", str(AGENT_ID), str(AGENT_ID), "--user", str(identity.uid), str(identity.gid)]
        agent += [w for f in self._spec.forwards for w in ("--forward", str(f.port), f"{_NET}/{f.socket}")]
        agent += [w for d in self.policy.doors for w in ("--forward", str(d.port), f"{_DOORS}/{d.port}")]
        sealed = self.policy.runtime in _SEALED_RUNTIMES
        if sealed and (self._spec.forwards or self.policy.doors):
            raise PolicyRefused(
                f"runtime {self.policy.runtime} passes no sockets on, which an allowlist or a door needs",
                op="start",
                fix_hints=["use another runtime, or network none"],
            )
        if self._spec.listen is not None:
            if sealed:
                raise PolicyRefused(
                    f"runtime {self.policy.runtime} passes no sockets on, so that a session can't outlive its client",
                    op="start",
                    fix_hints=["use it without `session start`, or another runtime for sessions"],
                )
            agent += ["--listen-path", f"{_SOCKETS}/{SOCKET}", "--ttl", str(max(1, round(self._spec.ttl)))]
            self._create(agent, identity, self._spec.listen, attach=False)
            self._run()
        elif sealed:
            self._create([*agent, "--stream", "0", "1"], identity, None, attach=True)
            self._attached = AttachedStream(self._engine.attach(self._id))
            self.stream = self._attached.ours
            self._run()
        else:
            self._sockets = Path(tempfile.mkdtemp(prefix="box-", dir=state_dir()))
            with listen_at(self._sockets) as listener:
                (self._sockets / SOCKET).chmod(0o666)  # for the agent's uid; its directory is closed to others
                self._create([*agent, "--connect", f"{_SOCKETS}/{SOCKET}"], identity, self._sockets, attach=False)
                self._run()
                self.stream = self._accept(listener)
            shutil.rmtree(self._sockets, ignore_errors=True)  # nothing is there for a command to find

    def account(self) -> str:
        said = self._attached.stderr.decode("utf-8", "replace") if self._attached is not None else ""
        with contextlib.suppress(ProofboxError):
            state = self._engine.call("GET", f"/containers/{self._id}/json", op="inspect it")["State"]
            said += str(state.get("Error") or f"the container is {state['Status']}, exit code {state['ExitCode']}")
        return said.strip()

    def release(self) -> None:
        """The container ends by its agent's TTL, and then the engine removes it."""

    def destroy(self) -> None:
        if self.stream is not None:
            self.stream.close()
        if self._attached is not None:
            self._attached.close()
        if self._container is not None:
            remove_container(self._engine, self._container)
            self._container = None
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    @property
    def _id(self) -> str:
        if self._container is None:
            raise StartFailed("there is no container", op="start")
        return self._container

    def _create(self, agent: list[str], identity: _Identity, sockets: Path | None, *, attach: bool) -> None:
        policy = self.policy
        home = f"mode=700,uid={identity.uid},gid={identity.gid}"
        tmpfs = {"/tmp": "mode=1777", "/var/tmp": "mode=1777", "/run": "mode=755", BOX_HOME: home}  # noqa: S108
        mounts = [_bind(program("boxagent"), _AGENT, writable=False)]
        project = Mount(self._spec.project, self.project, writable=policy.access == "rw")
        for mount in (project, *policy.mounts):
            mounts.append(_bind(mount.host, mount.guest, mount.writable))
            tmpfs |= dict.fromkeys(hidden_within(mount.host, mount.guest), "mode=700")
            if mount.writable:
                mounts += [_bind(own, place, writable=False) for own, place in frozen_within(mount.host, mount.guest)]
        for cover in covers(self._spec.project, policy):
            place = Path(self.project) / cover.place.relative_to(self._spec.project)
            mounts.append(_bind(cover.source, str(place), cover.writable))
        if self._spec.sockets is not None:
            mounts.append(_bind(self._spec.sockets, _NET, writable=False))
        mounts += [_bind(door.socket, f"{_DOORS}/{door.port}", writable=False) for door in self.policy.doors]
        if sockets is not None:
            if os.geteuid() == 0:
                os.chown(sockets, AGENT_ID, AGENT_ID)  # root in the container has no capability to get past its mode
            mounts.append(_bind(sockets, _SOCKETS, writable=True))
        config: dict[str, Any] = {
            "Image": policy.image,
            "Entrypoint": [_AGENT],
            "Cmd": agent,
            "User": "0:0",
            "WorkingDir": "/",
            "Labels": {LABEL: self._spec.label, "proofbox.project": self.project},
            "OpenStdin": attach,
            "StdinOnce": attach,  # the end of the stream is the end of the agent
            "AttachStdin": attach,
            "AttachStdout": attach,
            "AttachStderr": attach,
            "NetworkDisabled": policy.network != "full",
            "HostConfig": {
                "AutoRemove": True,
                "NetworkMode": "default" if policy.network == "full" else "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "CapAdd": ["SETUID", "SETGID", "KILL"],
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
            },
        }
        query = {"name": self._spec.label}
        answer = self._engine.call("POST", "/containers/create", op="create a container", query=query, body=config)
        self._container = answer["Id"]

    def _run(self) -> None:
        self._engine.call("POST", f"/containers/{self._id}/start", op="start the container")
        if self.policy.memory_mb is not None:
            self.memory_group = self._find_memory_group()

    def _accept(self, listener: socket.socket) -> socket.socket:
        """Wait for the agent's call, or for the container's end, whichever is first."""
        for _ in range(round(START_PATIENCE * 10)):
            if readable(listener, 0.1):
                return listener.accept()[0]
            if not self._running():
                raise StartFailed(
                    "the container ended before its agent called back",
                    op="start",
                    fix_hints=["is the engine on this machine, and the image for its architecture?"],
                )
        raise StartFailed("the box agent did not call back from the container", op="start")

    def _running(self) -> bool:
        try:
            state = self._engine.call("GET", f"/containers/{self._id}/json", op="inspect it")["State"]
        except EngineRefused:  # removed by the engine, as we asked it to
            return False
        return bool(state["Running"])

    def _find_memory_group(self) -> Path | None:
        pid = self._engine.call("GET", f"/containers/{self._id}/json", op="inspect it")["State"]["Pid"]
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                for home in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
                    group = Path(home + path)
                    if ("memory" in controllers or not controllers) and (group / "memory.stat").exists():
                        return group
        return None


def remove_container(engine: Engine, container: str) -> None:
    """Gone when this returns; one that is gone already is no error."""
    query = {"force": "1", "v": "1"}
    deadline = time.monotonic() + REMOVE_PATIENCE
    while True:
        try:
            engine.call("DELETE", f"/containers/{container}", op="remove the container", query=query)
        except EngineRefused as error:
            if error.details["status"] == 404:
                return
            if error.details["status"] != 409 or time.monotonic() > deadline:  # 409: the engine is at it
                raise
            time.sleep(0.02)
        else:
            return


def our_containers(engine: Engine) -> dict[str, str]:
    """Session id → container, of every container that bears our label."""
    query = {"all": "1", "filters": json.dumps({"label": [LABEL]})}
    found = engine.call("GET", "/containers/json", op="list containers", query=query) or []
    return {each["Labels"][LABEL]: each["Id"] for each in found}


def find_image(engine: Engine, name: str) -> dict[str, Any]:
    """What the engine says of an image, or `StartFailed` that names what to pull."""
    try:
        found: dict[str, Any] = engine.call("GET", f"/images/{name}/json", op="find the image")
    except EngineRefused as error:
        raise StartFailed(
            f"the engine has no image {name!r}",
            op="start",
            fix_hints=[f"docker pull {name}", "or import one: tar -C rootfs -c . | docker import - NAME"],
            details=error.details,
        ) from None
    return found


def _environment(image: Mapping[str, Any]) -> dict[str, str]:
    own = dict(each.partition("=")[::2] for each in (image.get("Config") or {}).get("Env") or [])
    ours = {name: value for name, value in forwarded().items() if name not in _OWN_VARIABLES}
    path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    return {**path, **ours, **own, "HOME": BOX_HOME, "USER": "box", "TMPDIR": "/tmp"}  # noqa: S108


def _bind(source: Path, target: str, writable: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": not writable}
