"""What a report is made of: everything collected from files, nothing drawn."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bcl.attacks import Attack
from bcl.evaluation import Breaking, Evaluation, Score
from bcl.evaluation.score import lowest

BarState = Literal["kept", "not kept", "undecided", "diverged", "unfinished", "not needed"]
"""`not needed`: it trained beside a run that was good enough, so that no decision names it."""


@dataclass(frozen=True)
class Published:
    """What the paper has for this recipe on this game at one budget."""

    eps: float
    mean: float
    sem: float


@dataclass(frozen=True)
class Bar:
    """One training run on the timeline."""

    name: str
    phase: int
    """0: a stage before the curriculum."""
    run: int
    """Which of the phase's, from 1."""
    of: int
    """How many runs trained in the phase."""
    eps: float
    """The budget trained up to."""
    start: float
    """Seconds since the first run began, time without work left out."""
    end: float
    state: BarState
    reported: bool
    """It is the agent that the report is about."""
    missed: bool = False
    """It did not meet the thresholds of its phase."""


@dataclass(frozen=True)
class Skip:
    """Budgets that needed no training."""

    at: float
    """Seconds, as in `Bar`."""
    low: float
    """The budget the agent was trained up to."""
    high: float
    """The largest budget skipped."""
    budgets: int
    """How many were skipped."""


@dataclass(frozen=True)
class Rise:
    """The budget of a paced run while it trained."""

    seconds: tuple[float, ...]
    """As in `Bar`."""
    eps: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """The returns of one training run while it trained."""

    run: int
    kept: bool
    steps: tuple[float, ...]
    returns: tuple[float, ...]
    """Of episodes that no adversary disturbed."""
    attacked_steps: tuple[float, ...] = ()
    attacked: tuple[float, ...] = ()
    """Of those in which one did, where `attack.in_play` is set."""


@dataclass(frozen=True)
class Panel:
    """The runs of one stage or phase."""

    title: str
    curves: tuple[Curve, ...]
    phase: bool
    """Of a curriculum."""


@dataclass(frozen=True)
class Timeline:
    """How the agent came about."""

    bars: tuple[Bar, ...]
    skips: tuple[Skip, ...]
    panels: tuple[Panel, ...]
    target: float | None
    """The curriculum's; none without one, or where it is open-ended."""
    rises: tuple[Rise, ...] = ()
    """Of stages whose budget paces itself."""


@dataclass(frozen=True)
class Proof:
    """A certificate at one budget."""

    eps: float
    method: str
    acr: float
    gwc: float
    nominal: float
    episodes: int
    seed: int
    levels: str = ""
    """Procgen: `train` or `eval`."""
    whose: str = ""
    """Empty: the agent's."""


@dataclass(frozen=True)
class Frame:
    """One moment of play under attack."""

    step: int
    clean: np.ndarray
    """The observation, (C, H, W) or (D,)."""
    seen: np.ndarray
    """What the adversary made of it."""
    wanted: str
    """The action without attack."""
    taken: str
    screen: np.ndarray | None
    """(H, W, 3) for people, where the game renders."""


@dataclass(frozen=True)
class Frames:
    """Moments of one episode."""

    attack: Attack
    eps: float
    seed: int
    steps: int
    """Looked at."""
    changed: int
    """Of those, with another action than without attack."""
    dimensions: tuple[str, ...]
    """Names of a vector observation's dimensions; empty: they have none."""
    moments: tuple[Frame, ...]


@dataclass(frozen=True)
class Setting:
    """A setting that differs from the preset's."""

    stage: str
    name: str
    here: str
    preset: str


@dataclass(frozen=True)
class Repeat:
    """One of several whole runs."""

    name: str
    final_score: float | None
    """None: not finished."""
    shown: bool


@dataclass(frozen=True)
class Collected:
    """A whole report as data."""

    title: str
    source: str
    """The path that was given."""
    agent: str
    """The run or file that commands about its agent take; of repeats the one that is shown."""
    state: Literal["finished", "at work", "stopped", "policy"]
    """`policy`: a bare policy file."""
    verdict: str
    progress: tuple[str, ...]
    """Of an unfinished run: what is done, what is under way."""
    evaluations: tuple[Evaluation, ...]
    """The one to look at first; then others of the same agent."""
    published: tuple[Published, ...]
    timeline: Timeline | None
    proofs: tuple[Proof, ...]
    frames: Frames | None
    about: tuple[tuple[str, str], ...]
    """Recipe, learner, seed and the like."""
    settings: tuple[Setting, ...]
    provenance: tuple[tuple[str, str], ...]
    repeats: tuple[Repeat, ...]
    started_with: str = ""
    """The version that the run was started with, where this one is another."""
    start: str = ""
    """What the agent that training began from is called; empty: there is none."""
    breaking: Breaking | None = None
    """The smallest budget that breaks the agent, where somebody looked for it."""

    @property
    def undercut(self) -> tuple[Score, ...]:
        """The lowest scores within each budget of the other evaluations, where they are lower than the first's."""
        if not self.evaluations:
            return ()
        first, *others = self.evaluations
        scores = [s for other in others if other.levels == first.levels for s in other.scores if s.eps > 0]
        found = dict[Score, None]()  # in the order of their budgets
        for eps, known in first.worst_within.items():
            within = [s for s in scores if s.eps <= eps]
            if within and lowest(within).mean < known.mean:
                found[lowest(within)] = None
        return tuple(found)
