"""How an agent was trained: training runs, decisions, learning curves, and what all of it took."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bcl.curriculum_rules import Decision
from bcl.experiment.phases import budgets_of
from bcl.runs.directory import PhaseFolder, RunDirectory, StageFolder, StoredDecision, TrainingFolder, times
from bcl.settings import format_eps

MOST_POINTS = 150  # of a curve; more cannot be told apart in a panel
EPISODES_A_POINT = 10  # at least, where the run has enough of them
FEWEST_POINTS = 4
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
    """How the agent was trained."""

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
class Effort:
    """What one whole run took, counted as the paper counts."""

    runs: int
    """Training runs of the recipe's own stages: what the paper's table of runs counts."""
    before: int
    """Training runs of its bootstrap."""
    steps: int
    """Agent steps of all of `runs`."""
    seconds: float
    """Time that `runs` spent training, one after the other."""
    machine: str

    @property
    def seconds_per_run(self) -> float:
        return self.seconds / self.runs if self.runs else 0.0


def effort(path: Path) -> Effort:
    """Of every training run that a decision names."""
    run = RunDirectory(path)
    own = [training for stage in run.stages() if stage.own for training in stage.training_runs()]
    before = [training for stage in run.stages() if not stage.own for training in stage.training_runs()]
    return Effort(
        runs=len(own),
        before=len(before),
        steps=sum(training.steps() for training in own),
        seconds=sum(training.seconds() for training in own),
        machine=str(run.provenance.machine.get("device", "")),
    )


def read_timeline(path: Path) -> Timeline | None:
    """All stages one after the other; none before the first row of metrics."""
    run = RunDirectory(path)
    agent = run.fingerprint
    timeline = Timeline()
    for stage in run.stages():
        if stage.strategy == "none":
            _add_training(timeline, stage, agent)
        elif stage.strategy == "paced":
            _add_paced(timeline, stage)
        else:
            _add_curriculum(timeline, stage, agent)
    return timeline if timeline.panels else None


def _add_training(timeline: Timeline, stage: StageFolder, agent: str) -> None:
    if rows := stage.metrics():
        eps = 0.0 if stage.loss == "standard" else stage.config.curriculum.target
        began = timeline.ended
        state, reported = _state(stage, "kept", agent)
        timeline.bars.append(TimelineBar(0, 1, 1, eps, began, began + stage.seconds(), state, reported))
        timeline.panels.append(Panel(stage.name, (_curve(True, rows),), phase=False))


def _add_paced(timeline: Timeline, stage: StageFolder) -> None:
    if rows := stage.paced_run.metrics():
        began = timeline.ended
        every = -(-len(rows) // MOST_POINTS)
        seconds = tuple(began + time for time in times(rows)[::every])
        timeline.rises.append(Rise(seconds, tuple(row["eps"] for row in rows[::every])))
        timeline.panels.append(Panel(f"{stage.name}, paced", (_curve(True, rows),), phase=False))
        timeline.target = stage.config.curriculum.target


def _add_curriculum(timeline: Timeline, stage: StageFolder, agent: str) -> None:
    timeline.target = None if stage.strategy == "open" else stage.config.curriculum.target
    decided = {made.decision.phase.index: made for made in stage.decisions()}
    if not decided:
        return
    eps = budgets_of(stage)
    began = timeline.ended
    spent = 0.0
    for phase in stage.phases():
        made = decided.get(phase.index)
        trained = {k: rows for k, run in phase.runs().items() if (rows := run.metrics())}
        curves = list[Curve]()
        for place, (k, rows) in enumerate(trained.items(), 1):
            kept = made is not None and made.decision.kept == k
            candidate = made.decision.candidate(k) if made else None
            state, reported = _state(phase.run(k), "kept" if kept else "not kept" if made else "undecided", agent)
            if made and not candidate:  # it trained beside the others until they had decided
                state = "not needed"
            start, end = _span(stage, phase, k, made, spent)
            missed = candidate is not None and candidate.met is False
            which = (phase.index, place, len(trained), eps[phase.index])
            timeline.bars.append(TimelineBar(*which, began + start, began + end, state, reported, missed))
            curves.append(_curve(kept, rows))
        if curves:
            low = format_eps(eps[phase.index - 1])
            high = format_eps(eps[phase.index])
            title = f"phase {phase.index}: {low.removesuffix('/255') if '/' in high else low} to {high}"
            timeline.panels.append(Panel(title, tuple(curves), phase=True))
        if made:
            spent = made.seconds
            timeline.skips += _skips(made.decision, eps, began + spent)


def _state(run: TrainingFolder, state: BarState, agent: str) -> tuple[BarState, bool]:
    """With whether it is the run of the agent that is reported."""
    state = "diverged" if run.diverged else state if run.finished else "unfinished"
    return state, bool(agent) and run.fingerprint == agent


def _span(
    stage: StageFolder, phase: PhaseFolder, k: int, made: StoredDecision | None, spent: float
) -> tuple[float, float]:
    """When a run began and ended, on the clock of its stage; in version 0.1 by the time spent training."""
    run = phase.run(k)
    began, ended = map(stage.on_clock, run.span)
    ends = (ended, phase.clock_after(k), made.seconds if made else None)
    end = next((one for one in ends if one is not None), None)
    start = began
    if start is None:
        start = spent if end is None else max(spent, end - run.seconds())
    return start, start + run.seconds() if end is None else end


def _skips(decision: Decision, eps: Sequence[float], at: float) -> Iterator[Skip]:
    """From the budget trained up to, to the largest one that the agent was robust to without training."""
    index = decision.phase.index
    following = decision.next
    if following is None:
        robust = [one.eps for one in decision.tried if one.by == "score" and one.eps > eps[index] and one.robust]
        following = len(eps) if eps[-1] in robust else index + 1
    if following > index + 1:
        yield Skip(at, eps[index], eps[following - 1])


def _curve(kept: bool, rows: Sequence[dict[str, Any]]) -> Curve:
    def points(name: str) -> list[tuple[float, float, float]]:
        return [(row["step"], row[name], row.get("episodes") or 1.0) for row in rows if row.get(name) is not None]

    return Curve(kept, *_pooled(points("return")), *_pooled(points("return_attacked")))


def _pooled(points: Sequence[tuple[float, float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Steps and returns of (step, mean return, episodes), averaged over stretches with enough episodes: one late
    episode says little."""
    if not points:
        return (), ()
    total = sum(episodes for *_, episodes in points)
    enough = max(total / MOST_POINTS, min(EPISODES_A_POINT, total / FEWEST_POINTS))
    left = total
    stretches: list[list[tuple[float, float, float]]] = [[]]
    for point in points:
        if sum(episodes for *_, episodes in stretches[-1]) >= enough <= left:
            stretches.append([])
        stretches[-1].append(point)
        left -= point[2]
    means = [np.average(stretch, axis=0, weights=[episodes for *_, episodes in stretch]) for stretch in stretches]
    steps, returns, _ = np.transpose(means).tolist()
    return tuple(steps), tuple(returns)
