"""The files that an image has at a place, without running anything of it."""

from __future__ import annotations

import shutil
import stat
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO

from proofbox.errors import EngineRefused, StartFailed
from proofbox.sandbox.containers import remove_container
from proofbox.sandbox.engine import Engine
from proofbox.sandbox.engine_images import inspect_image

MOST_BYTES = 64 << 30
MOST_FILES = 1_000_000


def copy_from_image(image: str, place: str, dest: Path) -> bool:
    """Put what `image` has in its directory `place` into `dest`, which is made; whether there was such a directory.

    A container is created for it, never started, and removed. Owners, devices and sockets are left out; links stay as
    they are, and nothing is written through one.
    """
    engine = Engine.find()
    inspect_image(engine, image)
    config = {"Image": image, "Cmd": ["-"], "Labels": {"proofbox.files": place}, "NetworkDisabled": True}
    container = engine.call("POST", "/containers/create", op="create a container", body=config)["Id"]
    dest.mkdir()
    try:
        with tempfile.TemporaryFile() as archive:
            engine.download(
                f"/containers/{container}/archive",
                archive,
                op=f"copy {place} out of {image}",
                query={"path": f"{place.rstrip('/')}/."},
                limit=MOST_BYTES,
            )
            archive.seek(0)
            _unpack(archive, dest)
    except EngineRefused as error:
        if error.details.get("status") != 404:
            raise
        return False
    except tarfile.TarError as error:
        shutil.rmtree(dest, ignore_errors=True)
        raise StartFailed(f"{place} of {image} can't be unpacked: {error}", op="image") from None
    finally:
        remove_container(engine, container)
    return True


def working_directory(image: str) -> str:
    """Where the image's commands begin; empty where it does not say."""
    return str((inspect_image(Engine.find(), image).get("Config") or {}).get("WorkingDir") or "")


def _unpack(archive: IO[bytes], dest: Path) -> None:
    with tarfile.open(fileobj=archive) as tar:
        for number, member in enumerate(tar):
            if number > MOST_FILES:
                raise tarfile.TarError(f"it has more than {MOST_FILES} files")
            itself = PurePosixPath(member.name) == PurePosixPath(".")
            if not itself and (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                tar.extract(member, dest, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo, dest: str) -> tarfile.TarInfo | None:
    found = tarfile.tar_filter(member, dest)
    mode = (found.mode or 0) | (stat.S_IRWXU if found.isdir() else stat.S_IRUSR | stat.S_IWUSR)
    return found.replace(uid=None, gid=None, uname=None, gname=None, mode=mode, deep=False)  # type: ignore[arg-type]
