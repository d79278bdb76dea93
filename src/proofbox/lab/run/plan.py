"""The plan of a run, stored in its ledger: everything a process needs to conduct or resume the run."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from proofbox.agents.registry import installed
from proofbox.agents.settings import RuntimeSettings, model_access
from proofbox.agents.strategies import Chain, parse_chain
from proofbox.config.engine import EngineSettings
from proofbox.config.settings import Settings, load_users
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.digest import sha256_hex
from proofbox.core.files.locks import is_locked
from proofbox.core.ids import IdSource
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.redaction.key_files import with_key_files
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.spec_files.text_files import Unreadable
from proofbox.errors import CorruptError, ProofboxError, RunUnknown, SuiteInvalid
from proofbox.lab.campaign.layout import refuse_campaign
from proofbox.lab.run.ledger import Ledger, PlannedAttempt
from proofbox.lab.suite.checks import LARGEST_PROMPT
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.reading import Suite, parse_suite
from proofbox.lab.suite.spec import Isolation, Mission

if TYPE_CHECKING:
    from proofbox.lab.attempt.context import RunContext

PLAN = "plan"
WORK = ".work"
TEMPLATES = "templates"
LEDGER_SUFFIX = ".ledger"
REFUSED_SUFFIX = ".refused"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run. It contains the names of secrets, never their values."""

    run_id: str
    suite_name: str
    suite_source: str
    suite_json: bool = False
    base: str
    chain: str
    chain_origin: str
    strategy: str | None = None
    """The first strategy of the chain that was usable when the run was planned; None if it was not checked."""
    skipped: dict[str, str] = {}
    """Earlier strategies of the chain that were not usable then, and why."""
    concurrency: int
    isolation: Isolation = "process"
    provider: str | None = None
    replicates: int | None = None
    retries: int = 1
    runtimes: dict[str, dict[str, Any]] = {}
    flags: dict[str, Any] = {}
    box_settings: Settings = Settings()
    """The user's defaults for boxes when the run was planned."""
    engine: EngineSettings = EngineSettings()
    """Where the attempts run."""
    pinned: str | None = None
    """The directory with copies of the files that the suite names, once the run is planned."""
    inputs: dict[str, str] = {}
    """The digest of each of these files, by its name in the suite."""

    @property
    def source_name(self) -> str:
        """The name of the suite file in the run's bundle."""
        return "suite.json" if self.suite_json else "suite.toml"

    def suite(self) -> Suite:
        return parse_suite(
            self.suite_source,
            base=Path(self.base),
            name=self.suite_name,
            json=self.suite_json,
            pinned=None if self.pinned is None else Path(self.pinned),
        )

    def provider_of(self, mission: Mission) -> str | None:
        """Return the provider of a mission's box; None: `auto` selects one."""
        return self.provider or mission.provider or self.box_settings.provider

    def parsed_chain(self) -> Chain:
        return parse_chain(self.chain, self.chain_origin)  # type: ignore[arg-type]

    def runtime_settings(self) -> RuntimeSettings:
        return RuntimeSettings(self.runtimes, self.flags)


def attempts_of(plan: Plan, suite: Suite, lanes: Mapping[str, Sequence[str]]) -> list[PlannedAttempt]:
    """Return the first attempt at every replicate of every mission: each mission once, then each again."""
    counts = {mission.id: plan.replicates or mission.replicates for mission in suite.missions}
    return [
        PlannedAttempt(f"{mission.id}.{replicate}", mission.id, replicate, lane=" ".join(lanes.get(mission.id, ())))
        for replicate in range(1, max(counts.values()) + 1)
        for mission in suite.missions
        if replicate <= counts[mission.id]
    ]


def ledger_path(out: Path, run_id: str) -> Path:
    return out / f"{run_id}{LEDGER_SUFFIX}"


def find_run(place: Path, command: str = "proofbox attempt list") -> tuple[Path, str]:
    """Return the output directory and the id of the run that `place` names by its directory, ledger or output.

    Raises `RunUnknown`. If `place` is a campaign, the hint is the command with the run of one of its flows.
    """
    if place.name in ("", ".."):  # `.` or `..`
        place = place.resolve()
    if place.suffix == ".ledger":
        return place.parent, place.stem
    if ledger_path(place.parent, place.name).exists():
        return place.parent, place.name
    ledgers = sorted(place.glob("*.ledger"), key=lambda each: each.name)
    if not ledgers:
        refuse_campaign(place, command)
        raise RunUnknown(f"no run at {place}", op="suite")
    return place, ledgers[-1].stem


def refused_dir(run_dir: Path) -> Path:
    """Return the directory with bundles from nodes whose attempts had been taken over. They do not count."""
    return Path(f"{run_dir}{REFUSED_SUFFIX}")


def count_refused(run_dir: Path) -> int:
    """Return how many bundles were refused, because their attempts had been taken over."""
    try:
        return len(os.listdir(refused_dir(run_dir)))
    except OSError:
        return 0


def conductor_lock(out: Path, run_id: str) -> Path:
    """Return the lock held by the process that plans, conducts or removes the run."""
    return out / f".{run_id}.conductor"


def is_conducted(out: Path, run_id: str) -> bool:
    """Return whether a process is conducting the run."""
    return is_locked(conductor_lock(out, run_id))


def read_plan(ledger: Ledger) -> Plan:
    try:
        return parse_json(ledger.get_value(PLAN), Plan)
    except msgspec.DecodeError as error:
        raise CorruptError(f"the plan in {ledger.path} is malformed: {error}", op="plan") from None


def plan_digest(plan: Plan) -> str:
    """Return a digest of the whole plan."""
    return sha256_hex(msgspec.json.encode(plan, order="deterministic"))


def box_settings() -> Settings:
    """Return the user's defaults for boxes; those for agents are part of the plan already."""
    return msgspec.structs.replace(load_users(), strategies=(), runtimes={}, engine=None)


def run_context(
    plan: Plan,
    out: Path,
    owner: str,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    env: Mapping[str, str] | None = None,
    mounted: bool = True,
) -> RunContext:
    """Return what the attempts of a run share in one worker.

    `mounted`: attempts at large missions may be mounted over a template, whose manifest is in the run's bundle.
    """
    # Readers of a plan run no attempts.
    from proofbox.lab.attempt.context import RunContext
    from proofbox.lab.attempt.final_tree import share_base
    from proofbox.lab.attempt.sharing import SharedSession
    from proofbox.lab.run.fork_modes import ForkModes
    from proofbox.lab.run.template import Templates

    clock = clock or SystemClock()
    out = out.absolute()
    suite = plan.suite()
    redactor = redactor_of(plan, os.environ if env is None else env)
    shared = plan.isolation == "shared"
    templates = Templates(
        out / WORK / plan.run_id / TEMPLATES,
        owner,
        clock,
        ForkModes(suite, plan.box_settings, plan.provider, shared=shared, on_node=not mounted),
        functools.partial(share_base, run_dir=out / plan.run_id, redactor=redactor),
    )
    return RunContext(
        run_id=plan.run_id,
        run_dir=out / plan.run_id,
        work=out / WORK / plan.run_id,
        suite=suite,
        make_workspace=templates.fork,
        fork_mode=templates.mode,
        shared_base=templates.base,
        chain=plan.parsed_chain(),
        registry=installed(),
        settings=plan.runtime_settings(),
        box_settings=plan.box_settings,
        redactor=redactor,
        provider=plan.provider,
        isolation=plan.isolation,
        clock=clock,
        ids=ids or IdSource(clock),
        shared=SharedSession() if shared else None,
    )


def credential_of(plan: Plan) -> str | None:
    """Return what limits apply to: the endpoint and the name of the variable with its key; None without a model.

    They belong to the strategy that was usable when the run was planned, or else to the first that has a model.
    """
    settings = plan.runtime_settings()
    registry = installed()
    chain = [each.strategy for each in plan.parsed_chain().candidates]
    for strategy in [plan.strategy] if plan.strategy else chain:
        with contextlib.suppress(ProofboxError):  # the attempt reports why its runtime can't be used
            runtime = registry.runtime(strategy)
            if (access := model_access(runtime, settings(runtime))) is not None:
                return access.credential
    return None


def redactor_of(plan: Plan, env: Mapping[str, str]) -> Redactor:
    return Redactor.for_evidence(env, key_names(plan))


def refuse_secrets(plan: Plan, suite: Suite, env: Mapping[str, str], files: SuiteFiles | None = None) -> None:
    """Refuse a suite that contains a secret known to this process, because its text becomes part of the evidence.

    `files` provides its prompts as long as they are not copied.
    """
    texts = [plan.suite_source.encode(), plan.chain.encode(), msgspec.json.encode(suite.missions)]
    for mission in suite.missions:
        with contextlib.suppress(OSError, Unreadable):  # the attempt will report it
            if mission.prompt_file is not None and files is not None:
                texts.append(files.read(files.find(mission.prompt_file), LARGEST_PROMPT).encode())
            elif mission.prompt_file is not None:
                texts.append(suite.at(mission.prompt_file).read_bytes())
    found = secrets_in(texts, key_names(plan), env)
    if found is None:
        return
    raise SuiteInvalid(
        f"the suite contains the value of {', '.join(found)}, but evidence must not contain secrets",
        op="suite",
        fix_hints=[
            "remove it from the suite and its prompts",
            f"if it is not secret: unset {' '.join(found)}",
        ],
        details={"variables": found},
    )


def secrets_in(texts: Sequence[bytes], keys: Sequence[str], env: Mapping[str, str]) -> list[str] | None:
    """Return the variables whose values these texts contain, if the values are secrets: those of `keys`, and of
    variables whose names mark them as secrets. None: the texts contain no secret."""
    if not any(map(Redactor.for_evidence(env, keys).contains_secret, texts)):
        return None
    found = {name: Redactor.for_evidence({name: value}, keys) for name, value in env.items()}
    return [name for name, redactor in sorted(found.items()) if any(map(redactor.contains_secret, texts))]


def key_names(plan: Plan) -> list[str]:
    """Return the names of the variables that hold keys for the run's models."""
    named = [each.get("api_key_env") for each in (*plan.runtimes.values(), plan.flags)]
    usual = [_key_of(plan, each.strategy) for each in plan.parsed_chain().candidates]
    return list(dict.fromkeys(name for name in (*named, *usual) if isinstance(name, str)))


def required_keys(plan: Plan, env: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that a node must have: the key of the run's strategy, and those set here."""
    strategy = plan.strategy or plan.parsed_chain().candidates[0].strategy
    own, names = _key_of(plan, strategy), key_names(plan)
    given = with_key_files(env, names)
    return [name for name in names if name == own or given.get(name)]


def _key_of(plan: Plan, strategy: str) -> str | None:
    """Return the variable that holds the key of a strategy's model."""
    with contextlib.suppress(ProofboxError):  # the attempt reports why its runtime can't be used
        runtime = installed().runtime(strategy)
        access = model_access(runtime, plan.runtime_settings()(runtime))
        return None if access is None else access.api_key_env
    return None
