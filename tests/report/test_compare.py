"""Comparisons of runs made by hand, so that every number is known."""

import dataclasses
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bcl import experiment, stats
from bcl.attacks import PGD, RIFGSM, SUITES
from bcl.config import resolve, resolve_stages
from bcl.curriculum import INCUMBENT, Candidate, Decision, Phase
from bcl.errors import BclError, ConfigError, StoreError
from bcl.evaluation import Score
from bcl.evaluation.score import NO_ATTACK
from bcl.games import Game, ProcgenGame, game_to_dict
from bcl.reports.compare import Block, Missing, compare
from bcl.reports.compare_figure import draw, encoded, figure_format
from bcl.reports.effort import Effort, effort
from bcl.reports.tables import Table, as_json, as_latex, as_markdown, tables
from bcl.runs import store

PGD30, RI = repr(PGD(steps=30, step=0.1)), repr(RIFGSM())
Cells = Mapping[tuple[str, float], list[float]]


def judge(folder: Path, game: Game, cells: Cells, policy: str = "p", seed: int = 1) -> None:
    """Scores as `bcl attack` stores them."""
    for (attack, eps), returns in cells.items():
        score = Score(attack, eps, tuple(returns), (1,) * len(returns), 0.0, eps, 0.0, seed, "fixed")
        about = {"game": game_to_dict(game), "num_envs": len(returns), "policy": f"{policy} on cpu", "bcl": "0"}
        number = len([*(folder / "evals").glob("*")])
        store.write_json(folder / "evals" / f"eps-{number:03d}.json", score.to_dict() | about)


def finished(
    path: Path, preset: str, recipe: str, cells: Cells, seed: int = 1, flags: Mapping[str, Any] | None = None
) -> Path:
    """A run that ended, without the training."""
    stages = resolve_stages(preset, recipe=recipe, flags=flags)
    experiment.create(path, stages, "cpu", None)
    judge(path, stages[-1][1].game, cells, seed=seed)
    store.write_json(path / "result.json", {"policy": "p"})
    return path


def repeated(path: Path, preset: str, recipe: str, cells: list[Cells]) -> Path:
    for number, one in enumerate(cells):
        finished(path / f"seed{number}", preset, recipe, one, seed=number)
    store.write_json(path / store.REPEATS, {"runs": [f"seed{i}" for i in range(len(cells))]})
    return path


def pong(nominal: float, at10: float, at20: float, at25: float) -> Cells:
    """Four episodes around each mean; RI-FGSM is the weaker attack."""
    found = {(NO_ATTACK, 0.0): [nominal - 1, nominal, nominal, nominal + 1]}
    for level, mean in ((10, at10), (20, at20), (25, at25)):
        found[PGD30, level / 255] = [mean - 1, mean, mean, mean + 1]
        found[RI, level / 255] = [mean + 5] * 4
    return found


def only_block(*paths: Path) -> Block:
    [block] = compare(paths).blocks
    return block


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


def test_repeats_are_one_row_the_median_by_score_shown(tmp_path: Path) -> None:
    # Scores 20 + 10 = 30, 10 + 0 = 10, 21 - 3 = 18: the third is the median, though its nominal return is the highest.
    means = [(20, 15, 10, 5), (10, 0, 0, 0), (21, 0, -3, -6)]
    path = repeated(tmp_path / "three", "pong", "bcl-mos-at", [pong(*m) for m in means])
    [row] = only_block(path).rows
    assert (row.median, row.score) == ("seed2", 18)
    assert [cell.median.mean for cell in row.cells.values()] == [21, 0, -3, -6]
    assert row.cells[0.0].median.interval == stats.mean_interval([[20, 21, 21, 22]])
    assert row.cells[0.0].over_repeats.mean == 17  # (20 + 10 + 21) / 3
    runs = [[19.0, 20.0, 20.0, 21.0], [9.0, 10.0, 10.0, 11.0], [20.0, 21.0, 21.0, 22.0]]
    assert row.cells[0.0].over_repeats.interval == stats.mean_interval(runs)


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
    nominal = {(NO_ATTACK, 0.0): [1.0, 2.0, 3.0, 4.0]}
    block = only_block(full, finished(tmp_path / "vanilla", "pong", "vanilla", nominal))
    assert block.attacks[10 / 255] == (PGD30, RI)
    assert [*block.rows[1].cells] == [0.0]
    assert block.rows[1].score is None
    assert "vanilla was judged by nominal play alone" in block.notes
    assert block.missing == Missing("vanilla", "vanilla", "paper", (10 / 255, 20 / 255, 25 / 255))


def test_a_budget_with_fewer_attacks_is_named_and_gives_no_score(tmp_path: Path) -> None:
    whole = pong(20, 15, 10, 5)
    part = {key: value for key, value in whole.items() if key != (RI, 10 / 255)}
    assert only_block(finished(tmp_path / "whole", "pong", "at", whole)).rows[0].score is not None
    block = only_block(finished(tmp_path / "part", "pong", "at", part))
    assert block.notes == ("at 10/255 the worst is over PGD-30 alone",)
    assert block.rows[0].score is None
    assert block.rows[0].cells[10 / 255].median.mean == 15


def test_where_no_attack_is_shared_the_suite_and_the_agent_without_it_are_named(tmp_path: Path) -> None:
    def by(suite: str, *budgets: float) -> Cells:
        attacked: Cells = {(repr(attack), eps): [1.0] * 3 for attack in SUITES[suite] for eps in budgets}
        return {(NO_ATTACK, 0.0): [1.0] * 3, **attacked}

    first = repeated(tmp_path / "a", "cartpole", "at", [by("paper", 0.1), by("quick", 0.1)])
    block = only_block(first, finished(tmp_path / "b", "cartpole", "at", by("paper", 0.1, 0.2)))
    assert block.missing == Missing("a", "seed1", "paper", (0.1,))
    assert block.notes == ("at 0.1 no attack was faced by all; judge each by --suite paper",)
    for run in (first / "seed0", first / "seed1"):
        judge(run, resolve("cartpole").game, by("paper", 0.1), seed=7)
    block = only_block(first, tmp_path / "b")
    assert (block.missing, block.notes) == (None, ())


def test_the_evaluation_that_all_share_is_taken(tmp_path: Path) -> None:
    game = resolve("pong").game
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5), seed=1)
    b = finished(tmp_path / "b", "pong", "at", pong(19, 15, 10, 5), seed=2)
    for path, mean in ((a, 7.0), (b, 8.0)):  # with as many scores, and the same seed
        judge(path, game, pong(mean, 0, 0, 0), seed=0)
    judge(a, game, {(NO_ATTACK, 0.0): [99.0] * 9}, seed=0)  # other episodes, which b does not have
    judge(a, game, pong(55, 0, 0, 0), policy="another", seed=4)
    assert [row.cells[0.0].median.mean for row in only_block(a, b).rows] == [7, 8]


def test_what_all_share_counts_not_what_one_has_more_of(tmp_path: Path) -> None:
    strong = {
        (attack, eps): [0.0] * 4 for attack in ("A()", "B()", "C()", "D()") for eps in (10 / 255, 20 / 255, 25 / 255)
    }
    original = finished(tmp_path / "original", "pong", "at", pong(20, 15, 10, 5), seed=1)
    judge(original, resolve("pong").game, strong | {(NO_ATTACK, 0.0): [1.0] * 4}, seed=0)
    for seed in (1, 2):  # its copy, and another run
        other = finished(tmp_path / f"other{seed}", "pong", "at", pong(20, 15, 10, 5), seed=seed)
        for paths in ((original, other), (other, original)):
            block = only_block(*paths)
            assert [cell.median.mean for row in block.rows for cell in row.cells.values()] == [20, 15, 10, 5] * 2
            assert block.notes == ()


def test_fewer_episodes_displace_more_only_where_nothing_else_is_shared(tmp_path: Path) -> None:
    paths = [finished(tmp_path / name, "pong", "at", pong(20, 15, 10, 5)) for name in "ab"]
    stray = {(attack, level / 255): [0.0] for attack in (PGD30, RI, "A()", "B()") for level in (10, 20, 25)}
    for path in paths:
        judge(path, resolve("pong").game, stray | {(NO_ATTACK, 0.0): [0.0]}, seed=0)
    block = only_block(*paths)
    assert (block.episodes, block.rows[0].cells[10 / 255].median.mean) == (4, 15)
    only = finished(tmp_path / "c", "pong", "at", stray)
    assert only_block(*paths, only).episodes == 1


def test_the_budget_that_tests_an_attack_is_no_column(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", "pong", "at", {(NO_ATTACK, 0.0): [1.0] * 3, (PGD30, 1.0): [0.0] * 3})
    assert only_block(run).budgets == [0.0]


def test_agents_that_were_not_judged_alike_are_refused(tmp_path: Path) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    b = finished(tmp_path / "b", "pong", "at", {(NO_ATTACK, 0.0): [1.0] * 7})
    with pytest.raises(ConfigError, match="were not judged alike; give 'bcl attack' the same"):
        compare([a, b])


def test_different_pipelines_are_the_same_game(tmp_path: Path) -> None:
    nominal = {(NO_ATTACK, 0.0): [1.0, 2.0, 3.0]}
    block = only_block(
        finished(tmp_path / "old", "road_runner", "at", nominal, flags={"game": {"max_steps": 10_000}}),
        finished(tmp_path / "new", "road_runner", "radial", nominal, flags={"game": {"max_steps": 10_000}}),
    )
    assert len(block.rows) == 2
    assert block.notes == ("seen through different pipelines (v1, v2)",)


def test_procgens_levels_are_blocks_and_the_median_is_by_their_sum(tmp_path: Path) -> None:
    game = resolve("fruitbot").game
    assert isinstance(game, ProcgenGame)
    train, unlimited = [30.0, 20.0, 10.0], [0.0, 9.0, 25.0]  # sums 30, 29, 35: the first is the median
    path = repeated(tmp_path / "f", "fruitbot", "bcl-mos-at", [{(NO_ATTACK, 0.0): [v] * 3} for v in train])
    for number, value in enumerate(unlimited):
        cells = {(NO_ATTACK, 0.0): [value] * 3}
        judge(path / f"seed{number}", dataclasses.replace(game, num_levels=0), cells, seed=number)
    first, second = compare([path]).blocks
    assert (first.levels, second.levels) == ("train", "eval")
    assert [block.rows[0].median for block in (first, second)] == ["seed0", "seed0"]
    assert second.rows[0].cells[0.0].median.mean == 0
    assert second.rows[0].published is not None
    assert (second.rows[0].published.method, second.rows[0].published.levels) == ("BCL-MOS(V)-AT-PPO", "eval")


def test_every_game_is_a_block(tmp_path: Path) -> None:
    nominal = {(NO_ATTACK, 0.0): [1.0, 2.0, 3.0]}
    paths = [finished(tmp_path / name, name, "vanilla", nominal) for name in ("pong", "cartpole")]
    assert [block.game for block in compare(paths).blocks] == ["pong", "CartPole-v1"]
    figure = draw(compare(paths))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pong", "CartPole-v1"]


def decided(folder: Path, index: int, runs: list[int | str]) -> None:
    candidates = tuple(Candidate(run, None, None, {}) for run in runs)  # type: ignore[arg-type]
    fields = {field.name: None for field in dataclasses.fields(Decision)}
    made = fields | {"phase": Phase(index, 0.0, 0.1, 3), "candidates": candidates}
    plain = json.loads(json.dumps(made, default=dataclasses.asdict))
    store.write_json(folder / "phases" / f"{index:03d}" / "decision.json", {"decision": plain, "seconds": 1.0})


def trained(folder: Path, steps: list[int], rate: float) -> None:
    with store.MetricsFile(folder / "metrics.jsonl") as file:
        for step in steps:
            file.append({"step": step, "steps_per_second": rate})


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
    [_, took] = tables(compare([run]))
    assert (took.header[2], took.header[6]) == ("paper's runs", "paper's time")
    assert took.rows[0][:7] == ("a", "3", "20, 18, 20", "2", "233", "20 s", "12 h")
    untrained = finished(tmp_path / "c", "pong", "bcl-mos-at", pong(20, 15, 10, 5))
    assert tables(compare([untrained]))[-1].rows[0][1:7] == ("0", "20, 18, 20", "2", "", "", "12 h")
    with_one_stage = finished(tmp_path / "b", "pong", "radial", pong(20, 15, 10, 5))
    assert (effort(with_one_stage).runs, effort(with_one_stage).before) == (1, 1)
    without_metrics = tables(compare([with_one_stage]))[-1]
    shown = dict(zip(without_metrics.header, without_metrics.rows[0], strict=True))
    assert (shown["training runs"], shown["steps a run"], shown["time a run"]) == ("1", "", "")


def test_tables_carry_the_papers_numbers_beside(tmp_path: Path) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    b = repeated(tmp_path / "b", "pong", "bcl-mos-at", [pong(20, 15, 10, 5), pong(19, 12, 1, -2), pong(0, 0, 0, 0)])
    returns, improvement, took = tables(compare([a, b]))
    assert returns.header == ("agent", "no attack", "10/255", "20/255", "25/255", "score")
    names = [row[0] for row in returns.rows]
    assert names == ["a", "  paper: AT-DQN", "b, median of 3 (seed1)", "  mean over repeats", "  paper: BCL-MOS-AT-DQN"]
    assert returns.rows[0][1].startswith("20 ± 0.35 [")
    assert returns.rows[1][1:] == (
        "20.8 ± 0.1",
        "9.9 ± 3.7",
        "\N{MINUS SIGN}20.8 ± 0.1",
        "\N{MINUS SIGN}21 ± 0",
        "10.17",
    )
    assert [cell.split(" [")[0] for cell in returns.rows[2][1:]] == [
        *("19 ± 0.35", "12 ± 0.35", "1 ± 0.35", "\N{MINUS SIGN}2 ± 0.35"),
        "22.67",
    ]
    assert returns.rows[2][1] == "19 ± 0.35 [18.25, 19.75]"
    assert returns.rows[3][2].startswith("9 [")
    assert improvement.rows[0][0] == "b"
    assert took.rows[1][1:3] == ("0, 0, 0", "20, 18, 20")  # nothing was trained here
    assert "PGD-30, RI-FGSM" in returns.title


def test_games_that_the_paper_has_not_played_have_no_columns_of_it(tmp_path: Path) -> None:
    took = tables(compare([finished(tmp_path / "a", "cartpole", "vanilla", {(NO_ATTACK, 0.0): [1.0, 2.0, 3.0]})]))[-1]
    assert took.header == ("agent", "training runs", "runs before", "steps a run", "time a run", "machine")
    assert len(took.rows[0]) == len(took.header)


TABLE = Table("50 % of a_b", ("agent", "x|y"), (("a", "\N{MINUS SIGN}1 ± 2"), ("  b", "")), ("note",))


def test_markdown() -> None:
    expected = "**50 % of a_b**\n\n| agent | x\\|y |\n| --- | --- |\n| a | \N{MINUS SIGN}1 ± 2 |\n|   b |  |\n\nnote"
    assert as_markdown(TABLE) == expected
    marked = as_markdown(Table("a<b>", ("agent",), (("<i>|",),), ("c<'d'",))).splitlines()
    assert marked == ["**a&lt;b&gt;**", "", "| agent |", "| --- |", r"| &lt;i&gt;\| |", "", "c&lt;'d'"]


def test_latex() -> None:
    lines = as_latex(TABLE).splitlines()
    assert lines[:3] == [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering"]
    assert r"\caption{50 \% of a\_b. note}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"a & $-$1 $\pm$ 2 \\" in lines
    assert r"\quad b &  \\" in lines
    starred = as_latex(Table("t", ("agent",), (("[2pt]",), ("*a",)))).splitlines()
    assert r"{}[2pt] \\" in starred
    assert r"{}*a \\" in starred


def test_json_is_whole(tmp_path: Path) -> None:
    path = repeated(tmp_path / "b", "pong", "bcl-mos-at", [pong(20, 15, 10, 5), pong(19, 12, 1, -2), pong(0, 0, 0, 0)])
    data = json.loads(json.dumps(as_json(compare([path]))))
    [row] = data["blocks"][0]["rows"]
    assert row["cells"][1]["eps"] == 10 / 255
    assert row["cells"][1]["run_means"] == [15, 12, 0]
    assert {*row["cells"][1]["median"]} == {"attack", "mean", "sem", "interval"}
    for part, mean in (("median", 12), ("over_repeats", 9)):
        found = row["cells"][1][part]
        assert found["mean"] == mean
        assert found["interval"]["low"] < mean < found["interval"]["high"]
    assert row["published"]["mean"] == [21.0, 21.0, 20.9, 20.9]
    assert [one["runs"] for one in data["runs"][0]["repeats"]] == [0, 0, 0]


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_show_what_was_measured(tmp_path: Path, ending: str, magic: bytes) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    b = finished(tmp_path / "b", "pong", "bcl-mos-at", pong(20, 18, 17, 16))
    figure = draw(compare([a, b]))
    top, bottom = figure.axes
    drawn = {tuple(line.get_ydata()) for line in top.lines}
    assert {(20, 15, 10, 5), (20, 18, 17, 16), (21.0, 21.0, 20.9, 20.9)} <= drawn  # the last is the paper's
    assert any(tuple(line.get_ydata()) == (0.5, 1, 1, 1) for line in bottom.lines)
    assert encoded(figure, figure_format(Path(f"x.{ending}"))).startswith(magic)


def test_a_figure_shows_the_median_run_and_says_what_it_shows(tmp_path: Path) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    b = repeated(tmp_path / "b", "pong", "bcl-mos-at", [pong(20, 15, 10, 5), pong(19, 12, 1, -2), pong(0, 0, 0, 0)])
    comparison = compare([a, b])
    figure = draw(comparison)
    shown = figure.axes[0].containers[1]
    assert tuple(shown.lines[0].get_ydata()) == (19, 12, 1, -2)
    bars = [(low[1], high[1]) for low, high in shown.lines[2][0].get_segments()]
    intervals = [cell.median.interval for cell in comparison.blocks[0].rows[1].cells.values()]
    assert bars == [pytest.approx((one.low, one.high)) for one in intervals if one]
    [legend] = figure.subfigs[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b, median of 3", "paper"]
    caption = "Mean of 4 episodes, bars are 95 % intervals; attacks: PGD-30, RI-FGSM; below, the first is 'a'."
    assert " ".join(legend.get_title().get_text().split()) == caption


def test_a_figure_of_many_rows_and_budgets_stays_readable(tmp_path: Path) -> None:
    cells = {(NO_ATTACK, 0.0): [21.0] * 3} | {(PGD30, level / 255): [21.0 - level] * 3 for level in range(1, 26)}
    names = [f"agent-{number}-of-seven" for number in range(7)]
    figure = draw(compare([finished(tmp_path / name, "cartpole", "at", cells) for name in names]))
    figure.canvas.draw()
    top, bottom = figure.axes
    rows = [container.lines[0] for container in top.containers]
    assert len({(row.get_color(), row.get_marker(), row.get_linestyle()) for row in rows}) == 7
    assert len({row.get_marker() for row in rows}) == 7
    ticks = [label.get_window_extent() for label in bottom.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(ticks))
    [legend] = figure.subfigs[0].legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert figure.bbox.containsx(legend.get_window_extent().x1)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    whole = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    unfinished = finished(tmp_path / "b", "pong", "at", pong(20, 15, 10, 5))
    (unfinished / "result.json").unlink()
    never = finished(tmp_path / "c", "pong", "at", {})
    damaged, nameless = (finished(tmp_path / name, "pong", "at", pong(20, 15, 10, 5)) for name in "de")
    (damaged / "result.json").write_text('{"pol')
    (nameless / "result.json").write_text("{}")
    errors: list[tuple[list[Path], type[BclError], str]] = [
        ([whole, whole], ConfigError, "given twice"),
        ([unfinished], StoreError, "is not finished; 'bcl resume"),
        ([damaged], StoreError, "d/result.json' is damaged"),
        ([nameless], StoreError, "e/result.json' is damaged"),
        ([never], StoreError, "has not been judged; 'bcl attack"),
        ([tmp_path / "nothing"], StoreError, "not a run directory"),
    ]
    for paths, kind, words in errors:
        with pytest.raises(kind, match=words):
            compare(paths)
    with pytest.raises(ConfigError, match="end it in png, svg, pdf"):
        figure_format(Path("x.jpeg"))
