"""What `bcl.train` and `bcl.resume` tell while a run is at work: bars in terminals and notebooks, rows for a hook."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from bcl.errors import StoreError
from bcl.experiment.status import pieces
from bcl.learners.metrics import Metrics
from bcl.runs.directory import RunDirectory

OnRow = Callable[[str, Metrics], object]
"""Told the folder of a training run, as seen from the run directory, and a row of its metrics."""
SECONDS_PER_LOOK = 1.0


@contextlib.contextmanager
def following(run: Path, progress: bool | None, on_row: OnRow | None) -> Iterator[Callable[[], None]]:
    """A function to call while the run is at work, at any rate; bars by default where somebody can see them."""
    console = Console(stderr=True)
    shown = console.is_terminal or console.is_jupyter if progress is None else progress
    rows = _Rows(run, on_row) if on_row else None
    looked = time.monotonic()
    with Progress(console=console, transient=True, disable=not shown) as bars:
        tasks: dict[str, TaskID] = {}
        since = time.time()

        def tick() -> None:
            nonlocal looked
            if time.monotonic() - looked < SECONDS_PER_LOOK:
                return
            looked = time.monotonic()
            if rows:
                rows.tell_new()
            if shown:
                with contextlib.suppress(StoreError):  # a damaged file must not end work that does not need it
                    _look(run, since, bars, tasks)

        yield tick
    if rows:
        rows.tell_new()


def _look(run: Path, since: float, bars: Progress, tasks: dict[str, TaskID]) -> None:
    found = {f"{piece.name}, {piece.doing}": piece for piece in pieces(run, since)}
    for name in tasks.keys() - found.keys():
        bars.remove_task(tasks.pop(name))
    for name, piece in found.items():
        if name not in tasks:
            tasks[name] = bars.add_task(name)
        bars.update(tasks[name], completed=piece.done, total=piece.of)


class _Rows:
    """Rows of metrics that were written since; those before are not told again."""

    def __init__(self, run: Path, on_row: OnRow) -> None:
        self._run, self._on_row = run, on_row
        self._last: dict[Path, float] = {}
        for folder, row in self._new():
            self._last[folder] = row["step"] or 0.0

    def tell_new(self) -> None:
        """Tell each once."""
        for folder, row in self._new():
            self._last[folder] = row["step"] or 0.0
            self._on_row(str(folder.relative_to(self._run)), row)

    def _new(self) -> Iterator[tuple[Path, Metrics]]:
        for training in RunDirectory(self._run).trainings():
            for row in training.metrics():
                if row["step"] > self._last.get(training.path, -1.0):
                    yield training.path, row
