"""Schedules against the numbers of the paper's code, and against its formula in exact fractions."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcl import schedules

END = 4_000_000
steps = st.integers(0, 6_000_000)


# --- exploration


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 1.0), (1, 0.99999802), (125_000, 0.7525), (250_000, 0.505), (500_000, 0.01), (6_000_000, 0.01)],
)
def test_exploration_of_vanilla_dqn(step, expected):
    assert schedules.exploration(step, 1.0, 0.01, 0, 500_000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 1.0), (80_000, 1.0), (455_000, 0.7625), (830_000, 0.525), (1_580_000, 0.05), (6_000_000, 0.05)],
)
def test_exploration_held_at_first(step, expected):
    assert schedules.exploration(step, 1.0, 0.05, 80_000, 1_500_000) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("decay", [0, 1])
def test_exploration_without_decay_steps_down_after_the_hold(decay):
    assert [schedules.exploration(step, 1.0, 0.25, 2, decay) for step in range(5)] == [1.0, 1.0, 1.0, 0.25, 0.25]


def test_constant_exploration():
    assert {schedules.exploration(step, 0.01, 0.01, 0, 1) for step in (0, 1, 2, 10**7)} == {0.01}


# --- the ramp


@pytest.mark.parametrize(
    ("step", "begin", "expected", "digits"),
    [
        (100_000, 256, 1e-5, 5), (250_000, 256, 3.0e-4, 5), (500_000, 256, 4.80e-3, 5), (750_000, 256, 0.02431, 5),
        (1_000_000, 256, 0.07686, 5), (1_500_000, 256, 0.23072, 5), (2_000_000, 256, 0.38458, 5),
        (3_000_000, 256, 0.69229, 5), (4_000_000, 256, 1.0, 16), (4_500_000, 256, 1.0, 16),
        (250_000, 50_000, 1.3e-4, 5), (500_000, 50_000, 0.00332, 5), (1_000_000, 50_000, 0.06589, 5),
        (2_000_000, 50_000, 0.37683, 5), (3_000_000, 50_000, 0.68841, 5),
    ],
)  # fmt: skip
def test_smooth_ramp_of_the_papers_runs(step, begin, expected, digits):
    """Adversarial training begins after 256 steps, RADIAL after 50,000."""
    assert round(schedules.ramp(step, begin, END, "smooth"), digits) == expected


def exact_smooth(step, begin, finish):
    """The public code's formula, with its alpha."""
    middle = begin + (finish - begin) // 4
    if step <= begin:
        return Fraction(0)
    if step >= finish:
        return Fraction(1)
    if middle == begin:
        return Fraction(step - begin, finish - begin)
    cube = (middle - begin) ** 3
    alpha = Fraction(1, (finish - middle) * 4 * cube + (middle - begin) * cube)
    if step < middle:
        return alpha * (step - begin) ** 4
    at_middle = alpha * (middle - begin) ** 4
    return at_middle + (1 - at_middle) * Fraction(step - middle, finish - middle)


@given(step=steps, begin=st.integers(0, 2_000_000), length=st.integers(1, 5_000_000))
def test_smooth_ramp_is_the_formula(step, begin, length):
    expected = exact_smooth(step, begin, begin + length)
    assert schedules.ramp(step, begin, begin + length, "smooth") == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 11])
def test_smooth_ramp_over_a_few_steps(length):
    values = [schedules.ramp(step, 7, 7 + length, "smooth") for step in range(5, 9 + length)]
    assert values == pytest.approx([float(exact_smooth(step, 7, 7 + length)) for step in range(5, 9 + length)])
    assert values[2] == 0
    assert values[-2] == 1


def test_smooth_ramp_of_eight_steps_by_hand():
    # The bend is at 2 steps and 2 / (2 + 4 * 6) = 1 / 13; the first step has 1 / 16 of that, the rest rises by 2 / 13.
    thirteenths = [0, 1 / 16, 1, 3, 5, 7, 9, 11, 13]
    assert [13 * schedules.ramp(step, 0, 8, "smooth") for step in range(9)] == pytest.approx(thirteenths)


@pytest.mark.parametrize(
    ("step", "begin", "finish", "expected"),
    [
        (0, 256, END, 0.0), (255, 256, END, 0.0), (256, 256, END, 2.5e-7), (260, 256, END, 1.25e-6),
        (2_000_255, 256, END, 0.5), (4_000_000, 256, END, 0.99993625), (4_000_255, 256, END, 1.0),
        (2_250_000, 50_000, END, 0.55000025), (9_000_000, 50_000, END, 1.0),
        (2_249_999, 0, 4_500_000, 0.5), (4_499_999, 0, 4_500_000, 1.0),
    ],
)  # fmt: skip
def test_linear_ramp_divides_by_its_end(step, begin, finish, expected):
    assert schedules.ramp(step, begin, finish, "linear") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["smooth", "linear"])
@pytest.mark.parametrize(("begin", "finish"), [(5, 5), (5, 3), (5, 0), (0, 0)])
def test_a_ramp_without_length_is_a_step(kind, begin, finish):
    values = [schedules.ramp(step, begin, finish, kind) for step in (0, begin, begin + 1, begin + 100)]
    assert values == [0.0, 0.0, 1.0, 1.0]


@given(
    first=steps, later=steps, begin=st.integers(0, 100_000), finish=steps, kind=st.sampled_from(["smooth", "linear"])
)
def test_ramps_never_fall_and_stay_in_the_unit_interval(first, later, begin, finish, kind):
    first, later = sorted((first, later))
    assert 0 <= schedules.ramp(first, begin, finish, kind) <= schedules.ramp(later, begin, finish, kind) <= 1


# --- the exponential ramp


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (0, 1e-10), (14_648, 1e-10), (20_000, 1.7701e-9), (27_465, 9.7435e-8), (35_000, 5.5687e-6), (40_282, 9.4937e-5),
        (60_000, 1.07566e-3), (80_000, 2.07041e-3), (100_000, 3.06516e-3), (117_187, 3.92e-3), (146_484, 3.92e-3),
    ],
)  # fmt: skip
def test_exponential_ramp_of_the_papers_ppo(update, expected):
    assert schedules.exponential(update, 3.92e-3, 14_648, 117_187) == pytest.approx(expected, rel=2e-5)


def test_exponential_ramp_grows_by_a_constant_factor_and_then_by_a_constant_amount():
    values = [schedules.exponential(step, 0.05, 100, 500) for step in range(100, 501)]
    factors = [b / a for a, b in pairwise(values[:101])]
    amounts = [b - a for a, b in pairwise(values[100:])]
    assert factors == pytest.approx([factors[0]] * 100)
    assert amounts == pytest.approx([amounts[0]] * 300)
    growth = values[100] / values[0]
    assert growth * math.log(growth) == pytest.approx(0.05 / 1e-10 / 3)  # where the Lambert function puts the bend
    assert values[-1] == 0.05


@given(
    first=steps, later=steps, begin=st.integers(0, 100_000), length=st.integers(0, 10**6), end=st.floats(1e-9, 1)
)  # fmt: skip
def test_exponential_ramps_never_fall_and_end_where_they_should(first, later, begin, length, end):
    first, later = sorted((first, later))
    low, high = (schedules.exponential(step, end, begin, begin + length) for step in (first, later))
    assert 0 < low <= high * (1 + 1e-12)
    assert high <= end * (1 + 1e-12)
    assert schedules.exponential(begin + length + 1, end, begin, begin + length) == pytest.approx(end)


def test_exponential_budget_lies_on_top_of_its_start():
    ramp = [schedules.exponential(step, 0.2, 10, 90) for step in (0, 20, 60, 100)]
    rising = [schedules.budget(step, 0.1, 0.3, 10, 90, "exponential") for step in (0, 20, 60, 100)]
    falling = [schedules.budget(step, 0.3, 0.1, 10, 90, "exponential") for step in (0, 20, 60, 100)]
    assert rising == pytest.approx([0.1 + x for x in ramp])
    assert falling == pytest.approx([0.3 - x for x in ramp])


# --- what uses it


def test_budget_rises_from_its_start():
    at = [schedules.budget(step, 2 / 255, 3 / 255, 256, END, "smooth") * 255 for step in (0, 256, 2_000_000, END)]
    assert at == pytest.approx([2.0, 2.0, 2.38458, 3.0], abs=5e-6)
    assert schedules.budget(2_000_255, 0.0, 0.5, 256, END, "linear") == pytest.approx(0.25, rel=1e-12)


def test_budget_may_fall():
    assert schedules.budget(2_249_999, 0.75, 0.25, 0, 4_500_000, "linear") == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 1.0), (255, 1.0), (2_000_255, 0.75), (4_000_255, 0.5), (4_500_000, 0.5)]
)
def test_falling_kappa_is_linear(step, expected):
    assert schedules.kappa(step, 0.5, True, 256, END) == pytest.approx(expected, rel=1e-12)


def test_constant_kappa():
    assert {schedules.kappa(step, 0.8, False, 256, END) for step in (0, 256, 2_000_000, 4_500_000)} == {0.8}
