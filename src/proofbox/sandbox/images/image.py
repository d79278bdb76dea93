"""An image: a root file system, identified by the digest of its archive."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Literal

import msgspec

from proofbox.core.dirs import cache_dir

Source = Literal["archive", "build", "import"]

ENGINE_URL = "docker://"
"""Begins the URL of an image that a container engine pulls: an OCI reference by digest."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SPELLINGS = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


class Image(msgspec.Struct, frozen=True):
    """A root file system, and the digest that its archive must have."""

    name: str
    """The name that `--image` and `images pull` take."""
    arch: str
    url: str = ""
    """The address of its archive: a root file system as tar, plain or compressed. `docker://` and an OCI reference by
    digest, if the container engine pulls it. Empty if it is not downloaded."""
    sha256: str = ""
    """The digest of its archive or OCI manifest. Empty if it is built on this machine, and has not been built yet."""
    size: int | None = None
    """The size of the archive in bytes; null if not known."""
    default: bool = False
    """Whether `images pull` and `images default` use it when no image is named."""
    description: str = ""
    """For people."""
    source: Source = "archive"
    """Where it comes from: `archive`: a download. `build`: built on this machine. `import`: imported by the user."""

    @property
    def reference(self) -> str:
        """The name with the digest, as results record it."""
        return f"{self.name}@sha256:{self.sha256}"

    @property
    def engine_reference(self) -> str:
        """The OCI reference under which the container engine has it; empty if it is an archive."""
        return self.url.removeprefix(ENGINE_URL) if self.url.startswith(ENGINE_URL) else ""

    @property
    def archive(self) -> Path:
        """The path of its archive, even before it exists."""
        return images_dir() / f"{self.sha256}.rootfs"


def images_dir() -> Path:
    """Return the directory of the archives on this machine."""
    return cache_dir() / "images"


def architecture(name: str | None = None) -> str:
    """Return this machine's architecture, or the named one, in the catalogue's spelling: x86_64, aarch64."""
    given = (name or platform.machine()).lower()
    return _SPELLINGS.get(given, given)


def is_other_spelling(arch: str) -> bool:
    return arch in _SPELLINGS
