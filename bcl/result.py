"""What the functions of `bcl` return: it prints, and turns into plain data, a data frame and HTML for notebooks."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from bcl.errors import optional


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    totals: tuple[tuple[str, ...], ...] = ()
    """Rows below a rule."""
    bold: str = ""
    """The name of the row to quote."""

    def to_html(self) -> str:
        """For notebooks."""
        tagged = [("th", self.header), *(("td", row) for row in (*self.rows, *self.totals))]
        lines = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in tagged]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        below = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table><caption>{escape(self.title)}</caption>{body}</table>{below}"


class Result(ABC):
    """A subclass says what it holds as data, in rows and in tables, and prints in a few lines (`__str__`)."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has it."""

    def _rows(self) -> Iterable[dict[str, Any]]:
        """Of the data frame: numbers and words by column."""
        return [self.to_dict()]

    def _tables(self) -> Iterable[Table]:
        """For people."""
        return []

    @abstractmethod
    def __str__(self) -> str: ...

    def to_frame(self) -> Any:
        """A pandas DataFrame."""
        return optional("pandas", "a data frame needs pandas", "pip install pandas").DataFrame([*self._rows()])

    def _repr_html_(self) -> str:
        return "".join(table.to_html() for table in self._tables())


@dataclass(frozen=True, repr=False)
class Listing(Result):
    """Rows of a list, and the text that the command prints."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    text: str
    data: Mapping[str, Any]
    """What `to_dict` returns."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has it."""
        return dict(self.data)

    def _rows(self) -> Iterable[dict[str, Any]]:
        return map(dict, self.rows)

    def _tables(self) -> Iterable[Table]:
        header = tuple(dict.fromkeys(name for row in self.rows for name in row))  # rows may lack some of them
        yield Table(self.title, header, tuple(tuple(str(row.get(name, "")) for name in header) for row in self.rows))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title})"

    def __str__(self) -> str:
        return self.text
