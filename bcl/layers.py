"""Layers of ours that PyTorch does not have; networks use them and bounds know them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bcl import small_convs


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), as in IMPALA."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        if small_convs.fits_residual(x):
            return small_convs.residual(x, *self.convs)
        return x + self.path(x)

    @property
    def convs(self) -> tuple[nn.Conv2d, nn.Conv2d]:
        """Both convolutions."""
        _, first, _, second = self.path
        assert isinstance(first, nn.Conv2d)
        assert isinstance(second, nn.Conv2d)
        return first, second


class PatchConv(nn.Conv2d):
    """`nn.Conv2d` with a kernel two strides wide, computed on blocks of stride x stride pixels, and much faster where
    the image has few channels: a kernel of 8x8 with stride 4 over 1 channel is one of 2x2 with stride 1 over 16."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(in_channels, out_channels, 2 * stride, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x, self.weight, self.bias)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """As `forward`, with other weights."""
        with torch.autocast(kind := x.device.type, enabled=False):  # bf16 would round a perturbation of 1/255 away
            convolved = self._convolve(x, weight, bias)
        if not torch.is_autocast_enabled(kind):
            return convolved
        return convolved.to(torch.get_autocast_dtype(kind))  # the next layer would do it: half the memory before that

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        block = self.stride[0]
        gains = x.is_cuda or (torch.is_grad_enabled() and x.requires_grad)
        if not gains or x.shape[-1] % block or x.shape[-2] % block:
            return F.conv2d(x, weight, bias, self.stride)
        batch, channels, height, width = x.shape
        kernel = self.block_kernel(weight)
        blocks = x.view(batch, channels, height // block, block, width // block, block).permute(0, 2, 4, 1, 3, 5)
        blocks = blocks.reshape(batch, height // block, width // block, -1).permute(0, 3, 1, 2)  # channels last
        return F.conv2d(blocks, kernel.contiguous(memory_format=torch.channels_last), bias)

    def block_kernel(self, weight: Tensor) -> Tensor:
        """The kernel on blocks (out, in * block * block, 2, 2) that these weights are."""
        block = self.stride[0]
        kernel = weight.unflatten(3, (2, block)).unflatten(2, (2, block))  # (out, in, 2, block, 2, block)
        return kernel.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
