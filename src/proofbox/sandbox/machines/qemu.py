"""The command lines of QEMU and virtiofsd."""

from __future__ import annotations

import math
import os
import re
import resource
from pathlib import Path
from typing import Literal

from proofbox.core.files.programs import find_program
from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.images.image import architecture

Acceleration = Literal["kvm", "tcg"]

DEFAULT_MEMORY_MB = 1024
"""Of a machine without a memory limit. The host provides only the part that the guest uses."""
GUEST_MEMORY_MB = 128
"""What the guest's kernel needs in addition to the memory limit of the commands."""
SYSTEM, FILES = "system", "files"
_CACHE_SECONDS = 86400
_MOST_FILES = 1_000_000
_ARCHITECTURE = "x86_64"  # QEMU's `microvm`, and how its kernel and late devices are found, exist only for it
_QEMU = f"qemu-system-{_ARCHITECTURE}"
_VIRTIOFSD = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/libexec/qemu/virtiofsd")
_KERNEL_OPTIONS = (
    "quiet loglevel=0 panic=-1 reboot=t random.trust_cpu=on cryptomgr.notests audit=0 lsm=landlock,yama psi=0"
)
# The kernel's calibration loops fail under emulation on a busy host: give it the results (`timing`).
# QEMU translates code once per address: with random addresses, it would translate every command again, which takes
# longer than running it. It clears memory byte by byte if the processor claims to be fast at that (`rep_good` here, and
# `erms` in _EMULATED). The other options turn off defences of the guest's kernel against its own faults, which take a
# tenth of a command's time.
_TCG_OPTIONS = (
    "no_timer_check mitigations=off nokaslr norandmaps clearcpuid=rep_good init_on_alloc=0 hardened_usercopy=off"
    " randomize_kstack_offset=off"
)
_EMULATED = "max,-erms"
_TICKS_PER_SECOND = 250  # Debian's CONFIG_HZ


def find_qemu() -> str:
    if architecture() != _ARCHITECTURE:
        raise ProviderUnavailable(
            f"vm runs only on {_ARCHITECTURE}, and this machine is {architecture()}",
            op="probe",
            fix_hints=["use --provider bubblewrap or docker", "on a Mac with Apple silicon: --provider apple-vm"],
        )
    found = find_program(_QEMU)
    if found is None:
        raise ProviderUnavailable(
            f"QEMU is not installed: there is no {_QEMU} on PATH",
            op="probe",
            fix_hints=["Debian, Ubuntu: sudo apt-get install qemu-system-x86"],
        )
    return os.path.realpath(found)


def find_virtiofsd() -> str:
    for path in _VIRTIOFSD:
        if os.access(path, os.X_OK):
            return path
    raise ProviderUnavailable(
        f"virtiofsd is not installed: not at {', '.join(_VIRTIOFSD)}",
        op="probe",
        fix_hints=["Debian 12: sudo apt-get install qemu-system-common", "newer: sudo apt-get install virtiofsd"],
    )


def qemu_command(
    acceleration: Acceleration, kernel: str, initramfs: str, *, memory_mb: int | None, cpus: float | None, network: bool
) -> list[str]:
    """Return QEMU's command line for a machine without any device that it does not need.

    boxvm replaces `@system`, `@files` and `@port` with descriptors.
    """
    return [
        *qemu_base(acceleration, kernel, initramfs, memory_mb=memory_mb, cpus=cpus),
        *share_options(),
        *(word for name in (SYSTEM, FILES) for word in ("-device", f"vhost-user-fs-device,chardev={name},tag={name}")),
        *port_options("@port"),
        *(("-netdev", "user,id=net", "-device", "virtio-net-device,netdev=net") if network else ()),
    ]


def machine_size(memory_mb: int | None, cpus: float | None) -> tuple[int, int]:
    """Return the memory, in MB, and the processors of a machine whose commands have these limits."""
    memory = DEFAULT_MEMORY_MB if memory_mb is None else memory_mb + GUEST_MEMORY_MB
    return memory, 1 if cpus is None else max(1, min(math.ceil(cpus), os.cpu_count() or 1))


def qemu_base(
    acceleration: Acceleration, kernel: str, initramfs: str, *, memory_mb: int | None, cpus: float | None
) -> list[str]:
    """Return QEMU's command line for a machine without devices."""
    return [
        *machine_options(acceleration, *machine_size(memory_mb, cpus)),
        *kernel_options(acceleration, kernel, initramfs),
    ]


def machine_options(
    acceleration: Acceleration, memory_mb: int, processors: int, memory_file: str | None = None
) -> list[str]:
    """Return the part of QEMU's command line that a template and its clones must have in common.

    The machine's memory is a file, if one is named.
    """
    kind, place = ("memfd", "") if memory_file is None else ("file", ",mem-path=" + memory_file.replace(",", ",,"))
    return [
        find_qemu(),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *("-M", "microvm,rtc=on,isa-serial=off,memory-backend=memory"),
        *("-accel", acceleration, "-cpu", "host" if acceleration == "kvm" else _EMULATED, "-smp", str(processors)),
        *("-m", f"{memory_mb}M", "-object", f"memory-backend-{kind},id=memory,size={memory_mb}M,share=on{place}"),
        *("-global", "virtio-mmio.force-legacy=false"),
    ]


def kernel_options(acceleration: Acceleration, kernel: str, initramfs: str) -> list[str]:
    options = constant_options(acceleration) + ("" if acceleration == "kvm" else f" {timing()}")
    return ["-kernel", kernel, "-initrd", initramfs, "-append", options]


def constant_options(acceleration: Acceleration) -> str:
    """Return the options of the kernel without `timing`, which differs from boot to boot."""
    return _KERNEL_OPTIONS if acceleration == "kvm" else f"{_KERNEL_OPTIONS} {_TCG_OPTIONS}"


def port_options(fd: str, bus: str | None = None) -> list[str]:
    """Return the options for the console port, at a bus or where QEMU puts it."""
    device = "virtio-serial-device,max_ports=2" + (f",bus={bus}" if bus is not None else "")
    return ["-chardev", f"socket,id=port,fd={fd}", "-device", device, "-device", "virtserialport,chardev=port"]


def share_options() -> list[str]:
    """Return the options for the connections to virtiofsd, without the devices."""
    return [word for name in (SYSTEM, FILES) for word in ("-chardev", f"socket,id={name},fd=@{name}")]


def virtiofsd_command(name: str, *, cached: bool) -> list[str]:
    """Return virtiofsd's command line for the directory `/NAME`. Without `cached`, the guest asks at every access.

    Changes on the host are visible at once only without a cache, and programs start fast only with one.
    """
    options = [f"source=/{name}", "sandbox=chroot", "log_level=warn"]
    options += ["cache=always", f"timeout={_CACHE_SECONDS}"] if cached else ["cache=auto", "timeout=0"]
    # It holds a descriptor for every file that the guest knows. By default it demands more than a user may have.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = f"--rlimit-nofile={_MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)}"
    return [find_virtiofsd(), "-f", f"--fd=@{name}", limit, *(word for option in options for word in ("-o", option))]


def timing() -> str:
    """Return the kernel options that replace the calibration of its clocks: QEMU passes the host's cycles on."""
    found = re.search(r"^cpu MHz\s*: ([0-9.]+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    khz = round(float(found[1]) * 1000) if found else 2_000_000
    return f"tsc_early_khz={khz} lpj={khz * 1000 // _TICKS_PER_SECOND}"
