"""KVM is tried by booting a machine, whose QEMU is confined like that of a box, and the result is cached."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from fake_qemu import fake_qemu

from proofbox.sandbox.machines import acceleration
from proofbox.sandbox.machines.acceleration import find_acceleration
from proofbox.sandbox.providers.bubblewrap import AGENT_ID

pytestmark = pytest.mark.needs("bubblewrap")
ANSWER = "printf x >&$fd; sleep 600"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A kernel and an initramfs that nothing boots, on a machine with a device for KVM."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(acceleration, "DEVICE", str(tmp_path / "kvm"))
    (tmp_path / "kvm").touch()
    (tmp_path / "images").mkdir()
    kernel, initramfs = tmp_path / "images/vmlinux", tmp_path / "images/aa.initramfs"
    kernel.touch()
    initramfs.touch()
    return kernel, initramfs


def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    found = fake_qemu(tmp_path, monkeypatch, script)
    monkeypatch.setattr(acceleration, "find_qemu", lambda: str(found))
    return found


@pytest.mark.parametrize(
    ("script", "found"),
    [
        pytest.param(ANSWER, "kvm", id="answers"),
        pytest.param("exit 1", "tcg", id="ends"),
        pytest.param("sleep 600", "tcg", id="hangs"),
        pytest.param('test "$(id -u)" != 0 && printf x >&$fd; sleep 600', "kvm", id="is not root"),
        pytest.param(f"test -e {Path(__file__).parent} || printf x >&$fd; sleep 600", "kvm", id="sees no project"),
    ],
)
def test_kvm_is_used_only_if_a_confined_machine_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path], script: str, found: str
) -> None:
    monkeypatch.setattr(acceleration, "BOOT_SECONDS", 1.0 if found == "tcg" else 60.0)
    use(tmp_path, monkeypatch, script)
    assert find_acceleration(*files) == found


def test_result_is_cached_until_qemu_or_the_device_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    program = use(tmp_path, monkeypatch, ANSWER)
    boots: list[str] = []
    verdict = True

    def boot(*_: object) -> bool:
        boots.append("")
        return verdict

    monkeypatch.setattr(acceleration, "_boots", boot)
    assert [find_acceleration(*files) for _ in range(2)] == ["kvm", "kvm"]
    assert len(boots) == 1
    verdict = False
    os.utime(program, (0, 0))
    assert [find_acceleration(*files) for _ in range(2)] == ["tcg", "tcg"]
    assert len(boots) == 2
    verdict = True
    os.chmod(acceleration.DEVICE, stat.S_IRUSR | stat.S_IWUSR)
    assert find_acceleration(*files) == "kvm"
    assert len(boots) == 3


def test_machine_without_the_device_is_emulated_without_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    use(tmp_path, monkeypatch, ANSWER)
    monkeypatch.setattr(acceleration, "DEVICE", str(tmp_path / "absent"))
    monkeypatch.setattr(acceleration, "_boots", lambda *_: pytest.fail("a machine was booted"))
    assert find_acceleration(*files) == "tcg"


@pytest.mark.needs("root")
def test_root_boots_the_trial_as_the_user_of_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    monkeypatch.setattr(acceleration, "BOOT_SECONDS", 60.0)
    check = f'test "$(id -u) $(id -g) $(id -G)" = "{AGENT_ID} {AGENT_ID} {AGENT_ID}"'
    use(tmp_path, monkeypatch, f"{check} && grep -q 'CapEff:.0000000000000000' /proc/self/status && {ANSWER}; exit 1")
    assert find_acceleration(*files) == "kvm"
