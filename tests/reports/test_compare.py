"""Comparisons of runs made by hand, so that every number is known."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcl import stats
from bcl.attacks import FGSM, SUITES
from bcl.attacks.records import attack_to_dict
from bcl.config import resolve
from bcl.curriculum_rules import INCUMBENT, Candidate, Decision, Phase
from bcl.errors import BclError, ConfigError, StoreError
from bcl.games import ProcgenGame
from bcl.reports.compare import Missing, compare_agents
from bcl.reports.figures import comparison as draw
from bcl.reports.figures import figure_format
from bcl.reports.history import Effort, effort
from bcl.reports.tables import tables
from bcl.runs import store
from bcl.runs.directory import PhaseFolder, RunDirectory
from tests.reports.compared import PGD30, RI, Cells, finished, judge, only_block, pong, repeated
from tests.reports.conftest import rewritten

Change = Callable[[dict[str, Any]], dict[str, Any]]


OTHER_EPISODES = "they played different episodes; 'bcl attack' of each plays the same ones"


def edit_result(run: Path, change: Change) -> None:
    """Of a finished run: what its verdict says."""
    store.write_json(run / "result.json", change(store.read_json(run / "result.json")))


def rewrite(run: Path, change: Change) -> None:
    """The conditions of a run's scores, in its verdict too."""
    rewritten(run / "evals", change)
    edit_result(run, lambda result: result | {"conditions": [*map(change, result["conditions"])]})


def test_the_worst_of_the_suite_and_the_score_by_hand(tmp_path: Path) -> None:
    block = only_block(finished(tmp_path / "a", "pong", "bcl-mos-at", pong(20, 15, 10, 5)))
    [row] = block.rows
    assert block.budgets == [0.0, 10 / 255, 20 / 255, 25 / 255]
    assert [cell.median.mean for cell in row.cells.values()] == [20, 15, 10, 5]
    assert row.cells[10 / 255].median.attack == PGD30
    assert row.cells[10 / 255].median.sem == pytest.approx((0.5**0.5) / 2)  # deviation of (-1, 0, 0, 1), over root 4
    assert row.score == 20 + (15 + 10 + 5) / 3
    assert row.cells[10 / 255].median.interval == stats.mean_interval([[14, 15, 15, 16]])
    assert row.published is not None
    assert row.published.method == "BCL-MOS-AT-DQN"
    assert row.published.mean == (21.0, 21.0, 20.9, 20.9)


def test_cells_and_score_go_by_the_worst_within_a_budget_the_papers_beside(tmp_path: Path) -> None:
    cells = {**pong(20, 21, 4, 5), (RI, 15 / 255): [2.0] * 4, (PGD30, 15 / 255): [8.0] * 4}
    [row] = only_block(finished(tmp_path / "a", "pong", "bcl-mos-at", cells)).rows
    levels = (0, 10, 15, 20, 25)
    assert [row.cells[level / 255].median.mean for level in levels] == [20, 20, 2, 2, 2]
    assert [round(255 * row.cells[level / 255].median.eps) for level in levels] == [0, 0, 15, 15, 15]
    assert [row.cells[level / 255].exactly.mean for level in levels] == [20, 21, 2, 4, 5]
    assert row.cells[25 / 255].median.attack == RI
    assert row.cells[25 / 255].runs == ((2.0,) * 4,)
    assert row.score == 20 + (20 + 2 + 2) / 3
    assert row.paper_score == 20 + (21 + 4 + 5) / 3


def test_the_median_of_repeats_is_by_the_worst_within(tmp_path: Path) -> None:
    # at exactly 30, 29, 28; within 21, 29, 28
    means = [(20, 1, 2, 27), (20, 12, 8, 7), (20, 10, 8, 6)]
    [row] = only_block(repeated(tmp_path / "three", "pong", "at", [pong(*m) for m in means])).rows
    assert (row.median, row.score, row.paper_score) == ("seed2", 28, 28)


def test_a_row_keeps_its_flags(tmp_path: Path) -> None:
    cells = {**pong(20, 5, 19, 18), (RI, 10 / 255): [5.0] * 4}
    [row] = only_block(finished(tmp_path / "a", "pong", "at", cells)).rows
    assert "bigger-budget-weaker: PGD-30 (19) hurts less at 20/255 than at 10/255 (5)" in map(str, row.flags)
    # Made by hand, no attack changed an action.
    told = "flags of a: no-effect, bigger-budget-weaker (docs/flags.md)"
    assert told in tables(compare_agents([tmp_path / "a"]))[0].notes
    # What its verdict said and scores alone do not tell.
    edit_result(tmp_path / "a", lambda result: result | {"flags": ["worse-than-start: it has 5"]})
    assert "worse-than-start: it has 5" in map(str, only_block(tmp_path / "a").rows[0].flags)
    told = "flags of a: worse-than-start, no-effect, bigger-budget-weaker (docs/flags.md)"
    assert told in tables(compare_agents([tmp_path / "a"]))[0].notes


def test_a_row_has_the_flags_of_larger_evaluations_too(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", "pong", "at", {cell: returns[:2] for cell, returns in pong(20, 19, 18, 17).items()})
    other = finished(tmp_path / "b", "pong", "at", {cell: returns[:2] for cell, returns in pong(9, 8, 7, 6).items()})
    game = RunDirectory(run).config.game
    judge(run, game, {**pong(20, 5, 19, 18), (RI, 10 / 255): [5.0] * 4}, seed=2)
    row, _ = only_block(run, other).rows
    told = "bigger-budget-weaker: PGD-30 (19) hurts less at 20/255 than at 10/255 (5) (4 episodes, evaluation seed 2)"
    assert told in map(str, row.flags)
    judge(run, game, {(None, 0.0): [1.0], (PGD30, 10 / 255): [21.0]}, seed=3)  # fewer episodes
    assert only_block(run, other).rows[0].flags == row.flags


def test_a_run_that_a_larger_evaluation_finds_worse_than_its_start_says_so(tmp_path: Path) -> None:
    few = {cell: returns[:2] for cell, returns in pong(9, 8, 7, 6).items()}
    run = finished(tmp_path / "a", "pong", "at", few)
    game = RunDirectory(run).config.game
    stage = RunDirectory(run).stages()[0]
    store.write_json(stage.path / "result.json", {"policy": "start"})
    judge(stage.path, game, few, policy="start")  # two episodes say nothing
    assert "worse-than-start" not in {flag.name for flag in only_block(run).rows[0].flags}
    for folder, policy, cells in ((run, "p", pong(9, 8, 7, 6)), (stage.path, "start", pong(20, 19, 18, 17))):
        judge(folder, game, cells, policy=policy, seed=2)
    assert "worse-than-start: it has 9 without attack instead of 20" in " ".join(
        map(str, only_block(run).rows[0].flags)
    )


def test_an_agent_that_was_evaluated_at_fewer_budgets_is_named(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole", "pong", "at", pong(20, 15, 10, 5))
    part = finished(tmp_path / "part", "pong", "at", {k: v for k, v in pong(20, 15, 10, 5).items() if k[1] != 20 / 255})
    small = finished(
        tmp_path / "small", "pong", "at", {k: v for k, v in pong(20, 15, 10, 5).items() if k[1] < 15 / 255}
    )
    assert only_block(whole, part, small).notes == (
        "part was not evaluated at 20/255: within larger budgets it may have less",
    )


def test_repeats_are_one_row_the_median_by_score_shown(tmp_path: Path) -> None:
    # Scores 20 + 10 = 30, 10 + 0 = 10, 21 - 3 = 18: the third is the median, though its nominal return is the highest.
    means = [(20, 15, 10, 5), (10, 0, 0, 0), (21, 0, -3, -6)]
    path = repeated(tmp_path / "three", "pong", "bcl-mos-at", [pong(*m) for m in means])
    [row] = only_block(path).rows
    assert (row.median, row.score) == ("seed2", 18)
    assert [cell.median.mean for cell in row.cells.values()] == [21, 0, -3, -6]
    assert row.cells[0.0].median.interval == stats.mean_interval([[20, 21, 21, 22]])
    assert row.cells[0.0].mean == 17  # (20 + 10 + 21) / 3
    runs = [[19.0, 20.0, 20.0, 21.0], [9.0, 10.0, 10.0, 11.0], [20.0, 21.0, 21.0, 22.0]]
    assert row.cells[0.0].interval == stats.mean_interval(runs)


def test_improvement_over_the_first(tmp_path: Path) -> None:
    first = finished(tmp_path / "first", "pong", "at", pong(20, 15, 10, 5))
    second = finished(tmp_path / "second", "pong", "bcl-mos-at", pong(20, 16, 0, 5), seed=2)
    found = {one.eps: one for one in only_block(first, second).improvements}
    assert {(one.row, one.over) for one in found.values()} == {("second", "first")}
    # (19, 20, 20, 21) against itself; (15, 16, 16, 17) against (14, 15, 15, 16): 16 pairs, ties half.
    assert found[0.0].probability == 0.5
    assert found[10 / 255].probability == (2 + 3.5 + 3.5 + 4) / 16
    assert found[20 / 255].probability == 0
    assert found[20 / 255].interval is None
    assert found[0.0].interval is not None


def test_only_attacks_that_all_faced_count(tmp_path: Path) -> None:
    full = finished(tmp_path / "full", "pong", "at", pong(20, 15, 10, 5))
    only_ri = {key: value for key, value in pong(20, 15, 10, 5).items() if key[0] != PGD30}
    block = only_block(full, finished(tmp_path / "part", "pong", "ncl-at", only_ri))
    assert block.attacks[10 / 255] == (RI,)
    assert [row.cells[10 / 255].median.mean for row in block.rows] == [20, 20]
    hurt_more = [
        f"full has {mean} at {eps}/255 under PGD-30, which not all faced" for mean, eps in ((15, 10), (10, 20), (5, 25))
    ]
    assert [*block.notes] == hurt_more
    nominal = {(None, 0.0): [1.0, 2.0, 3.0, 4.0]}
    block = only_block(full, finished(tmp_path / "vanilla", "pong", "vanilla", nominal))
    assert block.attacks[10 / 255] == (PGD30, RI)
    assert [*block.rows[1].cells] == [0.0]
    assert block.rows[1].score is None
    assert "vanilla was evaluated by nominal play alone" in block.notes
    assert block.missing == Missing("vanilla", "vanilla", "pgd-30", (10 / 255, 20 / 255, 25 / 255))


def test_where_budgets_have_different_attacks_the_score_is_over_those_that_all_have(tmp_path: Path) -> None:
    whole = {**pong(20, 15, 10, 5), (RI, 20 / 255): [3.0] * 4}  # so low that it would count
    part = {key: value for key, value in whole.items() if key != (RI, 10 / 255)}
    row = only_block(finished(tmp_path / "whole", "pong", "at", whole)).rows[0]
    assert row.score == 20 + (15 + 3 + 3) / 3
    assert row.paper_score == 20 + (15 + 3 + 5) / 3
    block = only_block(finished(tmp_path / "part", "pong", "at", part))
    assert block.notes == (
        "at 20/255, 25/255 the worst is also over RI-FGSM",
        "the score is over PGD-30, which all its budgets have",
    )
    assert block.usual_attacks == [PGD30]
    assert block.rows[0].cells[20 / 255].median.mean == 3
    assert block.rows[0].score == 20 + (15 + 10 + 5) / 3


def test_without_a_common_attack_there_is_no_score(tmp_path: Path) -> None:
    whole = pong(20, 15, 10, 5)
    apart = {key: value for key, value in whole.items() if key not in {(RI, 10 / 255), (PGD30, 20 / 255)}}
    block = only_block(finished(tmp_path / "apart", "pong", "at", apart))
    assert block.rows[0].score is None
    assert block.usual_attacks == [PGD30, RI]
    assert block.notes == (
        "at 10/255 the worst is over PGD-30 alone",
        "at 20/255 the worst is over RI-FGSM alone",
    )


def test_attacks_that_not_all_faced_are_named_where_they_hurt_clearly_more(tmp_path: Path) -> None:
    def judged(pgd: list[float]) -> Cells:
        return {(None, 0.0): [20.0] * 4, (RI, 0.1): [15.0] * 4, (PGD30, 0.1): pgd}

    weak = finished(tmp_path / "weak", "pong", "at", {key: v for key, v in judged([]).items() if key[0] != PGD30})
    slight, noise = judged([14.5] * 4), judged([15.0, 15.0, 15.0, -10.0])
    for name, cells in (("slight", slight), ("noise", noise)):
        assert only_block(finished(tmp_path / name, "pong", "at", cells), weak).notes == ()
    # of repeats, for the run that is shown: the one with the median score, here the last
    runs = [{**judged([5.0] * 4), (None, 0.0): [nominal] * 4} for nominal in (10.0, 30.0)]
    shown = {**judged([7.0] * 4), (None, 0.0): [20.0] * 4}
    block = only_block(repeated(tmp_path / "three", "pong", "at", [*runs, shown]), weak)
    assert block.notes == ("three has 7 at 0.1 under PGD-30, which not all faced",)


def test_where_no_attack_is_shared_the_cheapest_way_to_one_is_named(tmp_path: Path) -> None:
    def by(suite: str, *budgets: float) -> Cells:
        attacked: Cells = {(attack, eps): [1.0] * 3 for attack in SUITES[suite] for eps in budgets}
        return {(None, 0.0): [1.0] * 3, **attacked}

    first = repeated(tmp_path / "a", "cartpole", "at", [by("paper", 0.1), by("quick", 0.1)])
    block = only_block(first, finished(tmp_path / "b", "cartpole", "at", by("paper", 0.1, 0.2)))
    assert block.missing == Missing("a", "seed1", "pgd-30", (0.1,))
    assert block.notes == ("at 0.1 no attack was faced by all; evaluate each by --attack pgd-30",)
    quick = finished(tmp_path / "quick", "cartpole", "at", by("quick", 0.1))
    missing = only_block(quick, tmp_path / "b").missing  # one score of b instead of four of the first
    assert missing == Missing("b", "b", "quick", (0.1,))
    assert missing.options == ("--suite", "quick")
    nothing = [finished(tmp_path / name, "cartpole", "vanilla", by("quick")) for name in ("c", "d")]
    assert only_block(*nothing).missing == Missing("c", "c", "quick", ())
    for run in (first / "seed0", first / "seed1"):
        judge(run, resolve("cartpole").game, by("paper", 0.1), seed=7)
    block = only_block(first, tmp_path / "b")
    assert (block.missing, block.notes) == (None, (OTHER_EPISODES,))


def test_the_evaluation_that_all_share_is_taken(tmp_path: Path) -> None:
    game = resolve("pong").game
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5), seed=1)
    b = finished(tmp_path / "b", "pong", "at", pong(19, 15, 10, 5), seed=2)
    for path, mean in ((a, 7.0), (b, 8.0)):  # with as many scores, and the same seed
        judge(path, game, pong(mean, 0, 0, 0), seed=0)
    judge(a, game, {(None, 0.0): [99.0] * 9}, seed=0)  # other episodes, which b does not have
    judge(a, game, pong(55, 0, 0, 0), policy="another", seed=4)
    assert [row.cells[0.0].median.mean for row in only_block(a, b).rows] == [7, 8]


def test_what_all_share_counts_not_what_one_has_more_of(tmp_path: Path) -> None:
    strong = {
        (attack, eps): [0.0] * 4 for attack in ("A()", "B()", "C()", "D()") for eps in (10 / 255, 20 / 255, 25 / 255)
    }
    original = finished(tmp_path / "original", "pong", "at", pong(20, 15, 10, 5), seed=1)
    judge(original, resolve("pong").game, strong | {(None, 0.0): [1.0] * 4}, seed=0)
    for seed in (1, 2):  # its copy, and another run
        other = finished(tmp_path / f"other{seed}", "pong", "at", pong(20, 15, 10, 5), seed=seed)
        for paths in ((original, other), (other, original)):
            block = only_block(*paths)
            assert [cell.median.mean for row in block.rows for cell in row.cells.values()] == [20, 15, 10, 5] * 2
            assert block.notes == (() if seed == 1 else (OTHER_EPISODES,))


def test_fewer_episodes_displace_more_only_where_nothing_else_is_shared(tmp_path: Path) -> None:
    paths = [finished(tmp_path / name, "pong", "at", pong(20, 15, 10, 5)) for name in "ab"]
    stray = {(attack, level / 255): [0.0] for attack in (PGD30, RI, "A()", "B()") for level in (10, 20, 25)}
    for path in paths:
        judge(path, resolve("pong").game, stray | {(None, 0.0): [0.0]}, seed=0)
    block = only_block(*paths)
    assert (block.episodes, block.rows[0].cells[10 / 255].median.mean) == (4, 15)
    only = finished(tmp_path / "c", "pong", "at", stray | {(None, 0.0): [0.0]})
    assert only_block(*paths, only).episodes == 1


def test_the_budget_that_tests_an_attack_is_no_column(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", "pong", "at", {(None, 0.0): [1.0] * 3, (PGD30, 1.0): [0.0] * 3})
    assert only_block(run).budgets == [0.0]


def test_agents_that_were_not_evaluated_alike_are_refused(tmp_path: Path) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    b = finished(tmp_path / "b", "pong", "at", {(None, 0.0): [1.0] * 7})
    with pytest.raises(ConfigError, match="were not evaluated alike; give 'bcl attack' the same"):
        compare_agents([a, b])


def test_different_pipelines_are_the_same_game(tmp_path: Path) -> None:
    nominal = {(None, 0.0): [1.0, 2.0, 3.0]}
    block = only_block(
        finished(tmp_path / "old", "road_runner", "at", nominal),
        finished(tmp_path / "new", "road_runner", "radial", nominal),
    )
    assert len(block.rows) == 2
    assert block.notes == (
        "seen through different pipelines (v1, v2)",
        "after a lost life NOOP, FIRE and action 2 were played, and their rewards dropped: old",
    )


@pytest.mark.parametrize("recipe", ["at", "radial"])  # v1, v2
def test_agents_judged_with_other_moves_after_a_lost_life_are_not_compared(tmp_path: Path, recipe: str) -> None:
    nominal = {(None, 0.0): [1.0, 2.0, 3.0]}
    one, other = (finished(tmp_path / name, "road_runner", recipe, nominal) for name in ("one", "other"))
    assert len(only_block(one, other).rows) == 2

    def moved(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"game": row["game"] | {"life_reset": not row["game"]["life_reset"]}}

    rewrite(other, moved)
    with pytest.raises(ConfigError, match="not evaluated alike"):
        compare_agents([one, other])


def test_scores_that_mean_other_play_are_not_compared(tmp_path: Path) -> None:
    one, other = (finished(tmp_path / name, "pong", "at", pong(20, 15, 10, 5)) for name in "ab")
    assert len(only_block(one, other).rows) == 2
    rewrite(other, lambda row: row | {"meaning": 99})
    assert len(only_block(other).rows) == 1
    with pytest.raises(ConfigError, match="not evaluated alike"):
        compare_agents([one, other])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"final_score": "a"}, "final_score = 'a' is not a number"),
        ({"conditions": 3}, "result.json' does not fit"),
        ({"flags": [3]}, "result.json' does not fit"),
        ({"budgets": [10 / 255], "attacks": [attack_to_dict(FGSM())]}, "lacks the score of FGSM at 10/255"),
    ],
)
def test_a_run_whose_evidence_is_damaged_is_refused(tmp_path: Path, damage: dict[str, Any], told: str) -> None:
    run = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    edit_result(run, lambda result: result | damage)
    with pytest.raises(StoreError, match=told):
        compare_agents([run])


def test_procgens_levels_are_blocks_and_the_median_is_by_their_sum(tmp_path: Path) -> None:
    game = resolve("fruitbot").game
    assert isinstance(game, ProcgenGame)
    train, unlimited = [30.0, 20.0, 10.0], [0.0, 9.0, 25.0]  # sums 30, 29, 35: the first is the median
    path = repeated(tmp_path / "f", "fruitbot", "bcl-mos-at", [{(None, 0.0): [v] * 3} for v in train])
    for number, value in enumerate(unlimited):
        cells = {(None, 0.0): [value] * 3}
        judge(path / f"seed{number}", dataclasses.replace(game, num_levels=0), cells, seed=number)
    first, second = compare_agents([path]).blocks
    assert (first.levels, second.levels) == ("train", "eval")
    assert [block.rows[0].median for block in (first, second)] == ["seed0", "seed0"]
    assert second.rows[0].cells[0.0].median.mean == 0
    assert second.rows[0].published is not None
    assert (second.rows[0].published.method, second.rows[0].published.levels) == ("BCL-MOS(V)-AT-PPO", "eval")


def test_varied_starts_are_a_block_of_their_own_and_do_not_choose_the_median(tmp_path: Path) -> None:
    game = resolve("pong").game
    path = repeated(tmp_path / "b", "pong", "bcl-mos-at", [pong(20, 15, 10, 5), pong(19, 12, 1, -2), pong(0, 0, 0, 0)])
    other = finished(tmp_path / "other", "pong", "bcl-mos-at", pong(21, 9, 9, 9))
    for number in range(3):
        judge(path / f"seed{number}", game, pong(-number, -number, -number, -number), seed=number, starts="varied")
    assert [block.starts for block in compare_agents([path, other]).blocks] == ["game"]
    judge(other, game, pong(7, 7, 7, 7), starts="varied")
    found = compare_agents([path, other])
    first, varied = found.blocks
    assert (first.starts, varied.starts) == ("game", "varied")
    assert [row.median for row in (first.rows[0], varied.rows[0])] == ["seed1", "seed1"]
    assert [row.cells[0.0].median.mean for row in varied.rows] == [-1, 7]
    shown = str(found)
    assert shown.count("pong: mean return") == 1
    assert shown.count("pong with varied starts: mean return") == 1


def test_every_game_is_a_block(tmp_path: Path) -> None:
    nominal = {(None, 0.0): [1.0, 2.0, 3.0]}
    paths = [finished(tmp_path / name, name, "vanilla", nominal) for name in ("pong", "cartpole")]
    assert [block.game for block in compare_agents(paths).blocks] == ["pong", "CartPole-v1"]
    figure = draw(compare_agents(paths))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pong", "CartPole-v1"]


def decided(folder: Path, index: int, runs: list[int | str]) -> None:
    candidates = tuple(Candidate(run, None, None, {}) for run in runs)  # type: ignore[arg-type]
    phase = Phase(index, 0.0, 0.1, 3)
    made = Decision(phase, (None, None), candidates, candidates[0].run, 0, (), index + 1, None)
    PhaseFolder(folder / "phases" / f"{index:03d}", index).keep(made, lambda: 1.0)


def trained(folder: Path, steps: list[int], rate: float) -> None:
    for step in steps:
        store.append_row(folder / "metrics.jsonl", {"step": step, "steps_per_second": rate})


def test_effort_counts_what_the_papers_table_counts(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", "pong", "bcl-mos-at", pong(20, 15, 10, 5))
    trained(run / "stages" / "1-vanilla", [1000], 100)
    trained(run / "stages" / "2-radial", [1000], 100)
    stage = run / "stages" / "3-at"
    decided(stage, 0, [INCUMBENT])
    decided(stage, 1, [1, 2])
    decided(stage, 2, [1, INCUMBENT])
    trained(stage / "phases" / "001" / "run1", [100, 200], 10)  # 20 s
    trained(stage / "phases" / "001" / "run2", [200], 20)  # 10 s
    trained(stage / "phases" / "001" / "run3", [50], 1)  # cancelled: no decision names it
    trained(stage / "phases" / "002" / "run1", [300], 10)  # 30 s
    found = effort(run)
    assert dataclasses.replace(found, machine="") == Effort(runs=3, before=2, steps=700, seconds=60.0, machine="")
    assert found.seconds_per_run == 20
    [_, took] = tables(compare_agents([run]))
    assert (took.header[2], took.header[6]) == ("paper's runs", "paper's time")
    assert took.rows[0][:7] == ("a", "3", "20, 18, 20", "2", "233", "20 s", "12 h")
    untrained = finished(tmp_path / "c", "pong", "bcl-mos-at", pong(20, 15, 10, 5))
    assert tables(compare_agents([untrained]))[-1].rows[0][1:7] == ("0", "20, 18, 20", "2", "", "", "12 h")
    with_one_stage = finished(tmp_path / "b", "pong", "radial", pong(20, 15, 10, 5))
    assert (effort(with_one_stage).runs, effort(with_one_stage).before) == (1, 1)
    without_metrics = tables(compare_agents([with_one_stage]))[-1]
    shown = dict(zip(without_metrics.header, without_metrics.rows[0], strict=True))
    assert (shown["training runs"], shown["steps each"], shown["time each"]) == ("1", "", "")


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    whole = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    unfinished = finished(tmp_path / "b", "pong", "at", pong(20, 15, 10, 5))
    (unfinished / "result.json").unlink()
    lost = finished(tmp_path / "c", "pong", "at", pong(20, 15, 10, 5))
    shutil.rmtree(lost / "evals")
    damaged, nameless = (finished(tmp_path / name, "pong", "at", pong(20, 15, 10, 5)) for name in "de")
    (damaged / "result.json").write_text('{"pol')
    (nameless / "result.json").write_text("{}")
    errors: list[tuple[list[Path], type[BclError], str]] = [
        ([whole, whole], ConfigError, "given twice"),
        ([unfinished], StoreError, "is not finished; 'bcl resume"),
        ([damaged], StoreError, "d/result.json' is damaged"),
        ([nameless], StoreError, "e/result.json' does not fit"),
        ([lost], StoreError, "lacks the score of nominal"),
        ([tmp_path / "nothing"], StoreError, "does not exist; check the path"),
    ]
    for paths, kind, words in errors:
        with pytest.raises(kind, match=words):
            compare_agents(paths)
    with pytest.raises(ConfigError, match="end it in png, svg, pdf"):
        figure_format(Path("x.jpeg"))
