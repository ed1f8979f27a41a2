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
