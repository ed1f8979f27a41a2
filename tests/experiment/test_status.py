"""What is told of a curriculum."""

from pathlib import Path

import pytest

from bcl import experiment
from bcl.config import resolve_stages
from bcl.curriculum_rules import INCUMBENT, Candidate, Decision, Phase, Tried
from bcl.experiment import Dispatcher
from bcl.experiment.phases import phase_line
from bcl.experiment.status import incumbent
from bcl.runs import store
from bcl.runs.directory import RunDirectory, StageFolder, StoredDecision
from bcl.runs.executors import Watch
from bcl.settings import parse_settings

# One run a phase, and thresholds that nothing so small can meet.
TINY = [
    *("--network.hidden=16", "--dqn.steps=320", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *("--dqn.buffer_size=200", "--dqn.replay_initial=32", "--dqn.ramp_steps=300", "--evaluation.episodes=2"),
    *("--curriculum.increment=0.05", "--curriculum.target=0.1", "--bootstrap=vanilla"),
    *("--curriculum.runs=1", "--curriculum.adaptive=false", "--curriculum.nominal_threshold=400"),
    "--curriculum.attacked_threshold=400",
]


def make(run: Path) -> Path:
    stages = resolve_stages("cartpole", recipe="bcl-mos-at", settings=parse_settings(TINY))
    experiment.create(run, stages, "cpu", None)
    return run


def line(*runs: dict[float, float], tried: tuple[tuple[float, float, bool], ...] = ()) -> str:
    phase = Phase(1 if runs else 0, 0.0, 0.1, len(runs))
    candidates = tuple(Candidate(k, None, None, scores) for k, scores in enumerate(runs, 1))
    tries = tuple(Tried(*one) for one in tried)
    decision = Decision(phase, (None, None), candidates, 1, 0, tries, None, "enough")
    return phase_line(decision, (0.0, 0.1), 30.0)


def test_the_line_of_a_phase_shows_returns_without_and_under_attack() -> None:
    both = line({0.0: 990.0, 0.1: 124.0}, {0.0: -1e9, 0.1: -1e9}, {0.0: 7.0})
    assert both == "phase 1  0.1  runs nominal 990 diverged 7  attacked 124 diverged -  kept 1  stop: enough  30 s"
    # The best on the path is chosen by other budgets than the phase's.
    elsewhere = line({0.0: 990.0, 0.03: 124.0, 0.06: 500.0}, {0.0: 7.0})
    assert "runs nominal 990 7  attacked within 0.06 124 -  kept 1" in elsewhere
    assert "runs nominal 990  kept 1" in line({0.0: 990.0})  # BCL-RADIAL plays no attack to choose
    assert "runs nominal -  kept 1" in line({})
    bootstrap = line(tried=((0.0, 500.0, True), (0.1, 450.0, True), (0.2, 124.0, False)))
    assert bootstrap.startswith("bootstrap  nominal 500  attacked 124 at 0.2  robust at 0.1  stop")
    assert line().startswith("bootstrap  stop")


def test_a_run_that_misses_the_nominal_threshold_is_shown_with_its_return_under_attack(tmp_path: Path) -> None:
    said: list[str] = []
    experiment.finish(make(tmp_path), Dispatcher(watch=Watch(say=said.append)))
    stage = RunDirectory(tmp_path).stages()[1]
    phases = [words for words in said if words.startswith("phase")]
    assert len(phases) == 2
    for words, made in zip(phases, stage.decisions()[1:], strict=True):
        phase = made.decision.phase
        evals = store.read_metrics(stage.phase(phase.index).run(1).results.scores.path / "scores.jsonl")
        nominal, attacked = sorted(evals, key=lambda score: score["eps"])
        assert attacked["eps"] == phase.eps
        assert f"runs nominal {nominal['mean']:.4g}  attacked {attacked['mean']:.4g}  kept 1" in words


def test_the_best_so_far_is_told_by_its_worst_within_the_largest_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path)
    for scores, words in (
        ({0.0: 500.0, 0.03: 124.0, 0.1: 326.0}, "nominal 500, 124 within 0.1"),
        ({0.0: 500.0}, "nominal 500"),
        ({}, ""),
    ):
        candidate = Candidate(INCUMBENT, None, None, scores)
        made = Decision(Phase(0, 0.0, 0.0, 0), (None, None), (candidate,), INCUMBENT, 0, (), 1, None)
        monkeypatch.setattr(StageFolder, "decisions", lambda stage, made=made: [StoredDecision(made, 1.0)])
        assert incumbent(run) == words
