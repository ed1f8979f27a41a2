"""Networks whose weights do not change any more, in the form that is computed fastest: what attacks look at."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bcl import small_convs
from bcl.layers import PatchConv, Residual


def frozen(chain: nn.Sequential, dtype: torch.dtype) -> nn.Sequential:
    """The same function of observations, as a copy: layers that one kernel can compute are one, images have their
    channels last throughout, and no weight has a gradient. What it has no other form for is copied as it is."""
    layers: list[Any] = [copy.deepcopy(layer).requires_grad_(False).to(dtype) for layer in chain]
    if any(module._forward_hooks or module._forward_pre_hooks for module in chain.modules()):
        return nn.Sequential(*layers)  # which another form would not call
    small = dtype in small_convs.HALVES and small_convs.available(next(chain.parameters()))
    found: list[nn.Module] = []
    channels = 0  # of the image that reached here with its channels last
    while layers:
        layer = layers.pop(0)
        if _convolves(layer) and layers and type(layers[0]) is nn.ReLU:
            layers.pop(0)
            found.append(ConvReLU(layer))
            channels = layer.out_channels
        elif small and layers and small_convs.pools(layer, layers[0]):
            layers.pop(0)
            found.append(FrozenConvPool(layer, dtype))
            channels = layer.out_channels
        elif small and type(layer) is Residual and layer.convs[0].in_channels in small_convs.WIDTHS:
            found.append(FrozenResidual(layer, dtype))
        elif channels and _flattens(layer) and (linear := _linear_of(layers)):
            _by_pixels(linear, channels)
            found.append(FlattenPixels())
            channels = 0
        else:
            found.append(layer)
            channels = 0
    return nn.Sequential(*found)


def _convolves(layer: Any) -> bool:
    """Whether it is a convolution that `ConvReLU` computes."""
    if type(layer) not in (nn.Conv2d, PatchConv) or layer.bias is None:
        return False
    return (layer.padding, layer.dilation, layer.groups, layer.padding_mode) == ((0, 0), (1, 1), 1, "zeros")


def _flattens(layer: Any) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _linear_of(layers: Sequence[nn.Module]) -> nn.Linear | None:
    """The next layer, but for activations of single numbers, if it is linear."""
    layer = next((layer for layer in layers if type(layer) is not nn.ReLU), None)
    return layer if type(layer) is nn.Linear else None


def _by_pixels(layer: nn.Linear, channels: int) -> None:
    """Its inputs in the order of `FlattenPixels`."""
    weight = layer.weight.unflatten(1, (channels, -1)).transpose(1, 2).flatten(1)
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)


class FlattenPixels(nn.Module):
    """(B, C, H, W) with channels last to (B, H * W * C), without a copy."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class FrozenConvPool(nn.Module):
    """IMPALA's convolution and the pooling after it."""

    converts = True  # as that of `ConvReLU`
    weight: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, dtype: torch.dtype) -> None:
        super().__init__()
        weight, bias = small_convs.prepare(conv, dtype)
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in small_convs.FIRST_WIDTHS:  # else the kernel does it
            x = x.to(self.weight.dtype)
        return small_convs.ConvPoolFunction.apply(x, self.weight, self.bias, self.weight.dtype)


class FrozenResidual(nn.Module):
    """IMPALA's `Residual`."""

    def __init__(self, layer: Residual, dtype: torch.dtype) -> None:
        super().__init__()
        for number, conv in enumerate(layer.convs):
            weight, bias = small_convs.prepare(conv, dtype)
            self.register_buffer(f"weight_{number}", weight.detach())
            self.register_buffer(f"bias_{number}", bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return small_convs.ResidualFunction.apply(x, *self.buffers())


class ConvReLU(nn.Module):
    """A convolution and the ReLU after it in one kernel; a `PatchConv` on blocks."""

    converts = True  # it takes observations of any float type
    weight: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        assert conv.bias is not None
        self._block = conv.stride[0] if isinstance(conv, PatchConv) else 0
        self._stride = (1, 1) if self._block else conv.stride
        weight = conv.block_kernel(conv.weight) if isinstance(conv, PatchConv) else conv.weight
        self.register_buffer("weight", weight.detach().contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", conv.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        if block := self._block:
            height, width = (size // block * block for size in x.shape[2:])
            if (height, width) != x.shape[2:]:
                x = x[:, :, :height, :width]  # kernels that are two blocks wide reach no further
            x = _Blocks.apply(x, block, self.weight.dtype)
        return _ConvReLU.apply(x.to(self.weight.dtype), self.weight, self.bias, self._stride)


class _ConvReLU(Function):
    """relu(conv(x)), with the gradient of x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...]) -> Tensor:
        if x.is_cuda and torch.version.hip is None:
            y = torch.cudnn_convolution_relu(x, weight, bias, stride, padding=(0, 0), dilation=(1, 1), groups=1)
        else:
            y = F.conv2d(x, weight, bias, stride).relu_()
        ctx.save_for_backward(weight, y)
        ctx.stride = stride
        sizes = zip(x.shape[2:], weight.shape[2:], stride, strict=True)
        ctx.rest = [(size - kernel) % step for size, kernel, step in sizes]  # rows and columns that no kernel reached
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        weight, y = ctx.saved_tensors
        at_conv = torch.ops.aten.threshold_backward(gradient, y, 0)
        return F.conv_transpose2d(at_conv, weight, stride=ctx.stride, output_padding=ctx.rest), None, None, None


class _Blocks(Function):
    """(B, C, H, W) to (B, C * block * block, H / block, W / block), channels last, in the type of the network."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: int, dtype: torch.dtype) -> Tensor:
        ctx.block = block
        ctx.dtype = x.dtype
        tiles = x.unflatten(3, (-1, block)).unflatten(2, (-1, block))  # (B, C, rows, block, columns, block)
        tiles = tiles.permute(0, 2, 4, 1, 3, 5)
        return torch.empty(tiles.shape, dtype=dtype, device=x.device).copy_(tiles).flatten(3).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        block = ctx.block
        tiles = gradient.permute(0, 2, 3, 1).unflatten(3, (-1, block, block)).permute(0, 3, 1, 4, 2, 5)
        at_pixels = torch.empty(tiles.shape, dtype=ctx.dtype, device=gradient.device).copy_(tiles)
        return at_pixels.flatten(4).flatten(2, 3), None, None
