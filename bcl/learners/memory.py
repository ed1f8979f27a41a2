"""Memory: the C library's allocator gives large blocks back to the system at once and fetches them anew at every update; and
what is said where there is not enough."""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bcl.errors import TrainingError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to a GiB: on a CPU updates of image networks gain a seventh."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # glibc; elsewhere nothing happens
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**30), (M_TOP_PAD, 2**28)):
            mallopt(option, value)


@contextmanager
def enough_memory(*settings: str) -> Iterator[None]:
    """Name the settings that memory goes by, where it runs out."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise TrainingError("training needs more memory than there is", f"lower {' or '.join(settings)}") from None
