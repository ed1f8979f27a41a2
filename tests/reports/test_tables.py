"""Tables and figures of a comparison of runs made by hand."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from bcl.reports.compare import compare_agents
from bcl.reports.figures import comparison as draw
from bcl.reports.figures import encoded, figure_format
from bcl.reports.tables import as_latex, as_markdown, tables
from bcl.result import Table
from tests.reports.compared import PGD30, finished, pong, repeated


def test_tables_carry_the_papers_numbers_beside(tmp_path: Path) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    b = repeated(tmp_path / "b", "pong", "bcl-mos-at", [pong(20, 15, 10, 5), pong(19, 12, 1, -2), pong(0, 0, 0, 0)])
    returns, improvement, took = tables(compare_agents([a, b]))
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


def test_where_less_hurts_more_the_papers_number_has_a_row_of_its_own(tmp_path: Path) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 4, 10, 5))
    b = finished(tmp_path / "b", "pong", "vanilla", pong(20, 15, 10, 5))
    returns, *_ = tables(compare_agents([a, b]))
    assert [row[0] for row in returns.rows] == [
        "a",
        "  at exactly this budget",
        "  paper: AT-DQN",
        "b",
        "  paper: DQN (Vanilla)",
    ]
    within, exactly = ([cell.split(" ")[0] for cell in row[1:]] for row in returns.rows[:2])
    assert within == ["20", "4", "4", "4", "24"]
    assert exactly == ["20", "4", "10", "5", "26.33"]
    assert "score: no attack + mean within 10/255, 20/255, 25/255" in returns.notes
    told = "'at exactly this budget' and 'paper': the worst attack at exactly each budget, and the score of that"
    assert told in returns.notes


def test_games_that_the_paper_has_not_played_have_no_columns_of_it(tmp_path: Path) -> None:
    took = tables(compare_agents([finished(tmp_path / "a", "cartpole", "vanilla", {(None, 0.0): [1.0, 2.0, 3.0]})]))[-1]
    assert took.header == ("agent", "training runs", "before", "steps each", "time each", "machine")
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
    data = json.loads(json.dumps(compare_agents([path]).to_dict()))
    [row] = data["blocks"][0]["rows"]
    assert row["cells"][1]["eps"] == 10 / 255
    assert row["cells"][1]["run_means"] == [15, 12, 0]
    assert {*row["cells"][1]["median"]} == {"attack", "eps", "mean", "sem", "interval"}
    assert {*row["cells"][1]["exactly"]} == {*row["cells"][1]["median"]}
    assert (row["score"], row["paper_score"]) == (19 + (12 + 1 - 2) / 3,) * 2
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
    figure = draw(compare_agents([a, b]))
    top, bottom = figure.axes
    drawn = {tuple(line.get_ydata()) for line in top.lines}
    assert {(20, 15, 10, 5), (20, 18, 17, 16), (21.0, 21.0, 20.9, 20.9)} <= drawn  # the last is the paper's
    assert any(tuple(line.get_ydata()) == (0.5, 1, 1, 1) for line in bottom.lines)
    assert encoded(figure, figure_format(Path(f"x.{ending}"))).startswith(magic)


def test_a_figure_shows_the_median_run_and_says_what_it_shows(tmp_path: Path) -> None:
    a = finished(tmp_path / "a", "pong", "at", pong(20, 15, 10, 5))
    b = repeated(tmp_path / "b", "pong", "bcl-mos-at", [pong(20, 15, 10, 5), pong(19, 12, 1, -2), pong(0, 0, 0, 0)])
    comparison = compare_agents([a, b])
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
    cells = {(None, 0.0): [21.0] * 3} | {(PGD30, level / 255): [21.0 - level] * 3 for level in range(1, 26)}
    names = [f"agent-{number}-of-seven" for number in range(7)]
    figure = draw(compare_agents([finished(tmp_path / name, "cartpole", "at", cells) for name in names]))
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
