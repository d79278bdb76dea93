"""Checks before the first attempt that every flow can run here. All failures are reported together, each with a fix.

The runtime of each flow works and is compatible, its key is set, the sandbox of each mission starts and enforces what
the mission requests, an exam's oracle cannot be reached from it, and disk space and budget suffice.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from proofbox.config.engine import EngineSettings
from proofbox.core.redaction.key_files import with_key_files
from proofbox.errors import CampaignNotReady, ProofboxError
from proofbox.lab.attempt.mission_box import requested_options
from proofbox.lab.campaign.agent_files import agent_mounts, box_mounts, check_agent_files, runtime_tables
from proofbox.lab.campaign.history import past_flows
from proofbox.lab.campaign.reading import Campaign, oracle_files
from proofbox.lab.run import resources
from proofbox.lab.run.plan import Plan, box_settings
from proofbox.lab.run.running import prepare_run
from proofbox.lab.suite.spec import Mission
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.service import Sandboxes

_SECONDS: Final = 60.0
"""Timeout of a command that only looks for a file."""


class PreflightFailure(msgspec.Struct, frozen=True):
    """Why a flow cannot run here."""

    flow: str
    """The flow's id; empty: the whole campaign."""
    code: str
    """The code of the error."""
    message: str
    fix_hints: tuple[str, ...]


def preflight(campaign: Campaign, out: Path, *, engine: EngineSettings | None = None, consented: bool = True) -> None:
    """Raise `CampaignNotReady` with everything that prevents a flow from running here.

    Runtimes and sandboxes are checked by starting them as the campaign states, which may run any program on this
    machine. So they are checked only if the user has `consented` to everything that the campaign asks for.
    """
    checked = tuple(campaign.suites) if consented else ()
    _refuse(
        [
            *_runtimes(campaign, checked, engine),
            *_sandboxes(campaign, checked, out),
            *_budgets(campaign),
            *_resources(out),
        ]
    )


def preflight_remaining(campaign: Campaign, out: Path, flows: Collection[str], engine: EngineSettings | None) -> None:
    """Raise `CampaignNotReady` with everything that prevents these flows of a registered campaign from running here.

    The budget is not checked: what is registered can no longer be changed.
    """
    if flows:
        _refuse([*_runtimes(campaign, flows, engine), *_sandboxes(campaign, flows, out), *_resources(out)])


def _refuse(failures: Sequence[PreflightFailure]) -> None:
    if not failures:
        return
    first = failures[0]
    more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
    where = f"flow {first.flow}: " if first.flow else ""
    raise CampaignNotReady(
        f"{where}{first.message}{more}",
        op="campaign",
        fix_hints=list(dict.fromkeys(hint for each in failures for hint in each.fix_hints))[:5],
        details={"failures": msgspec.to_builtins(failures)},
    )


def plan_flow(campaign: Campaign, flow_id: str, run_id: str | None, engine: EngineSettings | None = None) -> Plan:
    """Return the plan of a flow's run, after checking that its runtime is usable here. Nothing is written."""
    fields = campaign.document.campaign
    flow = next(each for each in campaign.document.flow if each.id == flow_id)
    runner = flow.runner
    return prepare_run(
        campaign.suites[flow_id],
        name=campaign.path.name,
        as_json=True,
        strategies=f"{runner.type}!",  # a flow never falls back to another agent
        concurrency=fields.concurrency,
        isolation=flow.isolation,
        engine=engine,
        provider=None,
        replicates=fields.replicates,
        retries=fields.retries,
        flags={"model": runner.model, "base_url": runner.base_url, "api_key_env": runner.api_key_env},
        tables=runtime_tables(campaign, runner),
        run_id=run_id,
    )


def _runtimes(campaign: Campaign, flows: Collection[str], engine: EngineSettings | None) -> Iterator[PreflightFailure]:
    for flow in campaign.document.flow:
        if flow.id not in flows:
            continue
        key = flow.runner.api_key_env
        if key is not None and not with_key_files(os.environ, [key]).get(key):
            why = f"the variable {key} is not set"
            yield PreflightFailure(flow.id, "CAMPAIGN_KEY_ABSENT", why, (f"export {key}=..., or {key}_FILE=PATH",))
        try:
            plan = plan_flow(campaign, flow.id, None, engine)
            if not plan.engine.is_local:
                yield from _unpinned_images(flow.id, plan)
        except ProofboxError as error:
            yield _failure(flow.id, error)


def _unpinned_images(flow: str, plan: Plan) -> Iterator[PreflightFailure]:
    """Find images whose name can stand for another image in the engine of a node than the registered one."""
    from proofbox.lab.run.crews.cluster.images import find_images

    for name in find_images(plan).in_engine:
        if "@sha256:" not in name:
            why = f"{name} may be a different image on each node of the cluster"
            hints = (
                f"name it by its digest: {name}@sha256:DIGEST",
                f"or import it: proofbox images import docker:{name} NAME",
            )
            yield PreflightFailure(flow, "CAMPAIGN_IMAGE_UNPINNED", why, hints)


def _sandboxes(campaign: Campaign, flows: Collection[str], out: Path) -> Iterator[PreflightFailure]:
    """Start a box for each combination of provider and policy, and in an exam, look for the oracle from inside."""
    exam = campaign.document.campaign.prompt_mode == "exam"
    tried: set[bytes] = set()
    for flow in flows:
        try:
            mounts = agent_mounts(campaign, flow)
            check_agent_files(campaign, flow, out)
        except ProofboxError as error:
            yield _failure(flow, error)
            continue
        suite, mounted = campaign.suites[flow], [each.host.resolve() for each in (*mounts, *box_mounts())]
        for mission in suite.missions:
            oracle = oracle_files(mission.verify, suite.base, mission.solution) if exam else {}
            for field, path in oracle.items():
                real = path.resolve()
                if any(real.is_relative_to(each) or each.is_relative_to(real) for each in mounted):
                    yield _reachable(
                        flow, mission, field, path, "remove the mount from the campaign's file or from config.toml"
                    )
            policy = (mission.provider, requested_options(mission), mounts, sorted(map(str, oracle.values())))
            key = msgspec.json.encode(policy, enc_hook=str)
            if key in tried:
                continue
            tried.add(key)
            try:
                for field in _reached(mission, mounts, oracle):
                    hint = "move the suite to a directory that no box shows, for example below your home directory"
                    yield _reachable(flow, mission, field, oracle[field], hint)
            except ProofboxError as error:
                yield _failure(flow, error)


def _reachable(flow: str, mission: Mission, field: str, path: Path, hint: str) -> PreflightFailure:
    why = f"mission {mission.id!r}: the agent can read {field} at {path}"
    return PreflightFailure(flow, "CAMPAIGN_ORACLE_REACHABLE", why, (hint,))


def _reached(mission: Mission, mounts: list[Mount], oracle: dict[str, Path]) -> list[str]:
    """Start the agent's box on an empty directory. Return the files of the oracle that exist in it."""
    policy = requested_options(mission)
    policy["mounts"] = mounts
    with (
        tempfile.TemporaryDirectory(prefix="proofbox-preflight-") as empty,
        Sandboxes(Path(empty).resolve(), settings=box_settings()) as boxes,
        boxes.start_session(provider=mission.provider, **policy) as session,
    ):
        session.exec(["true"], timeout=_SECONDS)
        return [
            field
            for field, path in oracle.items()
            if session.exec(["test", "-e", str(path)], timeout=_SECONDS).exit_code == 0
        ]


def _budgets(campaign: Campaign) -> Iterator[PreflightFailure]:
    """Compare the budget gates with what the attempts of earlier results used."""
    earlier = {each.flow: each.tokens.median for each in past_flows(campaign.path) if each.tokens is not None}
    attempts = len(campaign.missions) * campaign.document.campaign.replicates
    for gate in campaign.document.gate:
        for flow, median in earlier.items() if gate.type == "budget" else ():
            likely = median * attempts
            if flow in campaign.suites and gate.flow in (None, flow) and likely > (gate.max or 0.0):
                why = f"about {likely:.0f} tokens are likely, more than the budget of {gate.max:.0f}"
                hints = (f"set max to at least {likely:.0f}", "use fewer replicates or missions")
                yield PreflightFailure(flow, "CAMPAIGN_BUDGET_TOO_SMALL", why, hints)


def _resources(out: Path) -> Iterator[PreflightFailure]:
    above = next(each for each in (out.absolute(), *out.absolute().parents) if each.is_dir())
    if why := resources.reason(above):
        yield PreflightFailure("", "CAMPAIGN_RESOURCES_LOW", why, ("free some, or choose another --out",))


def _failure(flow: str, error: ProofboxError) -> PreflightFailure:
    return PreflightFailure(flow, error.code, error.message, error.fix_hints)
