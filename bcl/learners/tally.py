"""What a learner has seen and done since its last row of metrics, kept on its device."""

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from bcl.envs import Step
from bcl.errors import TrainingError
from bcl.learners.task import Metrics
from bcl.learners.timing import Stopwatch
from bcl.pacing import NONE_PLAYED, Played
from bcl.policies import Policy

EXPLODED = 1e6  # a loss, score or weight beyond this is no learning


class Tally:
    """Episodes played, losses minimised and time spent; only `row` makes the host wait for the device."""

    def __init__(self, num_envs: int, device: torch.device, driven: Tensor | None = None) -> None:
        """`driven` (N,): copies that an adversary misleads, whose returns are told apart."""
        self.clock = Stopwatch(device)
        self.updates = 0
        self._sums: dict[str, Tensor] = {}
        self._driven = torch.zeros(num_envs, dtype=torch.bool, device=device) if driven is None else driven
        self._drives = driven is not None
        # Of finished episodes, undisturbed and driven: sums of returns and of their squares, numbers.
        self._finished = torch.zeros(3, 2, dtype=torch.float64, device=device)
        self._returns = torch.zeros(num_envs, device=device)  # of the episodes being played
        self.played = (NONE_PLAYED, NONE_PLAYED)
        """Episodes of the last row: undisturbed, driven."""
        self._looked = (0, time.perf_counter())

    def start_at(self, step: int) -> None:
        """Count steps from here on: those before were another process's."""
        self._looked = (step, time.perf_counter())

    def restart(self) -> None:
        """Every copy was started anew: the episodes being played are nobody's."""
        self._returns.zero_()

    def count(self, step: Step) -> None:
        """The rewards and ends of one vector step."""
        self._returns += step.reward
        over = torch.stack([step.ended & ~self._driven, step.ended & self._driven]).double()  # (2, N)
        returns = self._returns.double()
        self._finished += torch.stack([over @ returns, over @ returns.square(), over.sum(dim=1)])
        self._returns *= ~step.ended

    def add(self, info: Mapping[str, Tensor]) -> None:
        """What one gradient step says of itself; may be part of a captured graph."""
        for name, value in info.items():
            self._sums.setdefault(name, torch.zeros_like(value)).add_(value)

    def means(self) -> dict[str, float]:
        """What was added, per update."""
        return {name: (value / max(self.updates, 1)).item() for name, value in self._sums.items()}

    def row(self, step: int, schedules: Metrics) -> Metrics:
        """All of it with the schedules' values, and start anew."""
        (total, total_driven), (squares, _), (episodes, driven) = self._finished.tolist()
        self.played = (Played(total, episodes), Played(total_driven, driven))
        before, since = self._looked
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
            "steps_per_second": (step - before) / (time.perf_counter() - since),
            **{f"share_{name}": share for name, share in self.clock.shares().items()},
        }
        for value in self._sums.values():
            value.zero_()
        self._finished.zero_()
        self.updates = 0
        self.start_at(step)
        return row


def refuse_divergence(policy: Policy, step: int, learner: str, means: Mapping[str, float]) -> None:
    """Stop a run whose losses or weights explode; `learner` names the section of its settings."""
    largest = max(float(parameter.detach().abs().amax()) for parameter in policy.parameters())
    found = {**means, "largest weight": largest}
    if not all(abs(value) < EXPLODED for value in found.values()):  # NaN included
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
        raise TrainingError(
            f"training diverged before step {step} ({numbers})",
            f"start again with a lower {learner}.learning_rate or another seed",
        )
