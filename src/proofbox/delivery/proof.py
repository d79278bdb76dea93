"""Whether evidence supports a delivery: the packet verifies, the policy says yes once more, the tree is the one proven.

A packet carries its own policy, and whoever can write a packet can write a lenient one. So the policy is one of ours,
or the packet is signed by a key that is trusted: the one that is named, or one of those in the user's configuration
(`trusted-keys/*.pub`). Where any is configured, a signature by one of them is required.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.digest import sha256_file
from proofbox.core.dirs import config_dir
from proofbox.core.text import preview, printable
from proofbox.delivery.source import SourceTree, reason_by_name
from proofbox.delivery.wire import Evidence
from proofbox.errors import DeliveryNotProven, ProofboxError
from proofbox.evidence import outcome as outcomes
from proofbox.evidence import tree as trees
from proofbox.evidence.dsse import Envelope, is_envelope
from proofbox.evidence.packet import PREDICATE_TYPE, read_document
from proofbox.evidence.policies import POLICIES
from proofbox.evidence.reader import Bundle, load_bundle
from proofbox.evidence.shape import ShapeError
from proofbox.evidence.verification import Verification
from proofbox.evidence.verify import verify_packet

TRUSTED = "trusted-keys"


class Result(msgspec.Struct, frozen=True):
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
    """What stands behind a delivery. `problems` is empty where it is proven."""

    packet: str | None = None
    packet_sha256: str | None = None
    """Of the packet's file; null: no packet was given."""
    run_id: str | None = None
    policy: str | None = None
    """The promotion policy that decided, by its name."""
    promotable: bool = False
    signed_by: str | None = None
    tree_sha256: str | None = None
    results: tuple[Result, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        return self.packet is not None and not self.problems

    def evidence(self) -> Evidence | None:
        """What is sent along."""
        if self.packet_sha256 is None:
            return None
        return Evidence(
            packet_sha256=self.packet_sha256,
            run_id=self.run_id or "",
            promotable=self.proven,
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
    verified = _verified(str(packet), keys, None if bundle is None else str(bundle))
    problems = [f"{finding.code}: {finding.detail}" for finding in verified.findings]
    if verified.promotable is not True:
        problems.append("the packet does not say that the bundle may be relied on")
    if keys and verified.signed_by is None and not any(problem.startswith("signature_") for problem in problems):
        problems.append("signature_absent: no trusted key has signed the packet")
    policy = _policy(str(packet))
    if verified.signed_by is None and POLICIES.get(str(policy.get("name"))) != policy:
        problems.append("the packet has a policy of its own, and no trusted key has signed it")
    tree_sha256: str | None = None
    results: tuple[Result, ...] = ()
    if verified.bundle is not None and not verified.findings:
        loaded = load_bundle(verified.bundle)
        results = _results(loaded)
        tree_sha256, wrong = _compare(loaded, tree)
        problems += wrong
    return Proof(
        packet=str(packet),
        packet_sha256=sha256_file(packet)[0],
        run_id=verified.run_id,
        policy=str(policy.get("name")),
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


def _verified(packet: str, keys: Sequence[str], bundle: str | None) -> Verification:
    """By the first key that signed; without one, by the last that did not."""
    result = verify_packet(packet, key=keys[0] if keys else None, bundle=bundle)
    for key in keys[1:]:
        if result.signed_by is not None:
            break
        result = verify_packet(packet, key=key, bundle=bundle)
    return result


def _policy(packet: str) -> dict[str, Any]:
    try:
        document = read_document(packet)
        if is_envelope(document):
            _, document = Envelope(document).statement(PREDICATE_TYPE)
        found = document["promotability"]["policy"]
        return found if isinstance(found, dict) else {}
    except (ShapeError, ProofboxError, KeyError, TypeError):
        return {}


def _results(bundle: Bundle) -> tuple[Result, ...]:
    if outcomes.PATH not in bundle.artifacts:
        return ()
    try:
        found = outcomes.parse_outcome(bundle.read_json(outcomes.PATH))
    except ShapeError:
        return ()
    return tuple(
        Result(aspect, verdict.result, verdict.by, verdict.how)
        for aspect, verdict in (("claimed", found.claimed), ("verified", found.verified), ("infra", found.infra))
    )


def _compare(bundle: Bundle, tree: SourceTree) -> tuple[str | None, list[str]]:
    """Whether the delivery is the one that the proven tree would make, which leaves out the same files."""
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
