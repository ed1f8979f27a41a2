"""Random actions that are held for a while: single ones undo each other where only a longer push leads anywhere."""

import torch
from torch import Generator, Tensor


class HeldActions:
    """Which copies of a game play a random action, and which; in fixed places, so that graphs can hold it."""

    def __init__(self, num_envs: int, num_actions: int, longest: int, generator: Generator) -> None:
        """`longest`: an action is held for 1 to so many steps, n or more with probability 1/n (Dabney et al. 2021)."""
        self._num_actions = num_actions
        self._longest = longest
        self._generator = generator
        self._held = torch.zeros(num_envs, dtype=torch.long, device=generator.device)
        self._left = torch.zeros_like(self._held)  # steps for which an action is held

    def restart(self) -> None:
        """Every copy was started anew."""
        self._left.zero_()

    def instead_of(self, actions: Tensor, share: Tensor) -> Tensor:
        """(N,) `actions`, with random ones in their place on some copies; `share` of the others begin one."""
        shape, generator, device = actions.shape, self._generator, actions.device
        draws = torch.rand(2, *shape, generator=generator, device=device)
        random = torch.randint(self._num_actions, shape, generator=generator, device=device)
        begins = (self._left == 0) & (draws[0] < share)
        length = (1 / (1 - draws[1])).clamp(max=self._longest).long()
        self._held.copy_(torch.where(begins, random, self._held))
        self._left.copy_(torch.where(begins, length, self._left))
        played = torch.where(self._left > 0, self._held, actions)
        self._left.sub_(1).clamp_(min=0)
        return played
