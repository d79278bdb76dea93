"""The kernel of virtual machines: taken from the distribution's signed package, once, and kept like an image.

It is recorded as the image `kernel`, pinned by the digest of its archive: the uncompressed kernel (`vmlinux`), so that
a machine does not have to unpack it at every start, and the modules that a guest needs (`modules/`).
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from proofbox.core.files.locks import locked
from proofbox.core.files.programs import find_program
from proofbox.core.text import printable
from proofbox.errors import ImageBuildFailed, ProviderUnavailable
from proofbox.sandbox.images.image import Image, architecture, images_dir
from proofbox.sandbox.images.local import keep, local_images, new_archive
from proofbox.sandbox.images.tree import unpacked
from proofbox.sandbox.machines.vmlinux import extract_vmlinux

KERNEL = "kernel"
MODULES = ("virtio", "virtio_ring", "virtio_mmio", "virtio_console", "fuse", "virtiofs")
NETWORK_MODULES = ("failover", "net_failover", "virtio_net")
DOWNLOAD_SECONDS = 900.0
_META_PACKAGE = "linux-image-cloud-amd64"
_PACKAGE = re.compile(r"linux-image-[0-9][a-z0-9.+~-]*")
_FIXES = ["sudo apt-get update", "this needs apt on Debian 12 or newer, and its mirror: check the network"]


def find_kernel() -> Path:
    """Return the directory with the kernel's files, or raise `ProviderUnavailable` if it has not been prepared."""
    image = recorded_kernel()
    if image is None or not image.archive.exists():
        raise ProviderUnavailable(
            "the kernel of virtual machines has not been prepared on this machine",
            op="probe",
            fix_hints=["proofbox images build kernel"],
        )
    return unpacked(image)


def recorded_kernel() -> Image | None:
    arch = architecture()
    return next((each.image() for each in local_images() if (each.name, each.arch) == (KERNEL, arch)), None)


def build_kernel(on_line: Callable[[str], None] | None = None) -> Image:
    """Download the distribution's kernel package, and keep what virtual machines need of it."""
    tell = on_line or (lambda _: None)
    if architecture() != "x86_64":
        raise ImageBuildFailed(f"there is no kernel for {architecture()}: only for x86_64", op="images build")
    images_dir().mkdir(mode=0o700, exist_ok=True)
    with (
        locked(images_dir() / f"{KERNEL}.lock"),
        new_archive() as archive,
        tempfile.TemporaryDirectory(prefix="proofbox-kernel-") as scratch,
    ):
        name = _package_name()
        tell(f"downloading {name}")
        package = _download(name, Path(scratch))
        tell(f"unpacking {name}")
        files = _files(package)
        with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
            for path, data in sorted(files.items()):
                entry = tarfile.TarInfo(path)  # no time, no owner: the same package has the same digest
                entry.size, entry.mode = len(data), 0o644
                tar.addfile(entry, io.BytesIO(data))
        version = _run(["dpkg-deb", "--field", str(package), "Version"], Path(scratch)).strip()
        record = keep(
            archive,
            KERNEL,
            architecture(),
            source="build",
            origin=f"{name} {version}",
            description=f"the kernel of virtual machines ({name})",
        )
    return record.image()


def _package_name() -> str:
    """Return the package that the distribution's meta-package stands for now."""
    shown = _run(["apt-cache", "depends", "--important", _META_PACKAGE], Path("/"))
    found = _PACKAGE.search(shown.partition("Depends:")[2])
    if found is None:
        raise ImageBuildFailed(f"apt does not know {_META_PACKAGE}", op="images build", fix_hints=_FIXES)
    return found[0]


def _download(name: str, scratch: Path) -> Path:
    """Download a package with apt, which verifies it with the distribution's keys."""
    scratch.chmod(0o755)
    _run(["apt-get", "--quiet", "download", name], scratch)
    found = sorted(scratch.glob("*.deb"))
    if len(found) != 1:
        raise ImageBuildFailed(f"apt-get downloaded no package {name}", op="images build", fix_hints=_FIXES)
    return found[0]


def _files(package: Path) -> dict[str, bytes]:
    wanted = {f"{name}.ko": f"modules/{name}.ko" for name in (*MODULES, *NETWORK_MODULES)}
    files: dict[str, bytes] = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as unpacking:
        with tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar:
            for entry in tar:
                name = Path(entry.name).name
                member = tar.extractfile(entry) if entry.isreg() else None
                if member is None:
                    continue
                if entry.name.startswith("./boot/vmlinuz-"):
                    files["vmlinux"] = extract_vmlinux(member.read())
                elif name in wanted:
                    files[wanted[name]] = member.read()
    missing = {"vmlinux", *wanted.values()} - set(files)
    if missing or unpacking.returncode:
        raise ImageBuildFailed(
            f"{package.name} has no {', '.join(sorted(missing)) or 'readable contents'}",
            op="images build",
            details={"missing": sorted(missing)},
        )
    return files


def _run(words: list[str], cwd: Path) -> str:
    program = find_program(words[0], os.environ.get("PATH"))
    if program is None:
        raise ImageBuildFailed(f"{words[0]} is not installed", op="images build", fix_hints=_FIXES)
    done = subprocess.run(
        [program, *words[1:]],
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=DOWNLOAD_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ImageBuildFailed(
            f"{words[0]} failed: {printable(lines[-1])[:500]}", op="images build", fix_hints=_FIXES
        )
    return done.stdout
