"""Whether KVM works here, determined by booting a machine: the device may exist and still not run a kernel."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from proofbox.core.files.atomic import write_document
from proofbox.sandbox.machines.initramfs import make_initramfs
from proofbox.sandbox.machines.kernel import find_kernel
from proofbox.sandbox.machines.qemu import Acceleration, find_qemu, port_options, qemu_base
from proofbox.sandbox.machines.trial_boot import INITRAMFS, KERNEL, booting

DEVICE = "/dev/kvm"
BOOT_SECONDS = 10.0
"""With KVM, a machine boots in less than a second."""


def find_acceleration(kernel: Path, initramfs: Path) -> Acceleration:
    """Return how machines run here. The result of the trial is cached until the machine reboots or a part changes."""
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return "tcg"
    st = os.stat(find_qemu())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # The last part changes with the permissions of the device, which the QEMU of a box needs as well.
    identity = f"{boot} {find_qemu()}:{st.st_ino}:{st.st_mtime_ns} uid {os.geteuid()} {os.stat(DEVICE).st_ctime_ns}"
    cached = initramfs.with_suffix(".acceleration")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = cached.read_text()
        if known == f"tcg {identity}":
            return "tcg"
        if known == f"kvm {identity}":
            return "kvm"
    found: Acceleration = "kvm" if _boots(kernel, initramfs) else "tcg"
    write_document(cached, f"{found} {identity}".encode())
    return found


def current_acceleration() -> Acceleration:
    """Return how the machine runs that this process started last."""
    kernel = find_kernel()
    return find_acceleration(kernel / "vmlinux", make_initramfs(kernel))


def describe_acceleration() -> str:
    """Return a line for results that explains why commands are slow."""
    found = current_acceleration()
    return f"acceleration: {found}" + (" (emulated, which is slow: KVM does not work here)" if found == "tcg" else "")


def _boots(kernel: Path, initramfs: Path) -> bool:
    """Boot a machine with KVM, and return whether its init answers. Its first frame is enough."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        qemu = [
            *qemu_base("kvm", KERNEL, INITRAMFS, memory_mb=None, cpus=None),
            *port_options(str(theirs.fileno())),
        ]
        with booting(qemu, {KERNEL: kernel, INITRAMFS: initramfs}, "kvm", fds=[theirs.fileno()]):
            theirs.close()
            ours.settimeout(BOOT_SECONDS)
            with contextlib.suppress(OSError):
                return bool(ours.recv(1))
            return False
