"""The terminal: progress with time left, plain lines where there is no terminal, and Ctrl-C."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bcl.cli.main import INTERRUPTED
from bcl.errors import StoreError

if TYPE_CHECKING:
    from bcl.experiment.status import Piece

out = Console(soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, soft_wrap=True)

Report = Callable[[int, int], None]
SECONDS_PER_LOOK, SECONDS_PER_LINE = 1.0, 10.0  # progress is told once a second
GRACE = 2.0  # seconds for work that was interrupted to end by itself


class progress:
    """Two bars, all units of work and the one at hand; without a terminal, a line on stderr per finished unit."""

    def __init__(self, units: int | None = None, quiet: bool = False) -> None:
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

    def start(self, units: int) -> None:
        """So many units of work there are."""
        self._bars.update(self._all, total=units)

    def begin(self, label: str) -> Report:
        """Start the next unit; the result reports `done` `of` how many."""
        self._bars.reset(self._now, total=None, description=label, visible=True)
        return lambda done, of: self._bars.update(self._now, completed=done, total=of)

    def finished(self, line: str) -> None:
        """One unit is done."""
        self._bars.advance(self._all)
        if not self._quiet and not err.is_terminal:
            err.print(line, markup=False, highlight=False)


def say(line: str) -> None:
    """A line for people, on stderr."""
    err.print(line, markup=False, highlight=False)


class live:
    """A bar for every piece of a run's work that is under way; without a terminal, a line each now and then."""

    def __init__(self, run: Path) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
        self._run, self._since = run, time.time()
        self._bars = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._looked = self._printed = time.monotonic()

    def __enter__(self) -> "live":
        self._bars.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bars.stop()

    def tick(self) -> None:
        """Look how far the work is; may be called at any rate."""
        now = time.monotonic()
        if now - self._looked < SECONDS_PER_LOOK:
            return
        self._looked = now
        if not err.is_terminal and now - self._printed < SECONDS_PER_LINE:
            return
        self._printed = now
        with contextlib.suppress(StoreError):  # a damaged file must not end the work of those who do not need it
            self._look()

    def _look(self) -> None:
        from bcl.experiment.status import incumbent, pieces

        found = {f"{piece.name} {piece.doing}": piece for piece in pieces(self._run, self._since)}
        if not err.is_terminal:
            for piece in found.values():
                say(piece_line(piece))
            return
        best = incumbent(self._run)
        for name in self._tasks.keys() - found.keys():
            self._bars.remove_task(self._tasks.pop(name))
        for name, piece in found.items():
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(piece.name, total=None, numbers="")
            numbers = _numbers(piece) + (f"  (best so far: {best})" if best else "")
            self._bars.update(self._tasks[name], completed=piece.done, total=piece.of, numbers=numbers)


def piece_line(piece: "Piece") -> str:
    """A piece of work under way, in one line."""
    return f"{piece.name}: {_numbers(piece)}"


def _numbers(piece: "Piece") -> str:
    row = piece.row
    words = [f"{piece.doing} {piece.done:,} of {piece.of:,}"]
    for name, label in (("return", "return"), ("return_attacked", "attacked"), ("eps", "eps")):
        if (value := row.get(name)) is not None and (value or name != "eps"):
            words.append(f"{label} {value:.4g}")
    if rate := row.get("steps_per_second"):
        words += [f"{rate:,.0f} steps/s", f"{timedelta(seconds=round((piece.of - piece.done) / rate))} left"]
    return ", ".join(words)


@contextlib.contextmanager
def stop_requests(farewell: str = "") -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask work to stop at the next good moment; a second one ends it at once, with `farewell` where it
    does not end by itself."""
    asked: list[int] = []
    killer = threading.Timer(GRACE, _end_all, [f"bcl: interrupted; {farewell}\n"])
    killer.daemon = True

    def ask(number: int, _: FrameType | None) -> None:
        if asked:
            if not killer.is_alive():
                killer.start()
            raise KeyboardInterrupt
        asked.append(number)
        with contextlib.suppress(OSError):  # not print: the signal may have come in the middle of one
            os.write(2, b"stopping; once more to stop at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        killer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_all(farewell: str) -> None:
    """For work that does not end when it is interrupted, such as a game that hangs. Files are whole at any moment."""
    for child in multiprocessing.active_children():
        child.kill()
    with contextlib.suppress(OSError):
        os.write(2, ("\x1b[?25h" * err.is_terminal + farewell).encode())  # the live view hides the cursor
    os._exit(INTERRUPTED)
