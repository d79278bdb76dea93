"""The campaigns that were registered by this user: where they are, and with which digest.

`campaign resume` refuses a manifest whose digest is not the one recorded here, `campaign plan` takes its estimates from
earlier results, and `doctor` lists campaigns that can be resumed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Literal

import msgspec

from proofbox.core.dirs import state_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.locks import locked
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.spec_files.text_files import Unreadable, read_text
from proofbox.errors import CampaignChanged
from proofbox.evidence.bundle.paths import INDEX
from proofbox.lab.campaign.layout import MANIFEST
from proofbox.lab.campaign.registration import CampaignManifest, is_running, manifest_digest
from proofbox.lab.reports.campaigns.loading import REPORT, load_campaign
from proofbox.lab.reports.campaigns.results import CampaignResults, FlowReport

SCHEMA: Final = "proofbox.campaign_history/1"
_LARGEST: Final = 64 << 20


class KnownCampaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign that was registered here."""

    campaign: str
    """The campaign's id."""
    run_id: str
    """The id of its bundle."""
    out: str
    """Its directory."""
    path: str
    """The campaign's file."""
    sha256: str
    """The registered digest."""
    manifest_sha256: str = ""
    """The digest of the whole manifest; empty in records of earlier versions."""
    registered_at: str
    """When it was registered, in UTC."""

    @property
    def state(self) -> Literal["committed", "running", "interrupted", "removed"]:
        """Whether its results are final, a process is running it, it can be resumed, or its directory is gone."""
        out = Path(self.out)
        if not (out / MANIFEST).exists():
            return "removed"
        if (out / self.run_id / INDEX).exists():
            return "committed"
        return "running" if is_running(out) else "interrupted"


@stored(SCHEMA, at="STATE/campaigns.json")
class _History(msgspec.Struct, frozen=True, kw_only=True):
    """The campaigns that were registered here, oldest first."""

    schema_version: str = SCHEMA
    campaigns: tuple[KnownCampaign, ...] = ()
    """Those whose directory still exists."""


def remember(manifest: CampaignManifest, out: Path) -> None:
    """Record a campaign, and drop those whose directory is gone."""
    known = KnownCampaign(
        campaign=manifest.campaign,
        run_id=manifest.run_id,
        out=str(out.resolve()),
        path=manifest.path,
        sha256=manifest.sha256,
        manifest_sha256=manifest_digest(manifest),
        registered_at=manifest.registered_at,
    )
    with locked(state_dir() / ".campaigns.lock"):
        kept = tuple(each for each in known_campaigns() if each.state != "removed")
        write_document(_file(), msgspec.json.encode(_History(campaigns=(*kept, known))))


def require_known(manifest: CampaignManifest, out: Path) -> None:
    """Raise `CampaignChanged` unless the manifest is the one that was registered here, with all its content."""
    digest = manifest_digest(manifest)
    known = {each.run_id: each.manifest_sha256 for each in known_campaigns()}
    if digest == known.get(manifest.run_id):
        return
    raise CampaignChanged(
        f"{out / MANIFEST} is not the manifest that was registered here",
        op="campaign",
        details={"registered": known.get(manifest.run_id), "found": digest, "changed": [str(out / MANIFEST)]},
    )


def known_campaigns() -> tuple[KnownCampaign, ...]:
    """Return the recorded campaigns, oldest first. A malformed record counts as empty. Raises `VersionUnknown`."""
    try:
        data = _file().read_bytes()
        require_version(data, SCHEMA, _file())
        return parse_json(data, _History).campaigns
    except (OSError, msgspec.DecodeError):
        return ()


def past_flows(path: Path, past: Path | None = None) -> tuple[FlowReport, ...]:
    """Return the results of the last committed campaign or canary of a file, or of the one in `past`, for estimates.

    Without `past`, they are those that the bundle states: estimates need no verification.
    """
    if past is not None:
        return load_campaign(past).flows
    for each in reversed(known_campaigns()):
        if Path(each.path) == path.resolve():
            with contextlib.suppress(Unreadable, msgspec.DecodeError):
                return parse_json(read_text(Path(each.out, each.run_id, REPORT), _LARGEST), CampaignResults).flows
    return ()


def _file() -> Path:
    return state_dir() / "campaigns.json"
