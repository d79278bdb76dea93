"""`images`: list and download the images that boxes can use as their root file system."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import progress_bar, watched
from proofbox.sandbox.images import catalogue as catalogues
from proofbox.sandbox.images.catalogue import Image
from proofbox.sandbox.paths import resolve_project

Arch = Annotated[str | None, Parameter(name="--arch", help="x86_64 or aarch64. Default: this machine's.")]
Catalogue = Annotated[
    Path | None, Parameter(name="--catalogue", help="Another catalogue file instead of your own (images.toml).")
]


class ImageFacts(msgspec.Struct, frozen=True):
    name: str
    """The name that `--image` and `images pull` accept."""
    arch: str
    url: str
    """The URL of its archive."""
    sha256: str
    size: int | None
    """The archive's size in bytes; null: unknown."""
    default: bool
    """Whether `images pull` and `images default` use it by default."""
    description: str
    """A description for people; may be empty."""
    pulled: bool
    """Whether its archive is on this machine."""

    @classmethod
    def of(cls, image: Image) -> ImageFacts:
        from proofbox.sandbox.images.pull import archive

        return cls(**msgspec.structs.asdict(image), pulled=archive(image).exists())


class ImagesDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.image_list/1"
    catalogue: str
    """The catalogue file."""
    arch: str
    images: tuple[ImageFacts, ...]
    """The images for that architecture."""


class ImageDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.image/1"
    image: ImageFacts


class PulledDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.image_pulled/1"
    image: ImageFacts
    path: str
    downloaded: bool
    """False if it was already present with the right digest."""
    lock: str
    """The project's lock file, which now pins the image by digest."""


def list_(*, arch: Arch = None, catalogue: Catalogue = None, json: flags.Json = False) -> int:
    """List the images in your catalogue, images.toml in proofbox's configuration directory.

    There is no built-in catalogue. An entry looks like this:

      schema_version = "proofbox.images/1"

      [[image]]
      name = "small"
      arch = "x86_64"
      url = "https://example.org/small-rootfs.tar.gz"
      sha256 = "(64 hexadecimal digits)"
      default = true

    For example:
      proofbox images list
      proofbox images list --arch aarch64 --json
    """
    found = tuple(map(ImageFacts.of, catalogues.list_images(arch, catalogue=catalogue)))
    path = catalogue or catalogues.catalogue_file()
    document = ImagesDocument(catalogue=str(path), arch=catalogues.architecture(arch), images=found)
    show(document, lambda: _table(document, path), as_json=json)
    return 0


def default(*, arch: Arch = None, catalogue: Catalogue = None, json: flags.Json = False) -> int:
    """Show the catalogue's default image.

    For example:
      proofbox images default
      proofbox exec --provider docker --image "$(proofbox images default)" -- true
    """
    image = catalogues.resolve_default_image(arch, catalogue=catalogue)
    show(ImageDocument(image=ImageFacts.of(image)), lambda: image.name, as_json=json)
    return 0


def pull(
    name: Annotated[
        str | None, Parameter(help="The image's name, as `images list` shows it. Default: the default image.")
    ] = None,
    /,
    *,
    project: flags.Project = Path(),
    arch: Arch = None,
    catalogue: Catalogue = None,
    update: Annotated[bool, Parameter(name="--update", help="Replace the image in the project's lock file.")] = False,
    json: flags.Json = False,
) -> int:
    """Download an image, verify its digest, and lock the project to it (.proofbox/images.lock).

    An interrupted download is resumed. A file with a wrong digest is deleted.

    For example:
      proofbox images pull
      proofbox images pull small --json
    """
    from proofbox.sandbox.images.pull import LOCK_FILE, pull_image

    with progress_bar(name or "default image", shown=watched(as_json=json)) as update_bar:
        pulled = pull_image(
            name, project_root=project, arch=arch, catalogue=catalogue, update=update, on_progress=update_bar
        )
    document = PulledDocument(
        image=ImageFacts.of(pulled.image),
        path=str(pulled.path),
        downloaded=pulled.downloaded,
        lock=str(resolve_project(project) / LOCK_FILE),
    )
    show(document, lambda: f"{pulled.image.name} {pulled.image.sha256}", as_json=json)
    return 0


def _table(document: ImagesDocument, path: Path) -> str:
    if not document.images:
        return f"no images for {document.arch}; {catalogues.how_to_add(path)}"
    rows = [("IMAGE", "ARCH", "SIZE", "PULLED", "SHA256", "DESCRIPTION")]
    for image in document.images:
        name = f"{image.name} (default)" if image.default else image.name
        size = "" if image.size is None else f"{image.size / 1e6:.1f} MB"
        pulled = "yes" if image.pulled else "no"
        rows.append((name, image.arch, size, pulled, image.sha256[:12], image.description))
    return columns(rows)
