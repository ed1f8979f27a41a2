"""Figures show the data they are given."""

import re
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from bcl.attacks import suite
from bcl.reports import figures
from bcl.reports.collect import Collected, collect
from bcl.reports.frames import Frame
from bcl.reports.history import TimelineBar
from bcl.reports.style import COLOURS, DARK, LIGHT, aligned, number, styles


@pytest.fixture
def collected(pong_run: Path) -> Collected:
    return collect(pong_run)


def test_a_line_per_attack_the_worst_bold_the_paper_hollow(collected: Collected) -> None:
    figure = figures.return_against_budget(collected.evaluations[0], collected.published, 860)
    [axes] = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    bold = lines["worst within"]
    assert bold.get_xdata() == pytest.approx([0, 10 / 255, 20 / 255, 25 / 255])
    assert bold.get_ydata() == pytest.approx([62 / 3, 20, 15, 4])
    drawn = {container.get_label(): container for container in axes.containers}
    assert [*drawn] == ["PGD-30", "RI-FGSM", "Multi 1000", "Multi-T 1000", "the paper"]
    assert drawn["RI-FGSM"].lines[0].get_ydata() == pytest.approx([62 / 3, 20.5, 15.5, 4.5])
    assert bold.get_linewidth() > 2 * drawn["PGD-30"].lines[0].get_linewidth()
    assert bold.get_zorder() > max(drawn[label].lines[0].get_zorder() for label in ("PGD-30", "Multi-T 1000"))
    hollow = drawn["the paper"].lines[0]
    assert hollow.get_markerfacecolor() == "none"
    assert hollow.get_ydata() == pytest.approx([21, 21, 20.9, 20.9])
    assert figure.legends[0].get_texts()[0].get_text() == "worst within"
    assert all(isinstance(handle, Line2D) for handle in figure.legends[0].legend_handles)  # without bars of errors
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "10", "20", "25"]


def test_error_bars_need_three_episodes(collected: Collected) -> None:
    first = collected.evaluations[0]
    few = replace(first, scores=tuple(replace(s, returns=s.returns[:2], lengths=s.lengths[:2]) for s in first.scores))
    for evaluation, bars in ((first, True), (few, False)):
        [axes] = figures.return_against_budget(evaluation, None, 860).axes
        assert all(container.has_yerr == bars for container in axes.containers)


def test_a_bar_per_run_and_an_arrow_per_skip(collected: Collected) -> None:
    history = collected.timeline
    assert history is not None
    [axes] = figures.timeline(history, 860).axes
    bars = [patch for container in axes.containers for patch in container if isinstance(patch, Rectangle)]
    assert [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars] == [
        pytest.approx((bar.start / 60, bar.end / 60)) for bar in history.bars
    ]
    solid = [bar.get_facecolor()[3] == 1 for bar in bars]
    assert solid == [bar.state == "kept" for bar in history.bars]
    # Runs of one phase do not hide each other.
    third = [bar for bar, data in zip(bars, history.bars, strict=True) if data.phase == 4]
    assert all(a.get_y() >= b.get_y() + b.get_height() - 1e-9 for a, b in combinations(third, 2))
    # Rows, whatever their budgets: 0, 1, 3, 5, 6, 7 and 25 gray levels.
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "3", "5", "6", "7", "25"]
    assert [(text.xy, text.xyann) for text in axes.texts] == [((1.5, 3), (1.5, 2)), ((190 / 60, 6), (190 / 60, 5))]
    assert axes.get_xlim()[1] > max(s.at for s in history.skips) / 60


def test_25_phases_stay_readable(collected: Collected) -> None:
    history = collected.timeline
    assert history is not None
    runs = [(phase, run) for phase in range(1, 26) for run in (1, 2, 3)]
    bars = tuple(TimelineBar(p, r, 3, p / 255, 60.0 * p, 60.0 * p + 20 * r, "not kept", False) for p, r in runs)
    figure = figures.timeline(replace(history, bars=bars, skips=()), 350)
    figure.canvas.draw()
    boxes = [patch.get_window_extent() for container in figure.axes[0].containers for patch in container]
    pixels = figures.PIXELS_PER_INCH / figure.dpi
    assert min(box.height for box in boxes) * pixels >= 4
    ordered = sorted(boxes, key=lambda box: box.y0)
    assert all(above.y0 > below.y1 for below, above in pairwise(ordered))


def test_a_panel_per_phase_the_kept_run_in_colour(collected: Collected) -> None:
    history = collected.timeline
    assert history is not None
    panels = [axes for axes in figures.learning_curves(history, 860).axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in panels] == [panel.title for panel in history.panels]
    other, kept = panels[2].get_lines()
    assert (other.get_color(), kept.get_color()) == (LIGHT["muted"], LIGHT["blue"])
    assert list(kept.get_ydata()) == [18.0, 20.0]
    [vanilla, radial, third, fourth] = panels
    assert third.get_ylim() == fourth.get_ylim()
    assert len({vanilla.get_ylim(), radial.get_ylim(), third.get_ylim()}) == 3
    assert len([axes for axes in figures.learning_curves(history, 350).axes if axes.axison]) == len(panels)


def test_certificates_per_method(collected: Collected) -> None:
    upper, lower = figures.certificates(collected.proofs, 760).axes
    assert [list(line.get_ydata()) for line in upper.get_lines()] == [[100.0, 75.0], [90.0, 20.0]]
    assert [list(line.get_ydata()) for line in lower.get_lines()][:2] == [[20.0, 15.0], [18.0, 4.0]]


@pytest.mark.parametrize("width", [350, 760])
def test_a_legend_of_long_names_is_not_cut(collected: Collected, width: int) -> None:
    proofs = [
        replace(p, levels=levels, episodes=n) for p in collected.proofs for levels in ("train", "eval") for n in (5, 20)
    ]
    figure = figures.certificates(proofs, width)
    figure.canvas.draw()
    [legend] = figure.legends
    assert legend.get_texts()[0].get_text() == "crown, on the training levels, 5 episodes, seed 0"
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_an_observation_dimension_by_dimension() -> None:
    clean = np.array([0.5, -0.25])
    frame = Frame(1, clean, clean + np.array([0.1, -0.05]), "left", "right", None)
    left, right = figures.observation(frame, 0.1, ("angle", "rate"), 300).axes
    assert [bar.get_width() for bar in left.patches] == pytest.approx([0.5, -0.25, 0.6, -0.3])
    assert [bar.get_width() for bar in right.patches] == pytest.approx([0.1, -0.05])
    assert [label.get_text() for label in left.get_yticklabels()] == ["angle", "rate"]


def test_many_budgets_get_round_ticks(collected: Collected) -> None:
    first = collected.evaluations[0]
    attack = first.attacks[0]
    many = tuple(replace(first.scores[1], attack=attack, eps=level / 255) for level in range(1, 26))
    [axes] = figures.return_against_budget(replace(first, scores=many), None, 350).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "5", "10", "15", "20", "25"]


def test_colours_become_variables(collected: Collected) -> None:
    figure = figures.return_against_budget(collected.evaluations[0], None, 350)
    markup = figures.svg(figure, "one", "a label")
    assert not re.findall(r"#[0-9a-f]{6}", markup)
    assert "var(--blue)" in markup
    assert 'aria-label="a label"' in markup
    assert ">PGD-30</text>" in markup  # text stays text


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_told_from_the_page_and_from_each_other(palette: dict[str, str]) -> None:
    paper = luminance(palette["paper"])
    for name in COLOURS.keys() - {"paper", "rule"}:
        light, dark = sorted((luminance(palette[name]), paper), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4, name
    assert len({*palette.values()}) == len(palette)


def test_attacks_are_told_apart_without_colour() -> None:
    looks = styles([*suite("strong")]).values()
    assert len({(look["marker"], look["linestyle"]) for look in looks}) == len(looks)
    assert len({look["label"] for look in looks}) == len(looks)
    # Nor do lines of one hue hang on the dash alone, which crowded points hide.
    assert len({(look["color"], look["linestyle"]) for look in looks}) == len(looks)
    assert len({(look["color"], look["marker"], look["markerfacecolor"]) for look in looks}) == len(looks)


def test_a_column_has_one_number_of_decimals() -> None:
    minus = "\N{MINUS SIGN}"
    assert aligned([-97.75, -105.6, -89.0]) == [f"{minus}97.8", f"{minus}105.6", f"{minus}89.0"]
    assert aligned([20.0, 15.0, -0.0]) == ["20", "15", "0"]
    assert aligned([12_345.6, 7.0]) == ["12,346", "7"]
    assert aligned([0.58, 12.0, 0.0], errors=True) == ["0.6", "12.0", "0.0"]
    assert aligned([0.4714, 0.4082], errors=True) == ["0.47", "0.41"]


def test_numbers_have_four_digits_and_a_true_minus() -> None:
    minus = "\N{MINUS SIGN}"
    values = (20.6667, -116.04, 43_390.4, -0.0, 0.00012)
    assert [number(value) for value in values] == ["20.67", f"{minus}116", "43,390", "0", "0.00012"]
