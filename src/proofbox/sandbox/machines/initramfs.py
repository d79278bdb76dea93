"""The initramfs of virtual machines: init (`boxvm`), the box agent, and the kernel's modules."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from proofbox.core.files.atomic import write_document
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.machines.late_devices import TABLE, device_table

Transport = Literal["mmio", "pci"]
"""How a hypervisor attaches devices: QEMU's microvm as `mmio`, Virtualization.framework as `pci`."""
_DIRECTORY, _FILE, _DEVICE = 0o040755, 0o100755, 0o020600


def make_initramfs(kernel: Path, transport: Transport = "mmio", *, late_devices: bool = False) -> Path:
    """Return the path of the initramfs for a kernel and this version of proofbox. It is written at the first use.

    With `late_devices`, devices can be attached after the boot.
    """
    sources = {"init": program("boxvm"), "boxagent": program("boxagent")}
    other = "virtio_pci" if transport == "mmio" else "virtio_mmio"
    modules = sorted(path for path in (kernel / "modules").iterdir() if not path.name.startswith(other))
    sources |= {f"modules/{path.name}": path for path in modules}
    stats = [(name, path.stat()) for name, path in sources.items()]
    tables = {TABLE: device_table()} if late_devices else {}
    identity = f"{kernel.name} {transport} {b''.join(tables.values()).hex()}" + " ".join(
        f"{name}:{st.st_ino}:{st.st_size}:{st.st_mtime_ns}" for name, st in stats
    )
    place = kernel.parent / f"{hashlib.sha256(identity.encode()).hexdigest()}.initramfs"
    if not place.exists():
        write_document(place, _archive(sources, tables))
    return place


def _archive(sources: dict[str, Path], tables: dict[str, bytes]) -> bytes:
    parents = sorted({str(each) for name in tables for each in Path(name).parents[:-1]})
    entries = [_entry(name, _DIRECTORY) for name in parents]
    entries += [_entry(name, _FILE, data) for name, data in tables.items()]  # first: the kernel reads them at once
    entries += [_entry("dev", _DIRECTORY), _entry("modules", _DIRECTORY), _entry("dev/console", _DEVICE, device=(5, 1))]
    entries += [_entry(name, _FILE, path.read_bytes()) for name, path in sources.items()]
    return b"".join([*entries, _entry("TRAILER!!!", 0)])


def _entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    """Return an entry of a cpio archive in the format `newc`."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return b"".join(part + bytes(-len(part) % 4) for part in (head, data))
