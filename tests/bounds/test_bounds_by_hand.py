"""Bounds small enough to work out on paper, borders, refusals and gradients."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bcl.bounds import METHODS, certified, full_precision, impossible, input_box, margins, pair_margins, score_bounds
from bcl.errors import BclError, ConfigError
from bcl.layers import Residual
from bcl.policies import networks


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias))
    return layer


def box(low: float, high: float, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.full((1, *shape), low), torch.full((1, *shape), high)


# |x1 + x2| and |x1 - x2| are at most 2; above, CROWN has (z1 / 2 + 1) + (z2 / 2 + 1) = x1 + 2.
@pytest.mark.parametrize(("method", "upper"), [("ibp", 4.0), ("crown-ibp", 3.0), ("crown", 3.0)])
def test_sum_of_two_relus(method, upper):
    chain = nn.Sequential(linear([[1, 1], [1, -1]]), nn.ReLU(), linear([[1, 1]]))
    smallest, largest = score_bounds(chain, *box(-1, 1, 2), method)
    assert (smallest.item(), largest.item()) == (0, upper)


# z in [-1, 3]: the lower slope is 1, so relu(z) - z >= 0 by CROWN; intervals give 0 - 3.
@pytest.mark.parametrize(("method", "lower"), [("ibp", -3.0), ("crown-ibp", 0.0), ("crown", 0.0)])
def test_lower_slope_adapts(method, lower):
    identity = linear([[1], [1]], [0, 4])  # the second neuron is always on and carries z + 4
    chain = nn.Sequential(identity, nn.ReLU(), linear([[1, -1]], [4]))
    assert score_bounds(chain, *box(-1, 3, 1), method)[0].item() == lower


# max(a, b) with a in [0, 4], b in [1, 2]: a is the likely winner; above, b <= 2 gives 2 + (a - 0) / 2.
def test_max_pool():
    pool = nn.MaxPool2d((1, 2))
    chain = nn.Sequential(nn.Identity(), pool, nn.Flatten(), nn.Identity(), linear([[1.0]]))
    lower, upper = torch.tensor([[[[0.0, 1.0]]]]), torch.tensor([[[[4.0, 2.0]]]])
    assert [side.item() for side in score_bounds(chain, lower, upper, "crown")] == [1, 4]


def test_margins_merge_the_last_layer():
    chain = nn.Sequential(linear([[1, 1], [1, -1]]), nn.ReLU(), linear([[1, 1], [1, 0]]))
    lower, upper = box(-1, 1, 2)
    smallest, largest = score_bounds(chain, lower, upper, "ibp")
    assert smallest[0, 0] - largest[0, 1] == -2
    assert margins(chain, lower, upper, torch.tensor([0]), "ibp").tolist() == [[0, 0]]  # score[0] - score[1] = relu(z2)


def test_centred_scores_leave_the_weights_alone():
    chain = nn.Sequential(linear([[2, 0], [0, 2], [1, 1]], [3, 0, 0]))
    before = copy.deepcopy(chain.state_dict())
    smallest, largest = score_bounds(chain, *box(0, 1, 2), "ibp", centred=True)
    # Rows (1, -1), (-1, 1), (0, 0) and biases 2, -1, -1 remain.
    torch.testing.assert_close(smallest, torch.tensor([[1.0, -2.0, -1.0]]))
    torch.testing.assert_close(largest, torch.tensor([[3.0, 0.0, -1.0]]))
    assert all(torch.equal(value, before[name]) for name, value in chain.state_dict().items())


@pytest.mark.parametrize("method", METHODS)
def test_no_budget_gives_the_scores(method):
    torch.manual_seed(0)
    for net, shape in (
        (networks.build("dueling-mlp", (4,), 3, (16, 16)), (4,)),
        (networks.build("impala", (3, 12, 12), 4), (3, 12, 12)),
    ):
        chain, obs = net.chain(), torch.rand(3, *shape)
        scores = chain(obs)
        for side in score_bounds(chain, obs, obs, method):
            torch.testing.assert_close(side, scores, atol=1e-5, rtol=1e-5)
        actions = scores.argmax(dim=1)
        exact = scores.gather(1, actions.unsqueeze(1)) - scores
        torch.testing.assert_close(margins(chain, obs, obs, actions, method), exact, atol=1e-5, rtol=1e-5)


@given(st.floats(0, 1, width=32), st.floats(0, 1, width=32))
def test_input_box_is_the_intersection(value, eps):
    obs, zero, one = torch.tensor([[value]]), torch.tensor(0.0), torch.tensor(1.0)
    lower, upper = input_box(obs, eps, zero, one)
    assert lower.item() == max(0.0, (obs - eps).item())
    assert upper.item() == min(1.0, (obs + eps).item())
    assert lower <= obs <= upper


def test_input_box_without_ends_and_with_one_budget_a_state():
    obs = torch.tensor([[5.0, -5.0], [0.0, 0.0]])
    low, high = torch.tensor([-torch.inf, -5.0]), torch.tensor(torch.inf)
    lower, upper = input_box(obs, torch.tensor([[1.0], [2.0]]), low, high)
    assert lower.tolist() == [[4, -5], [-2, -2]]
    assert upper.tolist() == [[6, -4], [2, 2]]


class OddReLU(nn.ReLU):
    pass


REFUSED = [
    nn.Sigmoid(),
    nn.GELU(),
    nn.BatchNorm1d(4),
    nn.Dropout(),
    OddReLU(),
    nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(1, 1, 3, padding="same"),
    nn.MaxPool2d(2, dilation=2),
    nn.MaxPool2d(2, ceil_mode=True),
]


@pytest.mark.parametrize("layer", REFUSED, ids=repr)
@pytest.mark.parametrize("method", METHODS)
def test_unknown_layers_are_refused_by_name(layer, method):
    chain = nn.Sequential(nn.Identity(), nn.Sequential(layer), nn.Linear(4, 2))
    with pytest.raises(BclError, match=type(layer).__name__):
        score_bounds(chain, *box(0, 1, 4), method)


def test_unknown_layer_inside_a_residual_is_refused():
    block = Residual(1)
    block.path[0] = nn.Sigmoid()
    with pytest.raises(BclError, match="Sigmoid"):
        score_bounds(nn.Sequential(block, nn.Flatten(), nn.Linear(4, 2)), *box(0, 1, 1, 2, 2), "ibp")


def test_the_last_layer_must_be_linear():
    with pytest.raises(BclError, match="ReLU"):
        score_bounds(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), *box(0, 1, 2), "ibp")


def test_a_wrong_method_gets_a_hint():
    with pytest.raises(ConfigError, match="crown-ibp"):
        score_bounds(nn.Sequential(nn.Linear(2, 2)), *box(0, 1, 2), "crown_ibp")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
@pytest.mark.parametrize("shape", [(4,), (1, 8, 8)], ids=["mlp", "impala"])
def test_gradients_match_finite_differences(method, shape):
    torch.manual_seed(1)
    net = networks.build("impala", shape, 3) if len(shape) == 3 else networks.build("dueling-mlp", shape, 3, (8, 8))
    chain = net.chain().double()
    lower, upper = input_box(torch.rand(2, *shape, dtype=torch.double), 0.01, torch.tensor(0.0), torch.tensor(1.0))

    def loss() -> Tensor:
        _, largest = score_bounds(chain, lower, upper, method)
        return margins(chain, lower, upper, torch.tensor([0, 1]), method).sum() + largest.sum()

    loss().backward()
    parameters = list(chain.parameters())
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in parameters)
    directions = [torch.randn_like(p) for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True))
    step = 1e-7
    with torch.no_grad():
        sides = []
        for sign in (1, -2):
            for p, d in zip(parameters, directions, strict=True):
                p += sign * step * d
            sides.append(loss())
    torch.testing.assert_close(slope, (sides[0] - sides[1]) / (2 * step), rtol=1e-3, atol=1e-4)


def test_certified_and_impossible_need_more_than_rounding():
    margin = torch.tensor([[0.0, 1e-3, 2.0], [0.0, 1e-6, 2.0], [5.0, 0.0, -1.0]])
    assert certified(margin, torch.tensor([0, 0, 1]), torch.zeros(3, 2)).tolist() == [True, False, False]
    pairs = torch.tensor([[[0.0, 0.5], [-0.9, 0.0]], [[0.0, 1e-6], [-1.0, 0.0]]])
    assert impossible(pairs, torch.zeros(2, 2)).tolist() == [[False, True], [False, False]]


def test_pair_margins_hold_the_margins_of_each_action():
    torch.manual_seed(2)
    chain = networks.build("dueling-mlp", (4,), 3, (8, 8)).chain()
    lower, upper = input_box(torch.rand(5, 4), 0.05, torch.tensor(0.0), torch.tensor(1.0))
    for method in METHODS:
        pairs = pair_margins(chain, lower, upper, method)
        for action in range(3):
            torch.testing.assert_close(pairs[:, action], margins(chain, lower, upper, torch.full((5,), action), method))
        assert (pairs.diagonal(dim1=1, dim2=2) == 0).all()


def test_full_precision_puts_the_switches_back():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with full_precision():
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
