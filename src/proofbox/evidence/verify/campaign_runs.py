"""The runs of a campaign, whose bundle pins the index of each of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

from proofbox.core.canonical import parse_strict
from proofbox.evidence.bundle.paths import MAX_JSON_BYTES, is_artifact_path, read_bounded
from proofbox.evidence.verify.check import check_bundle
from proofbox.evidence.verify.verification import Verification

RUNS = "runs.json"
"""The artifact of a campaign that names its runs."""


class PinnedRun(NamedTuple):
    """A run of a campaign: its path, relative to the campaign's directory, and the digest of its index."""

    path: str
    index_sha256: str


def pinned_runs(bundle: str) -> list[PinnedRun]:
    """Return the runs that a verified campaign's bundle pins; none for another bundle."""
    try:
        document = parse_strict(read_bounded(os.path.join(bundle, RUNS), MAX_JSON_BYTES))
        return [PinnedRun(str(run["path"]), str(run["index_sha256"])) for run in document["runs"]]
    except (OSError, ValueError, KeyError, TypeError):  # also CanonicalError
        return []


def verify_runs(result: Verification, bundle: str) -> None:
    """Verify the runs of a campaign's bundle, which are below the directory that contains it."""
    out = os.path.realpath(os.path.dirname(os.path.abspath(bundle)))
    for run in pinned_runs(bundle):
        place = os.path.realpath(os.path.join(out, run.path))
        if not is_artifact_path(run.path) or os.path.commonpath([place, out]) != out:
            result.found("run_mismatch", run.path, "the campaign names a run outside its directory")
        elif not os.path.isdir(place):
            result.notes.append(f"the run {run.path} is not here, so it was not checked")
        else:
            checked = check_bundle(place, chains=True)
            result.checked.add(checked.checked)
            result.findings += [
                replace(each, path=f"{run.path}/{each.path}", path_b64=None) for each in checked.findings
            ]
            if checked.index_sha256 != run.index_sha256:
                result.found("run_mismatch", run.path, "the campaign pins another version of this run")
