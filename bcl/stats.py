"""The statistics we report, and when none should be reported."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

MIN_FOR_INTERVAL = 3


@dataclass(frozen=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return float(np.mean(values))


def sem(values: Sequence[float]) -> float:
    """Standard error of the mean with the population deviation, as the paper reports it."""
    return float(np.std(values) / np.sqrt(len(values)))


def iqm(values: Sequence[float]) -> float:
    """Interquartile mean: the mean of the middle half, fractional ends weighted (Agarwal et al. 2021)."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    edges = np.arange(len(ordered) + 1) / len(ordered)
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float(ordered @ weights / weights.sum())


def iqm_interval(values: Sequence[float], seed: int = 0) -> Interval | None:
    """Bootstrap interval of the interquartile mean; none where n < 3 or nothing varies."""
    if len(values) < MIN_FOR_INTERVAL or len(set(values)) == 1:
        return None
    result = stats.bootstrap(
        (np.asarray(values),), lambda x: iqm(x), vectorized=False, method="percentile", n_resamples=2000,
        random_state=np.random.default_rng(seed),
    )  # fmt: skip
    return Interval(float(result.confidence_interval.low), float(result.confidence_interval.high))


def median_run(scores: Sequence[float]) -> int:
    """Index of the run with the median score, the lower one of two: the paper reports the median of 3 runs."""
    return int(np.argsort(np.asarray(scores), kind="stable")[(len(scores) - 1) // 2])
