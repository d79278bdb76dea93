"""Devices that are attached to a machine after it was restored from a template.

QEMU can't save or restore a machine that shares directories. So a template shares nothing, but its kernel knows places
for shares: an ACPI table in the initramfs lists transports of QEMU's `microvm`, which are empty when the kernel boots.
In a machine that was restored and does not run yet, QEMU's monitor attaches devices there. Init then lets the kernel
look again (`boxvm`, option `--attach`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

from proofbox.sandbox.machines.qemu import (
    FILES,
    SYSTEM,
    Acceleration,
    machine_options,
    port_options,
    share_options,
)

TABLE = "kernel/firmware/acpi/devices.aml"
"""The path in an initramfs where the kernel looks for tables."""
_TRANSPORTS = {SYSTEM: 20, FILES: 21, "net": 22}
PORT_BUS = "virtio-mmio-bus.23"
_BASE, _SIZE, _FIRST_INTERRUPT = 0xFEB00000, 512, 24  # of the transports; see docs/specs/microvm in QEMU's sources
# A bus accepts devices at run time if it has a handler for them, which can be any object that handles such requests. A
# SCSI bus does, for devices of any kind. Its controller has no disk, and is at an address that the guest's kernel does
# not know.
_HANDLER = "handler"


def clone_command(acceleration: Acceleration, memory_mb: int, processors: int, *, network: bool) -> list[str]:
    """Return QEMU's command line for a machine that boxvm restores from a template.

    boxvm replaces `@system`, `@files`, `@port`, `@memory` and `@monitor` with descriptors.
    """
    return [
        *machine_options(acceleration, memory_mb, processors, "/proc/self/fd/@memory"),
        *port_options("@port", PORT_BUS),
        *share_options(),
        *("-device", f"virtio-scsi-device,id={_HANDLER},bus=virtio-mmio-bus.1"),
        *(("-netdev", "user,id=net") if network else ()),
        *("-chardev", "socket,id=monitor,fd=@monitor", "-mon", "chardev=monitor,mode=control"),
        *("-S", "-incoming", "defer"),
    ]


def device_table() -> bytes:
    """Return the ACPI table that describes the transports: an SSDT."""
    body = b"\x10" + _package(b"_SB_" + b"".join(map(_device, _TRANSPORTS.values())))  # Scope (\_SB)
    maker = b"PRFBOX" + b"DEVICES " + struct.pack("<I", 1) + b"PRFB" + struct.pack("<I", 1)
    table = bytearray(b"SSDT" + struct.pack("<IBB", 36 + len(body), 2, 0) + maker + body)
    table[9] = -sum(table) & 0xFF
    return bytes(table)


def attach_commands(*, network: bool) -> Iterator[str]:
    """Yield the commands for QEMU's monitor that attach the shares and, with `network`, the network device."""
    for name in (SYSTEM, FILES):
        yield from _attach(name, driver="vhost-user-fs-device", chardev=name, tag=name)
    if network:
        yield from _attach("net", driver="virtio-net-device", netdev="net")


def _attach(name: str, **device: str) -> Iterator[str]:
    bus = f"virtio-mmio-bus.{_TRANSPORTS[name]}"
    yield _command("qom-set", path=bus, property="hotplug-handler", value=f"{_HANDLER}/{_HANDLER}.0")
    yield _command("device_add", bus=bus, **device)


def _command(name: str, **arguments: str) -> str:
    return json.dumps({"execute": name, "arguments": arguments}) + "\n"


def _device(transport: int) -> bytes:
    """Return the AML of a device, as QEMU describes transports that are not empty."""
    memory = b"\x86\x09\x00\x01" + struct.pack("<II", _BASE + _SIZE * transport, _SIZE)  # Memory32Fixed, writable
    interrupt = b"\x89\x06\x00\x01\x01" + struct.pack("<I", _FIRST_INTERRUPT + transport)  # level, active high
    resources = memory + interrupt + b"\x79\x00"
    return b"\x5b\x82" + _package(
        b"PB%02d" % transport
        + b"\x08_HID\x0dLNRO0005\x00"
        + b"\x08_UID\x0a%c" % transport
        + b"\x08_CCA\x01"
        + b"\x08_CRS\x11"
        + _package(b"\x0a%c" % len(resources) + resources)
    )


def _package(content: bytes) -> bytes:
    """Prepend the length, which includes itself."""
    short = len(content) + 1
    if short < 1 << 6:
        return b"%c" % short + content
    length = len(content) + 2
    return b"%c%c" % (0x40 | length & 0xF, length >> 4) + content
