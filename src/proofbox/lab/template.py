"""What every attempt at a mission begins with: the mission's files, made a workspace once, and forked for each."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import msgspec

from proofbox.errors import SuiteInvalid, WorkspaceError, WorkspaceExists
from proofbox.lab.overlaying import Overlaid
from proofbox.sandbox.imagefiles import copy_from_image
from proofbox.workspace.workspace import Workspace

MOST_FILES = 1_000_000
MOST_BYTES = 64 << 30


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a template is made of, each over the one before it."""

    image: tuple[str, str] | None = None
    """An image, and the directory of it."""
    workspace: Path | None = None
    """A directory or an archive."""
    files: tuple[tuple[str, Path], ...] = ()
    """Places in it, and what goes there."""


def make_template(source: Source, dest: Path) -> str:
    """A workspace at `dest` with the files of its source, or none; the snapshot that forks start from.

    Made beside and moved into place: killed in the middle, the next call begins anew.
    """
    if not dest.exists():
        making = dest.with_name(f".{dest.name}.new")
        shutil.rmtree(making, ignore_errors=True)
        making.parent.mkdir(parents=True, exist_ok=True)
        _fill(source, making)
        os.rename(making, dest)
    try:
        workspace = Workspace.init(dest, track=False)
    except WorkspaceExists:
        workspace = Workspace.open(dest, track=False)
    with workspace:
        return workspace.snapshot("as given").id


def forget_templates(place: Path) -> None:
    """They are no workspaces any more; their stores hold what attempts left, and stay."""
    for template in place.iterdir() if place.is_dir() else ():
        with contextlib.suppress(WorkspaceError):
            Workspace.open(template, track=False).forget()


def _fill(source: Source, dest: Path) -> None:
    if source.image is not None:
        copy_from_image(*source.image, dest)
    _fill_from(source.workspace, dest)
    over = Overlaid(dest)
    for place, path in source.files:
        over.put(place, path)


def _fill_from(source: Path | None, dest: Path) -> None:
    if source is None:
        dest.mkdir(exist_ok=True)
    elif source.is_dir():
        shutil.copytree(source, dest, symlinks=True, dirs_exist_ok=True)
    elif tarfile.is_tarfile(source):
        dest.mkdir(exist_ok=True)
        with tarfile.open(source) as archive:
            members = archive.getmembers()
            _check_size(source, len(members), sum(member.size for member in members))
            archive.extractall(dest, filter="data")
    elif zipfile.is_zipfile(source):
        dest.mkdir(exist_ok=True)
        with zipfile.ZipFile(source) as archive:
            infos = archive.infolist()
            _check_size(source, len(infos), sum(info.file_size for info in infos))
            archive.extractall(dest)  # noqa: S202 - zipfile itself keeps members inside
            for info in infos:
                mode = info.external_attr >> 16 & 0o777
                if mode and not info.is_dir():
                    (dest / info.filename).chmod(mode)
    else:
        raise SuiteInvalid(
            f"{source} is neither a directory nor a tar or zip archive", op="suite", fix_hints=["name one of them"]
        )


def _check_size(source: Path, files: int, size: int) -> None:
    if files > MOST_FILES or size > MOST_BYTES:
        raise SuiteInvalid(f"{source} unpacks to {files} files of {size} bytes", op="suite")
