"""A budget that follows the play: it rises while returns hold, waits while they do not, steps back when they stay low.

Pure: a learner hands over the returns of the episodes that ended, and takes the budget. Not in the paper, whose budget
follows a fixed ramp inside each run.
"""

from dataclasses import asdict, dataclass, replace
from math import floor
from typing import Any

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
    """Budget lost then."""
    increment: float
    """Distance between the budgets whose holding is told, so that a snapshot is kept."""
    episodes: int
    """Episodes behind one judgement, of each kind that has a threshold."""
    nominal: float | None = None
    """Return of clean copies that counts as held; none: no such condition."""
    attacked: float | None = None
    """Return of copies under attack that counts as held; none: no such condition."""
    adaptive: bool = False
    """Read both as shares of the first judged return of clean copies, counted from `floor`."""
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.nominal is None and self.attacked is None:
            raise ConfigError("a paced budget needs a threshold", "set curriculum.nominal_threshold")
        if not 0 <= self.start < self.target:
            raise ConfigError(f"no pace from {self.start:g} to {self.target:g}", "give a start below the target")


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
    met: bool = False
    """Whether the last judgement found the thresholds met; before the first one the budget waits."""
    since: int = 0
    """Agent step since which they are missed."""
    window_eps: float = 0.0
    """Budget at the beginning of the episodes not judged yet."""
    clean: Played = NONE_PLAYED
    driven: Played = NONE_PLAYED
    held: float | None = None
    """Largest budget at whose beginning a judged window met the thresholds; none: not yet."""
    nominal: float | None = None
    """Thresholds as returns; of an adaptive pace known after the first judgement."""
    attacked: float | None = None


def begin(pace: Pace) -> Paced:
    """Before the first step."""
    thresholds = (None, None) if pace.adaptive else (pace.nominal, pace.attacked)
    return Paced(pace.start, window_eps=pace.start, nominal=thresholds[0], attacked=thresholds[1])


def advance(pace: Pace, at: Paced, step: int, clean: Played, driven: Played = NONE_PLAYED) -> Paced:
    """The budget from `step` on, given what ended since the last call: episodes of clean and of driven copies."""
    at = replace(at, clean=at.clean + clean, driven=at.driven + driven)
    judged = _enough(pace, at)
    if judged:
        at = _judge(pace, at, step)
    passed = step - at.step
    if at.met:
        eps = min(pace.target, at.eps + pace.rise * passed)
    elif judged and step - at.since >= pace.patience:
        eps = max(pace.start, at.eps - pace.step_back)
        at = replace(at, since=step)
    else:
        eps = at.eps
    at = replace(at, eps=eps, step=step)
    return replace(at, clean=NONE_PLAYED, driven=NONE_PLAYED, window_eps=eps) if judged else at


def _enough(pace: Pace, at: Paced) -> bool:
    wants_clean = pace.nominal is not None or (pace.adaptive and at.attacked is None)
    enough_clean = not wants_clean or at.clean.episodes >= pace.episodes
    return enough_clean and (pace.attacked is None or at.driven.episodes >= pace.episodes)


def _judge(pace: Pace, at: Paced, step: int) -> Paced:
    if pace.adaptive and at.nominal is None and at.attacked is None:
        at = _with_thresholds(pace, at)
    met = at.nominal is None or at.clean.mean >= at.nominal
    met = met and (at.attacked is None or at.driven.mean >= at.attacked)
    held = max(at.held or 0.0, at.window_eps) if met else at.held
    since = at.since if at.met is met and not met else step
    return replace(at, met=met, since=since, held=held)


def _with_thresholds(pace: Pace, at: Paced) -> Paced:
    scale = at.clean.mean - pace.floor

    def as_return(share: float | None) -> float | None:
        return None if share is None else pace.floor + share * scale

    return replace(at, nominal=as_return(pace.nominal), attacked=as_return(pace.attacked))


class Pacer:
    """A pace and where it stands, as a learner uses them."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._at = begin(pace)
        self._told = 0

    @property
    def eps(self) -> float:
        """The budget in force."""
        return self._at.eps

    @property
    def held(self) -> float:
        """The largest budget that was held."""
        return self._at.held or 0.0

    def observe(self, step: int, clean: Played, driven: Played) -> None:
        """Episodes that ended since the last call."""
        self._at = advance(self._pace, self._at, step, clean, driven)

    def newly_held(self) -> int | None:
        """The largest number of increments above the start that was held, once each; none: nothing new."""
        steps = floor((self.held - self._pace.start) / self._pace.increment + 1e-9)
        if steps <= self._told:
            return None
        self._told = steps
        return steps

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self._at) | {"told": self._told}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        values = dict(state)
        self._told = values.pop("told")
        played = {name: Played(**values.pop(name)) for name in ("clean", "driven")}
        self._at = Paced(**values, **played)
