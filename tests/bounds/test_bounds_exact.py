"""Against the truth: mixed-integer programs whose optimum is the exact bound of a tiny network."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

from bcl.bounds import METHODS, margins, pair_margins, score_bounds
from bcl.layers import Residual

Array = NDArray[np.float64]
ROUNDING = 1e-4  # of the solver


class Program:
    """A network as linear constraints; an expression is a matrix whose last column holds the constants."""

    def __init__(self, lower: Tensor, upper: Tensor) -> None:
        self.low, self.high = lower.flatten().tolist(), upper.flatten().tolist()
        self.whole = [0] * len(self.low)
        self.below_zero: list[Array] = []

    def new(self, low: float, high: float, whole: bool = False) -> Array:
        self.low.append(low)
        self.high.append(high)
        self.whole.append(int(whole))
        return self.variables()[-1]

    def variables(self) -> Array:
        return np.eye(len(self.low), len(self.low) + 1)

    def wide(self, expression: Array) -> Array:
        """The same expression with a column for each variable added since."""
        missing = len(self.low) + 1 - expression.shape[-1]
        zeros = np.zeros((*expression.shape[:-1], missing))
        return np.concatenate([expression[..., :-1], zeros, expression[..., -1:]], axis=-1)

    def range(self, expression: Array) -> tuple[Array, Array]:
        row, low, high = self.wide(expression), np.array([*self.low, 1]), np.array([*self.high, 1])
        return row.clip(0) @ low + row.clip(None, 0) @ high, row.clip(0) @ high + row.clip(None, 0) @ low

    def maximum(self, rows: Array) -> Array:
        """A variable that equals the largest of the rows."""
        low, high = self.range(rows)
        result = self.new(low.max(), high.max())
        choices = [self.new(0, 1, whole=True) for _ in rows]
        result, one = self.wide(result), self.wide(np.array([1.0]))
        for row, bottom, choice in zip(self.wide(rows), low, choices, strict=True):
            self.below_zero += [row - result, result - row - (high.max() - bottom) * (one - self.wide(choice))]
        some = one - sum(self.wide(choice) for choice in choices)
        self.below_zero += [some]
        return result

    def through(self, layer: nn.Module, x: Array, shape: torch.Size) -> tuple[Array, torch.Size]:
        """What leaves a layer that receives x of this shape."""
        x = self.wide(x)
        if isinstance(layer, nn.Sequential):
            for inner in layer:
                x, shape = self.through(inner, x, shape)
        elif isinstance(layer, Residual):
            path, _ = self.through(layer.path, x, shape)
            x = self.wide(x) + self.wide(path)
        elif isinstance(layer, nn.ReLU):
            zero = np.zeros_like(x[0])
            x = self.stack([self.maximum(np.stack([self.wide(row), self.wide(zero)])) for row in x])
        elif isinstance(layer, nn.MaxPool2d):
            x, shape = self.pool(layer, x, shape)
        else:  # affine: its matrix is what it does to each unit vector
            with torch.no_grad():
                constant = layer(torch.zeros(1, *shape))
                units = layer(torch.eye(len(x)).view(-1, *shape)) - constant
            shape = constant.shape[1:]
            x = units.flatten(1).T.double().numpy() @ x
            x[:, -1] += constant.flatten().double().numpy()
        return x, shape

    def pool(self, layer: nn.MaxPool2d, x: Array, shape: torch.Size) -> tuple[Array, torch.Size]:
        places = nn.functional.pad(torch.arange(len(x)).view(shape), [layer.padding] * 4, value=-1)
        windows = places.unfold(1, layer.kernel_size, layer.stride).unfold(2, layer.kernel_size, layer.stride)
        rows = [self.maximum(self.wide(x[window[window >= 0]])) for window in windows.flatten(3).flatten(0, 2)]
        return self.stack(rows), windows.shape[:3]

    def stack(self, rows: list[Array]) -> Array:
        return np.stack([self.wide(row) for row in rows])

    def smallest(self, row: Array) -> float:
        row, constraints = self.wide(row), self.stack(self.below_zero)
        rules = LinearConstraint(constraints[:, :-1], ub=-constraints[:, -1])
        found = milp(row[:-1], integrality=self.whole, bounds=Bounds(self.low, self.high), constraints=rules)
        assert found.success, found.message
        return float(found.fun + row[-1])


NETWORKS = {
    "mlp": ((3,), lambda: [nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)]),
    "strided-conv": (
        (1, 6, 6),
        lambda: [nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)],
    ),
    "impala": (
        (1, 5, 5),
        lambda: [nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(2), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(8, 3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("name", "eps"), [("mlp", 0.02), ("mlp", 0.3), ("strided-conv", 0.02), ("strided-conv", 0.1), ("impala", 0.02)]
)
def test_tightness_order_ends_at_the_truth(name, eps, seed):
    torch.manual_seed(seed)
    shape, layers = NETWORKS[name]
    chain = nn.Sequential(*layers())
    for parameter in chain.parameters():
        parameter.data *= 2  # keeps the differences well above the solver's rounding
    obs = torch.rand(1, *shape)
    lower, upper = obs - eps, obs + eps
    program = Program(lower, upper)
    scores, _ = program.through(chain, program.variables(), torch.Size(shape))
    pairs = [(first, second) for first in range(3) for second in range(3) if first != second]
    truth = torch.tensor([program.smallest(scores[first] - scores[second]) for first, second in pairs])
    span = [(program.smallest(row), -program.smallest(-row)) for row in scores]

    found = {}
    with torch.no_grad():
        for method in METHODS:
            margin = pair_margins(chain, lower, upper, method)
            found[method] = torch.stack([margin[0, first, second] for first, second in pairs])
            assert (found[method] <= truth + ROUNDING).all()
            smallest, largest = score_bounds(chain, lower, upper, method)
            for action, (low, high) in enumerate(span):
                assert smallest[0, action] <= low + ROUNDING
                assert high - ROUNDING <= largest[0, action]
    assert (found["ibp"] <= found["crown-ibp"]).all()
    assert (found["crown-ibp"] <= found["crown"]).all()
    if eps == 0.02:  # nearly linear: CROWN must be close to the truth, not merely below it
        gap, naive = truth - found["crown"], truth - found["ibp"]
        assert gap.mean() <= 0.25 * naive.mean() + ROUNDING


def test_the_program_reproduces_a_point():
    torch.manual_seed(0)
    shape, layers = NETWORKS["impala"]
    chain, obs = nn.Sequential(*layers()), torch.rand(1, *shape)
    program = Program(obs, obs)
    scores, _ = program.through(chain, program.variables(), torch.Size(shape))
    assert [program.smallest(row) for row in scores] == pytest.approx(chain(obs)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        [nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2)), nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding=2)],
        [nn.Conv2d(2, 2, 3, stride=3), nn.Identity(), nn.Conv2d(2, 3, 1, bias=False)],
        [nn.Sequential(nn.Flatten(), nn.Linear(112, 5, bias=False)), nn.Linear(5, 5)],
    ],
    ids=repr,
)
def test_crown_is_exact_without_nonlinearities(body):
    torch.manual_seed(0)
    obs = torch.rand(2, 2, 7, 8)
    features = nn.Sequential(*body, nn.Flatten())
    chain = nn.Sequential(*features, nn.Linear(features(obs).shape[1], 2))
    lower, upper = obs - 0.1, obs + 0.1
    point = obs.clone().requires_grad_()
    difference = chain(point)[:, 0] - chain(point)[:, 1]
    (gradient,) = torch.autograd.grad(difference.sum(), point)
    exact = difference - 0.1 * gradient.abs().flatten(1).sum(dim=1)
    torch.testing.assert_close(margins(chain, lower, upper, torch.tensor([0, 0]), "crown")[:, 1], exact)
