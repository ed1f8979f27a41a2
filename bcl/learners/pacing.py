"""A budget that follows the play: it rises while returns hold, waits while they do not, steps back when they stay low.

`advance` is pure: it gets the returns of the episodes that ended, and gives the budget. `Pacer` adds the weights to go
back to. Not in the paper, whose budget follows a fixed ramp inside each run.
"""

from dataclasses import asdict, dataclass, replace
from math import ceil, exp, floor, log
from typing import Any

import torch

from bcl.config import CurriculumConfig
from bcl.errors import ConfigError
from bcl.policies import Policy

ARRIVES = 0.75  # share of a training after which a budget that never waits is at its target, unless settings say else


@dataclass(frozen=True, kw_only=True)
class Pace(CurriculumConfig):
    """The curriculum's settings, as far as they count in this stage."""

    first_episodes: int = 0
    """At least so many behind the first check, one per copy that is not attacked: short episodes end first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nominal_threshold is None and self.attacked_threshold is None:
            raise ConfigError("a paced budget needs a threshold", "set curriculum.nominal_threshold")
        if not 0 <= self.start < self.target:
            what = f"a paced budget cannot rise from {self.start:g} to {self.target:g}"
            raise ConfigError(what, "give a start below the target")
        if self.gentle_below > self.target - self.start:
            what = f"curriculum.gentle_below {self.gentle_below:g} leads beyond the target {self.target:g}"
            raise ConfigError(what, "give at most the distance from start to target")

    @property
    def first(self) -> float:
        """The smallest budget: a rise in proportion to itself never leaves 0."""
        return self.start + self.gentle_from * self.gentle_below


def rise_steps(c: CurriculumConfig, steps: int) -> int:
    """Agent steps for an increment in a training of so many."""
    gentle = c.gentle_below * log(1 / c.gentle_from) if c.gentle_from else c.gentle_below
    way = c.target - c.start - c.gentle_below + gentle  # as long as it takes to rise
    return c.rise_steps or max(1, round(ARRIVES * steps * c.increment / max(way, c.increment)))


def increments_at(c: CurriculumConfig, eps: float) -> int:
    """How many increments above its start a budget has reached; at the target the last one, which may be smaller."""
    if eps >= c.target - 1e-9 * c.increment:
        return ceil((c.target - c.start) / c.increment - 1e-9)
    return floor((eps - c.start) / c.increment + 1e-9)


@dataclass(frozen=True)
class Played:
    """Returns of episodes that ended."""

    total: float = 0.0
    episodes: float = 0.0

    def __add__(self, other: "Played") -> "Played":
        return Played(self.total + other.total, self.episodes + other.episodes)

    @property
    def mean(self) -> float:
        """Mean return; there must be episodes."""
        return self.total / self.episodes


NONE_PLAYED = Played()


@dataclass(frozen=True)
class Paced:
    """Where the budget stands; plain data that a checkpoint keeps."""

    eps: float
    step: int = 0  # agent step of the last call
    checks: int = 0  # of the thresholds, so far
    checked_at: int = 0  # agent step of the last one
    met: bool = False  # whether it found the thresholds met; before the first one the budget waits
    missed_since: int = 0  # agent step since which they are missed
    window_eps: float = 0.0  # budget at the beginning of the episodes not checked yet
    clean: Played = NONE_PLAYED
    driven: Played = NONE_PLAYED
    held: float | None = None  # largest budget at the beginning of a window that met the thresholds; none: not yet
    steps_back: int = 0  # how often the budget stepped back
    nominal: float | None = None  # thresholds as returns; of an adaptive pace known after the first check
    attacked: float | None = None


def begin(pace: Pace) -> Paced:
    at = Paced(pace.first, window_eps=pace.first)
    return at if pace.adaptive else replace(at, nominal=pace.nominal_threshold, attacked=pace.attacked_threshold)


def advance(
    pace: Pace, at: Paced, step: int, clean: Played, driven: Played = NONE_PLAYED, certified: float = 1.0
) -> Paced:
    """The budget from `step` on, given what ended since the last call: episodes of clean and of driven copies.

    `certified`: share of states whose action was proven since then, which is known episodes before returns are.
    """
    at = replace(at, clean=at.clean + clean, driven=at.driven + driven)
    due = _enough(pace, at)
    if due:
        at = _check(pace, at, step)
    eps = at.eps
    if at.met and step - at.checked_at < pace.patience:  # without an episode that ended for that long, nothing is known
        if certified >= pace.certified_threshold:
            eps = _risen(pace, at.eps, step - at.step)
    elif due and not at.met and at.eps > pace.first and step - at.missed_since >= pace.patience:
        eps = max(pace.first, pace.start + (1 - pace.step_back) * (at.eps - pace.start))
        at = replace(at, missed_since=step, steps_back=at.steps_back + 1)
    at = replace(at, eps=eps, step=step)
    return replace(at, clean=NONE_PLAYED, driven=NONE_PLAYED, window_eps=eps) if due else at


def _risen(pace: Pace, eps: float, steps: int) -> float:
    """The budget after `steps` of rising: in proportion to its distance from the start at first, then evenly."""
    above = eps - pace.start
    gain = pace.increment / pace.rise_steps * steps
    if 0 < above < pace.gentle_below:
        gentle = pace.gentle_below * log(pace.gentle_below / above)  # what rising to `gentle_below` costs
        if gain < gentle:
            return min(pace.target, pace.start + above * exp(gain / pace.gentle_below))
        above = pace.gentle_below
        gain = gain - gentle
    return min(pace.target, pace.start + above + gain)


def _enough(pace: Pace, at: Paced) -> bool:
    needed = pace.pace_episodes if at.checks else max(pace.pace_episodes, pace.first_episodes)
    wants_clean = pace.nominal_threshold is not None or (pace.adaptive and not at.checks)
    enough_clean = not wants_clean or at.clean.episodes >= needed
    return enough_clean and (pace.attacked_threshold is None or at.driven.episodes >= needed)


def _check(pace: Pace, at: Paced, step: int) -> Paced:
    if pace.adaptive and not at.checks:
        nominal = pace.nominal_threshold
        attacked = pace.attacked_threshold
        scale = at.clean.mean - pace.floor
        at = replace(
            at,
            nominal=None if nominal is None else pace.floor + nominal * scale,
            attacked=None if attacked is None else pace.floor + attacked * scale,
        )
    met = at.nominal is None or at.clean.mean >= at.nominal
    met = met and (at.attacked is None or at.driven.mean >= at.attacked)
    return replace(
        at,
        checks=at.checks + 1,
        checked_at=step,
        met=met,
        missed_since=step if at.met or not at.checks else at.missed_since,
        held=max(at.held or 0.0, at.window_eps) if met else at.held,
    )


class Pacer:
    """A pace, where it stands, and the weights of the last check that was met."""

    def __init__(self, pace: Pace, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
        self._pace = pace
        self._at = begin(pace)
        self._told = 0
        self._policy = policy
        self._optimizer = optimizer
        self._good = [parameter.detach().clone() for parameter in policy.parameters()]

    @property
    def eps(self) -> float:
        return self._at.eps

    @property
    def knows_start(self) -> bool:
        """Whether the start's play was checked; until then nothing is learned, which would change what is measured."""
        return self._at.checks > 0

    @torch.no_grad()
    def observe(self, step: int, clean: Played, driven: Played, certified: float = 1.0) -> bool:
        """What happened since the last call (see `advance`); whether the budget stepped back, and with it the weights.

        An agent that plays badly does not recover at a smaller budget: interval bounds can end in one constant.
        """
        before = self._at
        self._at = advance(self._pace, self._at, step, clean, driven, certified)
        if self._at.checks > before.checks and self._at.met:
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
        """A run that ended before its start was checked has learned nothing."""
        if not self.knows_start:
            what = f"{section}.steps {steps:,} end before enough episodes ended to check the start"
            raise ConfigError(what, f"more steps, or a lower curriculum.pace_episodes or {section}.num_envs")

    def facts(self) -> dict[str, float | None]:
        """Whether the last check found the thresholds met, and these as returns; none before the first check."""
        at = self._at
        return {
            "met": float(at.met) if at.checks else None,
            "nominal_threshold": at.nominal,
            "attacked_threshold": at.attacked,
        }

    def newly_held(self) -> int | None:
        """The largest number of increments above the start that was held, once each; none: nothing new."""
        increments = increments_at(self._pace, self._at.held or 0.0)
        if increments <= self._told:
            return None
        self._told = increments
        return increments

    def state(self) -> dict[str, Any]:
        return {"at": asdict(self._at), "told": self._told, "good": self._good}

    def restore(self, state: dict[str, Any]) -> None:
        at = state["at"]
        self._at = Paced(**at | {name: Played(**at[name]) for name in ("clean", "driven")})
        self._told = state["told"]
        for kept, stored in zip(self._good, state["good"], strict=True):
            kept.copy_(stored)
