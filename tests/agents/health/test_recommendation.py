"""Recommendation of native strategies: each criterion, and what a recommendation changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe
from proofbox.agents.health.counters import AttemptHealth, count_attempt, health_dir, read_health
from proofbox.agents.health.recommendation import (
    MIN_ATTEMPTS,
    PARALLEL,
    RuntimeMeasurement,
    default_chain,
    judge,
    read_measurement,
    recommend,
    record_measurement,
)
from proofbox.agents.registry import Registry
from proofbox.agents.settings import RuntimeSettings
from proofbox.agents.strategies import decide_chain

GOOD = RuntimeMeasurement(
    strategy="swift",
    version="1.2",
    overhead=0.05,
    parallel=PARALLEL,
    completed=PARALLEL,
    crosstalk=0,
    measured_at="2030-01-01T00:00:00.000000Z",
)


def counted(place: Path, *, lost: int, total: int = MIN_ATTEMPTS, strategy: str = "swift") -> None:
    for number in range(total):
        code = "RUNTIME_CRASH" if number < lost else None
        count_attempt(strategy, AttemptHealth(infra=code), directory=place)


@pytest.mark.parametrize(
    ("lost", "recommended"), [(0, True), (2, True), (3, False)], ids=["all worked", "99.0 %", "98.5 %"]
)
def test_reliability_must_be_at_least_99_percent(tmp_path: Path, lost: int, recommended: bool) -> None:
    counted(tmp_path, lost=lost)
    found = judge(read_health("swift", directory=tmp_path), GOOD)
    assert found.recommended is recommended
    if not recommended:
        assert found.reasons == ("reliability 98.5 % over the last 200 attempts; required: at least 99.0 %",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"overhead": 0.16}, "overhead 16.0 %; required: at most 15.0 %"),
        ({"completed": 19}, "19 attempts completed, 20 at the same time, without cross-talk; required: 20 at"),
        ({"parallel": 19}, "20 attempts completed, 19 at the same time, without cross-talk; required: 20 at"),
        ({"crosstalk": 1}, "20 attempts completed, 20 at the same time, with cross-talk in 1; required: 20 at"),
        (
            {"version": "1.1"},
            "measured with version 1.1, but 1.2 is installed: run scripts/bench runtimes",
        ),
    ],
)
def test_every_other_criterion_is_required(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    counted(tmp_path, lost=0)
    health = read_health("swift", directory=tmp_path)
    assert judge(health, msgspec.structs.replace(GOOD, overhead=0.15), "1.2").recommended
    found = judge(health, msgspec.structs.replace(GOOD, **change), "1.2")
    assert not found.recommended
    assert len(found.reasons) == 1
    assert found.reasons[0].startswith(reason)


def test_unknown_is_not_recommended(tmp_path: Path) -> None:
    assert recommend("swift", directory=tmp_path) == judge(read_health("swift", directory=tmp_path), None)
    assert judge(read_health("swift", directory=tmp_path), None).reasons == (
        "not measured yet: run scripts/bench runtimes, in a checkout of proofbox",
    )
    counted(tmp_path, lost=0, total=MIN_ATTEMPTS - 1)
    few = judge(read_health("swift", directory=tmp_path), GOOD)
    assert few.reasons == (
        "reliability known over 199 of 200 attempts: run scripts/bench runtimes, in a checkout of proofbox",
    )
    counted(tmp_path, lost=0, total=1)
    (tmp_path / "swift.json").write_text("{")
    assert not judge(read_health("swift", directory=tmp_path), GOOD).recommended


def test_failures_of_the_account_and_the_model_and_missing_keys_do_not_count_against_a_strategy(tmp_path: Path) -> None:
    for _ in range(50):
        count_attempt("swift", AttemptHealth(infra="RUNTIME_RATE_LIMIT"), directory=tmp_path)
        count_attempt("swift", AttemptHealth(infra="RUNTIME_STRATEGY_UNAVAILABLE"), directory=tmp_path)
    counted(tmp_path, lost=0)
    found = read_health("swift", directory=tmp_path)
    assert (found.attempts, found.window, found.reliability) == (300, 200, 1.0)
    assert judge(found, GOOD).recommended


def test_only_native_strategies_are_recommended(tmp_path: Path) -> None:
    names = ("process", "process.mine", "scripted", "nop", "oracle")
    assert [recommend(name, directory=tmp_path) for name in names] == [None] * 5


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 9999, b"\xff", b"x" * (1 << 20)])
def test_damaged_measurement_counts_as_none(content: bytes, tmp_path: Path) -> None:
    record_measurement(GOOD, directory=tmp_path)
    assert read_measurement("swift", directory=tmp_path) == GOOD
    (tmp_path / "measured" / "swift.json").write_bytes(content)
    assert read_measurement("swift", directory=tmp_path) is None


class Swift:
    id = "swift"
    title = "a native runtime"
    capabilities = RuntimeCapabilities(supports_thread_start=True)

    class settings(msgspec.Struct):
        key: bool = False

    async def probe(self, settings: dict[str, Any]) -> RuntimeProbe:
        return RuntimeProbe(strategy=self.id, available=bool(settings.get("key")), version="1.2")


def test_default_chain_starts_with_the_recommended_strategy_if_its_key_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    registry = Registry({"swift": Swift})  # type: ignore[dict-item]  # only what is asked for here
    with_key, without_key = RuntimeSettings({"swift": {"key": True}}), RuntimeSettings({})
    assert default_chain(with_key, registry) == ("scripted",), "not measured"
    place = health_dir()
    counted(place, lost=0)
    record_measurement(GOOD, directory=place)
    assert default_chain(with_key, registry) == ("swift", "scripted")
    assert default_chain(without_key, registry) == ("scripted",)
    chain = decide_chain(env={}, default=lambda: default_chain(with_key, registry))
    assert (str(chain), chain.origin) == ("swift,scripted", "default")
    assert str(decide_chain(flag="nop", default=lambda: default_chain(with_key, registry))) == "nop"
    record_measurement(msgspec.structs.replace(GOOD, version="1.1"), directory=place)
    assert default_chain(with_key, registry) == ("scripted",), "another version is installed"
