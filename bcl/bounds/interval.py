"""Interval bound propagation: one rule per layer (Gowal et al. 2018), and the tape that CROWN walks back.

A layer without a rule is refused: a certificate that skips an unknown layer would be wrong.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bcl import dqn_kernels
from bcl.errors import BclError
from bcl.layers import PatchConv, Residual

Pair = tuple[Tensor, Tensor]
"""A box: its lower and upper corner, or its centre and half-width."""


@dataclass(frozen=True)
class LayerBounds:
    """A layer, and bounds (B, ...) of what enters it."""

    layer: nn.Module
    lower: Tensor
    upper: Tensor
    path: "tuple[LayerBounds, ...]" = ()
    """What happens inside a Residual."""


Tighten = Callable[[Sequence[LayerBounds], nn.Module, Tensor, Tensor], Pair]
"""Better bounds of what enters a nonlinear layer, given the steps before it."""


def propagate(
    layers: Iterable[nn.Module],
    lower: Tensor,
    upper: Tensor,
    tighten: Tighten | None = None,
    before: Sequence[LayerBounds] = (),
) -> tuple[tuple[LayerBounds, ...], Tensor, Tensor]:
    """The steps through `layers`, and bounds of what leaves the last one."""
    steps: tuple[LayerBounds, ...] = ()
    for layer in layers:
        _refuse_unknown(layer)
        if isinstance(layer, nn.Sequential):
            inner, lower, upper = propagate(layer, lower, upper, tighten, (*before, *steps))
            steps += inner
        elif isinstance(layer, Residual):
            path, path_lower, path_upper = propagate(layer.path, lower, upper, tighten, (*before, *steps))
            steps += (LayerBounds(layer, lower, upper, path),)
            lower = lower + path_lower
            upper = upper + path_upper
        else:
            if tighten and isinstance(layer, nn.ReLU | nn.Tanh | nn.MaxPool2d):
                lower, upper = tighten((*before, *steps), layer, lower, upper)
            steps += (LayerBounds(layer, lower, upper),)
            if rule := _AFFINE.get(type(layer)):
                middle, radius = rule(layer, *middle_and_radius(lower, upper))
                lower = middle - radius
                upper = middle + radius
            else:
                lower = layer(lower)
                upper = layer(upper)
    return steps, lower, upper


def middle_and_radius(lower: Tensor, upper: Tensor) -> Pair:
    """The same box, written as a centre and a half-width."""
    return (upper + lower) / 2, (upper - lower) / 2


def box_intervals(layers: Sequence[nn.Module], lower: Tensor, upper: Tensor) -> Pair:
    """Centre and half-width of what leaves the last of `layers`; as `intervals`, from the corners of a box."""
    if dqn_kernels.fits(layers, lower, upper):
        middle, radius = dqn_kernels.conv_relu(layers, lower, upper)
        return intervals(layers[2:], middle, radius)
    return intervals(layers, *middle_and_radius(lower, upper))


def intervals(layers: Iterable[nn.Module], middle: Tensor, radius: Tensor) -> Pair:
    """Centre and half-width of what leaves the last of `layers`; no tape is kept. Under autocast they are rounded apart
    from each other, so that a small box does not vanish in the rounding of its centre."""
    for layer in layers:
        _refuse_unknown(layer)
        if isinstance(layer, nn.Sequential):
            middle, radius = intervals(layer, middle, radius)
        elif isinstance(layer, Residual):
            path_middle, path_radius = intervals(layer.path, middle, radius)
            middle = middle + path_middle
            radius = radius + path_radius
        elif type(layer) in _AFFINE:
            middle, radius = _AFFINE[type(layer)](layer, middle, radius)
        elif isinstance(layer, nn.Flatten | nn.Identity):
            middle = layer(middle)
            radius = layer(radius)
        elif isinstance(layer, nn.ReLU):
            middle, radius = _relu(middle, radius)
        else:
            narrow = middle.dtype
            middle, radius = (x.to(torch.promote_types(narrow, torch.float32)) for x in (middle, radius))
            middle, radius = middle_and_radius(layer(middle - radius), layer(middle + radius))
            middle = middle.to(narrow)
            radius = radius.to(narrow)
    return middle, radius


def _relu(middle: Tensor, radius: Tensor) -> Pair:
    """Exact in any precision: a box on one side of 0 keeps its half-width, and one around 0 has its upper half left."""
    if torch.compiler.is_compiling():  # which makes few kernels of what is written down
        half = ((middle + radius) / 2).relu()
        return torch.maximum(middle, half), torch.minimum(radius, half)
    if dqn_kernels.fits_relu(middle, radius):
        return dqn_kernels.interval_relu(middle, radius)
    return _Relu.apply(middle, radius)


class _Relu(torch.autograd.Function):
    """A third of the passes over memory that PyTorch's own derivatives of corners, centre and half-width need."""

    @staticmethod
    def forward(ctx: Any, middle: Tensor, radius: Tensor) -> Pair:
        half = torch.lerp(middle, radius, 0.5).relu_()  # of the upper corner
        results = torch.maximum(middle, half), torch.minimum(radius, half)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, *rises: Tensor) -> Pair:
        middle, radius = ctx.saved_tensors
        whole = middle > radius  # else both are the upper half, or 0
        half = torch.lerp(rises[0], rises[1], 0.5)
        of_middle, of_radius = (
            torch.ops.aten.threshold_backward(torch.where(whole, rise, half), middle, 0) for rise in rises
        )
        return of_middle, of_radius


def _linear(layer: nn.Linear, middle: Tensor, radius: Tensor) -> Pair:
    weight = _rounded(layer.weight)
    return F.linear(middle, weight, layer.bias), F.linear(radius, weight.abs())


def _conv(layer: nn.Conv2d, middle: Tensor, radius: Tensor) -> Pair:
    weight = _rounded(layer.weight)
    return layer._conv_forward(middle, weight, layer.bias), layer._conv_forward(radius, weight.abs(), None)


def _rounded(weight: Tensor) -> Tensor:
    """As autocast takes it, but once for centre and half-width, and before |weight| and its gradient."""
    kind = weight.device.type
    return weight.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight


def _patch_conv(layer: PatchConv, middle: Tensor, radius: Tensor) -> Pair:
    return layer(middle), layer.convolve(radius, layer.weight.abs(), None)


_AFFINE: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Pair]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    PatchConv: _patch_conv,
}
_MONOTONE = (nn.ReLU, nn.Tanh, nn.MaxPool2d, nn.Flatten, nn.Identity)


def _refuse_unknown(layer: nn.Module) -> None:
    # Exact types: a subclass may compute something else.
    if type(layer) not in (*_AFFINE, *_MONOTONE, nn.Sequential, Residual):
        known = ", ".join(kind.__name__ for kind in (*_AFFINE, *_MONOTONE, Residual))
        raise BclError(f"cannot bound layer {layer}", f"only {known} have bounds; attacks need none")
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        raise BclError(f"cannot bound layer {layer}", "give the convolution zero padding as a number")
    plain = {"dilation": (1, (1, 1)), "ceil_mode": (False,), "return_indices": (False,)}
    if isinstance(layer, nn.MaxPool2d) and any(getattr(layer, name) not in usual for name, usual in plain.items()):
        raise BclError(f"cannot bound layer {layer}", f"leave {', '.join(plain)} at their defaults")
