"""Directories and images travel once, resume after an interruption, are checked by digest, and evicted by size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proofbox.errors import IoFailed
from proofbox.lab.run.crews.cluster import transfer
from proofbox.lab.run.crews.cluster.transfer import Parcel, ParcelCache, ParcelMissing, Parcels, remove_parcel


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (made / "sub" / "run.sh").chmod(0o755)
    (made / "sub").chmod(0o511)
    made.chmod(0o750)
    (made / "data").write_bytes(os.urandom(5000))
    (made / "link").symlink_to("/absolute/and/dangling")
    return made


def send(parcels: Parcels, directory: Path, cache: ParcelCache, most: int | None = None) -> Parcel:
    parcel = parcels.pack(directory)
    here, sent = cache.size_of(parcel), 0
    while here < parcel.size and sent != most:
        here = cache.receive(parcel, here, parcels.read(directory, here))
        sent += 1
    return parcel


def test_tree_arrives_with_modes_and_links(tmp_path: Path, tree: Path) -> None:
    cache = ParcelCache(tmp_path / "cache", "run.node")
    parcel = send(Parcels(tmp_path / "parcels"), tree, cache)
    cache.unpack(parcel, tmp_path / "there")
    assert (tmp_path / "there/data").read_bytes() == (tree / "data").read_bytes()
    for place in (tree, *tree.rglob("*")):
        there = tmp_path / "there" / place.relative_to(tree)
        assert there.lstat().st_mode == place.lstat().st_mode
    assert os.readlink(tmp_path / "there/link") == "/absolute/and/dangling"


def test_parcel_that_was_removed_is_missing(tmp_path: Path, tree: Path) -> None:
    cache = ParcelCache(tmp_path / "cache", "run.node")
    parcel = send(Parcels(tmp_path / "parcels"), tree, cache)
    assert remove_parcel(tmp_path / "cache" / f"{parcel.sha256}.tar")
    with pytest.raises(ParcelMissing):
        cache.unpack(parcel, tmp_path / "there")
    assert not (tmp_path / "there").exists()
    assert cache.size_of(parcel) == 0, "it is sent again as a whole"


def test_equal_trees_have_one_digest(tmp_path: Path, tree: Path) -> None:
    first = Parcels(tmp_path / "first").pack(tree)
    os.utime(tree / "data", (1, 1))
    assert Parcels(tmp_path / "second").pack(tree) == first
    (tree / "data").write_bytes(b"other")
    assert Parcels(tmp_path / "third").pack(tree) != first


def test_interrupted_transfer_continues_where_it_ended(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PIECE_SIZE", 1000)
    parcels, cache = Parcels(tmp_path / "parcels"), ParcelCache(tmp_path / "cache", "run.node")
    parcel = send(parcels, tree, cache, most=3)
    assert cache.size_of(parcel) == 3000
    assert ParcelCache(tmp_path / "cache", "run.other").size_of(parcel) == 0, "nodes that share a home do not mix"
    send(parcels, tree, ParcelCache(tmp_path / "cache", "run.node"))
    assert cache.size_of(parcel) == parcel.size
    cache.unpack(parcel, tmp_path / "there")
    assert (tmp_path / "there/data").read_bytes() == (tree / "data").read_bytes()


def test_parcel_that_was_received_but_not_checked_is_sent_again(tmp_path: Path, tree: Path) -> None:
    """The worker was killed between the last piece and the check of the digest."""
    parcels, cache = Parcels(tmp_path / "parcels"), ParcelCache(tmp_path / "cache", "run.node")
    parcel = parcels.pack(tree)
    (tmp_path / "cache" / f"{parcel.sha256}.run.node.part").write_bytes(bytes(parcel.size))
    send(parcels, tree, cache)
    cache.unpack(parcel, tmp_path / "there")
    assert (tmp_path / "there/data").read_bytes() == (tree / "data").read_bytes()


def test_parcel_with_another_digest_is_discarded(tmp_path: Path) -> None:
    cache = ParcelCache(tmp_path / "cache", "run.node")
    parcel = Parcel("0" * 64, 4)
    with pytest.raises(IoFailed, match="another digest"):
        cache.receive(parcel, 0, b"evil")
    assert cache.size_of(parcel) == 0
    assert not list((tmp_path / "cache").iterdir())


def test_least_recently_used_parcels_are_evicted(tmp_path: Path) -> None:
    trees = []
    for number in range(3):
        trees.append(tmp_path / f"tree{number}")
        trees[-1].mkdir()
        (trees[-1] / "data").write_bytes(os.urandom(20000))
    parcels = Parcels(tmp_path / "parcels")
    size = parcels.pack(trees[0]).size
    cache = ParcelCache(tmp_path / "cache", "run.node", limit=2 * size + 100)
    made = [send(parcels, trees[0], cache), send(parcels, trees[1], cache)]
    for each, moment in zip(made, (2, 1), strict=True):
        os.utime(tmp_path / "cache" / f"{each.sha256}.tar", (moment, moment))
    made.append(send(parcels, trees[2], cache))
    assert [cache.size_of(each) for each in made] == [size, 0, made[2].size]


def test_image_is_sent_as_it_is_and_stays_as_long_as_a_worker_may_use_it(tmp_path: Path) -> None:
    """An evicted image is removed with its unpacked files."""
    parcels, place = Parcels(tmp_path / "parcels"), tmp_path / "cache"
    archives = [tmp_path / f"image{number}" for number in range(3)]
    for each in archives:
        each.write_bytes(os.urandom(10_000))
    worker = ParcelCache(place, "run.node", limit=15_000)
    first = send(parcels, archives[0], worker)
    assert first.is_image
    assert (place / f"{first.sha256}.tar").read_bytes() == archives[0].read_bytes()
    (place / f"{first.sha256}.tree/bin").mkdir(parents=True)
    os.utime(place / f"{first.sha256}.tar", (1, 1))
    another = ParcelCache(place, "other.node", limit=15_000)
    send(parcels, archives[1], another)
    assert (place / f"{first.sha256}.tree/bin").exists(), "it is in use"
    worker.close()
    send(parcels, archives[2], another)
    assert not list(place.glob(f"{first.sha256}.*"))
