"""What every learner is asked for, and how it speaks with whoever asked."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bcl.config import DqnConfig, PpoConfig
from bcl.learners.pacer import Pacer
from bcl.pacing import Pace
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
    pace: Pace | None = None
    """The budget follows the play instead of a ramp."""


@dataclass(frozen=True)
class Hooks:
    """How a run speaks with whoever started it."""

    log: Callable[[Metrics], None] = lambda row: None
    save: Callable[[State], None] | None = None
    """Keeps a checkpoint in place of the one before; none: no checkpoints."""
    held: Callable[[int], None] = lambda increments: None
    """Told when a paced budget was held for the first time, in increments above its start."""
    progress: Callable[[int, int], None] = lambda done, of: None
    interrupted: Callable[[], bool] = lambda: False
    """Asked after every pass of the loop; a run that has to stop saves a checkpoint and raises KeyboardInterrupt."""


class Learning(Protocol):
    """What changes during training, as far as reports need it."""

    step: int
    pacer: Pacer | None

    def metrics(self) -> Metrics: ...
    def state(self) -> State: ...


class Reporter:
    """Rows, progress and checkpoints of one run, as its settings and hooks ask for them."""

    def __init__(self, learner: Learning, config: DqnConfig | PpoConfig, hooks: Hooks) -> None:
        self._learner, self._config, self._hooks = learner, config, hooks
        self._last = self._saved = learner.step
        self._saved_at = time.monotonic()

    def report(self) -> bool:
        """After each pass; whether a checkpoint was kept, upon which the games have to start anew."""
        learner, config, hooks, step = self._learner, self._config, self._hooks, self._learner.step
        done = step >= config.steps
        if done or step // config.log_steps > self._last // config.log_steps:
            hooks.log(learner.metrics())
            if learner.pacer and (increments := learner.pacer.newly_held()):
                hooks.held(increments)
        self._last = step
        hooks.progress(step, config.steps)
        stop = not done and hooks.interrupted()
        due = 0 < config.checkpoint_steps <= step - self._saved
        late = time.monotonic() - self._saved_at >= 60 * config.checkpoint_minutes
        save = hooks.save if not done and (due or late or stop) else None
        if save:
            save(learner.state())
            self._saved, self._saved_at = step, time.monotonic()
        if stop:
            raise KeyboardInterrupt
        return save is not None
