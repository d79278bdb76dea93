"""The control runtimes: `nop` does nothing, and `oracle` runs the mission's own solution.

If `nop` passes a mission, the mission requires no work; if `oracle` fails it, the mission can't be passed on this
machine. Both results describe the mission, not an agent. Neither control makes a claim; the verifier decides the
result.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.feed import Turn
from proofbox.agents.hosted_session import HostedSession
from proofbox.agents.runtimes.scripted.runtime import BoxedTools, ScriptedRuntime, ScriptedSession
from proofbox.agents.runtimes.scripted.script import AgentScript, ScriptStep, ScriptTurn
from proofbox.agents.settings import read_settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import StrategyUnavailable
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.options import PolicyOptions

VERSION = "1"
PLACE = "/solution"
FURTHER = "/solutions"
"""Where the solutions of further turns are; each is copied to its place when its turn begins."""
ENTRY = "solve.sh"
MAX_SECONDS = 3600.0
"""Timeout in seconds for a solution: the longest timeout that the command tool accepts."""


class NopSettings(msgspec.Struct, frozen=True):
    """No settings."""


class NopRuntime:
    id = "nop"
    title = "A control that does nothing and claims nothing"
    capabilities = RuntimeCapabilities(
        supports_interrupt=True, supports_event_stream=True, supports_parallel_sessions=True
    )
    settings: type[msgspec.Struct] = NopSettings

    async def probe(self, settings: Mapping[str, object]) -> RuntimeProbe:
        read_settings(NopSettings, settings, self.id)
        return RuntimeProbe(strategy=self.id, available=True, version=VERSION)

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> NopSession:
        read_settings(NopSettings, options.settings, self.id)
        session = NopSession(self, options, clock=clock, ids=ids)
        await session.open()
        return session


class NopSession(HostedSession):
    version = VERSION

    async def _run_turn(self, turn: Turn, prompt: str) -> None:
        """Do nothing: the turn ends immediately."""


class OracleSettings(msgspec.Struct, frozen=True):
    solution: str = ""
    """The path of a script, or of a directory with `solve.sh` in it."""
    further: tuple[str, ...] = ()
    """The same for each further turn; empty: nothing is done in that turn."""
    env: dict[str, str] = {}
    """Additional environment variables for the solution."""


class OracleRuntime:
    """Runs one command per turn: the solution, from a copy at /solution. No other strategy's box contains it."""

    id = "oracle"
    title = "A control that runs the mission's own solution"
    capabilities = ScriptedRuntime.capabilities
    settings: type[msgspec.Struct] = OracleSettings

    async def probe(self, settings: Mapping[str, object]) -> RuntimeProbe:
        read_settings(OracleSettings, settings, self.id)
        return RuntimeProbe(strategy=self.id, available=True, version=VERSION)

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> ScriptedSession:
        settings = read_settings(OracleSettings, options.settings, self.id)
        copy = options.scratch / "solution"
        await run_sync(_copy, settings.solution, copy)
        policy: PolicyOptions = options.policy.copy()
        mounts = [Mount(copy, PLACE, writable=True)]
        turns = [ScriptTurn((_step(f"{PLACE}/{ENTRY}", settings),))]
        for number, further in enumerate(settings.further):
            if not further:
                turns.append(ScriptTurn())
                continue
            other = options.scratch / f"solution-{number}"
            await run_sync(_copy, further, other)
            mounts.append(Mount(other, f"{FURTHER}/{number}"))
            replace = f"rm -rf {PLACE}/* && cp -R {FURTHER}/{number}/. {PLACE}/ && exec {PLACE}/{ENTRY}"
            turns.append(ScriptTurn((_step(replace, settings),)))
        policy["mounts"] = [*(policy.get("mounts") or ()), *mounts]
        session = ScriptedSession(
            self,
            msgspec.structs.replace(options, policy=policy, approvals=()),  # the solution needs no approval
            AgentScript(turn=tuple(turns)),
            BoxedTools,
            anyio.sleep,
            clock=clock,
            ids=ids,
        )
        await session.open()
        return session


def _step(command: str, settings: OracleSettings) -> ScriptStep:
    args = {"command": command, "timeout": MAX_SECONDS, "env": settings.env}
    return ScriptStep(tool="run_command", args=args)


def _copy(solution: str, dest: Path) -> None:
    source = Path(solution)
    entry = dest / ENTRY
    if not solution or not (source / ENTRY if source.is_dir() else source).is_file():
        raise StrategyUnavailable(
            f"no solution found at {solution!r}" if solution else "the mission has no solution",
            op="oracle",
            fix_hints=[f"add a solution to the mission: a script, or a directory that contains {ENTRY}"],
        )
    if source.is_dir():
        shutil.copytree(source, dest, symlinks=True)
    else:
        dest.mkdir()
        shutil.copyfile(source, entry)
    entry.chmod(stat.S_IMODE(entry.stat().st_mode) | 0o555)
