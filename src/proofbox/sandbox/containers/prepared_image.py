"""Stores the result of a provision script in a container, as an image of the engine."""

from __future__ import annotations

import msgspec

from proofbox.errors import EngineRefused, PolicyRefused
from proofbox.sandbox.containers.config import is_sealed
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.images import engine_image, inspect_image
from proofbox.sandbox.contract import Box, BoxSpec
from proofbox.sandbox.providers.docker import DockerBox

REPOSITORY = "proofbox-provisioned"
LABEL = "proofbox.provisioned"


class PreparedImages:
    def __init__(self) -> None:
        self._engine = ContainerEngine.find()

    def basis(self, spec: BoxSpec) -> str:
        policy = spec.policy
        if is_sealed(policy):
            raise PolicyRefused(
                f"runtime {policy.runtime} does not expose its root file system, so it can't be saved as an image",
                op="provision",
                fix_hints=["build an image (docker build), and remove `provision` from the settings"],
            )
        return str(inspect_image(self._engine, engine_image(self._engine, policy.image, spec.project))["Id"])

    def find(self, key: str, spec: BoxSpec) -> BoxSpec | None:
        reference = f"{REPOSITORY}:{key}"
        try:
            self._engine.call("GET", f"/images/{reference}/json", op="find the image")
        except EngineRefused as error:
            if error.details["status"] != 404:
                raise
            return None
        return msgspec.structs.replace(spec, policy=msgspec.structs.replace(spec.policy, image=reference))

    def begin(self, key: str, spec: BoxSpec) -> BoxSpec:  # noqa: ARG002 (part of the protocol)
        return spec

    def keep(self, key: str, box: Box) -> None:
        if not isinstance(box, DockerBox):
            raise TypeError(box)
        box.commit(f"{REPOSITORY}:{key}", {LABEL: key})

    def discard(self) -> None:
        """Do nothing: the container is removed with its box."""
