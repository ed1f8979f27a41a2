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
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from bcl.cli.main import INTERRUPTED
from bcl.errors import StoreError

if TYPE_CHECKING:
    from bcl.experiment.status import Piece

out = Console(soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, soft_wrap=True)

Report = Callable[[int, int], None]
SECONDS_PER_LOOK, SECONDS_PER_LINE = 1.0, 30.0  # progress is told once a second
WHOLE = "all training"
NAME, BAR = 32, 10  # columns of a terminal
GRACE = 2.0  # seconds for work that was interrupted to end by itself


class TimeLeft:
    """Time left, by how far the work was when it was first seen and is now."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def left(self, share: float) -> str:
        """In hours, minutes and seconds; empty in the first second."""
        now = time.monotonic()
        self._first = self._first or (now, share)
        began, before = self._first
        if now - began < SECONDS_PER_LOOK or share <= before:
            return ""
        return str(timedelta(seconds=round((now - began) * (1 - share) / (share - before))))


class progress:
    """A bar of all the work with the time left; without a terminal, a line on stderr every half minute and per finished
    unit."""

    def __init__(self, units: int | None = None, quiet: bool = False) -> None:
        self._quiet, self._units, self._finished = quiet, units, 0
        self._bars = _bars(shown=not quiet and err.is_terminal)
        self._all = self._bars.add_task("", total=1.0, numbers="")
        self._pace, self._printed = TimeLeft(), time.monotonic()

    def __enter__(self) -> "progress":
        self._bars.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bars.stop()

    def start(self, units: int) -> None:
        """So many units of work there are."""
        self._units, self._finished = units, 0
        self._pace = TimeLeft()

    def begin(self, label: str) -> Report:
        """Start the next unit; the result reports how much of how much is done, of the whole work."""
        return lambda done, of: self._told(label, done / of if of else 0.0)

    def _told(self, label: str, share: float) -> None:
        left = self._pace.left(share)
        counted = f"{self._finished} of {self._units} done" if self._units else ""
        self._bars.update(self._all, completed=share, description=_head(label, share, left), numbers=_cut(counted))
        if not self._quiet and not err.is_terminal and time.monotonic() - self._printed >= SECONDS_PER_LINE:
            self._printed = time.monotonic()
            say(", ".join(filter(None, (f"{label}: {share:.0%} of all", f"{left} left" * bool(left), counted))))

    def finished(self, line: str) -> None:
        """One unit is done."""
        self._finished += 1
        if not self._quiet and not err.is_terminal:
            say(line)


def _bars(shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(BAR), TextColumn("{task.fields[numbers]}"))
    return Progress(*columns, console=err, transient=True, disable=not shown)


def _head(name: str, share: float, left: str) -> str:
    """What is under way, how far it is and how long it will take: first in the line, so that narrow terminals show it."""
    short = name if len(name) <= NAME else f"{name[: NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    return f"{escape(short):<{NAME}} {share:>4.0%} {f'{left} left' if left else '':<14}"


def _cut(numbers: str) -> str:
    """As much as has room behind the bar."""
    room = err.width - NAME - BAR - 22  # percent, time left and gaps
    return escape(numbers if len(numbers) <= room else f"{numbers[: max(0, room - 1)]}\N{HORIZONTAL ELLIPSIS}")


def say(line: str) -> None:
    """A line for people, on stderr."""
    err.print(line, markup=False, highlight=False)


class live:
    """A bar for the whole run and one for every piece of its work that is under way; without a terminal, a line each every
    half minute."""

    def __init__(self, run: Path) -> None:
        self._run, self._since = run, time.time()
        self._bars = _bars(shown=err.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._paces: dict[str, TimeLeft] = {}
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
        with contextlib.suppress(StoreError):  # a damaged file must not end the work of those who do not need it
            self._look(now)

    def _look(self, now: float) -> None:
        from bcl.experiment.status import incumbent, pieces, training_left

        found = [*pieces(self._run, self._since)]
        shares = {f"{piece.name} {piece.doing}": piece.done / max(piece.of, 1) for piece in found}
        whole, best = None, ""
        with contextlib.suppress(StoreError):
            whole, best = training_left(self._run, found), incumbent(self._run)
        if whole:
            shares[WHOLE] = whole[0] / whole[1]
        for gone in self._paces.keys() - shares.keys():
            del self._paces[gone]
        left = {key: self._paces.setdefault(key, TimeLeft()).left(share) for key, share in shares.items()}
        lines = [(f"{p.name} {p.doing}", p.name, _numbers(p)) for p in found]
        if whole:
            lines.insert(0, (WHOLE, WHOLE, "at most" + (f", best so far: {best}" if best else "")))
        if err.is_terminal:
            self._draw(lines, shares, left)
        elif now - self._printed >= SECONDS_PER_LINE:
            self._printed = now
            for key, name, numbers in lines:
                say(line_of(name, shares[key], left[key], numbers))

    def _draw(self, lines: list[tuple[str, str, str]], shares: dict[str, float], left: dict[str, str]) -> None:
        for key in self._tasks.keys() - shares.keys():
            self._bars.remove_task(self._tasks.pop(key))
        for key, name, numbers in lines:
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task("", total=1.0, numbers="")
            head = _head(name, shares[key], left[key])
            self._bars.update(self._tasks[key], completed=shares[key], description=head, numbers=_cut(numbers))


def line_of(name: str, share: float, left: str, numbers: str) -> str:
    """A piece of work under way, in one line."""
    return ", ".join(filter(None, (f"{name}: {share:.0%}", f"{left} left" * bool(left), numbers)))


def piece_line(piece: "Piece") -> str:
    """The same for somebody who looks once: the time left is by the last row of metrics."""
    rate = piece.row.get("steps_per_second")
    left = str(timedelta(seconds=round((piece.of - piece.done) / rate))) if rate else ""
    return line_of(piece.name, piece.done / max(piece.of, 1), left, _numbers(piece))


def _numbers(piece: "Piece") -> str:
    row = piece.row
    words = [f"{piece.doing} {piece.done:,} of {piece.of:,}" if row else piece.doing]
    for name, label in (("return", "return"), ("return_attacked", "attacked"), ("eps", "eps")):
        if (value := row.get(name)) is not None and (value or name != "eps"):
            words.append(f"{label} {value:.4g}")
    if rate := row.get("steps_per_second"):
        words.append(f"{rate:,.0f} steps/s")
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
