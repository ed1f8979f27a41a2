"""Kernels against PyTorch's layers in float32, and a whole update with and without them.

On a GPU; without one by Triton's interpreter: TRITON_INTERPRET=1 with triton installed.
"""

import contextlib
import statistics

import pytest
import torch
from torch import nn

from bcl import dqn_kernels
from bcl.bounds import full_precision, input_box, score_bounds, training_margins
from bcl.bounds.interval import _Relu, box_intervals, intervals, middle_and_radius
from bcl.config import AttackConfig, DqnConfig
from bcl.games import GymnasiumGame
from bcl.layers import PatchConv
from bcl.learners.dqn import DqnLearner
from bcl.learners.learner import Task
from bcl.learners.replay import Batch
from bcl.policies import Policy, PolicySpec, networks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter does not round to bfloat16, it cuts
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not dqn_kernels.available(torch.empty(0, device=DEVICE)), reason="needs CUDA and Triton"),
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are a GPU's")
# On a GPU products have 10 bits behind the point, which is 4e-4 of a sum of many.
TF32 = 1e-3 if DEVICE == "cuda" else 1e-5
# channels, batch, size: the paper's; odd batches, images whose rest no kernel reaches, one pixel
SHAPES = [(1, 3, (84, 84)), (1, 7, (36, 41)), (2, 2, (21, 30)), (3, 1, (16, 12)), (4, 1, (8, 8))]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def few_programs(monkeypatch):
    """So that small batches are several blocks of each program, which the last of them does not fill."""
    monkeypatch.setattr(dqn_kernels, "PROGRAMS", 3)


@pytest.fixture
def calls(monkeypatch):
    """How many tensors each call of the convolution's kernel was about."""
    found = []
    dqn_kernels.available(torch.empty(0, device=DEVICE))  # asked once, it tries a kernel
    kernel = dqn_kernels._FirstConv.forward
    monkeypatch.setattr(dqn_kernels._FirstConv, "forward", lambda *a: (found.append(len(a) - 4), kernel(*a))[1])
    return found


def never(*_):
    """In place of `available`."""
    return False


def half():
    return torch.autocast(DEVICE, HALF)


def first_layers(channels):
    layers = nn.Sequential(PatchConv(channels, 32, 4), nn.ReLU()).to(DEVICE)
    return nn.utils.convert_conv2d_weight_memory_format(layers, torch.channels_last)  # as learners do


def box(batch, channels, size):
    """Corners of boxes, a part of which are points."""
    lower = torch.rand(batch, channels, *size, device=DEVICE)
    return lower, lower + 0.05 * torch.rand_like(lower).round()


def distance(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def check(ours, theirs, tolerance):
    assert [distance(a, b) for a, b in zip(ours, theirs, strict=True)] == pytest.approx([0] * len(ours), abs=tolerance)


def check_as_torch(ours, torchs, exact, tolerance):
    """Within the tolerance, or about as near to float32 (without TF32) as PyTorch's layers in half precision are: each
    rounds otherwise, so that other numbers end below 0."""
    for mine, its, true in zip(ours, torchs, exact, strict=True):
        assert distance(mine, true) <= max(tolerance, 3 * distance(its, true))


def gradients(outs, leaves):
    """Of a random combination of the outputs."""
    draw = torch.Generator().manual_seed(1)
    given = [torch.randn(out.shape, generator=draw).to(HALF).to(out) for out in outs]
    return torch.autograd.grad(outs, leaves, given)


@pytest.mark.parametrize(("channels", "batch", "size"), SHAPES)
def test_a_convolution_of_observations(channels, batch, size, few_programs, calls):
    layers = first_layers(channels)
    x, _ = box(batch, channels, size)
    weights = [*layers.parameters()]
    with half():
        ours = networks._through(layers, x)
        torchs = layers(x)
    with full_precision():
        exact = layers(x)
        true = gradients([exact], weights)
    assert calls == [1]
    assert ours.dtype == HALF
    assert ours.is_contiguous(memory_format=torch.channels_last)
    check_as_torch([ours], [torchs], [exact], 1e-3)
    check_as_torch(gradients([ours], weights), gradients([torchs], weights), true, TF32)


@pytest.mark.parametrize(("channels", "batch", "size"), SHAPES)
def test_a_convolution_of_boxes(channels, batch, size, few_programs, calls):
    layers = first_layers(channels)
    corners = box(batch, channels, size)
    weights = [*layers.parameters()]
    with half():
        ours = box_intervals([*layers], *corners)
        torchs = intervals(layers, *middle_and_radius(*corners))
    with full_precision():
        exact = intervals(layers, *middle_and_radius(*corners))
        true = gradients(exact, weights)
    assert calls == [2]
    assert {y.dtype for y in ours} == {HALF}
    check_as_torch(ours, torchs, exact, 1e-3)
    check_as_torch(gradients(ours, weights), gradients(torchs, weights), true, 5e-3)


def test_a_box_around_one_point_is_the_point(calls):
    layers = first_layers(1)
    x, _ = box(2, 1, (84, 84))
    with half():
        middle, radius = box_intervals([*layers], x, x)
        point = networks._through(layers, x)
    assert calls == [2, 1]
    torch.testing.assert_close(middle, point)
    assert not radius.any()
    check(*(gradients([y], [*layers.parameters()]) for y in (middle, point)), 1e-3)


def test_gradients_repeat_themselves(few_programs):
    layers = first_layers(1)
    corners = box(5, 1, (84, 84))
    with half():
        outs = box_intervals([*layers], *corners)
    once, again = (torch.autograd.grad(outs, [*layers.parameters()], outs, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, once, again))


def test_gradients_in_another_memory_order_and_of_views_of_observations():
    layers = first_layers(2)
    x = torch.rand(2, 4, 30, 50, device=DEVICE)[:, ::2, :, 3:31]
    with half():
        ours, theirs = (networks._through(layers, y) for y in (x, x.contiguous()))
        assert torch.equal(ours, theirs)
        given = torch.randn(ours.shape, dtype=HALF, device=DEVICE)
        first, second = (
            torch.autograd.grad(y, [*layers.parameters()], g)
            for y, g in ((ours, given), (theirs, given.contiguous(memory_format=torch.channels_last)))
        )
    assert all(map(torch.equal, first, second))


def test_what_is_no_number_stays_none():
    layers = first_layers(1)
    lower, upper = box(2, 1, (84, 84))
    upper[1, 0, 40, 40] = float("nan")
    with half():
        plain = networks._through(layers, upper)
        bounds = box_intervals([*layers], lower, upper)
    expected = layers(upper).isnan()
    assert expected.any()
    for found in (plain, *bounds):
        assert torch.equal(found.isnan(), expected)


@pytest.mark.parametrize("other", ["float32", "gradient", "stride", "width", "half observations"])
def test_elsewhere_layers_are_pytorchs(other, calls):
    layers = {"stride": PatchConv(1, 32, 2), "width": PatchConv(1, 16, 4)}.get(other, PatchConv(1, 32, 4)).to(DEVICE)
    layers = nn.Sequential(layers, nn.ReLU())
    lower, upper = box(2, 1, (36, 36))
    if other == "half observations":
        layers = layers.to(HALF)
        lower, upper = lower.to(HALF), upper.to(HALF)
    if other == "gradient":
        upper.requires_grad_()
    with torch.autocast(DEVICE, HALF, enabled=other != "float32"):
        bounds = box_intervals([*layers], lower, upper)
        plain = networks._through(layers, upper)
        assert torch.equal(plain, layers(upper))
    assert calls == []
    if other == "gradient":
        for y in (sum(bounds), plain):
            assert torch.autograd.grad(y.sum(), upper)[0].any()


def test_the_box_of_observations_is_pytorchs(monkeypatch):
    obs = torch.rand(3, 1, 7, 11, device=DEVICE).round(decimals=1)
    obs[0, 0, 0, :4] = torch.tensor(
        [-0.5, 1.5, float("nan"), 0.0]
    )  # outside of the valid range, no number, at its edge
    eps, low, high = (torch.tensor(x, device=DEVICE) for x in (0.1, [0.0], [1.0]))
    assert dqn_kernels.fits_box(obs, eps, low, high)
    assert not dqn_kernels.fits_box(obs, eps.expand(3, 1, 1, 1), low, high)
    ours = input_box(obs, eps, low, high)
    monkeypatch.setattr(dqn_kernels, "available", never)
    for one, other in zip(ours, input_box(obs, eps, low, high), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


# --- the ReLU of intervals


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_relu_of_intervals_is_pytorchs(dtype):
    middle = torch.randn(3, 5, 7, 9, device=DEVICE)
    radius = torch.randn_like(middle).abs()
    layouts = [torch.contiguous_format, torch.channels_last]
    for of_middle, of_radius in [(a, b) for a in layouts for b in layouts]:
        m = middle.to(dtype, memory_format=of_middle).requires_grad_()
        r = radius.to(dtype, memory_format=of_radius).requires_grad_()
        assert dqn_kernels.fits_relu(m, r)
        ours, theirs = dqn_kernels.interval_relu(m, r), _Relu.apply(m, r)
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == dtype
            assert one.stride() == m.stride()
            torch.testing.assert_close(one, other)
        found, expected = (gradients(pair, [m, r]) for pair in (ours, theirs))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("relu", [dqn_kernels.interval_relu, _Relu.apply])
@pytest.mark.parametrize(
    ("middle", "radius", "above", "width", "of_middle", "of_radius"),
    [
        (2, 1, 2, 1, 1, 3), (1, 0, 1, 0, 1, 3),  # above 0
        (0, 1, 0.5, 0.5, 2, 2), (1, 1, 1, 1, 2, 2),  # around 0, and up from it
        (-1, 1, 0, 0, 0, 0), (-2, 1, 0, 0, 0, 0), (-1, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0),
    ],
)  # fmt: skip
def test_a_relu_of_intervals_by_hand(relu, middle, radius, above, width, of_middle, of_radius):
    given = [torch.tensor([float(x)], device=DEVICE, requires_grad=True) for x in (middle, radius)]
    found = relu(*given)
    assert [x.item() for x in found] == [above, width]
    assert [x.item() for x in torch.autograd.grad(found[0] + 3 * found[1], given)] == [of_middle, of_radius]


def test_a_relu_of_intervals_keeps_what_is_no_number():
    nan = float("nan")
    pair = torch.tensor([nan, 1.0, nan, 1.0], device=DEVICE), torch.tensor([1.0, nan, nan, 1.0], device=DEVICE)
    for found in dqn_kernels.interval_relu(*pair):
        assert found.isnan().tolist() == [True, True, True, False]


# --- networks and updates


def dueling(side=84):
    network = networks.build("dueling-cnn", (1, side, side), 4).to(DEVICE)
    return nn.utils.convert_conv2d_weight_memory_format(network, torch.channels_last)


def test_bounds_of_the_paper_s_network(calls, monkeypatch):
    network = dueling(36)
    corners = box(6, 1, (36, 36))
    actions = torch.arange(6, device=DEVICE) % 4
    chain = network.chain()

    def found():
        with half():
            bounds = score_bounds(chain, *corners, "ibp", centred=True)
            margins = training_margins(chain, *corners, actions)
        return [*bounds, margins, *gradients([*bounds, margins], [*chain.parameters()])]

    ours = found()
    assert calls == [2, 2]
    monkeypatch.setattr(dqn_kernels, "available", never)
    theirs = found()
    assert calls == [2, 2]
    check(ours[:3], theirs[:3], 0.01)
    check(ours[3:], theirs[3:], 0.05)


class Still:
    """Nothing to play."""

    num_envs, num_actions, obs_shape, low, high = 2, 4, (1, 36, 36), (0.0,), (1.0,)
    game = GymnasiumGame("Still-v0")


def test_an_update_of_radial_learns_as_without_the_kernels(calls, monkeypatch):
    ours, torchs = [], []
    for seed in range(9):  # bf16 may turn the sign of a number, and with it the gradient of one sample of eight
        torch.manual_seed(seed)
        found = radial_update(monkeypatch)
        kernels = found(half)
        assert calls == [1, 2]
        with monkeypatch.context() as without:
            without.setattr(dqn_kernels, "available", never)
            layers = found(half)
            with full_precision():
                exact = found(contextlib.nullcontext)
        assert calls == [1, 2]
        calls.clear()
        assert all(tensor.isfinite().all() for tensor in kernels)
        ours.append(max(map(distance, kernels, exact)))
        assert ours[-1] < 1, "one sample of eight at most"
        torchs.append(max(map(distance, layers, exact)))
    assert statistics.median(ours) <= max(0.01, 2 * statistics.median(torchs))


def radial_update(monkeypatch):
    """A function of the precision, to a loss and its gradients."""
    spec = PolicySpec("dueling-cnn", Still.obs_shape, Still.num_actions, Still.low, Still.high)
    policy = Policy(spec).to(DEVICE)
    config = DqnConfig(num_envs=2, batch_size=8, buffer_size=8, precision="bf16", accelerate="none")
    learner = DqnLearner(policy, Still(), config, AttackConfig(), Task("radial", 0.01, 0.01, 0))
    learner._eps.fill_(0.01)
    learner._kappa.fill_(0.5)
    obs = torch.rand(8, 1, 36, 36, device=DEVICE)
    actions, goal = torch.arange(8, device=DEVICE) % 4, torch.randn(8, device=DEVICE)
    batch = Batch(obs, obs, actions, goal, obs, torch.ones(8, device=DEVICE), torch.full((8,), 1 / 8, device=DEVICE))

    def found(precision):
        monkeypatch.setattr(learner, "_autocast", precision)
        loss, _ = learner._loss(batch, goal)
        learned = [p for p in policy.parameters() if p is not policy.network.advantage[-1].bias]  # its bounds cancel it
        return [loss, *torch.autograd.grad(loss, learned)]

    return found


@needs_gpu
def test_a_cuda_graph_of_bounds():
    chain = dueling().chain()
    corners = box(5, 1, (84, 84))

    def step():
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            bounds = score_bounds(chain, *corners, "ibp", centred=True)
        return torch.autograd.grad(bounds[1].sum() - bounds[0].sum(), [*chain.parameters()], allow_unused=True)

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    graph.replay()
    used = [i for i, found in enumerate(expected) if found is not None and found.any()]
    check([results[i] for i in used], [expected[i] for i in used], 1e-4)
