"""Promotes a run or an attempt, if its evidence passes strict validation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from shlex import quote
from typing import Any

import msgspec

from proofbox.core.words import counted
from proofbox.errors import BundleCorrupt, EvidenceIncomplete
from proofbox.evidence.bundle.paths import enclosing
from proofbox.evidence.bundle.reader import Bundle, as_bundle, load_bundle
from proofbox.evidence.promotion.emit import Promotion, emit_promotion
from proofbox.evidence.verify.check import check_bundle
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.validation import validate


def promote(path: str | os.PathLike[str], **options: Any) -> Promotion:
    """Emit a promotion packet as `emit_promotion` does, for evidence that passes strict validation.

    Raises `EvidenceIncomplete`, and writes nothing, if validation finds anything. An attempt must also be the one that
    its run records, if it is inside a committed run. A bundle that does not verify is left to the policy, which never
    accepts it.
    """
    try:
        bundle = load_bundle(path)
    except BundleCorrupt:
        return emit_promotion(path, **options)
    found = [*validate(bundle, strict=True), *_contradicting_run(bundle)]
    if found:
        raise EvidenceIncomplete(
            f"{bundle.run_id} is not promoted: {counted(len(found), 'finding')}; first: {found[0].code} in"
            f" {found[0].path} ({found[0].detail})",
            op="promotion emit",
            fix_hints=[f"list all findings: proofbox validate {quote(os.fspath(path))} --strict"],
            details={"findings": msgspec.to_builtins(found[:50])},
        )
    return emit_promotion(bundle, **options)


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
