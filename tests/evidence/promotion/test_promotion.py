"""Promotion: rules need positive evidence, failed rules are named, and others can check pins and signatures."""

from __future__ import annotations

import base64
import contextlib
import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer._key import SSlibKey
from trees import scan_tree

from proofbox import BundleWriter, verify
from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.core.clock import ManualClock
from proofbox.core.digest import sha256_hex
from proofbox.errors import (
    BundleInProgress,
    BundlePathRefused,
    KeyInvalid,
    PacketInvalid,
    PolicyInvalid,
    PromotionRefused,
    UsageError,
)
from proofbox.evidence.attest.keys import load_private_key, load_public_key, new_key
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.bundle.repair import reindex_repair
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.documents.tree import tree_manifest
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.promotion.policies import ATTEMPT, POLICIES
from proofbox.evidence.promotion.policy import MAX_RULES, check_policy
from proofbox.evidence.verify.verifier import examine_packet, verify_packet

DECISION: dict[str, Any] = {
    "run_manifest.json": {"channel": "launchd_clean"},
    "apply_preflight.json": {"apply_ok": True, "sandbox_check_self": {"sandboxed": False}},
    "runtime_results.json": {"results": []},
    "runtime_events.normalized.json": [],
    "expected_matrix.json": {},
    "summary.json": {},
}
GOOD = Outcome(
    claimed=Verdict("passed", "runtime_reported", "final message"),
    verified=Verdict("passed", "verifier", "tests in a fresh box"),
    infra=Verdict("ok", "supervisor", "no failure recorded"),
)


def decision(out: Path, **changes: Any) -> Path:
    with BundleWriter.create(out) as bundle:
        for path, document in {**DECISION, **changes}.items():
            if document is not None:
                bundle.write_json(path, document)
    return bundle.path


def attempt(bundle: BundleWriter, tree: Path, outcome: Outcome = GOOD) -> None:
    bundle.write_json("outcome.json", outcome.as_json())
    bundle.write_json("tree_manifest.json", tree_manifest(scan_tree(tree)))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    place.mkdir()
    (place / "main.py").write_text("print(1)\n")
    return place


def test_a_packet_points_pins_and_decides(tmp_path: Path) -> None:
    bundle = decision(tmp_path / "out")
    done = emit_promotion(tmp_path / "out", require_promotable=True)
    packet = json.loads(Path(done.path).read_bytes())
    assert Path(done.path) == tmp_path / "out" / f"{bundle.name}.promotion.json"
    assert packet["schema_version"] == "proofbox.promotion_packet/2"
    data = (bundle / "runtime_results.json").read_bytes()
    assert packet["runtime_results"] == {"path": "runtime_results.json", "size": len(data), "sha256": sha256_hex(data)}
    assert packet["oracle_results"] is None
    assert "path_witnesses" not in packet
    assert packet["promotability"]["promotable_decision_stage"] is True
    assert packet["promotability"]["reasons"] == []
    assert packet["promotability"]["gating_inputs"]["channel_not_clean"]["observed"] == "launchd_clean"
    assert verify_packet(done.path).ok
    assert verify(tmp_path / "out").promotable is True


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"run_manifest.json": {"channel": "direct"}}, ["channel_not_clean"]),
        ({"run_manifest.json": {}}, ["channel_not_clean"]),
        ({"run_manifest.json": None}, ["channel_not_clean"]),
        ({"apply_preflight.json": None}, ["preflight_absent", "preflight_not_ok", "already_sandboxed"]),
        ({"apply_preflight.json": {"apply_ok": True}}, ["already_sandboxed"]),
        (
            {"apply_preflight.json": {"apply_ok": True, "sandbox_check_self": {"sandboxed": None}}},
            ["already_sandboxed"],
        ),
        ({"apply_preflight.json": {"apply_ok": True, "sandbox_check_self": {"sandboxed": 0}}}, ["already_sandboxed"]),
        (
            {"apply_preflight.json": {"apply_ok": 1, "sandbox_check_self": {"sandboxed": True}}},
            ["preflight_not_ok", "already_sandboxed"],
        ),
        (
            {"runtime_results.json": None, "expected_matrix.json": None},
            ["runtime_results_absent", "expected_matrix_absent"],
        ),
        ({"runtime_events.normalized.json": None}, ["runtime_events_absent"]),
    ],
)
def test_unknown_is_not_good_and_every_failed_rule_is_named(
    tmp_path: Path, changes: dict[str, Any], reasons: list[str]
) -> None:
    decision(tmp_path / "out", **changes)
    with pytest.raises(PromotionRefused) as refused:
        emit_promotion(tmp_path / "out", require_promotable=True)
    assert refused.value.details["reasons"] == reasons
    assert not list((tmp_path / "out").glob("*.promotion.json"))
    done = emit_promotion(tmp_path / "out")
    assert (done.promotable, list(done.reasons)) == (False, reasons)
    result = verify(tmp_path / "out")
    assert result.ok, "a packet with a negative verdict is valid"
    assert result.promotable is False


def test_a_damaged_bundle_is_not_promotable(tmp_path: Path) -> None:
    bundle = decision(tmp_path / "out")
    (bundle / "summary.json").write_text("[]")
    done = emit_promotion(tmp_path / "out")
    assert list(done.reasons) == ["integrity_failed"]
    assert done.document["promotability"]["gating_inputs"]["integrity_failed"]["observed"] == ["digest_mismatch"]
    with pytest.raises(UsageError, match="does not allow"):
        emit_promotion(tmp_path / "out", accept=["integrity_failed"], output=tmp_path / "p")


def test_failed_dry_and_unfinished_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), BundleWriter.create(tmp_path / "out") as bundle:
        for path, document in DECISION.items():
            bundle.write_json(path, document)
        raise ValueError("broken")
    assert emit_promotion(bundle.path).reasons == ("run_failed",)
    with BundleWriter.create(tmp_path / "out", dry=True) as bundle:
        for path, document in DECISION.items():
            bundle.write_json(path, document)
    assert emit_promotion(bundle.path).reasons == ("run_dry",)
    unfinished = BundleWriter.create(tmp_path / "out")
    with pytest.raises(BundleInProgress):
        emit_promotion(unfinished.path)


def test_a_repaired_bundle_is_promotable_only_by_name(tmp_path: Path) -> None:
    bundle = decision(tmp_path / "out")
    (bundle / "summary.json").write_text("{ }")
    reindex_repair(bundle)
    with pytest.raises(PromotionRefused) as refused:
        emit_promotion(bundle, require_promotable=True)
    assert refused.value.details["reasons"] == ["bundle_repaired"]
    done = emit_promotion(bundle, require_promotable=True, accept=["bundle_repaired"])
    verdict = done.document["promotability"]
    assert (verdict["promotable_decision_stage"], verdict["reasons"], verdict["accepted"]) == (
        True,
        ["bundle_repaired"],
        ["bundle_repaired"],
    )
    assert done.document["bundle"]["repairs"] == 1
    assert verify(bundle).ok


def test_repair_of_a_nested_bundle_is_reported(tmp_path: Path, tree: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as run:
        attempt(run, tree)
        with run.nested("inner") as inner:
            inner.write_bytes("x", b"1")
    (inner.path / "x").write_bytes(b"2")
    reindex_repair(inner.path)
    assert [finding.path for finding in verify(run.path).findings] == ["inner/artifact_index.json"]
    reindex_repair(run.path)
    assert verify(run.path).ok
    done = emit_promotion(run.path)
    assert done.reasons == ("bundle_repaired",)
    assert done.document["bundle"]["repairs"] == 2


# Attempts and runs


@pytest.mark.parametrize(
    ("outcome", "reasons"),
    [
        (GOOD, ()),
        (Outcome(claimed=GOOD.claimed, infra=GOOD.infra), ("outcome_not_verified",)),
        (Outcome(GOOD.claimed, Verdict("failed", "verifier", "tests"), GOOD.infra), ("outcome_not_verified",)),
        (Outcome(GOOD.claimed, GOOD.verified), ("infra_failed",)),
        (Outcome(), ("outcome_not_verified", "infra_failed")),
    ],
)
def test_an_attempt_needs_a_verified_outcome(
    tmp_path: Path, tree: Path, outcome: Outcome, reasons: tuple[str, ...]
) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        attempt(bundle, tree, outcome)
    done = emit_promotion(bundle.path)
    assert done.reasons == reasons
    assert done.document["promotability"]["policy"]["name"] == "attempt"
    assert done.document["tree_manifest"]["path"] == "tree_manifest.json"
    assert "run_manifest" in done.document["not_applicable"]
    assert done.document["run_manifest"] is None


def test_an_attempt_without_its_tree_or_with_gaps(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out", expected=["trace.jsonl"]) as bundle:
        bundle.write_json("outcome.json", GOOD.as_json())
    assert emit_promotion(bundle.path).reasons == ("coverage_incomplete", "tree_unknown")


def test_malformed_outcome_is_not_evidence(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_json("outcome.json", {"verified": {"result": "passed"}, "infra": {"result": "ok"}})
    assert emit_promotion(bundle.path).reasons == ("outcome_not_verified", "infra_failed", "tree_unknown")


def campaign(out: Path, tree: Path, fate: str) -> BundleWriter:
    with BundleWriter.create(out) as run:
        with run.open_log("schedule.jsonl") as log:
            schedule = ScheduleLog(log)
            for name in ("a-1", "a-2"):
                schedule.planned(name, f"attempts/{name}", parent=None)
            for name in ("a-1", "a-2"):
                schedule.started(name)
                if name == "a-2" and fate == "never_ran":
                    continue
                verdict = Verdict("failed", "verifier", "tests")
                bad = Outcome(GOOD.claimed, verdict, Verdict("failed", "supervisor", "oom"))
                outcome = {"infra": bad, "unknown": Outcome(infra=GOOD.infra)}.get(fate, GOOD)
                if name == "a-2" and fate == "mission_failed":
                    outcome = Outcome(GOOD.claimed, verdict, GOOD.infra)
                with contextlib.suppress(KeyError), run.nested(f"attempts/{name}") as each:
                    attempt(each, tree, outcome)
                    if fate == "partial":
                        each.mark_partial("something is lacking")
                    if fate == "failed":
                        raise KeyError
                index = (each.path / "artifact_index.json").read_bytes()
                schedule.finished(name, sha256_hex(index))
            if fate != "cut":
                schedule.close()
        if fate == "unplanned":
            with run.nested("attempts/a-3") as each:
                attempt(each, tree)
    return run


@pytest.mark.parametrize(
    ("fate", "reasons"),
    [
        ("good", ()),
        ("mission_failed", ()),
        ("never_ran", ("coverage_incomplete", "attempt_incomplete", "outcome_not_verified", "infra_failed")),
        ("failed", ("attempt_incomplete", "outcome_not_verified", "infra_failed")),
        ("partial", ("attempt_incomplete",)),
        ("infra", ("infra_failed",)),
        ("unknown", ("outcome_not_verified",)),
        (
            "cut",
            ("integrity_failed", "coverage_incomplete", "attempt_incomplete", "outcome_not_verified", "infra_failed"),
        ),
        ("unplanned", ("integrity_failed", "coverage_incomplete")),
    ],
)
def test_a_run_needs_full_coverage_and_known_verdicts(
    tmp_path: Path, tree: Path, fate: str, reasons: tuple[str, ...]
) -> None:
    run = campaign(tmp_path / "out", tree, fate)
    done = emit_promotion(run.path)
    assert done.document["promotability"]["policy"]["name"] == "run"
    assert done.reasons == reasons
    assert verify(run.path).ok is ("integrity_failed" not in reasons)


def test_a_nested_attempt_is_promoted_outside_its_run(tmp_path: Path, tree: Path) -> None:
    run = campaign(tmp_path / "out", tree, "good")
    done = emit_promotion(run.path / "attempts/a-1", require_promotable=True)
    assert Path(done.path).parent == tmp_path / "out"
    assert done.document["bundle"]["path"] == f"{run.run_id}/attempts/a-1"
    assert verify_packet(done.path).ok
    assert verify(run.path).ok
    with pytest.raises(BundlePathRefused):
        emit_promotion(run.path / "attempts/a-1", output=run.path / "packet.json")


# Packets that lie


def lie(path: str, **changes: Any) -> None:
    packet = json.loads(Path(path).read_bytes())
    for name, value in changes.items():
        if name == "promotability":
            packet["promotability"].update(value)
        elif name == "bundle":
            packet["bundle"].update(value)
        else:
            packet[name] = value
    Path(path).write_text(json.dumps(packet))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"promotability": {"promotable_decision_stage": True}}, "verdict_wrong"),
        ({"promotability": {"promotable_decision_stage": True, "reasons": []}}, "verdict_wrong"),
        ({"promotability": {"accepted": ["channel_not_clean"]}}, "verdict_wrong"),
        ({"promotability": {"policy": {**ATTEMPT, "rules": []}}}, "packet_malformed"),
        ({"summary": {"path": "summary.json", "size": 2, "sha256": "0" * 64}}, "packet_mismatch"),
        ({"summary": {"path": "other.json", "size": 2, "sha256": "0" * 64}}, "packet_mismatch"),
        ({"summary": {"path": "../../etc/passwd", "size": 2, "sha256": "0" * 64}}, "packet_malformed"),
        ({"run_id": "other"}, "packet_mismatch"),
        ({"bundle": {"repairs": 3}}, "packet_mismatch"),
        ({"bundle": {"path": "../out"}}, "packet_malformed"),
        ({"bundle": {"path": "elsewhere"}}, "bundle_absent"),
        ({"bundle": {"index": {"path": "artifact_index.json", "size": 1, "sha256": "0" * 64}}}, "packet_mismatch"),
        ({"extra": 1}, "packet_malformed"),
        ({"schema_version": "proofbox.promotion_packet/3"}, "packet_malformed"),
    ],
)
def test_false_packet_is_detected(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    decision(tmp_path / "out", **{"run_manifest.json": {"channel": "direct"}})
    done = emit_promotion(tmp_path / "out")
    lie(done.path, **changes)
    assert code in [finding.code for finding in verify_packet(done.path).findings]


LENIENT = {**ATTEMPT, "acceptable": [], "rules": [{"reason": "integrity_failed", "check": "integrity"}]}
UNVERIFIED = Outcome(GOOD.claimed, Verdict("failed", "verifier", "tests"), GOOD.infra)


def test_lenient_policy_with_a_built_in_name_is_detected(tmp_path: Path, tree: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        attempt(bundle, tree, UNVERIFIED)
    done = emit_promotion(bundle.path)
    gates = done.document["promotability"]["gating_inputs"]
    for reason in ("outcome_not_verified", "infra_failed"):
        gates[reason].update(held=True, observed="passed")
    yes = {"promotable_decision_stage": True, "reasons": [], "policy": LENIENT}
    for shown in (gates, {"integrity_failed": gates["integrity_failed"]}):
        lie(done.path, promotability={**yes, "gating_inputs": shown})
        result = verify(bundle.path)
        assert "policy_misnamed" in [finding.code for finding in result.findings]
        assert result.error() is not None
    audit = [sys.executable, "-P", "-m", "proofbox.evidence.verify", str(bundle.path)]
    audited = subprocess.run(audit, capture_output=True, text=True)
    assert (audited.returncode, "policy_misnamed" in audited.stdout) == (1, True)


def test_result_names_a_custom_policy(tmp_path: Path, tree: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        attempt(bundle, tree, UNVERIFIED)
    (tmp_path / "policy.json").write_text(json.dumps(LENIENT))
    with pytest.raises(PolicyInvalid, match="called attempt"):
        emit_promotion(bundle.path, policy=str(tmp_path / "policy.json"))
    (tmp_path / "policy.json").write_text(json.dumps({**LENIENT, "name": "lenient"}))
    assert emit_promotion(bundle.path, policy=str(tmp_path / "policy.json")).promotable
    result = verify(bundle.path)
    assert result.ok
    assert "; promotable by a custom policy: 'lenient';" in result.line()
    assert (result.as_json()["policy"], result.as_json()["own_policy"]) == ("lenient", True)


def test_every_falsification_of_a_packet_is_detected(tmp_path: Path, tree: Path) -> None:
    """Remove, replace or duplicate each member and item, except the time and the path of the bundle.

    A built-in policy with another name is a custom policy, which is valid and reported as such.
    """
    with BundleWriter.create(tmp_path / "out") as bundle:
        attempt(bundle, tree, UNVERIFIED)
        bundle.write_json("path_witnesses.json", {})
    packet = Path(emit_promotion(bundle.path).path)
    assert verify(bundle.path).ok
    document = json.loads(packet.read_bytes())
    policy = document["promotability"]["policy"]
    tried = 0
    for holder, name in places(document):
        if (holder is document and name == "emitted_at") or (holder is document["bundle"] and name == "path"):
            continue
        was = holder[name]
        for lie in other_values(was):
            holder[name] = lie
            packet.write_text(json.dumps(document))
            result = verify(bundle.path)
            renamed = holder is policy and name == "name"
            assert not result.ok or (renamed and "by a custom policy" in result.line()), (name, lie)
            holder[name] = was
            tried += 1
        without = dict(holder) if isinstance(holder, dict) else list(holder)
        del holder[name]
        packet.write_text(json.dumps(document))
        assert not verify(bundle.path).ok, name
        holder.clear()
        holder.update(without) if isinstance(holder, dict) else holder.extend(without)
    packet.write_text(json.dumps(document))
    assert verify(bundle.path).ok, "every change was reverted"
    assert tried > 300


def other_values(value: Any) -> list[Any]:
    """Return values that a forger might use instead: of the same type, equal in Python, longer or shorter."""
    match value:
        case bool():
            return [not value, int(value)]
        case int():
            return [value + 1, value > 0]
        case str():
            return [value + "x", "failed" if value == "passed" else "passed", ""]
        case list():
            return [[*value, "x"], value[::-1] if value != value[::-1] else [*value, *value, 1]]
        case dict():
            return [{**value, "x": "x"}, {}, None]
    return [{"path": "outcome.json", "size": 1, "sha256": "0" * 64}, "x"]


def places(value: Any) -> list[tuple[Any, Any]]:
    found = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, name) for name, _ in found] + [deeper for _, inner in found for deeper in places(inner)]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"schema_version":"x"}', b'{"payloadType":"x"}'])
def test_invalid_packets_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").write_bytes(content)
    try:
        found = [finding.code for finding in verify_packet(str(tmp_path / "p")).findings]
        assert "packet_malformed" in found
    except PacketInvalid:
        pass


def test_a_packet_is_never_replaced(tmp_path: Path) -> None:
    decision(tmp_path / "out")
    done = emit_promotion(tmp_path / "out")
    before = Path(done.path).read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        emit_promotion(tmp_path / "out")
    assert Path(done.path).read_bytes() == before


def test_a_packet_elsewhere_needs_its_bundle_named(tmp_path: Path) -> None:
    bundle = decision(tmp_path / "out")
    (tmp_path / "away").mkdir()
    done = emit_promotion(bundle, output=tmp_path / "away" / "p.json")
    assert [finding.code for finding in verify_packet(done.path).findings] == ["bundle_absent"]
    assert verify_packet(done.path, bundle=str(bundle)).ok


# Policies


def test_built_in_policies_are_valid() -> None:
    for policy in POLICIES.values():
        check_policy(policy)


@pytest.mark.parametrize(
    "changes",
    [
        {"rules": []},
        {"rules": [{"reason": "x", "check": "integrity"}, {"reason": "x", "check": "not_dry"}]},
        {"rules": [{"reason": "x", "check": "integrity"}], "acceptable": ["x"]},
        {"acceptable": ["nobody_says_so"]},
        {"rules": [{"reason": "x", "check": "magic"}]},
        {"rules": [{"reason": "x", "check": "integrity", "more": 1}]},
        {"fields": {"novelty": "x.json"}},
        {"schema_version": "proofbox.promotion_policy/2"},
    ],
)
def test_invalid_policies_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    policy = {**ATTEMPT, **changes}
    with pytest.raises(ShapeError):
        check_policy(policy)
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    decision(tmp_path / "out")
    with pytest.raises(PolicyInvalid):
        emit_promotion(tmp_path / "out", policy=str(tmp_path / "policy.json"))
    with pytest.raises(PolicyInvalid, match=r"known are|no policy"):
        emit_promotion(tmp_path / "out", policy="unknown")


def test_custom_policy_is_used(tmp_path: Path) -> None:
    policy = {
        **ATTEMPT,
        "name": "mine",
        "fields": {"summary": "summary.json"},
        "acceptable": ["too_slow"],
        "rules": [
            {"reason": "broken", "check": "integrity"},
            {"reason": "too_slow", "check": "equals", "artifact": "summary.json", "member": ["fast"], "value": True},
        ],
    }
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    bundle = decision(tmp_path / "out", **{"summary.json": {"fast": False}})
    done = emit_promotion(bundle, policy=str(tmp_path / "policy.json"), accept=["too_slow"], require_promotable=True)
    assert verify_packet(done.path).ok


# Keys and signatures


def test_another_implementation_verifies_the_envelope(tmp_path: Path) -> None:
    public = new_key(tmp_path / "key")
    decision(tmp_path / "out")
    done = emit_promotion(tmp_path / "out", sign=tmp_path / "key")
    document = json.loads(Path(done.path).read_bytes())
    envelope = Envelope.from_dict(json.loads(json.dumps(document)))
    key = SSlibKey.from_crypto(load_public_key(tmp_path / "key.pub")._key, keyid=public.key_id)
    assert envelope.verify([key], 1)
    statement = json.loads(envelope.payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"][0]["digest"]["sha256"] == done.document["bundle"]["index"]["sha256"]
    assert statement["predicate"] == done.document
    new_key(tmp_path / "other")
    other = SSlibKey.from_crypto(load_public_key(tmp_path / "other.pub")._key, keyid=public.key_id)
    with pytest.raises(VerificationError):
        envelope.verify([other], 1)


def test_signature_of_another_implementation_is_verified(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer._crypto_signer import CryptoSigner

    new_key(tmp_path / "key")
    decision(tmp_path / "out")
    done = emit_promotion(tmp_path / "out", sign=tmp_path / "key")
    envelope = Envelope.from_dict(json.loads(Path(done.path).read_bytes()))
    envelope.signatures.clear()
    signer = CryptoSigner(load_pem_private_key((tmp_path / "key").read_bytes(), None))
    envelope.sign(signer)
    Path(done.path).write_text(json.dumps(envelope.to_dict()))
    result = verify_packet(done.path, key=str(tmp_path / "key.pub"))
    assert result.ok, result.findings
    assert result.signed_by == load_public_key(tmp_path / "key.pub").key_id


@pytest.mark.parametrize("what", ["payload", "sig", "payloadType", "none"])
def test_a_changed_envelope_is_found(tmp_path: Path, what: str) -> None:
    new_key(tmp_path / "key")
    decision(tmp_path / "out")
    done = emit_promotion(tmp_path / "out", sign=tmp_path / "key")
    document = json.loads(Path(done.path).read_bytes())
    match what:
        case "payload":
            payload = base64.b64decode(document["payload"]).replace(b'"status":"ok"', b'"status":"Ok"')
            document["payload"] = base64.b64encode(payload).decode()
        case "sig":
            signature = bytearray(base64.b64decode(document["signatures"][0]["sig"]))
            signature[5] ^= 1
            document["signatures"][0]["sig"] = base64.b64encode(signature).decode()
        case "payloadType":
            document["payloadType"] = "application/json"
        case _:
            document["signatures"] = []
    Path(done.path).write_text(json.dumps(document))
    found = [finding.code for finding in verify_packet(done.path, key=str(tmp_path / "key.pub")).findings]
    assert {"signature_wrong", "packet_malformed"} & set(found)


def test_a_signed_packet_without_a_key_is_noted(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    decision(tmp_path / "out")
    result = verify_packet(emit_promotion(tmp_path / "out", sign=tmp_path / "key").path)
    assert result.ok
    assert result.signed_by is None
    assert "no key was given" in result.notes[0]


def test_private_key_readable_by_others_is_refused(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert "PRIVATE" not in repr(load_private_key(tmp_path / "key"))
    with pytest.raises(KeyInvalid, match="already exists"):
        new_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(KeyInvalid, match="readable by other users"):
        load_private_key(tmp_path / "key")
    for wrong in ("key", "absent"):
        with pytest.raises(KeyInvalid):
            load_public_key(tmp_path / wrong)
    with pytest.raises(KeyInvalid):
        load_private_key(tmp_path / "key.pub")


def test_a_key_is_never_in_a_bundle(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "out") as bundle:
        with pytest.raises(KeyInvalid, match="inside a bundle"):
            new_key(bundle.path / "key")
        new_key(tmp_path / "key")
        (bundle.path / "deep").mkdir()
        (bundle.path / "deep" / "key").write_bytes((tmp_path / "key").read_bytes())
    with pytest.raises(KeyInvalid, match="inside a bundle"):
        emit_promotion(bundle.path, sign=bundle.path / "deep" / "key")


# The commands


def test_the_commands(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def run(*words: str) -> tuple[int, Any]:
        code = main([*words, "--json"])
        return code, json.loads(capfdbinary.readouterr().out)

    code, key = run("key", "new", str(tmp_path / "key"))
    assert (code, key["schema"]) == (0, "proofbox.key/1")
    assert run("key", "show", str(tmp_path / "key"))[1]["key_id"] == key["key_id"]
    assert run("key", "show", str(tmp_path / "key.pub"))[1]["public_key"] == key["public_key"]
    assert "PRIVATE" not in json.dumps(key)
    decision(tmp_path / "out")
    code, emitted = run(
        "promotion", "emit", str(tmp_path / "out"), "--require-promotable", "--sign", str(tmp_path / "key")
    )
    assert (code, emitted["promotable"], emitted["signed_by"]) == (0, True, key["key_id"])
    code, verified = run("promotion", "verify", emitted["path"], "--key", str(tmp_path / "key.pub"))
    assert (code, verified["ok"], verified["signed_by"]) == (0, True, key["key_id"])
    assert run("verify", str(tmp_path / "out"), "--key", str(tmp_path / "key.pub"))[0] == 0
    Path(emitted["path"]).unlink()
    (Path(verified["bundle"]) / "summary.json").write_text("[]")
    code, refused = run("promotion", "emit", str(tmp_path / "out"), "--require-promotable")
    assert (code, refused["error"]["code"]) == (1, "PROMOTION_NOT_PROMOTABLE")
    assert refused["error"]["reasons"] == ["integrity_failed"]
    assert main(["promotion", "emit", str(tmp_path / "out")]) == 0
    assert b"integrity_failed" in capfdbinary.readouterr().out


def test_packet_of_the_future_gets_a_note(tmp_path: Path) -> None:
    decision(tmp_path / "out")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    done = emit_promotion(tmp_path / "out", clock=ManualClock(now + timedelta(hours=1)))
    notes = examine_packet(done.path, clock=ManualClock(now)).result.notes
    assert notes == ["the packet is dated in the future: 2026-01-01T01:00:00.000000Z"]
    assert examine_packet(done.path, clock=ManualClock(now + timedelta(minutes=56))).result.notes == []


def test_unknown_observation_is_a_code(tmp_path: Path) -> None:
    decision(tmp_path / "out", **{"run_manifest.json": None, "apply_preflight.json": {"apply_ok": True}})
    inputs = emit_promotion(tmp_path / "out").document["promotability"]["gating_inputs"]
    assert inputs["channel_not_clean"]["observed"] == {"unknown": "BUNDLE_ARTIFACT_ABSENT"}
    assert inputs["already_sandboxed"]["observed"] == {"unknown": "malformed"}


def test_packet_of_version_1_is_verified_without_comparing_error_texts(tmp_path: Path) -> None:
    decision(tmp_path / "out", **{"run_manifest.json": None})
    place = Path(emit_promotion(tmp_path / "out").path)
    packet = json.loads(place.read_bytes())
    packet["schema_version"] = "proofbox.promotion_packet/1"
    observed = packet["promotability"]["gating_inputs"]["channel_not_clean"]
    for text, good in (("unknown: any wording", True), ({"unknown": "OTHER"}, False), ("launchd_clean", True)):
        observed["observed"] = text
        place.write_bytes(canonical_bytes(packet))
        assert verify_packet(str(place)).ok is good
    observed["held"] = True
    place.write_bytes(canonical_bytes(packet))
    assert not verify_packet(str(place)).ok


def test_many_rules_about_one_artifact_parse_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"a": {f"member {number}": ["value"] * 10 for number in range(1000)}, "ok": True}
    about = {"check": "equals", "artifact": "large.json", "value": True}
    rules: list[dict[str, Any]] = [{"reason": "broken", "check": "integrity"}]
    for number in range(MAX_RULES - 1):
        rules.append({**about, "reason": f"r{number}", "member": ["a"] if number % 2 else ["ok"]})
    mine = {**POLICIES["decision-stage"], "name": "mine", "acceptable": [], "rules": rules, "fields": {}}
    (tmp_path / "policy.json").write_text(json.dumps(mine))
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_json("large.json", large)
    reads: list[str] = []
    read_json = Bundle.read_json

    def counting(bundle: Bundle, path: str, **options: Any) -> Any:
        reads.append(path)
        return read_json(bundle, path, **options)

    monkeypatch.setattr(Bundle, "read_json", counting)
    done = emit_promotion(bundle.path, policy=str(tmp_path / "policy.json"))
    assert reads == ["large.json"]
    assert len(done.reasons) == (MAX_RULES - 1) // 2
    inputs = done.document["promotability"]["gating_inputs"]
    assert inputs["r1"]["observed"] == {"omitted": "object", "items": 1000}
    assert inputs["r0"]["observed"] is True
