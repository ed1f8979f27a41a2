"""The C library's allocator, which gives large blocks back to the system at once and fetches them anew at every update."""

import ctypes
import functools

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to a GiB: on a CPU updates of image networks gain a seventh."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # glibc; elsewhere nothing happens
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**30), (M_TOP_PAD, 2**28)):
            mallopt(option, value)
