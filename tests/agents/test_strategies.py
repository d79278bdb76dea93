"""Tests of strategy chains: their source, their resolution, and the result for each candidate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.agents.contract import AgentRuntime, AgentSession, RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.registry import Registry, installed
from proofbox.agents.settings import RuntimeSettings, read_settings
from proofbox.agents.strategies import CandidateResult, Chain, decide_chain, first_usable, parse_chain
from proofbox.config.settings import NAMED_RUNTIMES
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import (
    AgentError,
    CapabilityUnsupported,
    RuntimeIncompatible,
    RuntimeStartFailed,
    StrategyUnavailable,
    StrategyUnsupported,
    UsageError,
)


class SampleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str = ""
    retries: int = 0


class Sample:
    """A runtime that is probed but never runs."""

    title = "sample"
    settings: type[msgspec.Struct] = SampleSettings

    def __init__(
        self, id: str, probe: RuntimeProbe | None = None, start: AgentError | None = None, **has: bool
    ) -> None:
        self.id = id
        self.capabilities = RuntimeCapabilities(**has)
        self.asked: list[Mapping[str, Any]] = []
        self._probe = probe or RuntimeProbe(strategy=id, available=True, version="1.2")
        self.start = start

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        self.asked.append(settings)
        return self._probe

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> AgentSession:
        raise NotImplementedError


GOOD = Sample("good", supports_interrupt=True)
PLAIN = Sample("plain")
ABSENT = Sample(
    "absent", RuntimeProbe(strategy="absent", available=False, reason="not installed", fix_hints=("install it",))
)
OLD = Sample(
    "old",
    RuntimeProbe(strategy="old", available=True, compatible=False, code="RUNTIME_COMPATIBILITY", reason="version 0.1"),
)
BROKEN = Sample("broken", start=RuntimeStartFailed("it failed to start"))
ALL: tuple[Sample, ...] = (GOOD, PLAIN, ABSENT, OLD, BROKEN)
REGISTRY = Registry({each.id: lambda each=each: each for each in ALL})  # type: ignore[misc]


async def start(runtime: AgentRuntime) -> str:
    assert isinstance(runtime, Sample)
    if runtime.start is not None:
        raise runtime.start
    return runtime.id


def resolve(chain: str, *required: str) -> tuple[str, tuple[CandidateResult, ...]]:
    async def run() -> tuple[str, tuple[CandidateResult, ...]]:
        return await first_usable(parse_chain(chain, "flag"), REGISTRY, start, required=required)

    return anyio.run(run)


def test_first_usable_candidate_is_used_and_the_others_have_a_reason() -> None:
    used, seen = resolve("absent,old,nowhere,broken,good,plain")
    assert used == "good"
    assert [(each.strategy, each.used, each.code) for each in seen] == [
        ("absent", False, "RUNTIME_STRATEGY_UNAVAILABLE"),
        ("old", False, "RUNTIME_COMPATIBILITY"),
        ("nowhere", False, "RUNTIME_STRATEGY_UNSUPPORTED"),
        ("broken", False, "RUNTIME_STARTUP"),
        ("good", True, ""),
        ("plain", False, ""),
    ]
    assert all(each.reason for each in seen)
    assert seen[4].version == "1.2"
    assert seen[0].fix_hints == ("install it",)


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        ("nowhere", StrategyUnsupported),
        ("nowhere,elsewhere", StrategyUnsupported),
        ("absent", StrategyUnavailable),
        ("old", RuntimeIncompatible),
        ("broken", RuntimeStartFailed),
        ("absent,old", StrategyUnavailable),
        ("nowhere!,good", StrategyUnsupported),
        ("absent,old!,good", RuntimeIncompatible),
        ("broken!,good", RuntimeStartFailed),
    ],
)
def test_failed_chain_raises_a_typed_error(chain: str, kind: type[AgentError]) -> None:
    with pytest.raises(kind) as raised:
        resolve(chain)
    assert type(raised.value) is kind
    reported = raised.value.details["chain"]
    assert [each["strategy"] for each in reported] == chain.replace("!", "").split(",")[: len(reported)]
    assert not any(each["used"] for each in reported)


def test_capabilities_are_required_by_name() -> None:
    used, seen = resolve("plain,good", "interrupt")
    assert (used, seen[0].code) == ("good", "RUNTIME_CAPABILITY_UNSUPPORTED")
    with pytest.raises(CapabilityUnsupported) as raised:
        resolve("plain!,good", "supports_interrupt")
    assert raised.value.details["missing"] == ["supports_interrupt"]
    with pytest.raises(UsageError):
        resolve("plain", "flying")


def test_invalid_settings_raise_instead_of_skipping() -> None:
    class Picky(Sample):
        async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
            read_settings(SampleSettings, settings, self.id)
            return await super().probe(settings)

    registry = Registry({"picky": lambda: Picky("picky"), "good": lambda: GOOD})
    settings = RuntimeSettings({"picky": {"modle": "x"}})

    async def run() -> None:
        await first_usable(parse_chain("picky,good", "flag"), registry, start, settings=settings)

    with pytest.raises(UsageError) as raised:
        anyio.run(run)
    assert raised.value.fix_hints == ("did you mean model?",)


def test_first_source_that_sets_the_chain_decides() -> None:
    env = {"PROOFBOX_STRATEGIES": "d,e"}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"flag": "a!", "spec": ["b"], "config": ["c"], "env": env}, "a!", "flag"),
        ({"spec": ["b", "x!"], "config": ["c"], "env": env}, "b,x!", "spec"),
        ({"config": ["c"], "env": env}, "c", "config"),
        ({"env": env}, "d,e", "environment"),
        ({"env": {"PROOFBOX_STRATEGIES": ""}}, "scripted", "default"),
        ({"env": {}}, "scripted", "default"),
    ]
    for words, chain, origin in cases:
        found = decide_chain(**words)
        assert (str(found), found.origin) == (chain, origin)


@pytest.mark.parametrize("text", ["", ",", "a,,b", "a,a", "a,a!", "A", "a b", "a!!", "!", "a;b", "é", "-a"])
def test_malformed_chain_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_chain(text, "flag")


ids = st.sampled_from([each.id for each in ALL] + ["nowhere", "elsewhere"])
links = st.builds(lambda id, strict: id + ("!" if strict else ""), ids, st.booleans())


@given(st.lists(links, min_size=1, max_size=7, unique_by=lambda link: link.removesuffix("!")))
def test_resolution_is_deterministic_and_complete(chain: list[str]) -> None:
    def once() -> tuple[str, list[tuple[str, bool, str]]]:
        try:
            used, seen = resolve(",".join(chain))
        except AgentError as error:
            reported = msgspec.convert(error.details["chain"], list[CandidateResult])
            assert not any(each.used for each in reported)
            return error.code, [(each.strategy, each.used, each.code) for each in reported]
        assert [each.strategy for each in seen] == [link.removesuffix("!") for link in chain]
        assert [each.strategy for each in seen if each.used] == [used]
        return used, [(each.strategy, each.used, each.code) for each in seen]

    first = once()
    assert first == once()
    usable = {"good", "plain"}
    for link in chain:  # an independent implementation of the rule
        if link.removesuffix("!") in usable:
            assert first[0] == link.removesuffix("!")
            break
        if link.endswith("!"):
            assert first[0].startswith("RUNTIME_")
            break
    else:
        assert first[0].startswith("RUNTIME_")


def test_flag_applies_to_runtimes_that_have_the_setting() -> None:
    settings = RuntimeSettings({"good": {"model": "from-file", "retries": 2}}, {"model": "from-flag", "base_url": None})
    assert settings(GOOD) == {"model": "from-flag", "retries": 2}
    assert settings(PLAIN) == {"model": "from-flag"}
    settings.check(parse_chain("good", "flag"), REGISTRY)
    with pytest.raises(UsageError, match="base_url"):
        RuntimeSettings({}, {"base_url": "x"}).check(parse_chain("good,plain", "flag"), REGISTRY)
    with pytest.raises(UsageError, match=r"runtimes\.god"):
        RuntimeSettings({"god": {}}).check(parse_chain("good", "flag"), REGISTRY)


def test_settings_of_the_wrong_type_are_refused() -> None:
    assert read_settings(SampleSettings, {"retries": 3}, "sample").retries == 3
    with pytest.raises(UsageError, match="retries"):
        read_settings(SampleSettings, {"retries": "three"}, "sample")


def test_tables_among_the_settings_of_a_named_runtime_are_no_agents() -> None:
    for id, tables in NAMED_RUNTIMES.items():
        fields = msgspec.structs.fields(installed().runtime(id).settings)
        assert tables == tuple(each.name for each in fields if get_origin(each.type) is dict), id


def test_runtime_that_fails_to_load_is_unavailable() -> None:
    def fail() -> AgentRuntime:
        raise ImportError("no module named sample")

    with pytest.raises(StrategyUnavailable, match="no module named sample"):
        Registry({"sample": fail}).runtime("sample")
    with pytest.raises(StrategyUnsupported) as raised:
        Registry({"sample": fail}).runtime("smaple")
    assert raised.value.fix_hints[0] == "did you mean sample?"


def test_installed_package_provides_its_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "extra-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    entries = "extra = test_strategies:GOOD.__class__\nscripted = test_strategies:Nothing\nBad-Id = x:y\n"
    (info / "entry_points.txt").write_text(f"[proofbox.runtimes]\n{entries}")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = installed.__wrapped__()
    assert "extra" in registry.ids
    assert "Bad-Id" not in registry.ids
    assert Chain(parse_chain("extra", "flag").candidates, "flag")
    # A built-in id can't be overridden.
    assert type(registry.runtime("scripted")).__module__ == "proofbox.agents.runtimes.scripted.runtime"
