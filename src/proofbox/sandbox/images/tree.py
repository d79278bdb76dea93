"""The unpacked files of an image, for providers that mount them as the root of a box."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from proofbox.core.archives.unpack import ArchiveRefused, unpack_tar
from proofbox.core.files.locks import locked
from proofbox.core.files.plain import open_plain
from proofbox.core.files.removal import remove_tree
from proofbox.errors import ImageCorrupt
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.images.local import verified

# Made by the box itself, never taken from the image.
_OWN = {"dev", "home", "proc", "run", "sys", "tmp"}
# A box mounts its own files over these; a mount needs an existing place.
_PLACES = ("etc/group", "etc/hosts", "etc/passwd", "etc/resolv.conf")
_MAX_LINKS = 40  # that the kernel follows


def unpacked(image: Image) -> Path:
    """Return the directory with the image's files. The archive is verified and unpacked at the first use."""
    tree = image.archive.with_suffix(".tree")
    if tree.is_dir():
        return tree
    image.archive.parent.mkdir(mode=0o700, exist_ok=True)
    with locked(image.archive.with_suffix(".lock")):
        if not tree.is_dir():
            _unpack(image, tree)
    return tree


def root_entries(tree: Path, places: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the files and directories of an image that form a root, each with its path in the box.

    A directory that lacks one of `places`, where something is to be mounted, is replaced by its entries, so that the
    place can be made.
    """
    for entry in sorted(tree.iterdir()):
        if entry.name not in _OWN:
            yield from _entries(entry, Path("/", entry.name), places)


def refuse_links_out(tree: Path, places: Collection[Path]) -> None:
    """Raise ImageCorrupt if a link of the image leads one of these places in the box out of the image.

    While bubblewrap makes places for mounts, the host's files are below another directory, where such a link can lead.
    Places inside another one are on files of that mount, not of the image.
    """
    for place in places:
        if not any(above in places for above in place.parents) and _leads_out(tree, place):
            raise ImageCorrupt(
                f"the image can't be used: {place} leads out of the image by a link",
                op="start",
                fix_hints=["make the link relative, or replace it with a directory, and import the image again"],
                details={"place": str(place)},
            )


def _leads_out(tree: Path, place: Path) -> bool:
    waiting, at, links = list(place.parts[1:]), list[str](), 0
    while waiting:
        name = waiting.pop(0)
        if name == ".." and not at:
            return True
        if name == "..":
            at.pop()
        elif name not in ("", "."):
            at.append(name)
        entry = tree.joinpath(*at)
        if at and at[0] not in _OWN and entry.is_symlink():
            target, links = os.readlink(entry), links + 1
            if target.startswith("/") or links > _MAX_LINKS:
                return True
            at.pop()
            waiting[:0] = target.split("/")
    return False


def _entries(source: Path, place: Path, places: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    missing = [
        each for each in places if place in each.parents and not os.path.lexists(source / each.relative_to(place))
    ]
    if not missing or source.is_symlink() or not source.is_dir():
        yield source, place
        return
    for entry in sorted(source.iterdir()):
        yield from _entries(entry, place / entry.name, places)


def _unpack(image: Image, tree: Path) -> None:
    for left in tree.parent.glob(f"{tree.name}.making-*"):  # of a killed process: we hold the lock
        remove_tree(left)
    making = Path(f"{tree}.making-{secrets.token_hex(4)}")
    making.mkdir(mode=0o755)
    try:
        with open_plain(verified(image)) as archive:
            unpack_tar(archive, making, skip_devices=True)
        for name in _PLACES:
            _make_place(making, name)
        if _can_have(making, "var/tmp") and not os.path.lexists(making / "var/tmp"):
            (making / "var/tmp").mkdir(parents=True)
        making.rename(tree)
    except ArchiveRefused as error:
        raise ImageCorrupt(
            f"the image {image.name!r} can't be unpacked: {error}",
            op="start",
            fix_hints=["use a root file system as a tar archive"],
            details={"image": image.name, "sha256": image.sha256},
        ) from None
    finally:
        if making.exists():
            remove_tree(making)


def _make_place(tree: Path, name: str) -> None:
    """Make a regular file. A link there could lead anywhere, so it is replaced."""
    path = tree / name
    if not _can_have(tree, name):
        return
    path.parent.mkdir(exist_ok=True)
    if path.is_symlink():
        path.unlink()
    if not path.exists():
        path.touch(mode=0o644)


def _can_have(tree: Path, name: str) -> bool:
    """Return whether an entry can be made in a directory of the tree: if the directory is a link, it may be outside."""
    parent = (tree / name).parent
    return not os.path.lexists(parent) or (parent.is_dir() and not parent.is_symlink())
