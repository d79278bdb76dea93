"""Which files of the image directory can be deleted: archives and unpacked files that no name stands for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proofbox.sandbox.images.catalogue import read_catalogue
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.images.local import local_images

YOUNG = 3600.0
"""Seconds during which a file without a name is kept: its record may be about to be written."""


class ImageFile(NamedTuple):
    """An archive or the unpacked files of an image."""

    path: Path
    free: bool
    """Whether it can be deleted."""
    reason: str


def image_files(now: float) -> Iterator[ImageFile]:
    """Yield what is in the image directory. Raises `UsageError` if the catalogue or a record can't be read."""
    names = {image.sha256: image.name for image in read_catalogue()}
    names |= {image.sha256: image.name for image in local_images()}
    for path in sorted(images_dir().glob("*")):
        digest = path.name.partition(".")[0]
        if path.suffix in (".json", ".lock"):
            continue
        if path.suffix in (".rootfs", ".tree") and digest in names:
            yield ImageFile(path, False, f"the image {names[digest]}")
        elif now - path.lstat().st_mtime < YOUNG:
            yield ImageFile(path, False, "new")
        elif _mounted(path):
            yield ImageFile(path, False, "in use by a box")
        else:
            yield ImageFile(path, True, "no image has this digest any more")


def _mounted(tree: Path) -> bool:
    """Return whether a process of this user (for root: any process) has files of the directory mounted."""
    wanted = f"{tree.name}/"
    for listing in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if wanted in listing.read_text(errors="replace"):
                return True
    return False
