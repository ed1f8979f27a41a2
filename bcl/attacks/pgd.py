"""Attacks that follow the sign of the gradient: FGSM, PGD and the worst action that PGD can reach."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bcl.attacks.noise import uniform
from bcl.attacks.objectives import CrossEntropy, Objective, TowardActions, ascent, clean_scores, flips
from bcl.attacks.threat import Ball, Budget, Policy, Randomness, demand, per_copy
from bcl.errors import ConfigError


@dataclass(frozen=True)
class FGSM:
    """One full step from the clean point; exact for linear policies (Goodfellow et al. 2015)."""

    objective: Objective = CrossEntropy()

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
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
            raise ConfigError(f"{self.restarts} restarts from the clean point are all one", "set random_start=True")

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        chooses = self.restarts > 1  # by what the clean action was
        clean = _copies(policy(obs) if chooses else clean_scores(self.objective, policy, obs), self.restarts)
        obs, eps = _copies(obs, self.restarts), per_copy(eps, self.restarts)
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
class WorstAction:
    """PGD towards every action at once; of the actions really reached, the one with the lowest clean score."""

    steps: int = 50
    step: float = 0.1
    random_start: bool = True

    def __post_init__(self) -> None:
        demand("at least 1", steps=self.steps)
        demand("above 0", step=self.step)

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        batch, actions = clean.shape
        towards = TowardActions(torch.arange(actions, device=obs.device).repeat_interleave(batch))
        obs, clean, eps = _copies(obs, actions), _copies(clean, actions), per_copy(eps, actions)
        start = uniform(obs, eps, generator, actions) if self.random_start else 0
        ball = Ball.around(policy, obs, eps)
        found = climb(towards, policy, obs + start, clean, ball, self.steps, self.step * eps)
        reached = policy(found).argmax(dim=1, keepdim=True)
        return _pick(found, clean.gather(1, reached).view(actions, batch).argmin(dim=0))


def climb(
    objective: Objective, policy: Policy, obs: Tensor, clean: Tensor, ball: Ball, steps: int, size: Budget
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
