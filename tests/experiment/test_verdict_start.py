"""A verdict compares the agent with the one that its training began from, and says where that was better."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import bcl
from bcl import experiment
from bcl.config import Config, resolve, resolve_stages
from bcl.envs import make_env
from bcl.errors import StoreError
from bcl.evaluation import Plan, read_evaluations
from bcl.evaluation.evaluation import append_score
from bcl.experiment import Dispatcher, Verdict
from bcl.experiment.verdict import BEFORE_LAST, kept_in_words
from bcl.policies import Policy, PolicySpec
from bcl.policies.files import fingerprint
from bcl.reports import figures
from bcl.reports.collect import collect
from bcl.reports.page import page
from bcl.runs import store
from bcl.runs.directory import RunDirectory
from bcl.runs.executors import InThisProcess, Job, JobsDone, Watch
from bcl.settings import parse_settings

SMALL = [
    *("--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4", "--dqn.steps=160"),
    *("--dqn.buffer_size=2000", "--dqn.replay_initial=32", "--dqn.ramp_steps=100", "--evaluation.episodes=4"),
    *("--evaluation.eps=0.06", "--dqn.learning_rate=1"),
]
FILE = "init/policy.safetensors"
pytestmark = pytest.mark.usefixtures("short_games")


def balancing() -> Policy:
    """Pushes the cart to where the pole leans."""
    game = resolve("cartpole").game
    env = make_env(game, 1)
    policy = Policy(PolicySpec("plain-mlp", (4,), 2, env.low, env.high, (), game=game)).eval()
    with torch.no_grad():
        policy.network.model[1].weight.copy_(torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.1, 0.3, 1.0, 1.0]]))
        policy.network.model[1].bias.zero_()
    return policy


class Batches(InThisProcess):
    """Notes how many jobs come together."""

    width = 2

    def __init__(self) -> None:
        self.__dict__["sizes"] = []

    def run(self, jobs: Sequence[Job], *arguments: Callable[..., object]) -> JobsDone:
        self.__dict__["sizes"].append(len(jobs))
        return super().run(jobs, *arguments)  # type: ignore[arg-type]


def spoiled(run: Path, dispatcher: Dispatcher) -> tuple[Verdict, Config]:
    """Training with a learning rate of 1, from an agent that balances for the whole episode."""
    stages = resolve_stages("cartpole", recipe="at", settings=parse_settings(SMALL))
    if not run.exists():
        experiment.create(run, stages, "cpu", balancing())
    return experiment.finish(run, dispatcher), stages[-1][1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, short_games: None) -> Path:
    run = tmp_path_factory.mktemp("start") / "run"
    spoiled(run, Dispatcher())
    return run


def test_an_agent_that_training_made_worse_is_told_with_the_file_of_the_better_one(run: Path) -> None:
    verdict, config = spoiled(run, Dispatcher())
    assert verdict.evaluation.start is not None
    assert (verdict.evaluation.start.name, verdict.evaluation.start.file) == ("--init", str(run / FILE))
    assert [(s.attack, s.eps, s.seed) for s in verdict.evaluation.start.scores] == [
        (s.attack, s.eps, s.seed) for s in verdict.evaluation.scores
    ]
    assert verdict.evaluation.start.scores[0].mean == 60
    [flag] = [flag for flag in verdict.evaluation.flags if flag.name == "worse-than-start"]
    assert f"it has {verdict.evaluation.scores[0].mean:.4g} without attack instead of 60" in flag.message
    assert flag.message.endswith(f"there the agent it started from is the better choice: {run / FILE}")
    sentence = verdict.sentence(config)
    assert "; its start (--init) has 60 without attack and " in sentence
    assert str(run / FILE) in sentence
    assert (run / FILE).exists()
    assert f"the better choice: {FILE}" in str(RunDirectory(run).result()["flags"])  # a run may be moved


def test_it_is_said_why_the_first_stage_is_not_number_1(run: Path) -> None:
    said = list[str]()
    (run / "result.json").unlink()
    spoiled(run, Dispatcher(watch=Watch(say=said.append)))
    assert said[0] == "the agent of --init takes the place of stage 1"
    assert (run / "stages" / "2-at").exists()


def test_it_is_on_the_page(run: Path) -> None:
    c = collect(run)
    assert "its start (--init) has 60 without attack" in c.verdict
    assert f"the better choice: {run / FILE}" in c.verdict
    start = c.evaluations[0].start
    assert start is not None
    assert start.scores[0].mean == 60
    assert "worse-than-start" in [flag.name for flag in c.evaluations[0].flags]
    markup = page(c)
    assert '<th scope="col">start (\N{NON-BREAKING HYPHEN}\N{NON-BREAKING HYPHEN}init), worst within</th>' in markup
    assert "start (--init), worst within" in markup  # the figure


def test_episodes_with_varied_starts_are_not_held_against_those_of_the_game(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    results = RunDirectory(copy).results
    [played] = read_evaluations(results.scores, "")
    plan = Plan(played.game, played.episodes, played.seed, starts="varied")
    for score in played.scores:
        varied = dataclasses.replace(score, prefixes=(3,) * played.episodes)
        append_score(results.scores, plan.conditions(played.agent, "cpu"), varied)
    found = {one.starts: one for one in collect(copy).evaluations}
    assert found["game"].start is not None
    assert found["varied"].start is None
    assert "4 episodes with varied starts, evaluation seed" in page(collect(copy))
    assert "4 episodes with varied starts, seed" in found["varied"].title


def test_it_is_in_the_terminal(run: Path, in_folder: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = in_folder("resume", str(run))
    assert code == 0
    assert "(start: --init 60 ± 0)" in out
    assert "flag worse-than-start: " in out
    assert f"start (--init): {run / FILE}" in out
    assert out.count(f"the better choice: {run / FILE}") == 2  # the flag and the verdict


def test_certificates_are_of_the_last_evaluations_episodes_or_say_what_those_are(
    run: Path, tmp_path: Path, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    seed = spoiled(run, Dispatcher())[0].evaluation.seed
    copy = shutil.copytree(run, tmp_path / "run")
    words = ("certify", str(copy), "--eps", "0.01", "--method", "ibp")
    same = "these are the episodes of the agent's last evaluation\n"
    _, out, _ = in_folder(*words)
    assert same in out
    assert f"seed {seed}" in out
    for other in (("--seed", "0"), ("--episodes", "1")):
        _, out, _ = in_folder(*words, *other)
        assert f"the agent's last evaluation is of 4 episodes, seed {seed}\n" in out
    in_folder("attack", str(copy), "--attack", "fgsm", "--eps", "0.01", "--starts", "varied")
    _, out, _ = in_folder(*words)
    assert same in out
    [proof] = [row for _, row in RunDirectory(copy).results.certificates.read("") if row["starts"] == "varied"]
    [nominal] = [
        row for _, row in RunDirectory(copy).results.scores.read("") if row["starts"] == "varied" and not row["eps"]
    ]
    assert proof["nominal"] == nominal["mean"]


def test_scores_of_the_start_are_kept_and_not_played_again(run: Path) -> None:
    file = run / "init" / "evals" / "scores.jsonl"
    assert len(store.read_metrics(file)) >= 2
    before = file.stat().st_mtime_ns
    (run / "result.json").unlink()
    spoiled(run, Dispatcher())
    assert file.stat().st_mtime_ns == before


def test_both_agents_are_played_by_one_batch_of_jobs(run: Path, tmp_path: Path) -> None:
    batches = Batches()
    spoiled(tmp_path / "run", Dispatcher(batches))
    assert batches.__dict__["sizes"] == [1, 4]  # the training; two jobs for each agent


def test_judging_a_run_again_judges_its_start(run: Path) -> None:
    found = bcl.evaluate(run, attacks="pgd-3", eps=0.05, episodes=4)
    assert found.start is not None
    assert [(s.attack, s.eps) for s in found.start.scores] == [(s.attack, s.eps) for s in found.scores]
    assert "worse-than-start" in [flag.name for flag in found.flags]
    assert f"worst within 0.05: {found.worst_within[0.05].mean:.4g} (start: --init " in str(found)
    assert found.start.name == "--init"
    assert bcl.evaluate(run / "best" / "policy.safetensors", attacks="pgd-3", eps=0.05, episodes=4).start is None
    assert [e.start is not None for e in collect(run).evaluations] == [True, True]


def test_what_a_recipe_starts_from(tmp_path: Path) -> None:
    after_radial = ["radial", "vanilla"]
    expected = {"vanilla": [], "at": ["vanilla"], "bcl-mos-at": after_radial, "bcl-radial+at": after_radial}
    for recipe, names in expected.items():
        run = tmp_path / recipe
        experiment.create(run, resolve_stages("pong", recipe=recipe), "cpu", None)
        assert RunDirectory(run).began_from() == []  # not trained yet
        for folder in (run / "stages").iterdir():
            store.write_json(folder / "result.json", {"policy": folder.name})
        assert [name for name, _ in RunDirectory(run).began_from()] == names
    mos = RunDirectory(tmp_path / "bcl-mos-at")  # the curriculum kept its bootstrap: it is held against vanilla
    assert [name for name, _ in mos.began_from(trained="2-radial")] == ["vanilla"]


@pytest.fixture(scope="module")
def after_radial(tmp_path_factory: pytest.TempPathFactory, short_games: None) -> Path:
    """A run whose vanilla agent balances, but what RADIAL made of it does not; it went on from there."""
    folder = tmp_path_factory.mktemp("after-radial")
    recipe = folder / "again.toml"
    recipe.write_text('bootstrap = "radial"\n[[stages]]\nloss = "at"\n')
    run = folder / "run"
    stages = resolve_stages("cartpole", recipe=str(recipe), settings=parse_settings(SMALL))
    experiment.create(run, stages, "cpu", None)
    vanilla, radial, _ = RunDirectory(run).stages()
    falling = balancing()
    with torch.no_grad():
        falling.network.model[1].weight.neg_()
    for stage, policy in ((vanilla, balancing()), (radial, falling)):
        bcl.save(policy, stage.policy)
        stage.finish({"policy": fingerprint(policy)})
    experiment.finish(run, Dispatcher())
    return run


def test_after_radial_a_verdict_compares_with_the_vanilla_agent_too(after_radial: Path) -> None:
    run = RunDirectory(after_radial)
    assert run.result()["compared_with"] == ["radial", "vanilla"]
    verdict = Verdict.read(run)
    radial, vanilla = verdict.evaluation.began_from
    assert [[(s.attack, s.eps, s.seed) for s in one.scores] for one in (radial, vanilla)] == [
        [(s.attack, s.eps, s.seed) for s in verdict.evaluation.scores]
    ] * 2
    assert vanilla.scores[0].mean == 60
    nominal = radial.scores[0].mean
    assert nominal < 60
    sentence = verdict.sentence(run.config)
    assert f"; its start (radial) has {nominal:.4g} without attack and " in sentence
    assert "; the one before it (vanilla) has 60 without attack and " in sentence
    [flag] = [flag for flag in verdict.evaluation.flags if flag.name == "worse-than-start"]
    assert "without attack instead of 60" in flag.message
    assert flag.message.endswith(f"the better choice: {after_radial / 'stages/1-vanilla/policy.safetensors'}")
    assert flag.message in sentence


def test_both_starts_are_in_the_table_the_page_and_the_terminal(
    after_radial: Path, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    evaluation = Verdict.read(RunDirectory(after_radial)).evaluation
    named = [row[0] for row in evaluation.table().totals]
    assert named == ["worst at exactly", "worst within", "start (radial)", "start (vanilla)"]
    markup = page(collect(after_radial))
    for name in ("radial", "vanilla"):
        assert f'<th scope="col">start ({name}), worst within</th>' in markup
    assert "Gray: the same of its start, radial and vanilla." in markup
    [axes] = figures.return_against_budget(evaluation, None, 860).axes
    drawn = {line.get_label(): line for line in axes.get_lines()}
    both = [drawn[f"start ({name}), worst within"] for name in ("radial", "vanilla")]
    assert [line.get_ydata()[0] for line in both] == [one.scores[0].mean for one in evaluation.began_from]
    assert len({str(line._unscaled_dash_pattern) for line in both}) == 2
    _, out, _ = in_folder("resume", str(after_radial))
    assert f"(start: radial {evaluation.began_from[0].scores[0]}, vanilla 60 ± 0)" in out
    for name in ("2-radial", "1-vanilla"):
        assert f"start ({name[2:]}): {after_radial / 'stages' / name / 'policy.safetensors'}" in out


def test_another_evaluation_and_a_comparison_have_both_starts_too(after_radial: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(after_radial, tmp_path / "run")
    found = bcl.evaluate(copy, attacks="pgd-3", eps=0.05, episodes=4)
    assert [start.name for start in found.began_from] == ["radial", "vanilla"]
    assert [start["name"] for start in found.to_dict()["began_from"]] == ["radial", "vanilla"]
    assert [[start.name for start in e.began_from] for e in collect(copy).evaluations] == [["radial", "vanilla"]] * 2
    assert "worse-than-start" in str(bcl.compare(copy))


def test_nothing_of_either_start_is_played_again(after_radial: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(after_radial, tmp_path / "run")
    (copy / "result.json").unlink()
    batches = Batches()
    experiment.finish(copy, Dispatcher(batches))
    assert sum(batches.__dict__["sizes"]) == 0


@pytest.mark.parametrize(
    ("stored", "names"), [(["vanilla"], ["vanilla"]), ("radial", ["radial"]), (None, []), (..., ["radial"])]
)
def test_results_of_earlier_versions_compare_with_whom_they_did(
    after_radial: Path, tmp_path: Path, stored: object, names: list[str]
) -> None:
    run = RunDirectory(shutil.copytree(after_radial, tmp_path / "run"))
    row = run.result() | {"compared_with": stored}
    run.finish({key: value for key, value in row.items() if value is not ...})
    assert [start.name for start in Verdict.read(run).evaluation.began_from] == names


def test_a_result_that_compares_with_an_agent_that_is_not_there_is_refused(after_radial: Path, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(after_radial, tmp_path / "run"))
    run.finish(run.result() | {"compared_with": ["nobody"]})
    with pytest.raises(StoreError, match=r"result.json' does not fit .*nobody.*; delete it"):
        Verdict.read(run)


def test_what_is_trained_without_attacks_after_a_defence_is_attacked_in_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "softened.toml"
    file.write_text('[[stages]]\nloss = "at"\n[[stages]]\nloss = "standard"\n')
    stages = resolve_stages("cartpole", recipe=str(file), settings=parse_settings(SMALL))
    experiment.create(tmp_path / "run", stages, "cpu", None)
    verdict = experiment.finish(tmp_path / "run", Dispatcher())
    assert {score.eps for score in verdict.evaluation.scores} > {0.0}


def test_an_agent_that_is_its_start_is_compared_with_nothing(tmp_path: Path) -> None:
    flags = [
        "--curriculum.start=0.01",
        "--curriculum.target=0.02",
        "--curriculum.increment=0.01",
        "--curriculum.runs=1",
        "--curriculum.judged_by=fgsm",
        "--curriculum.expected_return=none",
    ]
    stages = resolve_stages("cartpole", recipe="bcl-ratchet-at", settings=parse_settings([*SMALL, *flags]))
    experiment.create(tmp_path, stages, "cpu", balancing())
    verdict = experiment.finish(tmp_path, Dispatcher())
    assert (verdict.kept, verdict.evaluation.start) == ("its start (--init)", None)
    assert not (tmp_path / "init" / "evals").exists()


def test_attack_takes_the_budget_that_the_verdict_reached(
    run: Path, in_folder: Callable[..., tuple[int, str, str]]
) -> None:
    reached = spoiled(run, Dispatcher())[0].reached
    assert reached > 0
    _, out, _ = in_folder("attack", str(run), "--episodes", "1", "--json")
    budgets = {score["eps"] for score in json.loads(out)["scores"]}
    assert budgets == {0.0, reached, *RunDirectory(run).config.evaluation.eps}


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ("the bootstrap", "its start (radial)"),
        ("the start", "its start (radial)"),
        ("the agent that held 0.1", "the agent that held 0.1"),
    ],
)
def test_an_agent_that_no_training_improved_is_called_by_its_name(after_radial: Path, kept: str, expected: str) -> None:
    run = RunDirectory(after_radial)
    assert kept_in_words(run, run.stages()[1].agent(), kept) == expected


def test_one_that_the_last_of_several_stages_left_as_it_was_is_not_the_start(after_radial: Path) -> None:
    run = RunDirectory(after_radial)
    assert kept_in_words(run, run.stages()[2].agent(), "the start") == BEFORE_LAST
    verdict = Verdict.read(run)
    kept = dataclasses.replace(verdict, curriculum="target reached", kept=BEFORE_LAST)
    assert f"the last stage gave nothing better, it is {BEFORE_LAST};" in kept.sentence(run.config)


def test_where_radials_agent_comes_out_vanilla_is_the_one_before_it(after_radial: Path) -> None:
    verdict = Verdict.read(RunDirectory(after_radial))
    alone = dataclasses.replace(verdict.evaluation, began_from=verdict.evaluation.began_from[1:])
    kept = dataclasses.replace(verdict, evaluation=alone, curriculum="3 phases failed", kept="its start (radial)")
    sentence = kept.sentence(RunDirectory(after_radial).config)
    assert "; the one before it (vanilla) has 60 without attack" in sentence
    assert "; training gave nothing better, it is its start (radial); " in sentence


def test_a_start_whose_file_is_gone_is_told(after_radial: Path, tmp_path: Path) -> None:
    run = shutil.copytree(after_radial, tmp_path / "run")
    file = run / "stages" / "1-vanilla" / "policy.safetensors"
    file.unlink()
    found = bcl.evaluate(run, attacks=["pgd-10"], eps=[0.06], episodes=2)
    assert [one.name for one in found.began_from] == ["radial"]
    assert f"not compared with '{file}', which is missing" in str(found)
    assert f"not compared with '{file}', which is missing" in found.table().notes


def test_without_attack_the_table_has_the_starts_too(after_radial: Path) -> None:
    found = bcl.evaluate(after_radial, eps=[0], episodes=2)
    assert [row[0] for row in found.table().totals] == ["start (radial)", "start (vanilla)"]
