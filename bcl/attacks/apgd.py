"""Auto-PGD (Croce and Hein 2020): PGD with momentum that halves its own step and restarts from its best point."""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import torch
from torch import Tensor

from bcl.attacks.noise import uniform
from bcl.attacks.objectives import CrossEntropy, Objective, ascent, flips
from bcl.attacks.threat import Ball, Budget, Policy, Randomness, demand, per_sample

MOMENTUM = 0.75  # weight of the new step against the last one
ENOUGH_RISES = 0.75  # share of steps since the last checkpoint that must raise the objective


@dataclass(frozen=True)
class APGD:
    """From a random start; the best point seen, one that changes the action before one that does not."""

    steps: int = 100
    objective: Objective = CrossEntropy()

    def __post_init__(self) -> None:
        demand("at least 1", steps=self.steps)

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        ball = Ball.around(policy, obs, eps)
        windows = checkpoints(self.steps)

        x = last = best = ball.project(obs + uniform(obs, eps, generator))
        scores, value, gradient = ascent(self.objective, policy, x, clean)
        best_value, best_gradient, best_flips = value, gradient, flips(scores, clean)
        size = per_sample(torch.ones_like(value), obs) * 2 * eps
        rises = torch.zeros_like(value)
        improved = torch.zeros_like(best_flips)
        halved = torch.zeros_like(best_flips)

        for k in range(1, self.steps + 1):
            weight = 1.0 if k == 1 else MOMENTUM
            target = ball.project(x + size * gradient.sign())
            x, last = ball.project(x + weight * (target - x) + (1 - weight) * (x - last)), x
            scores, new_value, gradient = ascent(self.objective, policy, x, clean)
            rises = rises + (new_value > value)
            value = new_value

            flipped = flips(scores, clean)
            better = (flipped & ~best_flips) | ((flipped == best_flips) & (value > best_value))
            best = torch.where(per_sample(better, obs), x, best)
            best_gradient = torch.where(per_sample(better, obs), gradient, best_gradient)
            best_value = torch.where(better, value, best_value)
            best_flips = best_flips | flipped
            improved = improved | better

            if k in windows:
                halved = (rises < ENOUGH_RISES * windows[k]) | (~halved & ~improved)
                size = torch.where(per_sample(halved, obs), size / 2, size)
                x = torch.where(per_sample(halved, obs), best, x)
                gradient = torch.where(per_sample(halved, obs), best_gradient, gradient)
                value = torch.where(halved, best_value, value)
                rises, improved = torch.zeros_like(rises), torch.zeros_like(improved)
        return best


def checkpoints(steps: int) -> dict[int, int]:
    """Steps after which progress is judged, each with the number of steps since the one before."""
    percents = [0, 22]
    while percents[-1] < 100:
        percents.append(percents[-1] + max(percents[-1] - percents[-2] - 3, 6))
    at = sorted({ceil(percent * steps / 100) for percent in percents if percent <= 100})
    return {end: end - start for start, end in pairwise(at)}
