"""Tanh, which imported agents use, and PatchConv, which is a convolution computed another way."""

import pytest
import torch
from torch import nn

from bcl.bounds import METHODS, Method, input_box, margins, score_bounds
from bcl.layers import PatchConv

LOW, HIGH = torch.tensor(-torch.inf), torch.tensor(torch.inf)


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_tanh_bounds_are_sound(method: Method, eps: float) -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    obs = torch.randn(6, 4) * 2
    lower, upper = input_box(obs, eps, LOW, HIGH)
    with torch.no_grad():
        smallest, largest = score_bounds(net, lower, upper, method)
        points = obs + eps * (2 * torch.rand(4000, 6, 4) - 1)
        corners = obs + eps * torch.randint(0, 2, (1000, 6, 4)).mul(2).sub(1)
        scores = net(torch.cat([points, corners]).flatten(0, 1)).view(-1, 6, 3)
        actions = net(obs).argmax(1)
        bound = margins(net, lower, upper, actions, method)
        chosen = scores.gather(2, actions.expand(len(scores), -1).unsqueeze(2))
    assert (scores >= smallest - 1e-5).all()
    assert (scores <= largest + 1e-5).all()
    assert (chosen - scores >= bound - 1e-5).all()
    if eps == 0:
        torch.testing.assert_close(smallest, largest, atol=1e-5, rtol=0)


def test_tanh_methods_are_ordered() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    lower, upper = input_box(torch.randn(8, 4), 0.1, LOW, HIGH)
    with torch.no_grad():
        widths = [(b - a).mean() for a, b in (score_bounds(net, lower, upper, method) for method in METHODS)]
    assert widths[0] > widths[1] > widths[2]


def test_tanh_by_hand() -> None:
    net = nn.Sequential(nn.Tanh(), nn.Linear(1, 1, bias=False))
    nn.init.constant_(net[1].weight, 2.0)
    low, high = score_bounds(net, torch.tensor([[-1.0]]), torch.tensor([[0.5]]), "ibp")
    assert low.item() == pytest.approx(2 * torch.tanh(torch.tensor(-1.0)).item())
    assert high.item() == pytest.approx(2 * torch.tanh(torch.tensor(0.5)).item())


@pytest.mark.parametrize("grad", [True, False])
def test_patch_convolution_is_the_same_function(grad: bool) -> None:
    torch.manual_seed(0)
    for channels, size in ((1, 84), (3, 40), (2, 41)):
        patch = PatchConv(channels, 5, stride=4)
        plain = nn.Conv2d(channels, 5, 8, stride=4)
        plain.load_state_dict(patch.state_dict())
        x = torch.rand(3, channels, size, size, requires_grad=grad)
        torch.testing.assert_close(patch(x), plain(x), atol=1e-5, rtol=1e-5)
        if grad:
            weight = torch.rand_like(plain(x))
            ours = torch.autograd.grad((patch(x) * weight).sum(), [x, *patch.parameters()])
            reference = torch.autograd.grad((plain(x) * weight).sum(), [x, *plain.parameters()])
            for a, b in zip(ours, reference, strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_patch_convolution_has_the_same_bounds(method: Method) -> None:
    torch.manual_seed(0)
    patch = PatchConv(1, 4, stride=4)
    plain = nn.Conv2d(1, 4, 8, stride=4)
    plain.load_state_dict(patch.state_dict())
    rest = [nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    lower, upper = input_box(torch.rand(2, 1, 12, 12), 0.1, torch.tensor(0.0), torch.tensor(1.0))
    for a, b in zip(
        score_bounds(nn.Sequential(patch, *rest), lower, upper, method),
        score_bounds(nn.Sequential(plain, *rest), lower, upper, method),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
