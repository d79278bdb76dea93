"""What killed clusters leave on a machine, and what nodes keep there: what `gc` removes, and what it leaves alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import pytest

from proofbox import collect_garbage
from proofbox.core.files.locks import locked
from proofbox.lab.garbage import CollectedGarbage
from proofbox.lab.run.crews.cluster.places import (
    MAX_TEMPORARY,
    MEASURING,
    RAY_MARKER,
    RAY_PREFIX,
    claim_worker_place,
    measuring_place,
    ray_place,
    sweep_node,
    worker_places,
)
from proofbox.lab.run.crews.cluster.transfer import Parcel, ParcelCache
from proofbox.sandbox.images.received import received_dir
from proofbox.sandbox.images.unused_files import YOUNG


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files with a path that is short enough for Ray's sockets."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with TemporaryDirectory(prefix="pbt-", dir="/tmp") as found:
        monkeypatch.setattr("tempfile.tempdir", found)
        yield Path(found)


def freed(found: CollectedGarbage, kind: str) -> set[str]:
    return {each.path for each in found.items if each.free and each.kind == kind}


def test_gc_removes_the_files_of_killed_clusters_and_of_their_workers(temporary: Path) -> None:
    killed = ray_place()
    (killed.path / "r").mkdir(mode=0o777)
    (killed.path / "r" / "log").write_bytes(b"0" * 10_000)
    os.close(killed._lock)
    with contextlib.ExitStack() as lock:
        worker = claim_worker_place("run-1.worker-1", lock)
    with ray_place() as alive, contextlib.ExitStack() as lock:
        busy = claim_worker_place("run-1.worker-2", lock)
        (temporary / "proofbox-ray-link").symlink_to(alive)
        (temporary / "proofbox-ray-file").touch()
        shown = collect_garbage(dry_run=True)
        assert freed(shown, "node") == {str(killed.path), str(worker)}
        assert shown.freed >= 10_000
        assert killed.path.exists()
        assert freed(collect_garbage(engine="ray"), "node") == {str(killed.path), str(worker)}
        assert not killed.path.exists()
        assert not worker.exists()
        assert busy.exists()
        left = {each.name for each in temporary.glob("proofbox-ray-*")}
        assert left == {"proofbox-ray-link", "proofbox-ray-file", alive.name}
    assert freed(collect_garbage(), "node") == {str(busy)}


def test_files_of_the_checks_of_a_node_are_removed_with_them_or_with_a_killed_worker(temporary: Path) -> None:
    with contextlib.ExitStack() as lock:
        worker = claim_worker_place("run-1.worker-1", lock)
        with measuring_place(worker):
            made = Path(gettempdir())
            assert (made.parent, made.stat().st_mode & 0o777) == (temporary, 0o755)
        assert not made.exists()
        assert Path(gettempdir()) == temporary
        checks = measuring_place(worker)
        checks.__enter__()  # the worker is killed before it leaves the block
        left = Path(gettempdir())
        (left / "file").touch()
    tempfile.tempdir = str(temporary)
    assert [place for place, _ in sweep_node()] == [str(worker)]
    assert not left.exists()


@pytest.mark.parametrize("target", ["precious", "pbm-1/../precious"])
def test_link_to_other_files_removes_nothing(temporary: Path, target: str) -> None:
    (temporary / "precious").mkdir()
    with contextlib.ExitStack() as lock:
        worker = claim_worker_place("run-1.worker-1", lock)
    (worker / MEASURING).symlink_to(temporary / target)
    sweep_node()
    assert not worker.exists()
    assert (temporary / "precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_gc_leaves_the_files_of_other_users_alone(temporary: Path) -> None:
    other = temporary / f"{RAY_PREFIX}other"
    other.mkdir()
    (other / RAY_MARKER).touch()
    os.chown(other, 12345, 12345)
    assert freed(collect_garbage(), "node") == set()
    assert other.exists()


@pytest.mark.parametrize("marker", ["missing", "link", "directory"])
def test_gc_leaves_directories_alone_that_it_did_not_make(temporary: Path, marker: str) -> None:
    own = [temporary / f"{prefix}backup" for prefix in ("pbr-", RAY_PREFIX)]
    for each in own:
        each.mkdir()
        (each / "data").write_bytes(b"mine")
        if marker == "link":
            (each / RAY_MARKER).symlink_to("data")
        elif marker == "directory":
            (each / RAY_MARKER).mkdir()
    assert freed(collect_garbage(), "node") == set()
    assert all((each / "data").exists() for each in own)


def test_sockets_of_ray_fit_into_the_longest_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a unix socket has at most 107 bytes."""
    session = "session_2026-01-01_00-00-00_000000_4194304"
    with TemporaryDirectory(prefix="p", dir="/tmp") as base:
        for length in (MAX_TEMPORARY, MAX_TEMPORARY + 1):
            place = Path(base) / ("x" * (length - len(base) - 1))
            place.mkdir()
            monkeypatch.setattr("tempfile.tempdir", str(place))
            with ray_place() as made:
                assert made.is_relative_to(place) == (length == MAX_TEMPORARY)
                assert len(f"{made}/r/{session}/sockets/plasma_store") <= 107


@pytest.mark.parametrize("made", ["link", "open to others", "of another user"])
def test_gc_trusts_only_its_own_directory_of_workers(temporary: Path, made: str) -> None:
    """The directory for temporary files is open to all users, so another one may be first to use the name."""
    victim = temporary / "victim"
    (victim / "work").mkdir(parents=True, mode=0o700)
    victim.chmod(0o700)
    for name in ("work.lock", "settings.lock"):
        (victim / name).touch()
    if made == "link":
        worker_places().symlink_to(victim)
    else:
        victim.rename(worker_places())
        victim = worker_places()
        if made == "open to others":
            victim.chmod(0o770)
        elif os.geteuid() == 0:
            os.chown(victim, 12345, 12345)
        else:
            pytest.skip("only root can give a directory to another user")
    for remove in (False, True):
        assert sweep_node(remove=remove) == []
        assert freed(collect_garbage(dry_run=not remove), "node") == set()
    assert {each.name for each in victim.iterdir()} == {"work", "work.lock", "settings.lock"}


def test_dry_run_removes_nothing_of_a_worker(temporary: Path) -> None:
    worker_places().mkdir(mode=0o700)
    lock = worker_places() / "run-1.worker-1.lock"  # of a worker that was killed before it made its directory
    lock.touch()
    assert sweep_node(remove=False) == []
    assert lock.exists()
    assert sweep_node() == []
    assert not worker_places().exists()


def test_gc_removes_parcels_that_were_not_used_for_an_hour(temporary: Path) -> None:
    cache = ParcelCache(received_dir(), "run-1.node-1")
    old, new, image = (Parcel(letter * 64, 5, is_image=letter == "c") for letter in "abc")
    for parcel in (old, new, image):
        (received_dir() / f"{parcel.sha256}.tar").write_bytes(b"12345")
    cache.size_of(image)  # a worker uses it
    for parcel in (old, image):
        path = received_dir() / f"{parcel.sha256}.tar"
        os.utime(path, (0, path.stat().st_mtime - YOUNG - 60))
    (received_dir() / f"{old.sha256}.tree").mkdir()

    for dry_run in (True, False):
        found = {each.path: each for each in collect_garbage(dry_run=dry_run).items if each.kind == "parcel"}
        reasons = {Path(path).name[0]: (each.free, each.reason) for path, each in found.items()}
        assert reasons == {
            "a": (True, "not used for an hour; sent again when needed"),
            "b": (False, "used within the last hour"),
            "c": (False, "in use by a worker"),
        }
    assert sorted(each.name[0] + each.suffix for each in received_dir().iterdir()) == ["b.tar", "c.tar", "c.use"]
    cache.close()
    with locked(received_dir() / f"{image.sha256}.use", wait=False):
        pass
    assert {Path(each).name[0] for each in freed(collect_garbage(), "parcel")} == {"c"}
