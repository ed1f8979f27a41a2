"""Where the time of a training loop goes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds per named part since the last look: of the host, or on a GPU of the device. Parts may overlap."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    @contextmanager
    def device(self, name: str) -> Iterator[None]:
        """Time work that is launched on the device."""
        if not self._cuda:
            with self.host(name):
                yield
            return
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._events.append((name, start, end))

    @contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Time that the host spends."""
        start = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - start

    def shares(self) -> dict[str, float]:
        """Share of the wall time each part took since the last call; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        for name, start, end in self._events:
            self._seconds[name] += start.elapsed_time(end) / 1000
        wall = time.perf_counter() - self._since
        shares = {name: seconds / wall for name, seconds in self._seconds.items()}
        self._events, self._seconds, self._since = [], defaultdict(float), time.perf_counter()
        return shares
