"""Promotes a run or an attempt, if its evidence passes strict validation."""

from __future__ import annotations

import os
from shlex import quote
from typing import Any

import msgspec

from proofbox.core.words import counted
from proofbox.errors import BundleCorrupt, EvidenceIncomplete
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.promotion.emit import Promotion, emit_promotion
from proofbox.lab.reports.validation import validate


def promote(path: str | os.PathLike[str], **options: Any) -> Promotion:
    """Emit a promotion packet as `emit_promotion` does, for evidence that passes strict validation.

    Raises `EvidenceIncomplete`, and writes nothing, if validation finds anything. A bundle that does not verify is left
    to the policy, which never accepts it.
    """
    try:
        bundle = load_bundle(path)
    except BundleCorrupt:
        return emit_promotion(path, **options)
    found = validate(bundle, strict=True)
    if found:
        raise EvidenceIncomplete(
            f"{bundle.run_id} is not promoted: {counted(len(found), 'finding')}; first: {found[0].code} in"
            f" {found[0].path} ({found[0].detail})",
            op="promotion emit",
            fix_hints=[f"list all findings: proofbox validate {quote(os.fspath(path))} --strict"],
            details={"findings": msgspec.to_builtins(found[:50])},
        )
    return emit_promotion(bundle, **options)
