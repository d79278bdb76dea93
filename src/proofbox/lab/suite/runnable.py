"""Checks before a run what providers, runtimes and policies would refuse during it, using their own rules.

An attempt with an unknown provider or an invalid script would otherwise end as an infrastructure failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec

from proofbox.agents.environment import check_name, is_blocked
from proofbox.agents.registry import installed
from proofbox.agents.runtimes.scripted.script import ScriptStep, step_problem
from proofbox.agents.strategies import Chain, parse_chain
from proofbox.core.allowlist import parse_network
from proofbox.core.nearest import nearest
from proofbox.core.spec_files.positions import Path
from proofbox.core.spec_files.problems import Problems
from proofbox.core.spec_files.shape import Shape
from proofbox.errors import (
    EnvPolicyRefused,
    ProofboxError,
    ProviderUnknown,
    RequestInvalid,
    StrategyUnavailable,
    StrategyUnsupported,
)
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.spec import Mission, SuiteFields, verifiers_of
from proofbox.sandbox.options import check_limit
from proofbox.sandbox.providers import ALIASES, AUTO, PROVIDERS, provider_named
from proofbox.workspace.tools.registry import TOOLS


def check_provider(name: str) -> None:
    """Raise `ProviderUnknown`, with the nearest known name, if there is no such provider."""
    if name != AUTO:
        provider_named(name)


def refuse_idle(chain: Chain, strategy: str, missions: Sequence[Mission]) -> None:
    """Raise `StrategyUnavailable` if the scripted agent would run only as a fallback, without a script.

    It would do nothing, and every mission would look like the failure of an agent.
    """
    chosen = chain.origin != "default" and chain.candidates[0].strategy == strategy
    idle = [mission.id for mission in missions if not mission.script.step]
    if strategy != "scripted" or chosen or not idle:
        return
    more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
    raise StrategyUnavailable(
        f"no agent is selected, and the scripted one has no script for mission {idle[0]}{more}",
        op="strategy",
        fix_hints=["select an agent: --strategies ID", "list the agents: proofbox runtime list"],
    )


def check_suite(suite: SuiteFields, problems: Problems) -> None:
    at: Path = ("suite", "strategies")
    if suite.strategies:
        _check_strategies(suite.strategies, problems, at)
    for name in suite.max_concurrent:
        if ALIASES.get(name, name) not in PROVIDERS and name not in installed():
            what = f"{name[:200]!r} is neither a provider nor a strategy"
            problems.add(("suite", "max_concurrent", name), what, nearest(name, (*PROVIDERS, *installed().ids)))


def check_mission(mission: Mission, problems: Problems, at: Path) -> None:
    if mission.provider is not None:
        _check_provider(mission.provider, problems, (*at, "provider"))
    networks = [((*field, "network"), verify.network) for field, verify in verifiers_of(mission)]
    for path, network in ((("network",), mission.network), *networks):
        try:
            parse_network(network)
        except RequestInvalid as error:
            problems.add((*at, *path), error.message, "; ".join(error.fix_hints))
    limits = mission.limits
    for limit, amount in (
        *(("memory", limits.memory_mb), ("cpus", limits.cpus)),
        *(("pids", limits.pids), ("disk", limits.disk_mb)),
    ):
        try:
            check_limit(limit, amount)
        except RequestInvalid as error:
            problems.add((*at, "limits", limit), error.message, "; ".join(error.fix_hints))
    for number, each in enumerate(mission.env):
        _check_variable(each, problems, (*at, "env", number))
    variables = [((*field, "env"), verify.env) for field, verify in verifiers_of(mission)]
    for path, env in (*variables, (("solution_env",), mission.solution_env)):
        for name, value in env.items():
            from proofbox.sandbox.client.requests import encode_env  # few suites set variables

            try:
                encode_env({name: value})
            except RequestInvalid as error:
                problems.add((*at, *path, name), error.message, "; ".join(error.fix_hints))
    for number, step in enumerate(mission.script.step):
        if not problems.enough:
            _check_step(step, problems, (*at, "script", "step", number))
    least, most = mission.expect.min_tool_calls, mission.expect.max_tool_calls
    if least is not None and most is not None and least > most:
        problems.add((*at, "expect", "min_tool_calls"), f"min_tool_calls {least} is more than max_tool_calls {most}")


def check_archive(mission: Mission, files: SuiteFiles, problems: Problems, at: Path) -> None:
    """Check that a mission's workspace archive can be unpacked, by unpacking it. One outside the suite is skipped."""
    found = None if mission.workspace is None else files.find(mission.workspace)
    if mission.workspace is None or found is None or found.outside or not found.real.is_file():
        return
    # Few missions have an archive.
    import tempfile

    from proofbox.core.archives.unpack import ArchiveRefused, unpack

    with tempfile.TemporaryDirectory(prefix="proofbox-lint-", ignore_cleanup_errors=True) as scratch:
        try:
            with files.opened(found) as archive:
                unpack(FilePath(f"/dev/fd/{archive}"), FilePath(scratch))
        except ArchiveRefused as error:
            why = str(error)
        except OSError as error:
            why = f"{error.strerror}"
        else:
            return
    problems.add(
        (*at, "workspace"),
        f"{mission.workspace[:200]!r} cannot be unpacked: {why}",
        "use a directory, or a tar or zip archive",
    )


def _check_strategies(chain: tuple[str, ...], problems: Problems, at: Path) -> None:
    """Check a chain. It may name strategies that only another machine has, if one of the chain is available here."""
    known = installed()
    before = len(problems.found)
    for number, word in enumerate(chain):
        try:
            parse_chain([word], "spec")
        except ProofboxError as error:
            problems.add((*at, number), error.message, nearest(word, known.ids))
    if len(problems.found) > before:
        return
    try:
        candidates = parse_chain(chain, "spec").candidates
    except ProofboxError as error:
        problems.add(at, error.message, "; ".join(error.fix_hints))
        return
    unknown: list[tuple[int, str]] = []
    for number, candidate in enumerate(candidates):
        if candidate.strategy in known.ids:
            return
        unknown.append((number, candidate.strategy))
        if candidate.strict:
            break
    for number, name in unknown:
        try:
            known.runtime(name)
        except StrategyUnsupported as error:
            problems.add((*at, number), error.message, error.fix_hints[0])


def _check_provider(name: str, problems: Problems, at: Path) -> None:
    try:
        check_provider(name)
    except ProviderUnknown as error:
        problems.add(at, error.message, error.fix_hints[0])


def _check_variable(entry: str, problems: Problems, at: Path) -> None:
    name = entry.partition("=")[0]
    try:
        check_name(name)
    except EnvPolicyRefused as error:
        problems.add(at, error.message, "; ".join(error.fix_hints))
        return
    if is_blocked(name):
        problems.add(at, f"{name} is not passed to a box: its name is on the block list", "remove it")


def _check_step(table: dict[str, Any], problems: Problems, at: Path) -> None:
    before = len(problems.found)
    Shape(problems, "suite").visit(ScriptStep, table, at)
    if len(problems.found) > before:
        return
    step = msgspec.convert(table, ScriptStep)
    if wrong := step_problem(step):
        problems.add((*at, wrong.field), f"{problems.shown(at)}: {wrong.message}", wrong.hint)
    elif step.tool is not None and step.tool not in TOOLS:
        problems.add((*at, "tool"), f"unknown tool {step.tool[:80]!r}", nearest(step.tool, TOOLS))
