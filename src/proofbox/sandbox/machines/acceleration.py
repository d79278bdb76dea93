"""Whether KVM works here, determined by booting a machine: the device may exist and still not run a kernel."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path

from proofbox.sandbox.host.trials import Trials, boot_identity
from proofbox.sandbox.machines.qemu import Acceleration, find_qemu, qemu_base

BOOT_SECONDS = 10.0
"""With KVM, a machine boots in less than a second."""


def find_acceleration(kernel: Path, initramfs: Path) -> Acceleration:
    """Return how machines run here. The result of the trial is cached until the machine reboots or a part changes."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    st = os.stat(find_qemu())
    identity = f"{boot_identity()} {find_qemu()}:{st.st_ino}:{st.st_mtime_ns} {initramfs.name} uid {os.geteuid()}"
    known = Trials.load()
    for name in ("kvm", "tcg"):
        if known.worked.get(f"vm {name}") == identity:
            return "kvm" if name == "kvm" else "tcg"
    found: Acceleration = "kvm" if _boots(kernel, initramfs) else "tcg"
    known = Trials.load()  # another process may have saved a trial meanwhile
    known.worked[f"vm {found}"] = identity
    known.save()
    return found


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
