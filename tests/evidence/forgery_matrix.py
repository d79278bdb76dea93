"""The matrix of forgeries and commands: each forgery is tried on each command, with and without a signature."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from forgeries import (
    BAD,
    DELIVER,
    EMIT,
    FORGERIES,
    GOOD,
    REPORT,
    SUITE_REPORT,
    VALIDATE,
    VERIFY,
    VERIFY_PACKET,
    Forgery,
    Scene,
    index_of,
    repack,
)
from running_backend import Backend, backend, here
from suites import HEAD, command, conduct, mission, plan, say, write

from proofbox.core.digest import sha256_file
from proofbox.errors import EvidenceIncomplete
from proofbox.evidence.attest.keys import new_key
from proofbox.lab.reports.promoting import emit_promotion

CHECK = {"commands": ["grep -qx 42 a"]}
COMMANDS = (VERIFY, VALIDATE, REPORT, SUITE_REPORT, EMIT, VERIFY_PACKET, DELIVER)
KEYED = (VERIFY, VERIFY_PACKET, DELIVER)
CAUGHT, EITHER, KEY, DIGEST = OUTCOMES = "caught", "key or digest", "key", "digest"


@dataclass
class Lab:
    """Genuine evidence, twice: with unsigned packets, and with packets that the owner signed."""

    place: Path
    running: Backend
    key: Path
    names: Iterator[int] = field(default_factory=count)
    seen: set[str] = field(default_factory=set)
    """Digests of every index, packet and tree that the owner of the key signed."""

    def scene(self, *, signed: bool) -> Scene:
        """Return a copy of the genuine evidence, to be forged."""
        copied = self.place / f"scene-{next(self.names)}"
        shutil.copytree(self.place / ("signed" if signed else "unsigned"), copied, symlinks=True)
        return Scene(copied)

    def run(self, *words: object) -> tuple[int, dict[str, Any]]:
        code, stdout, stderr = here(*words, "--json", url=self.running.url)
        assert code in (0, 1), (words, code, stdout, stderr)
        document: dict[str, Any] = json.loads(stdout)
        return code, document


@contextmanager
def lab(place: Path) -> Iterator[Lab]:
    place.mkdir(exist_ok=True)
    new_key(place / "release")
    with backend(place / "data") as running:
        made = Lab(place, running, place / "release.pub")
        for name, answer in (("older", "42\n"), ("newer", "41\n")):
            _make_run(place / name, answer)
        for kind in ("unsigned", "signed"):
            scene = Scene(place / kind)
            shutil.copytree(place / "newer", scene.place)
            shutil.copytree(place / "older", scene.place / "older")
            for each in (scene, scene.older):
                for of in ("run", GOOD, BAD):
                    sign = place / "release" if kind == "signed" else None
                    emit_promotion(each.bundle(of), sign=sign)
                    if sign is not None:
                        tree = (each.attempt(of) / "tree_manifest.json") if of != "run" else None
                        made.seen |= {index_of(each.bundle(of)), sha256_file(each.packet(of))[0]}
                        made.seen |= {json.loads(tree.read_bytes())["tree_sha256"]} if tree else set()
        yield made


def _make_run(place: Path, answer: str) -> None:
    """Conduct a run of two missions: `good` passes, and `bad` passes only with the right answer."""
    place.mkdir()
    source = HEAD + "".join(
        mission(id, write("a", content), command(run), say("done"), verify=CHECK)
        for id, content, run in (("good", "42\n", "true"), ("bad", answer, "false"))
    )
    run = conduct(plan(source, place / "out", place), place / "out")
    (place / "name").write_text(run.name)
    for name, content in ((GOOD, "42\n"), (BAD, answer)):
        (place / "trees" / name).mkdir(parents=True)
        (place / "trees" / name / "a").write_text(content)


# The commands, as a victim runs them. Each returns whether the forgery was accepted.


def _verify(made: Lab, scene: Scene, _: Forgery, key: list[object]) -> bool:
    code, document = made.run("verify", scene.run, *key)
    _check_signed(made, document, scene.run)
    return code == 0


def _validate(made: Lab, scene: Scene, _: Forgery, __: list[object]) -> bool:
    return made.run("validate", scene.run, "--strict")[0] == 0


def _report(made: Lab, scene: Scene, _: Forgery, __: list[object]) -> bool:
    return made.run("report", scene.run, "--strict")[0] == 0


def _suite_report(made: Lab, scene: Scene, _: Forgery, __: list[object]) -> bool:
    """An attempt whose evidence is invalid has no result there, which counts as caught."""
    document = made.run("suite", "report", scene.run)[1]
    invalid = [each for each in document["attempts"] if each["infra"] == EvidenceIncomplete.code]
    return not document["findings"] and not invalid


def _emit(made: Lab, scene: Scene, forgery: Forgery, _: list[object]) -> bool:
    """Sign it: the owner of the key is the one who is deceived."""
    target = scene.place / "emitted.json"
    options = ["--require-promotable", "--out", target, "--sign", made.place / "release"]
    accepted = False
    for of in forgery.about:
        accepted |= made.run("promotion", "emit", scene.bundle(of), *options)[0] == 0
        target.unlink(missing_ok=True)
    return accepted


def _verify_packet(made: Lab, scene: Scene, forgery: Forgery, key: list[object]) -> bool:
    accepted = False
    for of in forgery.about:
        code, document = made.run("promotion", "verify", scene.packet(of), *key)
        if document["bundle"] is not None:
            _check_signed(made, document, Path(document["bundle"]))
        accepted |= code == 0 and document["promotable"]
    return accepted


def _deliver(made: Lab, scene: Scene, forgery: Forgery, key: list[object]) -> bool:
    app = ["--app-id", f"app-{next(made.names)}", "--source", scene.tree(forgery.delivered)]
    packet = scene.packet(forgery.with_packet or forgery.delivered)
    code, document = made.run("deliver", "init", *app, "--packet", packet, *key)
    if code == 0:
        proof = document["proof"]
        assert proof["standing"] == ("proven" if key else "consistent, not signed")
        if proof["standing"] == "proven":
            assert {proof["packet_sha256"], proof["tree_sha256"], document["tree_sha256"]} <= made.seen
    return code == 0


def _check_signed(made: Lab, document: dict[str, Any], bundle: Path) -> None:
    """Nothing counts as signed that the owner of the key did not sign."""
    if document["ok"] and document["signed_by"] is not None:
        assert index_of(bundle) in made.seen


_RUNS: dict[str, Callable[[Lab, Scene, Forgery, list[object]], bool]] = dict(
    zip(COMMANDS, (_verify, _validate, _report, _suite_report, _emit, _verify_packet, _deliver), strict=True)
)


def measure(made: Lab, forgery: Forgery, *, flips: int = 6) -> dict[str, str]:
    """Try a forgery on every command. Return an outcome for each, or the reason why nothing can detect it."""
    unsigned, signed = made.scene(signed=False), made.scene(signed=True)
    digest = index_of(unsigned.run)
    for scene in (unsigned, signed) if forgery.kind != "race" else (unsigned,):
        forgery.forge(scene)
    if not forgery.packets:
        for of in forgery.about:
            repack(unsigned, of)
    digest_differs = index_of(unsigned.run) != digest and forgery.kind != "race"
    key: list[object] = ["--key", made.key]

    def passes_with_key(name: str) -> bool:
        if forgery.kind == "race":
            return any(_race(made, name, signed, unsigned, flips))
        return _RUNS[name](made, signed, forgery, key)

    key_passes = {name: passes_with_key(name) for name in KEYED}
    cells = {}
    for name in COMMANDS:
        # A command without `--key` is as good as a `verify --key` before it.
        caught_by_key = not key_passes[name] if name in KEYED else digest_differs and not key_passes[VERIFY]
        if not _RUNS[name](made, unsigned, forgery, []):
            cells[name] = CAUGHT
            assert not key_passes.get(name), f"{name}: caught without a key, but not with one"
        elif caught_by_key:
            cells[name] = EITHER if digest_differs else KEY
        elif digest_differs and name != DELIVER:
            cells[name] = DIGEST
        else:
            cells[name] = forgery.undetected[name]
    unused = [name for name in forgery.undetected if cells[name] != forgery.undetected[name]]
    assert not unused, f"detected by {unused}"
    return cells


def _race(made: Lab, name: str, signed: Scene, forged: Scene, flips: int) -> Iterator[bool]:
    """Replace run and packets before an open call of a command, and yield whether it accepted the forged ones."""
    scene = made.scene(signed=True)
    genuine = made.run("verify", signed.run)[1]["checked"]
    assert genuine != made.run("verify", forged.run)[1]["checked"]
    words: list[object] = ["verify", scene.run]
    if name != VERIFY:
        words = ["promotion", "verify", scene.packet("run"), "--bundle", scene.run]
    if name == DELIVER:
        words = ["deliver", "init", "--source", scene.tree(BAD), "--packet", scene.packet(BAD)]
        words += ["--bundle", scene.attempt(BAD)]

    def put(run: Scene, packets: Scene) -> None:
        for of in ("run", BAD):
            beside = scene.packet(of).with_suffix(".new")
            shutil.copyfile(packets.packet(of), beside)
            beside.replace(scene.packet(of))
        link = scene.place / "link"
        link.symlink_to(run.run)
        if not scene.run.is_symlink():
            shutil.rmtree(scene.run)
        link.replace(scene.run)

    really_open = os.open
    accepted = 0
    for begins, then in ((signed, forged), (forged, signed)):
        for with_packets in (True, False):
            for when in (1, 2, 3, 5, 8, 13, 21, 34, 55, 1000)[-flips:]:
                put(begins, begins if with_packets else signed)
                opened = count(1)

                def flipping_open(*words: Any, **options: Any) -> int:
                    if next(opened) == when:  # noqa: B023 (called only in this round)
                        put(then, then if with_packets else signed)  # noqa: B023
                    return really_open(*words, **options)

                app = ["--app-id", f"app-{next(made.names)}"] if name == DELIVER else []
                with patch.object(os, "open", flipping_open):
                    code, document = made.run(*words, *app, "--key", made.key)
                accepted += code == 0
                yield code == 0 and (name == DELIVER or document["checked"] != genuine)
    assert accepted or name == DELIVER, "the genuine run is accepted if nothing is replaced in time"


# The page

KINDS = ("drop", "swap", "flip", "relabel", "replay", "race", "rebuild")
HEADS = ("`verify`", "`validate`", "`report`", "`suite report`", "`promotion emit`", "`promotion verify`", "`deliver`")


def row(forgery: Forgery, cells: dict[str, str]) -> str:
    """Return the forgery's row of the page."""
    shown = [cell if cell in OUTCOMES else f"no ({REASONS.index(cell) + 1})" for cell in cells.values()]
    return f"| {forgery.what} | {' | '.join(shown)} |"


def page(rows: dict[str, str]) -> str:
    """Return the page, from the row of each forgery by its name."""
    lines = [INTRODUCTION]
    for kind in KINDS:
        lines += [f"## {kind.capitalize()}", "", f"| forgery | {' | '.join(HEADS)} |", "|---" * 8 + "|"]
        lines += [rows[forgery.name] for forgery in FORGERIES if forgery.kind == kind] + [""]
    lines += ["## Why some forgeries are not detectable", ""]
    lines += [f"{number}. {reason[0].upper()}{reason[1:]}." for number, reason in enumerate(REASONS, 1)]
    return "\n".join(lines) + "\n"


REASONS = tuple(dict.fromkeys(reason for forgery in FORGERIES for reason in forgery.undetected.values()))
INTRODUCTION = """<!-- Written by scripts/forgeries, which tries each of them. Do not edit. -->

# Forgeries

An attacker can write every file: the run, its packets, its ledger, and the tree to deliver. The attacker recomputes
every digest, chain, pin, summary and unsigned packet with proofbox's own code, but has neither the private key nor a
digest that you noted elsewhere. Tests try each forgery below on each command, with unsigned packets, and with packets
that the owner of a key signed before the forgery.

- **caught**: the command refuses the evidence or reports a finding, with or without a key.
- **key or digest**: caught only with a key or a held digest. `verify`, `promotion verify` and `deliver` accept the key
  as `--key`. Before any other command, run `verify --key`, or compare `sha256sum out/<run_id>/artifact_index.json` with
  the digest that you noted.
- **key**, **digest**: caught only with a key, or only with a held digest.
- **no**: not detectable, because of the reason with that number at the end of this page.

`validate` and `report` run with `--strict`. The owner of the key runs `promotion emit`: if it does not catch a forgery,
the owner signs evidence that was forged before. Nothing is ever *proven* that the owner of the key did not sign.
"""
