"""Which episodes are one and the same, but for how they began."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bcl.envs import Step

MIX = 6364136223846793005  # odd, with well mixed bits: a product by it, modulo 2**64, loses nothing


class Courses:
    """A number for the episode of each copy, the same where all rewards came after as many steps, counted from the first,
    and with the same observation. When the first came is left out: Atari's episodes begin with more or fewer no-ops."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.numbers = torch.zeros(num_envs, dtype=torch.long, device=device)  # 0: no reward yet
        self._rewarded = torch.zeros_like(self.numbers)  # length of the episode at the last reward

    def follow(self, step: Step, rewarded: Tensor, length: Tensor) -> None:
        """(N,) where there was a reward that counts, and the agent steps of each episode so far."""
        waited = (length - self._rewarded) * (self.numbers != 0)
        seen = step.obs.clone()
        seen[step.ended] = step.final_obs
        event = (waited * MIX + step.reward.double().view(torch.long)) * MIX + _digest(seen)
        self.numbers = torch.where(rewarded, (self.numbers * MIX + event) * MIX + 1, self.numbers)
        self._rewarded = torch.where(rewarded, length, self._rewarded)

    def restart(self, over: Tensor) -> None:
        """(N,) where an episode is over."""
        self.numbers[over] = 0
        self._rewarded[over] = 0


def different(numbers: Sequence[int]) -> int:
    """How many; episodes without any reward cannot be told apart and count as different."""
    return len({*numbers} - {0}) + numbers.count(0)


def _digest(obs: Tensor) -> Tensor:
    """(N,) one number for each observation, the same for the same."""
    bits = obs.flatten(1).double().contiguous().view(torch.long)
    odd = 2 * torch.arange(bits.shape[1], device=obs.device) + 1
    return (bits * (odd * MIX)).sum(dim=1)
