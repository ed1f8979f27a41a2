"""Rules that a curriculum can have, and the budgets it climbs."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcl.curriculum import bcl
from bcl.curriculum_rules import Rules, budgets
from bcl.errors import ConfigError


@pytest.mark.parametrize(
    ("settings_", "what"),
    [
        ({"runs": 2, "min_runs": 3}, "min_runs"),
        ({"skip": 1.0, "nominal_threshold": 1}, "skipping needs a threshold under attack"),
        ({"failed_phases": 2}, "giving up needs a threshold"),
        ({"value": "normalised", "nominal_threshold": 1}, "need both thresholds"),
        ({"value": "normalised", "nominal_threshold": 1, "attacked_threshold": 0}, "above the floor"),
    ],
)
def test_rules_that_cannot_work_are_refused(settings_: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Rules(eps=(0.0, 1.0, 2.0, 3.0), **settings_)


def test_budgets_are_the_floats_people_write() -> None:
    assert budgets(9 / 255, 40 / 255, 1 / 255) == tuple(k / 255 for k in range(9, 41))
    assert budgets(0.0, 0.05, 0.02) == (0.0, 0.02, 0.04, 0.05)  # does not divide: a short last step
    assert budgets(0.0, 0.1 * 3, 0.1) == (0.0, 0.1, 0.2, 0.1 * 3)  # one rounding above 0.3: no step of its own
    assert budgets(0.0, 0.05, 0.2) == (0.0, 0.05)
    assert budgets(1 / 255, None, 1 / 255) == tuple(k / 255 for k in range(1, 256))
    with pytest.raises(ConfigError, match=r"1e\+09 budgets .* are too many"):
        budgets(0.0, None, 1e-9)
    for start, target, increment in ((0.1, 0.1, 0.01), (0.2, 0.1, 0.01), (0.0, 0.1, 0.0)):
        with pytest.raises(ConfigError, match="no budgets"):
            budgets(start, target, increment)


@given(st.floats(0, 0.5), st.floats(0.001, 0.5), st.floats(0.001, 1))
def test_budgets_rise_by_the_increment(start: float, width: float, increment: float) -> None:
    eps = budgets(start, start + width, increment)
    steps = [b - a for a, b in pairwise(eps)]
    assert (eps[0], eps[-1]) == (start, start + width)
    assert steps[:-1] == pytest.approx([increment] * (len(steps) - 1))
    assert 0 < steps[-1] <= increment * (1 + 1e-5)


def test_a_decision_has_both_returns_even_of_a_run_that_misses_the_first_threshold() -> None:
    rules, returns = Rules(eps=(0.0, 1.0), nominal_threshold=10, attacked_threshold=5), {0.0: 9.0, 1.0: 4.0}
    result = bcl("start", rules, train=lambda parent, phase: iter(["run"]), score=lambda policy, eps: returns[eps])
    [run] = result.decisions[1].candidates
    assert (run.met, run.scores) == (False, returns)
