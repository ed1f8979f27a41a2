"""Random perturbations: attacks of their own, and where the others start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bcl.attacks.threat import Budget, Policy, Randomness


@dataclass(frozen=True)
class UniformNoise:
    """Every element moves by U(-eps, eps)."""

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        return obs + uniform(obs, eps, generator)


@dataclass(frozen=True)
class CornerNoise:
    """Every element moves by +eps or -eps: a random corner of the ball."""

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        return obs + eps * signs(obs.shape, obs, generator)


def uniform(obs: Tensor, eps: Budget, generator: Randomness, copies: int = 1) -> Tensor:
    """Independent U(-eps, eps) in the shape of `obs`, and laid out like it in memory; `copies`: how many of the batch it is."""
    noise = torch.empty_like(obs)
    fill_uniform(noise.unflatten(0, (copies, -1)), generator)
    return noise.mul_(eps)


def fill_uniform(out: Tensor, generator: Randomness) -> None:
    """Overwrite (copies, B, *shape) with independent U(-1, 1)."""
    _fill(out, 1, generator, lambda part, own: part.uniform_(-1, 1, generator=own))


def signs(shape: Sequence[int], like: Tensor, generator: Randomness) -> Tensor:
    """Independent fair signs (B, ...)."""
    return 2 * random_numbers(2, shape, like, generator).to(like.dtype) - 1


def random_numbers(below: int, shape: Sequence[int], like: Tensor, generator: Randomness) -> Tensor:
    """Independent whole numbers (B, ...) from 0 to `below` - 1."""
    numbers = torch.empty(tuple(shape), dtype=torch.long, device=like.device)
    _fill(numbers, 0, generator, lambda part, own: part.random_(below, generator=own))
    return numbers


def _fill(out: Tensor, dim: int, generator: Randomness, fill: Callable[[Tensor, Generator], Tensor]) -> None:
    if isinstance(generator, Generator):
        fill(out, generator)
        return
    for part, own in generator.parts(out, dim):
        part.copy_(fill(torch.empty_like(part), own))  # in the order in which it would be filled alone
