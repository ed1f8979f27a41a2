"""What every learner is asked for, and how it speaks with whoever asked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bcl.recipes import Loss

Metrics = dict[str, float | None]
State = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What one training run is asked for."""

    loss: Loss
    start: float
    """Budget at the beginning of its ramp, in observation units."""
    end: float
    """Budget at the end of its ramp."""
    seed: int


@dataclass(frozen=True)
class Hooks:
    """How a run speaks with whoever started it."""

    log: Callable[[Metrics], None] = lambda row: None
    save: Callable[[State], None] | None = None
    """Keeps a checkpoint in place of the one before; none: no checkpoints."""
    progress: Callable[[int, int], None] = lambda done, of: None
    interrupted: Callable[[], bool] = lambda: False
    """Asked after every vector step; a run that has to stop saves a checkpoint and raises KeyboardInterrupt."""
