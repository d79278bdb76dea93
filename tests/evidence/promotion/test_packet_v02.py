"""Packets of the contract `runtime-tools.promotion_packet.v0.2`: field names, pointers, verdict, verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proofbox.errors import PromotionRefused, UsageError
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.promotion.packet import parse_packet
from proofbox.evidence.promotion.policies import DECISION_STAGE, DECISION_STAGE_V02
from proofbox.evidence.verify.verifier import verify, verify_packet

REQUIRED = (
    *("schema_version", "run_manifest", "expected_matrix", "runtime_results", "runtime_events", "baseline_results"),
    *("oracle_results", "mismatch_packets", "summary", "promotability"),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    return tmp_path / "repo"


def committed(repository: Path, channel: str = "launchd_clean", preflight: dict[str, Any] | None = None) -> Path:
    checked = {"apply_ok": True, "sandbox_check_self": {"sandboxed": False}} if preflight is None else preflight
    with BundleWriter.create(repository / "book" / "out") as bundle:
        bundle.write_json("run_manifest.json", {"schema_version": "m/1", "channel": channel})
        bundle.write_json("apply_preflight.json", {"schema_version": "p/1", **checked})
        for name in (
            *("expected_matrix", "runtime_results", "runtime_events.normalized", "baseline_results"),
            *("oracle_results", "summary", "path_witnesses"),
        ):
            bundle.write_json(f"{name}.json", {"schema_version": "x/1"})
        bundle.write_bytes("mismatch_packets.jsonl", b"")
    return bundle.path


def emitted(bundle: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    done = emit_promotion(bundle, format="v0.2", **options)
    return Path(done.path), json.loads(Path(done.path).read_bytes())


def test_the_packet_has_the_fields_of_the_contract_and_pointers_relative_to_the_repository(repository: Path) -> None:
    bundle = committed(repository)
    path, packet = emitted(bundle)
    assert packet["schema_version"] == "runtime-tools.promotion_packet.v0.2"
    assert set(packet) == {*REQUIRED, "path_witnesses"}
    assert packet["runtime_events"] == f"book/out/{bundle.name}/runtime_events.normalized.json"
    assert packet["mismatch_packets"] == f"book/out/{bundle.name}/mismatch_packets.jsonl"
    for name in {*REQUIRED, "path_witnesses"} - {"schema_version", "promotability"}:
        assert (repository / packet[name]).is_file()
    assert set(packet["promotability"]) == {"promotable_decision_stage", "reasons", "gating_inputs"}
    assert (packet["promotability"]["promotable_decision_stage"], packet["promotability"]["reasons"]) == (True, [])
    assert path.name == f"{bundle.name}.v0.2.promotion.json"


def test_a_run_on_linux_is_not_promotable_and_says_why(repository: Path) -> None:
    bundle = committed(repository, channel="spawn_clean")
    _, packet = emitted(bundle)
    assert packet["promotability"]["promotable_decision_stage"] is False
    assert packet["promotability"]["reasons"] == ["channel_not_launchd_clean"]
    assert packet["promotability"]["gating_inputs"]["channel_not_launchd_clean"]["observed"] == "spawn_clean"
    with pytest.raises(PromotionRefused, match="channel_not_launchd_clean"):
        emit_promotion(bundle, format="v0.2", require_promotable=True, output=repository / "other.json")
    assert emit_promotion(bundle).promotable


def test_a_packet_without_digests_verifies_as_unpinned(repository: Path) -> None:
    path, _ = emitted(committed(repository))
    for result in (verify_packet(str(path)), verify(path)):
        assert result.ok, result.findings
        assert (result.pinned, result.promotable) == (False, True)
        assert "unpinned" in result.line()
    assert verify(path.parent).packet is None


def test_a_packet_elsewhere_in_the_repository_finds_its_bundle(repository: Path) -> None:
    (repository / "packets").mkdir()
    path, _ = emitted(committed(repository), output=repository / "packets" / "one.json")
    assert verify_packet(str(path)).ok


def test_a_link_out_of_the_repository_is_not_followed(repository: Path, tmp_path: Path) -> None:
    _, packet = emitted(committed(repository))
    (repository / "book" / "out").rename(tmp_path / "elsewhere")
    (repository / "book" / "out").symlink_to(tmp_path / "elsewhere")
    (repository / "packet.json").write_text(json.dumps(packet))
    result = verify_packet(str(repository / "packet.json"))
    assert [each.code for each in result.findings] == ["bundle_absent"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"summary": "book/out/RUN/runtime_results.json"}, "packet_mismatch"),
        ({"impact_map": "book/out/RUN/impact_map.json"}, "packet_mismatch"),
        ({"summary": "book/out/other/summary.json"}, "packet_mismatch"),
    ],
)
def test_a_pointer_to_something_else_is_a_finding(change: dict[str, str], code: str, repository: Path) -> None:
    bundle = committed(repository)
    path, packet = emitted(bundle)
    changed = {**packet, **{name: value.replace("RUN", bundle.name) for name, value in change.items()}}
    path.write_text(json.dumps(changed))
    assert {each.code for each in verify_packet(str(path)).findings} == {code}


def test_a_verdict_that_is_too_good_is_a_finding_and_a_worse_one_is_not(repository: Path) -> None:
    path, packet = emitted(committed(repository, channel="spawn_clean"))
    verdict = {"promotable_decision_stage": True, "reasons": [], "gating_inputs": {}}
    path.write_text(json.dumps({**packet, "promotability": verdict}))
    result = verify_packet(str(path))
    assert [(each.code, "channel_not_launchd_clean" in each.detail) for each in result.findings] == [
        ("verdict_wrong", True)
    ]
    worse = {"promotable_decision_stage": False, "reasons": ["a reason of another program"]}
    path.write_text(json.dumps({**packet, "promotability": worse}))
    assert verify_packet(str(path)).ok


@pytest.mark.parametrize(("sandboxed", "held"), [({"sandboxed": True}, False), ({"sandboxed": None}, True), ({}, True)])
def test_rules_that_are_stricter_than_the_contract_are_not_held_against_other_programs(
    sandboxed: dict[str, Any], held: bool, repository: Path
) -> None:
    path, packet = emitted(committed(repository, preflight={"apply_ok": True, "sandbox_check_self": sandboxed}))
    assert packet["promotability"]["reasons"] == ["already_sandboxed"]
    verdict = {"promotable_decision_stage": True, "reasons": [], "gating_inputs": {}}
    path.write_text(json.dumps({**packet, "promotability": verdict}))
    assert verify_packet(str(path)).ok is held


def test_the_policy_names_the_rules_that_are_stricter_than_the_contract() -> None:
    seed = {"integrity_failed", "preflight_absent", "preflight_not_ok"}
    seed |= {"runtime_results_absent", "runtime_events_absent", "expected_matrix_absent"}
    for policy, channel in ((DECISION_STAGE, "channel_not_clean"), (DECISION_STAGE_V02, "channel_not_launchd_clean")):
        reasons = {rule["reason"] for rule in policy["rules"]}
        assert reasons - set(policy["stricter"]) == seed | {channel}


def test_signatures_policies_and_directories_that_do_not_fit_are_refused(repository: Path, tmp_path: Path) -> None:
    bundle = committed(repository)
    for options in ({"policy": "decision-stage"}, {"sign": tmp_path / "key"}, {"accept": ["bundle_repaired"]}):
        with pytest.raises(UsageError, match=r"v0\.2"):
            emitted(bundle, **options)
    with pytest.raises(UsageError, match="is not below"):
        emitted(bundle, repository=bundle / "..nothing")
    _, packet = emitted(bundle, repository=repository / "book")
    assert parse_packet(packet).pointers["summary"].path == f"out/{bundle.name}/summary.json"
