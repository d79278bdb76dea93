"""Whether evidence supports a delivery: the packet verifies, the policy says yes once more, the tree is the one proven.

A packet carries its own policy, and whoever can write a packet can write a lenient one. So the policy is one of ours,
or the packet is signed by a key that is trusted: the one that is named, or one of those in the user's configuration
(`trusted-keys/*.pub`). Where any is configured, a signature by one of them is required. Either way the policy must be
one that approves code: a measurement can be relied on and still say that the code is bad.

Only a signature by a trusted key makes a delivery proven. Whoever can write a bundle can write an unsigned packet for
it, so that one is consistent and no more.

The packet's file is read once and the bundle's directory is opened once: everything here is about those bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.core.dirs import config_dir
from proofbox.core.text import preview, printable
from proofbox.delivery.client.wire import Evidence
from proofbox.delivery.source.tree import SourceTree, reason_by_name
from proofbox.errors import DeliveryNotProven
from proofbox.evidence.bundle.reader import Bundle, as_bundle
from proofbox.evidence.documents import outcome as outcomes
from proofbox.evidence.documents import schedule
from proofbox.evidence.documents import tree as trees
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion.packet import Packet
from proofbox.evidence.promotion.policies import approves_code
from proofbox.evidence.promotion.policy import is_built_in
from proofbox.evidence.verify.verifier import examine_packet

TRUSTED = "trusted-keys"
Standing = Literal["proven", "consistent, not signed", "not proven"]


class ProofResult(msgspec.Struct, frozen=True):
    """What was found of one aspect: by whom, and how."""

    aspect: str
    """claimed, verified or infra, as in the attempt's outcome."""
    result: str
    """passed, failed or unknown; of infra, ok instead of passed."""
    by: str = ""
    """Who established it; `runtime_reported`: the agent's own word."""
    how: str = ""
    """By what means."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What stands behind a delivery."""

    standing: Standing = "not proven"
    """`proven`: everything holds, and a trusted key has signed. `consistent, not signed`: everything holds, and no
    trusted key vouches for it. `not proven`: see `problems`."""
    packet: str | None = None
    packet_sha256: str | None = None
    """Of the packet's file; null: no packet was given."""
    run_id: str | None = None
    policy: str | None = None
    """The promotion policy that decided, by its name."""
    promotable: bool = False
    signed_by: str | None = None
    tree_sha256: str | None = None
    results: tuple[ProofResult, ...] = ()
    problems: tuple[str, ...] = ()
    """Why the evidence does not support the delivery."""

    def evidence(self) -> Evidence | None:
        """What is sent along."""
        if self.packet_sha256 is None:
            return None
        return Evidence(
            packet_sha256=self.packet_sha256,
            run_id=self.run_id or "",
            promotable=not self.problems,
            signed_by=self.signed_by,
            tree_sha256=self.tree_sha256,
        )


NO_PROOF = Proof(problems=("no promotion packet was given",))


def trusted_keys() -> list[str]:
    """The public keys that the user's configuration trusts."""
    place = config_dir() / TRUSTED
    return sorted(str(path) for path in place.glob("*.pub")) if place.is_dir() else []


def examine(packet: Path | None, bundle: Path | None, tree: SourceTree, *, key: Path | None = None) -> Proof:
    """Hold a packet, its bundle and the tree that is to be sent against each other. Says no by `problems`."""
    if packet is None:
        return NO_PROOF
    keys = [str(key)] if key is not None else trusted_keys()
    found = examine_packet(str(packet), keys=keys, bundle=None if bundle is None else str(bundle))
    verified = found.result
    problems = [f"{finding.code}: {finding.detail}" for finding in verified.findings]
    if verified.promotable is not True:
        problems.append("the packet does not say that the bundle may be relied on")
    if found.packet is not None and found.packet.pinned:
        problems += _policy_problems(found.packet, signed=verified.signed_by is not None)
    tree_sha256: str | None = None
    results: tuple[ProofResult, ...] = ()
    if found.checked is not None and not verified.findings:
        checked = as_bundle(found.checked)
        results = _results(checked)
        tree_sha256, wrong = _compare(checked, tree)
        problems += wrong
    standing: Standing = "not proven"
    if not problems:
        standing = "consistent, not signed" if verified.signed_by is None else "proven"
    return Proof(
        standing=standing,
        packet=str(packet),
        packet_sha256=found.packet_sha256,
        run_id=verified.run_id,
        policy=verified.policy,
        promotable=verified.promotable is True,
        signed_by=verified.signed_by,
        tree_sha256=tree_sha256,
        results=results,
        problems=tuple(printable(preview(problem, 500)[0]) for problem in problems),
    )


def require(proof: Proof, *, allow_unpromoted: bool) -> None:
    if proof.problems and not allow_unpromoted:
        raise DeliveryNotProven(
            f"the evidence does not support this delivery: {proof.problems[0]}"
            + (f" (and {len(proof.problems) - 1} more)" if len(proof.problems) > 1 else ""),
            op="deliver proof",
            fix_hints=[
                "deliver what was proven: --packet FILE --bundle PATH, and the source that the attempt ended with",
                "or send it without that, on the record: --allow-unpromoted",
            ],
            details={"problems": list(proof.problems[:50])},
        )


def _policy_problems(packet: Packet, *, signed: bool) -> list[str]:
    policy: dict[str, Any] = packet.document["promotability"]["policy"]
    problems = []
    if not signed and not is_built_in(policy):
        problems.append("the packet has a custom policy, and no trusted key has signed it")
    if not approves_code(policy):
        problems.append(
            f"the policy {policy['name']} does not approve code: it does not require that a verifier passed this tree"
        )
    return problems


def _results(bundle: Bundle) -> tuple[ProofResult, ...]:
    if outcomes.PATH not in bundle.artifacts:
        return ()
    try:
        found = outcomes.parse_outcome(bundle.read_json(outcomes.PATH))
    except ShapeError:
        return ()
    return tuple(
        ProofResult(aspect, verdict.result, verdict.by, verdict.how)
        for aspect, verdict in (("claimed", found.claimed), ("verified", found.verified), ("infra", found.infra))
    )


def _compare(bundle: Bundle, tree: SourceTree) -> tuple[str | None, list[str]]:
    """Whether the delivery is the one that the proven tree would make, which leaves out the same files."""
    if schedule.PATH in bundle.artifacts:
        return None, ["the bundle is a run's: a run measures, and approves no tree; deliver one of its attempts"]
    if trees.PATH not in bundle.artifacts:
        return None, [f"the bundle has no {trees.PATH}: it proves no tree"]
    try:
        document = bundle.read_json(trees.PATH)
        proven = {os.fsdecode(entry.path): entry for entry in trees.parse_tree_manifest(document)}
    except ShapeError as error:
        return None, [f"{trees.PATH}: {error}"]
    wrong = []
    # A withheld file must be the proven one as well: another one in its place would hide the proven file, or keep a
    # file in the repository that the proven tree has deleted.
    for entry in (*tree.entries(), *tree.withheld):
        path = os.fsdecode(entry.path)
        if proven.pop(path, None) != entry:
            wrong.append(f"{path} is not the file that was proven")
    wrong += [f"{path} was proven, and is not sent" for path in proven if not reason_by_name(path)]
    return document["tree_sha256"], wrong
