"""Kernels against PyTorch's own layers in float64.

On a GPU; without one by Triton's interpreter, which takes a minute: TRITON_INTERPRET=1 with triton installed.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bcl import small_convs
from bcl.frozen import FlattenPixels, FrozenConvPool, FrozenResidual, frozen
from bcl.policies import networks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not small_convs.available(torch.empty(0, device=DEVICE)), reason="needs CUDA and Triton"),
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter does not know bfloat16")
layouts = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def conv(c_in, c_out, dtype=HALF):
    """Weights that `dtype` holds exactly: what differs then is the computation."""
    layer = nn.Conv2d(c_in, c_out, 3, padding=1)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.to(dtype))
    return layer.to(DEVICE)


def random(*shape, dtype=HALF, layout=torch.contiguous_format):
    return torch.randn(shape).to(dtype).to(DEVICE, memory_format=layout).requires_grad_()


def distance(ours, theirs):
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def gradients(out, leaves, seed=1):
    """Of a random combination of the outputs."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).half()
    return torch.autograd.grad(out, leaves, weights.to(out))


def check(ours, theirs, tolerance=2e-3):
    assert [round(distance(a, b), 6) for a, b in zip(ours, theirs, strict=True)] == pytest.approx(
        [0] * len(ours), abs=tolerance
    )


def doubles(x, *layers):
    """The same in float64, as leaves."""
    copies = [nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1).to(DEVICE).double() for layer in layers]
    for copy, layer in zip(copies, layers, strict=True):
        copy.load_state_dict(layer.state_dict())
    return x.detach().double().requires_grad_(), *copies


def parameters(*layers):
    return [p for layer in layers for p in layer.parameters()]


class ToHalf(torch.autograd.Function):
    """Rounds; gradients pass."""

    @staticmethod
    def forward(ctx, x):
        return x.half().double()

    @staticmethod
    def backward(ctx, grad):
        return grad


@layouts
@pytest.mark.parametrize(
    ("channels", "batch", "size"), [(16, 3, (7, 9)), (32, 2, (8, 8)), (16, 1, (1, 1)), (32, 1, (17, 16))]
)
def test_a_residual_layer(channels, batch, size, layout):
    x = random(batch, channels, *size, layout=layout)
    first, second = conv(channels, channels), conv(channels, channels)
    ours = small_convs.residual(x, first, second)
    ours = [ours, *gradients(ours, [x, *parameters(first, second)])]
    y, a, b = doubles(x, first, second)
    theirs = y + b(ToHalf.apply(F.relu(a(F.relu(y)))))
    check(ours, [theirs, *gradients(theirs, [y, *parameters(a, b)])])
    assert ours[0].dtype == HALF


@pytest.mark.parametrize(("c_in", "c_out"), [(16, 16), (16, 32), (32, 32), (32, 16)])
@pytest.mark.parametrize("relu_in", [False, True])
@pytest.mark.parametrize("relu_out", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_a_convolution_and_what_is_fused_with_it(c_in, c_out, relu_in, relu_out, add):
    x, more = (random(2, c, 5, 6, layout=torch.channels_last).detach() for c in (c_in, c_out))
    layer = conv(c_in, c_out)
    ours = small_convs._convolve(
        x, *small_convs.prepare(layer, HALF), relu_in=relu_in, relu_out=relu_out, add=more if add else None
    )
    y, a = doubles(x, layer)
    theirs = a(F.relu(y) if relu_in else y)
    theirs = (F.relu(theirs) if relu_out else theirs) + (more if add else 0)
    check([ours], [theirs])


@pytest.mark.parametrize(("c_in", "c_out"), [(16, 16), (16, 32), (32, 32)])
@pytest.mark.parametrize("fused", [False, True])
def test_the_gradient_of_a_convolution_s_input(c_in, c_out, fused):
    grad, x, skip = (random(3, c, 7, 4, layout=torch.channels_last).detach() for c in (c_out, c_in, c_in))
    layer = conv(c_in, c_out)
    weight, _ = small_convs.prepare(layer, HALF)
    more = {"ref": x, "add": skip} if fused else {}
    ours = small_convs._convolve(grad, weight, flip=True, **more)
    y, a = doubles(x, layer)
    (theirs,) = torch.autograd.grad(a(F.relu(y) if fused else y), y, grad.double())
    check([ours], [theirs + skip if fused else theirs])


@layouts
@pytest.mark.parametrize(
    ("c_in", "c_out", "dtype"), [(3, 16, HALF), (3, 16, torch.float32), (1, 16, HALF), (16, 32, HALF), (32, 32, HALF)]
)
@pytest.mark.parametrize(("batch", "size"), [(3, (8, 8)), (2, (9, 7)), (1, (1, 2))])
def test_a_convolution_with_its_pooling(c_in, c_out, dtype, batch, size, layout):
    x = random(batch, c_in, *size, dtype=dtype, layout=layout)
    layer = conv(c_in, c_out)
    out = small_convs.conv_pool(x, layer, HALF)
    ours = [out, *gradients(out, [x, *layer.parameters()])]
    y, a = doubles(x, layer)
    between = a(y) if c_in <= 3 else ToHalf.apply(a(y))  # only the first never leaves float32 before its pooling
    theirs = F.max_pool2d(between, 3, stride=2, padding=1)
    theirs = [theirs, *gradients(theirs, [y, *a.parameters()])]
    check(ours[:1], theirs[:1])
    check(ours[1:], theirs[1:], tolerance=2e-3 if DEVICE == "cpu" else 0.03)  # other winners where sums round otherwise
    assert out.dtype == HALF
    assert ours[1].dtype == dtype
    assert c_in > 3 or ours[1].stride() == x.stride()


@pytest.fixture
def few_programs(monkeypatch):
    """So that small batches are several blocks of each program, which the last of them does not fill."""
    monkeypatch.setattr(small_convs, "PROGRAMS", 2)
    monkeypatch.setattr(small_convs, "FIRST_PROGRAMS", 2)
    monkeypatch.setattr(small_convs, "WEIGHTS", {**small_convs.WEIGHTS, "BLOCK": 64})
    monkeypatch.setattr(small_convs, "FIRST_WEIGHTS", {**small_convs.FIRST_WEIGHTS, "BLOCK": 32})


@pytest.mark.parametrize(("c_in", "c_out"), [(16, 16), (16, 32), (32, 32), (32, 16)])
@pytest.mark.parametrize("relu_in", [False, True])
@pytest.mark.parametrize("batch", [1, 7])
def test_the_gradients_of_weights(c_in, c_out, relu_in, batch, few_programs):
    x, grad = (random(batch, c, 7, 9, layout=torch.channels_last).detach() for c in (c_in, c_out))
    layer = conv(c_in, c_out)
    weight, _ = small_convs.prepare(layer, HALF)
    ours = small_convs._weight_gradients(grad, x, weight, relu_in)
    y, a = doubles(x, layer)
    theirs = torch.autograd.grad(a(F.relu(y) if relu_in else y), [*a.parameters()], grad.double())
    check([ours[0].permute(3, 2, 0, 1), ours[1]], theirs)
    assert [one.dtype for one in ours] == [HALF, torch.float32]
    assert all(map(torch.equal, ours, small_convs._weight_gradients(grad, x, weight, relu_in)))


@layouts
@pytest.mark.parametrize(("c_in", "c_out", "dtype"), [(3, 16, HALF), (3, 16, torch.float32), (1, 32, torch.float32)])
def test_the_gradients_of_the_first_weights(c_in, c_out, dtype, layout, few_programs):
    x = random(5, c_in, 9, 8, dtype=dtype, layout=layout).detach()
    weight, bias = small_convs.prepare(conv(c_in, c_out), dtype)
    out, taps = small_convs._first(x, weight, bias, HALF)
    grad = random(*out.shape, layout=torch.channels_last).detach()
    ours = small_convs._first_weight_gradients(grad, taps, x, weight)
    y, a = doubles(x, nn.Conv2d(c_in, c_out, 3))
    unpooled = small_convs._unpool(grad.double(), taps, 9, 8)
    check([ours[0].permute(3, 2, 0, 1), ours[1]], torch.autograd.grad(a(y), [*a.parameters()], unpooled))
    assert [one.dtype for one in ours] == [dtype, torch.float32]
    assert all(map(torch.equal, ours, small_convs._first_weight_gradients(grad, taps, x, weight)))


def test_the_gradients_of_the_first_weights_for_a_view_of_observations():
    x = torch.rand(2, 6, 7, 20, device=DEVICE)[:, ::2, :, 3:12]
    layer = conv(3, 16)
    ours, theirs = (gradients(small_convs.conv_pool(y, layer), [*layer.parameters()]) for y in (x, x.contiguous()))
    check(ours, theirs, tolerance=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (5, 7), (1, 1), (2, 3)])
@pytest.mark.parametrize("values", [1, 2, 1000])
def test_pooling_and_its_ties(size, values):
    x = torch.randint(values, (3, 16, *size)).half().to(DEVICE, memory_format=torch.channels_last)
    ours, taps = small_convs._pool(x, HALF)
    y = x.detach().float().requires_grad_()
    theirs = F.max_pool2d(y, 3, stride=2, padding=1)
    assert torch.equal(ours.float(), theirs)
    grad = torch.randint_like(theirs, -8, 8)
    (expected,) = torch.autograd.grad(theirs, y, grad)
    assert torch.equal(
        small_convs._unpool(grad.half().contiguous(memory_format=torch.channels_last), taps, *size).float(), expected
    )


@pytest.mark.parametrize("channels", [3, 16])
def test_what_is_no_number_stays_none(channels):
    x = torch.rand(1, channels, 8, 8).half().to(DEVICE, memory_format=torch.channels_last)
    x[0, 1, 3, 3] = float("nan")
    pooled = small_convs.conv_pool(x, conv(channels, 16))
    expected = F.max_pool2d(conv(channels, 16)(x.float()), 3, stride=2, padding=1)
    assert torch.equal(pooled.isnan(), expected.isnan())
    assert pooled.isnan().any()
    assert not pooled.isnan().all()
    after = small_convs.residual(pooled, conv(16, 16), conv(16, 16))
    assert after[pooled.isnan()].isnan().all()


def test_ties_of_the_first_convolution_go_to_the_first_pixel():
    x = torch.zeros(1, 3, 6, 6, dtype=HALF, device=DEVICE)
    _, ours = small_convs._first(x, *small_convs.prepare(conv(3, 16), HALF), HALF)
    _, theirs = small_convs._pool(torch.zeros(1, 16, 6, 6, dtype=HALF, device=DEVICE), HALF)
    assert torch.equal(ours, theirs)


def test_a_view_of_observations():
    x = torch.rand(2, 6, 7, 20, device=DEVICE).half()[:, ::2, :, 3:12]
    layer = conv(3, 16)
    assert torch.equal(small_convs.conv_pool(x, layer), small_convs.conv_pool(x.contiguous(), layer))


def impala(shape=(3, 64, 64), dtype=HALF):
    network = networks.build("impala", shape, 15)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter.to(dtype))
    return network.to(DEVICE)


def in_double(network, x):
    """Logits of all of it and their gradients, of observations and all weights but those of the value."""
    exact = networks.build("impala", x.shape[1:], 15).to(DEVICE).double()
    exact.load_state_dict(network.state_dict())
    y = x.detach().double().requires_grad_()
    out = exact(y)
    return [out, *torch.autograd.grad(out, [y, *weights_of(exact)], torch.ones_like(out))]


def weights_of(network):
    return [*network.body.parameters(), *network.logits.parameters()]


@layouts
@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_all_of_impala_with_frozen_weights(dtype, layout):
    network = impala((3, 16, 24))
    chain = frozen(network.chain(), HALF)
    expected = [FrozenConvPool, FrozenResidual, FrozenResidual] * 3
    assert [type(layer) for layer in chain] == [*expected, FlattenPixels, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    x = torch.rand(3, 3, 16, 24).to(dtype).to(DEVICE, memory_format=layout).requires_grad_()
    out = chain(x)
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    theirs = in_double(network, x)
    check([out], theirs[:1], tolerance=5e-3)
    check([gradient], theirs[1:2], tolerance=0.1)  # other winners of poolings, other signs before ReLUs
    assert gradient.dtype == dtype
    assert not any(parameter.requires_grad for parameter in chain.parameters())


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_a_frozen_network_that_begins_with_many_channels(dtype):
    chain = nn.Sequential(conv(16, 32), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(32 * 16, 3)).to(DEVICE)
    x = torch.rand(2, 16, 8, 8).to(dtype).to(DEVICE).requires_grad_()
    scores = frozen(chain, HALF)(x)
    check([scores], [chain(x.float())], tolerance=5e-3)
    assert torch.autograd.grad(scores.sum(), x)[0].dtype == dtype


@needs_gpu
def test_training_in_bfloat16_does_not_round_the_observations():
    network = impala(dtype=torch.bfloat16)
    x = torch.rand(64, 3, 64, 64, device=DEVICE).requires_grad_()
    calls = []
    kernel = small_convs.ConvPoolFunction.forward
    with pytest.MonkeyPatch.context() as patched, torch.autocast("cuda", torch.bfloat16):
        patched.setattr(small_convs.ConvPoolFunction, "forward", lambda *a: (calls.append(a[1].dtype), kernel(*a))[1])
        out = network(x)
    assert calls == [torch.float32, torch.bfloat16, torch.bfloat16]
    ours = [out, *torch.autograd.grad(out, [x, *weights_of(network)], torch.ones_like(out))]
    theirs = in_double(network, x)
    check(ours[:1], theirs[:1], tolerance=0.02)
    check(ours[2:], theirs[2:], tolerance=0.1)
    with torch.autocast("cuda", torch.bfloat16), pytest.MonkeyPatch.context() as patched:
        patched.setattr(small_convs, "available", lambda x: False)
        plain = torch.autograd.grad(network(x), x, torch.ones_like(out))[0]
    assert distance(ours[1], theirs[1]) < 1.2 * distance(plain, theirs[1]), "as near as PyTorch's own"


@needs_gpu
def test_a_cuda_graph():
    chain = frozen(impala().chain(), HALF)
    x = torch.rand(5, 3, 64, 64, device=DEVICE).half().requires_grad_()
    expected = torch.autograd.grad(chain(x).float().sum(), x)[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (result,) = torch.autograd.grad(chain(x).float().sum(), x)
    graph.replay()
    assert torch.equal(result, expected)


@needs_gpu
def test_a_cuda_graph_of_training():
    network = impala(dtype=torch.bfloat16)
    x = torch.rand(5, 3, 64, 64, device=DEVICE)

    def step():
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            out = network(x)
        return torch.autograd.grad(out.float().sum(), weights_of(network))

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    graph.replay()
    check(results, expected, tolerance=1e-4)


def test_other_convolutions_are_refused():
    with pytest.raises(ValueError, match="3x3"):
        small_convs.prepare(nn.Conv2d(16, 16, 3), HALF)
    with pytest.raises(ValueError, match="channels"):
        small_convs.prepare(nn.Conv2d(16, 64, 3, padding=1), HALF)
