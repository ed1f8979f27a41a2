"""Which stored scores make one evaluation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcl.config import resolve
from bcl.errors import StoreError
from bcl.evaluation.score import NO_ATTACK
from bcl.games import game_to_dict
from bcl.reports.collect import OWN, collect
from bcl.reports.compare import compare_agents
from bcl.reports.scores import read_scores
from bcl.runs import store
from tests.report.conftest import AGENT, PGD30, RI, played


@pytest.fixture
def evals(tmp_path: Path) -> Path:
    """Nominal play and two attacks at two budgets."""
    config = resolve("pong")
    played(tmp_path, config, NO_ATTACK, 0.0, (20.0, 21.0))
    for attack in (RI, PGD30):
        for level in (20, 10):
            played(tmp_path, config, attack, level / 255, (1.0, 2.0))
    return tmp_path


def again(folder: Path, name: str = "-again", **changes: Any) -> None:
    """Every score once more, with something else in it."""
    for file in sorted(folder.glob("eps-*.json")):
        store.write_json(file.with_name(f"{file.stem}{name}.json"), json.loads(file.read_text()) | changes)


def test_scores_that_differ_in_attack_and_budget_alone_are_one_evaluation(evals: Path) -> None:
    [judged] = read_scores(evals, AGENT)
    assert judged.game == resolve("pong").game
    assert [*judged.scores] == [
        *((NO_ATTACK, 0.0), (PGD30, 10 / 255), (RI, 10 / 255), (PGD30, 20 / 255), (RI, 20 / 255))
    ]
    assert judged.scores[RI, 20 / 255].returns == (1.0, 2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "half"},
        {"seed": 2},
        {"protocol": "first"},
        {"returns": [1.0, 2.0, 3.0]},
        {"policy": f"{AGENT} on cuda"},
        {"num_envs": 1},
        {"bcl": "1"},
        {"game": game_to_dict(resolve("freeway").game)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_else_differs_makes_another(evals: Path, change: dict[str, Any]) -> None:
    again(evals, **change)
    assert [len(judged.scores) for judged in read_scores(evals, AGENT)] == [5, 5]


def test_a_score_that_lies_there_twice_counts_once(evals: Path) -> None:
    again(evals)  # as from --precision fast and full where both are full
    [judged] = read_scores(evals, AGENT)
    assert len(judged.scores) == 5


def test_what_is_no_score_of_the_agent_is_left_out(evals: Path) -> None:
    again(evals, policy="somebody else on cpu")
    played(evals, resolve("pong"), PGD30, 1.0, (-21.0, -21.0))  # of --sanity
    floor = store.read_json(next(evals.glob("eps-0.0000*")))
    del floor["policy"]
    store.write_json(evals / "eps-0-lowest-scored.json", floor)
    store.write_json(evals / "verdict.json", {"game": {}, "policy": AGENT})
    store.write_json(evals / "0-progress.json", {"done": 1})
    [judged] = read_scores(evals, AGENT)
    assert len(judged.scores) == 5
    assert len(read_scores(evals, "")) == 2  # whoever played


@pytest.mark.parametrize(
    "read", [lambda run: collect(run), lambda run: compare_agents([run])], ids=["report", "compare"]
)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"eps": None}, "eps must be finite"),
        ({"eps": "x"}, "eps must be finite"),
        ({"returns": [1.0, None, 2.0]}, "returns must be finite"),
        ({"returns": []}, "returns must be finite"),
        ({"precision": ...}, "'precision'"),
        ({"game": ...}, "game.engine = '' is unknown or missing"),
        ({"game": {"engine": "atari", "id": 5}}, "game.id = 5 is not text"),
    ],
)
def test_a_damaged_score_is_named(
    pong_run: Path, read: Callable[[Path], object], change: dict[str, Any], reason: str
) -> None:
    file = next((pong_run / "evals").glob("eps-0.0784-PGD*"))
    data = store.read_json(file) | change
    store.write_json(file, {name: value for name, value in data.items() if value is not ...})
    with pytest.raises(StoreError, match=rf"{file.name}' does not fit \({reason}.*delete its file to have it played"):
        read(pong_run)


def test_the_verdict_s_attacks_in_another_precision_are_evaluated_afterwards(pong_run: Path) -> None:
    again(pong_run / "evals", "-half", precision="half")
    notes = {(e.scores[0].seed, e.scores[0].precision): e.note for e in collect(pong_run).evaluations}
    assert [key for key, note in notes.items() if note == OWN] == [(1, "full")]
    assert len(notes) == 4
