"""What the benchmarks of the learners measure with."""

import resource
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from bcl.envs import VectorEnv
from bcl.learners.learner import Record
from bcl.learners.metrics import Metrics


def emulators_alone(env: VectorEnv, device: str, seconds: float) -> float:
    """Agent steps per second under random actions, drawn and observed on the learner's device."""
    env.reset(0)
    steps, start = -5, time.perf_counter()
    while steps < 1 or time.perf_counter() - start < seconds:
        env.send(torch.randint(env.num_actions, (env.num_envs,), device=device))
        env.recv()
        steps += 1
        if steps == 0:  # warmed up
            start = time.perf_counter()
    return env.num_envs * steps / (time.perf_counter() - start)


def table(rows: list[dict[str, Any]], lines: dict[str, str]) -> str:
    """One column per loss; `lines`: what stands before each line, and its key."""

    def cell(value: float | str | None) -> str:
        if value is None:
            return "-"
        if isinstance(value, int | str):
            return str(value)
        return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

    text = [f"{'':<22}" + "".join(f"{row['loss']:>12}" for row in rows)]
    text += [f"{label:<22}" + "".join(f"{cell(row.get(key)):>12}" for row in rows) for label, key in lines.items()]
    return "\n".join(text)


@dataclass
class Meter(Record):
    """Sums up the rows that training logs, from the first after the warm-up until the time is up."""

    seconds: float
    warm_up: int
    """Updates that are not measured."""
    start: float = 0.0
    steps: int = 0
    last: tuple[int, float] = (0, 0.0)
    updates: int = 0
    warm: int = 0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def log(self, row: Metrics) -> None:
        """One row; it comes after the host has waited for the device."""
        step, now = int(row["step"] or 0), time.perf_counter()
        updates, length = int(row["updates"] or 0), now - self.last[1]
        if self.warm >= self.warm_up:
            self.start = self.start or self.last[1]
            self.steps += step - self.last[0]
            self.updates += updates
            for name, value in row.items():
                if name.startswith("share_"):
                    self.sums[name] += (value or 0) * length
        self.warm += updates
        self.last = (step, now)

    def stop(self) -> bool:
        """Whether enough was measured."""
        return self.start > 0 and self.elapsed >= self.seconds

    @property
    def elapsed(self) -> float:
        return self.last[1] - self.start


def process_peak() -> int:
    """Most bytes this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes
