"""What a packet says of a bundle: made from the bundle and a policy, and made once more to hold a packet against it.

Whoever can write a packet can write any verdict into it, and beside it what seems to support it. So nothing that
follows from the bundle is taken from the packet: all of it is made anew, and every difference is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proofbox.core.canonical import canonical_bytes
from proofbox.evidence.bundle.index import Index
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.promotion.packet import Packet
from proofbox.evidence.promotion.policies import FIELDS, POLICIES, SEED_FIELDS
from proofbox.evidence.promotion.policy import evaluate, is_built_in
from proofbox.evidence.verify.check import BundleCheck, BundleFinding

_STATED = {"run_id": "run", "world_id": "world", "not_applicable": "list of fields that do not apply"}


def conclusions(checked: BundleCheck, index: Index, policy: Mapping[str, Any], accept: Iterable[str]) -> dict[str, Any]:
    """Every member of a packet that follows from its bundle, its policy, and the reasons that were accepted."""
    rulings = evaluate(policy, checked)
    reasons = [ruling.reason for ruling in rulings if not ruling.held]
    accepted = set(accept)
    rules = {rule["reason"]: rule for rule in policy["rules"]}
    said: dict[str, Any] = {
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
            said[name] = {"path": path, "size": artifact.file_size, "sha256": artifact.sha256}
    return said


def differences(packet: Packet, checked: BundleCheck) -> Iterator[BundleFinding]:
    """Where a packet says something else than follows from its bundle."""
    if checked.index is None:
        yield BundleFinding("packet_mismatch", INDEX, "the bundle has no index that can be read")
        return
    stated, verdict = packet.document, packet.document["promotability"]
    policy = verdict["policy"]
    due = conclusions(checked, checked.index, policy, verdict["accepted"])
    if not _same(stated["bundle"]["index"], due["bundle"]["index"]):
        yield BundleFinding("packet_mismatch", INDEX, "the bundle's index is not the one that the packet pins")
    for name in ("status", "repairs"):
        if not _same(stated["bundle"][name], due["bundle"][name]):
            yield BundleFinding("packet_mismatch", "", f"the packet states {name} other than the bundle has")
    for name, what in _STATED.items():
        if not _same(stated[name], due[name]):
            yield BundleFinding("packet_mismatch", "", f"the packet states another {what}")
    for name in FIELDS:
        if not _same(stated.get(name), due.get(name)):
            pointer = stated.get(name) or due[name]
            yield BundleFinding("packet_mismatch", pointer["path"], f"{name} is not what the policy has the packet pin")
    yield from _verdict_differences(verdict, due["promotability"])


def _verdict_differences(verdict: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[BundleFinding]:
    policy = verdict["policy"]
    if policy["name"] in POLICIES and not is_built_in(policy):
        yield BundleFinding(
            "policy_misnamed", "", f"the packet's policy is not the one that is called {policy['name']}"
        )
    if not set(verdict["accepted"]) <= set(policy["acceptable"]):
        yield BundleFinding("verdict_wrong", "", "the packet accepts what its policy does not allow to be accepted")
    found = ", ".join(due["reasons"]) or "nothing"
    if any(not _same(verdict[name], due[name]) for name in ("promotable_decision_stage", "reasons", "accepted")):
        yield BundleFinding("verdict_wrong", "", f"the policy finds {found} against the bundle")
    stated, expected = verdict["gating_inputs"], due["gating_inputs"]
    wrong = [reason for reason in {**expected, **stated} if not _same(stated.get(reason), expected.get(reason))]
    if wrong:
        yield BundleFinding("verdict_wrong", "", f"gating_inputs are not what the bundle gives: {', '.join(wrong[:5])}")


def _same(one: Any, other: Any) -> bool:
    """As JSON: 1 and true are two values, though Python calls them equal."""
    return canonical_bytes(one) == canonical_bytes(other)
