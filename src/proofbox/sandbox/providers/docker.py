"""`docker`: any OCI image, without preparation, in a container of a Docker or Podman engine.

The image needs nothing, not even a shell: the box agent is a static program that is mounted into the container and
started as its pid 1. It connects to us over a mounted unix socket, so that a command needs no call to the engine. With
a runtime that does not pass sockets through (gVisor), the container's attached streams are used instead.

By default the container has no network. It has a read-only root, no new privileges, and only the capabilities that the
agent needs to start commands as another user: the project's owner.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from proofbox.errors import EngineRefused, ProofboxError, StartFailed
from proofbox.sandbox.containers.attached_stream import AttachedStream
from proofbox.sandbox.containers.config import (
    DOORS,
    NET,
    SEALED_GAPS,
    SOCKETS,
    Identity,
    container_config,
    is_sealed,
)
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.images import engine_image, inspect_image
from proofbox.sandbox.containers.ownership import await_removal, kill_container, remove_container
from proofbox.sandbox.contract import Box, CheckedSpec, Enforcement, Isolation, Policy
from proofbox.sandbox.covering import check_sources, sources
from proofbox.sandbox.host.readiness import readable
from proofbox.sandbox.host.scratch import Scratch
from proofbox.sandbox.host.unix_sockets import SOCKET, connect_at, listen_at
from proofbox.sandbox.providers.bubblewrap import AGENT_ID
from proofbox.sandbox.providers.environment import BOX_HOME, forwarded

START_TIMEOUT = 30.0
_OWN_VARIABLES = {"PATH", "HOME", "USER", "SHELL", "TMPDIR"}  # from the image or the box


class Docker:
    name = "docker"
    isolation = Isolation.CONTAINER
    systems = frozenset({"Linux", "Darwin"})

    def identity(self) -> str:
        engine = ContainerEngine.find()
        version = engine.call("GET", "/version", op="say its version", timeout=10)
        return f"{engine.address} {version.get('Version')} {version.get('ApiVersion')} uid {os.geteuid()}"

    def enforcement(self, policy: Policy | None = None) -> Enforcement:
        overlay = "docker does not support an overlay over the project yet"
        found = Enforcement(
            network_none=True,
            network_allow=True,
            filesystem=True,
            access_ro=True,
            mounts=True,
            hidden=True,
            images=True,
            runtimes=True,
            memory=True,
            cpus=True,
            pids=True,
            kill_tree="fail-closed",
            isolation=self.isolation,
            gaps={"access overlay": overlay, "layers": overlay, "disk": overlay},
        )
        if not is_sealed(policy):
            return found
        return msgspec.structs.replace(
            found,
            network_allow=False,
            pids=False,
            memory_kill="box",
            detached=False,
            own_streams=False,
            agent_hidden=False,
            isolation=Isolation.SANDBOXED_KERNEL,
            gaps={**found.gaps, **SEALED_GAPS},
        )

    def start(self, spec: CheckedSpec) -> Box:
        policy = spec.policy
        engine = ContainerEngine.find()
        policy = msgspec.structs.replace(policy, image=engine_image(engine, policy.image, spec.project))
        image = inspect_image(engine, str(policy.image))
        own = {"HOME": "/root", "USER": "root"} if spec.preparing else {}
        box = DockerBox(engine, spec, policy, _environment(image) | own)
        try:
            box.start(Identity.of(engine, spec.project))
        except BaseException:
            box.destroy()
            raise
        return box

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        return stderr or "the container ended without a message", ["see `docker events` and the engine's log"]


class DockerBox:
    def __init__(self, engine: ContainerEngine, spec: CheckedSpec, policy: Policy, environment: dict[str, str]) -> None:
        self._engine = engine
        self._spec = spec
        self._container: str | None = None
        self._attached: AttachedStream | None = None
        self._scratch: Scratch | None = None
        self._sources = sources(spec.placed)
        self.isolation = Isolation.SANDBOXED_KERNEL if is_sealed(policy) else Isolation.CONTAINER
        self.policy = policy
        self.project = str(spec.project)
        self.environment: Mapping[str, str] = environment
        self.places = ((spec.project, self.project), *((mount.host, mount.guest) for mount in policy.mounts))
        self.memory_group: Path | None = None
        self.stream: socket.socket | None = None
        self.holder = ""

    def start(self, identity: Identity) -> None:
        agent = ["--seccomp"]
        if not self._spec.preparing:  # a provision script runs as root in its container, as in `docker build`
            agent += ["--as", str(AGENT_ID), str(AGENT_ID), "--user", str(identity.uid), str(identity.gid)]
        agent += [w for f in self._spec.forwards for w in ("--forward", str(f.port), f"{NET}/{f.socket}")]
        agent += [w for d in self.policy.doors for w in ("--forward", str(d.port), f"{DOORS}/{d.port}")]
        sealed = is_sealed(self.policy)
        if self._spec.listen is not None:
            agent += ["--listen-path", f"{SOCKETS}/{SOCKET}", "--ttl", str(max(1, round(self._spec.ttl)))]
            self._create(agent, identity, self._spec.listen, attach=False)
            self._run()
            self._await_listening(self._spec.listen)
        elif sealed:
            self._create([*agent, "--tag", "--carry", "--stream", "0", "1"], identity, None, attach=True)
            self._attached = AttachedStream(self._engine.attach(self._id))
            self.stream = self._attached.ours
            self._run()
        else:
            self._scratch = Scratch()
            sockets = self._scratch.path
            with listen_at(sockets) as listener:
                (sockets / SOCKET).chmod(0o666)  # for the agent's uid; other users can't enter its directory
                self._create([*agent, "--connect", f"{SOCKETS}/{SOCKET}"], identity, sockets, attach=False)
                self._run()
                self.stream = self._accept(listener)
            self._scratch.remove()  # so that commands don't find it

    def stderr(self) -> str:
        text = self._attached.stderr.decode("utf-8", "replace") if self._attached is not None else ""
        with contextlib.suppress(ProofboxError):
            state = self._engine.call("GET", f"/containers/{self._id}/json", op="inspect it")["State"]
            text += str(state.get("Error") or f"the container is {state['Status']}, exit code {state['ExitCode']}")
        return text.strip()

    def release(self) -> None:
        """Do nothing: the container ends by its agent's TTL, and the engine then removes it."""

    def kill(self) -> None:
        if self._container is not None:
            kill_container(self._engine, self._container)

    def destroy(self) -> None:
        if self.stream is not None:
            self.stream.close()
        if self._attached is not None:
            self._attached.close()
        if self._container is not None:
            if self.stream is not None:
                await_removal(self._engine, self._container)
            remove_container(self._engine, self._container)
            self._container = None
        if self._scratch is not None:
            self._scratch.remove()

    def commit(self, reference: str, labels: Mapping[str, str]) -> None:
        """Save the container's root file system as an image."""
        repository, _, tag = reference.partition(":")
        query = {"container": self._id, "repo": repository, "tag": tag}
        self._engine.call("POST", "/commit", op="keep the image", query=query, body={"Labels": labels}, timeout=600)

    @property
    def _id(self) -> str:
        if self._container is None:
            raise StartFailed("there is no container", op="start")
        return self._container

    def _create(self, agent: list[str], identity: Identity, sockets: Path | None, *, attach: bool) -> None:
        config = container_config(self._spec, self.policy, identity, agent, sockets, attach=attach)
        query = {"name": self._spec.label}
        answer = self._engine.call("POST", "/containers/create", op="create a container", query=query, body=config)
        self._container = answer["Id"]

    def _run(self) -> None:
        self._engine.call("POST", f"/containers/{self._id}/start", op="start the container")
        check_sources(self._sources, self._spec.placed)  # the engine has resolved their paths again
        if self.policy.memory_mb is not None:
            self.memory_group = self._find_memory_group()

    def _accept(self, listener: socket.socket) -> socket.socket:
        """Wait until the agent connects, or the container ends."""
        for _ in range(round(START_TIMEOUT * 10)):
            if readable(listener, 0.1):
                return listener.accept()[0]
            if not self._running():
                raise StartFailed(
                    "the container ended before its agent connected",
                    op="start",
                    fix_hints=["check that the engine is on this machine, and that the image has its architecture"],
                )
        raise StartFailed("the box agent in the container did not connect", op="start")

    def _await_listening(self, sockets: Path) -> None:
        """Wait until the agent in the container listens, or the container ends."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(OSError):
                connect_at(sockets).close()
                return
            if not self._running():
                raise StartFailed("the container ended before its agent listened", op="start")
            if time.monotonic() > deadline:
                raise StartFailed("the box agent in the container does not listen", op="start")
            time.sleep(0.01)

    def _running(self) -> bool:
        try:
            state = self._engine.call("GET", f"/containers/{self._id}/json", op="inspect it")["State"]
        except EngineRefused:  # removed by the engine (AutoRemove)
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


def _environment(image: Mapping[str, Any]) -> dict[str, str]:
    own = dict(each.partition("=")[::2] for each in (image.get("Config") or {}).get("Env") or [])
    ours = {name: value for name, value in forwarded().items() if name not in _OWN_VARIABLES}
    path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    return {**path, **ours, **own, "HOME": BOX_HOME, "USER": "box", "TMPDIR": "/tmp"}  # noqa: S108
