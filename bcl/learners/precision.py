"""How a GPU trains: in what precision, with which kernels, as graphs or compiled."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from bcl.errors import ConfigError

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # of a GPU, which MPS lends to a process; a default of its daemon is not seen here


Accelerate = Literal["auto", "none", "graphs", "full"]
WORTH_COMPILING = 1_000_000  # agent steps: compiling takes about a minute


def acceleration(asked: Accelerate, device: torch.device, steps: int) -> Accelerate:
    """What `accelerate` of a learner's settings means on this device for a run of so many steps."""
    if device.type != "cuda":
        return "none"
    if asked != "auto":
        return asked
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")  # Triton builds its launchers with it
    compiles = compiler and importlib.util.find_spec("triton") and steps >= WORTH_COMPILING
    return "full" if compiles else "graphs"


def uses_bf16(asked: str, device: torch.device, image: bool) -> bool:
    """What `precision` of a learner's settings means on this device.

    Not bf16 on a share of a GPU: there training in bf16, with its kernels, ended in NaN or in an agent that loses every
    game, and float32 learned (an H200, PyTorch 2.11; benchmarks/results/gpu-share.json).
    """
    gpu = device.type == "cuda"
    if asked == "bf16" and gpu and on_a_share():
        raise ConfigError(f"training in bf16 fails on a share of a GPU ({SHARE})", "unset it, or set precision to fp32")
    return asked == "bf16" or (asked == "auto" and gpu and image and not on_a_share())


def on_a_share() -> bool:
    """Whether this process may use only a part of the GPU."""
    try:
        return float(os.environ.get(SHARE) or 100) < 100
    except ValueError:
        return True


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
