"""Where a campaign keeps its files, so that commands for runs can tell that they were given a campaign."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Final

from proofbox.errors import RunUnknown

MANIFEST: Final = "campaign.json"
FLOWS: Final = "flows"


def flow_out(out: Path, flow: str) -> Path:
    """Return the output directory of a flow's run."""
    return out / FLOWS / flow


def refuse_campaign(place: Path, command: str) -> None:
    """Raise `RunUnknown` if a campaign is where a run was expected. The hint is the command with the run of a flow."""
    out = place if (place / FLOWS).is_dir() else place.parent  # the campaign's bundle has a copy of the manifest
    if not (place / MANIFEST).is_file() or not (out / FLOWS).is_dir():
        return
    flow = min((each.name for each in (out / FLOWS).iterdir()), default="FLOW")
    raise RunUnknown(
        f"{out} is a campaign, not a run; its runs are in {out / FLOWS}",
        op="campaign",
        fix_hints=[
            f"see the campaign: proofbox campaign report {quote(str(out))}",
            f"name the run of one flow: {command} {quote(str(flow_out(out, flow)))}",
        ],
    )
