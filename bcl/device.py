"""How work runs on a machine: CUDA graphs, precision, compiled networks, threads and memory."""

import ctypes
import functools
import importlib.util
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch
from torch import Generator

from bcl.errors import ConfigError, TrainingError

T = TypeVar("T")
WARM_UP = 2  # eager calls before capturing, in which libraries choose kernels and allocate
# Of a GPU, which MPS lends to a process; a default of its daemon is not seen here.
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MPS = "nvidia-cuda-mps-control"
Accelerate = Literal["auto", "none", "graphs", "full"]
BF16_UNITS = ("avx512_bf16", "amx_bf16")  # of x86; on ARM nothing was measured
WORTH_COMPILING = 1_000_000  # agent steps: compiling takes about a minute
FEW_IMAGES = 8  # a batch below it gains nothing from a second thread
# of glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4
_BEGAN = time.monotonic()


class Graphed(Generic[T]):
    """A function without arguments that reads and writes fixed tensors, from its third call on a CUDA graph.

    The first calls run eagerly and count: nothing has to be undone. Where `enabled` is false every call does. Graphs
    may be replayed beside each other on streams of their own. They die with the owner of a bound method.
    """

    def __init__(self, function: Callable[[], T], *generators: Generator, enabled: bool) -> None:
        # Owner and graph must not wait for the garbage collector: PyTorch clears cuBLAS's workspace of a stream when a
        # graph captured on it dies (its issue 193402), and hands out the same 32 streams in turn, to live graphs as
        # well.
        bound = hasattr(function, "__self__")
        self._function: Callable[[], Callable[[], T] | None]
        self._function = weakref.WeakMethod(function) if bound else lambda: function
        self._generators = generators
        self._calls = 0
        # Not PyTorch's common capture stream: cuBLAS has one workspace per stream, which graphs captured on one would
        # share. Of a higher priority, so that its small kernels need not wait for large ones of eager code.
        self._stream = torch.cuda.Stream(priority=-1) if enabled else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output: T

    def __call__(self) -> T:
        function = self._function()
        assert function
        if self._stream is None:
            return function()
        if self._graph is None and self._calls < WARM_UP:
            self._calls += 1
            # Off the main stream, as capturing asks of what comes before it.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                result = function()
            torch.cuda.current_stream().wait_stream(self._stream)
            return result
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            for generator in self._generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, stream=self._stream):
                self._output = function()
            self._graph = graph  # not before: what failed is no graph
        self._graph.replay()
        return self._output


def takes_turns() -> bool:
    """Whether processes use this machine's GPU by turns, though NVIDIA's MPS is there to let them use it at once."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control")
    return shutil.which(MPS) is not None and not pipe.exists()


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Launch on this stream, if there is one; PyTorch's own would look for a GPU."""
    return torch.cuda.stream(stream) if stream else nullcontext()


def acceleration(asked: Accelerate, device: torch.device, steps: int) -> Accelerate:
    """What the setting `accelerate` means on this device for so many steps."""
    if device.type != "cuda":
        return "none"
    if asked != "auto":
        return asked
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")  # Triton builds its launchers with it
    compiles = compiler and importlib.util.find_spec("triton") and steps >= WORTH_COMPILING
    return "full" if compiles else "graphs"


def uses_bf16(asked: str, device: torch.device, image: bool) -> bool:
    """What `precision` of a learner's settings means on this device. Not bf16 on a share of a GPU, where training in it
    failed and float32 learned (an H200, PyTorch 2.11; benchmarks/results/gpu-share.json)."""
    on_share = device.type == "cuda" and _on_a_share()
    if asked == "bf16" and on_share:
        raise ConfigError(f"training in bf16 fails on a share of a GPU ({SHARE})", "unset it, or set precision to fp32")
    if asked != "auto":
        return asked == "bf16"
    return image and not on_share and (device.type == "cuda" or cpu_has_bf16())


def cpu_has_bf16() -> bool:
    """Whether the CPU computes in bf16; others convert every number, which takes longer than float32 does."""
    known = getattr(torch.cpu, "get_capabilities", None)  # older PyTorch does not tell
    return known is not None and any(known().get(name) for name in BF16_UNITS)


def _on_a_share() -> bool:
    """Whether this process may use only a part of the GPU."""
    try:
        return float(os.environ.get(SHARE) or 100) < 100
    except ValueError:
        return True


@contextmanager
def quick_kernels(enabled: bool) -> Iterator[None]:
    """Where `enabled`: TF32 for matrix products too, and the fastest kernels. Not in `bounds.full_precision`."""
    products = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn
    before = products.allow_tf32, convolutions.benchmark
    products.allow_tf32 = before[0] or enabled
    convolutions.benchmark = before[1] or enabled
    try:
        yield
    finally:
        products.allow_tf32, convolutions.benchmark = before


def useful_threads(obs_shape: Sequence[int], rows: int) -> int:
    """Threads for an evaluation: one for vectors and few images, else one per idle core (docs/attacks.md)."""
    if len(obs_shape) == 1 or rows < FEW_IMAGES:
        return 1
    own = time.process_time() / max(1.0, time.monotonic() - _BEGAN)
    others = max(0.0, os.getloadavg()[0] - own)
    return max(1, round((os.cpu_count() or 1) - others))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """At most so many threads of PyTorch, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def keep_freed_memory() -> None:
    """Keep freed memory, up to a GiB, which the C library would give back: updates on a CPU gain a seventh."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # glibc; elsewhere nothing happens
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**30), (M_TOP_PAD, 2**28)):
            mallopt(option, value)


@contextmanager
def enough_memory(*settings: str) -> Iterator[None]:
    """Where memory runs out, name the settings that decide how much is needed."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise TrainingError("training needs more memory than there is", f"lower {' or '.join(settings)}") from None
