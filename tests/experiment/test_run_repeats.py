"""Repeats: by what their median is taken, and stages that all go on from the median of one before."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bcl
from bcl import experiment
from bcl.attacks import SUITES, UniformNoise
from bcl.config import resolve, resolve_stages
from bcl.errors import StoreError
from bcl.experiment import Dispatcher
from bcl.experiment.verdict import final_score_in_words
from bcl.policies.files import fingerprint, load
from bcl.reports.collect import collect
from bcl.runs import store
from bcl.runs.directory import Repeats
from bcl.runs.executors import Watch
from bcl.settings import parse_settings
from tests.experiment.test_phases import TINY

Cli = Callable[..., tuple[int, str, str]]
EASY = [
    *("--curriculum.adaptive=false", "--curriculum.nominal_threshold=1", "--curriculum.max_runs=1"),
    *("--curriculum.runs=1", "--curriculum.min_runs=1", "--evaluation.eps=0.03"),
]


def runs_in(group: Path) -> list[Path]:
    return [run.path for run in Repeats(group).runs()]


# --- the median


def test_the_output_says_by_what_the_median_is_taken(in_folder: Cli) -> None:
    words = ("cartpole", "--recipe", "at", "--repeats", "2", "--out", "all", "--device", "cpu")
    plain = [flag for flag in TINY if not flag.startswith(("--curriculum.", "--attack."))]
    code, out, _ = in_folder("train", *words, *plain, "--evaluation.eps=0.03,0.06", "--evaluation.suite=pgd-30")
    assert code == 0
    assert "final score: mean return without attack + mean over 0.03, 0.06 under PGD-30\n" in out
    summary = store.read_json(Path("all/result.json"))
    assert summary["final_score_is"] == "mean return without attack + mean over 0.03, 0.06 under PGD-30"
    finals = " ".join(f"{final:.4g}" for final in summary["final_scores"].values())
    assert f"final scores of 2 repeats: {finals}, IQM " in out
    store.write_json(Path("all/result.json"), summary | {"iqm": 608.9166666666666})
    assert in_folder("status", "all")[1].splitlines()[-2].endswith(f"; median {summary['median']}, IQM 608.9")
    code, out, _ = in_folder("train", "cartpole", "--repeats", "2", "--out", "plain", "--device", "cpu", *plain)
    assert (code, "final score: mean return without attack\n" in out) == (0, True)


def test_the_papers_games_take_the_papers_median() -> None:
    atari, procgen = (resolve(game, recipe="bcl-mos-at") for game in ("pong", "fruitbot"))
    assert final_score_in_words(atari, attacked=True) == (
        "mean return without attack + mean over 10/255, 20/255, 25/255 under the worst of PGD-30, RI-FGSM, "
        "Multi 1000, Multi-T 1000"
    )
    assert final_score_in_words(procgen, attacked=True) == (
        "mean return without attack + mean over 10/255, 15/255, 20/255 under PGD-30, training levels + unlimited levels"
    )


def test_on_procgen_both_sets_of_levels_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("procgen")
    monkeypatch.setattr("bcl.experiment.verdict.attacks_named", lambda suite: (UniformNoise(),))  # PGD takes a minute
    flags = [
        *("--ppo.steps=32", "--ppo.num_envs=2", "--ppo.rollout=8", "--ppo.batch_size=16", "--ppo.epochs=1"),
        *("--evaluation.episodes=2", "--evaluation.eps=10/255", "--curriculum.target=1/255"),
    ]
    stages = resolve_stages("fruitbot", recipe="at", settings=parse_settings(flags))
    experiment.create(tmp_path, stages, "cpu", None)
    played_together = []
    monkeypatch.setattr("bcl.evaluation.suite.cells_at_once", lambda policy, plan: 6)
    monkeypatch.setattr(
        "bcl.evaluation.suite.SuiteProgress.begin",
        lambda self, cells: played_together.append([cell.where for cell in cells]) or (lambda steps, finished: None),
    )
    verdict = experiment.finish(tmp_path, Dispatcher())
    assert played_together == 2 * [3 * [" on the training levels", " on unlimited levels"]]  # of two agents
    at = {score.eps: score.mean for score in verdict.evaluation.scores}
    assert verdict.unlimited is not None
    assert (verdict.evaluation.levels, verdict.unlimited.levels) == ("train", "eval")
    unlimited = {score.eps: score.mean for score in verdict.unlimited.scores}
    assert at.keys() == unlimited.keys() == {0.0, 1 / 255, 10 / 255}
    assert verdict.final_score == pytest.approx(sum(scores[0.0] + scores[10 / 255] for scores in (at, unlimited)))
    played = store.read_metrics(tmp_path / "evals" / "scores.jsonl")
    levels = {game["game"]["num_levels"]: [s["mean"] for s in played if s["game"] == game["game"]] for game in played}
    assert {*levels} == {200, 0}
    assert sorted(levels[0]) == sorted(unlimited.values())
    first, second = collect(tmp_path).evaluations
    assert (first.levels, second.levels) == ("train", "eval")
    assert first.note == second.note == "the run's own verdict"
    seed = verdict.evaluation.seed
    again = bcl.evaluate(tmp_path, attacks="noise", eps=["1/255", "10/255"], seed=seed, env_set="both", device="cpu")
    assert len(played_together) == 2  # all of it was stored by the verdict
    assert again.unlimited is not None
    for one, judged in ((again, verdict.evaluation), (again.unlimited, verdict.unlimited)):
        assert one.scores == judged.scores
        assert [start.scores for start in one.began_from] == [start.scores for start in judged.began_from]
        assert one.began_from


# --- stages that go on from the median


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three repeats of BCL-RADIAL+AT, trained up to the stage of which all go on from the median."""
    group = tmp_path_factory.mktemp("repeats")
    for seed in range(3):
        stages = resolve_stages(
            "cartpole", recipe="bcl-radial+at", settings={**parse_settings([*TINY, *EASY]), "seed": seed}
        )
        experiment.create(group / f"seed{seed}", stages, "cpu", None)
    Repeats(group).write([f"seed{seed}" for seed in range(3)])
    for run in runs_in(group):
        experiment.train_until_median(run, Dispatcher())
    return group


@pytest.fixture
def group(finished: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(finished, tmp_path / "all"))


def radial(run: Path) -> Path:
    return run / "stages" / "3-radial"


def test_stages_before_the_median_are_trained_and_no_others(group: Path) -> None:
    for run in runs_in(group):
        assert (radial(run) / "result.json").exists()
        assert not (run / "stages" / "4-at" / "phases").exists()
        assert not (run / "result.json").exists()


def test_the_median_is_by_the_final_score(group: Path) -> None:
    for run in runs_in(group):
        result = store.read_json(radial(run) / "result.json")
        kept = [row for file in radial(run).rglob("scores.jsonl") for row in store.read_metrics(file)]
        of_kept = [score for score in kept if score["agent"] == result["policy"]]
        quick = {s["eps"]: s["mean"] for s in of_kept if s["attack"] in ("none", repr(SUITES["quick"][0]))}
        assert result["final_score"] == pytest.approx(quick[0.0] + quick[0.03])


@pytest.mark.parametrize("finals", [(3.0, 1.0, 2.0), (1.0, 2.0, 3.0), (1.0, 2.0, 2.0)])
def test_all_repeats_go_on_from_the_median(group: Path, finals: tuple[float, ...]) -> None:
    repeats = Repeats(group).runs()
    runs = [run.path for run in repeats]
    for run, final in zip(runs, finals, strict=True):
        store.write_json(
            radial(run) / "result.json", store.read_json(radial(run) / "result.json") | {"final_score": final}
        )
    median = runs[finals.index(2.0)]
    experiment.share_median(experiment.shared_stages(repeats))
    assert experiment.shared_stages(repeats) == []
    for run in runs:
        assert (
            fingerprint(load(radial(run) / "median" / "policy.safetensors"))
            == store.read_json(radial(median) / "result.json")["policy"]
        )
        about = store.read_json(radial(run) / "median" / "result.json")
        assert (about["run"], [*about["final_scores"].values()]) == (median.name, [*finals])


def test_a_damaged_median_is_one_sentence(group: Path) -> None:
    repeats = Repeats(group).runs()
    runs = [run.path for run in repeats]
    experiment.share_median(experiment.shared_stages(repeats))
    file = radial(runs[0]) / "median" / "result.json"
    store.write_json(file, {"run": "seed1"})
    with pytest.raises(
        StoreError, match=r"result\.json' does not fit \(it has no 'policy'\); delete it, then 'bcl resume"
    ):
        experiment.finish(runs[0], Dispatcher())
    file.unlink()
    assert experiment.shared_stages(repeats)
    store.write_json(
        radial(runs[1]) / "result.json", {"policy": "x", "reached": 0.0, "stopped": "", "kept": "", "flags": []}
    )
    with pytest.raises(StoreError, match="without medians of stages; start anew"):
        experiment.share_median(experiment.shared_stages(repeats))


def test_the_command_line_trains_all_repeats_to_the_median_first(group: Path, in_folder: Cli) -> None:
    code, out, err = in_folder("resume", str(group / "seed0"), "--device", "cpu")
    assert (code, out) == (2, "")
    assert "goes on from the median of its repeats, and not all of them are as far; continue them together" in err
    assert f"bcl resume {group}" in err
    code, out, err = in_folder("resume", str(group), "--device", "cpu")
    assert code == 0
    median = store.read_json(radial(group / "seed0") / "median" / "result.json")
    assert err.count(f"stage 3: goes on from the agent of {median['run']}, the median of the repeats") == 3
    parents = set()
    for run in runs_in(group):
        first = store.read_json(run / "stages" / "4-at" / "phases" / "000" / "decision.json")["decision"]["phase"]
        assert first["eps"] == median["reached"]
        trained = [*(run / "stages" / "4-at" / "phases").glob("*/run1/policy.safetensors")]
        parents |= {load(file).spec.parent for file in trained}
    assert parents == {median["policy"]}
    agents = {fingerprint(load(run / "best" / "policy.safetensors")) for run in runs_in(group)}
    assert len(agents) == 3  # from one agent, with seeds of their own
    code, again, err = in_folder("resume", str(group), "--device", "cpu")
    assert (code, again) == (0, out)
    assert "up to the stage" not in err


def test_without_repeats_it_is_said_that_it_is_one_run(finished: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(finished / "seed0", tmp_path / "alone"))
    said: list[str] = []
    experiment.finish(alone, Dispatcher(watch=Watch(say=said.append)))
    assert "stage 3: goes on from this one run's agent; the paper's from the median of three (--repeats 3)" in said
    own = store.read_json(radial(alone) / "result.json")["policy"]
    [trained] = (alone / "stages" / "4-at" / "phases").glob("*/run1/policy.safetensors")
    assert load(trained).spec.parent == own
