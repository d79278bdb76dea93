"""The images of a run, by digest.

A name can stand for different images on different machines, so nodes get references with digests. An archive is sent
to the nodes that lack it. An image of a container engine must be in the engine of each node; one that the catalogue
does not pin is known by its name alone.
"""

from __future__ import annotations

import functools

import msgspec

from proofbox.errors import EngineUnavailable, SandboxError
from proofbox.lab.run.plan import Plan
from proofbox.lab.suite.reading import Suite
from proofbox.sandbox.images.catalogue import list_images, resolve_default_image
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.images.local import verified


class RunImages(msgspec.Struct, frozen=True):
    """The images that the boxes of a run use."""

    references: dict[str, str] = {}
    """By mission. Missions whose boxes have the programs of the node are not listed."""
    archives: dict[str, Image] = {}
    """By reference, the images that are archives of this machine."""

    @property
    def in_engine(self) -> list[str]:
        """The references to images that the engine of each node must have."""
        return sorted(set(self.references.values()) - set(self.archives))


def find_images(plan: Plan) -> RunImages:
    """Find the images of a run on this machine. Raises `EngineUnavailable` if an archive is missing or damaged."""
    references: dict[str, str] = {}
    archives: dict[str, Image] = {}
    listed = functools.cache(list_images)
    for mission in plan.suite().missions:
        name = mission.image or plan.box_settings.image
        if name is None and plan.provider_of(mission) == "docker":
            name = resolve_default_image().name
        if name is None:
            continue
        image = next((each for each in listed() if name in (each.name, each.reference)), None)
        if image is None:
            references[mission.id] = name
        elif image.engine_reference:
            references[mission.id] = image.engine_reference
        else:
            if image.reference not in archives:
                _require(image)
            references[mission.id] = image.reference
            archives[image.reference] = image
    return RunImages(references, archives)


def with_images(suite: Suite, references: dict[str, str]) -> Suite:
    """Return a suite whose missions name their images by these references."""
    missions = tuple(msgspec.structs.replace(each, image=references.get(each.id)) for each in suite.missions)
    return msgspec.structs.replace(suite, missions=missions)


def _require(image: Image) -> None:
    try:
        verified(image)
    except SandboxError as error:
        raise EngineUnavailable(error.message, op="engine", fix_hints=error.fix_hints) from error
