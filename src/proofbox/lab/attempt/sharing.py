"""One agent process for many attempts: `isolation = "shared"`.

Faster for agents that start slowly, but without isolation between the attempts: each can read and change the files of
the others, and the actions of one may be recorded for another. Each attempt therefore records that it was shared, is
partial for that reason, and is not promotable under the usual policies.

There is only one box and one session, so missions that need different ones cannot share them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from proofbox.agents.contract import AgentRuntime, AgentSession
from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.strategies import CandidateResult, Chain
from proofbox.errors import CapabilityUnsupported, SuiteInvalid
from proofbox.lab.suite.spec import Mission


class Started(msgspec.Struct, frozen=True):
    """A session and how it was started; shared by all attempts that use it."""

    session: AgentSession
    considered: tuple[CandidateResult, ...]
    environment: EnvironmentRecord | None
    settings: Mapping[str, Any] = {}


def refuse_to_share(runtime: AgentRuntime) -> None:
    """Raise `CapabilityUnsupported` for a runtime whose sessions serve a single attempt."""
    if runtime.id == "scripted":
        raise CapabilityUnsupported(
            "the scripted strategy plays one script per session, so its sessions cannot be shared",
            op="strategy",
            fix_hints=['--isolation process, or in a campaign: remove isolation = "shared" of the flow'],
        )


class SharedSession:
    """A session that the first attempt starts and the worker closes. A broken session is replaced."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._started: Started | None = None

    async def get(self, start: Callable[[], Awaitable[Started]]) -> Started:
        async with self._lock:
            if self._started is not None and self._started.session.broken is not None:
                await self.close()
            if self._started is None:
                self._started = await start()
            return self._started

    async def close(self) -> None:
        if self._started is not None:
            with anyio.CancelScope(shield=True):
                await self._started.session.close()
            self._started = None


def refuse_unshareable(missions: Sequence[Mission], provider: str | None, chain: Chain) -> None:
    """Raise `SuiteInvalid` if the missions cannot run in the same box and session."""
    for mission in missions:
        for field in ("capabilities", "workdir"):
            if getattr(mission, field) is not None:
                why = f"mission {mission.id!r} sets {field}, which requires a box per attempt"
                raise _unshareable(why, {"missions": [mission.id], "differs": {}})
    first, decided = missions[0], _decided(missions[0], provider, chain)
    for mission in missions[1:]:
        other = _decided(mission, provider, chain)
        differs = {name: {first.id: decided[name], mission.id: other[name]} for name in decided}
        differs = {name: each for name, each in differs.items() if each[first.id] != each[mission.id]}
        if differs:
            why = f"missions {first.id!r} and {mission.id!r} differ in {', '.join(differs)}"
            raise _unshareable(why, {"missions": [first.id, mission.id], "differs": differs})


def _decided(mission: Mission, provider: str | None, chain: Chain) -> dict[str, Any]:
    """Return the settings of a mission that the box or the session starts with; the rest can differ per attempt."""
    limits = mission.limits
    decided = {
        "provider": provider or mission.provider,
        "image": mission.image,
        "network": mission.network,
        "limits": {"memory": limits.memory_mb, "cpus": limits.cpus, "pids": limits.pids},
        "env": sorted(set(mission.env)),
        "tools": msgspec.to_builtins(mission.tools),
    }
    if any(candidate.strategy == "oracle" for candidate in chain.candidates):
        solutions = [mission.solution, *(turn.solution for turn in mission.then)]
        decided |= {"solution": solutions, "solution_env": mission.solution_env}
    return decided


def _unshareable(why: str, details: dict[str, Any]) -> SuiteInvalid:
    return SuiteInvalid(
        f'isolation "shared" runs all attempts in one box and one session, but {why}',
        op="suite",
        fix_hints=["run each attempt in its own box: --isolation process", "or use the same settings in all missions"],
        details=details,
    )
