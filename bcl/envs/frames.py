"""From the Atari screen to what the agent sees, batched, on whatever device the frames are.

Frames stay upright. (The reference transposes them: x[i, j] is row j, column i.)
"""

import torch
import torch.nn.functional as F
from torch import Tensor

HEIGHT, WIDTH = 210, 160
MARGIN = (HEIGHT - 168) // 2  # rows above and below v2's crop window


def luma(rgb: Tensor) -> Tensor:
    """OpenCV's RGB2GRAY in its 15-bit integer form: (..., 3) uint8 -> (...) uint8."""
    r, g, b = rgb.int().unbind(-1)
    return ((9798 * r + 19235 * g + 3735 * b + (1 << 14)) >> 15).to(torch.uint8)


def crop_v2(screens: Tensor, crop_shift: int) -> Tensor:
    """Gray (N, 210, 160) or RGB (N, 210, 160, 3) -> (N, 1, 84, 84): 168 rows, 4 black columns each side, rounded mean of
    2x2 blocks."""
    top = MARGIN + crop_shift
    rows = screens[:, top : top + 168]
    rows = luma(rows) if rows.dim() == 4 else rows
    return F.pad(_block_mean(rows), (2, 2)).unsqueeze(1)  # 4 black columns are 2 black columns after the mean


def crop_v1(rgb: Tensor) -> Tensor:
    """(N, 210, 160, 3) uint8 -> (N, 1, 80, 80): rows 34 to 193, mean of the channels and of 2x2 blocks, rounded once."""
    rows = rgb[:, 34:194].int().sum(-1)
    total = rows[:, 0::2, 0::2] + rows[:, 1::2, 0::2] + rows[:, 0::2, 1::2] + rows[:, 1::2, 1::2]
    return ((total + 6) // 12).to(torch.uint8).unsqueeze(1)


def _block_mean(x: Tensor) -> Tensor:
    x = x.to(torch.int16)
    x = x[:, 0::2] + x[:, 1::2]  # rows first: they are contiguous
    return ((x[:, :, 0::2] + x[:, :, 1::2] + 2) >> 2).to(torch.uint8)
