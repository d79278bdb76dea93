"""Images on this machine: pulled from the catalogue once, verified, and locked to a project.

Archives are in the user's cache as `images/<sha256>.rootfs`. A project's `.proofbox/images.lock` records the digest of
each name when it was pulled for that project: if the catalogue changes the digest later, that is an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from proofbox.config.project_files import write_project_file
from proofbox.core.digest import sha256_file
from proofbox.core.dirs import cache_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.plain import read_inside
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import ImageCorrupt, ImageLocked, ImageUnavailable, UsageError
from proofbox.sandbox.images.catalogue import Image, all_images, architecture, find_image, resolve_default_image
from proofbox.sandbox.images.download import OnProgress, download
from proofbox.sandbox.paths import resolve_project

LOCK_FILE = Path(".proofbox/images.lock")
LOCK_SCHEMA = "proofbox.images_lock/1"
LOCK_LIMIT = 1 << 20


class PulledImage(msgspec.Struct, frozen=True):
    """An image whose archive is on this machine, with a verified digest."""

    image: Image
    path: Path
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
    project_root: str | os.PathLike[str] = ".",
    arch: str | None = None,
    catalogue: Path | None = None,
    update: bool = False,
    on_progress: OnProgress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> PulledImage:
    """Download an image of the catalogue (by default, its default image), verify it, and lock the project to it.

    For example:

        proofbox.pull_image("debian", project_root=".")

    With `update`, a lock with another digest is replaced; otherwise it is an error.
    """
    project = resolve_project(project_root)
    image = (
        resolve_default_image(arch, catalogue=catalogue)
        if name is None
        else find_image(name, arch, catalogue=catalogue)
    )
    if not update:
        check_lock(project, image)
    place = archive(image)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    new = download(image.url, image.sha256, place, size=image.size, on_progress=on_progress, sleep=sleep)
    if not new:
        verified(image)
    _lock(project, image)
    return PulledImage(image, place, new)


def archive(image: Image) -> Path:
    """Return the path of its archive, also before it is pulled."""
    return cache_dir() / "images" / f"{image.sha256}.rootfs"


def catalogued(name: str, project: Path) -> Image | None:
    """Return the image with this name in the user's catalogue, checked against the project's lock, or None."""
    for image in all_images():
        if (image.name, image.arch) == (name, architecture()):
            check_lock(project, image)
            return image
    return None


def verified(image: Image) -> Path:
    """Return its archive after hashing it again. A damaged archive is removed."""
    place = archive(image)
    try:
        found, _ = sha256_file(place)
    except OSError:
        raise ImageUnavailable(
            f"the image {image.name!r} has not been pulled",
            op="start",
            fix_hints=[f"proofbox images pull {image.name}"],
            details={"image": image.name, "sha256": image.sha256},
        ) from None
    if found != image.sha256:
        place.unlink(missing_ok=True)
        raise ImageCorrupt(
            f"the archive of {image.name!r} was damaged on this machine, and has been removed",
            op="start",
            fix_hints=[f"proofbox images pull {image.name}"],
            details={"expected": image.sha256, "found": found},
        )
    return place


def check_lock(project: Path, image: Image) -> None:
    for locked in _locked(project):
        if (locked.name, locked.arch) == (image.name, image.arch) and locked.sha256 != image.sha256:
            raise ImageLocked(
                f"the project is locked to {locked.sha256} for {image.name!r}, but the catalogue has {image.sha256}",
                op="images",
                fix_hints=[f"if the change is intended: proofbox images pull {image.name} --update"],
                details={"image": image.name, "locked": locked.sha256, "catalogue": image.sha256},
            )


def _lock(project: Path, image: Image) -> None:
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
