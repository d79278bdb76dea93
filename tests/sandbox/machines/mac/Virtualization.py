"""A fake of the parts of Apple's Virtualization.framework that apple-vm uses, through pyobjc.

It has only methods that the framework has, so that a misspelt one is an error, and checks their arguments. The "kernel"
of a machine is a Python program: it is started with the machine's configuration as JSON, and has the console port as
its stdin and stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from Foundation import NSURL, NSError, NSFileHandle, NSObject, main_queue


class VZLinuxBootLoader(NSObject):
    kernel: str
    initramfs: str
    command_line: str

    def initWithKernelURL_(self, url: NSURL) -> VZLinuxBootLoader:
        self.kernel = url.path
        return self

    def setInitialRamdiskURL_(self, url: NSURL) -> None:
        self.initramfs = url.path

    def setCommandLine_(self, text: str) -> None:
        self.command_line = text


class VZSharedDirectory(NSObject):
    path: str
    read_only: bool

    def initWithURL_readOnly_(self, url: NSURL, read_only: bool) -> VZSharedDirectory:
        self.path, self.read_only = url.path, read_only
        return self


class VZSingleDirectoryShare(NSObject):
    directories: dict[str, VZSharedDirectory]

    def initWithDirectory_(self, directory: VZSharedDirectory) -> VZSingleDirectoryShare:
        self.directories = {"": directory}
        return self


class VZMultipleDirectoryShare(NSObject):
    directories: dict[str, VZSharedDirectory]

    def initWithDirectories_(self, directories: dict[str, VZSharedDirectory]) -> VZMultipleDirectoryShare:
        assert all(name and "/" not in name and name not in (".", "..") for name in directories)
        self.directories = dict(directories)
        return self


class VZVirtioFileSystemDeviceConfiguration(NSObject):
    tag: str
    share: VZSingleDirectoryShare | VZMultipleDirectoryShare

    def initWithTag_(self, tag: str) -> VZVirtioFileSystemDeviceConfiguration:
        assert 0 < len(tag.encode()) < 36
        self.tag = tag
        return self

    def setShare_(self, share: VZSingleDirectoryShare | VZMultipleDirectoryShare) -> None:
        self.share = share


class VZFileHandleSerialPortAttachment(NSObject):
    reading: int
    writing: int

    def initWithFileHandleForReading_fileHandleForWriting_(
        self, reading: NSFileHandle, writing: NSFileHandle
    ) -> VZFileHandleSerialPortAttachment:
        self.reading, self.writing = reading.descriptor, writing.descriptor
        return self


class VZVirtioConsolePortConfiguration(NSObject):
    attachment: VZFileHandleSerialPortAttachment
    is_console = False

    def setIsConsole_(self, value: bool) -> None:
        self.is_console = value

    def setAttachment_(self, attachment: VZFileHandleSerialPortAttachment) -> None:
        self.attachment = attachment


class _PortArray:
    def __init__(self) -> None:
        self.found: dict[int, VZVirtioConsolePortConfiguration] = {}

    def setObject_atIndexedSubscript_(self, port: VZVirtioConsolePortConfiguration, index: int) -> None:
        self.found[index] = port


class VZVirtioConsoleDeviceConfiguration(NSObject):
    _ports: _PortArray

    def init(self) -> VZVirtioConsoleDeviceConfiguration:
        self._ports = _PortArray()
        return self

    def ports(self) -> _PortArray:
        return self._ports


class VZVirtualMachineConfiguration(NSObject):
    boot_loader: VZLinuxBootLoader
    memory: int
    processors: int
    consoles: list[VZVirtioConsoleDeviceConfiguration]
    shares: list[VZVirtioFileSystemDeviceConfiguration]
    networks: tuple[Any, ...] = ()

    def setBootLoader_(self, loader: VZLinuxBootLoader) -> None:
        self.boot_loader = loader

    def setMemorySize_(self, size: int) -> None:
        self.memory = size

    def setCPUCount_(self, count: int) -> None:
        self.processors = count

    def setConsoleDevices_(self, devices: list[VZVirtioConsoleDeviceConfiguration]) -> None:
        self.consoles = devices

    def setDirectorySharingDevices_(self, devices: list[VZVirtioFileSystemDeviceConfiguration]) -> None:
        self.shares = devices

    def setNetworkDevices_(self, devices: list[Any]) -> None:
        self.networks = tuple(devices)

    def validateWithError_(self, error: None) -> tuple[bool, NSError | None]:
        assert error is None
        if self.memory % (1 << 20) or self.memory < 128 << 20:
            return False, NSError("The memory size is invalid.")
        return True, None

    def recorded(self) -> dict[str, Any]:
        """Return everything that the machine has, as plain values."""
        return {
            "kernel": self.boot_loader.kernel,
            "initramfs": self.boot_loader.initramfs,
            "command_line": self.boot_loader.command_line,
            "memory_mb": self.memory >> 20,
            "processors": self.processors,
            "ports": [
                {index: port.is_console for index, port in device.ports().found.items()} for device in self.consoles
            ],
            "shares": {
                device.tag: {name: [each.path, each.read_only] for name, each in device.share.directories.items()}
                for device in self.shares
            },
            "networks": len(self.networks),
        }


class VZVirtualMachine(NSObject):
    _configuration: VZVirtualMachineConfiguration
    _process: subprocess.Popen[bytes] | None = None

    def initWithConfiguration_(self, configuration: VZVirtualMachineConfiguration) -> VZVirtualMachine:
        self._configuration = configuration
        return self

    def startWithCompletionHandler_(self, handler: Callable[[NSError | None], None]) -> None:
        loader = self._configuration.boot_loader
        [console] = self._configuration.consoles
        port = console.ports().found[0].attachment
        error = None
        if loader.kernel.endswith("refused"):
            error = NSError("Internal\x1b Virtualization error.")
        else:
            command = [sys.executable, loader.kernel, json.dumps(self._configuration.recorded())]
            self._process = subprocess.Popen(
                command,
                stdin=port.reading,
                stdout=port.writing,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        main_queue.put(lambda: handler(error))

    def state(self) -> int:
        assert self._process is not None
        return 1 if self._process.poll() is None else 0
