"""The "kernel" of a fake Virtualization.framework: runs the machine in QEMU, with the same shares, port and bus.

The real kernel is beside it, as `KERNEL.real`, and `KERNEL.running` exists as long as the machine. A kernel for arm64
gets the framework's own command line and memory. Shares are mounted in a mount namespace, which only root can do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from proofbox.sandbox.machines.qemu import find_virtiofsd, qemu_base


def share(name: str, directories: dict[str, tuple[str, bool]], work: Path) -> subprocess.Popen[bytes]:
    """Start virtiofsd for the directories, each under its name, and read-only where requested."""
    lines = ["set -e"]
    for inner, (path, read_only) in directories.items():
        place = work / name / inner
        place.mkdir(parents=True)
        lines.append(f"mount --bind {shlex.quote(path)} {place}")
        lines += [f"mount -o remount,bind,ro {place}"] if read_only else []
    options = ["-o", f"source={work / name}", "-o", "sandbox=chroot", "-o", "log_level=err", "-o", "cache=auto"]
    lines.append("exec " + shlex.join([find_virtiofsd(), "-f", f"--socket-path={work / name}.sock", *options]))
    command = ["unshare", "--mount", "sh", "-c", "\n".join(lines)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (work / f"{name}.sock").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise SystemExit(f"virtiofsd ended with {process.wait(0.05)}")
    return process


def qemu(machine: dict[str, Any]) -> list[str]:
    """Return QEMU's command for the machine, without its shares and its port."""
    kernel = machine["kernel"] + ".real"
    if not is_arm64(Path(kernel)):
        command = qemu_base("tcg", kernel, machine["initramfs"], memory_mb=None, cpus=machine["processors"])
        command[command.index("-M") + 1] += ",pcie=on"
        return command
    memory = f"{machine['memory_mb']}M"
    return [
        *("qemu-system-aarch64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-M", "virt,gic-version=3,memory-backend=memory", "-accel", "tcg", "-cpu", "max,pauth-impdef=on"),
        *("-smp", str(machine["processors"]), "-m", memory),
        *("-object", f"memory-backend-memfd,id=memory,size={memory},share=on"),
        *("-kernel", kernel, "-initrd", machine["initramfs"], "-append", machine["command_line"]),
    ]


def is_arm64(kernel: Path) -> bool:
    with kernel.open("rb") as file:
        return file.read(0x40)[0x38:0x3C] == b"ARM\x64"


def main() -> None:
    machine = json.loads(sys.argv[1])
    ours, theirs = socket.socketpair()
    started: list[subprocess.Popen[bytes]] = []
    running = Path(machine["kernel"] + ".running")
    running.touch()
    with tempfile.TemporaryDirectory(prefix="proofbox-mac-") as folder:
        try:
            command = qemu(machine)
            for name, directories in machine["shares"].items():
                started.append(share(name, directories, Path(folder)))
                command += ["-chardev", f"socket,id={name},path={folder}/{name}.sock"]
                command += ["-device", f"vhost-user-fs-pci,chardev={name},tag={name}"]
            command += ["-chardev", f"socket,id=port,fd={theirs.fileno()}"]
            command += ["-device", "virtio-serial-pci,max_ports=2", "-device", "virtserialport,chardev=port"]
            started.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
            )
            theirs.close()
            threading.Thread(target=serve_stdin, args=(ours,), daemon=True).start()
            copy(ours.fileno(), 1)
        finally:
            for process in started:
                process.kill()
                process.wait()
            running.unlink()


def serve_stdin(port: socket.socket) -> None:
    """Copy stdin to the port. Its end is the end of the machine."""
    copy(0, port.fileno())
    port.shutdown(socket.SHUT_RDWR)


def copy(source: int, target: int) -> None:
    """Copy until the source ends."""
    with contextlib.suppress(OSError):
        while data := os.read(source, 1 << 16):
            while data:
                data = data[os.write(target, data) :]


if __name__ == "__main__":
    main()
