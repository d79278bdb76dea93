"""`run_plan`: measure a sandbox by a plan, and commit the measurement as evidence."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import msgspec

from proofbox.config import consent
from proofbox.config.consent import Widening
from proofbox.config.settings import Settings, load
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.size import megabytes
from proofbox.errors import UsageError
from proofbox.evidence.bundle.lock import Mode
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.probes import artifacts, documents
from proofbox.probes.adapters import ADAPTERS, command_line
from proofbox.probes.measuring import MeasuredPlan, Progress
from proofbox.probes.measuring_process import MeasureRequest, measure_clean, measure_here
from proofbox.probes.reading import LoadedPlan, load_plan
from proofbox.sandbox.probing.judging import judge, rule_on
from proofbox.sandbox.probing.lanes import LaneResult
from proofbox.sandbox.probing.operations import skipped
from proofbox.sandbox.probing.plan import ProbePlan
from proofbox.sandbox.probing.results import ProbeResult, unexplained

Channel = Literal["direct", "clean"]


class PlanRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was run, or with `dry`, one that would be."""

    run_id: str
    path: Path | None
    """The bundle; None for a dry run."""
    plan_id: str
    plan_digest: str
    summary: documents.PlanSummary
    results: tuple[ProbeResult, ...]

    @property
    def ok(self) -> bool:
        """No mismatch is unexplained."""
        return self.summary.ok

    @property
    def unexplained(self) -> list[ProbeResult]:
        return unexplained(list(self.results))


def run_plan(
    plan: str | os.PathLike[str] | LoadedPlan,
    out: str | os.PathLike[str],
    *,
    provider: str | None = None,
    adapter: str | None = None,
    image: str | None = None,
    channel: Channel = "clean",
    only_profiles: Sequence[str] = (),
    only_probes: Sequence[str] = (),
    dry: bool = False,
    trust: bool = False,
    lock_mode: Mode = "fail",
    lock_timeout: float = 30.0,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> PlanRun:
    """Run the probes of a plan in a sandbox and without one, and commit the results as a bundle in `out`.

    For example:

        run = proofbox.run_plan("bubblewrap", "out")
        for result in run.unexplained:
            print(result.probe_id, result.mismatch, result.detail)

    `plan` is the id of a built-in plan or a file. `provider` and `image` replace the profiles' own; `adapter` is the
    command line of a foreign sandbox with `{command}` in it. With `dry`, nothing is run or written. Raises
    `PlanInvalid`, `PlanUnknown`, `ConsentRequired` for a plan that asks for more than your settings allow, and
    `BundleLocked` if another run writes to `out`. A mismatch is a result, not an error.
    """
    loaded = plan if isinstance(plan, LoadedPlan) else load_plan(plan)
    if provider is not None and adapter is not None:
        raise UsageError("give either a provider or an adapter", op="plan run")
    name = adapter or ""
    if adapter is not None:
        adapter = command_line(adapter, image)
    if adapter is not None and "{command}" not in adapter:
        hints = [f"use {', '.join(ADAPTERS)}, or a command line with {{command}} in it"]
        raise UsageError(f"the adapter {adapter!r} has no {{command}}", op="plan run", fix_hints=hints)
    chosen = select(loaded.plan, only_profiles, only_probes)
    if image is not None:
        profiles = tuple(msgspec.structs.replace(profile, image=image) for profile in chosen.profile)
        chosen = msgspec.structs.replace(chosen, profile=profiles)
    if adapter is None:
        _require_consent(loaded, chosen, provider, trust=trust)
    clock = clock or SystemClock()
    redactor = Redactor.from_environment(os.environ)
    name = redactor.redact(name) or provider or ", ".join(sorted({p.provider or "auto" for p in chosen.profile}))
    if dry:
        return PlanRun(
            run_id="",
            path=None,
            plan_id=loaded.plan.id,
            plan_digest=loaded.digest,
            summary=artifacts.summary(chosen, name, ()),
            results=(),
        )
    writer = BundleWriter.create(
        out,
        expected=documents.EXPECTED,
        lock=lock_mode,
        lock_timeout=lock_timeout,
        redactor=Redactor.for_evidence(os.environ),
        clock=clock,
    )
    with writer as bundle:
        started = isoformat(clock.now())
        bundle.stage = "measuring"
        request = MeasureRequest(chosen, provider, adapter)
        measured = (measure_clean if channel == "clean" else measure_here)(request, progress or (lambda *_: None))
        measured = _redacted(measured, redactor)
        results = judge(chosen.probe, measured.scenario, measured.baseline)
        found = artifacts.preflight(chosen, measured, results)
        manifest = documents.RunManifest(
            run_id=writer.run_id,
            plan_id=loaded.plan.id,
            plan_digest=loaded.digest,
            channel="spawn_clean" if channel == "clean" and found.channel.clean else "direct",
            provider=name,
            adapter=None if adapter is None else redactor.redact(adapter),
            proofbox=version("proofbox"),
            kernel=platform.release(),
            machine=platform.machine(),
            driver_sha256=measured.driver_sha256,
            started_at=started,
            profiles=tuple(profile.id for profile in chosen.profile),
            probes=len(results),
            selected=bool(only_profiles or only_probes),
        )
        summary = _write(bundle, loaded, chosen, manifest, found, measured, results)
    return PlanRun(
        run_id=writer.run_id,
        path=writer.path,
        plan_id=loaded.plan.id,
        plan_digest=loaded.digest,
        summary=summary,
        results=tuple(results),
    )


def select(plan: ProbePlan, profiles: Sequence[str], probes: Sequence[str]) -> ProbePlan:
    """Return the plan with only these profiles and probes, plus the controls."""
    known = {"profile": {each.id for each in plan.profile}, "probe": {each.id for each in plan.probe}}
    for kind, wanted in (("profile", profiles), ("probe", probes)):
        unknown = sorted(set(wanted) - known[kind])
        if unknown:
            raise UsageError(
                f"the plan has no {kind} {', '.join(unknown)}",
                op="plan run",
                fix_hints=["see: proofbox plan show PLAN"],
            )
    kept = tuple(each for each in plan.profile if not profiles or each.id in profiles)
    ids = {each.id for each in kept}
    return msgspec.structs.replace(
        plan,
        profile=kept,
        probe=tuple(
            each
            for each in plan.probe
            if (not probes or each.id in probes or each.control) and (not each.profiles or ids & set(each.profiles))
        ),
    )


def widenings(plan: ProbePlan, users: Settings, *, provider: str | None) -> list[Widening]:
    """Return what a plan asks for beyond the user's own settings."""
    found = []
    for profile in plan.profile:
        asked = Settings(
            provider=None if provider is not None else profile.provider,
            network=profile.network,
            cpus=profile.cpus,
            memory=None if profile.memory is None else megabytes(profile.memory, "memory"),
            pids=profile.pids,
        ).widening(users)
        found += [Widening(text, profile.id) for text in asked]
        if profile.image is not None and profile.image != users.image:
            found.append(Widening(f"image = {msgspec.json.encode(profile.image).decode()}", profile.id))
    return found


def _require_consent(loaded: LoadedPlan, plan: ProbePlan, provider: str | None, *, trust: bool) -> None:
    if loaded.path is None:
        return  # built in: its boxes hold decoys only
    asked = widenings(plan, load(Path("/")), provider=provider)
    if trust:
        consent.agree(loaded.path, asked)
    consent.require(loaded.path, asked, command=f"proofbox plan run {quote(str(loaded.path))} --trust")


def _redacted(measured: MeasuredPlan, redactor: Redactor) -> MeasuredPlan:
    """Remove secrets from an adapter's command line and from what it printed, which become evidence."""

    def clean(lane: LaneResult) -> LaneResult:
        observations = tuple(
            msgspec.structs.replace(each, problem=redactor.redact(each.problem)) if each.problem else each
            for each in lane.observations
        )
        provider, problem = redactor.redact(lane.provider), redactor.redact(lane.problem)
        return msgspec.structs.replace(lane, observations=observations, provider=provider, problem=problem)

    lanes = tuple(clean(lane) for lane in measured.scenario)
    return msgspec.structs.replace(measured, scenario=lanes, baseline=clean(measured.baseline))


def _write(
    bundle: BundleWriter,
    loaded: LoadedPlan,
    plan: ProbePlan,
    manifest: documents.RunManifest,
    found: documents.ApplyPreflight,
    measured: MeasuredPlan,
    results: list[ProbeResult],
) -> documents.PlanSummary:
    summary = artifacts.summary(plan, manifest.provider, results)
    probes = {probe.id: probe for probe in plan.probe}
    baseline = [
        documents.BaselineResult(probe_id=each.probe, decision=ruling.decision, detail=ruling.detail)
        for each in measured.baseline.observations
        for ruling in [rule_on(probes[each.probe], each)]
    ]
    baseline += [
        documents.BaselineResult(probe_id=probe.id, decision="skipped", detail=skipped(probe))
        for probe in plan.probe
        if skipped(probe)
    ]
    bundle.write_json("plan.json", _json(loaded.plan))
    bundle.write_json("run_manifest.json", _json(manifest))
    bundle.write_json("apply_preflight.json", _json(found))
    bundle.write_json("expected_matrix.json", _json(artifacts.expected_matrix(plan)))
    bundle.write_json("runtime_results.json", _json(documents.RuntimeResults(results=tuple(results))))
    bundle.write_json("runtime_events.normalized.json", _json(artifacts.runtime_events(measured)))
    bundle.write_json("baseline_results.json", _json(documents.BaselineResults(results=tuple(baseline))))
    bundle.write_json("oracle_results.json", _json(artifacts.oracle_results(measured)))
    bundle.write_json("mismatch_summary.json", _json(artifacts.mismatch_summary(results)))
    packets = [msgspec.json.encode(result) + b"\n" for result in results if not result.matched]
    bundle.write_bytes("mismatch_packets.jsonl", b"".join(packets))
    bundle.write_json("path_witnesses.json", artifacts.path_witnesses(measured))
    bundle.write_json("summary.json", _json(summary))
    bundle.write_bytes("summary.md", artifacts.markdown(summary, results).encode())
    return summary


def _json(document: Any) -> Mapping[str, Any]:
    built: Mapping[str, Any] = msgspec.to_builtins(document)
    return built
