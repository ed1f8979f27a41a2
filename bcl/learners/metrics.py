"""What a learner has seen and done since its last row of metrics, kept on its device."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bcl.envs import Step
from bcl.learners.pacing import NONE_PLAYED, Played

Metrics = dict[str, float | None]


class Meter:
    """Episodes played, losses minimised and time spent; only `row` and `means` make the host wait for the device."""

    def __init__(self, num_envs: int, device: torch.device, driven: int = 0) -> None:
        """`driven`: copies, the first ones, that an adversary misleads, whose returns are told apart."""
        self.updates = 0
        self.played = (NONE_PLAYED, NONE_PLAYED)
        """Episodes of the last row: undisturbed, driven."""
        self._sums: dict[str, Tensor] = {}
        self._driven = torch.arange(num_envs, device=device) < driven
        self._drives = driven > 0
        # Of finished episodes, undisturbed and driven: sums of returns and of their squares, numbers.
        self._finished = torch.zeros(3, 2, dtype=torch.float64, device=device)
        self._returns = torch.zeros(num_envs, device=device)  # of the episodes being played
        self._cuda = device.type == "cuda"
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._shares_since = time.perf_counter()
        self.start_at(0)

    def start_at(self, step: int) -> None:
        """Count steps from here on: those before were another process's."""
        self._row_step = step
        self._row_time = time.perf_counter()

    def restart(self) -> None:
        """Every copy was started anew: the episodes being played are not counted."""
        self._returns.zero_()

    def state(self) -> dict[str, Any]:
        """What the next row will tell beside what is to come. Not the episodes being played: they cannot be resumed."""
        return {"finished": self._finished, "sums": self._sums, "updates": self.updates}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._finished.copy_(state["finished"])
        self._sums = {name: value.to(self._finished.device) for name, value in state["sums"].items()}
        self.updates = state["updates"]

    def count(self, step: Step) -> None:
        """The rewards and ends of one vector step."""
        self._returns += step.reward
        over = torch.stack([step.ended & ~self._driven, step.ended & self._driven]).double()  # (2, N)
        returns = self._returns.double()
        self._finished += torch.stack([over @ returns, over @ returns.square(), over.sum(dim=1)])
        self._returns *= ~step.ended

    def add(self, info: Mapping[str, Tensor]) -> None:
        """Add the losses of one gradient step; may be part of a captured graph."""
        for name, value in info.items():
            if name not in self._sums:  # else every update would fill one with zeros
                self._sums[name] = torch.zeros_like(value)
            self._sums[name].add_(value)

    def means(self) -> dict[str, float]:
        return {name: (value / max(self.updates, 1)).item() for name, value in self._sums.items()}

    @contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Time that the host spends on a part of the loop; parts may overlap."""
        start = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - start

    @contextmanager
    def device(self, name: str) -> Iterator[None]:
        """Time of work that is launched on the device."""
        if not self._cuda:
            with self.host(name):
                yield
            return
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        yield
        end.record()
        self._events.append((name, start, end))

    def row(self, step: int, schedules: Metrics) -> Metrics:
        """All of it with the schedules' values, and start anew."""
        (total, total_driven), (squares, _), (episodes, driven) = self._finished.tolist()
        self.played = (Played(total, episodes), Played(total_driven, driven))
        mean = total / episodes if episodes else None
        row: Metrics = {
            "step": step,
            "return": mean,
            "return_sd": None if mean is None else max(squares / episodes - mean**2, 0.0) ** 0.5,
            **({"return_attacked": total_driven / driven if driven else None} if self._drives else {}),
            "episodes": episodes + driven,
            **(self.means() if self.updates else {}),
            **schedules,
            "updates": self.updates,
            "steps_per_second": (step - self._row_step) / (time.perf_counter() - self._row_time),
            **{f"share_{name}": share for name, share in self._shares().items()},
        }
        for value in self._sums.values():
            value.zero_()
        self._finished.zero_()
        self.updates = 0
        self.start_at(step)
        return row

    def _shares(self) -> dict[str, float]:
        """Share of the wall time that each part took since the last call; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        for name, start, end in self._events:
            self._seconds[name] += start.elapsed_time(end) / 1000
        now = time.perf_counter()
        shares = {name: seconds / (now - self._shares_since) for name, seconds in self._seconds.items()}
        self._events.clear()
        self._seconds.clear()
        self._shares_since = now
        return shares
