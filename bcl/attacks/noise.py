"""Attacks that follow no gradient, and the draws that others start from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Generator, Tensor

from bcl.attacks.objectives import Margin
from bcl.attacks.threat import AttackedPolicy, Ball, Budget, Randomness, demand, per_sample

SQUARE_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # per 10,000 queries


@dataclass(frozen=True)
class UniformNoise:
    """Every element moves by U(-eps, eps)."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        return obs + uniform(obs, eps, generator)


@dataclass(frozen=True)
class CornerNoise:
    """Every element moves by +eps or -eps: a random corner of the ball."""

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        return obs + eps * signs(obs.shape, obs, generator)


@dataclass(frozen=True)
class Square:
    """Square attack, Linf (Andriushchenko et al. 2020): random windows move to +-eps where that raises the margin."""

    queries: int = 500
    area: float = 0.8

    def __post_init__(self) -> None:
        demand("at least 1", queries=self.queries)
        demand("between 0 and 1", area=self.area)

    def __call__(self, policy: AttackedPolicy, obs: Tensor, eps: Budget, generator: Randomness, /) -> Tensor:
        clean = policy(obs)
        ball = Ball.around(policy, obs, eps)
        columns = (len(obs), obs.shape[1], 1, obs.shape[3]) if obs.dim() == 4 else obs.shape
        best = ball.project(obs + eps * signs(columns, obs, generator))  # stripes; of vectors, every element by itself
        best_value = Margin()(policy(best), clean)
        for query in range(1, self.queries):
            share = self.area / 2 ** sum(query * 10_000 > halving * self.queries for halving in SQUARE_HALVINGS)
            inside, sign = _window(obs, share, generator)
            tried = _tried(obs, eps, inside, sign, best, ball)
            best, best_value = _better(best, best_value, tried, policy(tried), clean)
        return best


def _tried(obs: Tensor, eps: Budget, inside: Tensor, sign: Tensor, best: Tensor, ball: Ball) -> Tensor:
    return ball.project(torch.where(inside, obs + eps * sign, best))


def _better(best: Tensor, best_value: Tensor, tried: Tensor, scores: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
    value = Margin()(scores, clean)
    return torch.where(per_sample(value > best_value, best), tried, best), torch.maximum(value, best_value)


def uniform(obs: Tensor, eps: Budget, generator: Randomness, copies: int = 1) -> Tensor:
    """Independent U(-eps, eps) in the shape and memory layout of `obs`, which is `copies` of a batch."""
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
    for part, own in zip(out.chunk(len(generator), dim), generator, strict=True):
        part.copy_(fill(torch.empty_like(part), own))  # in the order in which it would be filled alone


def _window(obs: Tensor, share: float, generator: Randomness) -> tuple[Tensor, Tensor]:
    """Where and whither: a square with one sign per channel, or a run of a vector."""
    if obs.dim() != 4:
        flat = obs.flatten(1)
        inside = _run(flat, flat.shape[1], round(share * flat.shape[1]), generator)
        return inside.view_as(obs), signs(obs.shape, obs, generator)
    batch, channels, height, width = obs.shape
    side = round(sqrt(share * height * width))
    rows, columns = (_run(obs, length, side, generator) for length in (height, width))
    inside = rows.view(batch, 1, height, 1) & columns.view(batch, 1, 1, width)
    return inside, signs((batch, channels, 1, 1), obs, generator)


def _run(obs: Tensor, length: int, wanted: int, generator: Randomness) -> Tensor:
    """(B, length) true on a randomly placed run of `wanted` places, at least one and at most all."""
    run = min(max(wanted, 1), length)
    start = random_numbers(length - run + 1, (len(obs), 1), obs, generator)
    place = torch.arange(length, device=obs.device)
    return (place >= start) & (place < start + run)
