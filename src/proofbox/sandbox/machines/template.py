"""Templates of virtual machines: a machine that has booted, saved before it knows anything about a box.

A template contains the guest's kernel and init, which waits for its configuration: no image, no project, no option of a
box. It depends on the kernel and its options, the initramfs, QEMU and the options of the machine. A box that is cloned
from it gets random bytes and the time with its configuration, like one that has booted.

It is kept with the images, in a directory with the files `memory` (zero pages are holes), `state` and `sha256`. A
template that does not have these digests is recreated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.core.text import printable
from proofbox.errors import StartFailed
from proofbox.sandbox.host.binaries import version_of
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.machines.initramfs import make_initramfs
from proofbox.sandbox.machines.late_devices import PORT_BUS
from proofbox.sandbox.machines.qemu import (
    Acceleration,
    constant_options,
    find_qemu,
    kernel_options,
    machine_options,
    port_options,
)
from proofbox.sandbox.machines.trial_boot import INITRAMFS, KERNEL, WRITABLE_MEMORY, booting

SUFFIX = ".template"
BOOT_SECONDS = 120.0
"""For a boot on a busy machine, if emulated."""
MEMORY, STATE, DIGESTS = "memory", "state", "sha256"
_PAGE, _CHUNK = 4096, 1 << 20


def find_template(kernel: Path, acceleration: Acceleration, memory_mb: int, processors: int) -> Path:
    """Return the directory of the template for such a machine. It is made at the first use, and if it is damaged."""
    initramfs = make_initramfs(kernel, late_devices=True)
    version = version_of(Path(find_qemu()))
    machine = machine_options(acceleration, memory_mb, processors, WRITABLE_MEMORY)
    parts = [
        kernel.name,
        initramfs.name,
        version,
        *machine,
        constant_options(acceleration),
        *port_options("", PORT_BUS),
    ]
    if acceleration == "kvm":
        parts.append(_processor())
    place = images_dir() / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()}{SUFFIX}"
    if not _is_intact(place):
        images_dir().mkdir(mode=0o700, exist_ok=True)
        with locked(place.with_suffix(".lock")):
            if not _is_intact(place):
                _make(place, kernel, initramfs, acceleration, memory_mb, processors)
    with contextlib.suppress(OSError):
        os.utime(place)  # `gc` keeps it for a while
    return place


_intact: dict[Path, object] = {}


def _is_intact(place: Path) -> bool:
    """Return whether the files have their digests. They are hashed again only if they have changed since."""
    try:
        stats = [os.stat(place / name) for name in (MEMORY, STATE, DIGESTS)]
        identity = [(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns) for st in stats]
        if _intact.get(place) == identity:
            return True
        if (place / DIGESTS).read_text() != _digests(place):
            return False
    except (OSError, UnicodeDecodeError):
        return False
    _intact[place] = identity
    return True


def _digests(place: Path) -> str:
    """Return the digests of the files. Each covers the size and the data, without holes: a memory is mostly empty."""
    lines = []
    for name in (MEMORY, STATE):
        with (place / name).open("rb") as file:
            digest = hashlib.sha256(b"%d" % os.fstat(file.fileno()).st_size)
            for at, end in _extents(file):
                digest.update(b" %d:" % at)
                while at < end and (data := os.pread(file.fileno(), min(end - at, _CHUNK), at)):
                    digest.update(data)
                    at += len(data)
            lines.append(f"{digest.hexdigest()}  {name}\n")
    return "".join(lines)


def _extents(file: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Yield where the data of a file begin and end."""
    end = 0
    while True:
        try:
            at = os.lseek(file.fileno(), end, os.SEEK_DATA)
        except OSError:  # no more data
            return
        end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
        yield at, end


def _make(
    place: Path, kernel: Path, initramfs: Path, acceleration: Acceleration, memory_mb: int, processors: int
) -> None:
    for left in place.parent.glob(f"{place.name}*"):  # damaged, or of a killed process: we hold the lock
        remove_tree(left)
    making = Path(f"{place}.making-{secrets.token_hex(4)}")
    making.mkdir(mode=0o755)
    try:
        booted = making / "booted"
        with booted.open("wb") as file:
            file.truncate(memory_mb << 20)
        booted.chmod(0o666)  # QEMU may run as another user; other users can't enter the parent directory
        with (making / STATE).open("wb") as state:
            machine = machine_options(acceleration, memory_mb, processors, WRITABLE_MEMORY)
            files = {KERNEL: kernel / "vmlinux", INITRAMFS: initramfs, WRITABLE_MEMORY: booted}
            _boot_and_save([*machine, *kernel_options(acceleration, KERNEL, INITRAMFS)], files, acceleration, state)
        _copy_without_zeros(booted, making / MEMORY)
        booted.unlink()
        (making / DIGESTS).write_text(_digests(making))
        for name in (MEMORY, STATE, DIGESTS):
            (making / name).chmod(0o444)  # the programs of a machine may run as another user
        making.rename(place)
    finally:
        if making.exists():
            remove_tree(making)


def _boot_and_save(command: list[str], files: Mapping[str, Path], acceleration: Acceleration, state: IO[bytes]) -> None:
    """Boot a machine, and save everything but its memory, which is in a file, when its init waits."""
    port, guests_port = socket.socketpair()
    monitor, qemus_monitor = socket.socketpair()
    with port, guests_port, monitor, qemus_monitor, tempfile.TemporaryFile() as stderr:
        fds = [guests_port.fileno(), qemus_monitor.fileno()]
        options = [
            *port_options(str(fds[0]), PORT_BUS),
            *("-chardev", f"socket,id=monitor,fd={fds[1]}", "-mon", "chardev=monitor,mode=control"),
        ]
        try:
            with booting([*command, *options], files, acceleration, fds=fds, stderr=stderr):
                guests_port.close()
                qemus_monitor.close()
                port.settimeout(BOOT_SECONDS)
                monitor.settimeout(BOOT_SECONDS)
                port.recv(1)  # from its init, or nothing if QEMU has ended
                _save(monitor, state)
        except (OSError, ValueError, _Failed) as error:
            stderr.seek(0)
            said = stderr.read().decode("utf-8", "replace").strip().splitlines()
            raise StartFailed(
                "the template for virtual machines can't be created: "
                + printable(": ".join([str(error), *said[-1:]]))[:500],
                op="start",
                fix_hints=["start machines without a template: vm_template = false in config.toml"],
            ) from None


class _Failed(Exception):
    """A machine can't be saved."""


def _save(monitor: socket.socket, state: IO[bytes]) -> None:
    lines = monitor.makefile("rb")
    with lines:
        answers = _answers(lines)
        _ask(monitor, answers, "qmp_capabilities")
        capabilities = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
        _ask(monitor, answers, "migrate-set-capabilities", capabilities=capabilities)
        _ask(monitor, answers, "stop")
        _ask(monitor, answers, "getfd", fd=state.fileno(), fdname="state")
        _ask(monitor, answers, "migrate", uri="fd:state")
        for answer in answers:
            status = answer.get("data", {}).get("status") if answer.get("event") == "MIGRATION" else None
            if status == "completed":
                return
            if status == "failed":
                break
    raise _Failed("QEMU could not save the machine")


def _answers(lines: IO[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        yield json.loads(line)


def _ask(
    monitor: socket.socket, answers: Iterator[Mapping[str, Any]], name: str, *, fd: int | None = None, **arguments: Any
) -> None:
    message = json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n"
    socket.send_fds(monitor, [message], [] if fd is None else [fd])
    for answer in answers:
        if "error" in answer:
            raise _Failed(f"QEMU refused {name}: {printable(str(answer['error']))[:200]}")
        if "return" in answer:
            return
    raise _Failed("QEMU ended")


def _copy_without_zeros(source: Path, target: Path) -> None:
    """Copy a file, with holes in place of zero pages: clones copy only what is left."""
    zeros = bytes(_PAGE)
    with source.open("rb") as read, target.open("wb") as write:
        write.truncate(os.fstat(read.fileno()).st_size)
        for begin, end in _extents(read):
            for at in range(begin, end, _PAGE):
                page = os.pread(read.fileno(), _PAGE, at)
                if page != zeros:
                    os.pwrite(write.fileno(), page, at)


def _processor() -> str:
    """Identify the processor, whose features a machine with KVM has."""
    names = ("model name", "flags")
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    return " ".join(line for line in lines if line.partition("\t")[0] in names)
