"""The result of a run names the scores of its verdict, which lie with those of the agent; older results repeat them."""

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import bcl
from bcl.attacks import attacks_named
from bcl.errors import StoreError
from bcl.evaluation import cells
from bcl.experiment import Verdict
from bcl.reports.collect import collect
from bcl.runs import store
from bcl.runs.directory import RunDirectory

SMALL = {
    "network": {"hidden": [16]},
    "dqn": {
        "num_envs": 8, "batch_size": 16, "samples_per_step": 4, "steps": 400, "buffer_size": 2000, "replay_initial": 32,
        "ramp_steps": 300,
    },
    "evaluation": {"episodes": 3, "eps": [0.03, 0.06]},
}  # fmt: skip
NAMES = ("conditions", "attacks", "budgets")  # of the scores


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verdict") / "run"
    bcl.train("cartpole", recipe="at", out=out, **SMALL)
    return out


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(made, tmp_path / "run")))


def verdict_of(run: RunDirectory) -> Verdict:
    found = Verdict.read(run)
    assert found is not None
    return found


def test_a_finished_run_that_was_changed_is_not_taken_as_it_is(run: RunDirectory) -> None:
    assert bcl.resume(run.path).verdict == verdict_of(run)
    name = next(name for name in run.result()["files"] if name.endswith("metrics.jsonl"))
    with (run.path / name).open("a") as metrics:
        metrics.write("{}\n")
    with pytest.raises(StoreError, match=r"metrics.jsonl' was changed since the run ended"):
        bcl.resume(run.path)


def test_a_result_names_its_scores_and_does_not_repeat_them(run: RunDirectory) -> None:
    assert "returns" not in run.result_file.read_text()
    verdict = verdict_of(run)
    wanted = cells(attacks_named(run.config.evaluation.suite), sorted({0.03, 0.06, verdict.reached}))
    assert [(score.attack, score.eps) for score in verdict.evaluation.scores] == [cell.key for cell in wanted]
    stored = [row["returns"] for _, row in run.results.scores.read(run.result()["policy"])]
    assert sorted(stored) == sorted([*score.returns] for score in verdict.evaluation.scores)
    start = verdict.evaluation.start
    assert start is not None
    assert (start.name, start.file) == ("vanilla", str(run.path / "stages/1-vanilla/policy.safetensors"))
    assert len(start.scores) == len(verdict.evaluation.scores)


@pytest.mark.parametrize(("kept", "nothing"), [("the start", True), ("the bootstrap", True), ("the last agent", False)])
def test_the_sentence_says_where_training_gave_nothing_better(run: RunDirectory, kept: str, nothing: bool) -> None:
    verdict = dataclasses.replace(verdict_of(run), kept=kept, curriculum="target reached")
    assert ("training gave nothing better" in verdict.sentence(run.config)) == nothing


def test_other_scores_of_the_agent_do_not_change_the_verdict(run: RunDirectory) -> None:
    before = verdict_of(run)
    bcl.evaluate(run.path, attacks="fgsm", eps=0.03, episodes=2)
    assert verdict_of(run) == before


def repeated(run: RunDirectory) -> None:
    """The result as it was before it named its scores."""
    verdict = verdict_of(run)
    assert verdict.evaluation.start is not None
    facts = {name: value for name, value in run.result().items() if name not in NAMES}
    scores = {"scores": [score.to_dict() for score in verdict.evaluation.scores], "unlimited": []}
    run.finish(facts | scores | {"start": verdict.evaluation.start.to_dict() | {"unlimited": []}})


def test_a_result_that_repeats_its_scores_says_the_same(run: RunDirectory) -> None:
    before = (verdict_of(run), collect(run.path).verdict, str(bcl.compare(run.path)))
    repeated(run)
    assert (verdict_of(run), collect(run.path).verdict, str(bcl.compare(run.path))) == before
    shutil.rmtree(run.results.scores.path)
    assert (verdict_of(run), collect(run.path).verdict) == before[:2]
    store.write_json(run.result_file, {k: v for k, v in run.result().items() if k not in ("start", "unlimited")})
    assert verdict_of(run).evaluation == replace(before[0].evaluation, began_from=[])  # version 0.1 has neither


def edited(run: RunDirectory, name: str, value: object) -> None:
    """As a person changes it, without a checksum; `...`: removed."""
    row = run.result() | {name: value}
    run.result_file.write_text(json.dumps({key: value for key, value in row.items() if value is not ...}))


@pytest.mark.parametrize(
    "value", [None, "text", ..., [[1]], {"x": 1}], ids=["null", "text", "removed", "list", "table"]
)
@pytest.mark.parametrize("name", [*NAMES, "final_score", "flags", "curriculum", "kept", "reached", "scores", "start"])
def test_an_edited_result_is_refused_in_one_sentence(run: RunDirectory, name: str, value: object) -> None:
    if name in ("scores", "start"):
        repeated(run)
    edited(run, name, value)
    if (name, value) in (("curriculum", "text"), ("kept", "text"), ("start", None), ("start", ...)):
        assert verdict_of(run).sentence(run.config)
        return
    with pytest.raises(StoreError, match=r"result.json' does not fit .*; delete it") as told:
        collect(run.path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("folder", ["evals", "stages/1-vanilla/evals"])
def test_a_lost_score_is_told_and_can_be_played_again(run: RunDirectory, folder: str) -> None:
    before = verdict_of(run)
    *kept, last = (run.path / folder / "scores.jsonl").read_text().splitlines(keepends=True)
    (run.path / folder / "scores.jsonl").write_text("".join(kept))
    with pytest.raises(StoreError, match=rf"{folder}' lacks the score of .* at .*resume the run"):
        collect(run.path)
    run.result_file.unlink()
    assert bcl.resume(run.path).verdict == before
    assert last in (run.path / folder / "scores.jsonl").read_text()
