"""Each function equals SciPy's where SciPy has one.

Tests import SciPy where they use it, in one worker, because this takes longer than all of them.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proofbox.lab.statistics import (
    compare_means,
    describe,
    detectable_difference,
    holm,
    mcnemar,
    missions_needed,
    sign_flip,
    t_interval,
    tango,
    wilson,
)
from proofbox.lab.statistics.functions import binomial_cdf, incomplete_beta, normal_quantile, t_quantile, t_tail

pytestmark = pytest.mark.xdist_group("scipy")
EXACT = 1e-9

LEVELS = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])


def near(value: float | tuple[float, float]) -> object:
    return pytest.approx(value, rel=EXACT, abs=EXACT)


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), LEVELS)
def test_wilson_equals_scipy(counts: tuple[int, int], level: float) -> None:
    from scipy import stats

    passed, n = counts
    theirs = stats.binomtest(passed, n).proportion_ci(level, method="wilson")
    assert wilson(passed, n, level) == near((theirs.low, theirs.high))


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_equals_a_binomial_test(first: int, second: int) -> None:
    from scipy import stats

    theirs = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(first, second) == near(theirs)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=60), LEVELS)
def test_the_interval_of_a_mean_equals_scipy(values: list[float], level: float) -> None:
    import numpy as np
    from scipy import stats

    error = stats.sem(values)
    if not error > 1e-12:
        return
    low, high = stats.t.interval(level, len(values) - 1, np.mean(values), error)
    assert t_interval(values, level) == near((low, high))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_sign_flips_equal_scipy(differences: list[int]) -> None:
    import numpy as np
    from scipy import stats

    if len(differences) == 1:
        assert sign_flip(differences).p == 1.0
        return
    theirs = stats.permutation_test(
        (differences,),
        lambda x, axis: np.sum(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    ours = sign_flip([Fraction(d, 5) for d in differences])
    assert ours.exact
    assert ours.p == near(theirs.pvalue)


@settings(max_examples=25)  # SciPy's paired test is slow
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=2, max_size=8))
def test_compared_means_equal_a_paired_t_test(values: list[tuple[int, int]]) -> None:
    from scipy import stats

    a, b = ({str(number): value[side] for number, value in enumerate(values)} for side in (0, 1))
    found, alone, nothing = compare_means([({**a, "only here": 1.0}, b), ({"m": 3.0}, {"m": 1.0}), ({"m": 1.0}, {})])
    assert found is not None
    differences = [x - y for x, y in values]
    assert (found.missions, found.p) == (len(values), sign_flip(differences).p)
    if len(set(differences)) > 1:
        theirs = stats.ttest_rel(list(a.values()), list(b.values())).confidence_interval(0.95)
        assert (found.low, found.high) == near((theirs.low, theirs.high))
    assert alone is not None
    assert (alone.difference, alone.low, alone.p, nothing) == (2, None, 1, None)


@pytest.mark.parametrize("df", [1, 2, 3, 9, 29, 199, 5000])
def test_students_t_equals_scipy(df: int) -> None:
    from scipy import stats

    for p in (0.001, 0.05, 0.2, 0.5, 0.8, 0.95, 0.975, 0.999):
        assert t_quantile(p, df) == near(stats.t.ppf(p, df))
    for t in (0.0, 0.1, 1.0, 2.5, 20.0):
        assert t_tail(t, df) == near(stats.t.sf(t, df))


@given(st.floats(0.5, 500), st.floats(0.5, 500), st.floats(0, 1))
def test_the_incomplete_beta_function_equals_scipy(a: float, b: float, x: float) -> None:
    from scipy import stats

    assert incomplete_beta(a, b, x) == near(float(stats.beta.cdf(x, a, b)))


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(-1, n), st.just(n))), st.floats(0.01, 0.99))
def test_the_binomial_distribution_equals_scipy(counts: tuple[int, int], p: float) -> None:
    from scipy import stats

    k, n = counts
    assert binomial_cdf(k, n, p) == near(float(stats.binom.cdf(k, n, p)))
    assert normal_quantile(p) == near(float(stats.norm.ppf(p)))


@given(st.lists(st.floats(0, 1e6), min_size=6, max_size=80))
def test_the_interval_of_a_median_equals_scipy(values: list[float]) -> None:
    from scipy import stats

    theirs = stats.quantile_test(values, p=0.5).confidence_interval(0.95)
    ours = describe(values)
    assert ours is not None
    assert (ours.low, ours.high) == (theirs.low, theirs.high)


@given(st.integers(6, 300), st.integers(1, 50), st.floats(0.05, 0.95), st.sampled_from([0.5, 0.8, 0.95]))
def test_the_power_of_a_design_equals_that_of_a_normal_test(
    missions: int, replicates: int, rate: float, power: float
) -> None:
    from scipy import stats

    difference = detectable_difference(missions, replicates, rate=rate, between=0.1, power=power)
    if difference == 1:
        return
    deviation = math.sqrt(0.01 + 2 * rate * (1 - rate) / replicates)
    error = deviation / math.sqrt(missions)
    assert float(stats.norm.sf(stats.norm.ppf(0.975) - difference / error)) == near(power)
    assert missions_needed(difference, deviation, power=power) == missions


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for alpha in (0.01, 0.05, 0.2):
        rejected = set()
        for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
            if p_values[index] * (len(p_values) - rank) > alpha:
                break
            rejected.add(index)
        assert {i for i, p in enumerate(corrected) if p <= alpha} == rejected


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.001, 0.5, 0.02, 0.9], [1.0, 0.005, 1.0, 0.08, 1.0]),
        ([0.049], [0.049]),
    ],
)
def test_holm_gives_the_values_of_statsmodels(p_values: list[float], corrected: list[float]) -> None:
    """As computed by multipletests(method="holm") of statsmodels 0.15, whose import takes too long for a test."""
    assert holm(p_values) == [near(each) for each in corrected]


@pytest.mark.parametrize(
    ("first", "second", "n"), [(0, 0, 10), (9, 2, 50), (1, 14, 40), (5, 5, 10), (10, 0, 10), (3, 0, 30)]
)
def test_tango_inverts_the_score_test(first: int, second: int, n: int) -> None:
    """At each end, the score statistic at the likeliest parameters with that difference is the normal quantile."""
    for level in (0.9, 0.95):
        z = normal_quantile(1 - (1 - level) / 2)
        for end, sign in zip(tango(first, second, n, level), (1, -1), strict=True):
            if abs(end) == 1:
                continue
            p = likeliest(first, second, n, end)
            variance = n * (2 * p + end * (1 - end))
            assert (first - second - n * end) / math.sqrt(variance) == pytest.approx(sign * z, rel=1e-4)


def likeliest(first: int, second: int, n: int, difference: float) -> float:
    """The likeliest share of pairs in which only the second passes, found by search."""
    from scipy import optimize

    def loss(p: float) -> float:
        cells = ((first, p + difference), (second, p), (n - first - second, 1 - 2 * p - difference))
        return -sum(count * math.log(share) if share > 0 else -math.inf for count, share in cells if count)

    low, high = max(0.0, -difference), (1 - difference) / 2
    found = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-12})
    return float(min((low, high, found.x), key=loss))


def test_a_sampled_sign_flip_test_is_close_to_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(7)
    differences = [Fraction(generator.randint(-5, 8), 5) for _ in range(14)]
    exact = sign_flip(differences)
    monkeypatch.setattr("proofbox.lab.statistics.hypotheses.MAX_EXACT_SUMS", 3)
    sampled = sign_flip(differences, seed=1)
    assert exact.exact
    assert not sampled.exact
    assert sampled == sign_flip(differences, seed=1)
    assert sampled.p == pytest.approx(exact.p, abs=0.02)
    assert sampled.p > 0
