"""The tables of a comparison, and how any table is written: to a terminal, as markdown and as LaTeX."""

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from bcl import stats
from bcl.attacks import attack_labels
from bcl.errors import counted
from bcl.evaluation import Score
from bcl.reports.published import row_for, run_counts
from bcl.reports.style import number
from bcl.result import Table
from bcl.settings import format_eps, format_error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from bcl.reports.compare import Block, Comparison, Entry, ReturnAtBudget, Row

EXACTLY = "at exactly this budget"
BELONGS = "  "  # before the name of a row: it is about the agent above it
# columns that are left out where the paper has neither
PAPER_RUNS = "paper's runs"
PAPER_TIME = "paper's time"
# letters of an agent's name
SHORTEST_NAME = 12  # that the terminal shows at least
LONG_NAME = 24  # that make it split a table rather than show fewer
_UNIT = re.compile(r"\[[^\]]*\]|\S+ ± \S+|\S+")  # of a cell
Lines = Sequence[tuple[str, ...]]
_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "\N{MINUS SIGN}": "$-$"}


def tables(comparison: "Comparison") -> list[Table]:
    """Per block returns and improvement; then what the runs took."""
    found = []
    for block in comparison.blocks:
        found.append(_returns(block))
        if len(block.rows) > 1:
            found.append(_improvements(block))
    ran = [entry for entry in comparison.entries if entry.efforts]
    return [*found, _efforts(ran)] if ran else found


def print_table(table: Table, console: "Console") -> None:
    """In a terminal: turned, or in parts below each other, where only so its numbers fit; names cut where they do
    not."""
    console.print(table.title, markup=False, highlight=False)
    lines = [table.header, *table.rows, *table.totals]
    for part, turned in _parts(lines, console.width):
        console.print(_drawn(part, console.width, 0 if turned else len(table.totals), table.bold))
    for note in table.notes:
        console.print(note, markup=False, highlight=False)


def _parts(lines: Lines, width: int) -> Iterator[tuple[Lines, bool]]:
    """Tables that fit, and whether they are turned."""
    columns = [*zip(*lines, strict=True)]
    if _width(columns) <= width:
        yield lines, False
        return
    turned = [*_with_owners(lines)]
    if _width(turned) <= width:
        yield [*zip(*turned, strict=True)], True
        return
    names, *others = columns
    part = [names]
    for column in others:
        if len(part) > 1 and _width([*part, column]) > width:
            yield [*zip(*part, strict=True)], False
            part = [names]
        part.append(column)
    yield [*zip(*part, strict=True)], False


def _with_owners(lines: Lines) -> Iterator[tuple[str, ...]]:
    """Rows as columns beside each other: one that belongs to the row above it says whose it is."""
    owner = ""
    for name, *cells in lines:
        if name.startswith(BELONGS):
            yield f"{owner}: {name.strip()}", *cells
        else:
            owner = name
            yield name, *cells


def _drawn(lines: Lines, width: int, totals: int, bold: str) -> "RichTable":
    from rich.table import Table as RichTable
    from rich.text import Text

    names, *columns = zip(*lines, strict=True)
    room = width - 3 * len(lines[0]) - 1
    name = min(max(map(len, names)), SHORTEST_NAME)
    widths = [max(map(len, column)) for column in columns]
    if max(map(len, names)) + sum(widths) > room:
        widths = [*map(_narrowest, columns)]
    if name + sum(widths) > room and len(widths) == 1:
        widths = [max(1, room - name)]
    shown = RichTable()
    shown.add_column(Text(lines[0][0]), no_wrap=True, max_width=max(name, room - sum(widths)))
    for header, at in zip(lines[0][1:], widths, strict=True):
        shown.add_column(Text(header), justify="right", width=at, overflow="fold")
    for place, row in enumerate(lines[1:], totals - len(lines) + 1):  # totals from 0
        if place == 0 and totals:
            shown.add_section()
        cells = [_broken(cell, at) for cell, at in zip(row[1:], widths, strict=True)]
        style = "bold" if row[0] == bold else "dim" if row[0].startswith(BELONGS) else None
        shown.add_row(*map(Text, (row[0], *cells)), style=style)
    return shown


def _width(columns: Lines) -> int:
    """What a table needs to break no number and to cut no name much."""
    names, *others = columns
    return min(max(map(len, names)), LONG_NAME) + sum(map(_narrowest, others)) + 3 * len(columns) + 1


def _narrowest(column: Sequence[str]) -> int:
    """What its header and body need; words stay whole, among them the names of agents in the header of a turned
    table."""
    header, *body = column
    return max(map(len, [*header.split(), *(unit for cell in body for unit in _UNIT.findall(cell))]), default=1)


def _broken(cell: str, width: int) -> str:
    """Lines of a cell: numbers with their error and intervals stay whole where they fit."""
    lines = [""]
    for unit in _UNIT.findall(cell):
        for word in [unit] if len(unit) <= width else unit.split():
            longer = f"{lines[-1]} {word}".strip()
            if len(longer) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
    return "\n".join(filter(None, lines))


def as_markdown(table: Table) -> str:
    """A pipe table under its title; `<` would open a tag."""
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    notes = [f"\n{note}" for note in table.notes]
    return escape("\n".join([f"**{table.title}**", "", *lines, *notes]), quote=False)


def as_latex(table: Table) -> str:
    """A table for the booktabs package, as its first line says."""
    header, *rows = [" & ".join(map(_escaped, row)) + r" \\" for row in (table.header, *table.rows)]
    caption = _escaped(". ".join([table.title, *table.notes]))
    columns = "l" + "r" * (len(table.header) - 1)
    body = "\n".join(rows)
    return rf"""% needs \usepackage{{booktabs}}
\begin{{table}}
\centering
\caption{{{caption}}}
\begin{{tabular}}{{{columns}}}
\toprule
{header}
\midrule
{body}
\bottomrule
\end{{tabular}}
\end{{table}}"""


def _returns(block: "Block") -> Table:
    attacks = attack_labels(block.usual_attacks).values()
    words = [f"{block.title}: mean return ± standard error [95 % interval], {counted(block.episodes, 'episode')}"]
    words += [f"worst within each budget under {', '.join(attacks)}"] if attacks else []
    rows = tuple(line for row in block.rows for line in _lines(row, block))
    notes = [f"score: no attack + mean within {', '.join(map(format_eps, block.scored))}"] if block.scored else []
    other_rows = [f"'{EXACTLY}'"] if any(map(_differs, block.rows)) else []
    other_rows += ["'paper'"] if any(row.published for row in block.rows) else []
    if other_rows:
        notes.append(f"{' and '.join(other_rows)}: the worst attack at exactly each budget, and the score of that")
    sources = dict.fromkeys(row.published.source for row in block.rows if row.published)
    notes += [f"paper: {source}" for source in sources]
    for row in block.rows:
        names = dict.fromkeys(flag.name for flag in row.flags)
        notes += [f"flags of {row.label}: {', '.join(names)} (docs/flags.md)"] if names else []
    return Table(", ".join(words), ("agent", *_budgets(block), "score"), rows, (*notes, *block.notes))


def _lines(row: "Row", block: "Block") -> Iterator[tuple[str, ...]]:
    def line(name: str, text: Callable[["ReturnAtBudget"], str], score: float | None) -> tuple[str, ...]:
        cells = [text(row.cells[eps]) if eps in row.cells else "" for eps in block.budgets]
        return name, *cells, "" if score is None else number(score)

    alone = len(row.members) == 1
    name = row.label if alone else f"{row.label}, median of {len(row.members)} ({row.median})"
    yield line(name, lambda cell: _measured(cell.median), row.score)
    if not alone:
        yield line(f"{BELONGS}mean over repeats", lambda cell: number(cell.mean) + _interval(cell.interval), None)
    if _differs(row):
        yield line(f"{BELONGS}{EXACTLY}", lambda cell: _measured(cell.exactly), row.paper_score)
    if paper := row.published:
        values = zip(paper.eps, paper.mean, paper.sem, strict=True)
        at = {round(eps, 6): _plus_minus(mean, sem) for eps, mean, sem in values}
        yield (
            f"{BELONGS}paper: {paper.method}",
            *(at.get(round(eps, 6), "") for eps in block.budgets),
            number(paper.score),
        )


def _differs(row: "Row") -> bool:
    """Whether some budget is worse with less of it."""
    return any(cell.median.eps < eps for eps, cell in row.cells.items())


def _improvements(block: "Block") -> Table:
    first, *others = block.rows
    found = {(one.row, one.eps): one for one in block.improvements}
    rows = []
    for row in others:
        cells = [found.get((row.label, eps)) for eps in block.budgets]
        shown = [f"{c.probability:.2f}" + _interval(c.interval, "{:.2f}".format) if c else "" for c in cells]
        rows.append((row.label, *shown))
    title = f"{block.title}: probability that an episode returns more than one of {first.label} [95 % interval]"
    return Table(title, ("agent", *_budgets(block)), tuple(rows))


def _efforts(entries: Sequence["Entry"]) -> Table:
    rows = []
    sources = dict[str, None]()
    for entry in entries:
        trained = [one for one in entry.efforts if one.steps]  # 0: metrics are missing
        steps = sum(one.steps for one in trained) / max(1, sum(one.runs for one in trained))
        paper = entry.config and row_for(run_counts(entry.game.id), entry.config)
        sources |= {paper.source: None, paper.hours_source: None} if paper else {}
        rows.append(
            {
                "agent": entry.label,
                "training runs": ", ".join(str(one.runs) for one in entry.efforts),
                PAPER_RUNS: ", ".join(map(str, paper.runs)) if paper else "",
                "before": ", ".join(str(one.before) for one in entry.efforts),
                "steps each": f"{steps:,.0f}" if trained else "",
                "time each": _duration(stats.mean([one.seconds_per_run for one in trained])) if trained else "",
                PAPER_TIME: _duration(3600 * paper.hours) if paper else "",
                "machine": ", ".join(dict.fromkeys(one.machine for one in entry.efforts)),
            }
        )
    names = [name for name in rows[0] if name not in (PAPER_RUNS, PAPER_TIME) or any(row[name] for row in rows)]
    table = tuple(tuple(row[name] for name in names) for row in rows)
    title = "Training runs conducted, per repeat, and wall time of training"
    return Table(title, tuple(names), table, tuple(f"paper: {source}" for source in sources))


def _budgets(block: "Block") -> list[str]:
    return ["no attack" if eps == 0 else format_eps(eps) for eps in block.budgets]


def _measured(score: Score) -> str:
    mean = _plus_minus(score.mean, score.sem) if score.has_error else number(score.mean)
    return mean + _interval(score.interval)


def _plus_minus(mean: float, sem: float) -> str:
    return f"{number(mean)} ± {format_error(sem)}"


def _interval(interval: stats.Interval | None, shown: Callable[[float], str] = number) -> str:
    return f" [{shown(interval.low)}, {shown(interval.high)}]" if interval else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _escaped(text: str) -> str:
    spaces = len(text) - len(text.lstrip())
    guard = "{}" * text.startswith(("[", "*"))  # at the start of a row they would belong to the \\ before it
    return guard + r"\quad " * bool(spaces) + "".join(_LATEX.get(letter, letter) for letter in text.lstrip())
