"""Every mutation of a committed bundle is detected: flips, truncations, swaps, additions and removals.

A forgery that recomputes every digest is detected as well, but only with a key or a held digest.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import rebuild, repin, rewrite_log
from trees import scan_tree

from proofbox import BundleWriter, verify
from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import sha256_file
from proofbox.delivery.proof import examine
from proofbox.delivery.source.tree import open_source
from proofbox.evidence.attest.keys import new_key
from proofbox.evidence.bundle.paths import INDEX, STATUS
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.evidence.documents.tree import tree_manifest
from proofbox.evidence.promotion.emit import emit_promotion
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
    """Replace a file by a symbolic link to the same bytes, which is not the same entry."""
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


# Forgeries that recompute every digest


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A signed run of three attempts, each with its own signed packet."""
    new_key(tmp_path / "release")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text("print(1)\n")
    passed = Outcome(Verdict("passed", "agent", "x"), Verdict("passed", "verifier", "x"), Verdict("ok", "us", "x"))
    with BundleWriter.create(tmp_path / "out") as run:
        log = ScheduleLog(run.open_log("schedule.jsonl"))
        run.write_json("results.json", {"schema_version": "example/1", "passed": 3, "by": {"x": [True, "y"]}})
        for name in ("a", "b", "c"):
            log.planned(name, f"attempts/{name}")
            log.started(name)
            with run.nested(f"attempts/{name}") as attempt:
                attempt.write_json("outcome.json", passed.as_json())
                attempt.write_json("tree_manifest.json", tree_manifest(scan_tree(tmp_path / "app")))
                attempt.write_bytes("notes.txt", name.encode())
                with attempt.open_log("events.jsonl") as events:
                    events.extend([{"n": n, "event": "step"} for n in range(4)])
            log.finished(name, sha256_file(attempt.path / INDEX)[0])
        log.close()
    for place in (run.path, *sorted((run.path / "attempts").iterdir())):
        emit_promotion(place, sign=tmp_path / "release", require_promotable=True)
    return run.path


def edited(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with one leaf changed."""
    if isinstance(value, dict) and value.keys() - {"schema_version"}:
        name = chance.choice(sorted(value.keys() - {"schema_version"}))
        return {**value, name: edited(value[name], chance)}
    if isinstance(value, list) and value:
        at = chance.randrange(len(value))
        return [*value[:at], edited(value[at], chance), *value[at + 1 :]]
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}x"


def forge_document(run: Path, chance: random.Random) -> str:
    path = chance.choice([path for path in run.rglob("*.json") if path.name not in (INDEX, STATUS)])
    path.write_bytes(canonical_bytes(edited(json.loads(path.read_bytes()), chance)))
    return f"edited {path}"


def forge_log(run: Path, chance: random.Random) -> str:
    path = chance.choice(list(run.glob("attempts/*/events.jsonl")))
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    at = chance.randrange(len(entries))
    how: list[Callable[[], object]] = [
        lambda: entries.pop(at),
        lambda: entries.insert(at, dict(entries[at])),
        lambda: entries[at].update(event="another"),
        lambda: entries.reverse(),
    ]
    chance.choice(how)()
    rewrite_log(path.parent, path.name, entries)
    return f"rewrote {path}"


def forge_file(run: Path, chance: random.Random) -> str:
    attempt = chance.choice(list(run.glob("attempts/*")))
    how: list[Callable[[], object]] = [
        lambda: (attempt / "notes.txt").write_bytes(chance.randbytes(9)),
        lambda: (attempt / "more").write_bytes(chance.randbytes(9)),
        lambda: (attempt / "notes.txt").unlink(missing_ok=True),
    ]
    chance.choice(how)()
    return f"changed a file of {attempt}"


def forge_schedule(run: Path, chance: random.Random) -> str:
    """Drop an attempt, or replace it with another, in the schedule as well."""
    attempt, other = chance.sample(sorted(path.name for path in run.glob("attempts/*")), 2)
    shutil.rmtree(run / "attempts" / attempt)
    if chance.random() < 0.5:
        shutil.copytree(run / "attempts" / other, run / "attempts" / attempt)
        return f"put {other} in the place of {attempt}"
    entries = [json.loads(line) for line in (run / "schedule.jsonl").read_bytes().splitlines()]
    kept = [entry for entry in entries if entry.get("attempt") != attempt]
    kept[-1]["planned"] -= 1
    rewrite_log(run, "schedule.jsonl", kept)
    return f"dropped {attempt}"


CONSISTENT = [forge_document, forge_log, forge_file, forge_schedule]


@pytest.mark.parametrize("key", ["with", "without"])
def test_consistent_forgery_needs_a_key_or_a_digest(
    signed: Path, tmp_path: Path, rounds: Callable[[int, int], int], key: str
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    out, public = signed.parent, str(tmp_path / "release.pub")
    shutil.copytree(out, tmp_path / "pristine")
    digest = sha256_file(signed / INDEX)[0]
    for number in range(rounds(8, 200)):
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "pristine", out)
        what = [forge(signed, chance) for forge in chance.sample(CONSISTENT, chance.randint(1, len(CONSISTENT)))]
        for attempt in signed.glob("attempts/*"):
            rebuild(attempt)
        repin(signed)
        where = f"seed {seed}, round {number}: {what}"
        assert sha256_file(signed / INDEX)[0] != digest, where
        if key == "with":
            assert not verify(signed, key=public).ok, where
            _check_deliveries(signed, tmp_path, where)
        else:
            (out / f"{signed.name}.promotion.json").unlink()
            emit_promotion(signed)
            found = verify(signed)
            assert found.ok, f"{where}: not consistent: {found.findings}"
            assert found.signature_status() == "consistent, not signed"


def _check_deliveries(run: Path, place: Path, where: str) -> None:
    """Only an attempt that is exactly as its owner signed it is proven."""
    with open_source(place / "app") as tree:
        for name in "abc":
            packet = run.parent / f"{name}.promotion.json"
            proof = examine(packet, None, tree, key=place / "release.pub")
            now, before = (each / "attempts" / name / INDEX for each in (run, place / "pristine" / run.name))
            unchanged = now.exists() and now.read_bytes() == before.read_bytes()
            assert (proof.standing == "proven") is unchanged, f"{where}: {name}: {proof.problems}"
