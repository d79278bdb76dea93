"""Images by digest, on a machine where the name may stand for another image or for none.

A run on a cluster refers to its images as `NAME@sha256:DIGEST`. Archives that its conductor sent are not among the
images of this machine: they have no names here, and only such a reference finds one.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from proofbox.core.dirs import cache_dir
from proofbox.sandbox.images.catalogue import list_images
from proofbox.sandbox.images.image import NAME, Image, architecture

_REFERENCE = re.compile(rf"({NAME.pattern})@sha256:([0-9a-f]{{64}})")


class ReceivedImage(Image, frozen=True):
    """An image whose archive was sent to this machine."""

    @property
    def archive(self) -> Path:
        return received_dir() / f"{self.sha256}.tar"


def received_dir() -> Path:
    """Return the directory of the archives that were sent to this machine, each named by its digest."""
    return cache_dir() / "ray" / "parcels"


def image_by_digest(reference: str) -> Image | None:
    """Return the image with the digest of a reference, regardless of its name here; None if its archive is not here."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        return None
    name, digest = found.groups()
    if own := own_image(digest):
        return msgspec.structs.replace(own, name=name)
    received = ReceivedImage(name=name, arch=architecture(), sha256=digest, source="import")
    return received if received.archive.exists() else None


def own_image(digest: str) -> Image | None:
    """Return the image of this machine with this digest, if its archive is here."""
    return next((each for each in list_images() if each.sha256 == digest and each.archive.exists()), None)
