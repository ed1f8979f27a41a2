"""A stage that did not learn says so wherever its run is told about."""

from pathlib import Path

import numpy as np
import pytest

from bcl import experiment
from bcl.config import resolve_stages
from bcl.experiment import Dispatcher, Verdict
from bcl.experiment.status import first_and_last, learning_flag, rose, status
from bcl.reports.collect import collect
from bcl.runs import store
from bcl.runs.directory import TrainingFolder
from bcl.runs.executors import Watch
from bcl.runs.results import Flag
from bcl.settings import parse_settings

Row = dict[str, float | None]
SMALL = [
    *(
        "--network.hidden=16",
        "--dqn.num_envs=8",
        "--dqn.batch_size=16",
        "--dqn.samples_per_step=4",
        "--dqn.log_steps=200",
    ),
    *("--dqn.buffer_size=2000", "--dqn.replay_initial=32", "--evaluation.episodes=2"),
]


SHORT = "it has too few episodes or rows of metrics to tell whether it learned"


def row(mean: float | None, episodes: float, sd: float | None = 0.0) -> Row:
    return {"return": mean, "return_sd": None if mean is None else sd, "episodes": episodes}


def told(folder: Path, rows: list[Row], parent: str = "") -> str:
    """What is said of a finished stage with these rows."""
    store.write_bytes(folder / "metrics.jsonl", b"")
    for number, one in enumerate(rows, 1):
        store.append_row(folder / "metrics.jsonl", {"step": number, **one})
    store.write_json(folder / "result.json", {"policy": "x", "parent": parent})
    found = learning_flag(TrainingFolder(folder))
    return found.message if found else ""


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row(0, 64)] * 8, "returns did not rise (0 in its first 128 episodes, 0 in its last 128 episodes)"),
        ([row(21, 100, 9), row(23, 100, 9)], "(21 in its first 100 episodes, 23 in its last 100 episodes)"),  # by 1.6 errors
        ([row(21, 100, 9), row(25, 100, 9)], ""),  # by 3.1
        ([row(20, 100), row(500, 100), row(20, 100)], "(20 in its first 100 episodes, 20 in its last"),  # learned, and lost it
        ([row(20, 100, 9), row(500, 4), row(500, 4), row(500, 4)], ""),  # good episodes are long, and few
        ([row(0, 100), row(0.01, 100)], ""),  # the first reward ever
        ([row(None, 0), row(-21, 2), row(None, 0), row(-21, 2)], "(-21 in its first 2 episodes"),
        ([row(None, 0), row(-21, 64)], SHORT),  # nothing to compare with
        ([row(None, 0)], SHORT),
        ([{"return": 0.0, "episodes": 9.0}] * 4, SHORT),  # of a version that kept no deviations
        ([], SHORT),
    ],
)  # fmt: skip
def test_the_rule_by_hand(tmp_path: Path, rows: list[Row], words: str) -> None:
    said = told(tmp_path, rows)
    assert words in said
    assert bool(said) == bool(words)


def test_a_stage_that_trains_on_from_an_agent_need_not_rise(tmp_path: Path) -> None:
    assert told(tmp_path, [row(500, 100)] * 4, parent="0123") == ""


def test_nothing_is_said_of_a_stage_under_way(tmp_path: Path) -> None:
    assert told(tmp_path, [row(0, 100)] * 4)
    (tmp_path / "result.json").unlink()
    assert learning_flag(TrainingFolder(tmp_path)) is None


def test_a_stage_whose_metrics_are_gone_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stages = resolve_stages("pong", recipe="at")
    experiment.create(run, stages, "cpu", None)
    vanilla = run / "stages" / "1-vanilla"
    assert told(vanilla, [row(-21, 100), row(20, 100)]) == ""
    assert status(run).lines == ("vanilla: trained",)
    (vanilla / "metrics.jsonl").unlink()
    words = "its metrics.jsonl is missing, so whether it learned cannot be told"
    assert learning_flag(TrainingFolder(vanilla)) == Flag("unknown-learning", words)
    assert status(run).lines == (f"vanilla: trained; {words}",)


def test_parts_are_pooled_as_if_all_episodes_were_known() -> None:
    draw = np.random.default_rng(0)
    rows = [draw.normal(number, 2, size=30) for number in range(10)]
    found = first_and_last([row(float(r.mean()), 30, float(r.std())) for r in rows])
    assert found is not None
    for part, episodes in zip(found, (rows[:3], rows[-3:]), strict=True):  # a quarter of 300 is 75: three rows
        whole = np.concatenate(episodes)
        assert part == pytest.approx((whole.mean(), whole.std(), 90))


def test_noise_is_not_taken_for_learning() -> None:
    draw, taken = np.random.default_rng(0), 0
    for _ in range(300):
        episodes = draw.exponential(22, size=(20, 60))  # as CartPole's returns of random play
        found = first_and_last([row(float(e.mean()), 60, float(e.std())) for e in episodes])
        assert found is not None
        taken += rose(*found)
    assert taken <= 3  # 0.13 % are expected


def finished(run: Path, game: str, *flags: str) -> tuple[Verdict, str, list[str]]:
    """Train vanilla; the verdict, its sentence and what was said meanwhile."""
    said: list[str] = []
    stages = resolve_stages(game, recipe="vanilla", settings=parse_settings([*SMALL, *flags]))
    experiment.create(run, stages, "cpu", None)
    verdict = experiment.finish(run, Dispatcher(watch=Watch(say=said.append)))
    return verdict, verdict.sentence(stages[-1][1]), said


def test_a_run_that_never_sees_another_reward_says_so_everywhere(tmp_path: Path) -> None:
    verdict, sentence, said = finished(tmp_path, "MountainCar-v0", "--dqn.steps=4800", "--dqn.samples_per_step=1")
    words = "returns did not rise (-200 in its first 8 episodes, -200 in its last 8 episodes)"
    [flag] = verdict.evaluation.flags
    assert str(flag) == f"no-learning: stage vanilla: {words}"
    assert f"flag {flag}" in said
    assert sentence.endswith(f"; stage vanilla: {words}")
    assert status(tmp_path).lines == (f"vanilla: trained; {words}",)
    page = collect(tmp_path)
    assert f"stage vanilla: {words}" in page.verdict
    assert flag in page.evaluations[0].flags


def test_a_first_stage_that_did_not_learn_is_told_with_the_curriculum_after_it(tmp_path: Path) -> None:
    flags = [*SMALL, "--dqn.steps=160", "--dqn.log_steps=40", "--curriculum.judged_by=fgsm", "--curriculum.max_runs=1"]
    stages = resolve_stages("cartpole", recipe="ncl-at", settings=parse_settings([*flags, "--curriculum.target=0.1"]))
    experiment.create(tmp_path, stages, "cpu", None)
    experiment.finish(tmp_path, Dispatcher())
    (tmp_path / "result.json").unlink()
    metrics = tmp_path / "stages" / "1-vanilla" / "metrics.jsonl"
    metrics.unlink()
    for step in range(4):
        store.append_row(metrics, {"step": step, **row(9, 100)})
    verdict = experiment.finish(tmp_path, Dispatcher())  # only read, and told
    words = "returns did not rise (9 in its first 100 episodes, 9 in its last 100 episodes)"
    assert str(verdict.evaluation.flags[0]) == f"no-learning: stage vanilla: {words}"
    assert verdict.curriculum


def test_a_run_that_learns_says_nothing(tmp_path: Path) -> None:
    learns = ("--dqn.steps=6000", "--dqn.batch_size=64", "--dqn.samples_per_step=16", "--dqn.exploration_steps=2000")
    verdict, sentence, _ = finished(tmp_path, "cartpole", *learns)
    assert not [flag for flag in verdict.evaluation.flags if flag.name == "no-learning"]
    assert "did not rise" not in sentence
    assert status(tmp_path).lines == ("vanilla: trained",)
