"""Triton kernels for training the paper's DQN: its first convolution with the ReLU, and for bounds the box of
observations and the ReLU of intervals.

PyTorch computes each in many passes over the largest tensors of the network. The convolution reads observations as they
are (B, C, H, W) and in float32, in TF32 on tensor cores, since bf16 would round a perturbation of 1/255 away; or the
two corners of a box of them, for bounds. What leaves it is in half precision, (B, 32, H/4 - 1, W/4 - 1) with
channels-last memory; of a box its centre and half-width. Sums are in float32, and in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton looks up the types that a kernel's parameters name, and knows its own only.

from __future__ import annotations  # triton's names in the signatures of kernels are not looked up where it is missing

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bcl import small_convs
from bcl.layers import PatchConv
from bcl.small_convs import HALVES, LARGEST, jit, triton

if triton:
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

FLOATS = (*HALVES, torch.float32)
CHANNELS = 32  # that leave the convolution
# pixels or numbers of one program, and its warps
CONV = {"BLOCK": 128, "num_warps": 8}
WEIGHTS = {"BLOCK": 64, "num_warps": 4, "num_stages": 1}
POINTWISE = {"BLOCK": 1024, "num_warps": 4}
PROGRAMS = 264  # for gradients of weights: a multiple of an H200's multiprocessors


def available(x: Tensor) -> bool:
    """Whether the kernels run where x lies."""
    return small_convs.available(x) and (not x.is_cuda or small_convs.builds(_attempt, x.device))


def _attempt(device: torch.device) -> None:
    """On one pixel, with gradients: a GPU may have too little of what these kernels need."""
    corner = torch.zeros(1, 1, 8, 8, device=device)
    weight = torch.zeros(CHANNELS, 1, 8, 8, device=device, requires_grad=True)
    bias = torch.zeros(CHANNELS, device=device)
    with torch.enable_grad():
        results = _FirstConv.apply(weight, bias, torch.bfloat16, corner, corner)
        torch.autograd.grad(interval_relu(*results), weight, results)


def fits(layers: Sequence[nn.Module], *corners: Tensor) -> bool:
    """Whether `conv_relu` can compute the first two of these layers; only where autocast asks for half precision."""
    x = corners[0]
    kind = x.device.type
    if torch.compiler.is_compiling() or not torch.is_autocast_enabled(kind):
        return False
    if torch.get_autocast_dtype(kind) not in HALVES or not _begin_with_patches(layers) or x.dim() != 4:
        return False
    if torch.is_grad_enabled() and any(corner.requires_grad for corner in corners):
        return False  # kernels have the gradients of weights alone
    wide = {layers[0].weight.dtype, *(corner.dtype for corner in corners)} == {torch.float32}
    return wide and max(x.numel(), 2 * x[:, 0].numel()) < LARGEST and available(x)


def _begin_with_patches(layers: Sequence[nn.Module]) -> bool:
    """Whether the first two are layers that `conv_relu` is made for."""
    if len(layers) < 2 or type(layers[0]) is not PatchConv or type(layers[1]) is not nn.ReLU:
        return False
    conv = layers[0]
    return conv.stride == (4, 4) and conv.out_channels == CHANNELS and conv.bias is not None


def fits_relu(middle: Tensor, radius: Tensor) -> bool:
    """Whether `interval_relu` can compute on these."""
    small = not torch.compiler.is_compiling() and middle.numel() < LARGEST
    return small and middle.dtype == radius.dtype and middle.dtype in FLOATS and available(middle)


def fits_box(obs: Tensor, eps: Tensor, low: Tensor, high: Tensor) -> bool:
    """Whether `input_box` can compute on these: one budget and one valid range for all numbers, on the device."""
    if torch.compiler.is_compiling() or obs.requires_grad:
        return False
    numbers = (eps, low, high)
    single = all(number.numel() == 1 and number.device == obs.device for number in numbers)
    wide = {obs.dtype, *(number.dtype for number in numbers)} == {torch.float32}
    return single and wide and obs.numel() < LARGEST and available(obs)


# Kernels


@jit
def _clamp(x, low, high):
    x = tl.where(x >= low, x, low)  # where an end is NaN the result is, as in PyTorch
    return tl.where(x <= high, x, high)


@jit
def _box_kernel(obs, eps, low, high, lower, upper, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < size
    x = tl.load(obs + at, mask=live)
    budget = tl.load(eps)
    tl.store(lower + at, _clamp(tl.load(low), x - budget, x + budget), mask=live)
    tl.store(upper + at, _clamp(tl.load(high), x - budget, x + budget), mask=live)


@jit
def _relu(x):
    return tl.where(x < 0, 0.0, x)  # NaN stays, as in PyTorch


@jit
def _relu_of_box(middle, radius):
    """The rule of `bounds.interval`; comparisons are written so that NaN in either makes both NaN."""
    half = _relu((middle + radius) * 0.5)
    return tl.where(middle >= half, middle, half), tl.where(radius <= half, radius, half)


@jit
def _gradients_of_box(middle, radius, of_middle, of_radius):
    """Gradients before that ReLU, from its results and their gradients."""
    whole = middle > radius
    half = (of_middle + of_radius) * 0.5
    below = middle <= 0
    of_middle = tl.where(below, 0.0, tl.where(whole, of_middle, half))
    of_radius = tl.where(below, 0.0, tl.where(whole, of_radius, half))
    return of_middle, of_radius


@jit
def _offsets(p, channel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr):
    """Where the 8x8 pixels of one channel lie that the convolution's results p are of, (BLOCK, 64)."""
    OUT_HEIGHT: tl.constexpr = HEIGHT // 4 - 1
    OUT_WIDTH: tl.constexpr = WIDTH // 4 - 1
    row = p // OUT_WIDTH % OUT_HEIGHT * 4
    col = p % OUT_WIDTH * 4
    image = p // (OUT_WIDTH * OUT_HEIGHT)
    first = ((image * C_IN + channel) * HEIGHT + row) * WIDTH + col
    k = tl.arange(0, 64)
    return first[:, None] + (k // 8 * WIDTH + k % 8)[None, :]


@jit
def _conv_kernel(
    lower, upper, weight, bias, middle, radius, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, BOX: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """relu(conv(lower)); BOX: centre and half-width of relu(conv(x)) for x between lower and upper."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = (p < pixels)[:, None]
    k = tl.arange(0, 64)
    o = tl.arange(0, C_OUT)
    centre = tl.zeros([BLOCK, C_OUT], dtype=tl.float32)
    spread = tl.zeros([BLOCK, C_OUT], dtype=tl.float32)
    for channel in tl.static_range(C_IN):
        at = _offsets(p, channel, HEIGHT, WIDTH, C_IN)
        seen = tl.load(lower + at, mask=live, other=0.0)
        kernel = tl.load(weight + (o[None, :] * C_IN + channel) * 64 + k[:, None])
        if BOX:
            above = tl.load(upper + at, mask=live, other=0.0)
            spread = tl.dot((above - seen) * 0.5, tl.abs(kernel), spread)
            seen = (above + seen) * 0.5
        centre = tl.dot(seen, kernel, centre)
    centre += tl.load(bias + o)[None, :]
    at = p[:, None] * C_OUT + o[None, :]
    if BOX:
        centre, spread = _relu_of_box(centre, spread)
        tl.store(radius + at, spread, mask=live)
    else:
        centre = _relu(centre)
    tl.store(middle + at, centre, mask=live)


@jit
def _weights_kernel(
    lower, upper, weight, middle, radius, of_middle, of_radius, parts, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, BOX: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of the sums over pixels that are the gradients of one channel's weights, and of the bias."""
    channel = tl.program_id(1)
    k = tl.arange(0, 64)
    o = tl.arange(0, C_OUT)
    of_weight = tl.zeros([64, C_OUT], dtype=tl.float32)
    of_size = tl.zeros([64, C_OUT], dtype=tl.float32)  # |weight|
    of_bias = tl.zeros([BLOCK, C_OUT], dtype=tl.float32)
    block = tl.program_id(0)
    while block * BLOCK < pixels:  # the interpreter knows no `range` of what it has in tensors
        p = block * BLOCK + tl.arange(0, BLOCK)
        live = (p < pixels)[:, None]
        at = _offsets(p, channel, HEIGHT, WIDTH, C_IN)
        seen = tl.load(lower + at, mask=live, other=0.0)
        at_out = p[:, None] * C_OUT + o[None, :]
        result = tl.load(middle + at_out, mask=live, other=0.0).to(tl.float32)
        given = tl.load(of_middle + at_out, mask=live, other=0.0).to(tl.float32)
        if BOX:
            spread = tl.load(radius + at_out, mask=live, other=0.0).to(tl.float32)
            of_spread = tl.load(of_radius + at_out, mask=live, other=0.0).to(tl.float32)
            given, of_spread = _gradients_of_box(result, spread, given, of_spread)
            above = tl.load(upper + at, mask=live, other=0.0)
            of_size = tl.dot(tl.trans((above - seen) * 0.5), of_spread, of_size)
            seen = (above + seen) * 0.5
        else:
            given = tl.where(result <= 0, 0.0, given)
        of_weight = tl.dot(tl.trans(seen), given, of_weight)
        of_bias += given
        block += tl.num_programs(0)
    at_weight = (o[None, :] * C_IN + channel) * 64 + k[:, None]
    if BOX:
        kernel = tl.load(weight + at_weight)
        of_weight += tl.where(kernel > 0, of_size, 0.0) - tl.where(kernel < 0, of_size, 0.0)
    part = parts + tl.program_id(0) * (64 * C_IN + 1) * C_OUT
    tl.store(part + at_weight, of_weight)
    if channel == 0:
        tl.store(part + 64 * C_IN * C_OUT + o, tl.sum(of_bias, axis=0))


@jit
def _relu_kernel(middle, radius, out_middle, out_radius, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < size
    centre = tl.load(middle + at, mask=live).to(tl.float32)
    spread = tl.load(radius + at, mask=live).to(tl.float32)
    centre, spread = _relu_of_box(centre, spread)
    tl.store(out_middle + at, centre, mask=live)
    tl.store(out_radius + at, spread, mask=live)


@jit
def _relu_gradient_kernel(middle, radius, of_middle, of_radius, out_middle, out_radius, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < size
    centre = tl.load(middle + at, mask=live).to(tl.float32)
    spread = tl.load(radius + at, mask=live).to(tl.float32)
    of_centre = tl.load(of_middle + at, mask=live).to(tl.float32)
    of_spread = tl.load(of_radius + at, mask=live).to(tl.float32)
    of_centre, of_spread = _gradients_of_box(centre, spread, of_centre, of_spread)
    tl.store(out_middle + at, of_centre, mask=live)
    tl.store(out_radius + at, of_spread, mask=live)


# Calls of the kernels


class _FirstConv(torch.autograd.Function):
    """Gradients of weights and bias alone."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, dtype: torch.dtype, *corners: Tensor) -> tuple[Tensor, ...]:
        weight = weight.contiguous()
        corners = tuple(corner.contiguous() for corner in corners)
        batch, channels, height, width = corners[0].shape
        shape = (batch, CHANNELS, height // 4 - 1, width // 4 - 1)
        results = tuple(
            torch.empty(shape, dtype=dtype, device=weight.device, memory_format=torch.channels_last) for _ in corners
        )
        pixels = results[0].numel() // CHANNELS
        _conv_kernel[(triton.cdiv(pixels, CONV["BLOCK"]),)](
            corners[0], corners[-1], weight, bias, results[0], results[-1], pixels,
            HEIGHT=height, WIDTH=width, C_IN=channels, C_OUT=CHANNELS, BOX=len(corners) == 2, **CONV,
        )  # fmt: skip
        ctx.save_for_backward(weight, *corners, *results)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        count = len(gradients)
        corners, results = saved[:count], saved[count:]
        given = [_laid_out_as(results[0], gradient) for gradient in gradients]
        _, channels, height, width = corners[0].shape
        pixels = results[0].numel() // CHANNELS
        programs = min(PROGRAMS, triton.cdiv(pixels, WEIGHTS["BLOCK"]))
        parts = torch.empty((programs, weight.numel() + CHANNELS), dtype=torch.float32, device=weight.device)
        _weights_kernel[(programs, channels)](
            corners[0], corners[-1], weight, results[0], results[-1], given[0], given[-1], parts, pixels,
            HEIGHT=height, WIDTH=width, C_IN=channels, C_OUT=CHANNELS, BOX=count == 2, **WEIGHTS,
        )  # fmt: skip
        total = parts.sum(0)  # always in the same order, unlike with atomic additions
        return total[:-CHANNELS].view(weight.shape), total[-CHANNELS:], None, *[None] * count


class _IntervalRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        results = torch.empty_like(middle), torch.empty_like(middle)
        given = [_laid_out_as(results[0], x) for x in (middle, radius)]
        size = middle.numel()
        _relu_kernel[(triton.cdiv(size, POINTWISE["BLOCK"]),)](*given, *results, size, **POINTWISE)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        results = ctx.saved_tensors
        given = [_laid_out_as(results[0], gradient) for gradient in gradients]
        out = torch.empty_like(results[0]), torch.empty_like(results[0])
        size = out[0].numel()
        _relu_gradient_kernel[(triton.cdiv(size, POINTWISE["BLOCK"]),)](*results, *given, *out, size, **POINTWISE)
        return out


def _laid_out_as(like: Tensor, x: Tensor) -> Tensor:
    """x, or a copy in the memory order of `like`."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


# Layers


def input_box(obs: Tensor, eps: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """As `bounds.input_box`."""
    obs = obs.contiguous()
    corners = torch.empty_like(obs), torch.empty_like(obs)
    size = obs.numel()
    _box_kernel[(triton.cdiv(size, POINTWISE["BLOCK"]),)](obs, eps, low, high, *corners, size, **POINTWISE)
    return corners


def conv_relu(layers: Sequence[nn.Module], *corners: Tensor) -> tuple[Tensor, ...]:
    """The first two of these layers on observations, alone in a tuple; for the corners of a box of observations the
    centre and half-width of what the layers give."""
    conv = layers[0]
    return _FirstConv.apply(conv.weight, conv.bias, torch.get_autocast_dtype(corners[0].device.type), *corners)


def interval_relu(middle: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """As `bounds.interval` computes it, in one kernel, and the gradients in another."""
    return _IntervalRelu.apply(middle, radius)
