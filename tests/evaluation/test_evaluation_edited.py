"""Stored results that a person edited, so that they have no checksum: read as they are, or refused in one sentence."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bcl.attacks import PGD
from bcl.errors import StoreError
from bcl.evaluation import Breaking, Certificate, Plan, Score, flags, read_breaking, read_certificates, read_evaluations
from bcl.evaluation.evaluation import longest_episodes
from bcl.games import GymnasiumGame
from bcl.runs.results import Results

AGENT = "f00dfeedf00dfeed"
CONDITIONS = Plan(GymnasiumGame("CartPole-v1"), 3, 1, num_envs=3).conditions(AGENT, "cpu").to_dict()
GONE = object()
EDITS = {"null": None, "text": "text", "removed": GONE, "list": [[1]], "table": {"x": 1}, "empty": []}


def read_scores(results: Results) -> object:
    found = read_evaluations(results.scores, AGENT)
    longest_episodes(results.scores, AGENT)
    return [(one, one.worst_within, one.conditions, flags(one.scores), str(one), one.to_dict()) for one in found]


def read_proofs(results: Results) -> object:
    return [(str(proof), conditions) for conditions, proof in read_certificates(results.certificates, AGENT)]


def read_search(results: Results) -> object:
    return [(str(found), [*map(found.shown, found.budgets)]) for found in read_breaking(results, AGENT)]


@dataclass(frozen=True)
class Kind:
    """A file of results with one row, and how it is read."""

    file: str
    row: dict[str, Any]
    read: Callable[[Results], object]
    fitting: set[str]
    """What is not refused: names that only people read, or that make the row another agent's; and single edits after
    which the row is one that could have been stored, some of them by older versions."""


SEARCH = Breaking(10.0, 20.0, 3, 1, (PGD(10, 0.1),), False, (0.1,))
NO_ADVERSARIES = {f"adversaries-{edit}" for edit in ("removed", "null", "empty")}
OLDER = {f"{name}-removed" for name in ("asked", "starts", "num_envs", "meaning")}
KINDS = {
    "score": Kind(
        "evals/scores.jsonl",
        Score(PGD(10, 0.1), 0.03, (1.0, 2.0, 4.0), (5, 6, 7), 0.5, 0.03, 0.0, 1, "fixed", courses=3).to_dict() | CONDITIONS,
        read_scores,
        {"attack", "mean", "sem", "episodes", "iqm", "iqm_interval", "bcl", "torch", "agent-text", "device-text"}
        | {"precision-text", "adversary-null", "adversary-removed", "courses-null", "courses-removed", "lengths-empty"}
        | {"prefixes-removed", "prefixes-empty", "instead-removed", "instead-text"}
        | OLDER,
    ),
    "certificate": Kind(
        "certs/certificates.jsonl",
        Certificate(0.03, "ibp", 0.5, (0.5, 0.5, 0.5), 2.0, (1.0, 2.0, 3.0), 4.0, 3, 1).to_dict() | CONDITIONS,
        read_proofs,
        {"bcl", "torch", "agent-text", "device-text", "protocol-removed", "acr_per_episode-empty", "gwc_returns-empty"}
        | OLDER,
    ),
    "search": Kind(
        "breaking/searches.jsonl",
        SEARCH.to_dict() | CONDITIONS,
        read_search,
        {"attacks", "bcl", "torch", "agent-text", "device-text", "protocol-removed", *NO_ADVERSARIES} | OLDER,
    ),
    "older search": Kind(
        "breaking/result.json",
        SEARCH.to_dict() | {"policy": AGENT},
        read_search,
        {"attacks", "policy", *NO_ADVERSARIES},
    ),
}  # fmt: skip
CASES = [(kind, name, edit) for kind, of in KINDS.items() for name in of.row for edit in EDITS]


@pytest.mark.parametrize(("kind", "name", "edit"), CASES, ids=map("-".join, CASES))
def test_an_edited_value_is_refused_in_one_sentence_or_fits(kind: str, name: str, edit: str, tmp_path: Path) -> None:
    of = KINDS[kind]
    row = {key: value for key, value in (of.row | {name: EDITS[edit]}).items() if value is not GONE}
    file = tmp_path / of.file
    file.parent.mkdir()
    file.write_text(json.dumps(row))
    may_fit = name in of.fitting or f"{name}-{edit}" in of.fitting
    try:
        assert of.read(Results(tmp_path)) is not None
        assert may_fit
    except StoreError as error:
        assert not may_fit
        assert str(file) in error.message
        assert "\n" not in str(error)
        assert error.hint.startswith("delete ")


@pytest.mark.parametrize("kind", ["score", "certificate"])
@pytest.mark.parametrize("eps", [-5.0, 1e308])
def test_a_budget_that_cannot_be_is_refused(kind: str, eps: float, tmp_path: Path) -> None:
    about = KINDS[kind]
    file = tmp_path / about.file
    file.parent.mkdir()
    file.write_text(json.dumps(about.row | {"eps": eps}) + "\n")
    with pytest.raises(StoreError, match="its budget is"):
        about.read(Results(tmp_path))


def test_rows_are_read_where_nothing_was_edited(tmp_path: Path) -> None:
    for of in KINDS.values():
        (tmp_path / of.file).parent.mkdir(exist_ok=True)
        (tmp_path / of.file).write_text(json.dumps(of.row))
        assert of.read(Results(tmp_path))
    played = "(20 without attack; 3 episodes, evaluation seed 1)"
    search = (f"smallest budget that brings the return below 10: 0.1 under PGD-10 {played}", ["0.1"])
    assert read_search(Results(tmp_path)) == [search, search]
