"""Select a runtime from an ordered chain of strategies, and record the result for each candidate.

A chain is written `codex_app_server!,process,scripted`. It comes from the first of these sources that sets it: the
flag, the spec, the project's and the user's `config.toml`, PROOFBOX_STRATEGIES, the default. Candidates are tried in
order; the first one that is known, has the required capabilities, is available here and starts is used. Other
candidates are skipped, and the reason is recorded. If a candidate with a `!` can't be used, its error ends the chain.

Selection is deterministic: the same chain on the same machine gives the same result, independent of time, chance and
load. Invalid settings never cause a skip: they raise `UsageError`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from proofbox.agents.contract import AgentRuntime, RuntimeCapabilities
from proofbox.agents.registry import STRATEGY, Registry
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

# Errors that make the chain try the next candidate. Any other error is raised.
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
    """The result for one candidate, as data for the evidence."""

    strategy: str
    used: bool
    reason: str
    code: str = ""
    """The code of the candidate's error; empty for the selected candidate and for those after it."""
    strict: bool = False
    version: str = ""
    fix_hints: tuple[str, ...] = ()


def parse_chain(text: str | Sequence[str], origin: Origin) -> Chain:
    """Parse a chain. Whether its strategies exist is checked when it is resolved."""
    words = text.split(",") if isinstance(text, str) else list(text)
    candidates = [Candidate(word.strip().removesuffix(STRICT), word.strip().endswith(STRICT)) for word in words]
    names = [each.strategy for each in candidates]
    wrong = next((name for name in names if not STRATEGY.fullmatch(name)), None)
    twice = next((name for name in names if names.count(name) > 1), None)
    if wrong is not None or twice is not None:
        what = f"{wrong[:60]!r} is not a strategy id" if wrong is not None else f"{twice} is listed twice"
        raise UsageError(
            f"the chain of strategies from {_ORIGIN_NAMES[origin]}: {what}",
            op="strategy",
            fix_hints=[
                "separate ids with commas, and add ! to an id that must not be skipped: codex_app_server!,scripted"
            ],
        )
    return Chain(tuple(candidates), origin)


def decide_chain(
    *,
    flag: str | Sequence[str] | None = None,
    spec: str | Sequence[str] | None = None,
    config: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    default: Callable[[], str | Sequence[str]] = lambda: DEFAULT_CHAIN,
) -> Chain:
    """Return the chain from the first source that sets it. `default` is called if none does."""
    environment = (os.environ if env is None else env).get(VARIABLE)
    sources: tuple[tuple[Origin, str | Sequence[str] | None], ...] = (
        ("flag", flag),
        ("spec", spec),
        ("config", config or None),
        ("environment", environment or None),
    )
    for origin, value in sources:
        if value is not None:
            return parse_chain(value, origin)
    return parse_chain(default(), "default")


def capabilities_named(names: Sequence[str]) -> tuple[str, ...]:
    """Return the full names of capabilities, which may be written as `turn_steer` or `supports_turn_steer`."""
    known = RuntimeCapabilities.__struct_fields__
    full = tuple(name if name.startswith("supports_") else f"supports_{name}" for name in names)
    for name in full:
        if name not in known:
            raise UsageError(
                f"unknown capability {name[:60]!r}", op="strategy", fix_hints=[f"known: {', '.join(known)}"]
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
    """Return the result of `start` for the first usable candidate, and the result for each candidate.

    Raises the candidate's own error if the candidate is strict or all candidates failed with the same code, and
    otherwise `StrategyUnavailable`. `details["chain"]` contains the reason for each candidate.
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
                reason="the first usable candidate",
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
            f"{runtime.id} does not support {', '.join(missing)}",
            op="strategy",
            fix_hints=["choose a strategy that has these capabilities: proofbox runtime list"],
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


_ORIGIN_NAMES = {
    "flag": "--strategies",
    "spec": "the spec",
    "config": "config.toml",
    "environment": VARIABLE,
    "default": "the default",
}
