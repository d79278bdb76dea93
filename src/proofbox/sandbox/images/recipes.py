"""The built-in images: lists of signed Debian packages. Each machine builds its own archives of them.

There is no built-in list of digests: it would contain digests that the user has not checked, and would soon name
packages with known vulnerabilities. Two builds from the same state of the mirror have the same digest (`build.py`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from proofbox.sandbox.images.image import Image, architecture


class Recipe(msgspec.Struct, frozen=True):
    """The packages of an image, in addition to the distribution's essential ones."""

    name: str
    suite: str
    packages: tuple[str, ...]
    description: str


_COMMON = ("ca-certificates", "git")
DEFAULT: Final = "debian-12"
KERNEL: Final = "kernel"
"""The kernel for virtual machines, which is built and kept like an image but is not a root."""
RECIPES: Final = {
    recipe.name: recipe
    for recipe in (
        Recipe(DEFAULT, "bookworm", ("ca-certificates",), "Debian 12, minimal: a shell and the essential tools"),
        Recipe(
            "debian-12-python",
            "bookworm",
            (*_COMMON, "python3", "python3-pip", "python3-venv"),
            "Debian 12 with Python, pip and git",
        ),
        Recipe("debian-12-node", "bookworm", (*_COMMON, "nodejs", "npm"), "Debian 12 with Node.js, npm and git"),
        Recipe(
            "debian-12-build",
            "bookworm",
            (*_COMMON, "build-essential", "cmake", "pkg-config", "python3"),
            "Debian 12 with compilers, make, CMake, Python and git",
        ),
    )
}
PRESETS: Final = {"minimal": DEFAULT, **{name: f"{DEFAULT}-{name}" for name in ("python", "node", "build")}}
"""Short names for a build of the default release. In `--image`, `python` may be an image of the container engine."""
# Debian's name of each architecture that can be built.
DEBIAN_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def recipe_images(arch: str | None = None) -> list[Image]:
    """Return the images that can be built for an architecture, as they are listed before the first build."""
    wanted = architecture(arch)
    if wanted not in DEBIAN_ARCHITECTURES:
        return []
    return [
        Image(name=recipe.name, arch=wanted, description=recipe.description, source="build")
        for recipe in RECIPES.values()
    ]
