"""The "kernel" of a fake Virtualization.framework: runs the machine in QEMU, with the same shares, port and bus.

The real kernel is beside it, as `KERNEL.real`, and `KERNEL.running` exists as long as the machine. Shares are mounted
in a mount namespace, which only root can do.
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

from proofbox.sandbox.machines.qemu import find_virtiofsd, qemu_base


def share(name: str, directories: dict[str, tuple[str, bool]], work: Path) -> subprocess.Popen[bytes]:
    """Start virtiofsd for the directories, each below its name and read-only if it should be."""
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


def main() -> None:
    machine = json.loads(sys.argv[1])
    ours, theirs = socket.socketpair()
    started: list[subprocess.Popen[bytes]] = []
    running = Path(machine["kernel"] + ".running")
    running.touch()
    with tempfile.TemporaryDirectory(prefix="proofbox-mac-") as folder:
        try:
            command = qemu_base(
                "tcg", machine["kernel"] + ".real", machine["initramfs"], memory_mb=None, cpus=machine["processors"]
            )
            command[command.index("-M") + 1] += ",pcie=on"
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
            threading.Thread(target=copy, args=(ours.fileno(), 1), daemon=True).start()
            copy(0, ours.fileno())
        finally:
            for process in started:
                process.kill()
                process.wait()
            running.unlink()


def copy(source: int, target: int) -> None:
    """Copy until the source ends. The end of stdin is the end of the machine's process."""
    with contextlib.suppress(OSError):
        while data := os.read(source, 1 << 16):
            while data:
                data = data[os.write(target, data) :]


if __name__ == "__main__":
    main()
