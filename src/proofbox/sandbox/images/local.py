"""Images that were built or imported on this machine.

The archive of an image is `images/<sha256>.rootfs` in the user's cache, and `images/NAME-ARCH.json` records which
archive a name stands for. Building or importing a name again replaces the record; `proofbox gc` deletes archives that
no name stands for.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.digest import sha256_file
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import TEMPORARY_PREFIX, sync_directory, write_document
from proofbox.core.files.plain import read_plain
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import ImageCorrupt, ImageUnavailable, UsageError
from proofbox.sandbox.images.image import NAME, Image, Source, images_dir

RECORD_LIMIT = 64 << 10


@stored("proofbox.local_image/1", at="CACHE/images/NAME-ARCH.json")
class LocalImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that was built or imported on this machine."""

    name: str
    """The name that `--image` accepts."""
    arch: str
    sha256: str
    """The digest of its archive."""
    size: int
    """The size of its archive in bytes."""
    source: Source
    origin: str
    """Its origin: a mirror and its date, or a path."""
    created_at: str
    description: str = ""
    """A description for people."""
    schema_version: str = "proofbox.local_image/1"

    def image(self) -> Image:
        return Image(
            name=self.name,
            arch=self.arch,
            sha256=self.sha256,
            size=self.size,
            description=self.description,
            source=self.source,
        )


def local_images() -> list[LocalImage]:
    """Return the recorded images. A record that can't be read is an error: its name would mean another image."""
    return [_read(path) for path in sorted(images_dir().glob("*.json"))]


@contextlib.contextmanager
def new_archive() -> Iterator[Path]:
    """Yield the path of a temporary archive in the directory of images. It is removed unless `keep` has taken it."""
    directory = images_dir()
    directory.mkdir(mode=0o700, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=directory)
    os.close(fd)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def keep(
    archive: Path,
    name: str,
    arch: str,
    *,
    source: Source,
    origin: str,
    description: str = "",
    clock: Clock | None = None,
) -> LocalImage:
    """Move a finished archive to its place, and record the name."""
    digest, size = sha256_file(archive)
    record = LocalImage(
        name=name,
        arch=arch,
        sha256=digest,
        size=size,
        source=source,
        origin=origin,
        created_at=isoformat((clock or SystemClock()).now()),
        description=description,
    )
    with archive.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(archive, record.image().archive)
    sync_directory(images_dir())
    write_document(_path(name, arch), msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    return record


def forget(name: str, arch: str) -> None:
    """Remove the record of a name; its archive stays until `proofbox gc`."""
    _path(name, arch).unlink(missing_ok=True)


def verified(image: Image) -> Path:
    """Return the archive of an image after hashing it again. A damaged archive is removed."""
    if image.engine_reference:
        raise ImageUnavailable(
            f"the image {image.name!r} belongs to the container engine, so only docker can run it",
            op="start",
            fix_hints=[
                "use --provider docker",
                f"or import its files: proofbox images import docker:{image.engine_reference} {image.name}-files",
            ],
            details={"image": image.name, "sha256": image.sha256},
        )
    how = f"proofbox images {'build' if image.source == 'build' else 'pull'} {image.name}"
    if image.source == "import":
        how = f"import it again: proofbox images import SOURCE {image.name}"
    place = image.archive
    try:
        found, _ = sha256_file(place)
    except OSError:
        missing = {"build": "built", "import": "imported"}.get(image.source, "pulled")
        raise ImageUnavailable(
            f"the image {image.name!r} has not been {missing} on this machine",
            op="start",
            fix_hints=[how],
            details={"image": image.name, "sha256": image.sha256},
        ) from None
    if found != image.sha256:
        place.unlink(missing_ok=True)
        raise ImageCorrupt(
            f"the archive of {image.name!r} was damaged on this machine, and has been removed",
            op="start",
            fix_hints=[how],
            details={"expected": image.sha256, "found": found},
        )
    return place


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} can't be the name of an image",
            op="images",
            fix_hints=["use at most 64 lower-case letters, digits, dots, dashes and underscores"],
        )


def _path(name: str, arch: str) -> Path:
    return images_dir() / f"{name}-{arch}.json"


def _read(path: Path) -> LocalImage:
    try:
        data = read_plain(path, RECORD_LIMIT)
        require_version(data, "proofbox.local_image/1", path)
        found = parse_json(data, LocalImage)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{path} can't be used: {error}",
            op="images",
            fix_hints=[f"remove it: rm {path}, then build or import again"],
        ) from None
    if path != _path(found.name, found.arch) or not NAME.fullmatch(found.name):
        raise UsageError(f"{path} is about another image", op="images", fix_hints=[f"remove it: rm {path}"])
    return found
