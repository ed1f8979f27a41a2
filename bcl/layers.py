"""Layers of ours that PyTorch does not have; networks use them and bounds know them."""

from torch import Tensor, nn


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
        return x + self.path(x)
