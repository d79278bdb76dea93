"""The process of an `apple-vm` machine: runs it in Virtualization.framework, and serves its console port.

It replaces QEMU, virtiofsd and `boxvm` on Linux, and runs in a copy of the Python interpreter that is signed
for virtualization (`apple_signing.py`). The machine ends with this process, which ends with its client.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from proofbox.core.text import printable
from proofbox.sandbox.machines.console_port import ConsolePort, PortBroken

KERNEL_OPTIONS = "quiet loglevel=0 panic=-1 cryptomgr.notests audit=0"
# States of VZVirtualMachine.
_STOPPED, _ERROR = 0, 3
_LOOK_SECONDS = 0.1


class SharedDirectory(msgspec.Struct, frozen=True):
    """A directory of the host that the guest sees."""

    path: str
    writable: bool
    identity: tuple[int, int] | None = None
    """Device and inode, of a directory that another box could replace while this one starts."""


class AppleMachine(msgspec.Struct, frozen=True):
    """A machine to run."""

    kernel: str
    initramfs: str
    memory_mb: int
    cpus: int
    system: str
    """The directory of the programs, shared read-only."""
    files: dict[str, SharedDirectory]
    """The other directories, by their names in the share."""
    targets: tuple[str, ...]
    """The unix sockets that the guest may connect to."""
    options: tuple[str, ...]
    """The options of the guest's init."""


class MachineFailed(Exception):
    """The framework refused the machine, or ended it."""


def configure(machine: AppleMachine, reading: int, writing: int) -> Any:
    """Return the framework's configuration: only the devices that the machine needs, and no network.

    The console port reads from one descriptor, and writes to the other.
    """
    import Foundation
    import Virtualization as Vz

    def url(path: str) -> Any:
        return Foundation.NSURL.fileURLWithPath_(path)

    def handle(descriptor: int) -> Any:
        return Foundation.NSFileHandle.alloc().initWithFileDescriptor_(descriptor)

    def shared(path: str, *, writable: bool) -> Any:
        return Vz.VZSharedDirectory.alloc().initWithURL_readOnly_(url(path), not writable)

    def device(tag: str, share: Any) -> Any:
        found = Vz.VZVirtioFileSystemDeviceConfiguration.alloc().initWithTag_(tag)
        found.setShare_(share)
        return found

    boot = Vz.VZLinuxBootLoader.alloc().initWithKernelURL_(url(machine.kernel))
    boot.setInitialRamdiskURL_(url(machine.initramfs))
    boot.setCommandLine_(KERNEL_OPTIONS)
    port = Vz.VZVirtioConsolePortConfiguration.alloc().init()
    port.setIsConsole_(False)
    attachment = Vz.VZFileHandleSerialPortAttachment.alloc()
    port.setAttachment_(attachment.initWithFileHandleForReading_fileHandleForWriting_(handle(reading), handle(writing)))
    console = Vz.VZVirtioConsoleDeviceConfiguration.alloc().init()
    console.ports().setObject_atIndexedSubscript_(port, 0)
    directories = {name: shared(each.path, writable=each.writable) for name, each in machine.files.items()}
    system = Vz.VZSingleDirectoryShare.alloc().initWithDirectory_(shared(machine.system, writable=False))
    files = Vz.VZMultipleDirectoryShare.alloc().initWithDirectories_(directories)
    found = Vz.VZVirtualMachineConfiguration.alloc().init()
    found.setBootLoader_(boot)
    found.setMemorySize_(machine.memory_mb << 20)
    found.setCPUCount_(machine.cpus)
    found.setConsoleDevices_([console])
    found.setDirectorySharingDevices_([device("system", system), device("files", files)])
    valid, error = found.validateWithError_(None)
    if not valid:
        raise MachineFailed(f"Virtualization.framework refuses the machine: {_text(error)}")
    return found


def run(machine: AppleMachine, stream: socket.socket) -> None:
    """Run a machine until it ends or its client has left. Raise MachineFailed if the framework ends it."""
    import Foundation
    import Virtualization as Vz

    to_guest, from_guest = os.pipe(), os.pipe()
    port = ConsolePort(from_guest[0], to_guest[1], stream, machine.targets, machine.options)
    started: list[Any] = []
    broken: list[str] = []

    def serve() -> None:
        try:
            port.serve()
        except (PortBroken, OSError) as error:
            broken.append(str(error))

    virtual = Vz.VZVirtualMachine.alloc().initWithConfiguration_(configure(machine, to_guest[0], from_guest[1]))
    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    virtual.startWithCompletionHandler_(started.append)  # called with None or an error, in the run loop
    loop = Foundation.NSRunLoop.currentRunLoop()
    checked = False
    while serving.is_alive():
        until = Foundation.NSDate.dateWithTimeIntervalSinceNow_(_LOOK_SECONDS)
        loop.runMode_beforeDate_(Foundation.NSDefaultRunLoopMode, until)
        if not started:
            continue
        if started[0] is not None:
            raise MachineFailed(f"the machine did not start: {_text(started[0])}")
        if not checked:
            check_directories(machine.files)
            checked = True
        if virtual.state() in (_STOPPED, _ERROR):
            serving.join(_LOOK_SECONDS)  # its last output may still be in the port
            if not serving.is_alive():
                break
            raise MachineFailed("the machine ended unexpectedly")
    if broken:
        raise MachineFailed(broken[0])


def check_directories(files: Mapping[str, SharedDirectory]) -> None:
    """Raise MachineFailed if another box has replaced a directory before the framework opened it."""
    for each in files.values():
        if each.identity is None:
            continue
        found = os.lstat(each.path)
        if os.path.realpath(each.path) != each.path or (found.st_dev, found.st_ino) != each.identity:
            raise MachineFailed(f"{each.path} was replaced while the machine started")


def _text(error: Any) -> str:
    return printable(str(error.localizedDescription()))[:500]


def main(arguments: list[str]) -> None:
    """Run the machine that the last argument describes, as JSON, for the client's stream: --stream FD FD MACHINE."""
    stream = socket.socket(fileno=int(arguments[1]))
    try:
        run(msgspec.json.decode(arguments[3], type=AppleMachine), stream)
    except (MachineFailed, ImportError, OSError, msgspec.DecodeError) as error:
        print(f"apple-vm: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # the framework's threads and its machine end with the process


if __name__ == "__main__":
    main(sys.argv[1:])
