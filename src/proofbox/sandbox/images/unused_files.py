"""Which files of the image directory can be deleted: archives and unpacked files that no name stands for, and files of
virtual machines, which are recreated when they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proofbox.core.dirs import cache_dir
from proofbox.sandbox.images.catalogue import read_catalogue
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.images.local import local_images
from proofbox.sandbox.images.received import received_dir
from proofbox.sandbox.images.recipes import KERNEL

YOUNG = 3600.0
"""Seconds during which a file without a name is kept: its record may be about to be written, or it is in use."""
MAKING = "signing-"
MACHINE_FILES = {
    ".acceleration": "how virtual machines run here",
    ".initramfs": "the first programs of virtual machines",
    ".template": "a template for virtual machines",
}


class ImageFile(NamedTuple):
    """An archive, the unpacked files of an image, or a file of virtual machines."""

    path: Path
    free: bool
    """Whether it can be deleted."""
    reason: str


def image_files(now: float) -> Iterator[ImageFile]:
    """Yield what is in the image directory. Raises `UsageError` if the catalogue or a record can't be read."""
    names = _names()
    for path in sorted(images_dir().glob("*")):
        digest = path.name.partition(".")[0]
        if path.suffix in (".json", ".lock"):
            continue
        what, young = MACHINE_FILES.get(path.suffix), now - path.lstat().st_mtime < YOUNG
        if path.suffix in (".rootfs", ".tree") and digest in names:
            named = "the kernel" if KERNEL in names[digest] else f"the image {_listed(names[digest])}"
            yield ImageFile(path, False, f"{named}, unpacked" if path.suffix == ".tree" else named)
        elif what is not None:  # a running machine does not need them any more
            yield ImageFile(path, not young, what if young else f"{what}, not used for an hour; recreated when needed")
        elif young:
            yield ImageFile(path, False, "new")
        elif _mounted(path):
            yield ImageFile(path, False, "in use by a box")
        else:
            yield ImageFile(path, True, "no image has this digest any more")


def signed_interpreters(now: float) -> Iterator[ImageFile]:
    """Yield the copies of Python that were signed for `apple-vm`. The newest is kept, and what is being made."""
    found = sorted((cache_dir() / "apple-vm").glob("*"), key=lambda path: path.lstat().st_mtime)
    newest = [path for path in found if not path.name.startswith(MAKING)][-1:]
    for path in found:
        young = now - path.lstat().st_mtime < YOUNG
        reason = "the Python of apple-vm" if path in newest else "new" if young else "of another Python"
        yield ImageFile(path, path not in newest and not young, reason)


class EngineCopy(NamedTuple):
    """A copy of an image in the container engine."""

    reference: str
    size: int
    free: bool
    reason: str


def engine_copies(now: float) -> list[EngineCopy]:
    """Return the copies that the container engine got of images; none without an engine that answers."""
    from proofbox.sandbox.containers.images import list_copies

    names, found = _names(), []
    received = {path.stem for path in received_dir().glob("*.tar")}
    for reference, size, created in list_copies():
        digest = reference.rpartition(":")[2]
        # Whatever the name of the copy: attempts on a node use the name that the image has on another machine.
        if digest in names:
            found.append(
                EngineCopy(reference, size, False, f"the image {_listed(names[digest])}, in the container engine")
            )
        elif digest in received:
            found.append(EngineCopy(reference, size, False, "an image that was sent to this node"))
        elif now - created < YOUNG:
            found.append(EngineCopy(reference, size, False, "new"))
        else:
            found.append(EngineCopy(reference, size, True, "no image has this digest any more"))
    return found


def _names() -> dict[str, set[str]]:
    """Return the names of images by digest. An image can have several."""
    names: dict[str, set[str]] = {}
    named = [(each.sha256, each.name) for each in read_catalogue()]
    for digest, name in [*named, *((each.sha256, each.name) for each in local_images())]:
        names.setdefault(digest, set()).add(name)
    return names


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _mounted(tree: Path) -> bool:
    """Return whether a process of this user (for root: any process) has files of the directory mounted."""
    wanted = f"{tree.name}/"
    for listing in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if wanted in listing.read_text(errors="replace"):
                return True
    return False
