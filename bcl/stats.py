"""The statistics we report, and when none should be reported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    return float(_iqm(np.asarray(values, dtype=np.float64)))


def iqm_interval(values: Sequence[float], seed: int = 0) -> Interval | None:
    """Bootstrap interval of the interquartile mean; none where n < 3 or nothing varies."""
    return _bootstrap([values], lambda x, axis: _iqm(x), seed)


def mean_interval(runs: Sequence[Sequence[float]]) -> Interval | None:
    """Bootstrap interval of the mean over runs, episodes drawn anew within each; none where n < 3 or nothing varies."""
    return _bootstrap(runs, lambda *drawn, axis: np.mean([np.mean(run, axis=axis) for run in drawn], axis=0))


def certainly_less(xs: Sequence[float], ys: Sequence[float]) -> bool:
    """Whether the 95 % intervals of two means lie apart, the first below; of n < 3 nothing is certain."""
    if min(len(xs), len(ys)) < MIN_FOR_INTERVAL or mean(xs) >= mean(ys):
        return False
    x, y = (mean_interval([returns]) or Interval(mean(returns), mean(returns)) for returns in (xs, ys))
    return x.high < y.low


def improvement(xs: Sequence[Sequence[float]], ys: Sequence[Sequence[float]]) -> float:
    """P(X > Y) of two episodes, ties counted half (Mann-Whitney); of several runs each, the mean over pairs."""
    codes = _codes([*xs, *ys])
    return float(_wins(codes[: len(xs)], codes[len(xs) :]))


def improvement_interval(xs: Sequence[Sequence[float]], ys: Sequence[Sequence[float]]) -> Interval | None:
    """Its bootstrap interval; none as in `mean_interval`, and at 0 and 1, where drawing again tells nothing."""
    if not 1e-9 < improvement(xs, ys) < 1 - 1e-9:
        return None
    return _bootstrap(_codes([*xs, *ys]), lambda *drawn, axis: _wins(drawn[: len(xs)], drawn[len(xs) :]))


def _codes(runs: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """Every return as the place of its value among all values: only order matters."""
    distinct = np.unique(np.concatenate([np.asarray(run) for run in runs]))
    return [np.searchsorted(distinct, run) for run in runs]


def _wins(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]) -> np.ndarray:
    """U / nm over the last axis of codes, mean over pairs of runs; bilinear, so shares are averaged first."""
    values = 1 + max(int(codes.max()) for codes in (*xs, *ys))
    x, y = (np.mean([_shares(codes, values) for codes in runs], axis=0) for runs in (xs, ys))
    return (x * (np.cumsum(y, axis=-1) - y / 2)).sum(axis=-1)


def _shares(codes: np.ndarray, values: int) -> np.ndarray:
    """(..., n) codes -> (..., values) shares."""
    rows = codes.reshape(-1, codes.shape[-1])
    numbered = rows + values * np.arange(len(rows))[:, None]
    counts = np.bincount(numbered.ravel(), minlength=values * len(rows))
    return counts.reshape(*codes.shape[:-1], values) / codes.shape[-1]


def _iqm(values: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    edges = np.arange(values.shape[-1] + 1) / values.shape[-1]
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return np.sort(values, axis=-1) @ weights / weights.sum()


def _bootstrap(
    runs: Sequence[Sequence[float] | np.ndarray], statistic: Callable[..., Any], seed: int = 0
) -> Interval | None:
    if min(map(len, runs)) < MIN_FOR_INTERVAL or all(len({*run}) == 1 for run in runs):
        return None
    result = stats.bootstrap(
        [np.asarray(run) for run in runs], statistic, method="percentile", n_resamples=2000,
        random_state=np.random.default_rng(seed),
    )  # fmt: skip
    return Interval(float(result.confidence_interval.low), float(result.confidence_interval.high))


def median_run(scores: Sequence[float]) -> int:
    """Index of the run with the median score, the lower one of two: the paper reports the median of 3 runs."""
    return int(np.argsort(np.asarray(scores), kind="stable")[(len(scores) - 1) // 2])
