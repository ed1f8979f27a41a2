"""A comparison as a figure: returns against budgets, and below them the probability of improvement."""

import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bcl import stats
from bcl.attacks import attack_labels
from bcl.errors import ConfigError, counted
from bcl.reports.compare import Block, Comparison, Row
from bcl.reports.figures import budget_axis, legend
from bcl.reports.style import LIGHT, RC

FORMATS = ("png", "svg", "pdf")
_COLOURS = ("blue", "vermilion", "green", "purple", "ochre", "muted")
_MARKERS = ("o", "s", "D", "^", "P", "X", "v", "<", ">", "d", "h", "p")
_LEGEND = ((3, 14), (2, 28))  # columns, and letters of the longest name that they have room for
_CAPTION_LETTERS = 95  # of a line as wide as a column
_DASHES = ("-", (0, (4, 1.5)))  # of the first round of colours, and of the second; dots are the paper's


def figure_format(path: Path) -> str:
    """By the name's ending; refuses others."""
    ending = path.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ConfigError(f"--figure {path} is no picture that can be drawn", f"end it in {', '.join(FORMATS)}")
    return ending


def draw(comparison: Comparison) -> Figure:
    """A column per block. Solid: measured, of repeats the median run, with 95 % intervals; hollow and dotted: the
    paper's."""
    blocks = comparison.blocks
    rows = 2 if any(len(block.rows) > 1 for block in blocks) else 1
    longest = max(len(_name(row)) for block in blocks for row in block.rows)
    columns = next((columns for columns, letters in _LEGEND if longest <= letters), 1)
    lines = max(-(-(len(block.rows) + 1) // columns) for block in blocks)
    captions = [textwrap.fill(_caption(block), _CAPTION_LETTERS) for block in blocks]
    height = 3.6 + 2.4 * (rows - 1) + 0.25 * lines + 0.17 * max(1 + text.count("\n") for text in captions)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(6.4 * len(blocks), height), layout="constrained")
        parts = figure.subfigures(1, len(blocks), squeeze=False)[0]
        for part, block, caption in zip(parts, blocks, captions, strict=True):
            panels = part.subplots(rows, sharex=True, squeeze=False, height_ratios=[3, 2][:rows])[:, 0]
            _returns(panels[0], block)
            if rows > 1:
                _improvement(panels[1], block)
            legend(part, columns, title=caption, title_fontsize=9, alignment="left")
            paper = [eps for row in block.rows if row.published for eps in row.published.eps]
            budget_axis(panels[-1], [*block.budgets, *paper])
    return figure


def encoded(figure: Figure, ending: str) -> bytes:
    """The bytes of a file of that kind."""
    file = io.BytesIO()
    dateless: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context(RC):
        figure.savefig(file, format=ending, dpi=150, metadata=dateless.get(ending))
    return file.getvalue()


def _name(row: Row) -> str:
    return row.label if len(row.members) == 1 else f"{row.label}, median of {len(row.members)}"


def _caption(block: Block) -> str:
    attacks = attack_labels(block.usual_attacks).values()
    words = [f"Mean of {counted(block.episodes, 'episode')}, bars are 95 % intervals"]
    words += [f"attacks: {', '.join(attacks)}"] if attacks else []
    words += [f"below, the first is '{block.rows[0].label}'"] if len(block.rows) > 1 else []
    return "; ".join(words) + "."


def _returns(axes: Axes, block: Block) -> None:
    for place, row in enumerate(block.rows):
        points = [(eps, cell.median.mean, cell.median.interval) for eps, cell in row.cells.items()]
        _series(axes, block, place, points, label=_name(row))
    for place, row in enumerate(block.rows):
        if paper := row.published:
            hollow = _style(place) | {"linestyle": ":", "markerfacecolor": LIGHT["paper"]}
            axes.errorbar(paper.eps, paper.mean, **hollow, label="paper")
    levels = {"train": ", training levels", "eval": ", unlimited levels"}.get(block.levels, "")
    starts = ", varied starts" if block.starts == "varied" else ""
    axes.set_title(f"{block.game}{levels}{starts}")
    axes.set_ylabel("worst return within the budget")


def _improvement(axes: Axes, block: Block) -> None:
    axes.axhline(0.5, color=LIGHT["rule"])
    for place, row in enumerate(block.rows):
        points = [(one.eps, one.probability, one.interval) for one in block.improvements if one.row == row.label]
        _series(axes, block, place, points)
    axes.set_ylim(-0.05, 1.05)
    axes.set_ylabel("P(returns more\nthan the first)")


def _series(
    axes: Axes, block: Block, place: int, points: list[tuple[float, float, stats.Interval | None]], **more: Any
) -> None:
    """Budget, value and interval of each point; moved a little, so that intervals of different rows do not hide each
    other."""
    shift = 0.008 * max(block.budgets) * (place - (len(block.rows) - 1) / 2)
    below = [max(value - interval.low, 0) if interval else 0.0 for _, value, interval in points]
    above = [max(interval.high - value, 0) if interval else 0.0 for _, value, interval in points]
    if points:
        budgets = [eps + shift for eps, *_ in points]
        axes.errorbar(budgets, [value for _, value, _ in points], [below, above], **_style(place), capsize=3, **more)


def _style(place: int) -> dict[str, Any]:
    again, which = divmod(place, len(_COLOURS))
    return {
        "color": LIGHT[_COLOURS[which]],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[again % len(_DASHES)],
    }
