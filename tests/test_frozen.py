"""Frozen networks are the same function with the same gradients, whatever their sizes."""

import copy

import pytest
import torch
from torch import nn

from bcl.frozen import ConvReLU, FlattenPixels, frozen
from bcl.layers import PatchConv
from bcl.policies.networks import build

CHAINS = {
    "the paper's": lambda: build("dueling-cnn", (1, 84, 84), 4).chain(),
    "RADIAL's": lambda: build("plain-cnn", (1, 80, 80), 18).chain(),
    "colours": lambda: build("dueling-cnn", (3, 84, 84), 4).chain(),
    "no whole blocks": lambda: build("dueling-cnn", (2, 86, 91), 4).chain(),
    "impala": lambda: build("impala", (3, 64, 64), 5).chain(),
    "strides that leave a rest": lambda: nn.Sequential(
        nn.Conv2d(2, 5, 3, stride=2), nn.ReLU(), nn.Conv2d(5, 4, (2, 3), stride=(3, 2)), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 4 * 5, 3),
    ),
    "padding, no bias, no ReLU": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 2),
        nn.Flatten(), nn.Linear(2 * 23 * 21, 3),
    ),
    "flattened by rows": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 4), nn.ReLU(), nn.Flatten(2), nn.Linear(23 * 21, 3), nn.Flatten()
    ),
}  # fmt: skip
SHAPES = {
    "the paper's": (1, 84, 84), "RADIAL's": (1, 80, 80), "colours": (3, 84, 84), "no whole blocks": (2, 86, 91),
    "impala": (3, 64, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_the_same_scores_and_gradients(name: str) -> None:
    torch.manual_seed(0)
    chain = CHAINS[name]().double()
    obs = torch.rand(3, *SHAPES.get(name, (2, 26, 24)), dtype=torch.float64, requires_grad=True)
    quick = frozen(chain, torch.float64)
    scores, expected = quick(obs), chain(obs)
    torch.testing.assert_close(scores, expected)
    weights = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad((scores * weights).sum(), obs)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), obs)
    assert wanted.abs().max() > 0
    torch.testing.assert_close(gradient, wanted)
    assert not any(parameter.requires_grad for parameter in quick.parameters())


def test_the_papers_network_has_no_layer_left_as_it_was() -> None:
    quick = frozen(CHAINS["the paper's"](), torch.float32)
    assert [type(layer) for layer in quick] == [ConvReLU] * 3 + [FlattenPixels, nn.Linear, nn.ReLU, nn.Linear]
    assert isinstance(CHAINS["the paper's"]()[0], PatchConv)


def test_layers_with_hooks_stay_as_they_are() -> None:
    chain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 6 * 6, 3))
    chain[0].register_forward_pre_hook(lambda layer, given: (2 * given[0] - 1,))
    obs = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(frozen(chain, torch.float32)(obs), chain(obs))


def test_observations_are_brought_to_the_type_of_the_network() -> None:
    obs = torch.rand(2, 1, 84, 84, requires_grad=True)
    scores = frozen(CHAINS["the paper's"](), torch.float64)(obs)
    assert scores.dtype == torch.float64
    (gradient,) = torch.autograd.grad(scores.sum(), obs)
    assert gradient.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SHAPES)
def test_half_precision_on_a_gpu_is_close(name: str) -> None:
    torch.manual_seed(0)
    chain = CHAINS[name]().cuda()
    obs = torch.rand(64, *SHAPES[name], device="cuda", requires_grad=True)
    expected = chain(obs)
    weights = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), obs)
    errors = []
    for network in (frozen(chain, torch.float16), copy.deepcopy(chain).half()):
        scores = network(obs if getattr(network[0], "converts", False) else obs.half())
        assert (scores - expected).norm() < 5e-3 * expected.norm()
        (gradient,) = torch.autograd.grad((scores * weights).sum(), obs)
        errors.append(float((gradient - wanted).norm() / wanted.norm()))
    assert errors[0] < 1.3 * errors[1], "rounding turns as many ReLUs as in PyTorch's own layers"
