"""Resolve an image's name: an image of the engine, or one of the catalogue, which is imported at its first use.

A name in the catalogue always means the catalogue's image, even if the engine has one with that name: only the
catalogue's is pinned by a digest.
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
    """Return the engine's name for an image. Raises `ImageUnavailable` if it is in the catalogue and not pulled."""
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
    if isinstance(answer, dict) and answer.get("error"):  # reported with a status of success
        raise StartFailed(
            f"the engine can't import {image.name!r}: {str(answer['error'])[:500]}",
            op="start",
            fix_hints=["use a root file system as a tar archive"],
            details={"image": image.name, "sha256": image.sha256},
        )
