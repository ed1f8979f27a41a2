"""IMPALA's convolutions as Triton kernels: cuDNN's are slow at 16 and 32 channels.

Tensors have PyTorch's shapes (B, C, H, W) and channels-last memory, in half precision; sums are in float32. Everything
elementwise around a convolution (ReLU, bias, skip connection, pooling of the first one) happens inside its kernel.
Weights come "prepared", as (3, 3, C_in, C_out); preparing is differentiable, so training gets its gradients too.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton looks up the types that a kernel's parameters name, and knows its own only.

from __future__ import annotations  # triton's names in the signatures of kernels are not looked up where it is missing

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

HALVES = (torch.float16, torch.bfloat16)
WIDTHS = (16, 32)  # channels
FIRST_WIDTHS = (1, 2, 3)  # of an observation
# pixels of one program, and its warps
CONV = {"BLOCK": 128, "num_warps": 4}
POOL = {"BLOCK": 64, "num_warps": 4}
FIRST = {"BLOCK": 128, "num_warps": 4}
FIRST_GRADIENT = {"BLOCK": 64, "num_warps": 4}
# Gradients of weights: in one stage, as asynchronous copies would pass by the cache that shifted reads hit
WEIGHTS = {"BLOCK": 128, "num_warps": 4, "num_stages": 1}
FIRST_WEIGHTS = {"BLOCK": 128, "num_warps": 4, "num_stages": 1}
# and programs, of three rows of taps each for all but the first convolution; a multiple of an H200's multiprocessors
PROGRAMS = 132
FIRST_PROGRAMS = 528

LARGEST = 2**31 - 2**20  # offsets are 32 bits; a last program reaches past the end before its mask applies


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit`, where it is installed."""
    return kernel if triton is None else triton.jit(kernel)


def available(x: Tensor) -> bool:
    """Whether the kernels run where x lies: on a GPU for which Triton can build, or on a CPU where it interprets."""
    if triton is None:
        return False
    return builds(_attempt, x.device) if x.is_cuda else os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def builds(attempt: Callable[[torch.device], object], device: torch.device) -> bool:
    """Tried once: Triton needs a C compiler and Python's headers, and does not know every GPU."""
    try:
        attempt(device)
    except Exception as error:  # of many kinds, from Python's to the C compiler's
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"networks run on PyTorch's layers, which is slower: {reason}", stacklevel=2)
        return False
    return True


def _attempt(device: torch.device) -> None:
    _pool(torch.zeros(1, WIDTHS[0], 2, 2, dtype=HALVES[0], device=device), HALVES[0])


def most_rows(height: int, width: int) -> int:
    """Observations of this size that fit into a batch, whatever the network."""
    return LARGEST // (WIDTHS[-1] * height * width)


def fits_residual(x: Tensor) -> bool:
    """Whether `residual` can compute on x."""
    return x.dtype in HALVES and x.shape[1] in WIDTHS and _runs_on(x, x.shape[1])


def fits_pool(x: Tensor, conv: nn.Module, pool: nn.Module) -> bool:
    """Whether `conv_pool` can compute these two layers on x."""
    return pools(conv, pool) and _runs_on(x, WIDTHS[-1]) and (x.shape[1] not in WIDTHS or x.dtype in HALVES)


def pools(conv: nn.Module, pool: nn.Module) -> bool:
    """Whether these are layers that `conv_pool` is made for."""
    if type(conv) is not nn.Conv2d or type(pool) is not nn.MaxPool2d:
        return False
    fits = conv.in_channels in (*FIRST_WIDTHS, *WIDTHS) and conv.out_channels in WIDTHS and _is_plain(conv)
    return fits and (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode) == (3, 2, 1, 1, False)


def _is_plain(conv: nn.Conv2d) -> bool:
    sizes = (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    return sizes == ((3, 3), (1, 1), (1, 1), (1, 1)) and conv.groups == 1 and conv.padding_mode == "zeros"


def _runs_on(x: Tensor, channels: int) -> bool:
    batch, _, height, width = x.shape
    small = not torch.compiler.is_compiling() and batch * height * width * channels < LARGEST
    return small and available(x)


# Kernels. A program works on BLOCK pixels, counted over the whole batch, and on all channels.


@jit
def _conv_kernel(
    x, weight, bias, add, ref, out, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr,
    RELU_IN: tl.constexpr, FLIP: tl.constexpr, HAS_BIAS: tl.constexpr, RELU_OUT: tl.constexpr, MASK: tl.constexpr,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = [ref > 0] * relu(conv(relu(x)) + bias) + add; FLIP: the transposed one, of weights (3, 3, out, in)."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = p % WIDTH
    row = p // WIDTH % HEIGHT
    live = p < pixels
    c = tl.arange(0, C_IN)
    o = tl.arange(0, C_OUT)
    total = tl.zeros([BLOCK, C_OUT], dtype=tl.float32)
    for tap in tl.static_range(9):
        dy = tap // 3 - 1
        dx = tap % 3 - 1
        inside = live & (row + dy >= 0) & (row + dy < HEIGHT) & (col + dx >= 0) & (col + dx < WIDTH)
        seen = tl.load(x + (p + dy * WIDTH + dx)[:, None] * C_IN + c[None, :], mask=inside[:, None], other=0.0)
        if RELU_IN:
            seen = tl.where(seen < 0, tl.zeros_like(seen), seen)  # NaN stays, as in PyTorch
        if FLIP:
            kernel = tl.load(weight + (8 - tap) * C_IN * C_OUT + o[None, :] * C_IN + c[:, None])
        else:
            kernel = tl.load(weight + tap * C_IN * C_OUT + c[:, None] * C_OUT + o[None, :])
        total = tl.dot(seen, kernel, total)
    if HAS_BIAS:
        total += tl.load(bias + o)[None, :]
    if RELU_OUT:
        total = tl.where(total < 0, 0.0, total)
    at = p[:, None] * C_OUT + o[None, :]
    if MASK:
        total = tl.where(tl.load(ref + at, mask=live[:, None], other=0.0) > 0, total, 0.0)
    if ADD:
        total += tl.load(add + at, mask=live[:, None], other=0.0).to(tl.float32)
    tl.store(out + at, total, mask=live[:, None])


@jit
def _pool_kernel(
    x, out, taps, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest of each 3x3 window at stride 2, and which of its nine pixels that was (the first of equal ones)."""
    OUT_HEIGHT: tl.constexpr = (HEIGHT + 1) // 2
    OUT_WIDTH: tl.constexpr = (WIDTH + 1) // 2
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = q % OUT_WIDTH * 2
    row = q // OUT_WIDTH % OUT_HEIGHT * 2
    centre = q // (OUT_WIDTH * OUT_HEIGHT) * (HEIGHT * WIDTH) + row * WIDTH + col
    live = q < pixels
    c = tl.arange(0, CHANNELS)
    best = tl.full([BLOCK, CHANNELS], float("-inf"), dtype=tl.float32)
    winner = tl.full([BLOCK, CHANNELS], 4, dtype=tl.int32)
    for tap in tl.static_range(9):
        dy = tap // 3 - 1
        dx = tap % 3 - 1
        inside = live & (row + dy >= 0) & (row + dy < HEIGHT) & (col + dx >= 0) & (col + dx < WIDTH)
        at = (centre + dy * WIDTH + dx)[:, None] * CHANNELS + c[None, :]
        value = tl.load(x + at, mask=inside[:, None], other=float("-inf")).to(tl.float32)
        wins = (value > best) | (value != value)
        winner = tl.where(wins, tap, winner)
        best = tl.where(wins, value, best)
    at = q[:, None] * CHANNELS + c[None, :]
    tl.store(out + at, best, mask=live[:, None])
    tl.store(taps + at, winner.to(tl.uint8), mask=live[:, None])


@jit
def _unpooled(
    grad, taps, image, row, col, live,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each pixel's sum over the windows, up to four, that it won."""
    OUT_HEIGHT: tl.constexpr = (HEIGHT + 1) // 2
    OUT_WIDTH: tl.constexpr = (WIDTH + 1) // 2
    c = tl.arange(0, CHANNELS)
    total = tl.zeros([BLOCK, CHANNELS], dtype=tl.float32)
    for a in tl.static_range(2):
        for b in tl.static_range(2):
            i = (row + a) // 2  # an even row lies in one row of windows only: not in a second one
            j = (col + b) // 2
            inside = live & (i < OUT_HEIGHT) & (j < OUT_WIDTH) & (row % 2 >= a) & (col % 2 >= b)
            tap = (row - 2 * i + 1) * 3 + col - 2 * j + 1
            at = ((image * OUT_HEIGHT + i) * OUT_WIDTH + j)[:, None] * CHANNELS + c[None, :]
            winner = tl.load(taps + at, mask=inside[:, None], other=255)
            value = tl.load(grad + at, mask=inside[:, None], other=0.0).to(tl.float32)
            total += tl.where(winner.to(tl.int32) == tap[:, None], value, 0.0)
    return total


@jit
def _unpool_kernel(
    grad, taps, out, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the pooling's input."""
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = p < pixels
    total = _unpooled(
        grad, taps, p // (HEIGHT * WIDTH), p // WIDTH % HEIGHT, p % WIDTH, live, HEIGHT, WIDTH, CHANNELS, BLOCK
    )
    tl.store(out + p[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :], total, mask=live[:, None])


@jit
def _patches(
    x, image, row, col, live, image_stride, c_stride, row_stride,
    col_stride, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr,
    SIDE: tl.constexpr, START: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Entries START to START + SIZE of the SIDE x SIDE pixels from (row, col) on, by row, column and channel."""
    k = START + tl.arange(0, SIZE)
    y = row[:, None] + (k // (SIDE * C_IN))[None, :]
    z = col[:, None] + (k // C_IN % SIDE)[None, :]
    inside = live[:, None] & (k < SIDE * SIDE * C_IN)[None, :] & (y >= 0) & (y < HEIGHT) & (z >= 0) & (z < WIDTH)
    at = image[:, None] * image_stride + (k % C_IN)[None, :] * c_stride + y * row_stride + z * col_stride
    return tl.load(x + at, mask=inside, other=0.0)


@jit
def _patch_weights(
    weight, TAP: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, START: tl.constexpr, SIZE: tl.constexpr
):
    """The weights by which such entries count for the convolution at pixel TAP of a 3x3 window; most are zero."""
    k = START + tl.arange(0, SIZE)
    dy = k // (5 * C_IN) - TAP // 3
    dx = k // C_IN % 5 - TAP % 3
    inside = (dy >= 0) & (dy < 3) & (dx >= 0) & (dx < 3)  # past the 25 pixels dy is too large only for some: x is 0
    at = ((dy * 3 + dx) * C_IN + k % C_IN)[:, None] * C_OUT + tl.arange(0, C_OUT)[None, :]
    return tl.load(weight + at, mask=inside[:, None], other=0.0)


@jit
def _first_kernel(
    x, weight, bias, out, taps, pixels,
    image_stride, c_stride, row_stride, col_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convolution of at most 3 channels, and pooling: nine products of the same 5x5 pixels, of which the largest."""
    OUT_HEIGHT: tl.constexpr = (HEIGHT + 1) // 2
    OUT_WIDTH: tl.constexpr = (WIDTH + 1) // 2
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = q % OUT_WIDTH * 2
    row = q // OUT_WIDTH % OUT_HEIGHT * 2
    image = q // (OUT_WIDTH * OUT_HEIGHT)
    live = q < pixels
    o = tl.arange(0, C_OUT)
    kind = weight.dtype.element_ty
    most = _patches(
        x, image, row - 2, col - 2, live, image_stride, c_stride, row_stride, col_stride, HEIGHT, WIDTH, C_IN, 5, 0, 64
    ).to(kind)
    rest = _patches(
        x, image, row - 2, col - 2, live, image_stride, c_stride, row_stride, col_stride, HEIGHT, WIDTH, C_IN, 5, 64, 16
    ).to(kind)
    best = tl.full([BLOCK, C_OUT], float("-inf"), dtype=tl.float32)
    winner = tl.full([BLOCK, C_OUT], 4, dtype=tl.int32)
    for tap in tl.static_range(9):
        dy = tap // 3 - 1
        dx = tap % 3 - 1
        value = tl.dot(most, _patch_weights(weight, tap, C_IN, C_OUT, 0, 64))
        value = tl.dot(rest, _patch_weights(weight, tap, C_IN, C_OUT, 64, 16), value)
        inside = (row + dy >= 0) & (row + dy < HEIGHT) & (col + dx >= 0) & (col + dx < WIDTH)
        value = tl.where(inside[:, None], value, float("-inf"))
        wins = (value > best) | (value != value)
        winner = tl.where(wins, tap, winner)
        best = tl.where(wins, value, best)
    at = q[:, None] * C_OUT + o[None, :]
    tl.store(out + at, best + tl.load(bias + o)[None, :], mask=live[:, None])
    tl.store(taps + at, winner.to(tl.uint8), mask=live[:, None])


@jit
def _first_gradient_kernel(
    grad, taps, weight, out, pixels,
    image_stride, c_stride, row_stride, col_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of the same kernel's input, 2x2 pixels for each pixel of the pooled gradient."""
    OUT_HEIGHT: tl.constexpr = (HEIGHT + 1) // 2
    OUT_WIDTH: tl.constexpr = (WIDTH + 1) // 2
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = q % OUT_WIDTH
    i = q // OUT_WIDTH % OUT_HEIGHT
    image = q // (OUT_WIDTH * OUT_HEIGHT)
    live = q < pixels
    o = tl.arange(0, C_OUT)
    n = tl.arange(0, 16)  # the result's columns: 2x2 pixels by row, column and channel
    down = n // (2 * C_IN)
    right = n // C_IN % 2
    total = tl.zeros([BLOCK, 16], dtype=tl.float32)
    for u in tl.static_range(4):  # (u, v): pixels of the convolution's result, from one up and left of the 2x2 on
        for v in tl.static_range(4):
            here = tl.zeros([BLOCK, C_OUT], dtype=tl.float32)
            for ty in tl.static_range(3):
                for tx in tl.static_range(3):
                    if (u - ty) % 2 == 0 and (v - tx) % 2 == 0:  # that pixel is (ty, tx) of the window (i + a, j + b)
                        a = (u - ty) // 2
                        b = (v - tx) // 2
                        inside = live & (i + a >= 0) & (i + a < OUT_HEIGHT) & (j + b >= 0) & (j + b < OUT_WIDTH)
                        window = (q + a * OUT_WIDTH + b)[:, None] * C_OUT + o[None, :]
                        winner = tl.load(taps + window, mask=inside[:, None], other=255)
                        value = tl.load(grad + window, mask=inside[:, None], other=0.0).to(tl.float32)
                        here += tl.where(winner == ty * 3 + tx, value, 0.0)
            ky = down - u + 2
            kx = right - v + 2
            used = (n < 4 * C_IN) & (ky >= 0) & (ky < 3) & (kx >= 0) & (kx < 3)
            tap = (ky * 3 + kx) * C_IN + n % C_IN
            kernel = tl.load(weight + tap[None, :] * C_OUT + o[:, None], mask=used[None, :], other=0.0)
            total = tl.dot(here.to(kernel.dtype), kernel, total)
    row = 2 * i[:, None] + down[None, :]
    col = 2 * j[:, None] + right[None, :]
    inside = live[:, None] & (n < 4 * C_IN)[None, :] & (row < HEIGHT) & (col < WIDTH)
    at = image[:, None] * image_stride + (n % C_IN)[None, :] * c_stride + row * row_stride + col * col_stride
    tl.store(out + at, total, mask=inside)


@jit
def _weights_kernel(
    x, grad, out, pixels,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, RELU_IN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A part of the sums over pixels that are the gradients of a row of taps, and of the bias for the last row."""
    dy = tl.program_id(1) - 1
    k = tl.arange(0, 4 * C_IN)  # the three taps, side by side in memory as in the result, then a one and zeros
    o = tl.arange(0, C_OUT)
    outside = tl.where(k == 3 * C_IN, 1.0, 0.0).to(x.dtype.element_ty)[None, :]
    total = tl.zeros([4 * C_IN, C_OUT], dtype=tl.float32)
    block = tl.program_id(0)
    while block * BLOCK < pixels:  # the interpreter knows no `range` of what it has in tensors
        p = block * BLOCK + tl.arange(0, BLOCK)
        row = p // WIDTH % HEIGHT + dy
        col = (p % WIDTH)[:, None] + (k // C_IN - 1)[None, :]
        live = p < pixels
        given = tl.load(grad + p[:, None] * C_OUT + o[None, :], mask=live[:, None], other=0.0)
        inside = (live & (row >= 0) & (row < HEIGHT))[:, None] & (k < 3 * C_IN)[None, :] & (col >= 0) & (col < WIDTH)
        seen = tl.load(x + (p + dy * WIDTH - 1)[:, None] * C_IN + k[None, :], mask=inside, other=outside)
        if RELU_IN:
            seen = tl.where(seen < 0, tl.zeros_like(seen), seen)
            # the one once more: else the compiler moves the relu behind the transposition, with many more barriers
            seen = tl.where((k == 3 * C_IN)[None, :], outside, seen)
        total = tl.dot(tl.trans(seen), given, total)
        block += tl.num_programs(0)
    at = (dy + 1) * 3 * C_IN + k
    mine = (k < 3 * C_IN) | (at == 9 * C_IN)
    tl.store(out + (tl.program_id(0) * (9 * C_IN + 1) + at)[:, None] * C_OUT + o[None, :], total, mask=mine[:, None])


@jit
def _first_weights_kernel(
    x, grad, taps, out, pixels,
    image_stride, c_stride, row_stride, col_stride,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same for the first convolution, all taps together, from the pooled gradient."""
    k = tl.arange(0, 32)
    o = tl.arange(0, C_OUT)
    total = tl.zeros([32, C_OUT], dtype=tl.float32)
    block = tl.program_id(0)
    while block * BLOCK < pixels:
        p = block * BLOCK + tl.arange(0, BLOCK)
        col = p % WIDTH
        row = p // WIDTH % HEIGHT
        image = p // (HEIGHT * WIDTH)
        live = p < pixels
        seen = _patches(
            x, image, row - 1, col - 1, live, image_stride, c_stride, row_stride, col_stride, HEIGHT, WIDTH, C_IN,
            3, 0, 32,
        )  # fmt: skip
        given = _unpooled(grad, taps, image, row, col, live, HEIGHT, WIDTH, C_OUT, BLOCK).to(seen.dtype)
        seen = tl.where((k == 9 * C_IN)[None, :], 1.0, seen).to(given.dtype)
        total = tl.dot(tl.trans(seen), given, total)
        block += tl.num_programs(0)
    at = (tl.program_id(0) * (9 * C_IN + 1) + k)[:, None] * C_OUT + o[None, :]
    tl.store(out + at, total, mask=(k <= 9 * C_IN)[:, None])


# Calls of the kernels


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    relu_in: bool = False,
    relu_out: bool = False,
    flip: bool = False,
    ref: Tensor | None = None,
    add: Tensor | None = None,
) -> Tensor:
    """[ref > 0] * relu(conv(relu(x)) + bias) + add; with `flip` the gradient of a convolution's input."""
    batch, c_in, height, width = x.shape
    c_out = weight.shape[2 if flip else 3]
    out = _empty(x, (batch, c_out, height, width), x.dtype)
    pixels = batch * height * width
    _conv_kernel[(triton.cdiv(pixels, CONV["BLOCK"]),)](
        x, weight, weight if bias is None else bias, x if add is None else add, x if ref is None else ref, out, pixels,
        HEIGHT=height, WIDTH=width, C_IN=c_in, C_OUT=c_out, RELU_IN=relu_in, FLIP=flip,
        HAS_BIAS=bias is not None, RELU_OUT=relu_out, MASK=ref is not None, ADD=add is not None, **CONV,
    )  # fmt: skip
    return out


def _pool(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The pooled tensor, and the winner of each window."""
    batch, channels, height, width = x.shape
    out = _empty(x, (batch, channels, (height + 1) // 2, (width + 1) // 2), dtype)
    taps = torch.empty_like(out, dtype=torch.uint8)
    pixels = out.numel() // channels
    _pool_kernel[(triton.cdiv(pixels, POOL["BLOCK"]),)](
        x, out, taps, pixels, HEIGHT=height, WIDTH=width, CHANNELS=channels, **POOL
    )
    return out, taps


def _unpool(grad: Tensor, taps: Tensor, height: int, width: int) -> Tensor:
    """The gradient of the pooling's input."""
    batch, channels = grad.shape[:2]
    out = _empty(grad, (batch, channels, height, width), grad.dtype)
    pixels = batch * height * width
    _unpool_kernel[(triton.cdiv(pixels, POOL["BLOCK"]),)](
        grad, taps, out, pixels, HEIGHT=height, WIDTH=width, CHANNELS=channels, **POOL
    )
    return out


def _first(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Convolution of an observation and pooling; computes in the dtype of the weights (float32: TF32)."""
    batch, c_in, height, width = x.shape
    c_out = weight.shape[3]
    x = _within_reach(x)
    out = _empty(x, (batch, c_out, (height + 1) // 2, (width + 1) // 2), dtype)
    taps = torch.empty_like(out, dtype=torch.uint8)
    pixels = out.numel() // c_out
    _first_kernel[(triton.cdiv(pixels, FIRST["BLOCK"]),)](
        x, weight, bias, out, taps, pixels, *x.stride(), HEIGHT=height, WIDTH=width, C_IN=c_in, C_OUT=c_out, **FIRST
    )
    return out, taps


def _first_gradient(grad: Tensor, taps: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """The gradient of an observation x."""
    out = torch.empty_like(x)
    height, width = x.shape[2:]
    c_in, c_out = weight.shape[2:]
    pixels = grad.numel() // c_out
    _first_gradient_kernel[(triton.cdiv(pixels, FIRST_GRADIENT["BLOCK"]),)](
        grad, taps, weight, out, pixels, *out.stride(),
        HEIGHT=height, WIDTH=width, C_IN=c_in, C_OUT=c_out, **FIRST_GRADIENT,
    )  # fmt: skip
    return out


def _empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    out = torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)
    if max(out.numel(), like.numel()) > LARGEST:
        raise ValueError(f"a batch of {shape[0]} is too large for offsets of 32 bits: split it")
    return out


def _within_reach(x: Tensor) -> Tensor:
    """A copy of what is a view of something too large for offsets of 32 bits."""
    far = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) > LARGEST
    return x.contiguous() if far else x


def _weight_gradients(grad: Tensor, x: Tensor, weight: Tensor, relu_in: bool = False) -> tuple[Tensor, Tensor]:
    """Of prepared weights and of the bias, for the convolution of x or relu(x)."""
    height, width = x.shape[2:]
    c_in, c_out = weight.shape[2:]
    pixels = grad.numel() // c_out
    programs = min(PROGRAMS, triton.cdiv(pixels, WEIGHTS["BLOCK"]))
    parts = torch.empty((programs, 9 * c_in + 1, c_out), dtype=torch.float32, device=x.device)
    _weights_kernel[(programs, 3)](
        x, grad, parts, pixels, HEIGHT=height, WIDTH=width, C_IN=c_in, C_OUT=c_out, RELU_IN=relu_in, **WEIGHTS
    )
    return _sum_of(parts, weight)


def _first_weight_gradients(grad: Tensor, taps: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the first convolution, of the pooled gradient; computes in x's dtype (float32: TF32)."""
    batch, c_in, height, width = x.shape
    c_out = weight.shape[3]
    x = _within_reach(x)
    pixels = batch * height * width
    programs = min(FIRST_PROGRAMS, triton.cdiv(pixels, FIRST_WEIGHTS["BLOCK"]))
    parts = torch.empty((programs, 9 * c_in + 1, c_out), dtype=torch.float32, device=x.device)
    _first_weights_kernel[(programs,)](
        x, grad, taps, parts, pixels, *x.stride(), HEIGHT=height, WIDTH=width, C_IN=c_in, C_OUT=c_out, **FIRST_WEIGHTS
    )
    return _sum_of(parts, weight)


def _sum_of(parts: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weights and bias; always summed in the same order, unlike with atomic additions."""
    total = parts.sum(0)
    return total[:-1].view(weight.shape).to(weight.dtype), total[-1]


class ResidualFunction(torch.autograd.Function):
    """x + conv(relu(conv(relu(x))))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
        x = _channels_last(x)
        between = _convolve(x, first, first_bias, relu_in=True, relu_out=True)
        ctx.save_for_backward(x, between, first, second)
        return _convolve(between, second, second_bias, add=x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, between, first, second = ctx.saved_tensors
        grad = _channels_last(grad)
        of_between = _convolve(grad, second, flip=True, ref=between)
        of_x = of_first = of_first_bias = of_second = of_second_bias = None
        if ctx.needs_input_grad[0]:
            of_x = _convolve(of_between, first, flip=True, ref=x, add=grad)
        if any(ctx.needs_input_grad[1:]):
            of_first, of_first_bias = _weight_gradients(of_between, x, first, relu_in=True)
            of_second, of_second_bias = _weight_gradients(grad, between, second)
        return of_x, of_first, of_first_bias, of_second, of_second_bias


class ConvPoolFunction(torch.autograd.Function):
    """max_pool(conv(x)), in the weights' dtype and then in `dtype`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        if x.shape[1] <= 3:
            out, taps = _first(x, weight, bias, dtype)
        else:
            x = _channels_last(x)
            out, taps = _pool(_convolve(x, weight, bias), dtype)
        ctx.save_for_backward(x, weight, taps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, taps = ctx.saved_tensors
        grad = _channels_last(grad)
        of_weights = any(ctx.needs_input_grad[1:])
        of_x = of_weight = of_bias = None
        if x.shape[1] <= 3:
            if ctx.needs_input_grad[0]:
                of_x = _first_gradient(grad, taps, weight, x)
            if of_weights:
                of_weight, of_bias = _first_weight_gradients(grad, taps, x, weight)
        else:
            unpooled = _unpool(grad, taps, *x.shape[2:]).to(x.dtype)
            if ctx.needs_input_grad[0]:
                of_x = _convolve(unpooled, weight, flip=True)
            if of_weights:
                of_weight, of_bias = _weight_gradients(unpooled, x, weight)
        return of_x, of_weight, of_bias, None


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


# Layers


def prepare(conv: nn.Conv2d, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A convolution's weights as (3, 3, C_in, C_out) in `dtype`, and its bias in float32."""
    if not _is_plain(conv):
        raise ValueError(f"kernels are for 3x3 convolutions with stride 1 and padding 1, not {conv}")
    if conv.out_channels not in WIDTHS or conv.in_channels not in (*FIRST_WIDTHS, *WIDTHS):
        raise ValueError(f"kernels are for 16 and 32 channels, the first for up to 3, not {conv}")
    weight = conv.weight.permute(2, 3, 1, 0).to(dtype, memory_format=torch.contiguous_format).contiguous()
    if conv.bias is None:
        return weight, torch.zeros(conv.out_channels, device=weight.device)
    return weight, conv.bias.float()


def residual(x: Tensor, first: nn.Conv2d, second: nn.Conv2d) -> Tensor:
    """x + second(relu(first(relu(x))))."""
    return ResidualFunction.apply(x, *prepare(first, x.dtype), *prepare(second, x.dtype))


def conv_pool(x: Tensor, conv: nn.Conv2d, dtype: torch.dtype | None = None) -> Tensor:
    """max_pool2d(conv(x), 3, stride=2, padding=1), in x's dtype (float32: TF32); the result in `dtype`, or x's."""
    return ConvPoolFunction.apply(x, *prepare(conv, x.dtype), dtype or x.dtype)
