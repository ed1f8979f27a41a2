"""The terminal: progress with time left, and plain lines where there is no terminal."""

import sys
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, soft_wrap=True)

Report = Callable[[int, int], None]


class progress:
    """Two bars, all units of work and the one at hand; without a terminal, a line on stderr per finished unit."""

    def __init__(self, units: int, quiet: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._quiet = quiet
        self._bars = Progress(
            *columns, TimeRemainingColumn(), console=err, transient=True, disable=quiet or not err.is_terminal
        )
        self._all = self._bars.add_task("all", total=units)
        self._now = self._bars.add_task("", total=None, visible=False)

    def __enter__(self) -> "progress":
        self._bars.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bars.stop()

    def __call__(self, label: str) -> Report:
        """Start the next unit; the result reports `done` `of` how many."""
        self._bars.reset(self._now, total=None, description=label, visible=True)
        return lambda done, of: self._bars.update(self._now, completed=done, total=of)

    def finished(self, line: str) -> None:
        """One unit is done."""
        self._bars.advance(self._all)
        if not self._quiet and not err.is_terminal:
            err.print(line, markup=False, highlight=False)
