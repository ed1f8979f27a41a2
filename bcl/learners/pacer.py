"""A budget that follows the play, and the weights to go back to when it steps back."""

from dataclasses import asdict
from math import floor
from typing import Any

import torch

from bcl.errors import ConfigError
from bcl.pacing import Pace, Paced, Played, advance, begin
from bcl.policies import Policy


class Pacer:
    """A pace, where it stands, and the weights of the last judgement that was met."""

    def __init__(self, pace: Pace, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
        self._pace = pace
        self._at = begin(pace)
        self._told = 0
        self._policy = policy
        self._optimizer = optimizer
        self._good = [parameter.detach().clone() for parameter in policy.parameters()]

    @property
    def eps(self) -> float:
        """The budget in force."""
        return self._at.eps

    @property
    def knows_start(self) -> bool:
        """Whether the play of the start was judged; before that, learning would change what is being measured.

        The wait fills a replay memory with whole episodes. Copies begin together: a memory of their first steps alone makes a
        network forget the rest of the game.
        """
        return self._at.judged > 0

    @property
    def held(self) -> float:
        """The largest budget that was held."""
        return self._at.held or 0.0

    @torch.no_grad()
    def observe(self, step: int, clean: Played, driven: Played, certified: float = 1.0) -> bool:
        """What happened since the last call (see `pacing.advance`); whether the budget stepped back, and with it the weights.

        An agent that has lost its game does not find it again at a smaller budget: interval bounds can end in one constant.
        """
        before, self._at = self._at, advance(self._pace, self._at, step, clean, driven, certified)
        if self._at.judged > before.judged and self._at.met:
            for kept, parameter in zip(self._good, self._policy.parameters(), strict=True):
                kept.copy_(parameter)
        if self._at.steps_back == before.steps_back:
            return False
        for kept, parameter in zip(self._good, self._policy.parameters(), strict=True):
            parameter.copy_(kept)
        for state in self._optimizer.state.values():
            for value in state.values():
                value.zero_()
        return True

    def refuse_no_learning(self, section: str, steps: int) -> None:
        """A run that ended before its start was judged has learned nothing, and would pass for a trained one."""
        if not self.knows_start:
            what = f"{section}.steps {steps:,} end before enough episodes ended to judge the start"
            raise ConfigError(what, f"more steps, or a lower curriculum.pace_episodes or {section}.num_envs")

    def newly_held(self) -> int | None:
        """The largest number of increments above the start that was held, once each; none: nothing new."""
        increments = floor((self.held - self._pace.start) / self._pace.increment + 1e-9)
        if increments <= self._told:
            return None
        self._told = increments
        return increments

    def state(self) -> dict[str, Any]:
        """Plain data and tensors for a checkpoint."""
        return {"at": asdict(self._at), "told": self._told, "good": self._good}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        at = state["at"]
        self._at = Paced(**at | {name: Played(**at[name]) for name in ("clean", "driven")})
        self._told = state["told"]
        for kept, stored in zip(self._good, state["good"], strict=True):
            kept.copy_(stored)
