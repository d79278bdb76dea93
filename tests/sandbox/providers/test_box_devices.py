"""A box of root gets a /dev that boxlaunch makes, and starts without the host's /sys in its mount table."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from raw_agent import wait_until

from proofbox import Sandboxes
from proofbox.sandbox.contract import BoxMount, Policy
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.providers.bubblewrap import command_line, without_sys

pytestmark = pytest.mark.needs("bubblewrap", "root")

LIST = "cd /dev && stat -c '%n %F %a %t:%T' $(ls -A | grep -v shm) && readlink core fd ptmx stderr stdin stdout"
TRY_TO_CHANGE = """
for path in /dev/null /dev/tty /dev/pts; do
    chmod 0777 $path 2>/dev/null && echo "chmod $path"
    mv $path /tmp/moved 2>/dev/null && echo "moved $path"
    rm -rf $path 2>/dev/null && echo "removed $path"
done
touch /dev/new 2>/dev/null && echo "created a file"
mknod /dev/disk b 254 0 2>/dev/null && echo "created a device"
true
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def test_devices_are_those_that_bubblewrap_makes(project: Path) -> None:
    bare = subprocess.run(
        [*command_line(project, Policy()), "sh", "-c", LIST], capture_output=True, text=True, check=True
    )
    with Sandboxes(project).start_session(provider="bubblewrap") as box:
        ours = box.exec(["sh", "-c", LIST])
    assert "character special file 666 1:3" in ours.stdout
    assert ours.stdout.splitlines() == bare.stdout.splitlines()


def test_devices_can_be_used_but_not_changed(project: Path) -> None:
    with Sandboxes(project).start_session(provider="bubblewrap") as box:
        assert box.exec(["sh", "-c", TRY_TO_CHANGE]).stdout == ""
        use = "echo lost > /dev/null; head -c 3 /dev/zero | od -An -tx1; cat /dev/zero > /dev/full"
        used = box.exec(["sh", "-c", use])
        assert used.stdout.split() == ["00", "00", "00"]
        assert "No space left" in used.stderr


def test_boxes_have_separate_terminals(project: Path) -> None:
    hold = """if True:
        import os, pathlib, pty, time
        pty.openpty()
        print(*sorted(os.listdir("/dev/pts")))
        pathlib.Path("opened").touch()
        while not pathlib.Path("seen").exists():
            time.sleep(0.01)"""
    with (
        Sandboxes(project) as boxes,
        ThreadPoolExecutor(1) as threads,
        boxes.start_session(provider="bubblewrap") as one,
        boxes.start_session(provider="bubblewrap") as other,
    ):
        holding = threads.submit(one.exec, ["python3", "-c", hold], timeout=60)
        wait_until((project / "opened").exists, "the terminal")
        assert other.exec(["ls", "/dev/pts"]).stdout.split() == ["ptmx"]
        (project / "seen").touch()
        assert holding.result().stdout.split() == ["0", "ptmx"]


def test_devices_are_mounted_where_root_may_not_create_them(tmp_path: Path) -> None:
    place = tmp_path / "dev"
    place.mkdir()
    show = ["sh", "-c", 'stat -c %t:%T "$0/null" "$0/tty" && head -c 2 "$0/zero" | wc -c', str(place)]
    launch = [
        "setpriv",
        "--bounding-set",
        "-mknod",
        "--",
        str(program("boxlaunch")),
        "--devices",
        str(place),
        "--",
        *show,
    ]
    done = subprocess.run(launch, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1:3", "5:0", "2"]
    assert os.listdir(place) == []


def test_box_starts_without_the_mounts_of_sys(tmp_path: Path) -> None:
    launch = str(program("boxlaunch"))
    show = ["cut", "-d", " ", "-f", "5", "/proc/self/mountinfo"]
    listed = subprocess.run([launch, "--without", "/sys", "--", *show], capture_output=True, text=True, check=True)
    assert "/" in listed.stdout.split()
    assert not [each for each in listed.stdout.split() if each.startswith("/sys")]
    subprocess.run([launch, "--without", str(tmp_path), "--without", f"{tmp_path}/missing", "--", "true"], check=True)
    assert os.path.ismount("/sys")


def test_mounts_of_sys_remain_if_a_source_is_there() -> None:
    assert without_sys([BoxMount(Path("/usr"), "/usr", False), BoxMount(None, "/sys", True)]) == ["--without", "/sys"]
    for source in ("/sys", "/sys/fs/cgroup/project"):
        assert without_sys([BoxMount(Path(source), "/project", True)]) == []
