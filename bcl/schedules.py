"""What changes in a run, by agent step, for PPO by update; the paper (arXiv 2206.10057) via its code jlwu002/BCL."""

from math import copysign, exp
from typing import Literal

from scipy.special import lambertw

Ramp = Literal["smooth", "linear"]
SMALLEST = 1e-10  # where the exponential ramp starts, in observation units


def exploration(step: int, start: float, end: float, hold: int, decay: int) -> float:
    """Share of random actions: `start` until step `hold`, then linear to `end` within `decay` steps."""
    left = 1 - max(0, step - hold) / max(1, decay)
    return end + max(0.0, left) * (start - end)


def ramp(step: int, begin: int, finish: int, kind: Ramp) -> float:
    """Share of the way from `begin` to `finish`, in [0, 1]; without a way, 1 after `begin`.

    `smooth`: quartic over the first quarter of the way, then linear, meeting with equal slopes.
    """
    length = finish - begin
    done = step - begin
    if length <= 0:
        return float(done > 0)
    if kind == "linear":
        # As in the public code, divided by the end and not by the length: it is full `begin` - 1 steps after `finish`.
        return min(1.0, max(0.0, (done + 1) / finish))
    if done <= 0:
        return 0.0
    if done >= length:
        return 1.0
    bend = int(0.25 * length)  # 0 on ways shorter than 4 steps: linear throughout
    height = bend / (bend + 4 * (length - bend))  # where both parts have slope 4 * height / bend
    if done < bend:
        return float(height * (done / bend) ** 4)
    return height + (1 - height) * (done - bend) / (length - bend)


def exponential(step: int, end: float, begin: int, finish: int) -> float:
    """From 1e-10 to `end` >= 0: exponential over the first quarter of the way, then linear.

    The slopes would be equal at the bend if what is left to climb there were all of `end`, as the public code takes it.
    """
    bend = begin + int(0.25 * (finish - begin))
    growth = exp(float(lambertw(end / SMALLEST / 3).real))  # over the exponential part
    if step <= begin:
        return SMALLEST
    if step < bend:
        return SMALLEST * float(growth ** ((step - begin) / (bend - begin)))
    height = SMALLEST * growth
    return height + min(1.0, (step - bend) / max(1, finish - bend)) * (end - height)


def budget(step: int, start: float, end: float, begin: int, finish: int, kind: Ramp | Literal["exponential"]) -> float:
    """The adversary's budget, from `start` to `end`."""
    if kind == "exponential":
        return start + copysign(exponential(step, abs(end - start), begin, finish), end - start)
    return start + ramp(step, begin, finish, kind) * (end - start)


def kappa(step: int, end: float, falls: bool, begin: int, finish: int) -> float:
    """Weight of the standard loss: constantly `end`, or falling to it from 1, linearly whatever the budget's ramp."""
    return 1 - ramp(step, begin, finish, "linear") * (1 - end) if falls else end
