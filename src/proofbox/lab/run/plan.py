"""What a run is to do, as its ledger keeps it: enough for any process, now or after a crash, to go on with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proofbox.agents.registry import installed
from proofbox.agents.settings import RuntimeSettings
from proofbox.agents.strategies import Chain, parse_chain
from proofbox.config.settings import Settings, load_users
from proofbox.core.clock import Clock, SystemClock
from proofbox.core.digest import sha256_hex
from proofbox.core.files.locks import locked
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import SuiteInvalid
from proofbox.lab.attempt.context import RunContext
from proofbox.lab.attempt.sharing import SharedSession
from proofbox.lab.run.ledger import Ledger, PlannedAttempt
from proofbox.lab.run.template import Templates
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.meaning import LARGEST_PROMPT
from proofbox.lab.suite.reading import Suite, parse_suite
from proofbox.lab.suite.spec import Isolation
from proofbox.lab.suite.text_files import Unreadable

PLAN = "plan"
WORK = ".work"
TEMPLATES = "templates"
STORES = "stores"
LEDGER_SUFFIX = ".ledger"

SHORTEST_SECRET = 8


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Of secrets it holds the names alone."""

    run_id: str
    suite_name: str
    suite_source: str
    suite_json: bool = False
    base: str
    chain: str
    chain_origin: str
    strategy: str | None = None
    """The first of the chain that could be used when the run was planned; None: that was not asked."""
    skipped: dict[str, str] = {}
    """Strategies of the chain before it that could not be used then, and why."""
    concurrency: int
    isolation: Isolation = "process"
    provider: str | None = None
    replicates: int | None = None
    retries: int = 1
    runtimes: dict[str, dict[str, Any]] = {}
    flags: dict[str, Any] = {}
    box_settings: Settings = Settings()
    """The user's own defaults for boxes, as they were when the run was planned."""
    pinned: str | None = None
    """Where copies of what the suite names are, once the run is planned."""
    inputs: dict[str, str] = {}
    """Of each of them, by the name it has in the suite, the digest."""

    @property
    def source_name(self) -> str:
        """What the suite's file is called in the run's bundle."""
        return "suite.json" if self.suite_json else "suite.toml"

    def suite(self) -> Suite:
        return parse_suite(
            self.suite_source,
            base=Path(self.base),
            name=self.suite_name,
            json=self.suite_json,
            pinned=None if self.pinned is None else Path(self.pinned),
        )

    def parsed_chain(self) -> Chain:
        return parse_chain(self.chain, self.chain_origin)  # type: ignore[arg-type]

    def runtime_settings(self) -> RuntimeSettings:
        return RuntimeSettings(self.runtimes, self.flags)


def attempts_of(plan: Plan, suite: Suite, lanes: Mapping[str, Sequence[str]]) -> list[PlannedAttempt]:
    """The first try at every replicate of every mission: all missions once, then all again."""
    counts = {mission.id: plan.replicates or mission.replicates for mission in suite.missions}
    return [
        PlannedAttempt(f"{mission.id}.{replicate}", mission.id, replicate, lane=" ".join(lanes.get(mission.id, ())))
        for replicate in range(1, max(counts.values()) + 1)
        for mission in suite.missions
        if replicate <= counts[mission.id]
    ]


def ledger_path(out: Path, run_id: str) -> Path:
    return out / f"{run_id}{LEDGER_SUFFIX}"


def conductor_lock(out: Path, run_id: str) -> Path:
    """Held by whoever plans, conducts or removes the run."""
    return out / f".{run_id}.conductor"


def is_conducted(out: Path, run_id: str) -> bool:
    """Whether a process is at work on it."""
    lock = conductor_lock(out, run_id)
    try:
        if lock.exists():
            with locked(lock, shared=True, wait=False):
                return False
    except BlockingIOError:
        return True
    except OSError:  # where nobody can write, nobody conducts
        return False
    return False


def read_plan(ledger: Ledger) -> Plan:
    return msgspec.json.decode(ledger.about(PLAN), type=Plan)


def plan_digest(plan: Plan) -> str:
    """A digest of everything that the plan says."""
    return sha256_hex(msgspec.json.encode(plan, order="deterministic"))


def box_settings() -> Settings:
    """The user's own defaults for boxes; those for agents are part of the plan already."""
    return msgspec.structs.replace(load_users(), strategies=(), runtimes={})


def stores_of(ledger: Ledger) -> set[str]:
    """The stores that were made for the run, as far as nothing else leads to them any more."""
    return set(ledger.about(STORES).split())


def note_stores(ledger: Ledger, stores: set[str]) -> None:
    """So that they go with the run, whatever its attempts came to."""
    ledger.set_about(STORES, " ".join(sorted(stores_of(ledger) | stores)))


def surroundings(
    plan: Plan,
    out: Path,
    owner: str,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    env: Mapping[str, str] | None = None,
) -> RunContext:
    clock = clock or SystemClock()
    out = out.absolute()
    return RunContext(
        run_id=plan.run_id,
        run_dir=out / plan.run_id,
        work=out / WORK / plan.run_id,
        suite=plan.suite(),
        templates=Templates(out / WORK / plan.run_id / TEMPLATES, owner, clock),
        chain=plan.parsed_chain(),
        registry=installed(),
        settings=plan.runtime_settings(),
        box_settings=plan.box_settings,
        redactor=redactor_of(plan, os.environ if env is None else env),
        provider=plan.provider,
        isolation=plan.isolation,
        clock=clock,
        ids=ids or IdSource(clock),
        shared=SharedSession() if plan.isolation == "shared" else None,
    )


def credential_of(plan: Plan) -> str | None:
    """What a limit would be the limit of: the endpoint and the name of the variable with its key. None: no model."""
    settings = plan.runtime_settings()
    registry = installed()
    for candidate in plan.parsed_chain().candidates:
        if candidate.strategy in registry.ids:
            said = settings(registry.runtime(candidate.strategy))
            if said.get("base_url") or said.get("api_key_env"):
                return f"{said.get('base_url', '')} {said.get('api_key_env', '')}"
    return None


def redactor_of(plan: Plan, env: Mapping[str, str]) -> Redactor:
    """Knows the exact secrets that this process could leak: the keys its settings name, and what is called a secret."""
    keys = _key_names(plan)
    # A shorter one is a word, as of `SIGNING_KEY=release`: evidence is full of words, and would be withheld.
    long = {name: value for name, value in env.items() if name in keys or len(value) >= SHORTEST_SECRET}
    return Redactor.from_environment(long, keys)


def refuse_secrets(plan: Plan, env: Mapping[str, str], files: SuiteFiles | None = None) -> None:
    """Refuse a suite that holds a secret known to this process: its text becomes part of the evidence.

    `files` has its prompts while they are not copied yet.
    """
    suite = plan.suite()
    texts = [plan.suite_source.encode(), plan.chain.encode(), msgspec.json.encode(suite.missions)]
    for mission in suite.missions:
        with contextlib.suppress(OSError, Unreadable):  # the attempt will say so
            if mission.prompt_file is not None and files is not None:
                texts.append(files.read(files.find(mission.prompt_file), LARGEST_PROMPT).encode())
            elif mission.prompt_file is not None:
                texts.append(suite.at(mission.prompt_file).read_bytes())
    if not any(map(redactor_of(plan, env).contains_secret, texts)):
        return
    found = [name for name in sorted(env) if any(map(redactor_of(plan, {name: env[name]}).contains_secret, texts))]
    raise SuiteInvalid(
        f"the suite holds the value of {', '.join(found)}, and evidence must hold no secret",
        op="suite",
        fix_hints=[
            "take it out of the suite and its prompts",
            f"if it is no secret: unset {' '.join(found)}",
        ],
        details={"variables": found},
    )


def _key_names(plan: Plan) -> list[str]:
    said = [each.get("api_key_env") for each in (*plan.runtimes.values(), plan.flags)]
    return [name for name in said if isinstance(name, str)]
