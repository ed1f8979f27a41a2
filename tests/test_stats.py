import numpy as np
import pytest
from scipy import stats as scipy_stats

from bcl import stats


def test_sem_is_the_papers() -> None:
    assert stats.sem([1.0, 3.0]) == pytest.approx(1 / np.sqrt(2))  # population deviation 1, n = 2


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 4.0], list(range(100)), [5.0, 1.0, 9.0, 2.0, 2.0, 7.0, 3.0, 3.0]])
def test_iqm_is_the_trimmed_mean_where_quarters_are_whole(values: list[float]) -> None:
    assert stats.iqm(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25))


def test_iqm_weights_the_ends_of_the_middle_half() -> None:
    # n = 3: the middle half is [0.25, 0.75], of which the first and last value each hold 1/12 and the middle one 1/3.
    assert stats.iqm([0.0, 6.0, 18.0]) == pytest.approx((0 / 12 + 6 / 3 + 18 / 12) / 0.5)
    assert stats.iqm([7.0]) == 7.0


def test_no_interval_below_three_or_without_variation() -> None:
    assert stats.iqm_interval([1.0, 2.0]) is None
    assert stats.iqm_interval([1.0, 1.0, 1.0]) is None
    interval = stats.iqm_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert interval is not None
    assert interval.low <= stats.iqm([1, 2, 3, 4, 5]) <= interval.high
    assert interval == stats.iqm_interval([1.0, 2.0, 3.0, 4.0, 5.0])


def test_interval_covers() -> None:
    draws = np.random.default_rng(0)
    hits = 0
    for i in range(40):
        interval = stats.iqm_interval(draws.normal(size=40).tolist(), seed=i)
        assert interval is not None
        hits += interval.low <= 0 <= interval.high
    assert hits >= 34  # 95 % of 40 is 38


def test_median_run_is_a_run_that_happened() -> None:
    assert stats.median_run([3.0, 1.0, 2.0]) == 2
    assert stats.median_run([4.0, 1.0, 2.0, 3.0]) == 2


def test_improvement_counts_pairs_and_halves_ties() -> None:
    # Of 2 x 3 pairs 3 is more than 1, ties with 3, is less than 5; 6 is more than all three: (1 + 0.5 + 0 + 3) / 6.
    assert stats.improvement([[3.0, 6.0]], [[1.0, 3.0, 5.0]]) == pytest.approx(4.5 / 6)
    assert stats.improvement([[2.0, 2.0]], [[2.0]]) == 0.5
    assert stats.improvement([[1.0, 0.0]], [[2.0, 3.0]]) == 0


def test_improvement_is_mann_whitneys_and_weighs_runs_alike() -> None:
    draws = np.random.default_rng(1)
    x, y = draws.integers(0, 6, 30).tolist(), draws.integers(1, 7, 20).tolist()
    assert stats.improvement([x], [y]) == pytest.approx(scipy_stats.mannwhitneyu(x, y).statistic / (30 * 20))
    assert stats.improvement([x], [y]) + stats.improvement([y], [x]) == pytest.approx(1)
    # Runs: [0, 0, 0, 0] against [1] is 0, [2] against [1] is 1; each run counts once, however many episodes it has.
    assert stats.improvement([[0.0] * 4, [2.0]], [[1.0]]) == 0.5


def test_intervals_are_drawn_within_runs() -> None:
    # Only one run varies, so the mean stays between (1 + 3) / 2 and (1 + 4) / 2; drawn from the pool it would not.
    interval = stats.mean_interval([[1.0] * 5, [3.0, 3.0, 3.0, 4.0, 4.0]])
    assert interval is not None
    assert 2.0 <= interval.low < 2.2 < interval.high <= 2.5
    # Of the pairs of runs one is always won, the other never or partly.
    interval = stats.improvement_interval([[1.0] * 5, [9.0] * 5], [[0.0, 2.0, 2.0, 2.0, 2.0]])
    assert interval is not None
    assert 0.5 == interval.low < interval.high <= 1


def test_no_interval_where_episodes_cannot_tell() -> None:
    assert stats.mean_interval([[1.0] * 5, [3.0] * 5]) is None  # no run varies
    assert stats.mean_interval([[1.0, 2.0, 3.0], [1.0, 2.0]]) is None  # too few
    assert stats.improvement_interval([[1.0, 2.0]], [[1.0, 2.0, 3.0]]) is None
    won = [[*range(10, 17)], [*range(20, 27)]], [[*range(7)], [*range(1, 8)], [*range(2, 9)]]
    assert stats.improvement_interval(*won) is None


def test_the_interval_of_a_mean_is_about_two_standard_errors_wide() -> None:
    values = np.random.default_rng(2).normal(10, 3, 200).tolist()
    interval = stats.mean_interval([values])
    assert interval is not None
    assert interval.low == pytest.approx(np.mean(values) - 1.96 * stats.sem(values), abs=0.06)
    assert interval.high == pytest.approx(np.mean(values) + 1.96 * stats.sem(values), abs=0.06)


def test_the_interval_of_improvement_is_about_mann_whitneys() -> None:
    draws = np.random.default_rng(3)
    x, y = draws.normal(0.5, 1, 80), draws.normal(0, 1, 80)
    interval = stats.improvement_interval([x.tolist()], [y.tolist()])
    p = stats.improvement([x.tolist()], [y.tolist()])
    # The variance of U / nm by DeLong: of the share of y below each x, and of x above each y.
    per_x, per_y = (x[:, None] > y).mean(axis=1), (x[:, None] > y).mean(axis=0)
    error = np.sqrt(per_x.var(ddof=1) / 80 + per_y.var(ddof=1) / 80)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((p - 1.96 * error, p + 1.96 * error), abs=0.015)
