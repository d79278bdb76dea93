"""Compute a packet's statements from a bundle and a policy, and compare an existing packet with them.

Anyone who can write a packet can write any verdict into it, with seemingly supporting data. Everything that follows
from the bundle is therefore recomputed, never taken from the packet, and every difference is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proofbox.core.canonical import canonical_bytes
from proofbox.evidence.bundle.index import Index
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.promotion.packet import SCHEMA_1, Packet
from proofbox.evidence.promotion.policies import FIELDS, POLICIES, SEED_FIELDS
from proofbox.evidence.promotion.policy import evaluate, is_built_in
from proofbox.evidence.verify.check import BundleCheck, BundleFinding

_STATED = {"run_id": "run", "world_id": "world", "not_applicable": "list of fields that do not apply"}


def conclusions(checked: BundleCheck, index: Index, policy: Mapping[str, Any], accept: Iterable[str]) -> dict[str, Any]:
    """Return the members of a packet that follow from its bundle, its policy and the accepted reasons."""
    rulings = evaluate(policy, checked)
    reasons = [ruling.reason for ruling in rulings if not ruling.held]
    accepted = set(accept)
    rules = {rule["reason"]: rule for rule in policy["rules"]}
    members: dict[str, Any] = {
        "run_id": index.run_id,
        "world_id": index.world_id,
        "bundle": {
            "index": {"path": INDEX, "size": checked.index_size, "sha256": checked.index_sha256},
            "status": index.status,
            "repairs": sum(inner.index.repairs if inner.index else 0 for _, inner in checked.every()),
        },
        **dict.fromkeys(SEED_FIELDS),
        "not_applicable": policy["not_applicable"],
        "promotability": {
            "promotable_decision_stage": set(reasons) <= accepted,
            "reasons": reasons,
            "accepted": sorted(accepted.intersection(reasons)),
            "gating_inputs": {
                ruling.reason: {"rule": rules[ruling.reason], "held": ruling.held, "observed": ruling.observed}
                for ruling in rulings
            },
            "policy": policy,
        },
    }
    for name, path in policy["fields"].items():
        artifact = index.artifacts.get(path)
        if artifact is not None:
            members[name] = {"path": path, "size": artifact.file_size, "sha256": artifact.sha256}
    return members


def differences(packet: Packet, checked: BundleCheck) -> Iterator[BundleFinding]:
    """Yield a finding for each difference between a packet and its bundle."""
    if checked.index is None:
        yield BundleFinding("packet_mismatch", INDEX, "the bundle has no readable index")
        return
    stated, verdict = packet.document, packet.document["promotability"]
    policy = verdict["policy"]
    due = conclusions(checked, checked.index, policy, verdict["accepted"])
    if not _same(stated["bundle"]["index"], due["bundle"]["index"]):
        yield BundleFinding("packet_mismatch", INDEX, "the bundle's index differs from the one that the packet pins")
    for name in ("status", "repairs"):
        if not _same(stated["bundle"][name], due["bundle"][name]):
            yield BundleFinding("packet_mismatch", "", f"{name} in the packet differs from the bundle's")
    for name, what in _STATED.items():
        if not _same(stated[name], due[name]):
            yield BundleFinding("packet_mismatch", "", f"the packet states a different {what}")
    for name in FIELDS:
        if not _same(stated.get(name), due.get(name)):
            pointer = stated.get(name) or due[name]
            yield BundleFinding("packet_mismatch", pointer["path"], f"{name} is not pinned as the policy requires")
    yield from _verdict_differences(verdict, due["promotability"], prose=packet.schema_version == SCHEMA_1)


def _verdict_differences(verdict: Mapping[str, Any], due: Mapping[str, Any], *, prose: bool) -> Iterator[BundleFinding]:
    policy = verdict["policy"]
    if policy["name"] in POLICIES and not is_built_in(policy):
        yield BundleFinding(
            "policy_misnamed", "", f"the packet's policy differs from the built-in policy {policy['name']}"
        )
    if not set(verdict["accepted"]) <= set(policy["acceptable"]):
        yield BundleFinding("verdict_wrong", "", "the packet accepts a reason that its policy does not allow accepting")
    found = ", ".join(due["reasons"]) or "none"
    if any(not _same(verdict[name], due[name]) for name in ("promotable_decision_stage", "reasons", "accepted")):
        yield BundleFinding("verdict_wrong", "", f"the bundle fails these rules of the policy: {found}")
    stated, expected = verdict["gating_inputs"], due["gating_inputs"]
    wrong = [
        reason for reason in {**expected, **stated} if not _agrees(stated.get(reason), expected.get(reason), prose)
    ]
    if wrong:
        yield BundleFinding("verdict_wrong", "", f"gating_inputs differ from the bundle: {', '.join(wrong[:5])}")


def _agrees(stated: Any, due: Any, prose: bool) -> bool:
    """Compare what a packet and a bundle state about a rule.

    In version 1 (`prose`) unknown and large values are stated as text, which is not compared.
    """
    if prose and stated is not None and due is not None and isinstance(due["observed"], dict):
        summary = due["observed"].keys() in ({"unknown"}, {"omitted", "items"})
        if summary and isinstance(stated["observed"], str):
            stated = {**stated, "observed": due["observed"]}
    return _same(stated, due)


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON: 1 and true differ, though they are equal in Python."""
    return canonical_bytes(one) == canonical_bytes(other)
