"""What every learner is asked for, and how it speaks with whoever asked."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bcl.config import DistillConfig, DqnConfig, PpoConfig
from bcl.learners.pacer import Pacer
from bcl.pacing import Pace
from bcl.recipes import Loss

Metrics = dict[str, float | None]
State = dict[str, Any]
NEAR = 5.0  # seconds for which a run that has to stop goes on to its next checkpoint


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
    """Asked after every pass of the loop; a run that has to stop raises KeyboardInterrupt, after a checkpoint if one can be
    had (see Reporter)."""


class Learning(Protocol):
    """What changes during training, as far as reports need it."""

    step: int

    @property
    def pacer(self) -> Pacer | None: ...
    def metrics(self) -> Metrics: ...
    def state(self) -> State: ...


class Reporter:
    """Rows, progress and checkpoints of one run, as its settings and hooks ask for them.

    Every checkpoint starts the games anew, so a run ends as another only if both keep theirs at the same steps. Where they are
    counted in steps, a run that has to stop adds none: it goes on to the next one if that is near, else resuming goes back to
    the last. Where they go by time, it keeps one and stops.
    """

    def __init__(self, learner: Learning, config: DqnConfig | PpoConfig | DistillConfig, hooks: Hooks) -> None:
        self._learner, self._config, self._hooks = learner, config, hooks
        self._last = self._saved = self._began = learner.step
        self._saved_at = self._began_at = time.monotonic()

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
        due = self._due() or (stop and not config.checkpoint_steps)
        save = hooks.save if due and not done else None
        if save:
            save(learner.state())
            self._saved, self._saved_at = step, time.monotonic()
        if stop and (save or not self._near()):
            raise KeyboardInterrupt
        return save is not None

    def _due(self) -> bool:
        if self._config.checkpoint_steps:
            return self._learner.step - self._saved >= self._config.checkpoint_steps
        return time.monotonic() - self._saved_at >= 60 * self._config.checkpoint_minutes

    def _near(self) -> bool:
        """Whether the next checkpoint, or the end, is a matter of seconds at the rate so far."""
        left = min(self._saved + self._config.checkpoint_steps, self._config.steps) - self._learner.step
        rate = (self._learner.step - self._began) / (time.monotonic() - self._began_at)
        return self._hooks.save is not None and left <= NEAR * rate
