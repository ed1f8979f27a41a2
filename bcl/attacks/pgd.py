"""Attacks that follow the sign of the gradient."""

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import NamedTuple

import torch
from torch import Generator, Tensor

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
        return _climbed(self, policy, obs, eps, generator)

    def begin(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness) -> "Climb":
        """Restarts are rows of one batch."""
        chooses = self.restarts > 1  # by what the clean action was
        clean = _copies(policy(obs) if chooses else clean_scores(self.objective, policy, obs), self.restarts)
        obs = _copies(obs, self.restarts)
        eps = per_copy(eps, self.restarts)
        start = uniform(obs, eps, generator, self.restarts) if self.random_start else 0
        return Climb(self.objective, obs + start, clean, Ball.around(policy, obs, eps), self.step * eps)

    def end(self, policy: AttackedPolicy, begun: "Climb", found: Tensor) -> Tensor:
        """The best of the restarts."""
        if self.restarts == 1:
            return found
        clean = begun.clean
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
        return climb(policy, Climb(self.objective, obs + start, clean, ball, size), self.steps)


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
        return _climbed(self, policy, obs, eps, generator)

    def begin(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness) -> "Climb":
        """Actions are rows of one batch."""
        clean = policy(obs)
        batch, actions = clean.shape
        towards = TowardActions(torch.arange(actions, device=obs.device).repeat_interleave(batch))
        obs = _copies(obs, actions)
        clean = _copies(clean, actions)
        eps = per_copy(eps, actions)
        start = uniform(obs, eps, generator, actions) if self.random_start else 0
        return Climb(towards, obs + start, clean, Ball.around(policy, obs, eps), self.step * eps)

    def end(self, policy: AttackedPolicy, begun: "Climb", found: Tensor) -> Tensor:
        """Of the actions really reached, the one with the lowest clean score."""
        actions = begun.clean.shape[1]
        reached = policy(found).argmax(dim=1, keepdim=True)
        return _pick(found, begun.clean.gather(1, reached).view(actions, -1).argmin(dim=0))


class Climb(NamedTuple):
    """What `climb` begins from."""

    objective: Objective
    obs: Tensor
    clean: Tensor
    ball: Ball
    size: Budget


@dataclass(frozen=True)
class Together:
    """Several climbs of as many steps, whose rows are one batch: each finds what it would find alone."""

    attacks: tuple[PGD | WorstAction, ...]
    """One for each generator, and of an equal share of the rows."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        assert isinstance(eps, Tensor)
        assert not isinstance(generator, Generator)
        owners = list(dict.fromkeys(self.attacks))
        counts = [self.attacks.count(owner) for owner in owners]
        copies = len(obs) // len(self.attacks)
        rows = [copies * count for count in counts]
        ends = list(accumulate(counts))
        draws = [generator[end - count : end] for end, count in zip(ends, counts, strict=True)]
        parts = zip(owners, obs.split(rows), eps.split(rows), draws, strict=True)
        begun = [owner.begin(policy, *part) for owner, *part in parts]
        whole = Climb(
            _ByRows(tuple(one.objective for one in begun), tuple(one.clean for one in begun)),
            torch.cat([one.obs for one in begun]),
            obs.new_empty(0),
            Ball(torch.cat([one.ball.lo for one in begun]), torch.cat([one.ball.hi for one in begun])),
            torch.cat([torch.as_tensor(one.size) for one in begun]),
        )
        found = climb(policy, whole, owners[0].steps).split([len(one.obs) for one in begun])
        return torch.cat([owner.end(policy, one, part) for owner, one, part in zip(owners, begun, found, strict=True)])


@dataclass(frozen=True)
class _ByRows:
    """Objectives, each of rows of its own, as many as it has clean scores."""

    objectives: tuple[Objective, ...]
    clean: tuple[Tensor, ...]

    def __call__(self, scores: Tensor, _clean: Tensor, /) -> Tensor:
        parts = scores.split([len(clean) for clean in self.clean])
        found = zip(self.objectives, parts, self.clean, strict=True)
        return torch.cat([objective(part, clean) for objective, part, clean in found])


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

        x = last = ball.project(obs + uniform(obs, eps, generator))
        scores, value, gradient = ascent(self.objective, policy, x, clean)
        best = _Best(x, value, gradient, flips(scores, clean))
        size = per_sample(torch.ones_like(value), obs) * 2 * eps
        rises = torch.zeros_like(value)
        improved = torch.zeros_like(best.flips)
        halved = torch.zeros_like(best.flips)

        for k in range(1, self.steps + 1):
            x, last = _moved(x, last, gradient, size, ball, 1.0 if k == 1 else APGD_MOMENTUM), x
            scores, new_value, gradient = ascent(self.objective, policy, x, clean)
            rises = rises + (new_value > value)
            value = new_value
            best, better = _better(best, x, value, gradient, scores, clean)
            improved = improved | better

            if k in windows:
                halved = (rises < APGD_RISES * windows[k]) | (~halved & ~improved)
                size = torch.where(per_sample(halved, obs), size / 2, size)
                x = torch.where(per_sample(halved, obs), best.x, x)
                gradient = torch.where(per_sample(halved, obs), best.gradient, gradient)
                value = torch.where(halved, best.value, value)
                rises = torch.zeros_like(rises)
                improved = torch.zeros_like(improved)
        return best.x


class _Best(NamedTuple):
    """The best point so far of each observation, and what was found there."""

    x: Tensor
    value: Tensor
    gradient: Tensor
    flips: Tensor


def _moved(x: Tensor, last: Tensor, gradient: Tensor, size: Tensor, ball: Ball, weight: float) -> Tensor:
    target = ball.project(x + size * gradient.sign())
    return ball.project(x + weight * (target - x) + (1 - weight) * (x - last))


def _better(
    best: _Best, x: Tensor, value: Tensor, gradient: Tensor, scores: Tensor, clean: Tensor
) -> tuple[_Best, Tensor]:
    """The best with a new point, and where that is better: one that changes the action is, else one of higher value."""
    flipped = flips(scores, clean)
    better = (flipped & ~best.flips) | ((flipped == best.flips) & (value > best.value))
    images = per_sample(better, x)
    kept = _Best(
        torch.where(images, x, best.x),
        torch.where(better, value, best.value),
        torch.where(images, gradient, best.gradient),
        best.flips | flipped,
    )
    return kept, better


def climb(policy: AttackedPolicy, begun: Climb, steps: int) -> Tensor:
    """`steps` projected steps along the sign of the gradient; the last iterate."""
    obs = begun.ball.project(begun.obs)
    for _ in range(steps):
        _, _, gradient = ascent(begun.objective, policy, obs, begun.clean)
        obs = begun.ball.project(obs + begun.size * gradient.sign())
    return obs


def _climbed(
    attack: PGD | WorstAction, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness
) -> Tensor:
    begun = attack.begin(policy, obs, eps, generator)
    return attack.end(policy, begun, climb(policy, begun, attack.steps))


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
