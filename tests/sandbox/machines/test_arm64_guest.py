"""The guest of `apple-vm` on the processor of a Mac: Debian's arm64 kernel and the wheel's programs, emulated by QEMU.

A fake Virtualization.framework starts QEMU with the devices, the initramfs, the memory and the kernel command line that
`apple-vm` configures. The image is an arm64 busybox.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from capabilities import arm64_package
from fake_mac import MAC, be_a_mac, busybox_root, kernel_in_qemu
from raw_agent import wait_until
from release import built_release

from proofbox import Mount, Sandboxes
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.machines import initramfs
from proofbox.sandbox.machines import kernel as kernels
from proofbox.sandbox.machines.vmlinux import extract_arm64_image

COMMANDS = """
uname -m; id -u; pwd; cat seen
echo made > first && mv first made
grep -o '[a-z0-9]*:' /proc/net/dev
echo x > /data/refused; echo x > /bin/refused; cat hidden
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel that `images build kernel` makes from Debian's package on an arm64 machine."""
    package = arm64_package("linux-image")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernels, "_found", [])
    monkeypatch.setattr(kernels, "architecture", lambda: "aarch64")
    monkeypatch.setattr(kernels, "installed_release", lambda: None)
    monkeypatch.setattr(kernels, "_package_name", lambda: package.name.partition("_")[0])
    monkeypatch.setattr(kernels, "_download", lambda *_: package)
    kernels.build_kernel()
    return kernels.find_kernel()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The initramfs contains the arm64 programs of the wheel, as on a Mac."""
    place = "proofbox/sandbox/agent/bin"
    with zipfile.ZipFile(built_release().wheel) as wheel:
        wheel.extractall(tmp_path / "wheel", [f"{place}/{name}-aarch64" for name in ("boxvm", "boxagent")])
    monkeypatch.setattr(initramfs, "program", lambda name: tmp_path / "wheel" / place / f"{name}-aarch64")


@pytest.fixture
def image(kernel: Path, tmp_path: Path) -> str:
    subprocess.run(["dpkg-deb", "--extract", arm64_package("busybox-static"), tmp_path / "unpacked"], check=True)
    import_image(busybox_root(tmp_path / "root", tmp_path / "unpacked/bin/busybox"), "tiny")
    return "tiny"


@pytest.mark.xdist_group("wheel")
@pytest.mark.timeout(600)
@pytest.mark.needs("root", "vm", "zig", "arm64-guest")
def test_guest_of_apple_vm_runs_on_arm64(
    kernel: Path, programs: None, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_a_mac(monkeypatch, tmp_path)
    assert extract_arm64_image((kernel / "vmlinux").read_bytes()), "the format that Virtualization.framework boots"
    machine = kernel_in_qemu(kernel, tmp_path / "kernel")
    monkeypatch.setattr(kernels, "_found", [machine])
    project, data = tmp_path / "project", tmp_path / "data"
    project.mkdir()
    data.mkdir()
    os.chown(project, *MAC.user)
    (project / "seen").write_text("seen\n")
    (project / "hidden").write_text("secret\n")
    running = machine / "vmlinux.running"
    with (
        Sandboxes(project) as boxes,
        boxes.start_session(
            provider="apple-vm", image=image, mounts=[Mount(data, "/data")], hidden=["hidden"]
        ) as session,
    ):
        result = session.exec(["sh", "-c", COMMANDS])
        assert result.stdout.splitlines() == ["aarch64", str(MAC.user[0]), str(project), "seen", "lo:"], result.stderr
        assert result.stderr.count("Read-only file system") == 2, result.stderr
        assert "can't open 'hidden': Permission denied" in result.stderr
        assert (result.isolation.value, result.provider) == ("vm", "apple-vm")
        assert session.exec(["cat"], stdin=b"typed").stdout == "typed"
        assert running.exists()
    wait_until(lambda: not running.exists(), "the end of the machine")
    assert (project / "made").read_text() == "made\n"
    assert (project / "made").stat().st_uid == MAC.user[0]
    assert not list(data.iterdir())
