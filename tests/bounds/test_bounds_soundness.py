"""Nothing that an adversary can reach lies outside the bounds, whatever the network and the method."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bcl.bounds import METHODS, ROUNDING, certified, crown, impossible, input_box, margins, pair_margins, score_bounds
from bcl.layers import Residual
from bcl.policies import networks

ZERO, ONE = torch.tensor(0.0), torch.tensor(1.0)


def small_impala() -> networks.ActorCritic:
    body = [
        nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(4),
        nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(4),
        nn.Flatten(), nn.ReLU(), nn.Linear(36, 16), nn.ReLU(),
    ]  # fmt: skip
    return networks.ActorCritic(nn.Sequential(*body), 16, 4)


def small_cnn() -> networks.Dueling:
    body = nn.Sequential(nn.Conv2d(1, 4, 4, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten())
    return networks.Dueling(body, 54, (16,), 4)


Build = Callable[[], networks.Dueling | networks.Plain | networks.ActorCritic]
SMALL: dict[str, tuple[tuple[int, ...], Build]] = {
    "dueling-mlp": ((4,), lambda: networks.build("dueling-mlp", (4,), 3, (24, 24, 24))),
    "actor-critic-mlp": ((5,), lambda: networks.build("actor-critic-mlp", (5,), 4, (16, 16))),
    "cnn": ((1, 12, 12), small_cnn),
    "impala": ((2, 11, 11), small_impala),
}
REAL: dict[str, tuple[tuple[int, ...], Build]] = {
    "nature": ((1, 84, 84), lambda: networks.build("dueling-cnn", (1, 84, 84), 6)),
    "plain": ((1, 80, 80), lambda: networks.build("plain-cnn", (1, 80, 80), 4)),
    "impala-64": ((3, 64, 64), lambda: networks.build("impala", (3, 64, 64), 15)),
    "impala-16": ((3, 16, 16), lambda: networks.build("impala", (3, 16, 16), 15)),
}


def build(name: str, seed: int, states: int, gain: float = 1.0) -> tuple[nn.Module, nn.Sequential, Tensor]:
    """A network whose weights are `gain` times the usual ones, its chain, and some observations."""
    torch.manual_seed(seed)
    shape, make = (SMALL | REAL)[name]
    net = make().requires_grad_(False)
    for parameter in net.parameters():
        parameter *= gain
    return net, net.chain(), torch.rand(states, *shape)


def reachable(net: nn.Module, lower: Tensor, upper: Tensor, random: int, pgd_steps: int) -> Tensor:
    """Inputs (N, B, ...): random points, corners, and points that lower or raise each action's score."""
    share = torch.rand(random, *lower.shape)
    points = [lower + share * (upper - lower), torch.where(share > 0.5, lower, upper), torch.stack([lower, upper])]
    for action in range(net(lower).shape[1]):
        for sign in (1, -1):
            point = (lower + upper) / 2
            for _ in range(pgd_steps):
                point = point.detach().requires_grad_()
                output = net(point)
                (gradient,) = torch.autograd.grad((output[:, action] - output.mean(dim=1)).sum(), point)
                point = point.detach() + sign * 0.4 * (upper - lower) * gradient.sign()
                point = torch.minimum(torch.maximum(point, lower), upper)
            points.append(point.detach().unsqueeze(0))
    return torch.minimum(torch.maximum(torch.cat(points), lower), upper)


def scores_at(net: nn.Module, points: Tensor) -> Tensor:
    """Scores (N, B, A) at inputs (N, B, ...)."""
    return net(points.flatten(0, 1)).unflatten(0, points.shape[:2])


def check(net: nn.Module, chain: nn.Sequential, box: tuple[Tensor, Tensor], method: str, random: int, pgd: int) -> None:
    lower, upper = box
    points = reachable(net, lower, upper, random, pgd)
    advantages, scores = scores_at(chain, points), scores_at(net, points)
    slack = 1e-5 * advantages.abs().max().clamp(min=1)
    smallest, largest = score_bounds(chain, lower, upper, method)
    assert (smallest - slack <= advantages).all()
    assert (advantages <= largest + slack).all()
    smallest, largest = score_bounds(chain, lower, upper, method, centred=True)
    centred = advantages - advantages.mean(dim=2, keepdim=True)
    assert (smallest - slack <= centred).all()
    assert (centred <= largest + slack).all()
    pairs = pair_margins(chain, lower, upper, method)
    assert (pairs - slack <= scores.unsqueeze(3) - scores.unsqueeze(2)).all()  # of the policy's own output
    centre = net((lower + upper) / 2)
    actions = centre.argmax(dim=1)
    safe = certified(margins(chain, lower, upper, actions, method), actions, centre)
    assert (scores.argmax(dim=2) == actions)[:, safe].all()
    chosen = nn.functional.one_hot(scores.argmax(dim=2), scores.shape[2]).amax(dim=0).bool()
    assert not (chosen & impossible(pairs, centre)).any()


@pytest.mark.parametrize("gain", [1.0, 2.0])
@pytest.mark.parametrize("eps", [0.003, 0.05, 0.4])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SMALL)
def test_small_networks(name, method, eps, gain):
    net, chain, obs = build(name, 0, 4, gain)
    check(net, chain, input_box(obs, eps, ZERO, ONE), method, random=1000, pgd=6)


@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
@pytest.mark.parametrize("name", REAL)
def test_real_networks(name, method):
    net, chain, obs = build(name, 1, 2)
    check(net, chain, input_box(obs, 4 / 255, ZERO, ONE), method, random=20, pgd=2)


@pytest.mark.parametrize("name", ["nature", "impala-16"])
def test_crown_on_real_networks(name):
    net, chain, obs = build(name, 2, 1)
    lower, upper = input_box(obs, 1 / 255, ZERO, ONE)
    scores = scores_at(net, reachable(net, lower, upper, 30, 3))
    pairs = pair_margins(chain, lower, upper, "crown")
    assert (pairs - 1e-5 <= scores.unsqueeze(3) - scores.unsqueeze(2)).all()
    assert (pairs >= pair_margins(chain, lower, upper, "crown-ibp")).all()
    loose = pair_margins(chain, lower, upper, "ibp")
    assert pairs.abs().mean() < loose.abs().mean() / 100


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    hidden=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    inputs=st.integers(1, 5),
    actions=st.integers(2, 5),
    eps=st.floats(0, 1),
)
def test_any_mlp(seed, hidden, inputs, actions, eps):
    torch.manual_seed(seed)
    chain = networks.build("actor-critic-mlp", (inputs,), actions, hidden).requires_grad_(False).chain()
    chain[-1].weight *= 100  # the heads start tiny
    lower, upper = input_box(2 * torch.rand(3, inputs) - 1, eps, torch.tensor(-torch.inf), torch.tensor(torch.inf))
    tightest = torch.full((3, actions, actions), -torch.inf)
    for method in METHODS:
        check(chain, chain, (lower, upper), method, random=20, pgd=2)
        pairs = pair_margins(chain, lower, upper, method)
        assert (pairs >= tightest).all()
        tightest = pairs


@pytest.mark.parametrize("name", ["cnn", "impala"])
def test_tiles_chunks_and_batches_do_not_matter(name, monkeypatch):
    _, chain, obs = build(name, 3, 3)
    lower, upper = input_box(obs, 0.05, ZERO, ONE)
    expected = pair_margins(chain, lower, upper, "crown")
    one_by_one = [pair_margins(chain, lower[i : i + 1], upper[i : i + 1], "crown") for i in range(3)]
    torch.testing.assert_close(torch.cat(one_by_one), expected, rtol=1e-3, atol=1e-5)
    monkeypatch.setattr(crown, "ELEMENTS_AT_ONCE", 1000)
    torch.testing.assert_close(pair_margins(chain, lower, upper, "crown"), expected, rtol=1e-3, atol=1e-5)
    for tile in (1, 3, 100):
        monkeypatch.setattr(crown, "TILE", tile)
        torch.testing.assert_close(pair_margins(chain, lower, upper, "crown"), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("gain", [1.0, 2.0])
@pytest.mark.parametrize("name", ["dueling-mlp", "nature", "impala-64"])
@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
def test_float32_errs_by_a_tenth_of_the_tolerance_at_most(name, method, gain):
    _, chain, obs = build(name, 5, 2, gain)
    precise = copy.deepcopy(chain).double()
    lower, upper = input_box(obs, 1 / 255, ZERO, ONE)
    action = torch.tensor([0, 1])
    found = margins(chain, lower, upper, action, method)
    truth = margins(precise, lower.double(), upper.double(), action, method)
    scale = found.abs().amax(dim=1, keepdim=True).clamp(min=1)
    assert ((found - truth).abs() <= ROUNDING / 10 * scale).all()
