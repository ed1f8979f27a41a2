"""A comparison as tables of text, and tables as markdown, LaTeX and plain data."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from bcl import stats
from bcl.attacks import attack_label
from bcl.errors import counted
from bcl.evaluation.score import shown
from bcl.reports.comparable import Entry
from bcl.reports.compare import Block, Comparison, Median, Row
from bcl.reports.look import number
from bcl.reports.published import row_for, run_counts, wall_time
from bcl.settings import format_eps

EXACTLY = "at exactly this budget"
PAPER_RUNS, PAPER_TIME = "paper's runs", "paper's time"  # columns that are left out where the paper has neither
_LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "\N{MINUS SIGN}": "$-$"}


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def tables(comparison: Comparison) -> list[Table]:
    """Per block returns and improvement; then what the runs took."""
    found = []
    for block in comparison.blocks:
        found.append(_returns(block))
        if len(block.rows) > 1:
            found.append(_improvements(block))
    ran = [entry for entry in comparison.entries if entry.efforts]
    return [*found, _efforts(ran)] if ran else found


def as_markdown(table: Table) -> str:
    """A pipe table under its title."""
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    lines = ["| " + " | ".join(_marked(cell).replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"**{_marked(table.title)}**", "", *lines, *(f"\n{_marked(note)}" for note in table.notes)])


def as_html(table: Table) -> str:
    """For notebooks."""
    rows = [("th", table.header), *(("td", row) for row in table.rows)]
    lines = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    return f"<table><caption>{escape(table.title)}</caption>{body}</table>{notes}"


def as_latex(table: Table) -> str:
    """A table for the booktabs package, as its first line says."""
    rows = [" & ".join(map(_escaped, row)) + r" \\" for row in table.rows]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped('. '.join([table.title, *table.notes]))}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            " & ".join(map(_escaped, table.header)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Plain data: all numbers of the tables, unrounded; budgets are numbers."""
    blocks = []
    for block in comparison.blocks:
        data = dataclasses.asdict(block)
        data["attacks"] = [{"eps": eps, "attacks": [*map(shown, attacks)]} for eps, attacks in block.attacks.items()]
        for row, plain in zip(block.rows, data["rows"], strict=True):
            plain["cells"] = [dataclasses.asdict(cell) for cell in row.cells.values()]
            for cell in plain["cells"]:
                cell["run_means"] = [stats.mean(returns) for returns in cell.pop("runs")]
        blocks.append(data)
    runs = [
        {"agent": entry.label, "path": str(entry.path), "repeats": [dataclasses.asdict(one) for one in entry.efforts]}
        for entry in comparison.entries
        if entry.efforts
    ]
    return {"blocks": blocks, "runs": runs}


def _returns(block: Block) -> Table:
    attacks = [attack_label(attack) for attack in block.usual_attacks]
    words = [f"{_name(block)}: mean return ± standard error [95 % interval], {counted(block.episodes, 'episode')}"]
    words += [f"worst within each budget under {', '.join(attacks)}"] if attacks else []
    rows = tuple(line for row in block.rows for line in _lines(row, block))
    budgets = ["no attack" if eps == 0 else format_eps(eps) for eps in block.budgets]
    notes = [f"score: no attack + mean within {', '.join(map(format_eps, block.scored))}"] if block.scored else []
    other_rows = [f"'{EXACTLY}'"] if any(map(_differs, block.rows)) else []
    other_rows += ["'paper'"] if any(row.published for row in block.rows) else []
    if other_rows:
        notes.append(f"{' and '.join(other_rows)}: the worst attack at exactly each budget, and the score of that")
    sources = dict.fromkeys(row.published.source for row in block.rows if row.published)
    notes += [f"paper: {source}" for source in sources]
    notes += [f"flags of {row.label}: {_flag_names(row)} (docs/flags.md)" for row in block.rows if row.flags]
    return Table(", ".join(words), ("agent", *budgets, "score"), rows, (*notes, *block.notes))


def _lines(row: Row, block: Block) -> Iterator[tuple[str, ...]]:
    cells = [row.cells.get(eps) for eps in block.budgets]
    alone, score = len(row.members) == 1, "" if row.score is None else number(row.score)
    name = row.label if alone else f"{row.label}, median of {len(row.members)} ({row.median})"
    shown = [c and _value(c.median, len(c.runs[0])) + _interval(c.median.interval) for c in cells]
    yield name, *(text or "" for text in shown), score
    if not alone:
        means = [c and number(c.over_repeats.mean) + _interval(c.over_repeats.interval) for c in cells]
        yield "  mean over repeats", *(text or "" for text in means), ""
    if _differs(row):
        exactly = [c and _value(c.exactly, len(c.runs[0])) + _interval(c.exactly.interval) for c in cells]
        score = "" if row.paper_score is None else number(row.paper_score)
        yield f"  {EXACTLY}", *(text or "" for text in exactly), score
    if paper := row.published:
        at = {round(eps * 255): (mean, sem) for eps, mean, sem in zip(paper.eps, paper.mean, paper.sem, strict=True)}
        values = [at.get(round(eps * 255)) if _is_level(eps) else None for eps in block.budgets]
        yield f"  paper: {paper.method}", *(_plus_minus(*v) if v else "" for v in values), number(paper.score)


def _differs(row: Row) -> bool:
    """Whether some budget is worse with less of it."""
    return any(cell.median.eps < eps for eps, cell in row.cells.items())


def _flag_names(row: Row) -> str:
    return ", ".join(dict.fromkeys(flag.partition(":")[0] for flag in row.flags))


def _improvements(block: Block) -> Table:
    first = block.rows[0].label
    found = {(one.row, one.eps): one for one in block.improvements}
    rows = []
    for row in block.rows[1:]:
        cells = [found.get((row.label, eps)) for eps in block.budgets]
        rows.append((row.label, *(f"{c.probability:.2f}{_range(c.interval)}" if c else "" for c in cells)))
    budgets = ["no attack" if eps == 0 else format_eps(eps) for eps in block.budgets]
    title = f"{_name(block)}: probability that an episode returns more than one of {first} [95 % interval]"
    return Table(title, ("agent", *budgets), tuple(rows))


def _efforts(entries: Sequence[Entry]) -> Table:
    rows, sources = [], dict[str, None]()
    for entry in entries:
        counted, time = row_for(run_counts(entry.game.id), entry.config), wall_time(entry.game.id)
        runs = ", ".join(str(one.runs) for one in entry.efforts)
        before = ", ".join(str(one.before) for one in entry.efforts)
        trained = [one for one in entry.efforts if one.steps]  # 0: metrics are missing
        measured = ("", "")
        if trained:
            steps = sum(one.steps for one in trained) / sum(one.runs for one in trained)
            measured = (f"{steps:,.0f}", _duration(stats.mean([one.seconds_per_run for one in trained])))
        machines = ", ".join(dict.fromkeys(one.machine for one in entry.efforts))
        paper_runs = ", ".join(map(str, counted.runs)) if counted else ""
        paper_time = _duration(3600 * time.hours) if time and counted else ""
        sources |= {one.source: None for one in (counted, time) if one and counted}
        rows.append((entry.label, runs, paper_runs, before, *measured, paper_time, machines))
    header = ("agent", "training runs", PAPER_RUNS, "runs before", "steps a run", "time a run", PAPER_TIME, "machine")
    shown = [i for i, name in enumerate(header) if name not in (PAPER_RUNS, PAPER_TIME) or any(row[i] for row in rows)]
    names, *table = (tuple(line[i] for i in shown) for line in (header, *rows))
    title = "Runs conducted, per repeat, and wall time of training"
    return Table(title, names, tuple(table), tuple(f"paper: {source}" for source in sources))


def _name(block: Block) -> str:
    levels = {"train": " on the training levels", "eval": " on unlimited levels"}
    return block.game + levels.get(block.levels, "")


def _is_level(eps: float) -> bool:
    return abs(eps * 255 - round(eps * 255)) < 1e-6


def _value(run: Median, episodes: int) -> str:
    return _plus_minus(run.mean, run.sem) if episodes >= stats.MIN_FOR_INTERVAL else number(run.mean)


def _plus_minus(mean: float, sem: float) -> str:
    return f"{number(mean)} ± {sem:.2g}" if sem < 100 else f"{number(mean)} ± {sem:.0f}"


def _interval(interval: stats.Interval | None) -> str:
    return f" [{number(interval.low)}, {number(interval.high)}]" if interval else ""


def _range(interval: stats.Interval | None) -> str:
    return f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _escaped(text: str) -> str:
    spaces = len(text) - len(text.lstrip())
    guard = "{}" * text.startswith(("[", "*"))  # at the start of a row they would belong to the \\ before it
    return guard + r"\quad " * bool(spaces) + "".join(_LATEX.get(letter, letter) for letter in text.lstrip())


def _marked(text: str) -> str:
    """For markdown, where `<` may open a tag."""
    return escape(text, quote=False)
