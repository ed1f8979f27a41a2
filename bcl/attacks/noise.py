"""Attacks that follow no gradient, and the draws that others start from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bcl.attacks.objectives import lead
from bcl.attacks.threat import AttackedPolicy, Ball, Budget, Randomness, demand, per_sample

WINDOWS = 64  # queries whose windows are drawn at once
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
        places = 10_000 * torch.arange(1, self.queries, device=obs.device)
        halvings = sum((places > at * self.queries).double() for at in SQUARE_HALVINGS)
        for shares in (self.area / 2**halvings).split(WINDOWS):
            windows = Windows.draw(obs, shares, generator)
            for query in range(len(shares)):
                inside, up = windows[query]
                tried = torch.where(inside, ball.corner(up), best)
                behind = lead(policy(tried), action)
                best = torch.where(per_sample(behind < least, best), tried, best)
                least = torch.minimum(behind, least)
        return best


def uniform(obs: Tensor, eps: Budget, generator: Randomness, copies: int = 1) -> Tensor:
    """Independent U(-eps, eps) in the shape and memory layout of `obs`, which is `copies` of a batch."""
    noise = torch.empty_like(obs)
    shares = noise.unflatten(0, (copies, -1))  # of eps
    _fill(shares, 1, generator, lambda part, own: part.uniform_(-1, 1, generator=own))
    return noise.mul_(eps)


def signs(shape: Sequence[int], like: Tensor, generator: Randomness) -> Tensor:
    """Independent fair signs (B, ...)."""
    return 2 * coins(shape, like, generator).to(like.dtype) - 1


def coins(shape: Sequence[int], like: Tensor, generator: Randomness) -> Tensor:
    """Independent fair truth values (B, ...)."""
    numbers = torch.empty(tuple(shape), dtype=torch.long, device=like.device)
    _fill(numbers, 0, generator, lambda part, own: part.random_(2, generator=own))
    return numbers > 0


def _fill(out: Tensor, dim: int, generator: Randomness, fill: Callable[[Tensor, Generator], Tensor]) -> None:
    if isinstance(generator, Generator):
        fill(out, generator)
        return
    for part, own in zip(out.chunk(len(generator), dim), generator, strict=True):
        part.copy_(fill(torch.empty_like(part), own))  # in the order in which it would be filled alone


@dataclass(frozen=True)
class Windows:
    """Where observations are changed, and whether up, for some queries: squares with one direction per channel, or runs
    of vectors. They are drawn at once: on a GPU single draws take longer than a query."""

    rows: Tensor  # (queries, B, 1, height, 1); of vectors (queries, B, length)
    columns: Tensor | None  # (queries, B, 1, 1, width)
    up: Tensor  # (queries, B, C, 1, 1); of vectors one for each element

    @classmethod
    def draw(cls, obs: Tensor, shares: Tensor, generator: Randomness) -> "Windows":
        """`shares` (queries,) of the observation."""
        queries, batch = len(shares), len(obs)
        if obs.dim() != 4:
            length = obs[0].numel()
            runs = _runs(obs, length, shares * length, generator)
            ups = _uniform_numbers(obs, queries, length, generator) < 0.5
            return cls(runs.view(queries, *obs.shape), None, ups.view(queries, *obs.shape))
        channels, height, width = obs.shape[1:]
        sides = (shares * height * width).sqrt()
        rows = _runs(obs, height, sides, generator).view(queries, batch, 1, height, 1)
        columns = _runs(obs, width, sides, generator).view(queries, batch, 1, 1, width)
        ups = _uniform_numbers(obs, queries, channels, generator) < 0.5
        return cls(rows, columns, ups.view(queries, batch, channels, 1, 1))

    def __getitem__(self, query: int) -> tuple[Tensor, Tensor]:
        rows = self.rows[query]
        return rows if self.columns is None else rows & self.columns[query], self.up[query]


def _runs(obs: Tensor, places: int, wanted: Tensor, generator: Randomness) -> Tensor:
    """(queries, B, places) true on randomly placed runs of `wanted` (queries,) places, at least one and at most all."""
    lengths = wanted.round().clamp(1, places).view(-1, 1, 1)
    start = (_uniform_numbers(obs, len(wanted), 1, generator) * (places - lengths + 1)).floor()
    place = torch.arange(places, device=obs.device)
    return (place >= start) & (place < start + lengths)


def _uniform_numbers(obs: Tensor, queries: int, numbers: int, generator: Randomness) -> Tensor:
    """(queries, B, numbers) U(0, 1)."""
    drawn = torch.empty(queries, len(obs), numbers, device=obs.device)
    _fill(drawn, 1, generator, lambda part, own: part.uniform_(0, 1, generator=own))
    return drawn
