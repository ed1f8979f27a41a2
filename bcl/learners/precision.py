"""In what precision a GPU trains, and with which kernels: quick ones, where half precision is allowed anyway."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bcl.devices import SHARE, trusts_half
from bcl.errors import ConfigError


def uses_bf16(asked: str, device: torch.device, image: bool) -> bool:
    """What `precision` of a learner's settings means here."""
    trusted = trusts_half(device)
    if asked == "bf16" and device.type == "cuda" and not trusted:
        raise ConfigError(f"bf16 goes wrong on a share of a GPU ({SHARE} is set)", f"unset {SHARE}, or train in fp32")
    return asked == "bf16" or (asked == "auto" and trusted and image)


@contextmanager
def quick_kernels(enabled: bool) -> Iterator[None]:
    """TF32 for matrix products too, where `enabled` (PyTorch's convolutions have it anyway), and for every convolution the
    kernel that was fastest when all were tried on its first call, instead of a guess.

    TF32 matters to bounds, which are never computed in bf16. Certificates have their own rule (`bounds.full_precision`).
    """
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.benchmark
    products.allow_tf32, convolutions.benchmark = before[0] or enabled, before[1] or enabled
    try:
        yield
    finally:
        products.allow_tf32, convolutions.benchmark = before
