"""Which stored scores make one evaluation, and that those of version 0.1 are read."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from bcl.attacks import PGD, Attack, LowestScored
from bcl.config import resolve
from bcl.evaluation import Cell, Plan, Score, missing_cells, read_evaluations, read_scores
from bcl.evaluation.evaluation import append_score
from bcl.games import game_to_dict
from bcl.runs import store
from bcl.runs.results import ScoresFolder
from tests.reports.conftest import AGENT, PGD30, RI, played

PONG = resolve("pong").game
CONDITIONS = Plan(PONG, 2, seed=1).conditions(AGENT, "cpu")


def score(attack: Attack | None, eps: float) -> Score:
    return Score(attack, eps, (1.0, 2.0), (9, 9), 0.5, eps, 0.0, 1, "fixed")


@pytest.fixture
def evals(tmp_path: Path) -> ScoresFolder:
    """Nominal play and two attacks at two budgets."""
    config = resolve("pong")
    played(tmp_path, config, None, 0.0, (20.0, 21.0))
    for attack in (RI, PGD30):
        for level in (20, 10):
            played(tmp_path, config, attack, level / 255, (1.0, 2.0))
    return ScoresFolder(tmp_path)


def again(folder: ScoresFolder, **changes: Any) -> None:
    """Every score once more, with something else in it."""
    for row in store.read_metrics(folder.path / "scores.jsonl"):
        store.append_row(folder.path / "scores.jsonl", row | changes)


def test_scores_that_differ_in_attack_and_budget_alone_are_one_evaluation(evals: ScoresFolder) -> None:
    [found] = read_evaluations(evals, AGENT)
    assert (found.game, found.agent) == (PONG, AGENT)
    assert [*found.cells] == [
        *((None, 0.0), (PGD30, 10 / 255), (RI, 10 / 255), (PGD30, 20 / 255), (RI, 20 / 255)),
    ]
    assert found.cells[RI, 20 / 255].returns == (1.0, 2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "half"},
        {"asked": "fast"},
        {"seed": 2},
        {"protocol": "first"},
        {"starts": "varied"},
        {"returns": [1.0, 2.0, 3.0]},
        {"device": "cuda"},
        {"num_envs": 1},
        {"meaning": 2},
        {"game": game_to_dict(resolve("freeway").game)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_else_differs_makes_another(evals: ScoresFolder, change: dict[str, Any]) -> None:
    again(evals, **change)
    assert [len(found.scores) for found in read_evaluations(evals, AGENT)] == [5, 5]


@pytest.mark.parametrize("change", [{}, {"bcl": "9.9"}, {"torch": "9.9"}], ids=str)
def test_a_score_that_lies_there_twice_counts_once(evals: ScoresFolder, change: dict[str, Any]) -> None:
    again(evals, **change)  # another version of this package plays the same
    [found] = read_evaluations(evals, AGENT)
    assert len(found.scores) == 5


def test_what_is_no_score_of_the_agent_is_left_out(evals: ScoresFolder) -> None:
    again(evals, agent="somebody else")
    played(evals.path, resolve("pong"), PGD30, 1.0, (-21.0, -21.0))  # of --sanity
    played(evals.path, resolve("pong"), LowestScored(), 0.0, (-21.0, -21.0))
    store.write_json(evals.progress(0), {"done": 1})
    [found] = read_evaluations(evals, AGENT)
    assert len(found.scores) == 5
    assert len(read_evaluations(evals, "")) == 2  # of any agent


def test_a_stored_score_is_found_by_its_conditions_attack_and_budget(tmp_path: Path) -> None:
    append_score(ScoresFolder(tmp_path), CONDITIONS, score(PGD30, 0.1))
    assert read_scores(ScoresFolder(tmp_path), CONDITIONS) == {(PGD30, 0.1): score(PGD30, 0.1)}
    wanted = [Cell(PGD30, 0.1), Cell(PGD30, 0.2), Cell(PGD(steps=31, step=0.1), 0.1), Cell(None, 0.0)]
    assert missing_cells(ScoresFolder(tmp_path), CONDITIONS, wanted) == wanted[1:]


def _append(folder: Path, number: int) -> None:
    for eps in range(20):
        append_score(ScoresFolder(folder), CONDITIONS, score(PGD(steps=number + 1, step=0.1), eps / 255))


def test_processes_may_append_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append, args=(tmp_path, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(read_scores(ScoresFolder(tmp_path), CONDITIONS)) == 80


def test_the_files_of_processes_that_share_the_work_are_read_and_joined(tmp_path: Path) -> None:
    append_score(ScoresFolder(tmp_path), CONDITIONS, score(None, 0.0))
    append_score(ScoresFolder(tmp_path), CONDITIONS, score(PGD30, 0.1), part=0)
    append_score(ScoresFolder(tmp_path), CONDITIONS, score(PGD30, 0.2), part=1)
    before = read_scores(ScoresFolder(tmp_path), CONDITIONS)
    assert len(before) == 3
    ScoresFolder(tmp_path).gather()
    assert [path.name for path in tmp_path.iterdir()] == ["scores.jsonl"]
    assert read_scores(ScoresFolder(tmp_path), CONDITIONS) == before


def test_a_row_cut_by_a_crash_is_played_again(tmp_path: Path) -> None:
    append_score(ScoresFolder(tmp_path), CONDITIONS, score(None, 0.0))
    append_score(ScoresFolder(tmp_path), CONDITIONS, score(PGD30, 0.1))
    file = tmp_path / "scores.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    assert [*read_scores(ScoresFolder(tmp_path), CONDITIONS)] == [(None, 0.0)]
    append_score(ScoresFolder(tmp_path), CONDITIONS, score(PGD30, 0.1))
    assert len(read_scores(ScoresFolder(tmp_path), CONDITIONS)) == 2


@pytest.mark.parametrize("attack", [None, PGD30, RI], ids=repr)
def test_scores_of_version_0_1_are_read(tmp_path: Path, attack: Attack | None) -> None:
    old = score(attack, 0.1 if attack else 0.0).to_dict()
    del old["adversary"]
    about = {"game": game_to_dict(PONG), "num_envs": 2, "policy": f"{AGENT} on cpu", "bcl": "0.1.0", "device": "cpu"}
    store.write_json(tmp_path / "eps-0-1-whatever-1234abcd.json", old | about)
    assert [*read_scores(ScoresFolder(tmp_path), CONDITIONS)] == [(attack, old["eps"])]
    floor = {name: value for name, value in old.items() if name != "policy"}  # it named no agent
    store.write_json(tmp_path / "eps-0-0-lowest-scored-1234abcd.json", floor)
    [found] = read_evaluations(ScoresFolder(tmp_path), "")
    assert [s.attack for s in found.scores] == [attack]


def test_what_is_stored_is_what_is_returned(tmp_path: Path) -> None:
    found = score(PGD30, 0.1)
    append_score(ScoresFolder(tmp_path), CONDITIONS, found)
    row = json.loads((tmp_path / "scores.jsonl").read_text())
    assert row["adversary"]["kind"] == "PGD"
    assert Score.from_dict(row) == found
