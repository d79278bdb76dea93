"""Import an image from a directory, a tar archive, an OCI layout, or the local container engine."""

from __future__ import annotations

import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

from proofbox.core.archives.packing import without_owner_and_time
from proofbox.core.archives.unpack import ArchiveRefused, members, unpack_tar
from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.digest import sha256_file
from proofbox.core.files.overlaying import OverlayWriter
from proofbox.core.files.plain import open_plain, read_plain
from proofbox.core.files.removal import remove_tree
from proofbox.errors import ImageCorrupt, NotFoundError, UsageError
from proofbox.sandbox.images.catalogue import read_catalogue
from proofbox.sandbox.images.image import Image, architecture
from proofbox.sandbox.images.local import check_name, keep, new_archive
from proofbox.sandbox.images.recipes import DEBIAN_ARCHITECTURES, KERNEL, RECIPES

ENGINE_PREFIX = "docker:"
_DOCUMENT_LIMIT = 4 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def import_image(source: str | os.PathLike[str], name: str, *, description: str = "") -> Image:
    """Import an image under a name, from a directory, a tar archive, an OCI layout, or `docker:NAME`.

    For example:

        proofbox.import_image("rootfs.tar.gz", "my-tools")

    The same files give the same digest. Owners, devices and times of a directory are left out.
    """
    check_name(name)
    arch = architecture()
    if name in RECIPES or any((each.name, each.arch) == (name, arch) for each in read_catalogue()):
        raise UsageError(
            f"{name!r} is already the name of an image that proofbox builds or of one in your catalogue",
            op="images import",
            fix_hints=["choose another name"],
        )
    text = os.fspath(source)
    with new_archive() as archive:
        try:
            if text.startswith(ENGINE_PREFIX):
                _from_engine(text.removeprefix(ENGINE_PREFIX), archive)
            elif (Path(text) / "oci-layout").is_file():
                _from_layout(Path(text), archive)
            elif Path(text).is_dir():
                _from_directory(Path(text), archive)
            else:
                _from_tar(Path(text), archive)
        except ArchiveRefused as error:
            raise ImageCorrupt(
                f"{text} is not a root file system: {error}",
                op="images import",
                fix_hints=["import a directory, a tar archive, an OCI layout, or docker:NAME"],
            ) from None
        if name == KERNEL:
            from proofbox.sandbox.machines.kernel import check_kernel

            check_kernel(archive)
        record = keep(archive, name, arch, source="import", origin=text, description=description)
    return record.image()


def _from_tar(source: Path, archive: Path) -> None:
    try:
        with open_plain(source) as original, archive.open("wb") as copy:
            while piece := original.read(1 << 20):
                copy.write(piece)
    except FileNotFoundError:
        raise NotFoundError(f"{source} does not exist", op="images import", fix_hints=["check the path"]) from None
    except OSError as error:
        raise UsageError(f"{source} can't be read: {error.strerror}", op="images import") from None
    with archive.open("rb") as copy:
        names = set(members(copy))  # refuses an archive that could not be unpacked later
    if {"oci-layout", "index.json"} <= names:
        raise _not_files(source, "an OCI layout", f"unpack it: mkdir layout && tar -C layout -xf {quote(str(source))}")
    if "manifest.json" in names and any(name.endswith(("/layer.tar", "/json")) for name in names):
        hints = (
            f"docker load -i {quote(str(source))}",
            "import it from the engine: proofbox images import docker:IMAGE NAME",
        )
        raise _not_files(source, "an image of `docker save`", *hints)


def _not_files(source: Path, what: str, *hints: str) -> UsageError:
    return UsageError(f"{source} is {what}, not the files of an image", op="images import", fix_hints=hints)


def _from_directory(source: Path, archive: Path) -> None:
    """Write the directory as a tar: sorted, without owners and times, so that the same files give the same digest."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(source):
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                continue
            try:
                member = without_owner_and_time(tar.gettarinfo(path, str(path.relative_to(source))))
                tar.inodes = {}  # type: ignore[attr-defined]  # hard links as files: which comes first must not matter
                if member.isreg():
                    with path.open("rb") as file:
                        tar.addfile(member, file)
                else:
                    tar.addfile(member)
            except OSError as error:
                raise UsageError(
                    f"{path} can't be read: {error.strerror}", op="images import", fix_hints=["make it readable"]
                ) from None


def _walk(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = [name for name in folders if name not in links]
        yield from (Path(folder, name) for name in sorted([*files, *links, *folders]))


def _from_engine(name: str, archive: Path) -> None:
    from proofbox.sandbox.containers.image_files import export_image

    with archive.open("wb") as file:
        export_image(name, file)


# An OCI layout: a directory of blobs, each named by its digest.


def _from_layout(source: Path, archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="proofbox-image-", dir=archive.parent) as work:
        tree = Path(work, "tree")
        tree.mkdir()
        try:
            for layer in _layers(source):
                _apply(layer, tree)
            _from_directory(tree, archive)
        finally:
            remove_tree(tree)


def _layers(source: Path) -> list[Path]:
    """Return the layers of the image for this machine's architecture, the lowest first."""
    index = _document(source / "index.json")
    wanted = DEBIAN_ARCHITECTURES.get(architecture(), architecture())  # OCI uses the same names
    manifests = [each for each in _list(index, "manifests") if _runs_on(each, wanted)]
    if len(manifests) != 1:
        raise ArchiveRefused(f"it has {len(manifests)} images for {wanted}, not one")
    manifest = _document(_blob(source, manifests[0]))
    if "manifests" in manifest:  # an index of architectures
        found = [each for each in _list(manifest, "manifests") if _runs_on(each, wanted)]
        if len(found) != 1:
            raise ArchiveRefused(f"it has {len(found)} images for {wanted}, not one")
        manifest = _document(_blob(source, found[0]))
    return [_blob(source, layer) for layer in _list(manifest, "layers")]


def _runs_on(entry: Any, arch: str) -> bool:
    platform = entry.get("platform") if isinstance(entry, dict) else None
    return not isinstance(platform, dict) or (platform.get("architecture"), platform.get("os")) == (arch, "linux")


def _list(document: dict[str, Any], member: str) -> list[Any]:
    found = document.get(member)
    if not isinstance(found, list):
        raise ArchiveRefused(f"its index or manifest has no list {member!r}")
    return found


def _blob(source: Path, entry: Any) -> Path:
    digest = _DIGEST.fullmatch(str(entry.get("digest"))) if isinstance(entry, dict) else None
    if digest is None:
        raise ArchiveRefused("an entry has no sha256 digest")
    path = source / "blobs" / "sha256" / digest[1]
    try:
        found, _ = sha256_file(path)
    except OSError as error:
        raise ArchiveRefused(f"its blob {digest[1][:12]} can't be read: {error.strerror}") from None
    if found != digest[1]:
        raise ArchiveRefused(f"its blob {digest[1][:12]} has another digest: {found[:12]}")
    return path


def _document(path: Path) -> dict[str, Any]:
    try:
        found = parse_strict(read_plain(path, _DOCUMENT_LIMIT))
    except (OSError, CanonicalError) as error:
        raise ArchiveRefused(f"{path.name} can't be read: {error}") from None
    if not isinstance(found, dict):
        raise ArchiveRefused(f"{path.name} is not a JSON object")
    return found


def _apply(layer: Path, tree: Path) -> None:
    """Unpack a layer over the lower ones. Its whiteouts remove files of the lower layers, never its own."""
    over = OverlayWriter(tree)
    with open_plain(layer) as archive:
        if archive.read(4) == _ZSTD:
            raise ArchiveRefused(
                f"its layer {layer.name[:12]} is compressed with zstd, which is not supported; use gzip"
            )
        archive.seek(0)
        marks = [name for name in members(archive) if name.rpartition("/")[2].startswith(_WHITEOUT)]
        for mark in marks:
            folder, _, last = mark.rpartition("/")
            if last == _OPAQUE:
                with over.folder(folder) as fd:
                    left = os.listdir(fd)
                for name in left:
                    over.remove(f"{folder}/{name}" if folder else name)
            else:
                hidden = last.removeprefix(_WHITEOUT)
                over.remove(f"{folder}/{hidden}" if folder else hidden)
        archive.seek(0)
        unpack_tar(archive, tree, skip_devices=True)
    for mark in marks:
        over.remove(mark)
