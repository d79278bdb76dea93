"""Reads the flows of a large campaign in child processes: each uses a core, and needs no garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from proofbox.core.interpreter import module_child
from proofbox.evidence.pool import in_threads
from proofbox.lab.campaign.registration import CampaignManifest, read_manifest
from proofbox.lab.reports.campaigns.efforts import Efforts
from proofbox.lab.reports.campaigns.results import FlowReport
from proofbox.lab.reports.finding import EvidenceFinding

LARGE: Final = 2000
"""The number of planned results above which starting a process saves time."""


class FlowResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a flow, and what is wrong with its evidence."""

    report: FlowReport
    scores: dict[str, tuple[int, int]]
    """By mission: the attempts that passed, and those that passed or failed."""
    efforts: Efforts
    """By measure and mission: the mean over the attempts that passed or failed."""
    findings: tuple[EvidenceFinding, ...]


def read_flows(
    out: Path, manifest: CampaignManifest, planned: int, read: Callable[[str], FlowResults]
) -> Sequence[FlowResults]:
    """Return the results of every flow. `read` reads one; it is called in child processes if the campaign is large."""
    flows = [run.flow for run in manifest.runs]
    if planned < LARGE:
        return [read(flow) for flow in flows]
    return in_threads(lambda flow: _in_child(out, flow) or read(flow), flows, batch=1)


def _in_child(out: Path, flow: str) -> FlowResults | None:
    """Return what a child process reads; None if it fails, so that the failure is found and raised here."""
    child = module_child(__name__, str(out.resolve()), flow)
    done = subprocess.run(child.argv, cwd=child.cwd, env=child.env, capture_output=True, check=False)
    if done.returncode != 0:
        return None
    return msgspec.json.decode(done.stdout, type=FlowResults)


def main(argv: Sequence[str]) -> None:
    from proofbox.lab.reports.campaigns.loading import read_flow  # which itself uses this module

    gc.disable()  # nearly all objects are used until the end; collecting would visit them again and again
    out, flow = argv
    sys.stdout.buffer.write(msgspec.json.encode(read_flow(Path(out), read_manifest(Path(out)), flow)))


if __name__ == "__main__":
    main(sys.argv[1:])
