"""What is kept of published measurements in benchmarks/results: archives as they were made, which reports can be made
of."""

import hashlib
import tarfile
from pathlib import Path

import pytest

from bcl.config import config_from_toml
from bcl.evaluation import read_evaluations
from bcl.reports.collect import collect
from bcl.runs import store
from bcl.runs.directory import RunDirectory
from bcl.runs.results import ScoresFolder

RECORDS = Path(__file__).parents[1] / "benchmarks" / "results"
SLACK = 20_000  # agent steps: PPO ends with a whole rollout
# What the pages say of each run: docs/pong.md and docs/ppo.md.
RUNS = {
    "pong-bcl-mos-at": (True, "return 21 without attack; 20.8 under PGD-10 within 22/255"),
    "pong-fresh": (False, "is not finished; best so far: nominal 21, -2.7 within 7/255"),
    "pong-further": (True, "return 20.8 without attack; 20.5 under PGD-10 within 26/255 (at 20/255)"),
    "fruitbot-at": (True, "return 30.95 without attack; 27.2 under PGD-10 within 10/255"),
    "fruitbot-vanilla": (False, "is not finished"),
}


def test_every_archive_has_the_checksum_that_stands_beside_it() -> None:
    written = dict(reversed(line.split()) for line in (RECORDS / "SHA256SUMS").read_text().splitlines())
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in RECORDS.glob("*.tar.xz")}
    assert found == written
    assert {*found} == {f"{name}.tar.xz" for name in (*RUNS, "distilled", "judging", "paced")}


@pytest.mark.parametrize("name", RUNS)
def test_an_archive_holds_a_run_that_can_be_reported(name: str, tmp_path: Path) -> None:
    with tarfile.open(RECORDS / f"{name}.tar.xz") as records:
        records.extractall(tmp_path, filter="data")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    finished, sentence = RUNS[name]
    assert RunDirectory.open(tmp_path / name).finished == finished
    assert sentence in collect(tmp_path / name).verdict


def test_metrics_of_trainings_that_were_stopped_are_read(tmp_path: Path) -> None:
    with tarfile.open(RECORDS / "distilled.tar.xz") as records:
        records.extractall(tmp_path, filter="data")
    for training in (tmp_path / "distilled").iterdir():
        config = config_from_toml((training / "config.toml").read_text())
        beforehand = "teacher" in training.name or training.name.endswith("-at")
        learner = config.learner("standard" if beforehand else "distill")
        assert 0 < store.read_metrics(training / "metrics.jsonl")[-1]["step"] <= learner.steps + SLACK


def test_scores_without_a_run_are_read() -> None:
    found = read_evaluations(ScoresFolder(RECORDS / "evals"), "")
    assert {one.game.id for one in found} == {"bank_heist", "freeway", "fruitbot", "jumper", "pong", "road_runner"}
    stored = sum(len(file.read_text().splitlines()) for file in (RECORDS / "evals").glob("*.jsonl"))
    assert sum(len(one.scores) for one in found) == stored


def test_the_folder_is_small_enough_to_look_at() -> None:
    assert len([*RECORDS.rglob("*")]) <= 40
