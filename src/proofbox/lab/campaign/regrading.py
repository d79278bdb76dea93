"""Runs new verifiers on the stored final files of a campaign, without running agents again."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from proofbox.core.digest import sha256_file
from proofbox.core.documents import stored
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.results import Document
from proofbox.errors import CampaignIncomplete, UsageError
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import AttemptRecord
from proofbox.lab.attempt.expectations import refuse_expect
from proofbox.lab.attempt.final_tree import final_of, stored_trees
from proofbox.lab.attempt.mission_box import requested_options
from proofbox.lab.attempt.verifier import check, lay_beside, lay_out
from proofbox.lab.campaign.reading import Campaign, read_campaign
from proofbox.lab.campaign.registration import CampaignManifest, describe, read_manifest, require_consent
from proofbox.lab.campaign.spec import SCHEMA as CAMPAIGN_SCHEMA
from proofbox.lab.reports.campaigns.loading import load_campaign, run_path
from proofbox.lab.reports.results import attempts_by_evidence
from proofbox.lab.reports.totals import final_attempts
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import box_settings
from proofbox.lab.run.running import in_thread
from proofbox.lab.statistics import Comparison, PassRate, compare_all, pass_rate
from proofbox.lab.suite.reading import Suite
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.service import Sandboxes

REGRADE: Final = "regrade.json"
_SPEC: Final = "campaign.toml"
_Path = str | os.PathLike[str]


class RegradedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt with its old and its new result."""

    flow: str
    """The flow's id."""
    attempt_id: str
    mission_id: str
    before: str
    """The result that its bundle states."""
    after: str
    """The result of the new verifier."""
    index_sha256: str
    """The digest of the index of the attempt's bundle."""


@stored("proofbox.campaign_regrade/1", at="BUNDLE/regrade.json of a regraded campaign")
class Regrade(msgspec.Struct, frozen=True, kw_only=True):
    """The results of new verifiers on the final files of a campaign's attempts."""

    schema_version: str = "proofbox.campaign_regrade/1"
    parent: str
    """The id of the campaign's bundle that was regraded."""
    parent_index_sha256: str
    """The digest of that bundle's index."""
    sha256: str
    """The digest of the new campaign file and of everything that it refers to."""
    rates: dict[str, PassRate]
    """The new pass rate of each flow."""
    comparisons: tuple[Comparison, ...]
    """The new paired comparisons."""
    attempts: tuple[RegradedAttempt, ...]
    """Each attempt that had a score."""


class CampaignRegrade(Document, frozen=True, kw_only=True):
    """A campaign that was regraded."""

    schema: str = "proofbox.campaign_regraded/1"
    bundle: str
    """The new bundle, which names its parent."""
    changed: int
    """The number of attempts whose result changed."""
    regrade: Regrade
    """The new results."""


def regrade_campaign(campaign: _Path, spec: _Path, *, out: _Path = "regraded", trust: bool = False) -> CampaignRegrade:
    """Verify the final files of a committed campaign with the verifiers of another campaign file.

    For example:

        done = proofbox.regrade_campaign("out", "stricter.toml", out="regraded")
        print(done.changed, done.regrade.rates)

    `campaign` is the campaign's directory. The file must have its flows and missions; only `verify` of the missions is
    used, so missions with `expect` are refused. The results are a new bundle in `out` that names its parent; the
    campaign itself stays as it is. Raises `StepFilesGone` if the files are not on this machine.
    """
    place = Path(campaign)
    report, manifest = load_campaign(place), read_manifest(place)
    if not report.committed or report.findings:
        raise CampaignIncomplete(f"{campaign} is not committed, or its evidence has findings", op="campaign regrade")
    new = read_campaign(Path(spec), first=manifest.canary)
    _require_same_design(new, manifest)
    words = ("proofbox", "campaign", "regrade", str(place), os.fspath(spec), "--out", os.fspath(out), "--trust")
    require_consent(new, trust=trust, command=shlex.join(words))
    described = describe(new, Path(out))
    redactor = Redactor.for_evidence(os.environ, new.document.key_names)
    with tempfile.TemporaryDirectory(prefix="proofbox-regrade-") as scratch:
        attempts = [
            each
            for run in manifest.runs
            for each in _flow(place / run_path(run), run.flow, new.suites[run.flow], Path(scratch), redactor)
        ]
    scores = {run.flow: _scores(attempts, run.flow) for run in manifest.runs}
    fields = new.document.campaign
    options = {"margin": fields.margin, "alpha": fields.alpha}
    comparisons = compare_all(scores, **options, seed=fields.seed, against=fields.against) if len(scores) > 1 else []
    regrade = Regrade(
        parent=manifest.run_id,
        parent_index_sha256=sha256_file(Path(report.bundle) / INDEX)[0],
        sha256=described.sha256,
        rates={flow: pass_rate(list(found.values())) for flow, found in scores.items()},
        comparisons=tuple(comparisons),
        attempts=tuple(attempts),
    )
    with BundleWriter.create(out, expected=(_SPEC, REGRADE), redactor=redactor) as bundle:
        bundle.write_bytes(_SPEC, new.source.encode(), schema_version=CAMPAIGN_SCHEMA)
        bundle.write_json(REGRADE, msgspec.to_builtins(regrade))
    changed = sum(each.before != each.after for each in attempts)
    return CampaignRegrade(bundle=str(bundle.path), changed=changed, regrade=regrade)


def _require_same_design(new: Campaign, manifest: CampaignManifest) -> None:
    flows = tuple(run.flow for run in manifest.runs)
    if tuple(new.suites) != flows or new.missions != manifest.missions:
        raise UsageError(f"{new.path} has different flows or missions than the campaign", op="campaign regrade")
    refuse_expect((mission for suite in new.suites.values() for mission in suite.missions), "campaign regrade")


def _flow(run_dir: Path, flow: str, suite: Suite, scratch: Path, redactor: Redactor) -> list[RegradedAttempt]:
    run = load_bundle(run_dir)
    attempts, _ = attempts_by_evidence(run)
    return [
        RegradedAttempt(
            flow=flow,
            attempt_id=each.id,
            mission_id=each.mission,
            before=each.result.verified,
            after=_verified(each, run.nested[each.path], suite, scratch / flow / str(each.number), redactor),
            index_sha256=each.result.index_sha256,
        )
        for each in final_attempts(attempts)
        if each.result is not None and each.result.infra is None and each.result.verified != "none"
    ]


def _verified(attempt: Attempt, bundle: Bundle, suite: Suite, place: Path, redactor: Redactor) -> str:
    mission = suite.mission(attempt.mission)
    found = final_of(artifacts.read_document(bundle, artifacts.ATTEMPT, AttemptRecord))
    files = None if mission.verify.files is None else suite.at(mission.verify.files)
    place.mkdir(parents=True)
    with (
        stored_trees(found, attempt.id, "campaign regrade") as trees,
        lay_out(trees, found.given, found.snapshot, mission.verify, files, place / "verified"),
    ):
        pass  # a copy, which stays
    beside = lay_beside(mission.verify, suite.at, place / "beside")
    policy = requested_options(mission)
    if mission.workdir is not None:
        policy["mounts"] = [Mount(place / "verified", mission.workdir, writable=True)]
    with Sandboxes(place / "verified", settings=box_settings()) as boxes:
        result = check(boxes, mission.verify, redactor, provider=mission.provider, policy=policy, beside=beside)
    return {True: "passed", False: "failed", None: "none"}[result.passed]


def _scores(attempts: list[RegradedAttempt], flow: str) -> Mapping[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for each in attempts:
        if each.flow == flow and each.after != "none":
            passed, scored = found.get(each.mission_id, (0, 0))
            found[each.mission_id] = (passed + (each.after == "passed"), scored + 1)
    return found


regrade_campaign_async = in_thread(
    regrade_campaign,
    stoppable=False,
    doc="""Verify the final files of a campaign like `regrade_campaign`, without blocking the event loop.

    For example:

        done = await proofbox.regrade_campaign_async("out", "stricter.toml", out="regraded")

    If the task is cancelled, the bundle is committed in the background nevertheless.
    """,
)
