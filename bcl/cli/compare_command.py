"""bcl compare."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from bcl.errors import ConfigError
from bcl.runs import store
from bcl.settings import format_eps

if TYPE_CHECKING:
    from bcl.reports.compare import Comparison
    from bcl.reports.tables import Table

SHORTEST_NAME = 12  # letters of an agent's name that the terminal shows at least


@dataclass(frozen=True)
class Command:
    """Set agents side by side: the worst return within each budget with intervals, how probably each does better than the
    first, what training took, and the paper's numbers beside. Plays nothing: what is missing, `bcl attack` plays."""

    takes_settings: ClassVar[bool] = False

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE|zoo:NAME")]
    """Run directories, directories of repeats, policy files that were judged, agents of `bcl zoo`; the first is the one to improve on."""
    format: Literal["table", "markdown", "latex", "json"] = "table"
    """What is printed."""
    figure: Path | None = None
    """Also draw it: a png, svg or pdf file."""

    def run(self, _: list[str]) -> None:
        """Read, draw, print."""
        if not self.runs:
            raise ConfigError("there is nothing to compare", "give runs or policy files")

        from bcl.reports.compare import compare
        from bcl.reports.tables import as_json, as_latex, as_markdown, tables

        if self.figure:
            from bcl.reports.compare_figure import draw, encoded, figure_format

            ending = figure_format(self.figure)  # before the work
        found = compare(self.runs)
        if self.figure:  # before a reader of the tables closes the pipe
            store.write_bytes(self.figure, encoded(draw(found), ending))
        if self.format == "json":
            print(json.dumps(as_json(found)))
        elif self.format == "table":
            for table in tables(found):
                _print(table)
        else:
            print("\n\n".join((as_latex if self.format == "latex" else as_markdown)(table) for table in tables(found)))
        if self.format == "table":
            if self.figure:
                print(f"figure: {self.figure}")
            print(f"next: {self._next(found)}")

    def _next(self, found: "Comparison") -> str:
        """What is missing first: attacks that others of the same game faced; then the figure."""
        for block in found.blocks:
            if missing := block.missing:
                entry = next(entry for entry in found.entries if entry.label == missing.row)
                agent = entry.path / missing.member if len(entry.members) > 1 else entry.path
                words = [shlex.quote(str(agent)), "--suite", missing.suite]
                words += ["--eps", *map(format_eps, missing.eps)] if missing.eps else []
                words += ["--episodes", str(block.episodes)]
                words += ["--env-set", block.levels] if block.levels else []
                words += ["--protocol", block.protocol] if block.protocol != "fixed" else []
                return f"bcl attack {' '.join(words)}"
        words = [shlex.quote(str(path)) for path in self.runs]
        last = "--format latex" if self.figure else "--figure compare.png"
        return f"bcl compare {' '.join(words)} {last}"


def _print(table: "Table") -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    from bcl.cli.console import out

    out.print(table.title, markup=False, highlight=False)
    shown = RichTable()
    lines = _upright([table.header, *table.rows], out.width)
    columns = [*zip(*lines, strict=True)]
    for name, width in zip(lines[0], _widths(columns, _room(columns, out.width)), strict=True):
        first = not shown.columns
        justify: Literal["left", "right"] = "left" if first else "right"
        shown.add_column(Text(name), justify=justify, width=width, overflow="ellipsis" if first else "fold")
    for row in lines[1:]:
        shown.add_row(*map(Text, row), style="dim" if row[0].startswith("  ") else None)
    out.print(shown)
    for note in table.notes:
        out.print(note, markup=False, highlight=False)


Lines = Sequence[tuple[str, ...]]


def _upright(lines: Lines, width: int) -> Lines:
    """Rows as columns where words would have to be broken otherwise, and fewer need be so."""
    turned = [*zip(*lines, strict=True)]  # the columns
    lacks, lacks_turned = (max(0, sum(_longest_words(c)) - _room(c, width)) for c in (turned, lines))
    return turned if lacks_turned < lacks else lines


def _room(columns: Lines, width: int) -> int:
    """For text, between the lines of the table."""
    return width - 3 * len(columns) - 1


def _longest_words(columns: Lines) -> list[int]:
    """Of each column; agents' names in the header are long, and may be broken."""
    first, *others = columns
    texts = [first, *((*(name[:SHORTEST_NAME] for name in header.split()), *body) for header, *body in others)]
    return [max(len(word) for text in column for word in text.split()) for column in texts]


def _widths(columns: Lines, room: int) -> list[int]:
    """Of columns of text: lines break between words, and where words have no room the first column is cut."""
    whole, widths = [max(map(len, column)) for column in columns], _longest_words(columns)
    widths[0] = min(widths[0], max(SHORTEST_NAME, room - sum(widths[1:])))
    for _ in range(room - sum(widths)):
        short = [place for place, width in enumerate(widths) if width < whole[place]]
        if short:
            widths[min(short, key=lambda place: widths[place])] += 1
    return widths
