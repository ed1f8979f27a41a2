"""The data of `bcl.curriculum`: what decides, and what was decided."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final, Generic, Literal, TypeVar

from bcl.config import CurriculumConfig
from bcl.errors import ConfigError

P = TypeVar("P")
RunNumber = int | Literal["incumbent"]  # k = 1..K, or the policy that the phase started from
INCUMBENT: Final = "incumbent"
MOST_BUDGETS = 1000
LEARNED = 0.8  # share of the expected return, counted from the floor


@dataclass(frozen=True, kw_only=True)
class Rules(CurriculumConfig):
    """The curriculum's settings, by default NCL's (each budget in turn, one run each), and the budgets."""

    eps: tuple[float, ...]
    """eps_0 < eps_1 < ... < eps_L, as `budgets` lists them."""
    scored_at: tuple[float, ...] = ()
    """Budgets of the final score by which the best policy counts; empty: it is the last that met its thresholds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        thresholds = [t for t in (self.nominal_threshold, self.attacked_threshold) if t is not None]
        both_above = len(thresholds) == 2 and min(thresholds) > (0.0 if self.adaptive else self.floor)
        if self.skip > 0 and self.attacked_threshold is None:
            raise ConfigError("curriculum: skipping needs a threshold under attack", "set attacked_threshold")
        if self.failed_phases and not thresholds and not self.ratchet:
            raise ConfigError("curriculum: giving up needs a threshold", "set one, or the ratchet")
        if self.value == "normalised" and not both_above:
            raise ConfigError("curriculum: normalised values need both thresholds, above the floor", "set both")

    def in_returns(self, play: Callable[[float], float]) -> "Rules":
        """Adaptive thresholds (the paper's future work) as returns; `play`: the bootstrap's return by budget."""
        if not self.adaptive:
            return self
        scale = above_floor(self, play(0.0))
        thresholds = {
            name: self.floor + share * scale
            for name in ("nominal_threshold", "attacked_threshold")
            if (share := getattr(self, name)) is not None
        }
        return replace(self, adaptive=False, **thresholds)


def above_floor(rules: CurriculumConfig, nominal: float) -> float:
    """How far above the floor the start's nominal return is, of which adaptive thresholds are shares."""
    scale = nominal - rules.floor
    if scale <= 0:
        plays = f"the start's nominal return {nominal:g} is not above the floor {rules.floor:g}"
        hint = "start anew in another --out with a lower --curriculum.floor, --init the last stage's policy.safetensors"
        raise ConfigError(f"{plays}, so no share of it can be a threshold", hint)
    return scale


def refuse_weak_start(rules: CurriculumConfig, nominal: float) -> None:
    """Where thresholds are shares of the start's nominal return, and it plays badly; `nominal`: on episodes that begin
    as the game has it, like those behind `expected_return`."""
    if not rules.adaptive:
        return
    scale = above_floor(rules, nominal)
    expected = rules.expected_return
    if expected is not None and scale < LEARNED * (expected - rules.floor):
        plays = f"the start's nominal return {nominal:g} is far below the {expected:g} that agents of this game reach"
        hint = (
            "start anew in another --out with another --seed, more steps, --init or --curriculum.expected_return none"
        )
        raise ConfigError(f"{plays}, so shares of it are no thresholds", hint)


@dataclass(frozen=True)
class Phase:
    """What to train: `runs` times from the same policy, the budget rising from `start` = eps_{i-1} to `eps` = eps_i."""

    index: int
    start: float
    eps: float
    runs: int


@dataclass(frozen=True)
class Candidate:
    """One policy a phase could keep."""

    run: RunNumber
    met: bool | None
    """Whether it met the thresholds at the phase's budget; none: there are none."""
    value: float | None
    """V_k; none where there was nothing to choose from."""
    scores: dict[float, float]
    """Returns by budget, as far as the phase needed them."""

    @classmethod
    def from_dict(cls, data: Any) -> "Candidate":
        """See Decision; JSON has no numbers as keys."""
        return cls(**data | {"scores": {float(eps): score for eps, score in data["scores"].items()}})


@dataclass(frozen=True)
class Tried:
    """EvalRobust at one budget; at 0 the nominal condition."""

    eps: float
    score: float
    robust: bool
    by: Literal["score", "training attack"] = "score"


@dataclass(frozen=True)
class Decision:
    """All that was decided after a phase, as plain data; phase 0 is the bootstrap. Either `next` or `stop` is set."""

    phase: Phase
    thresholds: tuple[float | None, float | None]
    candidates: tuple[Candidate, ...]
    kept: RunNumber
    best_phase: int
    tried: tuple[Tried, ...]
    next: int | None
    stop: str | None

    @classmethod
    def from_dict(cls, data: Any) -> "Decision":
        """What `dataclasses.asdict` and JSON made of it; raises KeyError or TypeError for anything else."""
        nominal, attacked = data["thresholds"]
        typed = {
            "phase": Phase(**data["phase"]),
            "thresholds": (nominal, attacked),
            "candidates": tuple(Candidate.from_dict(one) for one in data["candidates"]),
            "tried": tuple(Tried(**one) for one in data["tried"]),
        }
        return cls(**data | typed)

    def candidate(self, run: RunNumber) -> Candidate | None:
        """That of a run, if it was one."""
        return next((one for one in self.candidates if one.run == run), None)


@dataclass(frozen=True)
class CurriculumResult(Generic[P]):
    """How a curriculum ended."""

    policy: P
    """Algorithm 1's: what the last phase kept."""
    best: P
    """The best on the path, bootstrap included (see `Rules.scored_at`): what NCL and open-ended rows report."""
    best_phase: int
    stopped: str
    decisions: tuple[Decision, ...]


def budgets(start: float, target: float | None, increment: float) -> tuple[float, ...]:
    """eps_0..eps_L: start, start + increment, ..., exactly the target; open-ended (none) up to 1, where images end."""
    end = 1.0 if target is None else target
    low, high, step = map(_fraction, (start, end, increment))
    if not (low < high and step > 0):
        hint = "start below the target" if step > 0 else "give a larger curriculum.increment"
        raise ConfigError(f"no budgets from {start:g} to {end:g} in steps of {increment:g}", hint)
    if (high - low) / step > MOST_BUDGETS:
        what = f"{float((high - low) / step):.3g} budgets from {start:g} to {end:g} in steps of {increment:g}"
        raise ConfigError(f"{what} are too many", "give a larger curriculum.increment")
    between = range(1, ceil((high - low) / step - Fraction(1, 10**6)))  # a rounding below the target is the target
    return (start, *(risen(start, increment, k) for k in between), end)


def risen(start: float, increment: float, times: int) -> float:
    """A budget that rose so often."""
    return float(_fraction(start) + times * _fraction(increment))


def _fraction(eps: float) -> Fraction:
    """As floats, 9/255 + 24/255 is not 33/255, and 3 * 0.025 not 0.075: they would be other files and labels."""
    return Fraction(eps).limit_denominator(10**9)
