"""Which runtime is used: an ordered chain of strategies, and what became of each candidate.

A chain is written `codex_app_server!,process,scripted`. The first source that says anything decides it: the flag, the
spec, the project's and the user's `config.toml`, PROOFBOX_STRATEGIES, the default. Candidates are tried in their order;
the first that is known, has the capabilities asked for, could run here and starts is used. One that can't be used is
skipped, and why is kept; where it has a `!` the chain ends there, with that candidate's own error.

The same chain on the same machine gives the same answer: nothing is chosen by time, chance or load. Settings that mean
nothing are never a reason to skip: they are the caller's mistake, and raise `UsageError`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from proofbox.agents.contract import AgentRuntime, RuntimeCapabilities
from proofbox.agents.registry import ID, Registry
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    RuntimeIncompatible,
    RuntimeStartFailed,
    StrategyUnavailable,
    StrategyUnsupported,
    UsageError,
)

DEFAULT_CHAIN = "scripted"
VARIABLE = "PROOFBOX_STRATEGIES"
STRICT = "!"

Origin = Literal["flag", "spec", "config", "environment", "default"]
SettingsFor = Callable[[AgentRuntime], Mapping[str, Any]]
T = TypeVar("T")

# What says that another candidate may do better. Anything else that goes wrong is not the candidate's absence.
SKIPPING = (StrategyUnsupported, StrategyUnavailable, CapabilityUnsupported, RuntimeIncompatible, RuntimeStartFailed)
_BY_CODE = {kind.code: kind for kind in SKIPPING}


class Candidate(msgspec.Struct, frozen=True):
    strategy: str
    strict: bool = False


class Chain(msgspec.Struct, frozen=True):
    candidates: tuple[Candidate, ...]
    origin: Origin

    def __str__(self) -> str:
        return ",".join(each.strategy + (STRICT if each.strict else "") for each in self.candidates)


class CandidateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one candidate: evidence, so data and not prose alone."""

    strategy: str
    used: bool
    reason: str
    code: str = ""
    """Of the error that using it would have raised; empty for the one that was used, and for those after it."""
    strict: bool = False
    version: str = ""
    fix_hints: tuple[str, ...] = ()


def parse_chain(text: str | Sequence[str], origin: Origin) -> Chain:
    """Read a chain. Whether its strategies exist is found out when it is resolved."""
    words = text.split(",") if isinstance(text, str) else list(text)
    candidates = [Candidate(word.strip().removesuffix(STRICT), word.strip().endswith(STRICT)) for word in words]
    names = [each.strategy for each in candidates]
    wrong = next((name for name in names if not ID.fullmatch(name)), None)
    twice = next((name for name in names if names.count(name) > 1), None)
    if wrong is not None or twice is not None:
        what = f"{wrong[:60]!r} is no strategy id" if wrong is not None else f"{twice} is named twice"
        raise UsageError(
            f"the chain of strategies from {_SAID[origin]}: {what}",
            op="strategy",
            fix_hints=["write ids with commas between, a ! after one that must be usable: codex_app_server!,scripted"],
        )
    return Chain(tuple(candidates), origin)


def decide_chain(
    *,
    flag: str | Sequence[str] | None = None,
    spec: str | Sequence[str] | None = None,
    config: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Chain:
    """The chain of the first source that says anything."""
    environment = (os.environ if env is None else env).get(VARIABLE)
    sources: tuple[tuple[Origin, str | Sequence[str] | None], ...] = (
        ("flag", flag),
        ("spec", spec),
        ("config", config or None),
        ("environment", environment or None),
    )
    for origin, said in sources:
        if said is not None:
            return parse_chain(said, origin)
    return parse_chain(DEFAULT_CHAIN, "default")


def capabilities_named(names: Sequence[str]) -> tuple[str, ...]:
    """Capabilities as a caller writes them, `turn_steer` or `supports_turn_steer`, in their full names."""
    known = RuntimeCapabilities.__struct_fields__
    full = tuple(name if name.startswith("supports_") else f"supports_{name}" for name in names)
    for name in full:
        if name not in known:
            raise UsageError(
                f"there is no capability {name[:60]!r}", op="strategy", fix_hints=[f"known: {', '.join(known)}"]
            )
    return full


async def first_usable(
    chain: Chain,
    registry: Registry,
    start: Callable[[AgentRuntime], Awaitable[T]],
    *,
    settings: SettingsFor = lambda _: {},
    required: Sequence[str] = (),
) -> tuple[T, tuple[CandidateResult, ...]]:
    """What `start` gave for the first candidate that could be used, and what became of each.

    Raises the candidate's own error where the chain is strict or every candidate failed alike, and otherwise
    `StrategyUnavailable`; `details["chain"]` says of each why not.
    """
    needed = capabilities_named(required)
    seen: list[CandidateResult] = []
    for number, candidate in enumerate(chain.candidates):
        try:
            runtime = registry.runtime(candidate.strategy)
            version = await _examine(runtime, needed, settings(runtime))
            given = await start(runtime)
        except SKIPPING as error:
            seen.append(
                CandidateResult(
                    strategy=candidate.strategy,
                    used=False,
                    reason=error.message,
                    code=error.code,
                    strict=candidate.strict,
                    fix_hints=error.fix_hints,
                )
            )
            if candidate.strict:
                raise _refusal(seen, error, f"{candidate.strategy} can't be used: ") from error
            continue
        seen.append(
            CandidateResult(
                strategy=candidate.strategy,
                used=True,
                reason="the first that could be used",
                strict=candidate.strict,
                version=version,
            )
        )
        not_needed = f"not needed: {candidate.strategy} was used"
        seen += [
            CandidateResult(strategy=later.strategy, used=False, reason=not_needed, strict=later.strict)
            for later in chain.candidates[number + 1 :]
        ]
        return given, tuple(seen)
    codes = {each.code for each in seen}
    first = _as_error(seen[0])
    if len(codes) == 1:
        raise _refusal(seen, first, "" if len(seen) == 1 else "no strategy of the chain can be used; the first: ")
    hints = [f"{each.strategy}: {hint}" for each in seen for hint in each.fix_hints[:1]]
    none = StrategyUnavailable("; ".join(each.reason for each in seen), op="strategy", fix_hints=hints)
    raise _refusal(seen, none, "no strategy can be used: ")


async def _examine(runtime: AgentRuntime, needed: Sequence[str], settings: Mapping[str, Any]) -> str:
    missing = [name for name in needed if not getattr(runtime.capabilities, name)]
    if missing:
        raise CapabilityUnsupported(
            f"{runtime.id} has not {', '.join(missing)}",
            op="strategy",
            fix_hints=["choose a strategy that has: proofbox runtime list"],
            details={"missing": missing},
        )
    probe = await runtime.probe(settings)
    if not probe.available or not probe.compatible:
        kind = _BY_CODE.get(probe.code, StrategyUnavailable if not probe.available else RuntimeIncompatible)
        raise kind(probe.reason, op="strategy", fix_hints=probe.fix_hints)
    return probe.version


def _as_error(considered: CandidateResult) -> AgentError:
    return _BY_CODE[considered.code](considered.reason, op="strategy", fix_hints=considered.fix_hints)


def _refusal(seen: Sequence[CandidateResult], error: AgentError, lead: str) -> AgentError:
    return type(error)(
        lead + error.message,
        op="strategy",
        fix_hints=error.fix_hints,
        details={**error.details, "chain": msgspec.to_builtins(seen)},
        retryable=error.retryable,
    )


_SAID = {
    "flag": "--strategies",
    "spec": "the spec",
    "config": "config.toml",
    "environment": VARIABLE,
    "default": "the default",
}
