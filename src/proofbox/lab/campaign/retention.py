"""Removes an old campaign as a whole: its runs with their stores, its bundle and its manifest.

A campaign that is pinned, published, running or not committed is kept, as is a run. Its runs are never removed one by
one: a campaign without one of its runs proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from proofbox.core.clock import parse_isoformat
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.core.text import path_fields
from proofbox.errors import ProofboxError
from proofbox.evidence.bundle.paths import INDEX, LATEST
from proofbox.evidence.bundle.paths import LOCK as RUNTIME_LOCK
from proofbox.evidence.promotion.packet import SUFFIX
from proofbox.lab.campaign.layout import FLOWS, MANIFEST, flow_out
from proofbox.lab.campaign.registration import (
    LOCK,
    CampaignManifest,
    is_running,
    read_manifest,
)
from proofbox.lab.run.resources import size_of
from proofbox.lab.run.retention import PIN_SUFFIX, RetentionItem, RetentionRules, leftover_work, remove_run


def survey_campaign(out: Path, rules: RetentionRules, now: datetime) -> Iterator[RetentionItem]:
    """Yield the campaign of a directory, if any, and the work directories that killed processes left in it."""
    if not (out / MANIFEST).exists():
        return
    manifest = read_manifest(out)
    size = size_of(out, 1 << 62)
    age = (now - parse_isoformat(manifest.registered_at)).total_seconds()
    why = f"older than {rules.older_than:g} s" if rules.older_than is not None and age > rules.older_than else ""
    if rules.max_bytes is not None and size > rules.max_bytes:
        why = why or "over the size limit"
    stays = _protected(out, manifest, rules)
    free = bool(why) and not stays
    fields = path_fields(os.fspath(out))
    yield RetentionItem(kind="campaign", **fields, bytes=size, free=free, reason=stays or why or "within the limits")
    if not free:
        for place, _ in _runs(out, manifest):
            yield from leftover_work(place)


def collect_campaign(item: RetentionItem) -> RetentionItem:
    """Remove a campaign. Nothing else in its directory is touched."""
    out = item.place
    try:
        with locked(out / LOCK, wait=False):
            left = _remove(out, read_manifest(out))
    except BlockingIOError:
        return msgspec.structs.replace(item, free=False, reason="in use by a process")
    except OSError as error:
        left = f"{path_fields(out.name)['path']}: {error.strerror}"
    except ProofboxError as error:
        left = error.message
    return msgspec.structs.replace(item, left=left)


def _protected(out: Path, manifest: CampaignManifest, rules: RetentionRules) -> str:
    bundle = out / manifest.run_id
    if Path(f"{bundle}{PIN_SUFFIX}").exists():
        return "pinned"
    if is_running(out):
        return "in progress"
    if not (bundle / INDEX).exists() and not rules.include_uncommitted:
        return "it can be resumed"
    if Path(f"{bundle}{SUFFIX}").exists() and not rules.include_promoted:
        return "promoted"
    return ""


def _runs(out: Path, manifest: CampaignManifest) -> Iterator[tuple[Path, str]]:
    """Yield the output directory and the id of each run. Targets of links are not part of the campaign."""
    for run in manifest.runs:
        place = flow_out(out, run.flow)
        if not place.is_symlink() and not place.parent.is_symlink():
            yield place, run.run_id


def _remove(out: Path, manifest: CampaignManifest) -> str:
    """Remove the runs, then the bundle, and the manifest last: until then, `gc` finds what is left."""
    for place, run_id in _runs(out, manifest):
        if left := remove_run(place / run_id):
            return left
    for name in (FLOWS, manifest.run_id, f"{manifest.run_id}{SUFFIX}", LATEST, RUNTIME_LOCK, MANIFEST, LOCK):
        for left_over in remove_tree(out / name):
            return f"{name}/{left_over.path}: {left_over.reason}"
    return ""
