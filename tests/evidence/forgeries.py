"""A model of an attacker: forgeries of a run, its packets, its ledger and the tree to deliver.

The attacker can write every file and uses proofbox's own code to recompute every digest, chain, pin, summary and
unsigned packet. The attacker has neither the owner's private key nor a digest that was noted elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from forging import rebuild, repin, rewrite_log
from trees import scan_tree

from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import sha256_file
from proofbox.errors import ProofboxError
from proofbox.evidence.attest.keys import new_key
from proofbox.evidence.bundle.index import Artifact, Index
from proofbox.evidence.bundle.paths import INDEX, STATUS
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.documents.tree import tree_manifest
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.promotion.policies import POLICIES
from proofbox.lab.reports.results import attempts_by_evidence
from proofbox.lab.reports.summary import summarize
from proofbox.lab.suite.reading import parse_suite

GOOD, BAD = "good.1.e1", "bad.1.e1"
Kind = Literal["drop", "swap", "flip", "relabel", "replay", "race", "rebuild"]


@dataclass(frozen=True)
class Scene:
    """One run with its packets, an older run of the same owner, and the trees to deliver."""

    place: Path

    @property
    def out(self) -> Path:
        return self.place / "out"

    @property
    def run(self) -> Path:
        return self.out / (self.place / "name").read_text()

    @property
    def ledger(self) -> Path:
        return self.out / f"{self.run.name}.ledger"

    @property
    def older(self) -> Scene:
        return Scene(self.place / "older")

    def attempt(self, name: str) -> Path:
        return self.run / "attempts" / name

    def tree(self, name: str) -> Path:
        """Return the directory to deliver: the files that the attempt left."""
        return self.place / "trees" / name

    def packet(self, of: str) -> Path:
        """Return the packet of the run, or of an attempt."""
        return self.out / f"{self.run.name if of == 'run' else of}.promotion.json"

    def bundle(self, of: str) -> Path:
        return self.run if of == "run" else self.attempt(of)


@dataclass(frozen=True)
class Forgery:
    """A forgery. `undetected` has the reason for each command that nothing can make detect it."""

    kind: Kind
    what: str
    forge: Callable[[Scene], object]
    about: tuple[str, ...] = ("run",)
    """What it changes: the run, and the attempts whose code or verdict it is about."""
    undetected: Mapping[str, str] = field(default_factory=dict)
    packets: bool = False
    """Whether it writes packets itself. Otherwise, unsigned packets are rewritten, and signed ones are kept."""
    delivered: str = GOOD
    """The attempt whose tree is delivered."""
    with_packet: str = ""
    """The packet to deliver with, if not the attempt's own."""

    @property
    def name(self) -> str:
        return self.forge.__name__.replace("_", " ")


# What the attacker recomputes


def edit(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(canonical_bytes(document))


def reindex(scene: Scene) -> None:
    """Rebuild every index, from the attempts up, and the pins in the schedule."""
    for attempt in (scene.run / "attempts").iterdir():
        rebuild(attempt)
    repin(scene.run)


def resummarize(scene: Scene) -> None:
    """Rebuild everything that follows from suite and attempts: indexes, pins, the summary and the ledger."""
    reindex(scene)
    bundle = load_bundle(scene.run)
    text = (scene.run / "suite.toml").read_text()
    suite = parse_suite(text, base=Path(), name="suite.toml", pinned=Path())
    attempts, _ = attempts_by_evidence(bundle)
    document = msgspec.json.decode(msgspec.json.encode(summarize(bundle.run_id, suite, attempts)))
    (scene.run / "summary.json").write_bytes(canonical_bytes(document))
    rebuild(scene.run)
    with contextlib.closing(sqlite3.connect(scene.ledger)) as ledger, ledger:
        ledger.execute("UPDATE about SET value = json_set(value, '$.suite_source', ?) WHERE key = 'plan'", [text])
        for row in ledger.execute("SELECT id FROM attempt").fetchall():
            ledger.execute("DELETE FROM attempt WHERE id = ?", row) if row[0] not in {a.id for a in attempts} else None
        for each in attempts:
            result = msgspec.json.encode(each.result).decode()
            ledger.execute("UPDATE attempt SET result = ? WHERE id = ?", [result, each.id])


def repack(scene: Scene, of: str, **options: Any) -> None:
    """Write a packet as good as the attacker can make it."""
    target = scene.packet(of)
    before = target.read_bytes()
    target.unlink()
    try:
        emit_promotion(scene.bundle(of), **options)
    except ProofboxError:
        target.write_bytes(before)


# Drop


def drop_attempt(scene: Scene) -> None:
    shutil.rmtree(scene.attempt(BAD))
    rebuild(scene.run)


def drop_attempt_from_schedule(scene: Scene) -> None:
    shutil.rmtree(scene.attempt(BAD))
    entries = [json.loads(line) for line in (scene.run / "schedule.jsonl").read_bytes().splitlines()]
    kept: list[dict[str, object]] = [entry for entry in entries if entry.get("attempt") != "bad.1"]
    kept[-1]["planned"] = 1
    rewrite_log(scene.run, "schedule.jsonl", kept)


def drop_attempt_from_summary(scene: Scene) -> None:
    drop_attempt_from_schedule(scene)
    resummarize(scene)


def drop_mission(scene: Scene) -> None:
    drop_attempt_from_schedule(scene)
    source = scene.run / "suite.toml"
    text = source.read_text()
    source.write_text(text[: text.index('[[mission]]\nid = "bad"')])
    _rename_suite(scene)


def drop_log_line(scene: Scene) -> None:
    _cut_log(scene)
    reindex(scene)


def drop_log_line_and_chain(scene: Scene) -> None:
    """Drop a line, and list the log as an ordinary file, which has no chain."""
    _cut_log(scene)
    rebuild(scene.attempt(BAD), change=_without_chains)
    repin(scene.run)


def _without_chains(index: Index) -> Index:
    artifacts = {
        path: Artifact(path, entry.file_size, entry.sha256, entry.schema_version)
        for path, entry in index.artifacts.items()
    }
    return index._replace(artifacts=artifacts)


def _cut_log(scene: Scene) -> None:
    entries = [json.loads(line) for line in (scene.attempt(BAD) / "events.jsonl").read_bytes().splitlines()]
    (scene.attempt(BAD) / "events.jsonl").write_bytes(
        b"".join(canonical_bytes(entry) + b"\n" for entry in entries[:1] + entries[2:])
    )


# Swap


def swap_attempt(scene: Scene) -> None:
    shutil.rmtree(scene.attempt(BAD))
    shutil.copytree(scene.attempt(GOOD), scene.attempt(BAD))
    resummarize(scene)


def swap_delivered_file(scene: Scene) -> None:
    (scene.tree(GOOD) / "a").write_text("41\n")


def swap_delivered_file_for_a_link(scene: Scene) -> None:
    (scene.tree(GOOD) / "a").unlink()
    (scene.tree(GOOD) / "a").symlink_to("/etc/hostname")


def swap_delivered_file_for_a_key(scene: Scene) -> None:
    (scene.tree(GOOD) / "a").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")


def swap_tree(scene: Scene) -> None:
    (scene.tree(GOOD) / "a").write_text("41\n")
    manifest = tree_manifest(scan_tree(scene.tree(GOOD)))
    (scene.attempt(GOOD) / "tree_manifest.json").write_bytes(canonical_bytes(manifest))
    resummarize(scene)


def swap_in_a_malformed_tree(scene: Scene) -> None:
    """List a file twice, the second time with the attacker's content."""
    (scene.tree(GOOD) / "a").write_text("41\n")
    forged = tree_manifest(scan_tree(scene.tree(GOOD)))
    edit(scene.attempt(GOOD) / "tree_manifest.json", lambda it: it["entries"].extend(forged["entries"]))
    resummarize(scene)


def swap_in_a_huge_file(scene: Scene) -> None:
    os.truncate(scene.attempt(BAD) / STATUS, 1 << 40)


# Flip


def flip_byte(scene: Scene) -> None:
    path = scene.attempt(BAD) / "outcome.json"
    path.write_bytes(path.read_bytes().replace(b'"result":"failed"', b'"result":"failee"'))


def flip_ledger(scene: Scene) -> None:
    with contextlib.closing(sqlite3.connect(scene.ledger)) as ledger, ledger:
        ledger.execute("UPDATE attempt SET result = json_set(result, '$.verified', 'passed') WHERE id = 'bad.1'")


def flip_outcome(scene: Scene) -> None:
    edit(scene.attempt(BAD) / "outcome.json", lambda it: it["verified"].update(result="passed"))
    resummarize(scene)


def flip_outcome_and_report(scene: Scene) -> None:
    edit(scene.attempt(BAD) / "attempt.report.json", lambda it: it.update(verified="passed"))
    flip_outcome(scene)


def flip_every_result(scene: Scene) -> None:
    edit(scene.attempt(BAD) / "attempt.json", lambda it: it["verification"].update(result="passed"))
    flip_outcome_and_report(scene)


def flip_verifier_commands(scene: Scene) -> None:
    def passed(document: Any) -> None:
        document["verification"].update(passed=True)
        for each in document["verification"]["commands"]:
            each.update(passed=True, exit_code=0, why="")

    edit(scene.attempt(BAD) / "attempt.json", passed)
    flip_every_result(scene)


def flip_summary(scene: Scene) -> None:
    edit(scene.run / "summary.json", lambda it: it["totals"].update(passed=2, failed=0))
    rebuild(scene.run)


def flip_call_count(scene: Scene) -> None:
    edit(scene.attempt(BAD) / "attempt.report.json", lambda it: it.update(tool_calls_observed=3))
    resummarize(scene)


def flip_call_failures(scene: Scene) -> None:
    edit(scene.attempt(BAD) / "attempt.report.json", lambda it: it.update(tool_failures={}))
    resummarize(scene)


def flip_call_in_trace(scene: Scene) -> None:
    """Record a command that never ran, in the trace and in every count."""
    attempt = scene.attempt(BAD)
    for name in ("tool.calls.jsonl", "events.jsonl"):
        entries = [json.loads(line) for line in (attempt / name).read_bytes().splitlines()]
        for entry in entries:
            if entry.get("command") == "false" or "false" in str(entry.get("command", "")):
                ended = {"exit_code": 0, "status": "completed"} if "exit_code" in entry else {}
                entry.update(command="pytest", **ended)
        rewrite_log(attempt, name, entries)
    edit(attempt / "attempt.report.json", lambda it: it.update(tool_failures={}))
    resummarize(scene)


# Relabel


def relabel_attempt(scene: Scene) -> None:
    edit(scene.attempt(BAD) / "attempt.json", lambda it: it.update(mission_id="good", replicate=2))
    edit(scene.attempt(BAD) / "attempt.report.json", lambda it: it.update(mission_id="good"))
    resummarize(scene)


def relabel_parent(scene: Scene) -> None:
    edit(scene.attempt(BAD) / "attempt.json", lambda it: it.update(parent="good.1"))
    resummarize(scene)


def relabel_suite(scene: Scene) -> None:
    source = scene.run / "suite.toml"
    source.write_text(source.read_text().replace("grep -qx 42 a", "true"))
    resummarize(scene)


def relabel_measurement(_scene: Scene) -> None:
    """Deliver a failed attempt's tree with the packet of its run, which is promotable as a measurement."""


def relabel_verdict(scene: Scene) -> None:
    _edit_packet(scene, BAD, lambda it: it["promotability"].update(promotable_decision_stage=True, reasons=[]))


def relabel_policy(scene: Scene) -> None:
    """Give a policy without rules the name of the built-in one."""
    own = {**POLICIES["attempt"], "rules": POLICIES["attempt"]["rules"][:3]}
    _edit_packet(
        scene, BAD, lambda it: it["promotability"].update(policy=own, promotable_decision_stage=True, reasons=[])
    )


def bring_own_policy(scene: Scene) -> None:
    rules = [each for each in POLICIES["attempt"]["rules"] if each["reason"] != "outcome_not_verified"]
    own = scene.place / "own.json"
    own.write_bytes(canonical_bytes({**POLICIES["attempt"], "name": "release-gate", "rules": rules}))
    scene.packet(BAD).unlink()
    emit_promotion(scene.attempt(BAD), policy=str(own))


def redate_packet(scene: Scene) -> None:
    _edit_packet(scene, GOOD, lambda it: it.update(emitted_at="2001-01-01T00:00:00.000000Z"))


# Replay


def replay_packet(scene: Scene) -> None:
    """Use the owner's packet for an older run, which passed."""
    for of in ("run", GOOD, BAD):
        shutil.copyfile(scene.older.packet(of), scene.packet(of))


def replay_run(scene: Scene) -> None:
    """Put the owner's older run, with its packets and its ledger, in the place of this one."""
    older, name = scene.older, scene.run.name
    shutil.rmtree(scene.run)
    for place in (name, older.run.name):  # packets name the directory that they were written for
        shutil.copytree(older.run, scene.out / place)
    replay_packet(scene)
    shutil.copyfile(older.ledger, scene.ledger)
    shutil.rmtree(scene.tree(BAD))
    shutil.copytree(older.tree(BAD), scene.tree(BAD))


def replay_attempt(scene: Scene) -> None:
    shutil.rmtree(scene.attempt(BAD))
    shutil.copytree(scene.older.attempt(BAD), scene.attempt(BAD))
    resummarize(scene)


def replay_log(scene: Scene) -> None:
    shutil.copyfile(scene.older.attempt(BAD) / "steps.jsonl", scene.attempt(BAD) / "steps.jsonl")
    reindex(scene)


def replay_pin(scene: Scene) -> None:
    """Change an attempt and rebuild its index, but keep the pin in the schedule."""
    edit(scene.attempt(BAD) / "outcome.json", lambda it: it["verified"].update(result="passed"))
    rebuild(scene.attempt(BAD))
    rebuild(scene.run)


# Race and rebuild


def race(scene: Scene) -> None:
    flip_verifier_commands(scene)


def rebuild_with_an_unsigned_packet(scene: Scene) -> None:
    flip_verifier_commands(scene)
    for of in ("run", BAD):
        repack(scene, of)


def rebuild_with_another_key(scene: Scene) -> None:
    flip_verifier_commands(scene)
    new_key(scene.place / "forger")
    for of in ("run", BAD):
        repack(scene, of, sign=scene.place / "forger")


def _rename_suite(scene: Scene) -> None:
    """State the digest of the suite as it is now, wherever a document names it."""
    text = (scene.run / "suite.toml").read_text()
    suite = parse_suite(text, base=Path(), name="suite.toml", pinned=Path())
    for path in (scene.run / "environment.json", *scene.run.glob("attempts/*/attempt.json")):
        edit(path, lambda it: it["suite"].update(sha256=suite.sha256))
    resummarize(scene)


def _edit_packet(scene: Scene, of: str, change: Callable[[Any], object]) -> None:
    """Edit a packet. A signed one is replaced by an unsigned one, because its signature would not match."""
    path = scene.packet(of)
    document = json.loads(path.read_bytes())
    if "payloadType" in document:
        path.unlink()
        document = emit_promotion(scene.bundle(of)).document
    change(document)
    path.write_bytes(canonical_bytes(document))


def index_of(bundle: Path) -> str:
    return sha256_file(bundle / INDEX)[0]


VERIFY, VALIDATE, REPORT, SUITE_REPORT = "verify", "validate --strict", "report --strict", "suite report"
EMIT, VERIFY_PACKET, DELIVER = "promotion emit", "promotion verify", "deliver"
_RUN_ONLY = {DELIVER: "the packet of an attempt covers that attempt only, which was not changed"}
_TREE_ONLY = dict.fromkeys(
    (VERIFY, VALIDATE, REPORT, SUITE_REPORT, EMIT, VERIFY_PACKET), "the command does not read the tree to deliver"
)
_LEDGER_ONLY = dict.fromkeys(
    (VERIFY, VALIDATE, REPORT, EMIT, VERIFY_PACKET), "the command does not read the ledger, which is not evidence"
)
_PACKET_ONLY = dict.fromkeys((VALIDATE, REPORT, SUITE_REPORT), "the command does not read packets")
_ATTEMPTS_PACKET_ONLY = {**_PACKET_ONLY, VERIFY: "the command reads the packet of the run, not those of its attempts"}
_NEW_PACKET = "the command writes a new packet and does not read old ones"
_UNCHANGED = dict.fromkeys(_TREE_ONLY, "nothing that the command reads was changed")
_NO_KEY = dict.fromkeys(
    (VALIDATE, REPORT, SUITE_REPORT, EMIT), "either run is consistent, and the command takes no key to tell them apart"
)
_SIGNED = {DELIVER: "the owner of the key signed the older tree as well, and a signature does not expire"}
_BAD = ("run", BAD)

FORGERIES = (
    Forgery("drop", "delete a failed attempt, rebuild the index", drop_attempt, undetected=_RUN_ONLY),
    Forgery("drop", "… and delete it from the schedule", drop_attempt_from_schedule, undetected=_RUN_ONLY),
    Forgery("drop", "… and from summary and ledger", drop_attempt_from_summary, undetected=_RUN_ONLY),
    Forgery("drop", "… and its mission from the suite, with every digest of the suite", drop_mission, ("run", GOOD)),
    Forgery("drop", "delete a line of a log", drop_log_line, _BAD, delivered=BAD),
    Forgery("drop", "… and list the log as a file without a chain", drop_log_line_and_chain, _BAD, delivered=BAD),
    Forgery("swap", "put another mission's attempt in its place", swap_attempt, _BAD, delivered=BAD),
    Forgery("swap", "change a file of the delivered tree", swap_delivered_file, (GOOD,), _TREE_ONLY),
    Forgery("swap", "replace it with a link out of the tree", swap_delivered_file_for_a_link, (GOOD,), _TREE_ONLY),
    Forgery("swap", "replace it with a private key", swap_delivered_file_for_a_key, (GOOD,), _TREE_ONLY),
    Forgery("swap", "list another tree as the one that was verified", swap_tree, ("run", GOOD)),
    Forgery("swap", "list a file twice in the tree", swap_in_a_malformed_tree, ("run", GOOD)),
    Forgery("swap", "replace a document with a file of 1 TB", swap_in_a_huge_file, _BAD, delivered=BAD),
    Forgery("flip", "change a byte", flip_byte, _BAD, delivered=BAD),
    Forgery("flip", "change a verdict in the ledger", flip_ledger, _BAD, _LEDGER_ONLY, delivered=BAD),
    Forgery("flip", "change a verdict in `outcome.json`", flip_outcome, _BAD, delivered=BAD),
    Forgery("flip", "… and in the report", flip_outcome_and_report, _BAD, delivered=BAD),
    Forgery("flip", "… and in `attempt.json`", flip_every_result, _BAD, delivered=BAD),
    Forgery("flip", "… and in every verifier command", flip_verifier_commands, _BAD, delivered=BAD),
    Forgery("flip", "change the totals of the summary", flip_summary, undetected=_RUN_ONLY),
    Forgery("flip", "count a command that never ran", flip_call_count, undetected=_RUN_ONLY),
    Forgery("flip", "hide a failed command in the report", flip_call_failures, undetected=_RUN_ONLY),
    Forgery("flip", "… and record another command in the trace", flip_call_in_trace, undetected=_RUN_ONLY),
    Forgery("relabel", "name another mission in an attempt", relabel_attempt, undetected=_RUN_ONLY),
    Forgery("relabel", "name another parent in an attempt", relabel_parent, undetected=_RUN_ONLY),
    Forgery("relabel", "weaken the checks in the suite", relabel_suite, undetected=_RUN_ONLY),
    Forgery(
        "relabel", "deliver with the packet of a measurement", relabel_measurement, undetected=_UNCHANGED,
        delivered=BAD, with_packet="run",
    ),
    Forgery(
        "relabel", "change the verdict in a packet", relabel_verdict, (BAD,), _ATTEMPTS_PACKET_ONLY,
        packets=True, delivered=BAD,
    ),
    Forgery(
        "relabel", "give a lenient policy a built-in name", relabel_policy, (BAD,), _ATTEMPTS_PACKET_ONLY,
        packets=True, delivered=BAD,
    ),
    Forgery(
        "relabel", "use a lenient policy of one's own", bring_own_policy, (BAD,), _ATTEMPTS_PACKET_ONLY,
        packets=True, delivered=BAD,
    ),
    Forgery(
        "relabel", "change the date of a packet", redate_packet, (GOOD,), {**_ATTEMPTS_PACKET_ONLY, EMIT: _NEW_PACKET},
        packets=True,
    ),
    Forgery(
        "replay", "use the packet of an older run", replay_packet, _BAD, {**_PACKET_ONLY, EMIT: _NEW_PACKET},
        packets=True, delivered=BAD,
    ),
    Forgery(
        "replay", "put an older run in its place, with its packets", replay_run, _BAD, _SIGNED,
        packets=True, delivered=BAD,
    ),
    Forgery("replay", "put an attempt of an older run in its place", replay_attempt, _BAD, delivered=BAD),
    Forgery("replay", "put a log of an older run in its place", replay_log, _BAD, delivered=BAD),
    Forgery("replay", "keep a pin of the schedule that no longer fits", replay_pin, _BAD, delivered=BAD),
    Forgery("race", "replace run and packets while they are read", race, _BAD, _NO_KEY, delivered=BAD),
    Forgery(
        "rebuild", "forge everything, with an unsigned packet", rebuild_with_an_unsigned_packet, _BAD,
        packets=True, delivered=BAD,
    ),
    Forgery(
        "rebuild", "forge everything, and sign with another key", rebuild_with_another_key, _BAD,
        packets=True, delivered=BAD,
    ),
)  # fmt: skip
