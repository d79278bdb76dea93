"""Promotes a run or an attempt, if its evidence passes strict validation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from shlex import quote

import msgspec

from proofbox.core.clock import Clock
from proofbox.core.plurals import counted
from proofbox.errors import BundleCorrupt, EvidenceIncomplete
from proofbox.evidence.bundle.packed import require_directory
from proofbox.evidence.bundle.paths import enclosing
from proofbox.evidence.bundle.reader import Bundle, as_bundle, load_bundle
from proofbox.evidence.promotion import emit
from proofbox.evidence.promotion.emit import Promotion
from proofbox.evidence.verify.check import check_bundle
from proofbox.lab.reports.finding import EvidenceFinding
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
    format: emit.PacketFormat = "v2",
    repository: _Path | None = None,
    clock: Clock | None = None,
) -> Promotion:
    """Check a bundle against a policy and write its promotion packet, by default `<run_id>.promotion.json` beside it.

    For example:

        done = proofbox.emit_promotion("out", require_promotable=True, sign="release")
        print(done.path, done.promotable, done.reasons)

    Raises `EvidenceIncomplete`, and writes nothing, if strict validation finds anything: no inconsistent evidence is
    signed. An attempt must also be the one that its run records, if it is inside a committed run. A bundle that does
    not verify is left to the policy, which never accepts it.

    By default a packet is written for any verdict, which it states; with `require_promotable`, a bundle that is not
    promotable raises `PromotionRefused` and nothing is written. `accept` names reasons to waive, among those that the
    policy allows; the packet records them. `sign` is the path of a private key. An existing packet is never replaced.

    The format `v0.2` follows the contract `runtime-tools.promotion_packet.v0.2`: pointers relative to `repository` (by
    default the Git repository around the bundle) and a verdict by that contract, without digests or a signature.
    """
    if not isinstance(bundle, Bundle):
        require_directory(bundle, "promotion emit")
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
        format=format,
        repository=repository,
        clock=clock,
    )


def _require_valid(bundle: Bundle) -> None:
    found = [*validate(bundle, strict=True), *_contradicting_run(bundle)]
    if found:
        raise EvidenceIncomplete(
            f"{bundle.run_id} is not promoted: {counted(len(found), 'finding')}; first: {found[0].code} in"
            f" {found[0].path} ({found[0].detail})",
            op="promotion emit",
            fix_hints=[f"list all findings: proofbox validate {quote(bundle.path)} --strict"],
            details={"findings": msgspec.to_builtins(found[:50])},
        )


def _contradicting_run(attempt: Bundle) -> Iterator[EvidenceFinding]:
    """Yield the findings of the run that contains the attempt, except those about other attempts."""
    run, place = enclosing(attempt.path), os.path.realpath(attempt.path)
    if run == place:
        return
    checked = check_bundle(run)
    if not checked.committed:  # no index of the run pins the attempt yet
        return
    found = [EvidenceFinding(each.code, each.path, each.detail) for each in checked.findings]
    path = os.path.relpath(place, run)
    inner = checked.nested.get(path)
    if inner is not None and inner.index_sha256 != attempt.index_sha256:
        found.append(EvidenceFinding("attempt_replaced", path, "its index changed while it was read"))
    if checked.ok:
        found += validate(as_bundle(checked), strict=True)
    others = tuple(f"{each}/" for each in checked.nested if each != path)
    yield from (each for each in found if not f"{each.path}/".startswith(others))
