"""Our containers on an engine that others may use as well: how they are labelled and removed.

A container ends with its client's stream or by its agent's idle time, and the engine then removes it. Containers remain
only if a client was killed between creating and starting one, or if the engine was killed. Their labels name their
owner.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import msgspec

from proofbox.core.dirs import state_dir
from proofbox.errors import EngineRefused, ProofboxError
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.host.processes import may_live, process_name

LABEL = "proofbox.session"
HOME = "proofbox.home"
OWNER = "proofbox.owner"
REMOVE_TIMEOUT = 20.0
ENGINE_TIMEOUT = 10.0
ENDING_TIMEOUT = 20.0


class Container(msgspec.Struct, frozen=True):
    id: str
    session: str
    owner: str


def labels(session: str, project: str) -> dict[str, str]:
    """Return a container's labels: its session, project and state directory, and the process that started it."""
    return {LABEL: session, "proofbox.project": project, HOME: _home(), OWNER: process_name(os.getpid())}


def our_containers(engine: ContainerEngine) -> dict[str, str]:
    """Return the containers with our label, of any user, by session id."""
    return {each.session: each.id for each in _containers(engine, LABEL)}


def reap_containers(running: Callable[[str], bool]) -> list[str]:
    """Remove this user's containers without a running session or client; return their sessions.

    Does nothing if there is no engine, or if it does not answer.
    """
    reaped = []
    try:
        engine = ContainerEngine.find()
        for each in _containers(engine, f"{HOME}={_home()}"):
            if not running(each.session) and not may_live(each.owner):
                remove_container(engine, each.id)
                reaped.append(each.session)
    except ProofboxError:
        pass
    return reaped


def await_removal(engine: ContainerEngine, container: str) -> None:
    """Wait a moment for a container that is ending and will be removed by the engine.

    Killing it while it ends makes the engine wait forever with some runtimes (gVisor).
    """
    query = {"condition": "removed"}
    try:
        engine.call("POST", f"/containers/{container}/wait", op="wait", query=query, timeout=ENDING_TIMEOUT)
    except ProofboxError:
        pass


def kill_container(engine: ContainerEngine, container: str) -> None:
    """Kill everything in a container. Not an error if it has already ended."""
    try:
        engine.call("POST", f"/containers/{container}/kill", op="kill the container")
    except EngineRefused as error:
        if error.details["status"] not in (404, 409):
            raise


def remove_container(engine: ContainerEngine, container: str) -> None:
    """Remove a container and wait for that. Not an error if it is already removed."""
    query = {"force": "1", "v": "1"}
    deadline = time.monotonic() + REMOVE_TIMEOUT
    while True:
        try:
            engine.call("DELETE", f"/containers/{container}", op="remove the container", query=query)
        except EngineRefused as error:
            if error.details["status"] == 404:
                return
            if error.details["status"] != 409 or time.monotonic() > deadline:  # 409: the engine is removing it
                raise
            time.sleep(0.02)
        else:
            return


def _containers(engine: ContainerEngine, label: str) -> Iterator[Container]:
    query = {"all": "1", "filters": msgspec.json.encode({"label": [label]}).decode()}
    found = engine.call("GET", "/containers/json", op="list containers", query=query, timeout=ENGINE_TIMEOUT) or []
    for each in found:
        yield Container(each["Id"], each["Labels"].get(LABEL, ""), each["Labels"].get(OWNER, ""))


def _home() -> str:
    from hashlib import sha256

    return sha256(os.fsencode(state_dir().resolve())).hexdigest()[:16] + f"-{os.geteuid()}"
