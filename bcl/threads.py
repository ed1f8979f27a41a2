"""How many threads PyTorch gets. Those of a small batch only wait for each other, and on busy cores each waits for all.

Measured with PyTorch 2.13 on 2 cores, the paper's network on 84 x 84 images, forward and backward, ms with 1 and with 2 threads:
idle (at real-time priority), batch 1: 2.0 and 2.3; 4: 5.4 and 5.2; 16: 15 and 10; 32: 29 and 16; 64: 54 and 29; 256: 217 and
119. Busy (a load average of 7), batch 1: 15 and 413; 16: 64 and 412; 64: 209 and 986; 256: 940 and 1120.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

import torch

FEW_IMAGES = 8  # a batch below it gains nothing from a second thread
_BEGAN = time.monotonic()


def worth(obs_shape: Sequence[int], rows: int) -> int:
    """How many threads an evaluation of so many observations at once should have: one for vectors and few images, else one
    per core that other processes leave free."""
    if len(obs_shape) == 1 or rows < FEW_IMAGES:
        return 1
    load, own = os.getloadavg()[0], time.process_time() / max(1.0, time.monotonic() - _BEGAN)
    return max(1, round((os.cpu_count() or 1) - max(0.0, load - own)))


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """At most so many, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)
