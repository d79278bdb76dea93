"""Mounts show the named source, even if another box replaces it while this one starts."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from proofbox import Sandboxes
from proofbox.config.settings import Settings
from proofbox.errors import PathRefused, ProofboxError, SandboxLost, StartFailed
from proofbox.sandbox.client import connection
from proofbox.sandbox.client.connection import Connection
from proofbox.sandbox.contract import Mount, Policy
from proofbox.sandbox.covering import check_sources, placed, sources
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.host.local_box import LocalBox


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "project"
    (path / "data").mkdir(parents=True)
    (path / "data/kept").write_text("data")
    return path


@pytest.fixture
def boxes(project: Path) -> Generator[Sandboxes]:
    with Sandboxes(project, settings=Settings(provider="bubblewrap")) as boxes:
        yield boxes


def launch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [str(program("boxlaunch")), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.needs("root")
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_pinned_mount_survives_the_replacement_of_its_path(project: Path, tmp_path: Path, kind: str) -> None:
    source = project / ("data" if kind == "directory" else "data/kept")
    stage = tmp_path / "stage"
    stage.mkdir()
    swap = 'mv "$1" "$1-2"; ln -s /etc/passwd "$1"; cat "$2" "$2/kept" 2>/dev/null; ls "$0"'
    done = launch("--stage", stage, "--pin", source, stage / "0", "--", "sh", "-c", swap, stage, source, stage / "0")
    assert done.stdout == "data0\n", done.stderr
    assert not list(stage.iterdir()), "the staging directory is visible outside"


@pytest.mark.needs("root")
@pytest.mark.parametrize("path", ["link", "link/below"])
def test_pin_through_a_link_fails(project: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "elsewhere/below").mkdir(parents=True)
    (project / "link").symlink_to(tmp_path / "elsewhere")
    done = launch("--stage", tmp_path / "stage", "--pin", project / path, tmp_path / "stage/0", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert "symbolic links" in done.stderr


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("access", ["rw", "ro", "overlay"])
def test_part_of_the_project_can_be_mounted_elsewhere(boxes: Sandboxes, project: Path, access: str) -> None:
    script = "cat /mnt/data/kept; echo changed > /mnt/data/kept; cat /mnt/one"
    mounts = [Mount(project / "data", "/mnt/data", writable=True), Mount(project / "data/kept", "/mnt/one")]
    result = boxes.exec(["sh", "-c", script], access=access, mounts=mounts)  # type: ignore[arg-type]
    assert result.stdout == "datachanged\n", result.stderr
    assert (project / "data/kept").read_text() == ("data" if access == "overlay" else "changed\n")


@pytest.mark.needs("bubblewrap")
def test_source_swapped_while_boxes_start_is_never_followed(boxes: Sandboxes, project: Path, tmp_path: Path) -> None:
    elsewhere, other = tmp_path / "elsewhere", project / "other"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    other.symlink_to(elsewhere)
    spare, done = project / "spare", threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(project / "data", spare)
            os.rename(other, project / "data")
            os.rename(project / "data", other)
            os.rename(spare, project / "data")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(20):
            try:
                boxes.exec(["touch", "/mnt/data/x"], mounts=[Mount(project / "data", "/mnt/data", writable=True)])
            except ProofboxError:
                continue
    finally:
        done.set()
        thread.join()
    assert not list(elsewhere.iterdir())


def test_box_whose_launcher_exits_immediately_is_reported_and_cleaned_up(
    boxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LocalBox] = []

    def lose(stream: socket.socket, kill: Callable[[], None]) -> Connection:
        started.append(kill.__self__)  # type: ignore[attr-defined]
        raise SandboxLost("the box's stream broke", op="exec")

    monkeypatch.setattr(connection, "Connection", lose)
    with pytest.raises(StartFailed):
        boxes.exec(["true"], provider="off")
    assert started[0]._process.returncode is not None


def test_source_replaced_after_container_start_is_detected(project: Path) -> None:
    policy = Policy(mounts=(Mount(project / "data", "/mnt/data", writable=True),))
    mounts = placed(project, policy)
    before = sources(mounts)
    check_sources(before, mounts)
    (project / "data").rename(project / "old")
    (project / "data").mkdir()
    with pytest.raises(PathRefused, match="replaced"):
        check_sources(before, mounts)
    (project / "data").rmdir()
    (project / "data").symlink_to("/etc")
    with pytest.raises(PathRefused, match="symbolic link"):
        sources(mounts)


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("place", ["/opt/proofbox-new", "/usr/proofbox-new/deep", "/bin/sh"])
def test_mount_point_that_cannot_be_created_in_a_host_directory_is_refused(
    boxes: Sandboxes, tmp_path: Path, place: str
) -> None:
    with pytest.raises(PathRefused, match=place) as raised:
        boxes.exec(["true"], mounts=[f"{tmp_path}:{place}"])
    assert raised.value.fix_hints[0] == f"choose another path: {tmp_path.resolve()}:/mnt/{tmp_path.name}"


@pytest.mark.needs("bubblewrap")
def test_mount_point_in_a_mount_over_a_host_directory_is_created(boxes: Sandboxes, tmp_path: Path) -> None:
    (tmp_path / "opt/new").mkdir(parents=True)
    (tmp_path / "new").mkdir()
    (tmp_path / "new/f").write_text("seen")
    mounts = [f"{tmp_path}/opt:/opt", f"{tmp_path}/new:/opt/new"]
    assert boxes.exec(["cat", "/opt/new/f"], mounts=mounts).stdout == "seen"


def test_mount_point_in_a_read_only_project_must_exist(project: Path, tmp_path: Path) -> None:
    mount = Mount(tmp_path, f"{project}/new")
    with pytest.raises(PathRefused, match="read-only"):
        placed(project, Policy(access="ro", mounts=(mount,)))
    assert placed(project, Policy(access="rw", mounts=(mount,)))


def test_mount_point_behind_a_link_in_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    (project / "link").symlink_to("/oldroot/etc")
    with pytest.raises(PathRefused, match="symbolic link"):
        placed(project, Policy(access="rw", mounts=(Mount(tmp_path, f"{project}/link/new"),)))
