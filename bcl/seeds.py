"""Every random draw of a run follows from its seed and a path such as ("phase", 3, "run", 1)."""

import hashlib


def derive(seed: int, *path: object) -> int:
    """A seed of its own for every path, below 2**30 so that engines can count up from it."""
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return int.from_bytes(digest[:4]) >> 2
