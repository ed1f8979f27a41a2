"""Data to figures: those of a report, which `svg` makes markup, and that of a comparison, for a file (`encoded`).

In the markup, colours of `bcl.reports.style` become CSS variables: the page decides between light, dark and print.
"""

import io
import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import EngFormatter, MaxNLocator

from bcl import stats
from bcl.attacks import attack_labels
from bcl.errors import ConfigError, counted
from bcl.evaluation import Evaluation
from bcl.evaluation.plan import LEVELS
from bcl.reports.collect import Proof
from bcl.reports.compare import Block, Comparison, Row
from bcl.reports.frames import Frame
from bcl.reports.history import BarState, Timeline
from bcl.reports.published import PublishedRow
from bcl.reports.style import COLOURS, LIGHT, RC, number, styles

PIXELS_PER_INCH = 72  # of an SVG: its unit is a point, which the page shows as a pixel
# up to these widths a figure is for phones, or stands beside a table
NARROW = 480
HALF = 600
# pixels of the timeline: a row at least, and a bar with its gap
ROW = 20
BAR = 8
_START_DASHES = ((0, (3, 0.6)), (0, (1, 0.6)))  # of the agents that training began from, the last one first
styled = matplotlib.rc_context(RC)  # as a decorator: draws in our look, whatever the process has set
_BARS: dict[BarState, Any] = {
    "kept": {"facecolor": LIGHT["blue"], "edgecolor": LIGHT["blue"]},
    "not kept": {"facecolor": "none", "edgecolor": LIGHT["blue"]},
    "undecided": {"facecolor": LIGHT["rule"], "edgecolor": LIGHT["blue"]},
    "unfinished": {"facecolor": LIGHT["rule"], "edgecolor": LIGHT["blue"], "linestyle": "--"},
    "diverged": {"facecolor": "none", "edgecolor": LIGHT["vermilion"], "linestyle": ":"},
    "not needed": {"facecolor": "none", "edgecolor": LIGHT["muted"], "linewidth": 0.6, "hatch": "/////"},
}
_REPORTED: Any = {"marker": "*", "color": LIGHT["ochre"], "markersize": 11, "zorder": 5, "label": "the agent"}
_MISSED: Any = {"marker": "X", "color": LIGHT["vermilion"], "markeredgecolor": "white", "markersize": 9}
_MISSED |= {"label": "missed its thresholds"}
_RISE: Any = {"color": LIGHT["blue"], "linewidth": 1.8, "label": "budget that paces itself"}
_KEPT: Any = {"color": LIGHT["blue"], "linewidth": 1.8, "label": "kept"}
_OTHER: Any = {"color": LIGHT["muted"], "linewidth": 0.9, "label": "other runs"}
_TARGET: Any = {"color": LIGHT["muted"], "linewidth": 1, "linestyle": ":", "zorder": 0, "label": "target"}
# of comparisons
FORMATS = ("png", "svg", "pdf")
_ROW_COLOURS = ("blue", "vermilion", "green", "purple", "ochre", "muted")
_ROW_MARKERS = ("o", "s", "D", "^", "P", "X", "v", "<", ">", "d", "h", "p")
_LEGEND_ROOM = ((3, 14), (2, 28))  # columns, and letters of the longest name that they have room for
_CAPTION_LETTERS = 95  # of a line as wide as a column
_ROW_DASHES = ("-", (0, (4, 1.5)))  # of the first round of colours, and of the second; dots are the paper's


def svg(figure: Figure, name: str, label: str) -> str:
    """Markup to stand in a page: no size of its own, colours as variables, ids that begin with `name`."""
    target = io.StringIO()
    with matplotlib.rc_context(RC | {"svg.hashsalt": name}):
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height|xmlns|xmlns:xlink|version)="[^"]*"', "", head)
    # Names that mean something would repeat from figure to figure; hashed ones depend on the salt.
    rest = re.sub(r'(<g|<path) id="(?!m[0-9a-f]{10})[^"]*"', r"\1", rest)
    rest = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", rest).replace("xlink:href", "href")
    for role, (light, _) in COLOURS.items():
        rest = rest.replace(light, f"var(--{role})")
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', head)[1])  # type: ignore[index]
    return f'{head} role="img" aria-label="{label}" style="max-width: {width:.0f}px">{rest}'


def _figure(width: int, height: int) -> Figure:
    return Figure(figsize=(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH), layout="constrained")


def _budget_unit(budgets: Sequence[float]) -> tuple[float, str]:
    """Gray levels where they are such, and what the axis is called."""
    levels = len({*budgets}) > 1 and all(abs(eps * 255 - round(eps * 255)) < 1e-9 for eps in budgets)
    return (1 / 255, "attack budget (1/255)") if levels else (1.0, "attack budget")


def budget_axis(axes: Axes, budgets: Sequence[float]) -> None:
    """A tick at every budget, or at round numbers where those would not fit."""
    known = sorted({*budgets})
    unit, words = _budget_unit(known)
    if len(known) > 1 and min(np.diff(known)) < max(known) / 12:
        known = [tick * unit for tick in MaxNLocator(6, integer=unit < 1).tick_values(0, max(known) / unit)]
        known = [eps for eps in known if 0 <= eps <= max(budgets) * 1.001]
    axes.set_xticks(known, [f"{eps / unit:.4g}" for eps in known])
    axes.set_xlabel(words)


def _columns(labels: Sequence[str], width: int) -> int:
    """Of a legend: as many as the longest label has room in (pixels)."""
    line = 42
    letter = 5.7
    gap = 20
    longest = max(len("worst within"), *map(len, labels), 0)
    return max(1, int((width + gap) // (line + letter * longest + gap)))


Place = Literal["outside lower left", "outside upper left"]


def legend(figure: Figure | SubFigure, columns: int, place: Place = "outside lower left", **more: Any) -> None:
    """Outside of the figure's axes; what several artists show stands there once."""
    shown = [zip(*axes.get_legend_handles_labels()[::-1], strict=True) for axes in figure.axes]
    named: dict[str, Any] = {}
    for label, handle in itertools.chain(*shown):
        plain = handle.lines[0] if isinstance(handle, ErrorbarContainer) else handle  # without its error
        named.setdefault(label, plain)
    figure.legend(named.values(), named.keys(), loc=place, ncols=columns, **more)


def _number_axis(axis: Axes) -> None:
    axis.yaxis.set_major_formatter(lambda value, _: number(value))
    axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


@styled
def return_against_budget(evaluation: Evaluation, published: PublishedRow | None, width: int) -> Figure:
    """A line per attack; bold: the worst within each budget; wide and gray: that of each start; hollow: the paper's."""
    looks = styles(evaluation.attacks)
    starts = {f"start ({one.name}){', worst within' if looks else ''}": one.within for one in evaluation.began_from}
    named = [*(look["label"] for look in looks.values()), *starts]
    columns = _columns(named, width)
    rows = -(-(len(named) + 2) // columns)  # with the worst and the paper
    figure = _figure(width, (250 if width <= HALF else 230) + 20 * rows)
    axes = figure.add_subplot()
    nominal = [evaluation.nominal] if evaluation.nominal else []
    lowest = {s.eps: s.mean for s in nominal} | {eps: w.mean for eps, w in evaluation.worst_within.items()}
    for attack, look in looks.items():
        scores = [*nominal, *(s for s in evaluation.scores if s.attack == attack)]
        errors = [s.sem for s in scores] if all(s.has_error for s in scores) else None
        axes.errorbar([s.eps for s in scores], [s.mean for s in scores], errors, elinewidth=1, **look)
    for (label, began), dashes in zip(starts.items(), itertools.cycle(_START_DASHES), strict=False):
        axes.plot([*began], [w.mean for w in began.values()], color=LIGHT["muted"], linewidth=3.5, zorder=2.5,
                  linestyle=dashes, marker="" if looks else "s", label=label)  # fmt: skip
    if lowest:
        label = "worst within" if looks else "no attack"
        axes.plot([*lowest], [*lowest.values()], color=LIGHT["ink"], linewidth=3.5, alpha=0.9, zorder=3, label=label,
                  marker="" if looks else "o")  # fmt: skip
    if published:
        axes.errorbar(published.eps, published.mean, published.sem, color=LIGHT["ink"], linestyle="", marker="o",
                      markersize=9, markerfacecolor="none", markeredgewidth=1.5, zorder=4,
                       label="the paper")  # fmt: skip
    budget_axis(axes, [*evaluation.budgets, *(published.eps if published else ())])
    _number_axis(axes)
    axes.set_ylabel("mean return")
    axes.grid(axis="y")
    axes.margins(y=0.08)
    legend(figure, columns, handlelength=3)
    return figure


@styled
def timeline(history: Timeline, width: int) -> Figure:
    """Time across, budget up: a bar per run, solid if kept; skips are arrows, a budget that paces itself a line."""
    shown = {0.0, *(bar.eps for bar in history.bars), *(eps for skip in history.skips for eps in (skip.low, skip.high))}
    shown |= {share * max(rise.eps) for rise in history.rises for share in (0.25, 0.5, 0.75, 1.0)}
    budgets = sorted(shown | ({history.target} if history.target else set()))
    row = {eps: place for place, eps in enumerate(budgets)}
    height = max([ROW, *(BAR * bar.of for bar in history.bars)])
    figure = _figure(width, max(120 + height * len(row), 250 if width < NARROW else 320))
    axes = figure.add_subplot()
    end = history.ended
    unit, name = (1, "s") if end < 120 else (60, "min") if end < 7200 else (3600, "h")
    for bar in history.bars:
        share = 0.84 / max(bar.of, 2)  # of the row
        middle = row[bar.eps] + share * ((bar.of + 1) / 2 - bar.run)
        look = _BARS[bar.state] | {"label": f"run, {bar.state}"}
        axes.barh(middle, (bar.end - bar.start) / unit, 0.8 * share, bar.start / unit, **look)
        if bar.reported or bar.missed:
            axes.plot(bar.end / unit, middle, linestyle="", **(_REPORTED if bar.reported else _MISSED))
    for rise in history.rises:
        axes.plot(np.divide(rise.seconds, unit), np.interp(rise.eps, budgets, range(len(budgets))), **_RISE)
    for skip in history.skips:
        arrow = {"arrowstyle": "-|>", "color": LIGHT["vermilion"], "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (skip.at / unit, row[skip.high]), (skip.at / unit, row[skip.low]), arrowprops=arrow)
        axes.plot([], [], color=LIGHT["vermilion"], marker="^", linestyle="", label="budgets skipped")
    if history.target:
        axes.axhline(row[history.target], **_TARGET)
    unit_, words = _budget_unit(budgets)
    axes.set_yticks([*row.values()], [f"{eps / unit_:.4g}" for eps in row])
    axes.set_ylabel(words)
    axes.set_ylim(-0.6, len(row) - 0.4)
    axes.set_xlim(0, 1.03 * end / unit)
    axes.set_xlabel(f"time at work ({name})")
    legend(figure, 2 if width < NARROW else 4)
    return figure


@styled
def learning_curves(history: Timeline, width: int) -> Figure:
    """A panel per stage and phase, a line per run: returns while training, the kept run in colour."""
    columns = min(2 if width < NARROW else 4, len(history.panels))
    rows = -(-len(history.panels) // columns)
    figure = _figure(width, 60 + 140 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    phases = [place for place, panel in enumerate(history.panels) if panel.phase]
    for place in phases[1:]:  # the stages before go through other returns: each has a scale of its own
        grid.flat[place].sharey(grid.flat[phases[0]])
        if place % columns and place - 1 in phases:
            grid.flat[place].tick_params(labelleft=False)
    for axes, panel in zip(grid.flat, history.panels, strict=False):
        for curve in sorted(panel.curves, key=lambda c: c.kept):
            look: Any = _KEPT if curve.kept else _OTHER
            look = look | {"marker": "o" if len(curve.steps) < 3 else "", "markersize": 4}
            axes.plot(curve.steps, curve.returns, **look)
            if curve.attacked:
                attacked = look | {"linestyle": (0, (2, 1.5)), "label": "copies under attack"}
                axes.plot(curve.attacked_steps, curve.attacked, **attacked)
        axes.set_title(panel.title, fontsize=11)
        axes.xaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(axis="y")
        _number_axis(axes)
    for axes in list(grid.flat)[len(history.panels) :]:
        axes.set_axis_off()
    figure.supxlabel("agent steps", fontsize=12, color=LIGHT["ink"])
    figure.supylabel("return while training", fontsize=12, color=LIGHT["ink"])
    if any(curve.attacked or not curve.kept for panel in history.panels for curve in panel.curves):
        legend(figure, 3, "outside upper left")
    return figure


@styled
def certificates(proofs: Sequence[Proof], width: int) -> Figure:
    """ACR and GWC against budget, a line per method, levels and set of episodes."""
    narrow = width < NARROW
    figure = _figure(width, 440 if narrow else 260)
    upper, lower = figure.subplots(2, 1) if narrow else figure.subplots(1, 2)
    groups: dict[tuple[str, str, str, int, int], list[Proof]] = {}
    for proof in proofs:
        groups.setdefault((proof.whose, proof.method, proof.levels, proof.seed, proof.episodes), []).append(proof)
    looks = (("blue", "o"), ("vermilion", "s"), ("green", "D"), ("purple", "^"))
    several = len({(proof.whose, proof.method, proof.levels) for proof in proofs}) < len(groups)
    for number_, ((whose, method, levels, seed, episodes), found) in enumerate(groups.items()):
        colour, marker = ("muted", "v") if whose else looks[number_ % len(looks)]
        words = [*([whose] if whose else []), method, *([LEVELS[levels]] if levels else [])]
        label = ", ".join([*words, counted(episodes, "episode"), f"seed {seed}"] if several else words)
        eps = [proof.eps for proof in found]
        upper.plot(eps, [100 * p.acr for p in found], color=LIGHT[colour], marker=marker, label=label)
        lower.plot(eps, [p.gwc for p in found], color=LIGHT[colour], marker=marker)
    for nominal in {proof.nominal for proof in proofs if not proof.whose}:
        lower.axhline(nominal, color=LIGHT["muted"], linewidth=1, linestyle=":")
        lower.annotate("no attack", (1, nominal), (0, 3), xycoords=("axes fraction", "data"), ha="right",
                       textcoords="offset points", color=LIGHT["muted"], fontsize=11)  # fmt: skip
    upper.set(title="actions proven, % (ACR)", ylim=(-4, 104))
    lower.set_title("greedy worst case, return (GWC)")
    for axes in (upper, lower):
        budget_axis(axes, [proof.eps for proof in proofs])
        axes.grid(axis="y")
    _number_axis(lower)
    legend(figure, _columns(upper.get_legend_handles_labels()[1], width))
    return figure


@styled
def observation(frame: Frame, eps: float, names: Sequence[str], width: int) -> Figure:
    """A vector observation, a row per dimension: as it was and as the agent saw it, and the difference."""
    count = frame.clean.size
    figure = _figure(width, 46 + 22 * count)
    left, right = figure.subplots(1, 2, sharey=True)
    place = np.arange(count)
    left.barh(place - 0.18, frame.clean, 0.34, color=LIGHT["muted"])
    left.barh(place + 0.18, frame.seen, 0.34, color=LIGHT["blue"])
    right.barh(place, frame.seen - frame.clean, 0.5, color=LIGHT["vermilion"])
    reach = 1.1 * max(float(np.abs([frame.clean, frame.seen]).max()), eps)
    for axes, title, limit in ((left, "clean, seen (blue)", reach), (right, "difference", 1.1 * eps)):
        axes.set_title(title, fontsize=11)
        axes.axvline(0, color=LIGHT["muted"], linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(2, symmetric=True))
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
        axes.set_xlim(-limit, limit)
    left.set(yticks=place, yticklabels=names or [f"{i + 1}" for i in place], ylim=(count - 0.5, -0.5))
    return figure


def figure_format(path: Path) -> str:
    """By the name's ending; refuses others."""
    ending = path.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ConfigError(f"--figure {path} is no picture that can be drawn", f"end it in {', '.join(FORMATS)}")
    return ending


@styled
def comparison(compared: Comparison) -> Figure:
    """A column per block. Solid: measured, of repeats the median run, with 95 % intervals; hollow: the paper's."""
    blocks = compared.blocks
    rows = 2 if any(len(block.rows) > 1 for block in blocks) else 1
    longest = max(len(_name(row)) for block in blocks for row in block.rows)
    columns = next((columns for columns, letters in _LEGEND_ROOM if longest <= letters), 1)
    lines = max(-(-(len(block.rows) + 1) // columns) for block in blocks)
    captions = [textwrap.fill(_caption(block), _CAPTION_LETTERS) for block in blocks]
    height = 3.6 + 2.4 * (rows - 1) + 0.25 * lines + 0.17 * max(1 + text.count("\n") for text in captions)
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


@styled
def encoded(figure: Figure, ending: str) -> bytes:
    """The bytes of a file of that kind."""
    file = io.BytesIO()
    dateless: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
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
    axes.set_title(block.title)
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
    """Budget, value and interval of each point, shifted beside those of other rows."""
    shift = 0.008 * max(block.budgets) * (place - (len(block.rows) - 1) / 2)
    below = [max(value - interval.low, 0) if interval else 0.0 for _, value, interval in points]
    above = [max(interval.high - value, 0) if interval else 0.0 for _, value, interval in points]
    if points:
        budgets = [eps + shift for eps, *_ in points]
        axes.errorbar(budgets, [value for _, value, _ in points], [below, above], **_style(place), capsize=3, **more)


def _style(place: int) -> dict[str, Any]:
    again, which = divmod(place, len(_ROW_COLOURS))
    return {
        "color": LIGHT[_ROW_COLOURS[which]],
        "marker": _ROW_MARKERS[place % len(_ROW_MARKERS)],
        "linestyle": _ROW_DASHES[again % len(_ROW_DASHES)],
    }
