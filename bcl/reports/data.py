"""What a report is made of: everything collected from files, nothing drawn."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from bcl.attacks import Attack
from bcl.evaluation import Breaking, Certificate, Evaluation, Score
from bcl.evaluation.evaluation import lowest
from bcl.evaluation.flags import Flag
from bcl.reports.published import PublishedRow

BarState = Literal["kept", "not kept", "undecided", "diverged", "unfinished", "not needed"]
"""`not needed`: it trained beside a run that was good enough, so that no decision names it."""


@dataclass(frozen=True)
class TimelineBar:
    """One training run on the timeline."""

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
    """Seconds, as in `TimelineBar`."""
    low: float
    """The budget the agent was trained up to."""
    high: float
    """The largest budget skipped."""


@dataclass(frozen=True)
class Rise:
    """The budget of a paced run while it trained."""

    seconds: tuple[float, ...]
    """As in `TimelineBar`."""
    eps: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """The returns of one training run while it trained."""

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


@dataclass
class Timeline:
    """How the agent came about."""

    bars: list[TimelineBar] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    rises: list[Rise] = field(default_factory=list)
    """Of stages whose budget paces itself."""
    target: float | None = None
    """The curriculum's; none without one, or where it is open-ended."""

    @property
    def ended(self) -> float:
        """Seconds, as in `TimelineBar`."""
        ends = [bar.end for bar in self.bars] + [skip.at for skip in self.skips]
        return max([0.0, *ends, *(rise.seconds[-1] for rise in self.rises)])


@dataclass(frozen=True)
class Proof(Certificate):
    """A certificate as a report shows it."""

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
    steps: int
    """Looked at."""
    changed: int
    """Of those, with another action than without attack."""
    dimensions: tuple[str, ...]
    """Names of a vector observation's dimensions; empty: they have none."""
    moments: tuple[Frame, ...]


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
    evaluations: tuple[Evaluation, ...]
    """The one to look at first; then others of the same agent."""
    proofs: tuple[Proof, ...]
    provenance: tuple[tuple[str, str], ...]
    progress: tuple[str, ...] = ()
    """Of an unfinished run: what is done, what is under way."""
    published: PublishedRow | None = None
    """The paper's row of this recipe on this game."""
    timeline: Timeline | None = None
    frames: Frames | None = None
    about: tuple[tuple[str, str], ...] = ()
    """Recipe, learner, seed and the like."""
    settings: tuple[tuple[str, str, str, str], ...] = ()
    """Those that differ from the preset's: stage, name, value here, value there."""
    repeats: tuple[tuple[str, float | None, bool], ...] = ()
    """Of several whole runs: name, final score (none: not finished), whether it is the one shown."""
    started_with: str = ""
    """The version that the run was started with, where this one is another."""
    breaking: Breaking | None = None
    """The smallest budget that breaks the agent, where it was searched for."""

    @property
    def further_flags(self) -> list[Flag]:
        """See `Evaluation.further_flags`, of the first one."""
        return self.evaluations[0].further_flags(self.evaluations[1:]) if self.evaluations else []

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
