"""Which steps and episodes count, and which episodes are one and the same but for how they began."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bcl.envs import Step
from bcl.evaluation.plan import Protocol

MIX = 6364136223846793005  # odd, with well mixed bits: a product by it, modulo 2**64, loses nothing


class Episode(NamedTuple):
    """One that is done."""

    value: float
    """Its return."""
    length: int
    noted: int
    """Steps in which something was noted (`Decided.noted`)."""
    course: int
    prefix: int | None
    """Random actions before it; none where it began as the game has it begin."""


class EpisodeCounter:
    """Which steps and episodes of a slot count; kept on the host."""

    def __init__(self, num_envs: int, episodes: int, protocol: Protocol, device: torch.device) -> None:
        self._episodes = episodes
        self._protocol = protocol
        share, extra = divmod(episodes, num_envs)
        quota = np.full(num_envs, share)
        quota[:extra] += 1
        self._quota = quota if protocol == "fixed" else np.full(num_envs, episodes)
        self._done: list[tuple[int, Episode]] = []  # with the copy that played it, in order of finishing
        self._known: set[int] = set()  # courses
        self._repeats = 0
        self.counting = self._quota > 0
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._noted = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self._courses = Courses(num_envs, device)
        self.device = device
        self.noted = 0
        self.steps = 0
        self.largest = 0.0

    @property
    def finished(self) -> int:
        """Episodes that count so far."""
        return len(self._done)

    @property
    def complete(self) -> bool:
        """Whether every episode that counts is done."""
        return self.finished >= self._episodes

    def add(
        self, step: Step, facts: np.ndarray, noted: np.ndarray, distance: np.ndarray, prefixes: np.ndarray | None
    ) -> None:
        """Count a step; `facts` (3, N): rewards, who played, whose episode ended. `noted` and `distance` (N,): see
        `Decided`; `prefixes` (N,): random actions with which episodes began. All on the host."""
        reward = facts[0]
        playing = facts[1] > 0
        ended = facts[2] > 0
        live = self.counting & playing
        self.steps += int(live.sum())
        self.noted += int((live & noted).sum())
        self.largest = float(np.maximum(self.largest, (distance * live).max()))  # NaN stays
        self._return += reward * live
        self._length += live
        self._noted += live & noted
        rewarded = live & (reward != 0)
        if rewarded.any():
            rows, length = (torch.from_numpy(x).to(self.device) for x in (rewarded, self._length))
            self._courses.follow(step, rows, length)
        over = live & ended
        if over.any():
            for i in np.flatnonzero(over).tolist():
                course = int(self._courses.numbers[i])
                prefix = None if prefixes is None else int(prefixes[i])
                counts = int(self._length[i]), int(self._noted[i])
                self._finish(i, Episode(float(self._return[i]), *counts, course, prefix))
            for running in (self._return, self._length, self._noted):
                running[over] = 0
            self._courses.restart(torch.from_numpy(over).to(self.device))

    def _finish(self, copy: int, episode: Episode) -> None:
        if self.complete:
            return
        if episode.prefix is not None and episode.course in self._known and self._repeats < self._episodes:
            self._repeats += 1  # the same course again: this copy plays on, from another start
            return
        self._known |= {episode.course} - {0}  # 0: no reward, nothing to tell it by
        self._done.append((copy, episode))
        self._quota[copy] -= 1
        self.counting[copy] = self._quota[copy] > 0

    def episodes(self) -> list[Episode]:
        """Those that count, copy by copy, or in order of finishing."""
        by_copy = sorted(self._done, key=lambda one: one[0])
        return [episode for _, episode in (self._done if self._protocol == "first" else by_copy)]

    def courses(self) -> int:
        """How many different ones they are; episodes without any reward cannot be told apart and count as different."""
        numbers = [episode.course for episode in self.episodes()]
        return len({*numbers} - {0}) + numbers.count(0)


class Courses:
    """A number for the episode of each copy, the same where all rewards came after as many steps, counted from the first,
    and with the same observation. When the first came is left out: Atari's episodes begin with more or fewer no-ops."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self.numbers = torch.zeros(num_envs, dtype=torch.long, device=device)  # 0: no reward yet
        self._rewarded = torch.zeros_like(self.numbers)  # length of the episode at the last reward

    def follow(self, step: Step, rewarded: Tensor, length: Tensor) -> None:
        """(N,) where there was a reward that counts, and the agent steps of each episode so far."""
        waited = (length - self._rewarded) * (self.numbers != 0)
        seen = step.obs.clone()
        seen[step.ended] = step.final_obs
        event = (waited * MIX + step.reward.double().view(torch.long)) * MIX + _digest(seen)
        self.numbers = torch.where(rewarded, (self.numbers * MIX + event) * MIX + 1, self.numbers)
        self._rewarded = torch.where(rewarded, length, self._rewarded)

    def restart(self, over: Tensor) -> None:
        """(N,) where an episode is over."""
        self.numbers[over] = 0
        self._rewarded[over] = 0


def _digest(obs: Tensor) -> Tensor:
    """(N,) one number for each observation, the same for the same."""
    bits = obs.flatten(1).double().contiguous().view(torch.long)
    odd = 2 * torch.arange(bits.shape[1], device=obs.device) + 1
    return (bits * (odd * MIX)).sum(dim=1)
