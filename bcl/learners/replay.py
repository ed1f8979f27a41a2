"""Replay on the learner's device: a ring of vector steps in the order of time, sampled without the host waiting.

Images stay bytes. A perturbation is stored as one signed byte per element, in 1/127 of the budget it was made with:
corners of the ball are exact, everything else moves towards the clean observation by at most budget/127.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bcl.attacks.threat import per_sample
from bcl.envs import Step
from bcl.policies import as_float

LEVELS = 127
ROUNDING = 2.4e-7  # two float32 steps at 1: keeps corners corners where adding them to the observation rounded


@dataclass(frozen=True)
class Batch:
    """B replayed transitions; observations as networks take them."""

    obs: Tensor  # (B, *obs_shape) float
    seen: Tensor  # (B, *obs_shape) what the adversary showed instead; `obs` itself where perturbations are not stored
    actions: Tensor  # (B,) int64
    rewards: Tensor  # (B,) discounted sum of up to n steps
    next_obs: Tensor  # (B, *obs_shape) where the sum stops
    discounts: Tensor  # (B,) gamma ** steps summed, 0 where the game ended there
    weights: Tensor  # (B,) sums to 1; 0 for moves that were not the agent's


class Replay:
    """The newest `capacity` transitions of N copies, in whole vector steps."""

    def __init__(self, capacity: int, like: Tensor, *, n_step: int, gamma: float, perturbations: bool) -> None:
        """`like`: observations (N, *obs_shape) of all copies."""
        rows = max(capacity // len(like), n_step)
        shape = (rows, len(like))
        device = like.device
        self._n_step = n_step
        self._gamma = gamma
        self._rows = rows
        self._added = 0
        self._span = torch.zeros((), dtype=torch.long, device=device)  # rows that have n_step - 1 rows after them
        self._oldest = torch.zeros((), dtype=torch.long, device=device)
        self._obs = torch.zeros(*shape, *like.shape[1:], dtype=like.dtype, device=device)
        self._next_obs = torch.zeros_like(self._obs)
        self._actions = torch.zeros(shape, dtype=torch.long, device=device)
        self._rewards = torch.zeros(shape, device=device)
        self._terminated = torch.zeros(shape, dtype=torch.bool, device=device)
        self._ended = torch.zeros(shape, dtype=torch.bool, device=device)
        self._playing = torch.zeros(shape, dtype=torch.bool, device=device)
        self._budgets = torch.zeros(shape, device=device)
        self._offsets = torch.zeros_like(self._obs, dtype=torch.int8) if perturbations else None

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return max(min(self._added, self._rows) - self._n_step + 1, 0) * self._obs.shape[1]

    @property
    def capacity(self) -> int:
        """Transitions that can be sampled once it is full."""
        return (self._rows - self._n_step + 1) * self._obs.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def add(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, step: Step, perturbed: Tensor | None, budget: Tensor
    ) -> None:
        """One vector step: what was seen and done, the rewards to learn from, and its result."""
        next_obs = step.obs
        if len(step.final_obs):  # of episodes that ended, the last observation and not the next one's first
            next_obs = next_obs.masked_scatter(per_sample(step.ended, obs).expand_as(obs), step.final_obs)
        row = self._added % self._rows
        self._obs[row] = obs
        self._next_obs[row] = next_obs
        self._actions[row] = actions
        self._rewards[row] = rewards
        self._terminated[row] = step.terminated
        self._ended[row] = step.ended
        self._playing[row] = step.playing
        self._budgets[row] = budget
        if self._offsets is not None and perturbed is not None:
            self._offsets[row] = pack(perturbed - as_float(obs), budget)
        self._added += 1
        filled = min(self._added, self._rows)
        self._span.fill_(filled - self._n_step + 1)
        self._oldest.fill_(self._added % self._rows if filled == self._rows else 0)

    def cut(self) -> None:
        """The copies were started anew after the newest step: sums of rewards stop there."""
        if self._added:
            self._ended[(self._added - 1) % self._rows] = True

    def sample(self, size: int, generator: Generator) -> Batch:
        """Uniformly, with replacement; every tensor operation stays on the device."""
        device = self._obs.device
        # float64: float32 could not tell apart the transitions of a large buffer
        draw = torch.rand(2, size, dtype=torch.float64, generator=generator, device=device)
        first = (self._oldest + (draw[0] * self._span).long()) % self._rows
        copies = self._obs.shape[1]
        env = (draw[1] * copies).long()
        rewards = torch.zeros(size, device=device)
        discounts = torch.ones(size, device=device)
        going = torch.ones(size, dtype=torch.bool, device=device)
        row = last = first
        for step in range(self._n_step):
            if step:
                going = going & ~self._ended[row, env]
                row = (row + 1) % self._rows
            rewards = rewards + going * discounts * self._rewards[row, env]
            discounts = torch.where(going, discounts * self._gamma, discounts)
            last = torch.where(going, row, last)
        playing = self._playing[first, env].float()
        index = first * copies + env  # for index_select, which moves whole images
        obs = as_float(self._obs.flatten(0, 1).index_select(0, index))
        seen = obs
        if self._offsets is not None:
            offsets = self._offsets.flatten(0, 1).index_select(0, index)
            seen = obs + unpack(offsets, self._budgets[first, env])
        return Batch(
            obs=obs,
            seen=seen,
            actions=self._actions[first, env],
            rewards=rewards,
            next_obs=as_float(self._next_obs.flatten(0, 1).index_select(0, last * copies + env)),
            discounts=discounts * ~self._terminated[last, env],
            weights=playing / playing.sum().clamp(min=1),
        )

    def state(self) -> dict[str, Tensor | int]:
        filled = min(self._added, self._rows)
        tensors = self._tensors()
        if filled < self._rows:  # copies: a view would be written to disk with all that lies behind it
            tensors |= {name: tensor[:filled].clone() for name, tensor in tensors.items() if tensor.dim()}
        return {**tensors, "added": self._added}

    def restore(self, state: dict[str, Tensor | int]) -> None:
        self._added = int(state["added"])
        for name, tensor in self._tensors().items():
            stored = state[name]
            assert isinstance(stored, Tensor)
            (tensor[: len(stored)] if tensor.dim() else tensor).copy_(stored)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


def pack(perturbation: Tensor, budget: Tensor) -> Tensor:
    """(N, *shape) perturbations inside their budget, 0-d or (N,), as signed bytes."""
    levels = (perturbation.abs() + ROUNDING) * per_sample(LEVELS / budget.clamp(min=1e-30), perturbation)
    return (levels.floor().clamp(max=LEVELS) * perturbation.sign()).to(torch.int8)  # 0, all a budget of 0 has, stays 0


def unpack(packed: Tensor, budgets: Tensor) -> Tensor:
    """(B, *shape) perturbations from signed bytes and the budgets (B,) they were made with."""
    return packed * per_sample(budgets / LEVELS, packed)
