"""What a GPU can be trusted with."""

import os

import torch

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def trusts_half(device: torch.device) -> bool:
    """Whether half precision may be taken without being asked for: on a whole GPU.

    On a share of one, which MPS lends to a process by `SHARE`, training in bf16 ended in NaN or in an agent that loses
    every game, without graphs and compiling too; in fp32 it learned (one H200, PyTorch 2.11, 35 % and 60 %; docs/results.md).
    """
    return device.type == "cuda" and os.environ.get(SHARE, "") in ("", "100")
