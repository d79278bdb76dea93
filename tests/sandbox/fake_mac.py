"""A Mac where `apple-vm` works, for tests on Linux: pyobjc and codesign are fakes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from proofbox.sandbox.machines import apple_signing
from proofbox.sandbox.providers.apple_vm import Computer

MAC = Computer("Darwin", "arm64", "14.5", (1000, 1000))
FAKES = Path(__file__).parent / "machines" / "mac"
QEMU_AS_KERNEL = FAKES.parent / "qemu_as_kernel.py"


def be_a_mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make this computer a Mac for `apple-vm`. Returns the log of codesign."""
    monkeypatch.setattr(Computer, "this", classmethod(lambda _: MAC))
    monkeypatch.syspath_prepend(FAKES)
    return use_codesign(monkeypatch, tmp_path, "exit 0")


def use_codesign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: str) -> Path:
    """Replace codesign by a script that does `work`. Returns a log of its arguments."""
    log, program = tmp_path / "codesign.log", tmp_path / "codesign"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{work}\n')
    program.chmod(0o755)
    monkeypatch.setattr(apple_signing, "CODESIGN", str(program))
    return log


def kernel_in_qemu(kernel: Path, place: Path) -> Path:
    """Make a kernel that is a program, which runs a real kernel in QEMU. `vmlinux.running` exists while it does."""
    place.mkdir()
    (place / "modules").symlink_to(kernel / "modules")
    (place / "vmlinux.real").symlink_to(kernel / "vmlinux")
    (place / "vmlinux").write_bytes(QEMU_AS_KERNEL.read_bytes())
    return place


def busybox_root(place: Path, busybox: str | os.PathLike[str] | None = None) -> Path:
    """Make the files of an image: the given static busybox, by default this machine's, and names for it."""
    (place / "bin").mkdir(parents=True)
    shutil.copy(busybox or str(shutil.which("busybox")), place / "bin/busybox")
    for name in ("cat", "grep", "id", "ls", "mkdir", "mv", "nc", "printf", "sh", "test", "uname"):
        (place / "bin" / name).symlink_to("busybox")
    return place
