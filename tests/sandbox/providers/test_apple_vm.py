"""`apple-vm` on a fake Mac: where it runs, the signed interpreter, and refusals. `test_vm.py` starts its guest."""

from __future__ import annotations

import os
import platform
import plistlib
import stat
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_mac import FAKES, be_a_mac, use_codesign

from proofbox import Mount, Sandboxes
from proofbox.errors import PolicyRefused, ProviderUnavailable
from proofbox.sandbox import selection
from proofbox.sandbox.contract import Policy
from proofbox.sandbox.images.image import architecture
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.machines import apple_signing
from proofbox.sandbox.machines import kernel as kernels
from proofbox.sandbox.providers import AUTO_ORDER, provider_named
from proofbox.sandbox.providers.apple_vm import AppleVm, Computer


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr(kernels, "_found", [])


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel whose modules are empty files."""
    found = tmp_path / "kernel"
    (found / "modules").mkdir(parents=True)
    for name in kernels._WANTED.values():
        (found / name).touch()
    at, magic = kernels._MAGIC[architecture()]
    (found / "vmlinux").write_bytes(bytes(at) + magic)
    monkeypatch.setattr(kernels, "_found", [found])
    return found


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return be_a_mac(monkeypatch, tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def boxes(project: Path) -> Iterator[Sandboxes]:
    with Sandboxes(project) as opened:
        yield opened


# Where it runs.


@pytest.mark.parametrize(
    ("computer", "reason"),
    [
        (Computer("Linux", "x86_64", "", (1000, 1000)), "needs macOS; this is Linux"),
        (Computer("Darwin", "x86_64", "14.5", (501, 20)), "needs a Mac with Apple silicon; this one has x86_64"),
        (Computer("Darwin", "arm64", "12.7.1", (501, 20)), "needs macOS 13 or newer; this is 12.7.1"),
        (Computer("Darwin", "arm64", "", (501, 20)), "needs macOS 13 or newer"),
        (Computer("Darwin", "arm64", "14.5", (0, 0)), "can't be used by root"),
    ],
    ids=["linux", "intel", "old", "no-version", "root"],
)
def test_unsuitable_computer_is_refused(
    computer: Computer, reason: str, mac: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AppleVm().identity()
    monkeypatch.setattr(Computer, "this", classmethod(lambda _: computer))
    with pytest.raises(ProviderUnavailable, match=reason) as caught:
        AppleVm().identity()
    assert caught.value.fix_hints


def test_missing_pyobjc_is_named(mac: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(FAKES)])
    monkeypatch.delitem(sys.modules, "Virtualization", raising=False)
    with pytest.raises(ProviderUnavailable, match="pyobjc-framework-Virtualization") as caught:
        AppleVm().identity()
    assert caught.value.fix_hints == ("pip install 'proofbox[apple-vm]'",)


def test_missing_kernel_is_named(mac: Path) -> None:
    with pytest.raises(ProviderUnavailable, match="kernel") as caught:
        AppleVm().identity()
    assert caught.value.fix_hints


def test_kernel_is_imported_from_linux(
    mac: Path, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_found", [])
    with tarfile.open(tmp_path / "kernel.tar", "w") as archive:
        archive.add(kernel / "vmlinux", "vmlinux")
        archive.add(kernel / "modules", "modules")
    image = import_image(tmp_path / "kernel.tar", "kernel")
    assert f"{image.sha256}.tree" in AppleVm().identity()


def test_kernel_without_a_pci_bus_is_refused(mac: Path, kernel: Path) -> None:
    (kernel / "modules/virtio_pci.ko").unlink()
    with pytest.raises(ProviderUnavailable, match="PCI"):
        AppleVm().identity()


def test_auto_on_a_mac_finds_apple_vm_then_docker(monkeypatch: pytest.MonkeyPatch, boxes: Sandboxes) -> None:
    platform.uname()  # cached: it must not remember the fake
    real = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Darwin", *real[1:])))
    working = {"apple-vm", "docker"}
    tried: list[str] = []

    def identity(name: str) -> str:
        tried.append(name)
        if name not in working:
            raise ProviderUnavailable(f"{name} does not work", op="probe")
        return name

    for name in AUTO_ORDER:
        monkeypatch.setattr(type(provider_named(name)), "identity", lambda _, name=name: identity(name))
    monkeypatch.setattr(selection, "_run_trial", lambda *_: None)
    found = selection.choose("auto", Policy())
    assert (found.provider.name, found.fallback_from, tried) == ("apple-vm", None, ["apple-vm"])
    working.remove("apple-vm")
    found = selection.choose("auto", Policy())
    assert (found.provider.name, found.fallback_from) == ("docker", "apple-vm")
    working.clear()
    with pytest.raises(ProviderUnavailable):
        selection.choose("auto", Policy())
    assert "off" not in tried


# The signed interpreter.


def test_copy_of_the_interpreter_is_signed_once(mac: Path, tmp_path: Path) -> None:
    made = apple_signing.signed_interpreter()
    assert made == apple_signing.signed_interpreter()
    [line] = mac.read_text().splitlines()
    words = line.split()
    assert words[:4] == ["--sign", "-", "--force", "--entitlements"]
    entitlements = made.parents[1] / "entitlements.plist"
    assert plistlib.loads(entitlements.read_bytes()) == {"com.apple.security.virtualization": True}
    assert made.read_bytes() == apple_signing.interpreter().read_bytes()
    assert made.stat().st_mode & stat.S_IXUSR
    assert made.resolve() != apple_signing.interpreter(), "the user's own interpreter is never signed"


@pytest.mark.parametrize(
    ("work", "reason"),
    [("echo first >&2; echo 'python3: it is \033[1mlocked' >&2; exit 1", "locked"), ("exit 3", "exit code 3")],
    ids=["message", "silent"],
)
def test_failed_signature_is_explained(
    work: str, reason: str, mac: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_codesign(monkeypatch, tmp_path, work)
    with pytest.raises(ProviderUnavailable, match=reason) as caught:
        apple_signing.signed_interpreter()
    assert "\033" not in caught.value.message
    assert any("xcode-select --install" in hint for hint in caught.value.fix_hints)
    assert not list((tmp_path / "cache/proofbox/apple-vm").iterdir()), "an unsigned copy must not be found later"


def test_missing_codesign_is_explained(mac: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple_signing, "CODESIGN", "/nowhere/codesign")
    with pytest.raises(ProviderUnavailable, match="can't be signed"):
        apple_signing.signed_interpreter()


# What it refuses.


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"access": "overlay"}, "access overlay"),
        ({"access": "overlay", "disk": "10m"}, "disk"),
        ({"runtime": "runsc"}, "runtime"),
        ({"network": "full"}, "network full"),
    ],
    ids=["overlay", "disk", "runtime", "network"],
)
def test_policy_without_enforcement_is_refused(
    options: dict[str, str | int], name: str, mac: Path, kernel: Path, boxes: Sandboxes
) -> None:
    with pytest.raises(PolicyRefused, match=name):
        boxes.exec(["true"], provider="apple-vm", **options)  # type: ignore[arg-type]


def test_detached_session_is_refused(mac: Path, kernel: Path, boxes: Sandboxes) -> None:
    with pytest.raises(PolicyRefused, match="can't be found again"):
        boxes.start_session(provider="apple-vm", detached=True)


def test_mounted_file_is_refused(mac: Path, kernel: Path, boxes: Sandboxes, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PolicyRefused, match="only directories"):
        boxes.exec(["true"], provider="apple-vm", mounts=[Mount(tmp_path / "file", "/mnt/file")])
