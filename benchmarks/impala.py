"""IMPALA's network in half precision: microseconds an observation by PyTorch's layers, by these compiled, and by our
kernels.

    python benchmarks/impala.py [--forms eager compiled kernels] [--parts attack update forward] [--batch 384 1024]

The parts: `attack`, forward and gradient of the observations; `update`, forward and gradient of all weights; `forward`.
Each is captured as a CUDA graph, as training and evaluations have it. Needs a GPU with Triton; compiling takes 5 to 15
s each.
"""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from provenance import store
from torch import Tensor, nn

from bcl import small_convs
from bcl.device import quick_kernels
from bcl.policies.networks import ActorCritic, build

FORMS = ("eager", "compiled", "kernels")
PARTS = ("attack", "update", "forward")


def microseconds(work: Callable[[], object], repeats: int, batch: int) -> float:
    """Of one observation, by the median of captured runs."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[repeats // 2] * 1000 / batch


def never(x: Tensor) -> bool:
    """In place of `small_convs.available`."""
    return False


def measure(network: ActorCritic, form: str, part: str, batch: int, repeats: int) -> float:
    """Microseconds an observation."""
    obs = torch.rand(batch, 3, 64, 64, device="cuda").contiguous(memory_format=torch.channels_last)
    obs.requires_grad_(part == "attack")
    weights = [weight for name, weight in network.named_parameters() if not name.startswith("value")]
    for weight in weights:
        weight.requires_grad_(part == "update")
    run = torch.compile(network, dynamic=False) if form == "compiled" else network

    def work() -> None:
        with torch.set_grad_enabled(part != "forward"), torch.autocast("cuda", torch.bfloat16):
            scores = run(obs)
        if part != "forward":
            torch.autograd.grad(scores.logsumexp(1).sum(), obs if part == "attack" else weights)

    # Compiled code has no kernels anyway, and cannot be compiled around what is patched.
    with mock.patch.object(small_convs, "available", never) if form == "eager" else contextlib.nullcontext():
        return microseconds(work, repeats, batch)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1024])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not (torch.cuda.is_available() and small_convs.available(torch.empty(0, device="cuda"))):
        sys.exit("it needs a GPU with Triton")
    torch.manual_seed(0)
    network = build("impala", (3, 64, 64), 15)
    assert isinstance(network, ActorCritic)
    nn.utils.convert_conv2d_weight_memory_format(network.cuda(), torch.channels_last)
    rows = []
    with quick_kernels(True):
        for part, batch, form in itertools.product(options.parts, options.batch, options.forms):
            found = measure(network, form, part, batch, options.repeats)
            rows.append({"part": part, "batch": batch, "form": form, "microseconds": found})
            print(f"{part}, {batch} observations, {form}: {found:.3f} us an observation", flush=True)
    if options.out:
        store(options.out, "cuda", {"precision": "bf16", "rows": rows})


if __name__ == "__main__":
    main()
