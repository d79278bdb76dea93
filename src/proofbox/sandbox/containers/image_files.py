"""Copy files out of an image without running anything in it, ask for its defaults, and build one."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from proofbox.core.archives.packing import without_owner
from proofbox.core.archives.unpack import MAX_ARCHIVE, ArchiveRefused, unpack_tar
from proofbox.core.files.removal import remove_tree
from proofbox.errors import EngineRefused, StartFailed
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.images import inspect_image
from proofbox.sandbox.containers.ownership import remove_container


def copy_from_image(image: str, place: str, dest: Path) -> bool:
    """Copy the directory `place` of `image` to `dest`, which is created; return whether the image has that directory.

    A container is created for it, never started, and removed. Owners, devices and sockets are left out. Links are
    copied as they are, and nothing is written through a link.
    """
    with _never_started(image, place) as (engine, container):
        dest.mkdir()
        try:
            with tempfile.TemporaryFile() as archive:
                engine.download(
                    f"/containers/{container}/archive",
                    archive,
                    op=f"copy {place} out of {image}",
                    query={"path": f"{place.rstrip('/')}/."},
                    limit=MAX_ARCHIVE.size,
                )
                archive.seek(0)
                unpack_tar(archive, dest, skip_devices=True)
        except EngineRefused as error:
            if error.details.get("status") != 404:
                raise
            return False
        except ArchiveRefused as error:
            remove_tree(dest)
            raise StartFailed(f"{place} of {image} can't be unpacked: {error}", op="image") from None
    return True


def export_image(image: str, file: BinaryIO) -> None:
    """Write the root file system of an image of the engine to a file, as tar."""
    with _never_started(image, "/") as (engine, container):
        engine.download(f"/containers/{container}/export", file, op=f"export {image}", query={}, limit=MAX_ARCHIVE.size)


@contextlib.contextmanager
def _never_started(image: str, label: str) -> Iterator[tuple[ContainerEngine, str]]:
    """Create a container that is never started, and remove it afterwards."""
    engine = ContainerEngine.find()
    inspect_image(engine, image)
    config = {"Image": image, "Cmd": ["-"], "Labels": {"proofbox.files": label}, "NetworkDisabled": True}
    container = engine.call("POST", "/containers/create", op="create a container", body=config)["Id"]
    try:
        yield engine, container
    finally:
        remove_container(engine, container)


class ImageDefaults(NamedTuple):
    """What an image sets for its containers; empty if not set."""

    workdir: str
    entrypoint: tuple[str, ...]


def image_defaults(image: str) -> ImageDefaults:
    config = inspect_image(ContainerEngine.find(), image).get("Config") or {}
    return ImageDefaults(str(config.get("WorkingDir") or ""), tuple(map(str, config.get("Entrypoint") or ())))


def build_image(context: Path, name: str, *, seconds: float) -> None:
    """Build an image from the Dockerfile in a directory, with the engine's own builder.

    The commands of the Dockerfile run in the engine's containers, with its network. Raises `EngineRefused` with the
    error that the build stated, or if it printed nothing for some seconds.
    """
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(context, arcname=".", filter=without_owner)
        archive.seek(0)
        query = {"t": name, "rm": "1", "forcerm": "1"}
        ContainerEngine.find().call("POST", "/build", op="build the image", query=query, body=archive, timeout=seconds)
