"""CUDA graphs: a function launched as one piece instead of hundreds of kernels."""

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Generator

T = TypeVar("T")
WARM_UP = 2  # eager calls before capturing, in which libraries choose kernels and allocate


class Graphed(Generic[T]):
    """A function without arguments that reads and writes fixed tensors, replayed as a CUDA graph from its third call on.

    The first calls run eagerly and count: nothing has to be undone. Where `enabled` is false every call does. Graphs may be
    replayed beside each other on streams of their own. A bound method is not kept alive: the graph dies with its owner.
    """

    def __init__(self, function: Callable[[], T], *generators: Generator, enabled: bool) -> None:
        # Owner and graph must not wait for the garbage collector: PyTorch clears cuBLAS's workspace of a stream when a graph
        # captured on it dies (its issue 193402), and hands out the same 32 streams in turn, to live graphs as well.
        bound = hasattr(function, "__self__")
        self._function = weakref.WeakMethod(function) if bound else lambda: function
        self._generators, self._enabled = generators, enabled
        self._calls = 0
        # Not PyTorch's common capture stream: cuBLAS has one workspace per stream, which graphs captured on one would share.
        self._stream = torch.cuda.Stream() if enabled else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output: T

    def __call__(self) -> T:
        if not self._enabled:
            return self._run()
        if self._graph is None and self._calls < WARM_UP:
            self._calls += 1
            return self._apart()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            for generator in self._generators:
                self._graph.register_generator_state(generator)
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._output = self._run()
        self._graph.replay()
        return self._output

    def _apart(self) -> T:
        """Off the main stream, as capturing asks of what comes before it."""
        assert self._stream
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._run()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _run(self) -> T:
        function = self._function()
        assert function
        return function()
