"""Packets of the contract `runtime-tools.promotion_packet.v0.2`: bare pointers relative to a repository, and a verdict.

They have no digests, so they pin nothing: a bundle that was replaced by another consistent one goes unnoticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from proofbox.errors import UsageError
from proofbox.evidence.bundle.index import Index
from proofbox.evidence.bundle.paths import INDEX, is_artifact_path, shown
from proofbox.evidence.promotion.packet import SEED_SCHEMA, Packet
from proofbox.evidence.promotion.policies import DECISION_STAGE_V02, OPTIONAL_FIELDS, SEED_FIELDS
from proofbox.evidence.promotion.policy import RuleResult, evaluate
from proofbox.evidence.verify.check import BundleCheck, BundleFinding

SUFFIX = ".v0.2.promotion.json"


def packet_v02(checked: BundleCheck, index: Index, directory: str, repository: str | None) -> dict[str, Any]:
    """Return the packet for a bundle, with pointers relative to the repository that contains it."""
    root = os.path.realpath(repository) if repository is not None else repository_of(directory)
    place = os.path.relpath(os.path.realpath(directory), root)
    if not is_artifact_path(place):
        raise UsageError(
            f"{shown(directory)} is not below {shown(root)}, so no pointer can be relative to it",
            op="promotion emit",
            fix_hints=["give a directory that contains the bundle with --repository"],
        )
    rulings = evaluate(DECISION_STAGE_V02, checked)
    rules = {rule["reason"]: rule for rule in DECISION_STAGE_V02["rules"]}
    reasons = [ruling.reason for ruling in rulings if not ruling.held]
    pointers = {name: f"{place}/{path}" if path in index.artifacts else None for name, path in SEED_FIELDS.items()}
    optional = {name: f"{place}/{path}" for name, path in OPTIONAL_FIELDS.items() if path in index.artifacts}
    return {
        "schema_version": SEED_SCHEMA,
        **pointers,
        **optional,
        "promotability": {
            "promotable_decision_stage": not reasons,
            "reasons": reasons,
            "gating_inputs": {
                ruling.reason: {"rule": rules[ruling.reason], "held": ruling.held, "observed": ruling.observed}
                for ruling in rulings
            },
        },
    }


def repository_of(directory: str) -> str:
    """Return the Git repository that contains a directory; without one, the directory above it."""
    above = os.path.dirname(os.path.realpath(directory))
    place = above
    while not os.path.lexists(os.path.join(place, ".git")):
        if place == os.path.dirname(place):
            return above
        place = os.path.dirname(place)
    return place


def bundle_of_v02(path: str, packet: Packet) -> str | None:
    """Return the directory that the packet's pointers name, in the packet's directory or the repository around it.

    A link that leads out of the repository is not followed.
    """
    pointers = [pointer.path for pointer in packet.pointers.values()]
    if not pointers or not all(map(is_artifact_path, pointers)):
        return None
    inner = os.path.dirname(pointers[0])
    beside = os.path.dirname(os.path.abspath(path))
    for root in dict.fromkeys((os.path.realpath(beside), repository_of(path))):
        place = os.path.join(root, inner)
        inside = os.path.commonpath([os.path.realpath(place), root]) == root
        if inside and os.path.isfile(os.path.join(place, INDEX)):
            return place
    return None


def differences_v02(packet: Packet, checked: BundleCheck) -> Iterator[BundleFinding]:
    """Yield a finding for each pointer that names no artifact of the bundle, and for a verdict that is too good.

    Another program's packet may have more reasons than ours, so a verdict that is worse is not a finding.
    """
    fields = {**SEED_FIELDS, **OPTIONAL_FIELDS}
    artifacts = checked.index.artifacts if checked.index else {}
    places = set()
    for name, pointer in packet.pointers.items():
        place, _, file = pointer.path.rpartition("/")
        places.add(place)
        if file != fields[name] or file not in artifacts:
            yield BundleFinding("packet_mismatch", pointer.path, f"{name} points to no such artifact of the bundle")
    if len(places) > 1:
        yield BundleFinding("packet_mismatch", "", "the packet points into more than one bundle")
    failed = [ruling.reason for ruling in evaluate(DECISION_STAGE_V02, checked) if _fails(ruling)]
    if packet.promotable and failed:
        yield BundleFinding("verdict_wrong", "", f"the bundle fails these rules of the contract: {', '.join(failed)}")


def _fails(ruling: RuleResult) -> bool:
    """Return whether a rule fails by the contract, which is less strict than the policy."""
    if ruling.reason == "already_sandboxed":
        return ruling.observed is True
    return not ruling.held and ruling.reason not in DECISION_STAGE_V02["stricter"]
