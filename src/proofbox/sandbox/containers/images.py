"""What an engine is to run by an image's name: one of its own, or one of the catalogue, imported when it is first used.

A name of the catalogue means the catalogue's image, whatever the engine calls by that name: only that one is pinned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proofbox.errors import EngineRefused, StartFailed
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.images.catalogue import Image
from proofbox.sandbox.images.pull import catalogued, verified

REPOSITORY = "proofbox-image"
IMPORT_SECONDS = 600.0


def engine_image(engine: ContainerEngine, name: str, project: Path) -> str:
    """The engine's own name for it. Raises `ImageUnavailable` for one of the catalogue that was not pulled yet."""
    image = catalogued(name, project)
    if image is None:
        return name
    reference = f"{REPOSITORY}/{image.name}:{image.sha256}"
    if not _has(engine, reference):
        _import(engine, image)
    return reference


def inspect_image(engine: ContainerEngine, name: str) -> dict[str, Any]:
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


def _has(engine: ContainerEngine, reference: str) -> bool:
    try:
        engine.call("GET", f"/images/{reference}/json", op="find the image")
    except EngineRefused as error:
        if error.details["status"] != 404:
            raise
        return False
    return True


def _import(engine: ContainerEngine, image: Image) -> None:
    query = {"fromSrc": "-", "repo": f"{REPOSITORY}/{image.name}", "tag": image.sha256}
    with verified(image).open("rb") as archive:
        answer = engine.call(
            "POST", "/images/create", op="import the image", query=query, body=archive, timeout=IMPORT_SECONDS
        )
    if isinstance(answer, dict) and answer.get("error"):  # said in the body of a success
        raise StartFailed(
            f"the engine can't import {image.name!r}: {str(answer['error'])[:500]}",
            op="start",
            fix_hints=["give a root file system as a tar archive"],
            details={"image": image.name, "sha256": image.sha256},
        )
