"""One gate per credential, shared by all processes, deterministic under an injected clock."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.clock import ManualClock, parse_isoformat
from proofbox.errors import UsageLimited
from proofbox.evidence.bundle.identity import process_identity
from proofbox.lab.run.failures import MAX_PAST, counted_tries, pause, retry_after
from proofbox.lab.run.ledger import Ended
from proofbox.lab.run.limiter import MAX_BACKOFF, MAX_PAUSE, Limiter, closed_gates

ME = process_identity()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def gate(tmp_path: Path, clock: ManualClock, most: int = 16, **options: Any) -> Limiter:
    return Limiter("https://model KEY", most, directory=tmp_path, clock=clock, **options)


def fill(limiter: Limiter) -> int:
    """Return how many more are admitted now."""
    for number in range(100):
        if limiter.enter(f"a-{number}", ME) is not None:
            return number
    return 100


def test_window_starts_small_and_grows_with_successes(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)
    assert fill(limiter) == 4
    for number in range(4):
        limiter.release(f"a-{number}")
        limiter.succeeded()
    grown = fill(limiter)
    assert grown in (4, 5)
    for _ in range(400):
        limiter.succeeded()
    assert limiter.state().window == 16.0


def test_limiters_of_a_credential_share_their_state(tmp_path: Path, clock: ManualClock) -> None:
    assert fill(gate(tmp_path, clock)) == 4
    assert gate(tmp_path, clock).enter("b", ME) is not None
    other = Limiter("another", 4, directory=tmp_path, clock=clock)
    assert other.enter("b", ME) is None


def test_rate_limit_halves_once_for_all_running_attempts(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)
    began = clock.now().timestamp()
    clock.advance(5)
    for _ in range(3):
        limiter.rate_limited(began)
    assert limiter.state().window == 2.0
    later = clock.now().timestamp()
    clock.advance(5)
    limiter.rate_limited(later)
    assert limiter.state().window == 1.0
    clock.advance(5)
    limiter.rate_limited(clock.now().timestamp())
    assert limiter.state().window == 1.0, "one is always admitted, to find out when the limit is over"


def test_retry_after_is_honoured(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)
    limiter.rate_limited(clock.now().timestamp(), retry_after=30)
    assert limiter.enter("a", ME) == 30
    clock.advance(29)
    assert limiter.enter("a", ME) == 1
    clock.advance(1)
    assert limiter.enter("a", ME) is None


def test_a_usage_limit_closes_the_gate_until_its_reset(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)
    reset = clock.now().timestamp() + 3600
    assert limiter.usage_limited(reset) == reset
    assert limiter.usage_limited(reset - 10) == reset - 10, "an earlier time does not open it again"
    assert limiter.enter("a", ME) == 3600
    clock.advance(3600)
    assert limiter.enter("a", ME) is None


def test_past_resets_are_retried_less_and_less_often(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)

    def waits(count: int) -> list[float]:
        """Each time the gate opens, admit one and report a reset that was a minute ago."""
        found = []
        for _ in range(count):
            assert limiter.enter("a", ME) is None
            limiter.usage_limited(clock.now().timestamp() - 60)
            limiter.release("a")
            wait = limiter.enter("a", ME)
            assert wait is not None
            found.append(wait)
            clock.advance(wait)
        return found

    assert waits(12) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, MAX_BACKOFF, MAX_BACKOFF]
    assert "no future reset" in limiter.state().why
    limiter.succeeded()
    assert waits(3) == [1, 2, 4], "after a success in between"
    now = clock.now().timestamp()
    assert limiter.usage_limited(now + 30) == now + 30, "a future reset is used"
    clock.advance(30)
    assert waits(2) == [1, 2]


def test_past_reset_counts_once_for_all_running_attempts(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)
    now = clock.now().timestamp()
    assert [limiter.usage_limited(now - 60) for _ in range(4)] == [now + 1] * 4
    clock.advance(1)
    assert limiter.usage_limited(now - 60) == now + 3


def met(wait: float | None, infra: str = UsageLimited.code, *, named: bool = False) -> Ended:
    return Ended(
        claimed="none",
        verified="none",
        infra=infra,
        reason="infra_failed",
        strategy="process",
        index_sha256="",
        retry_after=wait,
        reset_named=named,
    )


def test_pauses_grow_without_a_gate() -> None:
    past = met(1.0)
    assert [pause([past] * count) for count in (1, 2, 3, 10, 11, 99)] == [1, 2, 4, 512, MAX_BACKOFF, MAX_BACKOFF]
    assert pause([past, past, met(600.0)]) == 600
    assert pause([past, met(600.0), past]) == 1
    assert pause([past, past, met(1.0, "ATTEMPT_WORKER_LOST")]) == 1
    assert pause([past, past, met(None, "ATTEMPT_WORKER_LOST")]) == 0


def test_usage_limit_without_a_reset_uses_up_retries() -> None:
    unknown, past, to_come = met(1.0), met(1.0, named=True), met(600.0, named=True)
    assert counted_tries([unknown] * 3) == 3, "an account without credit is not retried forever"
    assert counted_tries([to_come] * 99) == 0
    assert counted_tries([met(600.0)] * 99) == 0, "a delay counts like a reset time"
    assert counted_tries([past] * MAX_PAST) == 0, "clocks differ"
    assert counted_tries([past] * (MAX_PAST + 2)) == 2
    assert counted_tries([*[past] * MAX_PAST, to_come, *[past] * MAX_PAST]) == 0
    assert counted_tries([met(1.0, infra="RUNTIME_CRASHED"), to_come, unknown]) == 2
    assert counted_tries([met(0.0, infra="ATTEMPT_WORKER_LOST"), None]) == 0


@pytest.mark.parametrize("stated", [9e11, 1e12 - 1, float("inf")])
def test_gate_is_never_closed_for_longer_than_the_maximum(tmp_path: Path, clock: ManualClock, stated: float) -> None:
    limiter = gate(tmp_path, clock)
    now = clock.now().timestamp()
    assert limiter.usage_limited(stated) == now + MAX_PAUSE
    limiter.rate_limited(now, retry_after=stated)
    assert "cut to 8 days" in limiter.state().why
    assert limiter.enter("a", ME) == MAX_PAUSE
    clock.advance(MAX_PAUSE)
    assert limiter.enter("a", ME) is None


def test_stored_time_beyond_the_maximum_is_capped_once(tmp_path: Path, clock: ManualClock) -> None:
    """A state file written by something else, or before the clock was set back."""
    limiter = gate(tmp_path, clock)
    limiter.usage_limited(clock.now().timestamp() + 60)
    (state,) = tmp_path.glob("*.json")
    state.write_text(state.read_text().replace(str(limiter.state().closed_until), "900000000000.0"))
    assert limiter.enter("a", ME) == MAX_PAUSE
    clock.advance(MAX_PAUSE)
    assert limiter.enter("a", ME) is None


@given(st.floats() | st.integers(-(10**30), 10**30))
def test_retry_pause_has_the_same_maximum(stated: float) -> None:
    for name in ("resets_at", "retry_after"):
        met = UsageLimited("used up", op="turn", details={name: stated}, retryable=True)
        wait = retry_after(met, ManualClock())
        assert wait is not None
        assert 0 <= wait <= MAX_PAUSE


def test_closed_credentials_are_listed_with_time_and_reason(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)
    limiter.succeeded()
    assert limiter.closed() is None
    assert closed_gates(clock.now(), tmp_path) == ()
    limiter.usage_limited(clock.now().timestamp() + 60)
    (reported,) = closed_gates(clock.now(), tmp_path)
    assert reported == limiter.closed()
    assert (reported.credential, reported.why) == ("https://model KEY", "usage limit")
    assert parse_isoformat(reported.until) - clock.now() == timedelta(seconds=60)
    Path(reported.file).unlink()
    assert limiter.enter("a", ME) is None


def test_concurrency_of_one_run_does_not_limit_others(tmp_path: Path, clock: ManualClock) -> None:
    large, small = gate(tmp_path, clock, caller="large"), gate(tmp_path, clock, 1, caller="small")
    for _ in range(40):
        large.succeeded()
    window = large.state().window
    assert window > 8
    small.succeeded()
    assert large.state().window == window
    for number in range(3):
        assert large.enter(f"a-{number}", ME) is None
    assert small.enter("b", ME) is None, "there is room, and it uses no slot itself"
    assert small.enter("c", ME) is not None
    small.release("b")
    assert small.enter("c", ME) is None


def test_slot_of_a_dead_process_is_released(tmp_path: Path, clock: ManualClock) -> None:
    dead = {**ME, "pid": 1 << 30}
    living = gate(tmp_path, clock, alive=lambda process: process["pid"] != 1 << 30)
    for number in range(4):
        gate(tmp_path, clock, alive=lambda _: True).enter(f"d-{number}", dead)
    assert fill(living) == 4


def test_damaged_state_is_reset(tmp_path: Path, clock: ManualClock) -> None:
    limiter = gate(tmp_path, clock)
    limiter.usage_limited(None)
    (state,) = tmp_path.glob("*.json")
    state.write_text("{")
    assert limiter.enter("a", ME) is None


@given(st.lists(st.sampled_from(["enter", "leave", "well", "limited", "pause", "wait"]), max_size=40))
def test_slots_never_exceed_the_window_and_the_gate_reopens(tmp_path_factory: Any, steps: list[str]) -> None:
    clock = ManualClock()
    limiter = gate(tmp_path_factory.mktemp("limits"), clock, most=6)
    inside: list[str] = []
    for number, step in enumerate(steps):
        before = limiter.state()
        if step == "enter":
            if limiter.enter(f"a-{number}", ME) is None:
                inside.append(f"a-{number}")
                assert len(inside) <= min(6, before.window)
                assert before.closed_until <= clock.now().timestamp()
        elif step == "leave" and inside:
            limiter.release(inside.pop())
        elif step == "well":
            limiter.succeeded()
        elif step == "limited":
            limiter.rate_limited(clock.now().timestamp(), retry_after=3)
        elif step == "pause":
            limiter.usage_limited(clock.now().timestamp() + 7)
        else:
            clock.advance(2)
        state = limiter.state()
        assert 1 <= state.window <= 6
        assert len(state.inside) == len(inside)
    clock.advance(10)
    for name in inside:
        limiter.release(name)
    assert limiter.enter("last", ME) is None
