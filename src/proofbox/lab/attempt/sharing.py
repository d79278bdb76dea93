"""One agent process for many attempts: `isolation = "shared"`.

Faster where an agent is slow to start, and no isolation at all between the attempts: each can read and change the
others' files, and what one does may be told as another's. So each attempt says that it was shared, is partial for that
reason, and is not promotable by the usual policies.

There is one box and one session, so that missions which ask for different ones can't share them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import msgspec

from proofbox.agents.contract import AgentRuntime, AgentSession
from proofbox.agents.environment import EnvironmentRecord
from proofbox.agents.strategies import CandidateResult, Chain
from proofbox.errors import CapabilityUnsupported, SuiteInvalid
from proofbox.lab.suite.spec import Mission


class Started(msgspec.Struct, frozen=True):
    """A session and how it was started: the same for each attempt that uses it."""

    session: AgentSession
    considered: tuple[CandidateResult, ...]
    environment: EnvironmentRecord | None


def refuse_to_share(runtime: AgentRuntime) -> None:
    """Raises `CapabilityUnsupported` for a runtime whose session is made for one attempt."""
    if runtime.id == "scripted":
        raise CapabilityUnsupported(
            "scripted plays one script a session, so that its sessions can't be shared",
            op="strategy",
            fix_hints=["--isolation process"],
        )


class SharedSession:
    """Started by the first attempt that needs it, ended with the worker. One that has broken is replaced."""

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
    """Raise `SuiteInvalid` where one box and one session can't be what each of the missions asks for."""
    for mission in missions:
        for field in ("capabilities", "workdir"):
            if getattr(mission, field) is not None:
                why = f"mission {mission.id!r} has {field}, by which a box is one attempt's own"
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
    """What of a mission the box or the session is started with. All else holds for each attempt by itself."""
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
        decided |= {"solution": mission.solution, "solution_env": mission.solution_env}
    return decided


def _unshareable(why: str, details: dict[str, Any]) -> SuiteInvalid:
    return SuiteInvalid(
        f'with isolation "shared" all attempts have one box and one session: {why}',
        op="suite",
        fix_hints=["give each attempt its own: --isolation process", "or let all missions say the same"],
        details=details,
    )
