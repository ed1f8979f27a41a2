"""The terminal: progress with time left, tables, and plain lines where there is no terminal."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True)

Report = Callable[[int, int], None]


@contextlib.contextmanager
def progress(quiet: bool = False) -> Iterator[Callable[[str], Report]]:
    """`bar(label)` starts a bar and gives its `report(done, of)`; finished bars stay out of the way."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bars:

        def bar(label: str) -> Report:
            for task in bars.task_ids:
                bars.remove_task(task)
            task = bars.add_task(label, total=None)
            return lambda done, of: bars.update(task, completed=done, total=of)

        yield bar
