"""Registers a campaign before its first attempt: a digest of the file and of everything that it refers to.

out/campaign.json          the manifest: what was registered, and the run of each flow
out/flows/<flow>/          the output directory of each flow's run, with its ledger and bundle
out/<campaign run id>/     the campaign's bundle, written when all runs are committed
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Final

import msgspec

from proofbox.config import consent
from proofbox.config.consent import Widening
from proofbox.config.settings import Settings, load, toml_value
from proofbox.core.clock import Clock, SystemClock, isoformat, parse_isoformat
from proofbox.core.digest import digest_of
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import create_only
from proofbox.core.files.locks import is_locked, locked
from proofbox.core.ids import IdSource, is_id
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.spec_files.positions import read_toml
from proofbox.core.spec_files.text_files import Unreadable, read_text
from proofbox.errors import CampaignChanged, CampaignExists, CampaignUnknown, CorruptError, RunBusy
from proofbox.lab.campaign.agent_files import AGENT_FILE, digest_agent_files, skipped
from proofbox.lab.campaign.layout import MANIFEST
from proofbox.lab.campaign.reading import Campaign
from proofbox.lab.campaign.spec import CampaignDocument, Runner
from proofbox.lab.run.plan import box_settings
from proofbox.lab.run.running import merged_tables
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.pinning import digest_inputs
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Name
from proofbox.lab.suite.widening import widenings
from proofbox.sandbox.containers.images import image_digest
from proofbox.sandbox.images.catalogue import resolve_default_image

SCHEMA: Final = "proofbox.campaign_manifest/1"
IMAGE: Final = "image://"
"""What the name of an image starts with among the inputs of a flow."""
SETTINGS: Final = "settings://config.toml"
"""The name of the user's settings among the inputs of a flow."""
LOCK: Final = ".campaign.lock"
_MAX_BYTES: Final = 64 << 20


class FlowRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one flow."""

    flow: str
    """The flow's id."""
    run_id: str
    """The run's id, chosen before it is planned."""
    strategy: str
    """The strategy that the flow names."""
    model: str | None
    """The model that the flow names; null: the strategy's own."""
    suite_sha256: str
    """The digest of the flow's suite: missions with templates, oracles and boxes."""
    inputs: dict[str, str]
    """The digest of each file that the suite refers to, by path, of each image that its boxes use, as `image://NAME`,
    of each file or directory that its agent's box mounts read-only, as `agent://PATH`, and of the user's settings for
    its strategy and for boxes, as `settings://config.toml`."""

    @property
    def files(self) -> dict[str, str]:
        """The inputs that are files of the suite."""
        return {
            path: digest for path, digest in self.inputs.items() if not path.startswith((IMAGE, SETTINGS, AGENT_FILE))
        }


@stored(SCHEMA, at="OUT/campaign.json, and BUNDLE/campaign.json of a campaign")
class CampaignManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was registered before the first attempt of a campaign."""

    schema_version: str = SCHEMA
    campaign: str
    """The campaign's id."""
    run_id: str
    """The id of the campaign's bundle."""
    sha256: str
    """The registered digest: of the campaign file's content and of everything that it refers to."""
    path: str
    """The campaign's file."""
    source: str
    """The text of the campaign's file."""
    registered_at: str
    """When it was registered, in UTC."""
    canary: int | None = None
    """The number of missions of a canary, which is never publishable; null: the whole campaign."""
    missions: tuple[str, ...]
    """The ids of the missions."""
    runs: tuple[FlowRun, ...]
    """The run of each flow."""

    @property
    def document(self) -> CampaignDocument:
        """The campaign's file."""
        return msgspec.convert(read_toml(self.source)[0], CampaignDocument)

    def run(self, flow: str) -> FlowRun:
        return next(each for each in self.runs if each.flow == flow)


def is_running(out: Path) -> bool:
    """Return whether a process is running the campaign in a directory."""
    return is_locked(out / LOCK)


@contextlib.contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Lock a campaign for the process that runs it. Raises `RunBusy`."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(out / LOCK, wait=False))
        except BlockingIOError:
            raise RunBusy(f"another process is running the campaign in {out}", op="campaign") from None
        yield


def describe(
    campaign: Campaign, out: Path, *, canary: int | None = None, clock: Clock | None = None
) -> CampaignManifest:
    """Return the manifest of a campaign as its files are now, with new run ids."""
    ids = IdSource(clock or SystemClock())
    skip = skipped(out)
    runs, settings = [], load(Path().resolve())
    for flow in campaign.document.flow:
        suite = campaign.suites[flow.id]
        with SuiteFiles(suite.base) as files:
            inputs = digest_inputs(suite, files, skip) | _digest_images(suite)
        inputs |= digest_agent_files(campaign, flow.id, out)
        inputs[SETTINGS] = settings_digest(merged_tables(settings, {}), box_settings(), flow.runner)
        runs.append(
            FlowRun(
                flow=flow.id,
                run_id=ids.new_id("run"),
                strategy=flow.runner.type,
                model=flow.runner.model,
                suite_sha256=suite.sha256,
                inputs=inputs,
            )
        )
    return CampaignManifest(
        campaign=campaign.id,
        run_id=ids.new_id("campaign"),
        sha256=registered_digest(campaign.document, canary, runs),
        path=str(campaign.path),
        source=campaign.source,
        registered_at=isoformat((clock or SystemClock()).now()),
        canary=canary,
        missions=campaign.missions,
        runs=tuple(runs),
    )


def _digest_images(suite: Suite) -> dict[str, str]:
    """Return the digest of each image that the boxes of a suite use. A box of `docker` always has an image."""
    users = box_settings().image
    names = {
        each.image or users or (resolve_default_image().name if each.provider == "docker" else None)
        for each in suite.missions
    }
    return {f"{IMAGE}{name}": image_digest(name, suite.base) for name in sorted(filter(None, names))}


def require_unchanged(campaign: Campaign, registered: CampaignManifest, out: Path) -> None:
    """Raise `CampaignChanged` if an image or a mounted file, which no run has a copy of, is not the registered one."""
    for run in registered.runs:
        used = {path: digest for path, digest in run.inputs.items() if path.startswith((IMAGE, AGENT_FILE))}
        found = _digest_images(campaign.suites[run.flow]) | digest_agent_files(campaign, run.flow, out)
        if changed := sorted(_differing(used, found)):
            raise CampaignChanged(
                f"the images or mounts that {registered.path} was registered with have changed:"
                f" {', '.join(changed[:5])}",
                op="campaign",
                details={"registered": registered.sha256, "changed": changed},
            )


def registered_digest(document: CampaignDocument, canary: int | None, runs: Sequence[FlowRun]) -> str:
    """Return the digest of a campaign's content and of everything that it refers to."""
    flows = {each.flow: {"suite": each.suite_sha256, "inputs": each.inputs} for each in runs}
    return digest_of({"spec": msgspec.to_builtins(document), "canary": canary, "flows": flows})


def settings_digest(tables: Mapping[str, Mapping[str, Any]], boxes: Settings, runner: Runner) -> str:
    """Return the digest of the user's settings that apply to a flow, without the values of secrets.

    Settings that the campaign states itself are part of its file. `tables` are the settings of all runtimes.
    """
    table = tables.get(runner.type, {})
    agent = {name: value for name, value in table.items() if name not in runner.settings}
    defaults = {name: value for name, value in msgspec.to_builtins(boxes).items() if value not in (None, [], (), {})}
    return digest_of(Redactor.for_evidence({}).redact_json({"agent": agent, "boxes": defaults}))


def manifest_digest(manifest: CampaignManifest) -> str:
    """Return the digest of a whole manifest, with the ids of its runs; the campaign's file may have been moved."""
    return digest_of(msgspec.to_builtins(msgspec.structs.replace(manifest, path="")))


def refuse_existing(out: Path) -> None:
    """Raise `CampaignExists` if the directory has a campaign."""
    if (out / MANIFEST).exists():
        raise CampaignExists(
            f"{out} has a campaign already",
            op="campaign",
            fix_hints=[f"resume it: proofbox campaign resume {quote(str(out))}", "choose another --out"],
        )


def register(manifest: CampaignManifest, out: Path) -> None:
    """Write the manifest. A file that exists is never replaced."""
    create_only(out / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


def read_manifest(out: Path) -> CampaignManifest:
    """Read the manifest of the campaign in a directory. Raises `CampaignUnknown`."""
    path = out / MANIFEST
    try:
        data = read_text(path, _MAX_BYTES).encode()
    except Unreadable:
        raise CampaignUnknown(f"there is no campaign in {out}", op="campaign") from None
    require_version(data, SCHEMA, path)
    try:
        manifest = parse_json(data, CampaignManifest)
        _check_names(manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptError(f"{path} is malformed: {error}", op="campaign") from None
    return manifest


def _check_names(manifest: CampaignManifest) -> None:
    """Raise `ValueError` unless all names that become parts of paths, and the time of registration, are valid.

    A manifest may come from a stranger, and `gc` removes what it names.
    """
    ids = [("campaign", manifest.run_id), *(("run", each.run_id) for each in manifest.runs)]
    for prefix, id in ids:
        if not is_id(id, prefix):
            raise ValueError(f"{id[:80]!r} is not the id of a {prefix}")
    names = (manifest.campaign, *(each.flow for each in manifest.runs), *manifest.missions)
    msgspec.convert(names, tuple[Name, ...])
    parse_isoformat(manifest.registered_at)


def require_registered(found: CampaignManifest, registered: CampaignManifest) -> None:
    """Raise `CampaignChanged` unless the files are those that were registered."""
    if found.sha256 == registered.sha256:
        return
    before, now = ({each.flow: each for each in manifest.runs} for manifest in (registered, found))
    changed = sorted(
        {path for flow in before.keys() & now for path in _differing(before[flow].inputs, now[flow].inputs)}
    )
    if before.keys() != now.keys() or any(before[flow].suite_sha256 != now[flow].suite_sha256 for flow in before):
        changed.insert(0, "the missions or flows")
    known = {path for run in registered.runs for path in run.inputs}
    if changed and all(path.startswith((SETTINGS, AGENT_FILE)) and path not in known for path in changed):
        raise CampaignChanged(
            f"{registered.path} was registered by an earlier version, which did not hash {', '.join(changed[:5])}:"
            " its results can be read, but it cannot be resumed",
            op="campaign",
            fix_hints=["start a new campaign: proofbox campaign run FILE --out NEW"],
            details={"registered": registered.sha256, "found": found.sha256, "changed": changed},
        )
    raise CampaignChanged(
        f"{registered.path} was registered as {registered.sha256[:12]} and is now {found.sha256[:12]};"
        f" changed: {', '.join(changed[:5]) or 'the campaign file'}",
        op="campaign",
        details={"registered": registered.sha256, "found": found.sha256, "changed": changed or [registered.path]},
    )


def _differing(a: Mapping[str, str], b: Mapping[str, str]) -> set[str]:
    return {path for path in a.keys() | b.keys() if a.get(path) != b.get(path)}


def require_consent(campaign: Campaign, *, trust: bool, command: str) -> None:
    """Raise `ConsentRequired` unless the user has consented to all requests; `trust` is that consent.

    `command` is the command line that records the consent.
    """
    asked = requests(campaign)
    if trust and asked:
        consent.agree(campaign.path, asked)
    if asked:
        consent.require(campaign.path, asked, command=command)


def requests(campaign: Campaign) -> tuple[Widening, ...]:
    """Return what a campaign asks for beyond the user's settings: requests of missions, and settings of runtimes."""
    found: set[Widening] = set()
    for flow in campaign.document.flow:
        suite = campaign.suites[flow.id]
        with SuiteFiles(suite.base) as files:
            found |= set(widenings(suite, files, box_settings(), provider=None))
        found |= {Widening(text, flow.id) for text in _settings(flow.runner)}
    return tuple(sorted(found))


def _settings(runner: Runner) -> Iterator[str]:
    """Yield the settings of a runtime that name programs, files, endpoints and keys."""
    named = {"base_url": runner.base_url, "api_key_env": runner.api_key_env, **runner.settings}
    for name, value in named.items():
        if value is not None:
            yield f"{name} = {toml_value(value)} of {runner.type}"
