"""A budget that follows the play: it rises while returns hold, waits while they do not, steps back when they stay low.

Pure: a learner hands over the returns of the episodes that ended, and takes the budget. Not in the paper, whose budget
follows a fixed ramp inside each run.
"""

from dataclasses import dataclass, replace
from math import exp, log

from bcl.errors import ConfigError


@dataclass(frozen=True)
class Pace:
    """What decides about the budget."""

    start: float
    target: float
    rise: float
    """Budget gained per agent step while the thresholds are met."""
    patience: int
    """Agent steps for which a threshold may be missed before the budget steps back."""
    step_back: float
    """Share of the way from the start that is given up then."""
    increment: float
    """Distance between the budgets whose holding is told, so that a snapshot is kept."""
    episodes: int
    """Episodes behind one judgement, of each kind that has a threshold."""
    first_episodes: int = 0
    """At least so many behind the first one: short episodes end first, and would count for more than their share."""
    gentle_below: float = 0.0
    """Above the start by less than this, the budget rises in proportion to that distance: slowly where it is small."""
    gentle_from: float = 0.01
    """Share of `gentle_below` at which a gentle rise begins."""
    nominal: float | None = None
    """Return of clean copies that counts as held; none: no such condition."""
    attacked: float | None = None
    """Return of copies under attack that counts as held; none: no such condition."""
    certified: float = 0.0
    """Share of replayed states whose action the training's bounds must prove; below it the budget waits."""
    adaptive: bool = False
    """Read both as shares of the first judged return of clean copies, counted from `floor`."""
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.nominal is None and self.attacked is None:
            raise ConfigError("a paced budget needs a threshold", "set curriculum.nominal_threshold")
        if not 0 <= self.start < self.target:
            raise ConfigError(f"no pace from {self.start:g} to {self.target:g}", "give a start below the target")
        if self.gentle_below > self.target - self.start:
            what = f"curriculum.gentle_below {self.gentle_below:g} leads beyond the target {self.target:g}"
            raise ConfigError(what, "give at most the distance from start to target")

    @property
    def first(self) -> float:
        """The smallest budget: a rise in proportion to itself never leaves 0."""
        return self.start + self.gentle_from * self.gentle_below


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
    step: int = 0
    """Agent step of the last call."""
    judged: int = 0
    """Judgements so far."""
    judged_at: int = 0
    """Agent step of the last one."""
    met: bool = False
    """Whether it found the thresholds met; before the first one the budget waits."""
    missed_since: int = 0
    """Agent step since which they are missed."""
    window_eps: float = 0.0
    """Budget at the beginning of the episodes not judged yet."""
    clean: Played = NONE_PLAYED
    driven: Played = NONE_PLAYED
    held: float | None = None
    """Largest budget at the beginning of a window that met the thresholds; none: not yet."""
    steps_back: int = 0
    """How often the budget stepped back."""
    nominal: float | None = None
    """Thresholds as returns; of an adaptive pace known after the first judgement."""
    attacked: float | None = None


def begin(pace: Pace) -> Paced:
    """Before the first step."""
    at = Paced(pace.first, window_eps=pace.first)
    return at if pace.adaptive else replace(at, nominal=pace.nominal, attacked=pace.attacked)


def advance(
    pace: Pace, at: Paced, step: int, clean: Played, driven: Played = NONE_PLAYED, certified: float = 1.0
) -> Paced:
    """The budget from `step` on, given what ended since the last call: episodes of clean and of driven copies.

    `certified`: share of states whose action was proven since then. It answers at once, where returns come episodes later.
    """
    at = replace(at, clean=at.clean + clean, driven=at.driven + driven)
    due = _enough(pace, at)
    if due:
        at = _judge(pace, at, step)
    eps = at.eps
    if at.met and step - at.judged_at < pace.patience:  # without news for that long, nothing is known
        if certified >= pace.certified:
            eps = _risen(pace, at.eps, step - at.step)
    elif due and not at.met and at.eps > pace.first and step - at.missed_since >= pace.patience:
        eps = max(pace.first, pace.start + (1 - pace.step_back) * (at.eps - pace.start))
        at = replace(at, missed_since=step, steps_back=at.steps_back + 1)
    at = replace(at, eps=eps, step=step)
    return replace(at, clean=NONE_PLAYED, driven=NONE_PLAYED, window_eps=eps) if due else at


def _risen(pace: Pace, eps: float, steps: int) -> float:
    """The budget after `steps` of rising: in proportion to its distance from the start at first, then evenly."""
    above = eps - pace.start
    gain = pace.rise * steps
    if 0 < above < pace.gentle_below:
        gentle = pace.gentle_below * log(pace.gentle_below / above)  # what rising to `gentle_below` costs
        if gain < gentle:
            return min(pace.target, pace.start + above * exp(gain / pace.gentle_below))
        above, gain = pace.gentle_below, gain - gentle
    return min(pace.target, pace.start + above + gain)


def _enough(pace: Pace, at: Paced) -> bool:
    needed = pace.episodes if at.judged else max(pace.episodes, pace.first_episodes)
    wants_clean = pace.nominal is not None or (pace.adaptive and not at.judged)
    enough_clean = not wants_clean or at.clean.episodes >= needed
    return enough_clean and (pace.attacked is None or at.driven.episodes >= needed)


def _judge(pace: Pace, at: Paced, step: int) -> Paced:
    if pace.adaptive and not at.judged:
        scale = at.clean.mean - pace.floor
        at = replace(
            at,
            nominal=None if pace.nominal is None else pace.floor + pace.nominal * scale,
            attacked=None if pace.attacked is None else pace.floor + pace.attacked * scale,
        )
    met = at.nominal is None or at.clean.mean >= at.nominal
    met = met and (at.attacked is None or at.driven.mean >= at.attacked)
    return replace(
        at,
        judged=at.judged + 1,
        judged_at=step,
        met=met,
        missed_since=step if at.met or not at.judged else at.missed_since,
        held=max(at.held or 0.0, at.window_eps) if met else at.held,
    )
