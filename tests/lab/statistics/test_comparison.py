"""Verdicts of comparisons, and what they say."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.lab.statistics import (
    ComparisonVerdict,
    MissionScores,
    compare,
    compare_all,
    describe,
    detectable_difference,
    flaky,
    highest_lower_end,
    holm,
    loss_bounds,
    missions_for_lower_end,
    missions_for_verdict,
    missions_needed,
    pass_at_k,
    pass_hat_k,
    pass_rate,
    replicates_needed,
    wilson,
)


def scores(*passed: int, of: int = 1) -> MissionScores:
    return {f"m{i}": (count, of) for i, count in enumerate(passed)}


def test_five_of_five_is_not_certain() -> None:
    low, high = wilson(5, 5)
    assert (round(low, 3), high) == (0.566, 1.0)


def test_no_trials_give_no_estimate() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert pass_rate([]).rate is None


@pytest.mark.parametrize(("passed", "n"), [(-1, 5), (6, 5), (0, -1)])
def test_impossible_counts_are_refused(passed: int, n: int) -> None:
    with pytest.raises(ValueError, match="between 0 and n"):
        wilson(passed, n)


COUNTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12)


@given(COUNTS, st.integers(0, 3))
def test_no_interval_leaves_the_range_of_its_quantity(counts: list[tuple[int, int]], lost: int) -> None:
    """A rate is between 0 and 1, and a difference of rates between -1 and 1: even with few missions, where Student's t
    is wide."""
    first, second = ({f"m{i}": (pair[side], 4) for i, pair in enumerate(counts)} for side in (0, 1))
    rate = pass_rate(list(first.values()))
    assert rate.rate is not None
    assert 0 <= rate.low <= rate.rate <= rate.high <= 1
    found = compare("a", first, "b", second, margin=0.05)
    assert -1 <= found.low <= found.difference <= found.high <= 1
    assert -1 <= found.narrow_low <= found.narrow_high <= 1
    bounds = loss_bounds(rate.passed, rate.scored, lost)
    assert 0 <= bounds.lowest <= bounds.highest <= 1


def test_wide_interval_is_cut_at_the_largest_possible_difference() -> None:
    found = compare("a", scores(4, 0, of=4), "b", scores(0, 4, of=4), margin=0.05)
    assert (found.low, found.high) == (-1.0, 1.0)


def test_replicates_that_always_agree_count_once() -> None:
    alike = pass_rate([(5, 5)] * 6 + [(0, 5)] * 4)
    assert alike.effective_n == pytest.approx(10)
    assert (alike.low, alike.high) == pytest.approx(wilson(6, 10))


def test_replicates_that_vary_count_as_much_as_so_few_missions_can_tell() -> None:
    assert pass_rate([(3, 5), (2, 5)] * 100).effective_n == pytest.approx(991, abs=1)
    assert pass_rate([(3, 5), (2, 5), (3, 5), (2, 5), (3, 5), (2, 5)]).effective_n == pytest.approx(18.99, abs=0.01)


def test_missions_that_all_passed_count_once_each() -> None:
    assert pass_rate([(5, 5)] * 8).effective_n == 8


def test_fewer_than_six_missions_are_never_significant() -> None:
    comparison = compare("a", scores(5, 5, 5, 5, 5, of=5), "b", scores(0, 0, 0, 0, 0, of=5), margin=0.05)
    assert comparison.verdict is ComparisonVerdict.UNDERPOWERED
    assert comparison.reason == "5 missions can never be significant: the smallest p-value is 0.062"
    assert comparison.missions_needed is not None
    assert comparison.missions_needed > 5


def test_six_missions_can_be() -> None:
    comparison = compare("a", scores(*[5] * 6, of=5), "b", scores(*[0] * 6, of=5), margin=0.05)
    assert (comparison.verdict, comparison.p) == (ComparisonVerdict.BETTER, 2 / 64)
    assert compare("b", scores(*[0] * 6), "a", scores(*[1] * 6), margin=0.05).verdict is ComparisonVerdict.WORSE


def test_correction_over_several_pairs_raises_the_bar() -> None:
    flows = {"a": scores(*[5] * 6, of=5), "b": scores(*[0] * 6, of=5), "c": scores(*[0] * 6, of=5)}
    first = compare_all(flows, margin=0.05)[0]
    assert first.corrected_p == pytest.approx(3 * first.p)
    assert first.verdict is ComparisonVerdict.UNDERPOWERED
    assert first.reason.endswith("the smallest p-value is 0.031, and 0.094 after the correction")
    assert [(c.first, c.second) for c in compare_all(flows, margin=0.05, against="c")] == [("a", "c"), ("b", "c")]


def test_identical_results_on_few_missions_are_not_equivalent() -> None:
    few = compare("a", scores(*[5] * 10, of=5), "b", scores(*[5] * 10, of=5), margin=0.05)
    assert few.verdict is ComparisonVerdict.UNDERPOWERED
    assert few.high - few.low > 0.5
    assert few.missions_needed == 52
    assert few.replicates_needed is None
    many = compare("a", scores(*[5] * 52, of=5), "b", scores(*[5] * 52, of=5), margin=0.05)
    assert (many.verdict, many.reason) == (ComparisonVerdict.EQUIVALENT, "the 90 % interval lies within 5 points")


def test_significant_difference_within_the_margin_is_equivalent_and_both_are_stated() -> None:
    slightly = {f"m{i}": (96 if i % 2 else 98, 100) for i in range(200)}
    base = {f"m{i}": (95, 100) for i in range(200)}
    comparison = compare("a", slightly, "b", base, margin=0.05)
    assert comparison.verdict is ComparisonVerdict.EQUIVALENT
    assert comparison.corrected_p < 0.05
    assert comparison.reason == (
        "the 90 % interval lies within 5 points; the difference is nevertheless significant (a is better)"
    )


def test_missions_that_one_flow_lost_are_dropped_and_counted() -> None:
    a, b = scores(1, 1, 0, 1), {**scores(1, 0, 0, 1), "m1": (0, 0), "m9": (1, 1)}
    comparison = compare("a", a, "b", b, margin=0.1)
    assert (comparison.missions, comparison.dropped) == (3, 2)


def test_flows_without_a_shared_mission_are_not_compared() -> None:
    comparison = compare("a", scores(1), "b", {"other": (1, 1)}, margin=0.1)
    assert (comparison.verdict, comparison.low, comparison.high) == (ComparisonVerdict.UNDERPOWERED, -1.0, 1.0)


def test_replicates_cannot_replace_missions() -> None:
    """Flows that differ from mission to mission need more missions, however often each is repeated."""
    comparison = compare("a", scores(*[5, 0] * 10, of=5), "b", scores(*[0, 5] * 10, of=5), margin=0.05)
    assert comparison.verdict is ComparisonVerdict.UNDERPOWERED
    assert comparison.replicates_needed is None
    assert comparison.missions_needed == missions_needed(0.05, 2 / (19 / 20) ** 0.5 / 2)


def test_planning_is_consistent() -> None:
    difference = detectable_difference(50, 8)
    assert replicates_needed(difference, 50) == 8
    assert replicates_needed(difference / 2, 50) == 32
    assert replicates_needed(0.05, 20, between=0.5) is None


def test_pass_at_k_and_pass_hat_k() -> None:
    counts = [(1, 2), (2, 2), (0, 2), (1, 1)]
    assert pass_at_k(counts, 2) == pytest.approx(2 / 3)
    assert pass_hat_k(counts, 2) == pytest.approx(1 / 3)
    assert pass_at_k(counts, 3) is None
    assert flaky(counts) == [0]


def test_losses_bound_the_rate() -> None:
    bounds = loss_bounds(6, 8, 2)
    assert (bounds.lowest, bounds.highest) == (0.6, 0.8)


def test_small_samples_have_no_interval_of_the_median() -> None:
    five, six = describe([1, 2, 3, 4, 5]), describe([1, 2, 3, 4, 5, 6])
    assert five is not None
    assert six is not None
    assert (five.median, five.low, five.high) == (3, None, None)
    assert (six.low, six.high) == (1, 6)
    assert describe([]) is None


def test_replicates_of_a_few_missions_say_little_about_the_median() -> None:
    values, missions = [1.0] * 10 + [2.0] * 10, ["a"] * 10 + ["b"] * 10
    alone, clustered = describe(values), describe(values, missions=missions)
    assert alone is not None
    assert clustered is not None
    assert (alone.low, alone.high) == (1, 2)
    assert (clustered.median, clustered.low, clustered.high) == (1.5, None, None)
    assert describe(values, missions=[str(number) for number in range(20)]) == alone


def test_values_without_a_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="not numbers"):
        describe([1.0, math.nan])
    with pytest.raises(ValueError, match="between 0 and 1, not nan"):
        holm([0.1, math.nan])
    with pytest.raises(ValueError, match="needs missions and replicates, not 0 and 1"):
        detectable_difference(0, 1)
    with pytest.raises(ValueError, match="a difference above 0"):
        missions_needed(0, 1)


@pytest.mark.parametrize(("missions", "replicates"), [(1, 3), (2, 2), (3, 2), (2, 4)])
def test_no_outcome_has_a_higher_lower_end(missions: int, replicates: int) -> None:
    outcomes = [(passed, n) for n in range(replicates + 1) for passed in range(n + 1)]
    best = max(pass_rate(counts).low for counts in product(outcomes, repeat=missions))
    assert highest_lower_end(missions, replicates) == pytest.approx(best)


def test_single_failure_can_raise_the_lower_end() -> None:
    """Attempts that all passed do not show how alike replicates are, and count as one per mission."""
    assert pass_rate([(30, 30)] * 3).low < 0.5 < pass_rate([(29, 30), (30, 30), (30, 30)]).low
    assert highest_lower_end(3, 30) > 0.8


@pytest.mark.parametrize("low", [0.3, 0.5, 0.9])
def test_missions_for_a_lower_end_are_the_fewest(low: float) -> None:
    needed = missions_for_lower_end(low)
    assert highest_lower_end(needed, 1) >= low > highest_lower_end(needed - 1, 1)


@pytest.mark.parametrize(("verdict", "passed"), [(ComparisonVerdict.BETTER, 0), (ComparisonVerdict.EQUIVALENT, 1)])
def test_missions_for_a_verdict_are_the_fewest(verdict: ComparisonVerdict, passed: int) -> None:
    needed = missions_for_verdict(verdict, 1, 0.1, 0.05)
    for missions, expected in ((needed, verdict), (needed - 1, ComparisonVerdict.UNDERPOWERED)):
        a, b = ({f"m{i}": (each, 1) for i in range(missions)} for each in (1, passed))
        assert compare("a", a, "b", b, margin=0.1).verdict is expected
