"""Resolve an image's name: an image of the engine, or one of proofbox's, which the engine gets at its first use.

A name that proofbox knows (`proofbox images list`) always means proofbox's image, even if the engine has one with that
name: only proofbox's is pinned by a digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proofbox.errors import EngineRefused, ImageUnavailable, SandboxError, StartFailed
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.images.catalogue import resolve_default_image
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.images.local import verified
from proofbox.sandbox.images.pull import named_image, pull_image

REPOSITORY = "proofbox-image"
IMPORT_SECONDS = 600.0
PULL_SECONDS = 1800.0
LIST_SECONDS = 10.0


def engine_image(engine: ContainerEngine, name: str | None, project: Path) -> str:
    """Return the engine's name for an image; None stands for the default image.

    Raises `ImageUnavailable` if it has to be pulled or built first.
    """
    image = named_image(name or resolve_default_image().name, project)
    if image is None:
        return str(name)
    reference = _reference(image)
    if _has(engine, reference):
        return reference
    if image.engine_reference:
        raise ImageUnavailable(
            f"the engine has not pulled the image {image.name!r}",
            op="start",
            fix_hints=[f"proofbox images pull {image.name}"],
            details={"image": image.name, "reference": reference},
        )
    _import(engine, image)
    return reference


def image_digest(name: str, project: Path) -> str:
    """Return the digest of an image: that of its archive, or the engine's id of it, which is a digest as well."""
    image = named_image(name, project)
    if image is not None:
        return image.sha256
    return str(inspect_image(ContainerEngine.find(), name)["Id"]).removeprefix("sha256:")


def prepare_default_image(on_line: Callable[[str], None]) -> None:
    """Build or download the default image, unless the engine or this machine has it."""
    engine, image = ContainerEngine.find(), resolve_default_image()
    if image.sha256 and (image.archive.exists() or _has(engine, _reference(image))):
        return
    engine.call("GET", "/version", op="probe")  # an engine that can't be reached is reported before the long work
    on_line(f"preparing the image {image.name}, once")
    if image.source == "archive":
        pull_image(image.name, project_root=None)
    else:
        from proofbox.sandbox.images.build import build_image

        build_image(image.name, project_root=None, on_line=on_line)


def pull_reference(image: Image) -> bool:
    """Let the engine pull an OCI reference by digest. Return False if it has the image already, also without a network.

    Engines verify the digest themselves.
    """
    engine = ContainerEngine.find()
    if _has(engine, image.engine_reference):
        return False
    repository, _, digest = image.engine_reference.partition("@")
    query = {"fromImage": repository, "tag": digest}
    engine.call("POST", "/images/create", op=f"pull {image.name}", query=query, timeout=PULL_SECONDS)
    inspect_image(engine, image.engine_reference)
    return True


def engine_has(image: Image) -> bool:
    """Return whether the engine has the image of an OCI reference; False without an engine."""
    try:
        return _has(ContainerEngine.find(), image.engine_reference)
    except SandboxError:
        return False


def list_copies() -> list[tuple[str, int, float]]:
    """Return the copies of images that the engine has: name, size and time of the import. None without an engine."""
    query = {"filters": json.dumps({"reference": [f"{REPOSITORY}/*"]})}
    try:
        found = ContainerEngine.find().call("GET", "/images/json", op="list images", query=query, timeout=LIST_SECONDS)
    except SandboxError:
        return []
    return [
        (tag, int(each.get("Size") or 0), float(each.get("Created") or 0))
        for each in found or ()
        for tag in each.get("RepoTags") or ()
        if tag.startswith(f"{REPOSITORY}/")
    ]


def remove_copy(reference: str) -> None:
    """Remove a copy of an image from the engine, which refuses it while a container uses it."""
    ContainerEngine.find().call("DELETE", f"/images/{reference}", op="remove the image")


def _reference(image: Image) -> str:
    return image.engine_reference or f"{REPOSITORY}/{image.name}:{image.sha256}"


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
