"""Health counters: many writers, killed writers, bounded files and hostile contents."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proofbox.agents.health.counters import (
    MAX_BYTES,
    MAX_CODES,
    MAX_COUNT,
    MAX_STRATEGIES,
    OTHER,
    UNRELATED,
    WINDOW,
    AttemptHealth,
    count_attempt,
    read_health,
)
from proofbox.errors import VersionUnknown

WRITER = """
import sys
from pathlib import Path
from proofbox.agents.health.counters import AttemptHealth, count_attempt
place, number = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for i in range(number):
    count_attempt("codex_app_server", AttemptHealth(infra="RUNTIME_CRASH" if i % 4 == 0 else None), directory=place)
    print(i, flush=True)
"""


def test_attempts_counted_together_are_as_counted_one_by_one(tmp_path: Path) -> None:
    made = [AttemptHealth(infra="RUNTIME_CRASH" if i % 3 else None, start_ms=float(i), restarts=i) for i in range(5)]
    count_attempt("scripted", *made, directory=tmp_path / "together")
    for each in made:
        count_attempt("scripted", each, directory=tmp_path / "alone")
    together, alone = (read_health("scripted", directory=tmp_path / name) for name in ("together", "alone"))
    assert msgspec.structs.replace(together, updated_at=alone.updated_at) == alone
    assert together.attempts == 5


def writer(place: Path, number: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(place), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_concurrent_writers_lose_nothing_and_killed_ones_count_each_attempt_at_most_once(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    for number in range(rounds(1, 50)):
        place = tmp_path / str(number)
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(writer(place, 80)) for _ in range(3)]
            killed = stack.enter_context(writer(place, 100_000))
            for each in (*writers, killed):
                begin(each)
            assert killed.stdout is not None
            for _ in range(10):
                killed.stdout.readline()
            os.kill(killed.pid, signal.SIGKILL)
            confirmed = 10 + killed.stdout.read().count("\n")
            for each in writers:
                each.communicate()
                assert each.returncode == 0
        found = read_health("codex_app_server", directory=place)
        assert found.problem == ""
        assert 0 <= found.attempts - 240 - confirmed <= 1, "one may be counted and not reported any more"
        assert found.window == WINDOW
        count_attempt("codex_app_server", AttemptHealth(), directory=place)
        assert read_health("codex_app_server", directory=place).attempts == found.attempts + 1
        count_attempt("other", AttemptHealth(), directory=place)
        names = {each.name for each in place.iterdir()}
        assert names == {".lock", "codex_app_server.json", "other.json"}, "leftovers of the killed writer are removed"


def damaged(**members: Any) -> bytes:
    whole = {"schema_version": "proofbox.strategy_health/1", "strategy": "scripted", "attempts": 3, **members}
    return json.dumps(whole).encode()


HOSTILE = {
    "empty": b"",
    "no JSON": b"\x00\xff\xfe",
    "nested": b"[" * 100_000,
    "huge": damaged(updated_at="x" * MAX_BYTES),
    "negative": damaged(attempts=-1),
    "too large": damaged(attempts=10**30),
    "a code with escapes": damaged(infra={"\x1b[31mRED": 1}),
    "too many codes": damaged(infra={f"CODE_{n}": 1 for n in range(MAX_CODES + 2)}),
    "too many attempts": damaged(recent=[["", 1.0, 1.0]] * (WINDOW + 1)),
    "endless": damaged(recent=[["", 1e300, None]]),
    "another strategy": damaged(strategy="process"),
    "not an object": b"7",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_damaged_counters_are_reported_and_counting_starts_again(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "scripted.json"
    path.write_bytes(content)
    found = read_health("scripted", directory=tmp_path)
    assert (found.attempts, str(path) in found.problem) == (0, True)
    count_attempt("scripted", AttemptHealth(), directory=tmp_path)
    assert read_health("scripted", directory=tmp_path).attempts == 1
    assert (tmp_path / "scripted.json.damaged").read_bytes() == content


def test_files_that_are_not_regular_are_replaced_without_blocking_or_following(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    kinds: list[Callable[[Path], None]] = [os.mkfifo, lambda path: path.symlink_to(target), Path.mkdir]
    for number, make in enumerate(kinds):
        place = tmp_path / str(number)
        place.mkdir()
        make(place / "scripted.json")
        count_attempt("scripted", AttemptHealth(), directory=place)
        assert read_health("scripted", directory=place).attempts == 1
    assert target.read_text() == "untouched"


def test_counters_of_another_version_are_kept(tmp_path: Path) -> None:
    newer = b'{"schema_version": "proofbox.strategy_health/9", "total": 5}'
    (tmp_path / "scripted.json").write_bytes(newer)
    with pytest.raises(VersionUnknown):
        count_attempt("scripted", AttemptHealth(), directory=tmp_path)
    assert (tmp_path / "scripted.json").read_bytes() == newer
    assert "strategy_health/9" in read_health("scripted", directory=tmp_path).problem


def test_names_that_are_not_strategies_write_nothing(tmp_path: Path) -> None:
    for name in ("", "../escape", "a/b", "UPPER", "process." + "x" * 200):
        count_attempt(name, AttemptHealth(), directory=tmp_path / "health")
        assert read_health(name, directory=tmp_path).attempts == 0
    assert list(tmp_path.iterdir()) == []


def test_number_and_size_of_files_are_bounded(tmp_path: Path) -> None:
    for number in range(MAX_STRATEGIES + 5):
        path = tmp_path / f"process.agent-{number}.json"
        count_attempt(f"process.agent-{number}", AttemptHealth(), directory=tmp_path)
        os.utime(path, (number, number))
    kept = {each.name for each in tmp_path.glob("*.json")}
    assert len(kept) == MAX_STRATEGIES
    assert "process.agent-0.json" not in kept
    assert f"process.agent-{MAX_STRATEGIES + 4}.json" in kept
    for number in range(WINDOW + MAX_CODES + 10):
        attempt = AttemptHealth(infra=f"CODE_{'X' * 50}_{number}", start_ms=123456.78, turn_ms=1e11)
        count_attempt("scripted", attempt, directory=tmp_path)
    assert (tmp_path / "scripted.json").stat().st_size < MAX_BYTES
    found = read_health("scripted", directory=tmp_path)
    assert (len(found.infra), found.infra[OTHER]) == (MAX_CODES + 1, WINDOW + 10)


def test_counters_stop_at_the_largest_exact_integer(tmp_path: Path) -> None:
    (tmp_path / "scripted.json").write_bytes(damaged(attempts=MAX_COUNT, infra={"RUNTIME_CRASH": MAX_COUNT}))
    count_attempt("scripted", AttemptHealth(infra="RUNTIME_CRASH", restarts=-5), directory=tmp_path)
    found = read_health("scripted", directory=tmp_path)
    assert (found.attempts, found.infra, found.restarts) == (MAX_COUNT, {"RUNTIME_CRASH": MAX_COUNT}, 0)


def test_durations_are_described_by_median_and_95th_percentile(tmp_path: Path) -> None:
    for number in range(1, 21):
        count_attempt("scripted", AttemptHealth(start_ms=float(number), turn_ms=float("nan")), directory=tmp_path)
    found = read_health("scripted", directory=tmp_path)
    assert found.start_ms is not None
    assert (found.start_ms.median, found.start_ms.p95, found.turn_ms) == (10.5, 19.0, None)


class Counting(RuleBasedStateMachine):
    """The counters equal a plain model, whatever is counted and whatever damages a file."""

    def __init__(self) -> None:
        super().__init__()
        self._held = tempfile.TemporaryDirectory(prefix="proofbox-test-")
        self.place = Path(self._held.name)
        self.attempts: dict[str, list[AttemptHealth]] = {"scripted": [], "process.mine": []}

    def teardown(self) -> None:
        self._held.cleanup()

    @rule(
        name=st.sampled_from(["scripted", "process.mine"]),
        infra=st.sampled_from([None, None, "RUNTIME_CRASH", "RUNTIME_AUTH"]),
        is_retry=st.booleans(),
        retries=st.integers(0, 5),
        times=st.integers(1, 20),
    )
    def count(self, name: str, infra: str | None, is_retry: bool, retries: int, times: int) -> None:
        attempt = AttemptHealth(infra=infra, is_retry=is_retry, model_retries=retries, restarts=retries // 2)
        for _ in range(times):
            count_attempt(name, attempt, directory=self.place)
            self.attempts[name].append(attempt)

    @rule(name=st.sampled_from(["scripted", "process.mine"]), content=st.binary(max_size=20))
    def damage(self, name: str, content: bytes) -> None:
        (self.place / f"{name}.json").write_bytes(content)
        count_attempt(name, AttemptHealth(), directory=self.place)
        self.attempts[name] = [AttemptHealth()]

    @invariant()
    def equals_the_model(self) -> None:
        for name, counted in self.attempts.items():
            found = read_health(name, directory=self.place)
            recent = [each for each in counted if each.infra not in UNRELATED][-WINDOW:]
            assert found.problem == ""
            assert found.attempts == len(counted)
            assert found.infra == Counter(each.infra for each in counted if each.infra)
            assert found.model_retries == sum(each.model_retries for each in counted)
            assert found.restarts == sum(each.restarts for each in counted)
            assert found.attempt_retries == sum(each.is_retry for each in counted)
            assert found.window == len(recent)
            assert found.reliability == (sum(not each.infra for each in recent) / len(recent) if recent else None)


TestCounting = Counting.TestCase
# Every step replaces files many times.
TestCounting.settings = settings(stateful_step_count=12, max_examples=max(15, settings().max_examples // 20))
