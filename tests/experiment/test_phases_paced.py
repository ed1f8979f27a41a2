"""A paced stage from command to verdict, on a small game."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bcl
from bcl.config import resolve, resolve_stages
from bcl.errors import BclError, ConfigError, TrainingError
from bcl.evaluation import read_evaluations
from bcl.experiment.phases import look_at_start, pace_of
from bcl.experiment.status import status
from bcl.experiment.verdict import SELECTION, plan_of
from bcl.learners.distill import DistillLearner
from bcl.learners.learner import Learner
from bcl.learners.pacing import NONE_PLAYED, advance, begin
from bcl.policies.files import fingerprint
from bcl.reports import figures
from bcl.reports.history import effort, read_timeline
from bcl.runs.directory import RunDirectory

SMALL_GAMES = ("cartpole", "acrobot", "lunar_lander")
TINY = {
    "network": {"hidden": [16]},
    "dqn": {
        "steps": 1_000, "num_envs": 4, "batch_size": 16, "replay_initial": 64, "samples_per_step": 4, "log_steps": 100,
        "exploration_start": 0.8, "exploration_end": 0.8, "buffer_size": 2_000,
    },
    "curriculum": {
        "target": 0.1, "increment": 0.025, "rise_steps": 200, "pace_episodes": 1, "nominal_threshold": 0.1,
        "attacked_threshold": 0.1, "judged_by": ["fgsm"], "expected_return": "none",
    },
    "evaluation": {"episodes": 2, "eps": [0.05]},
}  # fmt: skip


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Path:
    out = tmp_path_factory.mktemp("paced") / "run"
    bcl.train("cartpole", recipe="paced-at", out=out, say=said.append, **TINY)
    return out


def test_budgets_are_said_as_people_write_them(run: Path, said: list[str]):
    assert (run / "stages/2-at/run/snapshots/003.safetensors").exists()
    [line] = [line for line in said if line.startswith("the agent that held 0.075")]  # the float 3 * 0.025 is longer
    assert re.match(r"the agent that held 0\.075: \S+ at 0, \S+ at 0\.05$", line)
    assert "stage 2: curriculum, at from 0 to 0.1" in said


def test_the_best_of_what_was_kept_comes_out(run: Path):
    stage = RunDirectory(run).stages()[-1]
    about = stage.result()
    assert "candidates" not in about  # their scores lie with each of them
    found = [*read_evaluations(stage.results.scores, ""), *read_evaluations(stage.paced_run.results.scores, "")]
    values = {
        judged.agent: judged.nominal.mean + judged.worst[0.05].mean for judged in found if judged.starts == "varied"
    }
    assert len(values) > 2
    assert stage.paced_run.agent().fingerprint in values
    assert values[about["policy"]] == max(values.values())


def test_the_budget_of_the_rows_rises_and_report_and_status_open(run: Path):
    rows = [json.loads(line) for line in (run / "stages" / "2-at" / "run" / "metrics.jsonl").read_text().splitlines()]
    budgets = [row["eps"] for row in rows]
    assert budgets[0] == 0
    assert 0.01 < max(budgets) <= 0.1 + 1e-6  # float32
    assert bcl.report(run).file.exists()
    assert any(line.startswith("at: paced, it is the") for line in status(run).lines)
    assert effort(run).runs == 1
    assert effort(run).steps == 1_000


def test_damaged_weights_are_not_handed_on(run: Path, tmp_path: Path):
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    good = (damaged / "best" / "policy.safetensors").read_bytes()
    (damaged / "result.json").unlink()
    weights = damaged / "stages" / "2-at" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5] + b"12345")
    with pytest.raises(BclError, match="damaged"):
        bcl.resume(damaged)
    assert (damaged / "best" / "policy.safetensors").read_bytes() == good


def test_status_tells_the_budget_of_the_moment(run: Path, tmp_path: Path):
    stopped = tmp_path / "stopped"
    shutil.copytree(run, stopped)
    for file in (stopped / "result.json", stopped / "stages" / "2-at" / "result.json"):
        file.unlink()
    metrics = stopped / "stages" / "2-at" / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    [line] = [line for line in status(stopped).lines if "paced" in line]
    last = rows[-1]
    found = f"at: paced, eps {last['eps']:.3g} now, {max(row['eps'] for row in rows):.3g} at most; its last check "
    needed = f"{last['nominal_threshold']:.4g} clean and {last['attacked_threshold']:.4g} attacked"
    assert line == f"{found}{'met' if last['met'] else 'missed'} {needed}"
    assert rows[0]["met"] is None  # no whole episode yet, or none that was checked
    begun = tmp_path / "begun"
    shutil.copytree(stopped, begun)
    (begun / "stages" / "2-at" / "run" / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert "at: paced, eps 0 now, 0 at most" in status(begun).lines


def test_the_report_draws_the_budget(run: Path):
    rows = [json.loads(line) for line in (run / "stages" / "2-at" / "run" / "metrics.jsonl").read_text().splitlines()]
    timeline = read_timeline(run)
    assert timeline
    [rise] = timeline.rises
    assert rise.eps == tuple(row["eps"] for row in rows)
    assert [*rise.seconds] == sorted(rise.seconds)
    assert rise.seconds[0] >= timeline.bars[-1].end  # vanilla came before
    axes = figures.timeline(timeline, 800).axes[0]
    heights = [round(float(y), 6) for line in axes.lines for y in np.atleast_1d(line.get_ydata())]
    top = len(axes.get_yticks()) - 1  # the row of the target
    drawn = np.interp(max(rise.eps), [float(t.get_text()) for t in axes.get_yticklabels()], range(top + 1))
    assert round(float(drawn), 6) in heights


def test_a_finished_run_is_only_read(run: Path):
    before = (run / "result.json").read_bytes()
    bcl.resume(run)
    assert (run / "result.json").read_bytes() == before


def test_the_pace_of_radial_does_not_wait_for_attacked_copies():
    radial, at = (resolve("pong", recipe=recipe) for recipe in ("paced-radial", "paced-at"))
    assert pace_of(radial, "radial", 0.0).attacked_threshold is None
    assert pace_of(at, "at", 0.0).attacked_threshold == at.curriculum.attacked_threshold
    assert pace_of(radial, "radial", 0.0).gentle_below == pytest.approx(1 / 255)
    ppo = resolve("cartpole", recipe="paced-at", settings={"algo": "ppo", "curriculum": {"target": 0.1}})
    assert pace_of(ppo, "at", 0.0).attacked_threshold == ppo.curriculum.attacked_threshold == 0.7
    assert pace_of(ppo, "radial", 0.0).attacked_threshold is None
    alone = dataclasses.replace(ppo, ppo=dataclasses.replace(ppo.ppo, in_play=0.0))
    assert pace_of(alone, "at", 0.0).attacked_threshold is None


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.parametrize("game", ["pong", "freeway", "bank_heist", "road_runner", "fruitbot", "jumper", *SMALL_GAMES])
@pytest.mark.parametrize("recipe", ["paced-at", "paced-radial", "paced-radial+at", "radial+paced-at"])
def test_a_budget_that_never_waits_reaches_its_target_on_every_game(recipe: str, game: str, algo: str):
    for stage, config in resolve_stages(game, recipe=recipe, settings={"algo": algo}):
        if stage.strategy == "paced":
            pace = pace_of(config, stage.loss, config.curriculum.start)
            steps = config.learner(stage.loss).steps
            at = dataclasses.replace(begin(pace), met=True, checks=1)
            for step in range(steps // 100, steps + 1, steps // 100):
                at = advance(pace, dataclasses.replace(at, checked_at=step), step, NONE_PLAYED)
            assert at.eps == pace.target


def test_agents_that_held_a_budget_are_judged_where_training_diverges_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def exploding(learner, _means):
        if learner.pacer and learner.pacer._told >= 1 and learner.step >= 900:
            raise TrainingError("training diverged", "give a lower dqn.learning_rate")

    monkeypatch.setattr(Learner, "_refuse_divergence", exploding)
    bcl.train("cartpole", recipe="paced-at", out=tmp_path / "run", **TINY)
    stage = RunDirectory(tmp_path / "run").stages()[-1]
    outcome = stage.outcome()
    assert outcome.stopped in ("training diverged", "target reached")
    assert outcome.kept == "the start" or outcome.kept.startswith("the agent that held")
    assert stage.paced_run.diverged
    before = stage.result()
    assert bcl.resume(tmp_path / "run")
    assert stage.result() == before


def test_a_training_that_diverges_before_a_budget_was_held_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def exploding(learner, _means):
        if learner.pacer:
            raise TrainingError("training diverged", "give a lower dqn.learning_rate")

    monkeypatch.setattr(Learner, "_refuse_divergence", exploding)
    with pytest.raises(TrainingError, match="diverged"):
        bcl.train("cartpole", recipe="paced-at", out=tmp_path / "run", **TINY)


def test_a_return_given_as_an_adaptive_threshold_is_refused(tmp_path: Path):
    for value in (400, -3):
        wrong = TINY | {"curriculum": TINY["curriculum"] | {"nominal_threshold": value}}
        with pytest.raises(ConfigError, match="is no share of the start's return"):
            bcl.train("cartpole", recipe="paced-at", out=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_pace_without_thresholds_is_refused(tmp_path: Path):
    wrong = TINY | {"curriculum": {"nominal_threshold": "none", "attacked_threshold": "none", "target": 0.1}}
    with pytest.raises(ConfigError, match="needs a threshold"):
        bcl.train("cartpole", recipe="paced-at", out=tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("in_play", "found"), [(0.1, "no copy plays under attack"), (0.9, "every copy plays under")])
def test_a_pace_that_waits_for_copies_that_are_not_there_is_refused(tmp_path: Path, in_play: float, found: str):
    with pytest.raises(ConfigError, match=found):
        bcl.train("cartpole", recipe="paced-at", out=tmp_path / "run", **TINY, attack={"in_play": in_play})
    assert not (tmp_path / "run").exists()


def test_a_second_student_has_the_first_ones_teacher_and_begins_at_its_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []
    make = DistillLearner.__init__

    def looking(learner, policy, env, config, task, teacher=None):
        student = fingerprint(policy)
        make(learner, policy, env, config, task, teacher)
        seen.append((student, fingerprint(learner.teacher), config.box, task.start))

    monkeypatch.setattr(DistillLearner, "__init__", looking)
    distill = {
        "steps": 600, "num_envs": 4, "batch_size": 16, "samples_per_step": 4, "buffer_size": 500, "log_steps": 100,
    }  # fmt: skip
    curriculum = {"certified_threshold": 0.0, **TINY["curriculum"]}
    del curriculum["attacked_threshold"]
    settings = TINY | {"distill": distill, "curriculum": curriculum}
    bcl.train("cartpole", recipe="distilled+bounds", out=tmp_path / "run", **settings)
    vanilla, attacks, _ = RunDirectory(tmp_path / "run").stages()
    teacher = vanilla.agent().fingerprint
    assert attacks.outcome().reached > 0
    assert seen == [(teacher, teacher, 0.0, 0.0), (attacks.agent().fingerprint, teacher, 1.0, 0.0)]
    seen.clear()
    del curriculum["expected_return"]
    without_dqn = {"distill": distill, "curriculum": curriculum, "evaluation": TINY["evaluation"]}
    student = '[[stages]]\nloss = "distill"\nstrategy = "paced"\n'
    recipe = tmp_path / "thrice.toml"
    recipe.write_text(student + 2 * f"{student}same_teacher = true\n")
    bcl.train("cartpole", recipe=str(recipe), init=vanilla.policy, out=tmp_path / "thrice", **without_dqn)
    assert [found[1] for found in seen] == [teacher] * 3


@pytest.mark.parametrize("recipe", ["paced-at", "paced-radial", "distilled"])
def test_a_start_that_plays_badly_is_refused_before_it_is_trained(tmp_path: Path, recipe: str):
    settings = TINY | {"curriculum": TINY["curriculum"] | {"expected_return": 500.0}}
    if recipe == "paced-radial":  # no copy plays under attack
        del settings["curriculum"]["attacked_threshold"]
    with pytest.raises(ConfigError, match=r"the start's nominal return .* is far below the 500"):
        bcl.train("cartpole", recipe=recipe, out=tmp_path / "run", **settings)
    stage = RunDirectory(tmp_path / "run").stages()[-1]
    assert not stage.paced_run.metrics_file.exists()
    # What agents of the game reach is known of its own starts; agents are chosen by varied ones, which are harder.
    assert [one.starts for one in read_evaluations(stage.results.scores, "")] == ["game"]
    assert plan_of(stage.config, SELECTION).starts == "varied"


def test_what_a_start_can_play_is_seen_in_whole_episodes_from_the_games_own_starts():
    config = resolve("road_runner", recipe="paced-at")
    played = []

    class Scores:
        def scores(self, _name, _agent, plan, _cells):
            played.append((plan.starts, plan.game.max_steps))
            return [SimpleNamespace(mean=10_000.0)]

    with pytest.raises(ConfigError, match="far below"):
        look_at_start(config.curriculum, config, None, Scores())
    assert played == [("game", 10_000)]
    assert plan_of(config, SELECTION).game.max_steps == 4_000


def test_episodes_that_agents_are_chosen_by_may_be_cut_off():
    ours, paper = (resolve("pong", recipe=recipe) for recipe in ("paced-at", "bcl-mos-at"))
    steps = {
        config.recipe: [plan_of(config, purpose).game.max_steps for purpose in (SELECTION, "evaluation")]
        for config in (ours, paper)
    }
    assert steps == {"paced-at": [4_000, 10_000], "bcl-mos-at": [10_000, 10_000]}
    short = resolve("pong", recipe="paced-at", settings={"evaluation": {"max_steps": 500}})
    assert plan_of(short, SELECTION).game.max_steps == 500
