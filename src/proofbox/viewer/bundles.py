"""The pages of plan runs, deliveries and other bundles: what is in them, and whether it matches the index."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec

from proofbox.evidence.bundle.paths import INDEX
from proofbox.viewer.reading import OpenedEvidence, tables

MAX_ARTIFACTS: Final = 500
_SHOWN: Final = {
    "delivery": ("delivery.json", "request.json", "answer.json"),
    "plan_run": ("run_manifest.json",),
    "bundle": ("campaign.json", "report.json", "summary.json"),
}
MAX_RESULTS: Final = 2000


def bundle_values(evidence: OpenedEvidence, kind: str) -> dict[str, Any]:
    """Return what the page of a bundle shows."""
    artifacts = [] if evidence.bundle is None else list(evidence.bundle.artifacts.values())
    probes = _probes(evidence) if kind == "plan_run" else []
    return {
        "evidence": evidence,
        "kind": kind,
        "id": evidence.path.name if evidence.bundle is None else evidence.bundle.run_id,
        "status": "in progress" if evidence.bundle is None else evidence.bundle.index.status,
        "artifacts": [each for each in artifacts[:MAX_ARTIFACTS] if not each.path.endswith(INDEX)],
        "more_artifacts": max(0, len(artifacts) - MAX_ARTIFACTS),
        "documents": [
            (name, msgspec.json.format(msgspec.json.encode(document)).decode())
            for name in _SHOWN.get(kind, ())
            if (document := evidence.document(name))
        ],
        "probes": probes[:MAX_RESULTS],
        "tally": sorted(Counter(_probe_outcome(each) for each in probes).items()),
        "bundle": "",
    }


def _probes(evidence: OpenedEvidence) -> list[dict[str, Any]]:
    found = tables(evidence.document("runtime_results.json").get("results"))
    return [{**each, "outcome": _probe_outcome(each)} for each in found]


def _probe_outcome(result: dict[str, Any]) -> str:
    if result.get("matched"):
        return "passed"
    return "unverified" if result.get("explained") else "failed"
