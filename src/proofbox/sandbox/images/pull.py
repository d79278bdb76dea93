"""Images for a project: downloaded once, verified, and locked to the project.

Archives are in the user's cache as `images/<sha256>.rootfs`. A project's `.proofbox/images.lock` records the digest of
each name when it was pulled or built for that project: if the name later stands for another digest, that is an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proofbox.config.project_files import write_project_file
from proofbox.core.documents import require_version, stored
from proofbox.core.files.plain import read_inside
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import ImageLocked, ImageUnknown, UsageError
from proofbox.sandbox.images.catalogue import find_image, list_images, resolve_default_image
from proofbox.sandbox.images.image import Image, images_dir
from proofbox.sandbox.images.local import verified
from proofbox.sandbox.images.received import image_by_digest
from proofbox.sandbox.images.recipes import KERNEL
from proofbox.sandbox.paths import resolve_project

if TYPE_CHECKING:
    from proofbox.sandbox.images.download import OnProgress

LOCK_FILE = Path(".proofbox/images.lock")
LOCK_SCHEMA = "proofbox.images_lock/1"
LOCK_LIMIT = 1 << 20


class PulledImage(msgspec.Struct, frozen=True):
    """An image on this machine, with a verified digest."""

    image: Image
    path: Path
    """Its archive; `.` if the container engine has it."""
    downloaded: bool
    """False if it was on this machine already."""


class Locked(msgspec.Struct, frozen=True):
    name: str
    """Its name in the project and in the catalogue."""
    arch: str
    url: str
    """The address it was downloaded from."""
    sha256: str


@stored(LOCK_SCHEMA, at="PROJECT/.proofbox/images.lock")
class _Lock(msgspec.Struct, frozen=True):
    """The image behind each name in a project. An image with another digest is refused."""

    images: tuple[Locked, ...] = ()
    """One for each name and architecture."""
    schema_version: str = LOCK_SCHEMA


def pull_image(
    name: str | None = None,
    *,
    project_root: str | os.PathLike[str] | None = ".",
    arch: str | None = None,
    catalogue: Path | None = None,
    update: bool = False,
    on_progress: OnProgress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> PulledImage:
    """Download an image of the catalogue (by default, its default image), verify it, and lock the project to it.

    An OCI reference is pulled by the container engine, which verifies its digest.

    For example:

        proofbox.pull_image("debian", project_root=".")

    With `update`, a lock with another digest is replaced; otherwise it is an error. With `project_root=None`, no
    project is locked.
    """
    project = None if project_root is None else resolve_project(project_root)
    image = (
        resolve_default_image(arch, catalogue=catalogue)
        if name is None
        else find_image(name, arch, catalogue=catalogue)
    )
    if project is not None and not update:
        check_lock(project, image)
    if image.engine_reference:
        from proofbox.sandbox.containers.images import pull_reference

        new = pull_reference(image)
    elif image.source != "archive":
        verified(image)
        new = False
    else:
        from proofbox.sandbox.images.download import download

        images_dir().mkdir(mode=0o700, exist_ok=True)
        new = download(image.url, image.sha256, image.archive, size=image.size, on_progress=on_progress, sleep=sleep)
        if not new:
            verified(image)
    if project is not None:
        lock_image(project, image)
    return PulledImage(image, Path() if image.engine_reference else image.archive, new)


def is_here(image: Image) -> bool:
    """Return whether an image is on this machine: its archive, or the engine's image."""
    if not image.engine_reference:
        return bool(image.sha256) and image.archive.exists()
    from proofbox.sandbox.containers.images import engine_has

    return engine_has(image)


def named_image(name: str, project: Path) -> Image | None:
    """Return the image with this name or digest, checked against the project's lock; None if it does not exist.

    Raises `ImageUnavailable` if it is to be built on this machine and has not been.
    """
    found = image_by_digest(name) or next((each for each in list_images() if name in (each.name, each.reference)), None)
    if found is None:
        return None
    if found.name == KERNEL:
        raise ImageUnknown(f"{KERNEL!r} is the kernel for virtual machines, not a root file system", op="start")
    if not found.sha256:
        verified(found)
    check_lock(project, found)
    return found


def require_built(name: str) -> None:
    """Raise `ImageUnavailable` if the image with this name is to be built on this machine and has not been."""
    for image in list_images():
        if name == image.name and not image.sha256:
            verified(image)


def runnable_image(name: str, project: Path) -> Image:
    """Return the image with this name for a provider without an engine, or raise `ImageUnknown`."""
    return named_image(name, project) or find_image(name)


def check_lock(project: Path, image: Image) -> None:
    for locked in _locked(project):
        if (locked.name, locked.arch) == (image.name, image.arch) and locked.sha256 != image.sha256:
            raise ImageLocked(
                f"the project is locked to {locked.sha256} for {image.name!r}, but the image is now {image.sha256}",
                op="images",
                fix_hints=[f"if the change is intended: proofbox images pull {image.name} --update"],
                details={"image": image.name, "locked": locked.sha256, "catalogue": image.sha256},
            )


def lock_image(project: Path, image: Image) -> None:
    """Record in the project which image its name stands for."""
    others = [each for each in _locked(project) if (each.name, each.arch) != (image.name, image.arch)]
    images = sorted([*others, Locked(image.name, image.arch, image.url, image.sha256)], key=lambda i: (i.name, i.arch))
    path = project / LOCK_FILE
    data = msgspec.json.format(msgspec.json.encode(_Lock(tuple(images))), indent=2) + b"\n"
    if not path.exists() or read_inside(project, LOCK_FILE, LOCK_LIMIT) != data:
        write_project_file(project, LOCK_FILE, data)


def _locked(project: Path) -> tuple[Locked, ...]:
    path = project / LOCK_FILE
    try:
        data = read_inside(project, LOCK_FILE, LOCK_LIMIT)
        require_version(data, LOCK_SCHEMA, path)
        found = parse_json(data, _Lock)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        raise _wrong(path, str(error)) from None
    return found.images


def _wrong(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} can't be used: {why}", op="images", fix_hints=["restore it, or remove it"])
