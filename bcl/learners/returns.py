"""Rewards in units of the running deviation of discounted returns, as OpenAI baselines' VecNormalize has them."""

import json
import math

import torch
from torch import Tensor

from bcl.errors import WeightsError

SMALL = 1e-8
FIRST_COUNT = 1e-4  # samples with mean 0 and variance 1 that are taken as seen, so that the first step can be divided


class ReturnScale:
    """How far discounted returns spread over all copies and all time; float64, in fixed places on the learner's device."""

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        self._gamma = gamma
        self._running = torch.zeros(
            num_envs, dtype=torch.float64, device=device
        )  # returns of the episodes being played
        first = torch.tensor([0.0, 1.0, FIRST_COUNT], dtype=torch.float64, device=device)
        self._mean, self._variance, self._count = first.unbind()

    def restart(self) -> None:
        """Every copy was started anew."""
        self._running.zero_()

    def scaled(self, rewards: Tensor, ended: Tensor) -> Tensor:
        """(N,) rewards of one vector step by all that was seen up to it, this step included."""
        self._running.mul_(self._gamma).add_(rewards)
        new, old = len(rewards), self._count.clone()
        self._count.add_(new)
        distance = self._running.mean() - self._mean
        squares = self._variance * old + self._running.var(correction=0) * new
        self._variance.copy_((squares + distance.square() * old * new / self._count) / self._count)
        self._mean.add_(distance * new / self._count)
        self._running.mul_(~ended)
        return (rewards / (self._variance + SMALL).sqrt()).float()

    def state(self) -> Tensor:
        """(3,) mean, variance and number of returns."""
        return torch.stack([self._mean, self._variance, self._count])

    def restore(self, state: Tensor) -> None:
        """Continue from `state`."""
        for place, number in zip((self._mean, self._variance, self._count), state, strict=True):
            place.copy_(number)

    def to_note(self) -> str:
        """The state as text, which can travel with a policy."""
        return json.dumps(self.state().tolist())

    def from_note(self, note: str) -> None:
        """Continue from what `to_note` wrote."""
        self.restore(torch.tensor(read_note(note), dtype=torch.float64))


def read_note(note: str) -> list[float]:
    """Mean, variance and number of returns from what `to_note` wrote; anything else is refused."""
    try:
        numbers = json.loads(note)
        if isinstance(numbers, list) and [type(number) for number in numbers] == [float] * 3:
            mean, variance, count = numbers
            if math.isfinite(mean) and 0 <= variance < math.inf and FIRST_COUNT <= count < math.inf:
                return numbers
    except (ValueError, RecursionError):
        pass
    what = f"the agent to start from has statistics of returns that cannot be read ({note:.60})"
    raise WeightsError(what, "start anew without ppo.keep_return_statistics")
