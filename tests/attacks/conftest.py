"""Toy policies: any callable with a box is one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


class Toy(nn.Module):
    def __init__(self, network: Callable[[Tensor], Tensor], low: float = 0.0, high: float = 1.0) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("low", torch.tensor(low))
        self.register_buffer("high", torch.tensor(high))

    def forward(self, obs: Tensor) -> Tensor:
        return self.network(obs)


def _mlp(seed: int, inputs: int, actions: int, scale: float = 4.0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, actions))
    return _drawn(network, generator, scale)


def _cnn(seed: int, actions: int, scale: float = 4.0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    body = [nn.Conv2d(1, 4, 4, stride=2), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten()]
    return _drawn(nn.Sequential(*body, nn.Linear(72, actions)), generator, scale)


def _drawn(network: nn.Module, generator: torch.Generator, scale: float) -> nn.Module:
    with torch.no_grad():
        for parameter in network.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 10
            parameter.copy_(scale * (torch.rand(parameter.shape, generator=generator) - 0.5) / fan_in**0.5)
    return network


@pytest.fixture(scope="session")
def mlp() -> Callable[..., Toy]:
    """A small network on vectors of 6, or whatever is asked for."""
    return lambda seed=0, actions=3, inputs=6, scale=4.0, **box: Toy(_mlp(seed, inputs, actions, scale), **box)


@pytest.fixture(scope="session")
def cnn() -> Callable[..., Toy]:
    """A small network on (1, 12, 12) images."""
    return lambda seed=0, actions=3, scale=4.0, **box: Toy(_cnn(seed, actions, scale), **box)


@pytest.fixture(scope="session")
def linear() -> Callable[..., Toy]:
    """Scores = obs @ weights.T + bias, for weights (A, D)."""

    def build(
        weights: Tensor, bias: Tensor | float = 0.0, then: Callable[[Tensor], Tensor] | None = None, **box: float
    ):
        act = then or (lambda scores: scores)
        return Toy(lambda obs: act(obs.flatten(1) @ weights.T + bias), **box)

    return build


@pytest.fixture(scope="session")
def seeded() -> Callable[[int], torch.Generator]:
    return lambda seed: torch.Generator().manual_seed(seed)
