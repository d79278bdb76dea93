"""Every mutation of a committed bundle is detected: flips, truncations, swaps, additions and removals."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from proofbox import BundleWriter
from proofbox.evidence.verify.check import check_bundle

Mutation = Callable[[Path, random.Random], str]


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def pick(root: Path, chance: random.Random) -> Path:
    return chance.choice(files(root))


def filled(root: Path, chance: random.Random) -> Path:
    return chance.choice([path for path in files(root) if path.stat().st_size])


def flip(root: Path, chance: random.Random) -> str:
    path = filled(root, chance)
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"bit flipped at {at} of {path}"


def truncate(root: Path, chance: random.Random) -> str:
    path = filled(root, chance)
    os.truncate(path, chance.randrange(path.stat().st_size))
    return f"truncated {path}"


def append(root: Path, chance: random.Random) -> str:
    path = pick(root, chance)
    with path.open("ab") as stream:
        stream.write(chance.choice([b"\n", b"\0", b" ", b"{}\n", chance.randbytes(9)]))
    return f"appended to {path}"


def insert(root: Path, chance: random.Random) -> str:
    path = filled(root, chance)
    data = path.read_bytes()
    at = chance.randrange(len(data))
    path.write_bytes(data[:at] + chance.choice([b" ", b"\n", b"0"]) + data[at:])
    return f"inserted at {at} of {path}"


def swap_bytes(root: Path, chance: random.Random) -> str:
    path = chance.choice([path for path in files(root) if len(set(path.read_bytes())) > 1])
    data = bytearray(path.read_bytes())
    while True:
        a, b = chance.randrange(len(data)), chance.randrange(len(data))
        if data[a] != data[b]:
            break
    data[a], data[b] = data[b], data[a]
    path.write_bytes(data)
    return f"swapped bytes {a} and {b} of {path}"


def swap_files(root: Path, chance: random.Random) -> str:
    while True:
        one, other = chance.sample(files(root), 2)
        if one.read_bytes() != other.read_bytes():
            break
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"swapped {one} and {other}"


def remove(root: Path, chance: random.Random) -> str:
    path = pick(root, chance)
    path.unlink()
    return f"removed {path}"


def rename(root: Path, chance: random.Random) -> str:
    path = pick(root, chance)
    path.rename(path.with_name(path.name + "x"))
    return f"renamed {path}"


def add_file(root: Path, chance: random.Random) -> str:
    place = chance.choice([root, *(path for path in root.rglob("*") if path.is_dir())])
    name = chance.choice(
        ["new", ".proofbox-tmp-00", ".hidden", "LATEST", ".runtime.lock", os.fsdecode(b"\xff"), "a\nb"]
    )
    (place / name).write_bytes(chance.randbytes(chance.randrange(3)))
    return f"added {name!r} to {place}"


def add_directory(root: Path, chance: random.Random) -> str:
    place = chance.choice([root, *(path for path in root.rglob("*") if path.is_dir())])
    (place / "new").mkdir()
    return f"added a directory to {place}"


def link(root: Path, chance: random.Random) -> str:
    """The same bytes by way of a symbolic link are another thing than a file."""
    path = pick(root, chance)
    away = root.parent / "away"
    shutil.copyfile(path, away)
    path.unlink()
    path.symlink_to(away)
    return f"linked {path}"


def link_directory(root: Path, chance: random.Random) -> str:
    place = chance.choice([path for path in root.rglob("*") if path.is_dir()])
    away = root.parent / "away-too"
    shutil.move(place, away)
    place.symlink_to(away)
    return f"linked the directory {place}"


def drop_tree(root: Path, chance: random.Random) -> str:
    place = chance.choice([path for path in root.rglob("*") if path.is_dir()])
    shutil.rmtree(place)
    return f"dropped {place}"


def copy_tree(root: Path, chance: random.Random) -> str:
    place = chance.choice([path for path in root.rglob("*") if path.is_dir()])
    shutil.copytree(place, place.with_name(place.name + "-copy"))
    return f"copied {place}"


MUTATIONS: list[Mutation] = [
    *([flip] * 8 + [truncate, append, insert, swap_bytes] * 2),
    *(swap_files, remove, rename, add_file, add_directory, link, link_directory, drop_tree, copy_tree),
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    with BundleWriter.create(tmp_path / "out", expected=["results.json", "absent.json"]) as run:
        run.write_json("results.json", {"schema_version": "example/1", "passed": True, "score": 0.5})
        run.write_bytes("empty", b"")
        run.write_bytes("blobs/one", random.Random(1).randbytes(700))
        with run.open_log("trace.jsonl") as log:
            log.extend([{"n": n, "event": "step"} for n in range(5)])
        for number in (1, 2):
            with run.nested(f"attempts/a-{number}") as attempt:
                attempt.write_json("outcome.json", {"schema_version": "example/1", "n": number})
                with attempt.open_log("steps.jsonl") as log:
                    log.append({"n": number})
                with attempt.nested("inner") as inner:
                    inner.write_bytes("deep/x", b"x")
    return run.path


def test_no_mutation_is_missed(bundle: Path, rounds: Callable[[int, int], int]) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    pristine = bundle.parent.parent / "pristine"
    shutil.copytree(bundle, pristine)
    assert check_bundle(str(bundle), chains=True).ok
    for number in range(rounds(300, 2000)):
        for away in ("away", "away-too"):
            place = bundle.parent / away
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        shutil.rmtree(bundle)
        shutil.copytree(pristine, bundle)
        what = chance.choice(MUTATIONS)(bundle, chance)
        found = check_bundle(str(bundle), chains=True)
        assert found.findings, f"seed {seed}, round {number}: {what}: not found"
    shutil.rmtree(bundle)
    shutil.copytree(pristine, bundle)
    assert check_bundle(str(bundle), chains=True).ok, "a copy of a good bundle is a good bundle"
