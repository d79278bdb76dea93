"""The images that `--image` can name: the user's catalogue, images built or imported here, and the built-in recipes.

    # images.toml in the user's configuration directory
    schema_version = "proofbox.images/1"

    [[image]]
    name = "small"
    arch = "x86_64"
    url = "https://example.org/small-rootfs.tar.gz"    # a root file system as tar: plain, gzip, bzip2 or xz
    sha256 = "…"
    size = 3400000       # optional: bytes
    default = true       # optional

    [[image]]
    name = "tools"
    arch = "x86_64"
    url = "docker://docker.io/library/debian@sha256:…"    # an OCI reference by digest: the container engine pulls it
    sha256 = "…"         # the same digest

A name in the user's catalogue comes before an image of this machine with the same name. A project has no catalogue,
since the commands in its boxes may be able to write to it.
"""

from __future__ import annotations

import re
import tomllib
import urllib.parse
from pathlib import Path
from shlex import quote

import msgspec

from proofbox.core.dirs import config_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.plain import read_plain
from proofbox.core.parsing.toml import parse_toml
from proofbox.errors import ImageUnavailable, ImageUnknown, UsageError
from proofbox.sandbox.images.image import ENGINE_URL, NAME, Image, architecture, is_other_spelling
from proofbox.sandbox.images.local import local_images
from proofbox.sandbox.images.recipes import DEFAULT, recipe_images

SCHEMA = "proofbox.images/1"
SIZE_LIMIT = 1 << 20
_ARCH = re.compile(r"[a-z0-9_]{1,16}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A registry, a repository, and a digest: a tag could stand for another image tomorrow.
_OCI = re.compile(r"[a-z0-9][a-z0-9.-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)+@sha256:([0-9a-f]{64})")


class CatalogueEntry(msgspec.Struct, frozen=True):
    """A root file system that can be downloaded, and the digest that its archive must have."""

    name: str
    """The name that `--image` and `images pull` accept."""
    arch: str
    url: str
    """The URL of its archive; or `docker://` and an OCI reference by digest, which the container engine pulls."""
    sha256: str
    size: int | None = None
    """The archive's size in bytes; absent: unknown."""
    default: bool = False
    """Whether it is used by default."""
    description: str = ""
    """A description for people."""


@stored(SCHEMA, at="CONFIG/images.toml, or the file that --catalogue names")
class _Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The images that can be pulled, each pinned by its digest."""

    schema_version: str
    image: tuple[CatalogueEntry, ...] = ()
    """One table per image."""


def catalogue_file() -> Path:
    return config_dir() / "images.toml"


def list_images(arch: str | None = None, *, catalogue: Path | None = None) -> list[Image]:
    """Return the images for an architecture; by default, for this machine's.

    For example:

        for image in proofbox.list_images():
            print(image.name, image.arch)

    With `catalogue`, only the images of that file.
    """
    wanted = architecture(arch)
    listed = [image for image in read_catalogue(catalogue) if image.arch == wanted]
    if catalogue is not None:
        return listed
    chosen = next((image.name for image in listed if image.default), DEFAULT if len(listed) != 1 else listed[0].name)
    local = [each.image() for each in local_images() if each.arch == wanted]
    named: dict[str, Image] = {}
    for image in (*listed, *local, *recipe_images(wanted)):
        named.setdefault(image.name, image)
    return [msgspec.structs.replace(image, default=True) if image.name == chosen else image for image in named.values()]


def resolve_default_image(arch: str | None = None, *, catalogue: Path | None = None) -> Image:
    """Return the default image: the one that the catalogue marks, or its only one, or the smallest built-in image.

    For example:

        image = proofbox.resolve_default_image()
    """
    found = list_images(arch, catalogue=catalogue)
    marked = [image for image in found if image.default] or (found if len(found) == 1 else [])
    if not marked:
        path = catalogue or catalogue_file()
        raise ImageUnavailable(
            f"{path} names no default image for {architecture(arch)}"
            if found
            else f"there is no image for {architecture(arch)} in {path}",
            op="images",
            fix_hints=["mark one of them: default = true"] if found else [how_to_add(path)],
            details={"arch": architecture(arch), "catalogue": str(path), "known": [image.name for image in found]},
        )
    return marked[0]


def find_image(name: str, arch: str | None = None, *, catalogue: Path | None = None) -> Image:
    """Return the image with this name (or `NAME@sha256:DIGEST`), or raise `ImageUnknown`."""
    found = list_images(arch, catalogue=catalogue)
    for image in found:
        if name in (image.name, image.reference):
            return image
    path = catalogue or catalogue_file()
    known = ", ".join(image.name for image in found)
    raise ImageUnknown(
        f"there is no image {name[:80]!r} for {architecture(arch)}" + (f" in {path}" if catalogue else ""),
        op="images",
        fix_hints=[
            f"known: {known}" if known else how_to_add(path),
            f"import it: proofbox images import docker:{name[:80]} NAME",
        ],
        details={"image": name[:80], "arch": architecture(arch), "catalogue": str(path)},
    )


def how_to_add(path: Path) -> str:
    return f"add one to {path}: [[image]] with name, arch, url and sha256 (`proofbox images list --help` shows how)"


def read_catalogue(catalogue: Path | None = None) -> tuple[Image, ...]:
    """Return the images of the user's catalogue, checked. A missing file counts as empty, unless it was named."""
    path = catalogue or catalogue_file()
    try:
        data = read_plain(path, SIZE_LIMIT + 1)
    except FileNotFoundError:
        if catalogue is not None:
            raise UsageError(f"{path} does not exist", op="images", fix_hints=["check the path"]) from None
        return ()
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror}",
            op="images",
            fix_hints=[f"check its permissions: ls -l {quote(str(path))}"],
        ) from None
    if len(data) > SIZE_LIMIT:
        raise _invalid(path, f"it is larger than {SIZE_LIMIT >> 10} KiB")
    try:
        values = parse_toml(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _invalid(path, f"not valid TOML: {error}") from None
    if "schema_version" not in values:
        raise _invalid(path, f"it has no schema_version; add {SCHEMA!r}")
    require_version(values, SCHEMA, path)
    try:
        images = msgspec.convert(values, _Catalogue).image
    except msgspec.ValidationError as error:
        raise _invalid(path, str(error)) from None
    for image in images:
        problem = _problem(image)
        if problem:
            raise _invalid(path, f"image {image.name[:80]!r}: {problem}")
    _distinct(path, images)
    return tuple(Image(**msgspec.structs.asdict(image)) for image in images)


def _problem(image: CatalogueEntry) -> str:
    if not NAME.fullmatch(image.name):
        return "a name has at most 64 lower-case letters, digits, dots, dashes and underscores"
    if not _ARCH.fullmatch(image.arch) or is_other_spelling(image.arch):
        return f"unknown architecture {image.arch[:40]!r}; write x86_64 or aarch64"
    if not _SHA256.fullmatch(image.sha256):
        return "sha256 is not 64 lower-case hexadecimal digits"
    if image.url.startswith(ENGINE_URL):
        found = _OCI.fullmatch(image.url.removeprefix(ENGINE_URL))
        if found is None:
            return "the url is not docker://REGISTRY/NAME@sha256:DIGEST"
        return "" if found[1] == image.sha256 else "sha256 is not the digest in its url"
    try:
        url = urllib.parse.urlsplit(image.url)
        valid = url.scheme in ("http", "https") and url.hostname and url.username is None
    except ValueError:
        valid = None
    if not valid:
        return "the url is not an http(s):// address, or contains a user name"
    return "size must be greater than 0" if image.size is not None and image.size <= 0 else ""


def _distinct(path: Path, images: tuple[CatalogueEntry, ...]) -> None:
    seen: set[tuple[str, str]] = set()
    defaults: set[str] = set()
    for image in images:
        if (image.name, image.arch) in seen:
            raise _invalid(path, f"{image.name!r} is listed twice for {image.arch}")
        if image.default and image.arch in defaults:
            raise _invalid(path, f"{image.arch} has two defaults")
        seen.add((image.name, image.arch))
        defaults |= {image.arch} if image.default else set()


def _invalid(path: Path, problem: str) -> UsageError:
    return UsageError(
        f"{path}: {problem}",
        op="images",
        fix_hints=["fix it; `proofbox images list --help` shows an example"],
        details={"catalogue": str(path)},
    )
