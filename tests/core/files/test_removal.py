"""A directory with untrusted content is removed completely, and nothing outside it is removed."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from capabilities import OrdinaryUser
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.files import removal
from proofbox.core.files.overlaying import OverlayWriter
from proofbox.core.files.removal import remove_tree


def nest(top: Path, name: str, levels: int) -> None:
    """Nested directories with a file in each; the deepest one has no permissions."""
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.fchmod(fd, 0)
    os.close(fd)


@contextmanager
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 50, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("name", "levels"), [("a", 5000), ("n" * 200, 40), ("b" * 255, 1500)])
def test_deep_and_long_trees_are_removed_with_few_open_files(deep_path: Path, name: str, levels: int) -> None:
    nest(deep_path / "top", name, levels)
    with few_files():
        assert remove_tree(deep_path / "top") == []
    assert os.listdir(deep_path) == []


entries = st.recursive(
    st.sampled_from(["file", "link", "link to a directory", "pipe", "socket"]),
    lambda below: st.tuples(st.sampled_from([0, 0o100, 0o400, 0o555, 0o700]), st.lists(below, max_size=4)),
    max_leaves=20,
)


def make(place: Path, what: object, witness: Path) -> None:
    match what:
        case "file":
            place.touch(0)
        case "link":
            place.symlink_to(witness / "file")
        case "link to a directory":
            place.symlink_to(witness)
        case "pipe":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                folder = os.open(place.parent, os.O_RDONLY)
                listening.bind(f"/proc/self/fd/{folder}/{place.name}")
                os.close(folder)
        case (int() as mode, list() as below):
            place.mkdir()
            for number, each in enumerate(below):
                make(place / os.fsdecode(b"\xff%d" % number), each, witness)
            place.chmod(mode)


@given(entries, st.integers(2, 4))
def test_any_kind_of_entry_is_removed_and_link_targets_stay(
    tmp_path_factory: pytest.TempPathFactory, what: object, most_open: int
) -> None:
    base = tmp_path_factory.mktemp("removal")
    (base / "witness").mkdir()
    (base / "witness/file").write_text("here")
    make(base / "top", what, base / "witness")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removal, "_OPEN", most_open)
        assert remove_tree(base / "top") == []
        assert remove_tree(base / "top") == []
    assert os.listdir(base) == ["witness"]
    assert (base / "witness/file").read_text() == "here"


AS_SOMEONE = """if True:
    import json, os, sys, tempfile
    from pathlib import Path
    from proofbox.core.files.removal import remove_tree
    base = Path(tempfile.mkdtemp())
    place = base / "top"
    for name in ["closed", *["deep"] * 50]:
        place = place / name
        place.mkdir(parents=True)
        (place / "file").touch()
    while place != base:
        place.chmod(0)
        place = place.parent
    output = [remove_tree(base / "top"), os.listdir(base)]
    (base / "kept").mkdir()
    base.chmod(0o500)
    output += [remove_tree(base / "kept"), (base / "kept").exists()]
    base.chmod(0o700)
    output += [remove_tree(base), base.exists()]
    print(json.dumps(output))"""


@pytest.mark.needs("unprivileged-user")
def test_unreadable_directories_are_removed_and_failures_reported(ordinary_user: OrdinaryUser) -> None:
    output = json.loads(ordinary_user.run_code(AS_SOMEONE))
    assert output == [[], [], [["", "Permission denied", errno.EACCES]], True, [], False]


MOUNTED = """if True:
    import json, os, subprocess, sys
    from pathlib import Path
    from proofbox.core.files.removal import remove_tree
    base = Path(sys.argv[1])
    for name in ("other", "top/gone", "top/kept/mount"):
        (base / name).mkdir(parents=True)
        (base / name / "file").touch()
    subprocess.run(["mount", "--bind", base / "other", base / "top/kept/mount"], check=True)
    print(json.dumps([remove_tree(base / "top"), os.listdir(base / "top"), os.listdir(base / "other")]))"""


@pytest.mark.needs("root")
def test_mount_points_are_not_entered(tmp_path: Path) -> None:
    argv = ["unshare", "--mount", sys.executable, "-c", MOUNTED, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[["kept/mount", "Device or resource busy", errno.EBUSY]], ["kept"], ["file"]]


def test_removal_gives_up_when_another_process_keeps_writing(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "first").touch()
    listed = os.listdir
    done = False

    def listdir(fd: int) -> list[str]:
        found = listed(fd)
        if not done:
            (top / f"more{len(found)}{os.urandom(4).hex()}").touch()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        (left,) = remove_tree(top)
        assert left == ("", "another process keeps writing there", errno.ENOTEMPTY)
        done = True
        assert remove_tree(top) == []


def test_overlay_removes_conflicting_entries(deep_path: Path) -> None:
    nest(deep_path / "name", "a", 1500)
    OverlayWriter(deep_path).write("name", [b"new"], 0o644)
    assert (deep_path / "name").read_bytes() == b"new"
