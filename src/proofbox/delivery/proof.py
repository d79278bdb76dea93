"""Decide whether evidence supports a delivery: verify the packet, evaluate its policy again, and compare the tree.

A packet contains its policy, and anyone who can write a packet can write a lenient policy. So either the policy is
built in, or the packet is signed by a trusted key: the given key, or one of the user's configuration
(`trusted-keys/*.pub`). If any key is configured, a signature by one of them is required. In both cases the policy must
approve code: a measurement can be reliable and still show that the code is bad.

Only a signature by a trusted key makes a delivery proven. Anyone who can write a bundle can write an unsigned packet
for it, so an unsigned packet can only be consistent.

The packet's file is read once and the bundle's directory is opened once, so all checks apply to the same bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.core.dirs import config_dir
from proofbox.core.plurals import counted
from proofbox.core.text import preview, printable
from proofbox.delivery.client.wire import Evidence
from proofbox.delivery.source.tree import SourceTree, reason_by_name
from proofbox.errors import DeliveryNotProven, KeyInvalid
from proofbox.evidence.bundle.reader import Bundle, as_bundle
from proofbox.evidence.documents import outcome as outcomes
from proofbox.evidence.documents import schedule
from proofbox.evidence.documents import tree as trees
from proofbox.evidence.documents.base_tree import read_tree
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion.packet import Packet
from proofbox.evidence.promotion.policies import approves_code
from proofbox.evidence.promotion.policy import is_built_in
from proofbox.evidence.verify.verifier import examine_packet

TRUSTED = "trusted-keys"
Standing = Literal["proven", "consistent, not signed", "not proven"]


class ProofResult(msgspec.Struct, frozen=True):
    """The result for one aspect, and how it was established."""

    aspect: str
    """claimed, verified or infra, as in the attempt's outcome."""
    result: str
    """passed, failed or unknown; for infra, ok instead of passed."""
    by: str = ""
    """The party that established it; `runtime_reported`: the agent's own claim."""
    how: str = ""
    """How it was established."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence behind a delivery."""

    standing: Standing = "not proven"
    """`proven`: all checks passed, and a trusted key signed the packet. `consistent, not signed`: all checks passed,
    but no trusted key signed it. `not proven`: see `problems`."""
    packet: str | None = None
    packet_sha256: str | None = None
    """The SHA-256 of the packet's file; null: no packet was given."""
    run_id: str | None = None
    policy: str | None = None
    """The name of the promotion policy."""
    promotable: bool = False
    signed_by: str | None = None
    tree_sha256: str | None = None
    results: tuple[ProofResult, ...] = ()
    problems: tuple[str, ...] = ()
    """Why the evidence does not support the delivery."""

    def evidence(self) -> Evidence | None:
        """Return the evidence to send with the request."""
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
    """Return the public keys that the user's configuration trusts.

    Raises KeyInvalid if keys seem to be configured but can't be used: without keys, no signature is required.
    """
    place = config_dir() / TRUSTED
    if not os.path.lexists(place):
        return []
    try:
        names = sorted(os.listdir(place))
    except OSError as error:
        raise _unusable(place, error.strerror or type(error).__name__) from error
    keys = [str(place / name) for name in names if name.endswith(".pub")]
    if names and not keys:
        raise _unusable(place, f"none of its {counted(len(names), 'file')} is a public key that ends in .pub")
    return keys


def _unusable(place: Path, why: str) -> KeyInvalid:
    return KeyInvalid(
        f"the trusted keys in {printable(str(place))} can't be used: {why}",
        op="deliver",
        fix_hints=["make it a directory of public keys whose names end in .pub, or remove it to trust no key"],
    )


def examine(packet: Path | None, bundle: Path | None, tree: SourceTree, *, key: Path | None = None) -> Proof:
    """Check a packet, its bundle and the tree to send against each other. `problems` lists every failure."""
    if packet is None:
        return NO_PROOF
    keys = [str(key)] if key is not None else trusted_keys()
    found = examine_packet(str(packet), keys=keys, bundle=None if bundle is None else str(bundle))
    verified = found.result
    problems = [f"{finding.code}: {finding.detail}" for finding in verified.findings]
    if verified.promotable is not True:
        problems.append("the packet does not state that the bundle may be relied on")
    if found.packet is not None and not found.packet.pinned:
        problems.append("packet_unpinned: the packet has no digests, so it proves nothing about this bundle")
    elif found.packet is not None:
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
                "deliver what was proven: --packet FILE --bundle PATH, with the attempt's final files as --source",
                "or deliver it without evidence, which is recorded: --allow-unpromoted",
            ],
            details={"problems": list(proof.problems[:50])},
        )


def _policy_problems(packet: Packet, *, signed: bool) -> list[str]:
    policy: dict[str, Any] = packet.document["promotability"]["policy"]
    problems = []
    if not signed and not is_built_in(policy):
        problems.append("the packet has a custom policy, but no trusted key has signed it")
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
    """Compare the delivery with the one that the proven tree would produce, which leaves out the same files."""
    if schedule.PATH in bundle.artifacts:
        return None, ["the bundle is a whole run, which does not approve a tree; deliver one of its attempts"]
    if trees.PATH not in bundle.artifacts:
        return None, [f"the bundle has no {trees.PATH}, so it proves no tree"]
    try:
        found = read_tree(bundle.read_json(trees.PATH), bundle.path)
        proven = {os.fsdecode(entry.path): entry for entry in found.entries}
    except ShapeError as error:
        return None, [f"{trees.PATH}: {error}"]
    wrong = []
    # A withheld file must also match the proven one: otherwise it could hide the proven file, or keep a file in the
    # repository that the proven tree has deleted.
    for entry in (*tree.entries(), *tree.withheld):
        path = os.fsdecode(entry.path)
        if proven.pop(path, None) != entry:
            wrong.append(f"{path} is not the file that was proven")
    wrong += [f"{path} was proven but is not sent" for path in proven if not reason_by_name(path)]
    return found.tree_sha256, wrong
