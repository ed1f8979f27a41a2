"""RI-FGSM and its forms with many starts, as in the reference code but that they go by what the policy really sees."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bcl.attacks.noise import fill_uniform, uniform
from bcl.attacks.objectives import CrossEntropy, Objective, ascent, clean_scores
from bcl.attacks.threat import AttackedPolicy, Ball, Budget, Randomness, demand, per_sample

DRAW = 64  # starts whose noise is drawn at once
ALPHA = 0.375  # saturates for eps < 0.1875: every element with a gradient lands on +eps or -eps


@dataclass(frozen=True)
class RIFGSM:
    """One full step along the gradient taken at a random point of the ball."""

    objective: Objective = CrossEntropy()

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        noise = uniform(obs, eps, generator)
        clean = clean_scores(self.objective, policy, obs)
        _, _, gradient = ascent(self.objective, policy, obs + noise, clean)  # may lie outside the box
        return _step(obs, noise, gradient)


@dataclass(frozen=True)
class _ManyStarts:
    starts: int = 1000
    chunk: int = field(default=0, repr=False, compare=False)
    """Images per forward pass, though never less than 64 whole batches; bounds memory, not the result. 0: by device."""

    def __post_init__(self) -> None:
        demand("at least 1", starts=self.starts)
        demand("at least 0", chunk=self.chunk)

    def _scan(
        self, policy: AttackedPolicy, obs: Tensor, clean: Tensor, rank: Tensor, eps: Budget, generator: Randomness
    ) -> Tensor:
        """The earliest start among those reaching the lowest-ranked action; only the best so far is kept."""
        batch, actions = clean.shape
        ball = Ball.around(policy, obs, eps)
        chunk = self.chunk or (20_480 if obs.is_cuda else 2_048)
        per_pass = DRAW * max(1, chunk // (DRAW * batch))
        sample = torch.arange(batch, device=obs.device)
        best = obs
        best_key = torch.full((batch,), self.starts * actions, device=obs.device)
        for first in range(0, self.starts, per_pass):
            count = min(per_pass, self.starts - first)
            # Drawn DRAW starts at a time, whatever the chunk, so that the chunk cannot change the result.
            noise = obs.new_empty(count, *obs.shape)
            for part in noise.split(DRAW):
                fill_uniform(part, generator)
            noise.mul_(eps)
            clean_copies = clean.expand(count, batch, actions).flatten(0, 1)
            _, _, gradient = ascent(CrossEntropy(), policy, (obs + noise).flatten(0, 1), clean_copies)
            found = ball.project(_step(obs, noise, gradient.view_as(noise)))
            reached = policy(found.flatten(0, 1)).argmax(dim=1).view(count, batch)
            order = torch.arange(first, first + count, device=obs.device).unsqueeze(1)
            key, which = (rank.gather(1, reached.T).T * self.starts + order).min(dim=0)
            better = per_sample(key < best_key, obs)
            best = torch.where(better, found[which, sample], best)
            best_key = torch.minimum(key, best_key)
        return best


@dataclass(frozen=True)
class Multi(_ManyStarts):
    """RI-FGSM from many starts: the first that changes the action, else the first."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        unwanted = torch.zeros_like(clean).scatter(1, clean.argmax(dim=1, keepdim=True), 1)
        return self._scan(policy, obs, clean, unwanted.long(), eps, generator)


@dataclass(frozen=True)
class MultiT(_ManyStarts):
    """RI-FGSM from many starts: the first that reaches the action with the lowest clean score of all reached."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        rank = clean.argsort(dim=1, stable=True).argsort(dim=1)  # 0 for the lowest score
        return self._scan(policy, obs, clean, rank, eps, generator)


def _step(obs: Tensor, noise: Tensor, gradient: Tensor) -> Tensor:
    # the reference descends from +noise and negates, so elements without gradient keep -noise
    return (obs - noise).add_(gradient.sign_(), alpha=ALPHA)  # still to be projected
