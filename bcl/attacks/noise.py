"""Random perturbations: attacks of their own, and where the others start."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bcl.attacks.threat import Budget, Policy


@dataclass(frozen=True)
class UniformNoise:
    """Every element moves by U(-eps, eps)."""

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Generator, /) -> Tensor:
        return obs + uniform(obs, eps, generator)


@dataclass(frozen=True)
class CornerNoise:
    """Every element moves by +eps or -eps: a random corner of the ball."""

    def __call__(self, policy: Policy, obs: Tensor, eps: Budget, generator: Generator, /) -> Tensor:
        return obs + eps * signs(obs.shape, obs, generator)


def uniform(obs: Tensor, eps: Budget, generator: Generator) -> Tensor:
    """Independent U(-eps, eps) in the shape of `obs`, and laid out like it in memory."""
    return fill_uniform(torch.empty_like(obs), eps, generator)


def fill_uniform(out: Tensor, eps: Budget, generator: Generator) -> Tensor:
    """Overwrite a tensor with independent U(-eps, eps)."""
    if isinstance(eps, Tensor):
        return out.uniform_(-1, 1, generator=generator).mul_(eps)
    return out.uniform_(-eps, eps, generator=generator)  # one pass over the memory instead of two


def signs(shape: Sequence[int], like: Tensor, generator: Generator) -> Tensor:
    """Independent fair signs."""
    return 2 * torch.randint(2, tuple(shape), generator=generator, dtype=like.dtype, device=like.device) - 1
