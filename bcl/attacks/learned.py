"""An adversary that plans ahead (after Sun et al. 2022): a director chooses actions, PGD leads the victim to them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bcl.attacks.objectives import TowardActions
from bcl.attacks.pgd import Climb, climb
from bcl.attacks.threat import Attack, AttackedPolicy, Ball, Budget, Randomness, per_sample
from bcl.errors import BclError, ConfigError

SHORTEST = 1_000  # agent steps of a training
NO_TARGET = -1  # aimed at no action: the observation is shown as it is
Director = Callable[[Tensor], Tensor]
"""(B, *shape) observations to (B,) actions that the victim is to take, or NO_TARGET."""


@dataclass(frozen=True)
class Directed:
    """PGD from the clean point towards the action that a director chooses for each observation."""

    director: Director = field(repr=False)
    steps: int = 10
    step: float = 0.25

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        aims = self.director(obs)
        ball = Ball.around(policy, obs, eps)
        towards = TowardActions(aims.clamp(min=0))
        found = climb(policy, Climb(towards, obs, obs.new_empty(0), ball, self.step * eps), self.steps)
        return torch.where(per_sample(aims == NO_TARGET, obs), obs, found)


@dataclass(frozen=True)
class Learned:
    """A director trained against one agent at one budget, or a stronger myopic attack."""

    training: int = 60_000
    """Agent steps of the director's training on vectors; images take ten times as many."""
    found: Attack | None = field(default=None, repr=False)
    """What the training came to; none: not trained yet."""

    @property
    def instead(self) -> Attack | None:
        """The myopic attack that was stronger than the director, and is played; none: the director is."""
        return None if isinstance(self.found, Directed) else self.found

    def __post_init__(self) -> None:
        if self.training < SHORTEST:
            raise ConfigError(f"{self.training} steps are too few to train an adversary", f"give {SHORTEST:,} or more")

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        if self.found is None:
            raise BclError("the learned adversary has to be trained first", "'bcl attack --attack learned' does")
        return self.found(policy, obs, eps, generator)
