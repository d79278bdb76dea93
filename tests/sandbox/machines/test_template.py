"""Which template a machine is cloned from, and how a template that can't be made is reported."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_qemu import fake_qemu

from proofbox.errors import StartFailed
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.images.unused_files import YOUNG, image_files
from proofbox.sandbox.machines import qemu, template
from proofbox.sandbox.machines.late_devices import device_table
from proofbox.sandbox.machines.template import DIGESTS, MEMORY, STATE, find_template
from proofbox.sandbox.machines.trial_boot import WRITABLE_MEMORY


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def kernel() -> Path:
    """The files of a kernel that no machine boots."""
    place = images_dir() / "aa.tree"
    (place / "modules").mkdir(parents=True)
    (place / "vmlinux").write_bytes(b"kernel")
    return place


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """QEMU is not started. Returns the command lines that would boot templates."""
    commands: list[list[str]] = []

    def save(command: list[str], files: Mapping[str, Path], acceleration: object, state: object) -> None:
        assert acceleration is not None
        assert state is not None
        commands.append(command)
        with files[WRITABLE_MEMORY].open("r+b") as file:
            file.seek(1 << 20)
            file.write(b"booted" + bytes(9000))

    monkeypatch.setattr(template, "_boot_and_save", save)
    monkeypatch.setattr(template, "find_qemu", lambda: sys.executable)
    monkeypatch.setattr("proofbox.sandbox.machines.qemu.find_qemu", lambda: sys.executable)
    return commands


def test_template_is_made_once_for_each_kind_of_machine(
    kernel: Path, saved: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_template(kernel, "tcg", 256, 1)
    assert find_template(kernel, "tcg", 256, 1) == first
    assert len(saved) == 1
    others = [find_template(kernel, "tcg", 512, 1), find_template(kernel, "tcg", 256, 2)]
    others.append(find_template(kernel, "kvm", 256, 1))
    monkeypatch.setattr(template, "version_of", lambda _: "another QEMU")
    others.append(find_template(kernel, "tcg", 256, 1))
    (kernel / "modules/more.ko").write_bytes(b"")
    others.append(find_template(kernel, "tcg", 256, 1))
    assert len({first, *others}) == len(saved) == 6


@pytest.mark.parametrize("option", ["_KERNEL_OPTIONS", "_TCG_OPTIONS", "_EMULATED"])
def test_template_depends_on_the_options_that_boot_it(
    kernel: Path, saved: list[list[str]], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release may boot the same kernel in another way."""
    first = find_template(kernel, "tcg", 256, 1)
    with monkeypatch.context() as patch:
        patch.setattr(qemu, option, "other")
        assert find_template(kernel, "tcg", 256, 1) != first
    monkeypatch.setattr(qemu, "timing", lambda: "tsc_early_khz=1 lpj=1")
    assert find_template(kernel, "tcg", 256, 1) == first, "the clock of the host varies"
    assert len(saved) == 2


def test_template_has_holes_in_place_of_zero_pages(kernel: Path, saved: list[list[str]]) -> None:
    memory = find_template(kernel, "tcg", 256, 1) / MEMORY
    with memory.open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 1 << 20
        assert os.lseek(file.fileno(), 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
        file.seek(1 << 20)
        assert file.read(8) == b"booted\0\0"
    assert memory.stat().st_size == 256 << 20
    assert saved


@pytest.mark.parametrize("damage", ["changed", "shorter", "missing", "unreadable digests", "swapped"])
def test_damaged_template_is_made_again(kernel: Path, saved: list[list[str]], damage: str) -> None:
    place = find_template(kernel, "tcg", 256, 1)
    if damage == "changed":
        with (place / MEMORY).open("r+b") as file:
            file.seek(1 << 20)
            file.write(b"B")
    elif damage == "shorter":
        os.truncate(place / MEMORY, 1 << 20)
    elif damage == "missing":
        (place / STATE).unlink()
    elif damage == "unreadable digests":
        (place / DIGESTS).chmod(0o644)
        (place / DIGESTS).write_bytes(b"\xff")
    else:
        (place / STATE).write_bytes(b"of another machine")
    assert find_template(kernel, "tcg", 256, 1) == place
    assert len(saved) == 2
    with (place / MEMORY).open("rb") as file:
        file.seek(1 << 20)
        assert file.read(6) == b"booted"


@pytest.mark.needs("bubblewrap")
def test_template_that_cannot_be_made_is_reported_and_leaves_nothing(
    kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fake_qemu(tmp_path, monkeypatch, "echo no such machine >&2; exit 1")
    monkeypatch.setattr(template, "find_qemu", lambda: str(broken))
    with pytest.raises(StartFailed, match=r"template for virtual machines can't be created: .*no such machine"):
        find_template(kernel, "tcg", 256, 1)
    assert not list(images_dir().glob("*.template*"))


def test_gc_deletes_a_template_that_is_not_used(kernel: Path, saved: list[list[str]]) -> None:
    place = find_template(kernel, "tcg", 256, 1)
    now = place.stat().st_mtime
    assert saved
    assert {path: free for path, free, _ in image_files(now + YOUNG - 1)}[place] is False
    assert {path: free for path, free, _ in image_files(now + YOUNG + 1)}[place] is True


def test_table_of_devices_is_valid() -> None:
    table = device_table()
    assert sum(table) % 256 == 0
    assert int.from_bytes(table[4:8], "little") == len(table)
    assert table.count(b"LNRO0005") == 3


MONITOR = """
import os, socket, sys
os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
monitor = socket.socket(fileno=int(sys.argv[1].removeprefix("fd=")))
with monitor.makefile("rwb") as lines:
    def say(text):
        lines.write(text.encode() + b"\\r\\n")
        lines.flush()
    say('{"QMP": {}}')
    for line in lines:
        if "migrate-incoming" not in line.decode():
            say('{"return": {}}')
            continue
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param("say('{\"error\": {}}')", 'QEMU can\'t restore the template: {"error": {}}', id="refused"),
        pytest.param(
            'say(\'{"return": {}}\'); say(\'{"data": {"status": "failed"}}\')',
            'QEMU can\'t restore the template: {"data": {"status": "failed"}}',
            id="failed",
        ),
        pytest.param("sys.exit()", "QEMU ended while the template was restored: Connection reset by peer", id="ended"),
    ],
)
def test_template_that_cannot_be_restored_ends_the_machine(tmp_path: Path, answer: str, reason: str) -> None:
    script = tmp_path / "qemu.py"
    script.write_text(f"{MONITOR}        {answer}\n    sys.stdin.read()\n")
    for name in (MEMORY, STATE):
        (tmp_path / name).write_bytes(b"saved")
    client, stream = socket.socketpair()
    idle = ["/bin/sleep", "600"]
    argv = [str(program("boxvm")), "--stream", str(stream.fileno()), str(stream.fileno())]
    argv += ["--template", str(tmp_path / MEMORY), str(tmp_path / STATE), "--system", *idle, "--files", *idle]
    argv += ["--attach", "{}\n", "--qemu", sys.executable, "-I", str(script), "fd=@monitor", "--guest", "--"]
    with client, stream:
        done = subprocess.run(
            argv, pass_fds=[stream.fileno()], capture_output=True, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (125, f"boxvm: {reason}\n")
