"""Attacks that follow the sign of the gradient."""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import torch
from torch import Tensor

from bcl.attacks.noise import uniform
from bcl.attacks.objectives import CrossEntropy, Objective, TowardActions, ascent, clean_scores, flips
from bcl.attacks.threat import AttackedPolicy, Ball, Budget, Randomness, demand, per_copy, per_sample
from bcl.errors import ConfigError

APGD_MOMENTUM = 0.75  # weight of the new step against the last one
APGD_RISES = 0.75  # share of steps since the last checkpoint that must raise the objective
# Its multiples, modulo 1, fill [0, 1) evenly, and otherwise than those by which budgets are spread.
SQRT_2 = 1.4142135623730951


@dataclass(frozen=True)
class FGSM:
    """One full step from the clean point; exact for linear policies (Goodfellow et al. 2015)."""

    objective: Objective = CrossEntropy()

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        _, _, gradient = ascent(self.objective, policy, obs, clean_scores(self.objective, policy, obs))
        return obs + eps * gradient.sign()


@dataclass(frozen=True)
class PGD:
    """Projected steps of size `step` * eps; the last iterate, and the best of the restarts (Madry et al. 2018)."""

    steps: int
    step: float
    random_start: bool = False
    restarts: int = 1
    objective: Objective = CrossEntropy()

    def __post_init__(self) -> None:
        demand("at least 1", steps=self.steps, restarts=self.restarts)
        demand("above 0", step=self.step)
        if self.restarts > 1 and not self.random_start:
            what = f"{self.restarts} restarts from the clean point are all the same"
            raise ConfigError(what, "set random_start=True")

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        chooses = self.restarts > 1  # by what the clean action was
        clean = _copies(policy(obs) if chooses else clean_scores(self.objective, policy, obs), self.restarts)
        obs = _copies(obs, self.restarts)
        eps = per_copy(eps, self.restarts)
        start = uniform(obs, eps, generator, self.restarts) if self.random_start else 0
        ball = Ball.around(policy, obs, eps)
        found = climb(self.objective, policy, obs + start, clean, ball, self.steps, self.step * eps)
        if not chooses:
            return found
        scores = policy(found)
        values = self.objective(scores, clean).view(self.restarts, -1)
        flipped = flips(scores, clean).view(self.restarts, -1)
        passed_over = flipped.any(dim=0) & ~flipped
        return _pick(found, values.masked_fill(passed_over, float("-inf")).argmax(dim=0))


@dataclass(frozen=True)
class MixedPGD:
    """PGD; on a share of the observations from a random point in steps as large as eps. For training, in one pass."""

    steps: int
    step: float
    random_start: bool
    large_steps: float
    objective: Objective = CrossEntropy()

    def __post_init__(self) -> None:
        demand("at least 1", steps=self.steps)
        demand("above 0", step=self.step)

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = clean_scores(self.objective, policy, obs)
        places = torch.arange(len(obs), dtype=torch.float64, device=obs.device)
        large = per_sample((places * SQRT_2).frac() < self.large_steps, obs)
        start = uniform(obs, eps, generator) * (large | self.random_start)
        size = torch.where(large, 1.0, self.step).to(obs.dtype) * eps
        ball = Ball.around(policy, obs, eps)
        return climb(self.objective, policy, obs + start, clean, ball, self.steps, size)


@dataclass(frozen=True)
class WorstAction:
    """PGD towards every action at once; of the actions really reached, the one with the lowest clean score."""

    steps: int = 50
    step: float = 0.1
    random_start: bool = True

    def __post_init__(self) -> None:
        demand("at least 1", steps=self.steps)
        demand("above 0", step=self.step)

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        batch, actions = clean.shape
        towards = TowardActions(torch.arange(actions, device=obs.device).repeat_interleave(batch))
        obs = _copies(obs, actions)
        clean = _copies(clean, actions)
        eps = per_copy(eps, actions)
        start = uniform(obs, eps, generator, actions) if self.random_start else 0
        ball = Ball.around(policy, obs, eps)
        found = climb(towards, policy, obs + start, clean, ball, self.steps, self.step * eps)
        reached = policy(found).argmax(dim=1, keepdim=True)
        return _pick(found, clean.gather(1, reached).view(actions, batch).argmin(dim=0))


@dataclass(frozen=True)
class APGD:
    """Auto-PGD (Croce and Hein 2020) from a random point: momentum, halved steps, restarts from the best point."""

    steps: int = 100
    objective: Objective = CrossEntropy()

    def __post_init__(self) -> None:
        demand("at least 1", steps=self.steps)

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        ball = Ball.around(policy, obs, eps)
        windows = checkpoints(self.steps)

        x = last = best = ball.project(obs + uniform(obs, eps, generator))
        scores, value, gradient = ascent(self.objective, policy, x, clean)
        best_value = value
        best_gradient = gradient
        best_flips = flips(scores, clean)
        size = per_sample(torch.ones_like(value), obs) * 2 * eps
        rises = torch.zeros_like(value)
        improved = torch.zeros_like(best_flips)
        halved = torch.zeros_like(best_flips)

        for k in range(1, self.steps + 1):
            weight = 1.0 if k == 1 else APGD_MOMENTUM
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
                halved = (rises < APGD_RISES * windows[k]) | (~halved & ~improved)
                size = torch.where(per_sample(halved, obs), size / 2, size)
                x = torch.where(per_sample(halved, obs), best, x)
                gradient = torch.where(per_sample(halved, obs), best_gradient, gradient)
                value = torch.where(halved, best_value, value)
                rises = torch.zeros_like(rises)
                improved = torch.zeros_like(improved)
        return best


def climb(
    objective: Objective, policy: AttackedPolicy, obs: Tensor, clean: Tensor, ball: Ball, steps: int, size: Budget
) -> Tensor:
    """`steps` projected steps along the sign of the gradient; the last iterate."""
    obs = ball.project(obs)
    for _ in range(steps):
        _, _, gradient = ascent(objective, policy, obs, clean)
        obs = ball.project(obs + size * gradient.sign())
    return obs


def _copies(batch: Tensor, count: int) -> Tensor:
    """`count` copies of a batch, one after the other."""
    return batch.repeat(count, *[1] * (batch.dim() - 1))


def _pick(copies: Tensor, which: Tensor) -> Tensor:
    """From stacked copies of a batch, for each sample b its copy which[b]."""
    stacked = copies.view(-1, len(which), *copies.shape[1:])
    return stacked[which, torch.arange(len(which), device=which.device)]


def checkpoints(steps: int) -> dict[int, int]:
    """Steps at which progress is looked at, each with those since the one before."""
    percents = [0, 22]
    while percents[-1] < 100:
        percents.append(percents[-1] + max(percents[-1] - percents[-2] - 3, 6))
    at = sorted({ceil(percent * steps / 100) for percent in percents if percent <= 100})
    return {end: end - start for start, end in pairwise(at)}
