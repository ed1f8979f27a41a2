"""Attacks that follow no gradient, and the draws that others start from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Generator, Tensor

from bcl.attacks.objectives import lead
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
        action = policy(obs).argmax(dim=1)
        ball = Ball.around(policy, obs, eps)
        columns = (len(obs), obs.shape[1], 1, obs.shape[3]) if obs.dim() == 4 else obs.shape
        best = ball.corner(coins(columns, obs, generator))  # stripes; of vectors, every element by itself
        least = lead(policy(best), action)
        lengths = obs.shape[2:] if obs.dim() == 4 else (obs[0].numel(),)
        places = [torch.arange(length, device=obs.device) for length in lengths]
        for query in range(1, self.queries):
            share = self.area / 2 ** sum(query * 10_000 > halving * self.queries for halving in SQUARE_HALVINGS)
            inside, up = _window(obs, share, places, generator)
            tried = torch.where(inside, ball.corner(up), best)
            behind = lead(policy(tried), action)
            best = torch.where(per_sample(behind < least, best), tried, best)
            least = torch.minimum(behind, least)
        return best


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
    return 2 * coins(shape, like, generator).to(like.dtype) - 1


def coins(shape: Sequence[int], like: Tensor, generator: Randomness) -> Tensor:
    """Independent fair truth values (B, ...)."""
    return random_numbers(2, shape, like, generator) > 0


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


def _window(obs: Tensor, share: float, places: Sequence[Tensor], generator: Randomness) -> tuple[Tensor, Tensor]:
    """Where, and whether up: a square with one direction per channel, or a run of a vector."""
    if obs.dim() != 4:
        inside = _run(obs, places[0], round(share * len(places[0])), generator)
        return inside.view_as(obs), coins(obs.shape, obs, generator)
    batch, channels, height, width = obs.shape
    side = round(sqrt(share * height * width))
    rows, columns = (_run(obs, place, side, generator) for place in places)
    inside = rows.view(batch, 1, height, 1) & columns.view(batch, 1, 1, width)
    return inside, coins((batch, channels, 1, 1), obs, generator)


def _run(obs: Tensor, place: Tensor, wanted: int, generator: Randomness) -> Tensor:
    """(B, places) true on a randomly placed run of `wanted` places, at least one and at most all."""
    run = min(max(wanted, 1), len(place))
    start = random_numbers(len(place) - run + 1, (len(obs), 1), obs, generator)
    return (place >= start) & (place < start + run)
