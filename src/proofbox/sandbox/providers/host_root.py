"""The root of a box, read-only: a part of the host (programs, libraries, files in /etc that they read), or an image.

The part of the host is an allowlist, never `/`: a file that is not listed here does not exist in the box.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix")
# Kept short: each directory is a mount, which takes a tenth of a millisecond.
_ETC = (
    *("alternatives", "fonts", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "localtime"),
    *("mime.types", "nsswitch.conf", "os-release", "perl", "pki/ca-trust", "pki/tls/certs", "pki/tls/openssl.cnf"),
    *("protocols", "services", "ssl/certs", "ssl/openssl.cnf", "timezone"),  # not ssl/private
)
OWN_ETC = Path(__file__).parent / "etc"
"""Files that every box has in place of the host's or the image's."""
_MADE = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf", "/var/tmp")  # noqa: S108
"""What is mounted over the files of every image, except in directories that no image has."""
COPIED_SIZE = 256 << 10
"""The maximum size of a file in /etc that is copied into a box. Copying one takes a fifth of the time of a mount."""


@functools.cache
def host_parts(network: str) -> tuple[str, ...]:
    """Return bubblewrap's options for the host's part. Cached per process, to keep starts fast."""
    return tuple(_options(network))


@functools.cache
def copied_files() -> tuple[str, ...]:
    """Return the small files in /etc that each new box can have as copies. All are in `host_parts` as mounts."""
    words = iter((*_etc(), *_own_files("none")))
    return tuple(path for path in (next(words) for word in words if word == "--ro-bind") if _is_copied(path))


def _is_copied(path: str) -> bool:
    """A copy can be read by everyone in the box, so the file must be readable for everyone as well."""
    info = os.stat(path)
    return stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IROTH != 0 and info.st_size <= COPIED_SIZE


def with_copies(options: Sequence[str], opened: Mapping[str, int]) -> Iterator[str]:
    """Yield bubblewrap's options with copies in place of the mounts of these files: path → an open descriptor of it."""
    words = iter(options)
    for word in words:
        if word != "--ro-bind":
            yield word
            continue
        source, place = next(words), next(words)
        if source in opened:
            yield from ("--perms", "0444", "--file", str(opened[source]), place)
        else:
            yield from (word, source, place)


def image_parts(tree: Path, places: Sequence[Path], network: str) -> Iterator[str]:
    """Yield bubblewrap's options for an image's files; something will be mounted at each of `places`."""
    from proofbox.sandbox.images.tree import refuse_links_out, root_entries

    refuse_links_out(tree, {*places, *map(Path, _MADE)})
    for source, place in root_entries(tree, places):
        if place.parent != Path("/"):
            yield from directory(place.parent)
        if source.is_symlink():
            yield from ("--symlink", os.readlink(source), str(place))
        else:
            yield from ("--ro-bind", str(source), str(place))
    yield from _own_files(network)


def directory(path: Path) -> Iterator[str]:
    """Create a directory and its parents with mode 0755: bubblewrap creates missing parents with mode 0700."""
    for each in (*reversed(path.parents[:-1]), path):
        yield from ("--perms", "0755", "--dir", str(each))


def _options(network: str) -> Iterator[str]:
    for name in ROOT:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from _etc()
    yield from _own_files(network)


def _etc() -> Iterator[str]:
    yield from directory(Path("/etc"))
    for name in _ETC:
        path = Path("/etc", name)
        if not path.exists():
            continue
        if "/" in name:
            yield from directory(path.parent)
        if path.is_symlink() and path.resolve().parts[1] in ROOT:
            yield from ("--symlink", str(path.resolve()), str(path))
        else:
            yield from ("--ro-bind", str(path.resolve()), str(path))


def _own_files(network: str) -> Iterator[str]:
    for name in ("passwd", "group", "hosts"):
        yield from ("--ro-bind", str(OWN_ETC / name), f"/etc/{name}")
    resolver = Path("/etc/resolv.conf").resolve()
    if network == "full" and resolver.exists():
        yield from ("--ro-bind", str(resolver), "/etc/resolv.conf")
