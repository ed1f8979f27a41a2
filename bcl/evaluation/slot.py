"""A cell being played: which of its steps and episodes count."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from bcl.attacks import Learned, attack_label, recorded
from bcl.attacks.alike import MIX, digest
from bcl.envs import Step
from bcl.errors import BclError
from bcl.evaluation.evaluation import Score
from bcl.evaluation.outlook import Running, UnderWay
from bcl.evaluation.plan import Cell, Plan

TOLERANCE = 1e-6  # rounding of a perturbation in float32


class Decided(NamedTuple):
    """What N copies do next, and why. On a GPU the next call of `ActionChooser` writes over it."""

    actions: Tensor  # (N,)
    clean: Tensor  # (N,) actions on the clean observations
    seen: Tensor  # (N, *obs_shape) what the attack showed
    distance: Tensor  # (N,) how far each observation was moved
    noted: Tensor  # (N,) where the attack changed the action; of certificates, where no attack can


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


class Slot:
    """A cell being played: its draws, what its copies see and do, what counts."""

    obs: Tensor
    decided: Decided
    step: Step

    def __init__(self, cell: Cell, plan: Plan, device: torch.device) -> None:
        self.cell = cell
        self.plan = plan
        self.generator = Generator(device).manual_seed(plan.seed)
        copies = plan.copies()
        share, extra = divmod(plan.episodes, copies)
        quota = np.full(copies, share)
        quota[:extra] += 1
        self._quota = quota if plan.protocol == "fixed" else np.full(copies, plan.episodes)
        self.counting = self._quota > 0
        self._done: list[tuple[int, Episode]] = []  # with the copy that played it, in order of finishing
        self._known: set[int] = set()  # courses
        self._repeats = 0
        self._length = np.zeros(copies, dtype=np.int64)  # of the episode that a copy plays
        self._noted = np.zeros(copies, dtype=np.int64)
        self._return = np.zeros(copies)
        self._lost = np.zeros(copies)  # of that, rewards below 0
        self._course = torch.zeros(copies, dtype=torch.long, device=device)  # see `_follow`; 0: no reward yet
        self._rewarded = torch.zeros_like(self._course)  # length of the episode at the last reward
        self._all_noted = 0
        self._all_steps = 0
        self._largest = 0.0
        self.probed = 0  # states that were looked at
        self.zero_gradients = 0
        self.stochastic = False

    @property
    def finished(self) -> int:
        """Episodes that count so far."""
        return len(self._done)

    @property
    def complete(self) -> bool:
        """Whether every episode that counts is done."""
        return self.finished >= self.plan.episodes

    def receive(self, step: Step, facts: np.ndarray, prefixes: np.ndarray | None) -> None:
        """What came of the actions; counts until all episodes are done. `facts` (3, N): rewards, who played, whose
        episode ended; `prefixes` (N,): random actions with which episodes began. Both on the host."""
        self.step = step
        self.obs = step.obs
        if self.complete:
            return
        reward = facts[0]
        live = self.counting & (facts[1] > 0)
        noted = live & self.decided.noted.numpy()
        self._all_steps += int(live.sum())
        self._all_noted += int(noted.sum())
        self._largest = float(np.maximum(self._largest, (self.decided.distance.numpy() * live).max()))  # NaN stays
        self._return += reward * live
        self._lost += np.minimum(reward, 0) * live
        self._length += live
        self._noted += noted
        rewarded = live & (reward != 0)
        if rewarded.any():
            self._follow(torch.from_numpy(rewarded).to(self._course.device))
        over = live & (facts[2] > 0)
        if over.any():
            for i in np.flatnonzero(over).tolist():
                prefix = None if prefixes is None else int(prefixes[i])
                counts = int(self._length[i]), int(self._noted[i])
                self._finish(i, Episode(float(self._return[i]), *counts, int(self._course[i]), prefix))
            for running in (self._return, self._lost, self._length, self._noted):
                running[over] = 0
            for followed in (self._course, self._rewarded):
                followed[torch.from_numpy(over).to(followed.device)] = 0

    def _finish(self, copy: int, episode: Episode) -> None:
        if self.complete:
            return
        if episode.prefix is not None and episode.course in self._known and self._repeats < self.plan.episodes:
            self._repeats += 1  # the same course again: this copy plays on, from another start
            return
        self._known |= {episode.course} - {0}  # 0: no reward, nothing to tell it by
        self._done.append((copy, episode))
        self._quota[copy] -= 1
        self.counting[copy] = self._quota[copy] > 0

    def _follow(self, rewarded: Tensor) -> None:
        """Number each copy's episode, alike where rewards came as many steps after the first and with the same
        observation; not after the start, since Atari's episodes begin with more or fewer no-ops."""
        step = self.step
        length = torch.from_numpy(self._length).to(rewarded.device)
        waited = (length - self._rewarded) * (self._course != 0)
        seen = step.obs.clone()
        seen[step.ended] = step.final_obs
        event = (waited * MIX + step.reward.double().view(torch.long)) * MIX + digest(seen)
        self._course = torch.where(rewarded, (self._course * MIX + event) * MIX + 1, self._course)
        self._rewarded = torch.where(rewarded, length, self._rewarded)

    def under_way(self) -> UnderWay:
        """What is known before all episodes are done."""
        counting = np.flatnonzero(self.counting)
        facts = zip(self._return[counting], self._lost[counting], self._length[counting], strict=True)
        running = tuple(Running(float(value), float(lost), int(length)) for value, lost, length in facts)
        waiting = max(0, self.plan.episodes - self.finished - len(running))
        returns = tuple(episode.value for _, episode in self._done)
        return UnderWay(self.cell.identity, returns, running, waiting)

    def episodes(self) -> list[Episode]:
        """Those that count, copy by copy, or in order of finishing."""
        by_copy = sorted(self._done, key=lambda one: one[0])
        return [episode for _, episode in (self._done if self.plan.protocol == "first" else by_copy)]

    def score(self, half: bool) -> Score:
        """When all episodes are done; `half`: the precision in which the attack searched."""
        cell = self.cell
        if not self._largest <= cell.eps + TOLERANCE:  # NaN included; no adversary with this budget could do it
            what = f"{cell.attack} moved an observation by {self._largest:.6g} at eps {cell.eps:.6g}"
            raise BclError(what, "this attack is broken")
        episodes = self.episodes()
        courses = [episode.course for episode in episodes]
        instead = cell.attack.instead if isinstance(cell.attack, Learned) else None
        return Score(
            attack=recorded(cell.attack),
            eps=cell.eps,
            returns=tuple(episode.value for episode in episodes),
            lengths=tuple(episode.length for episode in episodes),
            changed=self._all_noted / max(self._all_steps, 1),
            max_perturbation=self._largest,
            zero_gradient=self.zero_gradients / max(self.probed, 1),
            seed=self.plan.seed,
            protocol=self.plan.protocol,
            precision="half" if half else "full",
            stochastic=self.stochastic,
            courses=len({*courses} - {0}) + courses.count(0),  # without any reward they cannot be told apart
            prefixes=tuple(episode.prefix for episode in episodes if episode.prefix is not None),
            instead=attack_label(instead) if instead else "",
        )
