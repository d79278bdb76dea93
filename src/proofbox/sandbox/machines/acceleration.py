"""Whether KVM works here, determined by booting a machine: the device may exist and still not run a kernel."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path

from proofbox.core.files.atomic import write_document
from proofbox.sandbox.machines.initramfs import make_initramfs
from proofbox.sandbox.machines.kernel import find_kernel
from proofbox.sandbox.machines.qemu import Acceleration, find_qemu, qemu_base

BOOT_SECONDS = 10.0
"""With KVM, a machine boots in less than a second."""


def find_acceleration(kernel: Path, initramfs: Path) -> Acceleration:
    """Return how machines run here. The result of the trial is cached until the machine reboots or a part changes."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    st = os.stat(find_qemu())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    identity = f"{boot} {find_qemu()}:{st.st_ino}:{st.st_mtime_ns} uid {os.geteuid()}"
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


def describe_acceleration() -> str:
    """Return a line for results: how the machine runs that this process started last."""
    kernel = find_kernel()
    found = find_acceleration(kernel / "vmlinux", make_initramfs(kernel))
    return f"acceleration: {found}" + (" (emulated, which is slow: KVM does not work here)" if found == "tcg" else "")


def _boots(kernel: Path, initramfs: Path) -> bool:
    """Boot a machine with KVM, and return whether its init answers. Its first frame is enough."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [
            *qemu_base("kvm", str(kernel), str(initramfs), memory_mb=None, cpus=None),
            *("-chardev", f"socket,id=port,fd={theirs.fileno()}"),
            *("-device", "virtio-serial-device,max_ports=2", "-device", "virtserialport,chardev=port"),
        ]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=[theirs.fileno()], cwd="/", env={}
        )
        theirs.close()
        try:
            ours.settimeout(BOOT_SECONDS)
            with contextlib.suppress(OSError):
                return bool(ours.recv(1))
            return False
        finally:
            process.kill()
            process.wait()
