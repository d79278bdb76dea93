"""`images`: list, build, download and import the images that boxes can use as their root file system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import passing_line, progress_bar, watched
from proofbox.core.text import printable
from proofbox.sandbox.images import catalogue as catalogues
from proofbox.sandbox.images.image import Image, Source, architecture
from proofbox.sandbox.paths import resolve_project

if TYPE_CHECKING:
    from proofbox.sandbox.images.pull import PulledImage

Arch = Annotated[str | None, Parameter(name="--arch", help="x86_64 or aarch64. Default: this machine's.")]
Catalogue = Annotated[
    Path | None, Parameter(name="--catalogue", help="Another catalogue file instead of your own (images.toml).")
]

Update = Annotated[bool, Parameter(name="--update", help="Replace the image in the project's lock file.")]


class ImageFacts(msgspec.Struct, frozen=True):
    name: str
    """The name that `--image` and `images pull` accept."""
    arch: str
    url: str
    """The URL of its archive, or `docker://` and an OCI reference by digest; empty if it is not downloaded."""
    sha256: str
    """The digest of its archive or its OCI manifest; empty if it is not built yet."""
    size: int | None
    """The archive's size in bytes; null: unknown."""
    default: bool
    """Whether `images pull` and `images default` use it by default."""
    description: str
    """A description for people; may be empty."""
    source: Source
    """Where it comes from: `archive`: a download. `build`: built on this machine. `import`: imported by you."""
    pulled: bool
    """Whether it is on this machine: its archive, or the container engine's image."""

    @classmethod
    def of(cls, image: Image) -> ImageFacts:
        from proofbox.sandbox.images.pull import is_here

        return cls(**msgspec.structs.asdict(image), pulled=is_here(image))


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
    """Its archive; empty if the container engine has it."""
    downloaded: bool
    """Whether it was downloaded or built now; false if it was already present with the right digest."""
    lock: str
    """The project's lock file, which now pins the image by digest; empty for the kernel."""


def list_(*, arch: Arch = None, catalogue: Catalogue = None, json: flags.Json = False) -> int:
    """List the images that boxes can use: those of your catalogue, those of this machine, and the built-in ones.

    `images build` builds a built-in image from Debian's packages. Your catalogue is images.toml in proofbox's
    configuration directory. An entry looks like this:

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
    document = ImagesDocument(catalogue=str(path), arch=architecture(arch), images=found)
    show(document, lambda: _table(document, path), as_json=json)
    return 0


def default(*, arch: Arch = None, catalogue: Catalogue = None, json: flags.Json = False) -> int:
    """Show the image that `docker` uses if none is named: your catalogue's default, or debian-12.

    For example:
      proofbox images default
      proofbox exec --image "$(proofbox images default)" -- cat /etc/os-release
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
    update: Update = False,
    json: flags.Json = False,
) -> int:
    """Download an image, verify its digest, and lock the project to it (.proofbox/images.lock).

    An interrupted download is resumed. A file with a wrong digest is deleted. If its URL is an OCI reference, the
    container engine pulls it, and only the provider docker can run it.

    For example:
      proofbox images pull
      proofbox images pull small --json
    """
    from proofbox.sandbox.images.pull import pull_image

    with progress_bar(name or "default image", shown=watched(as_json=json)) as update_bar:
        pulled = pull_image(
            name, project_root=project, arch=arch, catalogue=catalogue, update=update, on_progress=update_bar
        )
    return _show_pulled(pulled, project, json=json)


def build(
    name: Annotated[
        str | None,
        Parameter(help="A built-in image, as `images list` shows it; minimal, python, node or build; or kernel."),
    ] = None,
    /,
    *,
    project: flags.Project = Path(),
    mirror: Annotated[
        str | None, Parameter(name="--mirror", help="A Debian mirror. Default: the one that this machine's apt uses.")
    ] = None,
    update: Update = False,
    json: flags.Json = False,
) -> int:
    """Build an image from Debian's signed packages with mmdebstrap, and lock the project to it.

    The names minimal, python, node and build stand for the images of Debian 12: debian-12 (the default),
    debian-12-python and so on; --image takes the full names. Two builds from the same state of the mirror have the
    same digest. As root, the packages' scripts run as root in a chroot. `kernel` gets the kernel of virtual
    machines (--provider vm), from Debian's package and without mmdebstrap.

    For example:
      proofbox images build
      proofbox images build python --json
      proofbox images build kernel
    """
    from proofbox.sandbox.images.build import build_image
    from proofbox.sandbox.images.recipes import DEFAULT

    with passing_line(shown=watched(as_json=json)) as show_line:
        built = build_image(
            DEFAULT if name is None else name, project_root=project, mirror=mirror, update=update, on_line=show_line
        )
    return _show_pulled(built, project, json=json)


def import_(
    source: Annotated[str, Parameter(help="A directory, a tar archive, an OCI layout, or docker:IMAGE.")],
    name: Annotated[str, Parameter(help="The name that `--image` will take.")],
    /,
    *,
    json: flags.Json = False,
) -> int:
    """Import an image from a directory, a tar archive, an OCI layout, or the local container engine.

    For example:
      proofbox images import rootfs.tar.gz my-tools
      proofbox images import docker:debian:12 debian
    """
    from proofbox.sandbox.images.imports import import_image

    image = import_image(source, name)
    show(ImageDocument(image=ImageFacts.of(image)), lambda: f"{image.name} {image.sha256}", as_json=json)
    return 0


def _show_pulled(pulled: PulledImage, project: Path, *, json: bool) -> int:
    from proofbox.sandbox.images.pull import LOCK_FILE
    from proofbox.sandbox.images.recipes import KERNEL

    document = PulledDocument(
        image=ImageFacts.of(pulled.image),
        path="" if pulled.image.engine_reference else str(pulled.path),
        downloaded=pulled.downloaded,
        lock="" if pulled.image.name == KERNEL else str(resolve_project(project) / LOCK_FILE),
    )
    show(document, lambda: f"{pulled.image.name} {pulled.image.sha256}", as_json=json)
    return 0


def _table(document: ImagesDocument, path: Path) -> str:
    if not document.images:
        return f"no images for {document.arch}; {catalogues.how_to_add(path)}"
    from proofbox.sandbox.images.recipes import PRESETS, RECIPES

    rows = [("IMAGE", "SIZE", "HERE", "SHA256")]
    for image in document.images:
        name = f"{image.name} (default)" if image.default else image.name
        size = "" if image.size is None else f"{image.size / 1e6:.1f} MB"
        here = "yes" if image.pulled else "no"
        rows.append((name, size, here, image.sha256[:12]))
    head, *lines = columns(rows).splitlines()
    for line, image in zip(lines, document.images, strict=True):  # descriptions are on separate lines: 80 columns
        head += f"\n{line}" + (f"\n  {printable(image.description)}" if image.description else "")
    notes = []
    if any(each.name in RECIPES for each in document.images):
        notes.append(f"`images build` also takes short names: {', '.join(PRESETS)}")
    absent = next((each for each in document.images if not each.pulled), None)
    if absent is not None:
        verb = "build" if absent.source == "build" else "pull"
        notes.append(f"get one with: proofbox images {verb} {absent.name}")
    return "\n".join([head, *(f"\n{note}" for note in notes)])
