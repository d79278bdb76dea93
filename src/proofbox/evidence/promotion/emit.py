"""Decide whether a bundle may be relied on, and write its promotion packet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from proofbox.core.canonical import canonical_bytes
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.files.atomic import create_only
from proofbox.errors import BundlePathRefused, PromotionRefused, UsageError
from proofbox.evidence.attest import dsse
from proofbox.evidence.attest.keys import load_private_key, refuse_inside_bundle
from proofbox.evidence.bundle.index import Index
from proofbox.evidence.bundle.packed import require_directory
from proofbox.evidence.bundle.paths import INDEX, enclosing, is_artifact_path, shown
from proofbox.evidence.bundle.reader import Bundle, refusal
from proofbox.evidence.promotion.packet import PREDICATE_TYPES, SCHEMA, SUFFIX, parse_packet
from proofbox.evidence.promotion.packet_v02 import SUFFIX as SUFFIX_V02
from proofbox.evidence.promotion.packet_v02 import packet_v02
from proofbox.evidence.promotion.policies import DECISION_STAGE_V02
from proofbox.evidence.promotion.policy import fitting_policy, load_policy
from proofbox.evidence.promotion.verdict import conclusions
from proofbox.evidence.verify.check import BundleCheck, check_bundle

_Path = str | os.PathLike[str]
PacketFormat = Literal["v2", "v0.2"]


@dataclass(frozen=True, slots=True)
class Promotion:
    """A written packet. `document` is the packet itself, even if the file contains a signed envelope."""

    path: str
    document: dict[str, Any]
    promotable: bool
    reasons: tuple[str, ...]
    """Every rule that failed, including accepted ones."""
    accepted: tuple[str, ...]
    signed_by: str | None


def emit_promotion(
    bundle: Bundle | _Path,
    *,
    policy: str | None = None,
    require_promotable: bool = False,
    accept: Iterable[str] = (),
    sign: _Path | None = None,
    output: _Path | None = None,
    format: PacketFormat = "v2",
    repository: _Path | None = None,
    clock: Clock | None = None,
) -> Promotion:
    """Check a bundle against a policy and write its promotion packet, by default `<run_id>.promotion.json` beside it.

    By default a packet is written for any verdict, which it states; with `require_promotable`, a bundle that is not
    promotable raises PromotionRefused and nothing is written. `accept` names reasons to waive, among those that the
    policy allows; the packet records them. `sign` is the path of a private key. An existing packet is never replaced.

    The format `v0.2` has its own policy, no signature and no digests; its pointers are relative to `repository`, by
    default the Git repository around the bundle.
    """
    if format == "v0.2" and (policy not in (None, DECISION_STAGE_V02["name"]) or sign is not None or tuple(accept)):
        raise UsageError(
            "a packet of the format v0.2 has its own policy, no signature and no accepted reasons",
            op="promotion emit",
            fix_hints=["leave out --policy, --sign and --accept, or --format"],
        )
    directory = os.path.abspath(
        bundle.path if isinstance(bundle, Bundle) else require_directory(bundle, "promotion emit")
    )
    key = None
    if sign is not None:
        refuse_inside_bundle(os.fspath(sign))
        key = load_private_key(sign)
    checked = check_bundle(bundle.directory if isinstance(bundle, Bundle) else directory, chains=True)
    index = checked.index
    if index is None or not checked.committed:
        raise refusal(checked)
    rules = load_policy(policy) if policy is not None else fitting_policy(checked)
    target = _target(directory, output, SUFFIX_V02 if format == "v0.2" else SUFFIX)
    if format == "v0.2":
        rules = DECISION_STAGE_V02
        document = packet_v02(checked, index, directory, None if repository is None else os.fspath(repository))
    else:
        document = _packet(checked, index, rules, tuple(accept), clock or SystemClock())
        document["bundle"]["path"] = _relative(directory, target)
    verdict = document["promotability"]
    if require_promotable and not verdict["promotable_decision_stage"]:
        raise PromotionRefused(
            f"{index.run_id} is not promotable: {', '.join(verdict['reasons'])}",
            op="promotion emit",
            fix_hints=[
                "emit the packet without requiring promotability, and read what each rule observed in gating_inputs"
            ],
            details={"reasons": verdict["reasons"], "policy": rules["name"], "accepted": verdict.get("accepted", [])},
        )
    parse_packet(document)
    stored = document
    if key is not None:
        subject = f"{index.run_id}/{INDEX}"
        stored = dsse.sign(dsse.statement(subject, checked.index_sha256, PREDICATE_TYPES[SCHEMA], document), key)
    try:
        create_only(target, canonical_bytes(stored))
    except FileExistsError:
        raise UsageError(
            f"{shown(target)} already exists",
            op="promotion emit",
            fix_hints=["choose another --output, or remove the old packet: packets are never replaced"],
        ) from None
    return Promotion(
        path=target,
        document=document,
        promotable=verdict["promotable_decision_stage"],
        reasons=tuple(verdict["reasons"]),
        accepted=tuple(verdict.get("accepted", ())),
        signed_by=key.public.key_id if key else None,
    )


def _target(directory: str, output: _Path | None, suffix: str) -> str:
    """Return the packet's path: outside every bundle, since a committed bundle takes no more files."""
    top = enclosing(directory)
    if output is None:
        return os.path.join(os.path.dirname(top), os.path.basename(directory) + suffix)
    target = os.path.abspath(output)
    if os.path.realpath(target).startswith(top + os.sep):
        raise BundlePathRefused(
            f"{shown(target)} is inside the bundle",
            op="promotion emit",
            fix_hints=["write the packet outside the bundle: a committed bundle takes no more files"],
        )
    return target


def _packet(
    checked: BundleCheck, index: Index, rules: dict[str, Any], accept: tuple[str, ...], clock: Clock
) -> dict[str, Any]:
    not_allowed = sorted(set(accept) - set(rules["acceptable"]))
    if not_allowed:
        raise UsageError(
            f"the policy {rules['name']} does not allow accepting {', '.join(not_allowed)[:200]}",
            op="promotion emit",
            fix_hints=[f"the policy allows accepting: {', '.join(rules['acceptable']) or 'nothing'}"],
        )
    members = conclusions(checked, index, rules, accept)
    return {"schema_version": SCHEMA, "emitted_at": isoformat(clock.now()), **members}


def _relative(directory: str, target: str) -> str | None:
    """Return the path from the packet to its bundle, if the bundle is below it and the path is portable.

    For any other packet, the user must give the bundle's path.
    """
    base = os.path.realpath(os.path.dirname(target))
    place = os.path.relpath(os.path.realpath(directory), base)
    return place if not place.startswith("..") and place != "." and is_artifact_path(place) else None
