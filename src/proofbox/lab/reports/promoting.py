"""Promotes a run or an attempt, if its evidence passes strict validation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from shlex import quote

import msgspec

from proofbox.core.clock import Clock
from proofbox.core.words import counted
from proofbox.errors import BundleCorrupt, EvidenceIncomplete
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.evidence.promotion import emit
from proofbox.evidence.promotion.emit import Promotion
from proofbox.lab.reports.validation import validate

_Path = str | os.PathLike[str]


def emit_promotion(
    bundle: Bundle | _Path,
    *,
    policy: str | None = None,
    require_promotable: bool = False,
    accept: Iterable[str] = (),
    sign: _Path | None = None,
    output: _Path | None = None,
    clock: Clock | None = None,
) -> Promotion:
    """Check a bundle against a policy and write its promotion packet, by default `<run_id>.promotion.json` beside it.

    For example:

        done = proofbox.emit_promotion("out", require_promotable=True, sign="release")
        print(done.path, done.promotable, done.reasons)

    Raises `EvidenceIncomplete`, and writes nothing, if strict validation finds anything: no inconsistent evidence is
    signed. A bundle that does not verify is left to the policy, which never accepts it.

    By default a packet is written for any verdict, which it states; with `require_promotable`, a bundle that is not
    promotable raises `PromotionRefused` and nothing is written. `accept` names reasons to waive, among those that the
    policy allows; the packet records them. `sign` is the path of a private key. An existing packet is never replaced.
    """
    if not isinstance(bundle, Bundle):
        with contextlib.suppress(BundleCorrupt):
            bundle = load_bundle(bundle)
    if isinstance(bundle, Bundle):
        _require_valid(bundle)
    return emit.emit_promotion(
        bundle,
        policy=policy,
        require_promotable=require_promotable,
        accept=accept,
        sign=sign,
        output=output,
        clock=clock,
    )


def _require_valid(bundle: Bundle) -> None:
    found = validate(bundle, strict=True)
    if found:
        raise EvidenceIncomplete(
            f"{bundle.run_id} is not promoted: {counted(len(found), 'finding')}; first: {found[0].code} in"
            f" {found[0].path} ({found[0].detail})",
            op="promotion emit",
            fix_hints=[f"list all findings: proofbox validate {quote(bundle.path)} --strict"],
            details={"findings": msgspec.to_builtins(found[:50])},
        )
