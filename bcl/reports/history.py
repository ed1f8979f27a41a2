"""How an agent came about: training runs, decisions, learning curves, and what all of it took."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcl.curriculum_rules import Decision
from bcl.experiment.phases import budgets_of
from bcl.reports.data import Bar, BarState, Curve, Panel, Rise, Skip, Timeline
from bcl.reports.style import short_eps
from bcl.runs.directory import (
    PhaseFolder,
    RunDirectory,
    StageFolder,
    StoredDecision,
    TrainingFolder,
    times,
)

MOST_POINTS = 150  # of a curve; more cannot be told apart in a panel
EPISODES_A_POINT = 10  # at least, where the run has enough of them
FEWEST_POINTS = 4


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
    machine = run.about().get("machine")
    return Effort(
        runs=len(own),
        before=len(before),
        steps=sum(training.steps() for training in own),
        seconds=sum(training.seconds() for training in own),
        machine=str(machine.get("device", "")) if isinstance(machine, dict) else "",
    )


def read_timeline(path: Path) -> Timeline | None:
    """All stages one after the other; none before the first row of metrics."""
    run = RunDirectory(path)
    history = _History(run.result().get("policy"))
    for stage in run.stages():
        if stage.strategy == "none":
            history.add_training(stage)
        elif stage.strategy == "paced":
            history.add_paced(stage)
        else:
            history.add_curriculum(stage)
    return history.timeline()


class _History:
    """A timeline, stage by stage."""

    def __init__(self, reported: str | None) -> None:
        self._reported = reported
        self._bars = list[Bar]()
        self._skips = list[Skip]()
        self._panels = list[Panel]()
        self._rises = list[Rise]()
        self._target: float | None = None

    def timeline(self) -> Timeline | None:
        if not self._panels:
            return None
        bars, skips, panels = tuple(self._bars), tuple(self._skips), tuple(self._panels)
        return Timeline(bars, skips, panels, self._target, tuple(self._rises))

    def _ended(self) -> float:
        ends = [bar.end for bar in self._bars] + [skip.at for skip in self._skips]
        return max([0.0, *ends, *(rise.seconds[-1] for rise in self._rises)])

    def add_training(self, stage: StageFolder) -> None:
        if rows := stage.metrics():
            eps = 0.0 if stage.loss == "standard" else stage.config.curriculum.target
            began = self._ended()
            state, reported = self._state(stage, "kept")
            self._bars.append(Bar(stage.name, 0, 1, 1, eps, began, began + stage.seconds(), state, reported))
            self._panels.append(Panel(stage.name, (_curve(1, True, rows),), phase=False))

    def add_paced(self, stage: StageFolder) -> None:
        if rows := stage.paced_run.metrics():
            began = self._ended()
            every = -(-len(rows) // MOST_POINTS)
            seconds = tuple(began + time for time in times(rows)[::every])
            self._rises.append(Rise(seconds, tuple(row["eps"] for row in rows[::every])))
            self._panels.append(Panel(f"{stage.name}, paced", (_curve(1, True, rows),), phase=False))
            self._target = stage.config.curriculum.target

    def add_curriculum(self, stage: StageFolder) -> None:
        self._target = None if stage.strategy == "open" else stage.config.curriculum.target
        decided = {made.decision.phase.index: made for made in stage.decisions()}
        if not decided:
            return
        eps = budgets_of(stage)
        began = self._ended()
        spent = 0.0
        for phase in stage.phases():
            made = decided.get(phase.index)
            self._add_runs(stage, phase, made, eps, began, spent)
            if made:
                spent = made.seconds
                self._skips += _skips(made.decision, eps, began + spent)

    def _add_runs(
        self,
        stage: StageFolder,
        phase: PhaseFolder,
        made: StoredDecision | None,
        eps: Sequence[float],
        began: float,
        spent: float,
    ) -> None:
        trained = {k: rows for k, run in phase.runs().items() if (rows := run.metrics())}
        curves = list[Curve]()
        for place, (k, rows) in enumerate(trained.items(), 1):
            kept = made is not None and made.decision.kept == k
            candidate = made.decision.candidate(k) if made else None
            state: BarState = "kept" if kept else "not kept" if made else "undecided"
            state, reported = self._state(phase.run(k), state)
            if made and not candidate:  # it trained beside the others until they had decided
                state = "not needed"
            start, end = _span(stage, phase, k, made, spent)
            missed = candidate is not None and candidate.met is False
            which = (f"phase {phase.index}", phase.index, place, len(trained), eps[phase.index])
            self._bars.append(Bar(*which, began + start, began + end, state, reported, missed))
            curves.append(_curve(k, kept, rows))
        if curves:
            low, high = short_eps(eps[phase.index - 1]), short_eps(eps[phase.index])
            title = f"phase {phase.index}: {low.removesuffix('/255') if '/' in high else low} to {high}"
            self._panels.append(Panel(title, tuple(curves), phase=True))

    def _state(self, run: TrainingFolder, state: BarState) -> tuple[BarState, bool]:
        """With whether its agent is the one that is reported."""
        result = run.result()
        state = "diverged" if "diverged" in result else state if result else "unfinished"
        return state, bool(self._reported) and result.get("policy") == self._reported


def _span(
    stage: StageFolder, phase: PhaseFolder, k: int, made: StoredDecision | None, spent: float
) -> tuple[float, float]:
    """When a run of a phase began and ended, on the clock of its stage, as stored. What was cancelled ended with the
    decision; of version 0.1, and of what is under way, the beginning is found by the time spent training."""
    run = phase.run(k)
    result = run.result()
    start = stage.on_clock(result.get("began"))
    end = stage.on_clock(result.get("ended"))
    if end is None:
        end = phase.clock_after(k)
    if end is None and made:
        end = made.seconds
    if start is None:
        start = spent if end is None else max(spent, end - run.seconds())
    return start, start + run.seconds() if end is None else end


def _skips(decision: Decision, eps: Sequence[float], at: float) -> Iterator[Skip]:
    """From what the agent was trained up to, to the largest budget that it was robust to and that training leaves out."""
    index = decision.phase.index
    following = decision.next
    if following is None:
        tried = [one for one in decision.tried if one.by == "score" and one.eps > eps[index]]
        robust = [one.eps for one in tried if one.robust]
        following = len(eps) if eps[-1] in robust else index + 1
    if following > index + 1:
        yield Skip(at, eps[index], eps[following - 1], following - index - 1)


def _curve(run: int, kept: bool, rows: Sequence[dict[str, Any]]) -> Curve:
    def points(name: str) -> list[tuple[float, float, float]]:
        return [(row["step"], row[name], row.get("episodes") or 1.0) for row in rows if row.get(name) is not None]

    return Curve(run, kept, *_pooled(points("return")), *_pooled(points("return_attacked")))


def _pooled(points: Sequence[tuple[float, float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Steps and returns of (step, mean return, episodes), averaged over stretches with enough episodes.

    Games that start together end in the order of their length, and long ones are not like short ones: a row of metrics with one
    late episode says little.
    """
    if not points:
        return (), ()
    total = sum(episodes for *_, episodes in points)
    enough = max(total / MOST_POINTS, min(EPISODES_A_POINT, total / FEWEST_POINTS))
    stretches, left = [np.empty((0, 3))], total
    for point in points:
        if stretches[-1][:, 2].sum() >= enough <= left:
            stretches.append(np.empty((0, 3)))
        stretches[-1] = np.vstack([stretches[-1], point])
        left -= point[2]
    means = [np.average(stretch[:, :2], axis=0, weights=stretch[:, 2]) for stretch in stretches]
    steps, returns = np.transpose(means).tolist()
    return tuple(steps), tuple(returns)
