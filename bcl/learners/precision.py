"""How exactly a GPU multiplies what training computes in float32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def quick_products(enabled: bool) -> Iterator[None]:
    """TF32 for matrix products too, where `enabled`; PyTorch's convolutions have it anyway.

    It matters to bounds, which are never computed in bf16. Certificates have their own rule (`bounds.full_precision`).
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
