"""What reports make of stored scores that are damaged, or of another precision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcl.errors import StoreError
from bcl.reports.collect import OWN, collect
from bcl.reports.compare import compare_agents
from bcl.runs import store
from tests.reports.conftest import rewritten


@pytest.mark.parametrize(
    "read", [lambda run: collect(run), lambda run: compare_agents([run])], ids=["report", "compare"]
)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"eps": None}, "eps = None is not a number"),
        ({"eps": "x"}, "eps = 'x' is not a number"),
        ({"returns": [1.0, None, 2.0]}, "returns = None is not a number"),
        ({"returns": []}, "it has no returns"),
        ({"precision": ...}, "it has no 'precision'"),
        ({"adversary": {"steps": 3}}, "it has no 'kind'"),
        ({"game": ...}, "game.engine = '' is unknown or missing"),
        ({"game": {"engine": "atari", "id": 5}}, "game.id = 5 is not text"),
    ],
)
def test_a_damaged_score_is_named(
    pong_run: Path, read: Callable[[Path], object], change: dict[str, Any], reason: str
) -> None:
    rows = store.read_metrics(pong_run / "evals" / "scores.jsonl")
    line = 1 + next(i for i, row in enumerate(rows) if row["eps"] == 20 / 255)

    def damaged(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in (row | change).items() if value is not ...}

    rewritten(pong_run / "evals", lambda row: damaged(row) if row == rows[line - 1] else row)
    words = rf"line {line} of '.*scores.jsonl' does not fit \({reason}.*delete it to have it (played|made) again"
    with pytest.raises(StoreError, match=words):
        read(pong_run)


def test_the_verdict_s_attacks_in_another_precision_are_evaluated_afterwards(pong_run: Path) -> None:
    file = pong_run / "evals" / "scores.jsonl"
    for row in store.read_metrics(file):
        store.append_row(file, row | {"precision": "half"})
    notes = {(e.scores[0].seed, e.scores[0].precision): e.note for e in collect(pong_run).evaluations}
    assert [key for key, note in notes.items() if note == OWN] == [(1, "full")]
    assert len(notes) == 4
