"""The kernel for virtual machines: taken from the distribution's signed package, once, and kept like an image.

It is recorded as the image `kernel`, pinned by the digest of its archive: the uncompressed kernel (`vmlinux`), so that
a machine does not have to unpack it at every start, and the modules that a guest needs (`modules/`). A Mac imports the
archive of a Linux machine with the same architecture.
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
from proofbox.core.files.programs import SYSTEM_PATH, find_program
from proofbox.core.text import printable
from proofbox.errors import ImageBuildFailed, ImageCorrupt, ProviderUnavailable
from proofbox.sandbox.images.image import Image, architecture, images_dir
from proofbox.sandbox.images.local import keep, local_images, new_archive
from proofbox.sandbox.images.recipes import DEBIAN_ARCHITECTURES, KERNEL
from proofbox.sandbox.images.tree import unpacked
from proofbox.sandbox.machines.qemu import find_qemu, find_virtiofsd
from proofbox.sandbox.machines.vmlinux import extract_arm64_image, extract_vmlinux

MODULES = ("virtio", "virtio_ring", "virtio_console", "fuse", "virtiofs")
TRANSPORT_MODULES = ("virtio_mmio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci")
NETWORK_MODULES = ("failover", "net_failover", "virtio_net")
DOWNLOAD_SECONDS = 900.0
_WANTED = {f"{name}.ko": f"modules/{name}.ko" for name in (*MODULES, *TRANSPORT_MODULES, *NETWORK_MODULES)}
_PACKAGE = re.compile(r"linux-image-[0-9][a-z0-9.+~-]*")
_MAGIC = {"x86_64": (0, b"\x7fELF\x02\x01"), "aarch64": (56, b"ARM\x64")}  # where it is in an uncompressed kernel
_FIXES = ["sudo apt-get update", "this needs apt on Debian 12 or newer, and its mirror: check the network"]


def find_kernel() -> Path:
    """Return the directory with the kernel's files, or raise `ProviderUnavailable` if it has not been prepared."""
    for known in _found:
        if known.is_dir():
            return known
    image = recorded_kernel()
    if image is None or not image.archive.exists():
        raise ProviderUnavailable(
            "the kernel for virtual machines has not been prepared on this machine",
            op="probe",
            fix_hints=["proofbox images build kernel"]
            if os.uname().sysname == "Linux"
            else ["import one from Linux: proofbox images import FILE kernel (see docs/virtual-machines.md)"],
        )
    _found[:] = [unpacked(image)]
    return _found[0]


_found: list[Path] = []  # by this process; the cache may be redirected in the meantime, as conformance checks do


def prepare_kernel(on_line: Callable[[str], None]) -> None:
    """Build the kernel, unless this machine has it or can't run machines at all."""
    find_qemu()
    find_virtiofsd()
    if not any(known.is_dir() for known in _found) and (
        (image := recorded_kernel()) is None or not image.archive.exists()
    ):
        on_line("preparing the kernel for virtual machines, once")
        build_kernel(on_line)


def recorded_kernel() -> Image | None:
    arch = architecture()
    return next((each.image() for each in local_images() if (each.name, each.arch) == (KERNEL, arch)), None)


def build_kernel(on_line: Callable[[str], None] | None = None) -> Image:
    """Download the distribution's kernel package, and keep what virtual machines need of it."""
    tell = on_line or (lambda _: None)
    if architecture() not in DEBIAN_ARCHITECTURES:
        known = " and ".join(DEBIAN_ARCHITECTURES)
        raise ImageBuildFailed(f"there is no kernel for {architecture()}: only for {known}", op="images build")
    images_dir().mkdir(mode=0o700, exist_ok=True)
    with (
        locked(images_dir() / f"{KERNEL}.lock"),
        new_archive() as archive,
        tempfile.TemporaryDirectory(prefix="proofbox-kernel-") as scratch,
    ):
        installed = installed_release()
        if installed is None:
            name = _package_name()
            tell(f"downloading {name}")
            package = _download(name, Path(scratch))
            name += f" {_run(['dpkg-deb', '--field', str(package), 'Version'], Path(scratch)).strip()}"
            tell(f"unpacking {name}")
            files = _unpack(package)
        else:
            name = f"linux-image-{installed}"
            tell(f"using {name}, which is installed")
            files = _read_installed(installed)
        missing = {"vmlinux", *_WANTED.values()} - set(files)
        if missing:
            raise ImageBuildFailed(f"{name} has no {', '.join(sorted(missing))}", op="images build")
        extract = extract_vmlinux if architecture() == "x86_64" else extract_arm64_image
        files["vmlinux"] = extract(files["vmlinux"])
        with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
            for path, data in sorted(files.items()):
                entry = tarfile.TarInfo(path)  # no time, no owner: the same package has the same digest
                entry.size, entry.mode = len(data), 0o644
                tar.addfile(entry, io.BytesIO(data))
        record = keep(
            archive,
            KERNEL,
            architecture(),
            source="build",
            origin=name,
            description="the kernel for virtual machines",
        )
    return record.image()


def check_kernel(archive: Path) -> None:
    """Raise ImageCorrupt if an archive is not that of a kernel for this machine's architecture."""
    with tarfile.open(archive) as tar:
        found = {entry.name.removeprefix("./"): entry for entry in tar if entry.isreg()}
        missing = sorted({"vmlinux", *_WANTED.values()} - set(found))
        start = b"" if missing else tar.extractfile(found["vmlinux"]).read(64)  # type: ignore[union-attr]  # it is a file
    at, magic = _MAGIC.get(architecture(), (0, b""))
    if magic and start[at : at + len(magic)] == magic:
        return
    what = f"it has no {missing[0]}" if missing else f"its vmlinux is not a kernel for {architecture()}"
    raise ImageCorrupt(
        f"this is not a kernel for virtual machines: {what}",
        op="images import",
        fix_hints=[
            "build it from Debian's package: proofbox images build kernel",
            "or import the archive that such a build has made: see docs/virtual-machines.md",
            "to import an image, choose another name",
        ],
    )


def _package_name() -> str:
    """Return the package that the distribution's meta-package stands for now."""
    meta_package = f"linux-image-{_flavour()}"
    shown = _run(["apt-cache", "depends", "--important", meta_package], Path("/"))
    found = _PACKAGE.search(shown.partition("Depends:")[2])
    if found is None:
        raise ImageBuildFailed(f"apt does not know {meta_package}", op="images build", fix_hints=_FIXES)
    return found[0]


def _flavour() -> str:
    return f"cloud-{DEBIAN_ARCHITECTURES[architecture()]}"


def _download(name: str, scratch: Path) -> Path:
    """Download a package with apt, which verifies it with the distribution's keys."""
    scratch.chmod(0o755)
    _run(["apt-get", "--quiet", "download", name], scratch)
    found = sorted(scratch.glob("*.deb"))
    if len(found) != 1:
        raise ImageBuildFailed(f"apt-get downloaded no package {name}", op="images build", fix_hints=_FIXES)
    return found[0]


def _unpack(package: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    with (
        subprocess.Popen(
            [_find("dpkg-deb"), "--fsys-tarfile", str(package)], env=_environment(), stdout=subprocess.PIPE
        ) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar,
    ):
        for entry in tar:
            name = _wanted(entry.name)
            member = tar.extractfile(entry) if name is not None and entry.isreg() else None
            if name is not None and member is not None:
                files[name] = member.read()
    return files


def installed_release() -> str | None:
    """Return the release of the newest kernel of that package that is installed here."""
    found = [path.name.removeprefix("vmlinuz-") for path in Path("/boot").glob(f"vmlinuz-*-{_flavour()}")]
    found = [
        each for each in found if Path("/lib/modules", each).is_dir() and os.access(f"/boot/vmlinuz-{each}", os.R_OK)
    ]
    return max(found, key=lambda each: [int(part) for part in re.findall(r"\d+", each)], default=None)


def _read_installed(release: str) -> dict[str, bytes]:
    paths = [Path(f"/boot/vmlinuz-{release}"), *Path("/lib/modules", release, "kernel").rglob("*.ko")]
    named = {name: path for path in paths if (name := _wanted(str(path))) is not None}
    return {name: path.read_bytes() for name, path in named.items()}


def _wanted(path: str) -> str | None:
    """Return the name in the archive of a file in the package; None if machines don't need it."""
    return "vmlinux" if "/boot/vmlinuz-" in path else _WANTED.get(path.rpartition("/")[2])


def _find(name: str) -> str:
    program = find_program(name)
    if program is None:
        raise ImageBuildFailed(f"{name} is not installed", op="images build", fix_hints=_FIXES)
    return program


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8"}


def _run(words: list[str], cwd: Path) -> str:
    done = subprocess.run(
        [_find(words[0]), *words[1:]],
        cwd=cwd,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=DOWNLOAD_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ImageBuildFailed(f"{words[0]} failed: {printable(lines[-1])[:500]}", op="images build", fix_hints=_FIXES)
    return done.stdout
