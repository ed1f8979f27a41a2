"""IMPALA's network in other forms: microseconds an observation, forward alone, with the gradient of the observation,
and of all weights.

    python benchmarks/impala.py [--forms plain blocks] [--parts attack update forward] [--batch 1024] [--seconds 35]

Every form of every part is compiled first, some 5 to 15 s each; after `--seconds` no other is begun.

All forms are the same function of the same weights. The first convolution reads three channels, which leaves tensor
cores idle, and its output is the largest tensor of the network. The forms differ in how it and the pooling after it are
computed:

- `plain`: as the learners have it, the first convolution in float32 (TF32 on tensor cores)
- `split`: the observation as the sum of two bf16 numbers, six channels filled up to eight; bf16 from there on
- `blocks`: on blocks of 2x2 pixels, 12 channels to 64 in float32; pooling is a maximum over shifted blocks
- `split blocks`: both, 24 channels to 64 in bf16
- `all blocks`: that, and the layers after it on blocks too, up to the last pooling: 64 and 128 channels instead of 16 and
  32, with four times the arithmetic, three quarters of it with zeros

The parts: `attack`, forward and gradient of the observations; `update`, forward and gradient of the weights; `forward`.

On a CPU it only checks that they agree.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bcl.device import quick_kernels
from bcl.layers import Residual
from bcl.policies.networks import ActorCritic, build

LONGEST = 10.0  # seconds that compiling and measuring one form take, about
First = Callable[[nn.Conv2d, Tensor], Tensor]  # observations to what the first pooling gives


def plain(conv: nn.Conv2d, obs: Tensor) -> Tensor:
    """Convolution and pooling as they are."""
    return F.max_pool2d(_half(F.conv2d(obs, conv.weight, conv.bias, padding=1)), 3, stride=2, padding=1)


def split(conv: nn.Conv2d, obs: Tensor) -> Tensor:
    """With two bf16 numbers for each float32, which keep 16 of its 24 bits."""
    inputs = F.pad(_two_halves(obs), (0, 0, 0, 0, 0, 2))
    weight = F.pad(torch.cat([conv.weight, conv.weight], dim=1), (0, 0, 0, 0, 0, 2)).to(inputs.dtype)
    convolved = F.conv2d(_laid_out(inputs), _laid_out(weight), conv.bias.to(inputs.dtype), padding=1)
    return F.max_pool2d(convolved, 3, stride=2, padding=1)


def blocks(conv: nn.Conv2d, obs: Tensor) -> Tensor:
    """On blocks of 2x2 pixels."""
    convolved = F.conv2d(_laid_out(_to_blocks(obs)), _laid_out(_block_weight(conv.weight)), padding=1)
    return _pooled_blocks(_half(convolved + conv.bias.repeat_interleave(4).view(1, -1, 1, 1)))


def split_blocks(conv: nn.Conv2d, obs: Tensor) -> Tensor:
    """Both."""
    inputs = _to_blocks(_two_halves(obs))
    weight = _block_weight(torch.cat([conv.weight, conv.weight], dim=1)).to(inputs.dtype)
    bias = conv.bias.repeat_interleave(4).to(inputs.dtype)
    return _pooled_blocks(F.conv2d(_laid_out(inputs), _laid_out(weight), bias, padding=1))


FORMS: dict[str, First] = {"plain": plain, "split": split, "blocks": blocks, "split blocks": split_blocks}
FORMS["all blocks"] = split_blocks


def _half(x: Tensor) -> Tensor:
    return x.bfloat16() if x.is_cuda else x


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _two_halves(obs: Tensor) -> Tensor:
    """(B, 2 C, H, W) whose two parts add up to `obs`; float32 on a CPU, to be compared there."""
    high = obs.bfloat16()
    low = (obs - high.float()).bfloat16()
    both = torch.cat([high, low], dim=1)
    return both if obs.is_cuda else both.float()


def _to_blocks(obs: Tensor) -> Tensor:
    """(B, C, H, W) to (B, 4 C, H / 2, W / 2), the channel first, then row and column within the block."""
    return F.pixel_unshuffle(obs, 2)


def _block_weight(weight: Tensor) -> Tensor:
    """(O, C, 3, 3) to (4 O, 4 C, 3, 3): output pixel (r, c) of a block sees the input pixels around it."""
    out, channels = weight.shape[:2]
    # Rows and columns of the 6x6 pixels of 3x3 blocks; output pixel r of the middle block sees rows r + 1 to r + 3.
    kernels = [F.pad(weight, (1 + c, 2 - c, 1 + r, 2 - r)) for r in range(2) for c in range(2)]
    whole = torch.stack(kernels, dim=1).flatten(0, 1)  # (4 O, C, 6, 6)
    return F.pixel_unshuffle(whole, 2).view(4 * out, 4 * channels, 3, 3)


def _pooled_blocks(x: Tensor) -> Tensor:
    """(B, 4 O, H, W) of blocks to (B, O, H, W): windows of 3x3 pixels around each block's first one."""
    upper_left, upper_right, lower_left, lower_right = x.unflatten(1, (-1, 4)).unbind(2)
    left = torch.maximum(torch.maximum(upper_left, lower_left), _shifted(lower_left, 2))
    right = torch.maximum(torch.maximum(upper_right, lower_right), _shifted(lower_right, 2))
    return torch.maximum(torch.maximum(left, right), _shifted(right, 3))


def _shifted(x: Tensor, dim: int) -> Tensor:
    """One block further along `dim`, with what counts for nothing in a maximum before the first."""
    first = torch.full_like(x.narrow(dim, 0, 1), float("-inf"))
    return torch.cat([first, x.narrow(dim, 0, x.shape[dim] - 1)], dim=dim)


def _stage(one: Residual, other: Residual, conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Two residual layers on blocks, the convolution after them, and its pooling."""
    x = _laid_out(_to_blocks(x))
    for residual in (one, other):
        _, first, _, second = residual.path
        x = x + _on_blocks(second, F.relu(_on_blocks(first, F.relu(x))))
    return _pooled_blocks(_on_blocks(conv, x))


def _on_blocks(conv: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(conv, nn.Conv2d)
    return F.conv2d(x, _laid_out(_block_weight(conv.weight)), conv.bias.repeat_interleave(4), padding=1)


class Form(nn.Module):
    """The network with its beginning in another form."""

    def __init__(self, network: ActorCritic, name: str) -> None:
        super().__init__()
        self.network = network
        self._first = FORMS[name]
        self._all_blocks = name == "all blocks"

    def forward(self, obs: Tensor) -> Tensor:
        conv, _, *rest = self.network.body
        with torch.autocast(obs.device.type, enabled=False):
            x = self._first(conv, obs)
        if self._all_blocks:
            for first in (0, 4):  # residual, residual, convolution, pooling
                x = _stage(*rest[first : first + 3], x)
            rest = rest[8:]
        for layer in rest:
            x = layer(x)
        with torch.autocast(obs.device.type, enabled=False):
            return self.network.logits(x.float())


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


def measure(form: Form, part: str, batch: int, repeats: int) -> float:
    """Microseconds an observation."""
    obs = _laid_out(torch.rand(batch, 3, 64, 64, device="cuda")).requires_grad_(part == "attack")
    weights = [p for name, p in form.network.named_parameters() if not name.startswith("value")]
    for parameter in weights:
        parameter.requires_grad_(part == "update")
    run = torch.compile(form, dynamic=False)

    def work() -> None:
        with torch.set_grad_enabled(part != "forward"), torch.autocast("cuda", torch.bfloat16):
            scores = run(obs)
        if part != "forward":
            torch.autograd.grad(scores.logsumexp(1).sum(), obs if part == "attack" else weights)

    return microseconds(work, repeats, batch)


def main() -> None:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["plain", "all blocks", "split blocks", "blocks"])
    parser.add_argument("--parts", nargs="+", choices=["attack", "update", "forward"], default=["attack"])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=35.0, help="after which no other form is begun")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    torch.manual_seed(0)
    network = build("impala", (3, 64, 64), 15)
    assert isinstance(network, ActorCritic)
    obs = torch.rand(4, 3, 64, 64)
    with torch.no_grad():
        off = {name: float((Form(network, name)(obs) - network(obs)).abs().max()) for name in FORMS}
        print(f"largest score {float(network(obs).abs().max()):.2g}; largest differences on a CPU: {off}")
    if not torch.cuda.is_available():
        return
    nn.utils.convert_conv2d_weight_memory_format(network.cuda(), torch.channels_last)
    rows: dict[str, dict[str, float]] = {}
    with quick_kernels(True):
        for part, name in itertools.product(options.parts, options.forms):
            if time.monotonic() - began > options.seconds - LONGEST:
                print(f"{part}, {name}: not begun, since {options.seconds:g} s would be over")
                continue
            found = measure(Form(network, name), part, options.batch, options.repeats)
            rows.setdefault(name, {})[part] = found
            print(f"{part}, {name}: {found:.3f} us ({time.monotonic() - began:.0f} s)", flush=True)
    if options.out:
        facts = {"device": torch.cuda.get_device_name(), "batch": options.batch, "microseconds": rows}
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
