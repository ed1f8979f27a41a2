"""The paper's numbers are whole, and say what its text says about them."""

import pytest

from bcl.config import resolve
from bcl.recipes import RECIPES
from bcl.reports import published
from bcl.reports.published import PublishedRow

GAMES = ("pong", "freeway", "bank_heist", "road_runner", "fruitbot", "jumper")


@pytest.mark.parametrize("game", GAMES)
def test_rows_are_whole_and_name_our_recipes_and_budgets(game: str) -> None:
    budgets = (0.0, *resolve(game).evaluation.scored)
    rows = published.results(game)
    assert len(rows) >= 9
    for row in rows:
        assert row.recipe in RECIPES
        assert row.eps == pytest.approx(budgets)
        assert len(row.mean) == len(row.sem) == len(row.eps)
        assert (row.levels != "") == (game in ("fruitbot", "jumper"))
    assert {count.recipe for count in published.run_counts(game)} < {row.recipe for row in rows}
    assert all(count.hours >= 10 for count in published.run_counts(game))


@pytest.mark.parametrize(
    ("game", "best"),
    [
        ("pong", {"BCL-C-AT-DQN"}),
        ("freeway", {"BCL-MOS-AT-DQN", "BCL-RADIAL-DQN"}),
        ("bank_heist", {"BCL-RADIAL+AT-DQN"}),
        ("road_runner", {"BCL-RADIAL+AT-DQN"}),
        ("fruitbot", {"BCL-MOS(V)-AT-PPO"}),
        ("jumper", {"BCL-MOS(V)-AT-PPO"}),
    ],
)
def test_the_most_robust_by_score_are_those_the_paper_marks(game: str, best: set[str]) -> None:
    rows = published.results(game)
    scores = {m: sum(r.score for r in rows if r.method == m) for m in {r.method for r in rows}}
    top = max(scores.values())
    assert {method for method, score in scores.items() if score > top - 1e-6} == best


def test_scores_and_averages_as_the_paper_quotes_them() -> None:
    freeway = {r.method: r for r in published.results("freeway")}
    assert freeway["BCL-MOS-AT-DQN"].score == pytest.approx(59.93, abs=0.005)
    counts = {g: next(c for c in published.run_counts(g) if c.recipe == "bcl-mos-at") for g in GAMES[:4]}
    averages = [sum(c.runs) / 3 for c in counts.values()]
    assert averages == pytest.approx([19.3, 24.0, 41.7, 20.3], abs=0.05)


def test_what_the_paper_does_not_have_is_absent() -> None:
    assert published.results("cartpole") == ()
    assert published.run_counts("cartpole") == ()


def test_score_by_hand() -> None:
    row = PublishedRow("pong", "m", "at", "", "", (0.0, 0.1, 0.2), (10.0, 4.0, 2.0), (0.0, 0.0, 0.0), "s")
    assert row.score == 13.0
