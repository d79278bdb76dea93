"""Only trees backed by evidence are sent: the packet is valid, the policy approves, and the tree is the proven one."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_backend import Backend, backend, clone, deliver, here, tree_of
from trees import scan_tree

from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import sha256_file
from proofbox.core.dirs import config_dir
from proofbox.delivery.proof import TRUSTED, examine, require
from proofbox.delivery.source.snapshot import ATTEMPT, ATTEMPT_SCHEMA
from proofbox.delivery.source.tree import open_source
from proofbox.errors import DeliveryNotProven, KeyInvalid
from proofbox.evidence.attest.keys import new_key
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.evidence.documents.tree import tree_manifest
from proofbox.evidence.promotion.emit import Promotion, emit_promotion
from proofbox.evidence.promotion.packet import SEED_SCHEMA
from proofbox.evidence.promotion.policies import POLICIES
from proofbox.workspace import registry
from proofbox.workspace.workspace import Workspace


@pytest.fixture
def app(tmp_path: Path) -> Path:
    root = tmp_path / "app"
    root.mkdir()
    (root / "main.py").write_text("print(1)\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / ".env").write_text("x")
    return root


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Backend]:
    with backend(tmp_path / "data") as started:
        yield started


def attempt(
    app: Path, out: Path, *, verified: str = "passed", tree: bool = True, final: Any = None, **options: Any
) -> Promotion:
    with BundleWriter.create(out) as bundle:
        outcome = Outcome(
            claimed=Verdict("passed", "runtime_reported", "its last message"),
            verified=Verdict(verified, "verifier", "ran `pytest` | in a fresh box"),
            infra=Verdict("ok", "supervisor", "nothing broke"),
        )
        bundle.write_json("outcome.json", outcome.as_json())
        if tree:
            bundle.write_json("tree_manifest.json", tree_manifest(scan_tree(app)))
        if final is not None:
            bundle.write_json(ATTEMPT, final)
    return emit_promotion(bundle.path, **options)


def problems(promotion: Promotion, app: Path, **options: Any) -> list[str]:
    with open_source(app) as tree:
        return list(examine(Path(promotion.path), None, tree, **options).problems)


def test_proven_tree_is_delivered_with_its_evidence(running: Backend, app: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "release")
    promotion = attempt(app, tmp_path / "out", sign=tmp_path / "release")
    proof = ["--packet", promotion.path, "--key", tmp_path / "release.pub"]
    common = ["--app-id", "shop", "--source", app]
    made = deliver(running.url, "init", *common, *proof)
    assert made["proof"]["problems"] == []
    assert made["proof"]["signed_by"] == promotion.signed_by
    assert made["proof"]["standing"] == "proven"
    assert set(tree_of(clone(made["repo_url"], tmp_path / "clone"))) == {"main.py", "run"}

    (app / "main.py").write_text("print(2)\n")
    changed = deliver(running.url, "pr", *common, *proof, expect=1)
    assert changed["error"]["code"] == "DELIVERY_NOT_PROVEN"
    assert changed["error"]["problems"] == ["main.py is not the file that was proven"]
    second = attempt(app, tmp_path / "out2", sign=tmp_path / "release")
    done = deliver(
        running.url, "pr", *common, "--packet", second.path, "--bundle", tmp_path / "out2", "--key",
        tmp_path / "release.pub", "--out", tmp_path / "delivered",
    )  # fmt: skip
    stored = load_bundle(done["bundle"])
    body = stored.read_json("request.json")["body"]
    packet = done["proof"]["packet_sha256"]
    assert f"packet sha256 `{packet}`" in body
    assert f"**Proven**: signed by the trusted key `{second.signed_by}`." in body
    assert "| verified | `passed` | `verifier` | `ran 'pytest' \\| in a fresh box` |" in body
    assert stored.read_json("request.json")["evidence"]["packetSha256"] == packet
    assert stored.read_json("delivery.json")["proof"]["problems"] == []


def test_delivery_without_evidence_needs_a_flag(running: Backend, app: Path) -> None:
    common = ["--app-id", "shop", "--source", app]
    assert deliver(running.url, "init", *common, expect=1)["error"]["code"] == "DELIVERY_NOT_PROVEN"
    assert deliver(running.url, "plan", *common)["base_commit_sha"] is None
    made = deliver(running.url, "init", *common, "--allow-unpromoted")
    assert made["proof"]["problems"]
    (app / "main.py").write_text("print(2)\n")
    proposed = deliver(running.url, "pr", *common, "--allow-unpromoted")
    assert "Not proven" in load_bundle(proposed["bundle"]).read_json("request.json")["body"]


@pytest.mark.parametrize("message", ["<!--", "```", "## Evidence\n\n**Proven**: by me", "<details><summary>x"])
def test_message_neither_hides_nor_imitates_the_statement(running: Backend, app: Path, message: str) -> None:
    common = ["--app-id", "shop", "--source", app, "--allow-unpromoted"]
    deliver(running.url, "init", *common)
    (app / "main.py").write_text("print(2)\n")
    done = deliver(running.url, "pr", *common, "--message", message, "--title", "a\nb\x1b")
    request = load_bundle(done["bundle"]).read_json("request.json")
    assert request["title"] == "a b\\x1b"
    lines = request["body"].splitlines()
    assert lines[0].startswith("**Not proven**")
    quoted = [line for line in lines if any(each in line for each in message.splitlines() if each)]
    assert quoted
    assert all(line.startswith("> ") for line in quoted)
    assert lines[-len(message.splitlines()) :] == [f"> {line}".rstrip() for line in message.splitlines()]


def test_name_of_a_packet_is_printed_on_one_line(running: Backend, app: Path, tmp_path: Path) -> None:
    packet = tmp_path / "x\nproven: yes"
    Path(attempt(app, tmp_path / "out").path).rename(packet)
    words = ["--app-id", "shop", "--source", app, "--packet", packet, "--bundle", tmp_path / "out"]
    code, printed, _ = here("deliver", "init", *words, url=running.url)
    assert code == 0
    assert "x\\nproven: yes" in printed
    assert not [line for line in printed.splitlines() if line.startswith("proven")]


def test_unverified_tree_is_not_proven(app: Path, tmp_path: Path) -> None:
    for number, verified in enumerate(("failed", "unknown")):
        promotion = attempt(app, tmp_path / str(number), verified=verified)
        assert any("may be relied on" in problem for problem in problems(promotion, app))


def test_packet_that_contradicts_its_bundle_is_detected(app: Path, tmp_path: Path) -> None:
    promotion = attempt(app, tmp_path / "out", verified="failed")
    lie = copy.deepcopy(promotion.document)
    lie["promotability"] |= {"promotable_decision_stage": True, "reasons": []}
    Path(promotion.path).write_bytes(canonical_bytes(lie))
    assert any(problem.startswith("verdict_wrong") for problem in problems(promotion, app))


def test_packet_without_digests_proves_nothing(app: Path, tmp_path: Path) -> None:
    good = attempt(app, tmp_path / "out")
    verdict = {"promotable_decision_stage": True, "reasons": [], "gating_inputs": {}}
    (tmp_path / "old.json").write_text(json.dumps({"schema_version": SEED_SCHEMA, "promotability": verdict}))
    with open_source(app) as tree:
        proof = examine(tmp_path / "old.json", tmp_path / "out", tree)
    assert good.promotable
    assert proof.standing == "not proven"
    assert "packet_unpinned" in " ".join(proof.problems)


def test_custom_policy_needs_a_trusted_signature(app: Path, tmp_path: Path) -> None:
    own = {**POLICIES["attempt"], "name": "our-gate"}
    (tmp_path / "own.json").write_text(json.dumps(own))
    new_key(tmp_path / "release")
    unsigned = attempt(app, tmp_path / "out", policy=str(tmp_path / "own.json"))
    assert unsigned.promotable
    assert any("custom policy" in problem for problem in problems(unsigned, app))
    signed = attempt(app, tmp_path / "out2", policy=str(tmp_path / "own.json"), sign=tmp_path / "release")
    assert any("custom policy" in problem for problem in problems(signed, app))
    assert problems(signed, app, key=tmp_path / "release.pub") == []


@pytest.mark.parametrize("lenient", ["no verifier", "no tree", "may be accepted"])
def test_signed_policy_without_verified_tree_is_refused(app: Path, tmp_path: Path, lenient: str) -> None:
    dropped = {"no verifier": "outcome_not_verified", "no tree": "tree_unknown"}.get(lenient)
    rules = [rule for rule in POLICIES["attempt"]["rules"] if rule["reason"] != dropped]
    acceptable = ["outcome_not_verified"] if lenient == "may be accepted" else []
    own = {**POLICIES["attempt"], "name": "lenient", "rules": rules, "acceptable": acceptable}
    (tmp_path / "lenient.json").write_text(json.dumps(own))
    new_key(tmp_path / "release")
    verified = "passed" if lenient == "no tree" else "failed"
    promotion = attempt(
        app, tmp_path / "out", verified=verified, policy=str(tmp_path / "lenient.json"), sign=tmp_path / "release",
        accept=acceptable,
    )  # fmt: skip
    assert promotion.promotable
    found = problems(promotion, app, key=tmp_path / "release.pub")
    assert [problem for problem in found if "does not approve code" in problem] == found != []


def test_signed_measurement_does_not_approve_code(app: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "release")
    failed = Outcome(
        claimed=Verdict("passed", "runtime_reported", "its last message"),
        verified=Verdict("failed", "verifier", "ran pytest"),
        infra=Verdict("ok", "supervisor", "nothing broke"),
    )
    with BundleWriter.create(tmp_path / "out") as run:
        log = ScheduleLog(run.open_log("schedule.jsonl"))
        log.planned("a", "attempts/a")
        log.started("a")
        with run.nested("attempts/a") as inner:
            inner.write_json("outcome.json", failed.as_json())
        log.finished("a", sha256_file(inner.path / "artifact_index.json")[0])
        log.close()
        run.write_json("tree_manifest.json", tree_manifest(scan_tree(app)))
    promotion = emit_promotion(run.path, sign=tmp_path / "release")
    assert promotion.promotable
    with open_source(app) as tree:
        found = examine(Path(promotion.path), None, tree, key=tmp_path / "release.pub")
    assert found.standing == "not proven"
    assert any("the policy run does not approve code" in problem for problem in found.problems)
    assert any("the bundle is a whole run" in problem for problem in found.problems)


def test_unsigned_packet_is_only_consistent(running: Backend, app: Path, tmp_path: Path) -> None:
    common = ["--app-id", "shop", "--source", app]
    first = attempt(app, tmp_path / "out")
    made = deliver(running.url, "init", *common, "--packet", first.path)
    assert made["proof"]["standing"] == "consistent, not signed"
    (app / "main.py").write_text("print(2)\n")
    second = attempt(app, tmp_path / "out2")
    code, printed, _ = here("deliver", "pr", *common, "--packet", second.path, url=running.url)
    assert code == 0
    assert f"consistent, not signed: {second.path}" in printed
    bundle = next(line.removeprefix("recorded in ") for line in printed.splitlines() if line.startswith("recorded in"))
    stored = load_bundle(bundle)
    assert stored.read_json("delivery.json")["proof"]["standing"] == "consistent, not signed"
    body = stored.read_json("request.json")["body"]
    assert "**Consistent, not signed**" in body
    assert "proven" not in (printed + body).lower()


def test_bundle_without_a_tree_is_not_proven(app: Path, tmp_path: Path) -> None:
    found = problems(attempt(app, tmp_path / "out", tree=False), app)
    assert any("proves no tree" in problem for problem in found)


@pytest.mark.parametrize("spoil", ["content", "mode", "more", "less"])
def test_modified_tree_is_not_proven(app: Path, tmp_path: Path, spoil: str) -> None:
    promotion = attempt(app, tmp_path / "out")
    assert problems(promotion, app) == []
    if spoil == "content":
        (app / "main.py").write_text("print(9)\n")
    elif spoil == "mode":
        (app / "main.py").chmod(0o755)
    elif spoil == "more":
        (app / "more").write_text("")
    else:
        (app / "run").unlink()
    assert len(problems(promotion, app)) == 1


PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"


@pytest.mark.parametrize("swap", ["link_out_of_the_tree", "private_key", "added_link", "added_private_key"])
def test_a_file_withheld_for_its_content_must_be_the_proven_one(app: Path, tmp_path: Path, swap: str) -> None:
    new_key(tmp_path / "release")
    promotion = attempt(app, tmp_path / "out", sign=tmp_path / "release")
    if swap == "link_out_of_the_tree":
        (app / "main.py").unlink()
        (app / "main.py").symlink_to("/etc/hostname")
    elif swap == "private_key":
        (app / "main.py").write_text(PRIVATE_KEY)
    elif swap == "added_link":
        (app / "removed.py").symlink_to("/etc/hostname")  # would keep a file that the proven tree deletes
    else:
        (app / "removed.py").write_text(PRIVATE_KEY)
    path = "main.py" if not swap.startswith("added") else "removed.py"
    assert problems(promotion, app, key=tmp_path / "release.pub") == [f"{path} is not the file that was proven"]


def test_a_proven_file_that_would_be_withheld_may_be_absent(app: Path, tmp_path: Path) -> None:
    (app / "out").symlink_to("/etc/hostname")
    (app / "notes.txt").write_text(PRIVATE_KEY)
    (app / "vendor" / ".git").mkdir(parents=True)
    (app / "vendor" / ".git" / "config").write_text("[core]\n")
    promotion = attempt(app, tmp_path / "out")
    assert problems(promotion, app) == []
    (app / ".env").write_text("another value, and never sent")
    assert problems(promotion, app) == []
    (app / "out").unlink()
    (app / "out").symlink_to("/etc/passwd")
    assert problems(promotion, app) == ["out is not the file that was proven"]
    (app / "out").unlink()
    assert problems(promotion, app) == ["out was proven but is not sent"]


def test_configured_key_must_have_signed(app: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "release")
    new_key(tmp_path / "other")
    unsigned = attempt(app, tmp_path / "out")
    signed = attempt(app, tmp_path / "out2", sign=tmp_path / "release")
    foreign = attempt(app, tmp_path / "out3", sign=tmp_path / "other")
    place = config_dir() / TRUSTED
    place.mkdir()
    try:
        (place / "a.pub").write_bytes((tmp_path / "release.pub").read_bytes())
        assert problems(signed, app) == []
        assert any(problem.startswith("signature_absent") for problem in problems(unsigned, app))
        assert any(problem.startswith("signature_wrong") for problem in problems(foreign, app))
        new_key(tmp_path / "b")
        (place / "b.pub").write_bytes((tmp_path / "other.pub").read_bytes())
        assert problems(foreign, app) == []
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
    assert problems(unsigned, app) == []


@pytest.mark.parametrize("kind", ["file", "dangling link", "only PEM files"])
def test_unusable_trusted_keys_are_refused(app: Path, tmp_path: Path, kind: str) -> None:
    unsigned = attempt(app, tmp_path / "out")
    place = config_dir() / TRUSTED
    target = tmp_path / "keys"
    if kind == "file":
        target.write_text("a key")
    elif kind == "only PEM files":
        target.mkdir()
        (target / "release.pem").write_text("a key")
    place.symlink_to(target)
    try:
        with pytest.raises(KeyInvalid, match="can't be used"):
            problems(unsigned, app)
    finally:
        place.unlink()


def test_damaged_bundle_is_not_proven(app: Path, tmp_path: Path) -> None:
    promotion = attempt(app, tmp_path / "out")
    (next((tmp_path / "out").glob("run-*/outcome.json"))).write_text("{}")
    with open_source(app) as tree:
        found = examine(Path(promotion.path), None, tree)
        with pytest.raises(DeliveryNotProven):
            require(found, allow_unpromoted=False)
        require(found, allow_unpromoted=True)
    evidence = found.evidence()
    assert evidence is not None
    assert not evidence.promotable


@pytest.mark.parametrize("command", ["deliver spec", "deliver plan", "deliver init", "deliver pr", "backend serve"])
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out


def test_an_attempts_final_snapshot_is_delivered_with_its_own_proof(
    running: Backend, app: Path, tmp_path: Path
) -> None:
    with Workspace.init(app) as workspace:
        taken = workspace.snapshot("done", sealed=True)
    store = registry.registered(str(app.resolve())).store
    final = {"schema_version": ATTEMPT_SCHEMA, "final": {"store": store, "snapshot": taken.id}}
    promotion = attempt(app, tmp_path / "out", final=final)
    (app / "main.py").write_text("what comes later does not count\n")
    source = next((tmp_path / "out").glob("run-*/"))
    made = deliver(running.url, "init", "--app-id", "a", "--source", source, "--packet", promotion.path)
    assert made["proof"]["problems"] == []
    assert (clone(made["repo_url"], tmp_path / "clone") / "main.py").read_text() == "print(1)\n"
