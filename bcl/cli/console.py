"""The terminal: progress with time left, plain lines where there is no terminal, and Ctrl-C."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import FrameType, TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, soft_wrap=True)

Report = Callable[[int, int], None]
SECONDS_PER_LINE = 10.0


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


def say(line: str) -> None:
    """A line for people, on stderr."""
    err.print(line, markup=False, highlight=False)


class training:
    """One bar for the work at hand; without a terminal, a line on stderr now and then."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
        self._bars = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._bar = self._bars.add_task("", total=None, visible=False, numbers="")
        self._printed = time.monotonic()

    def __enter__(self) -> "training":
        self._bars.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bars.stop()

    def begin(self, label: str) -> None:
        """The next piece of work."""
        self._label, self._row = label, dict[str, float | None]()
        self._bars.reset(self._bar, total=None, description=label, visible=True, numbers="")

    def log(self, row: Mapping[str, float | None]) -> None:
        """What the next lines are to show of training."""
        self._row = dict(row)

    def progress(self, done: int, of: int) -> None:
        """How far it is; may be called at any rate."""
        numbers = _numbers(done, of, self._row)
        self._bars.update(self._bar, completed=done, total=of, numbers=numbers)
        if not err.is_terminal and time.monotonic() - self._printed >= SECONDS_PER_LINE:
            self._printed = time.monotonic()
            say(f"{self._label}: {numbers}")


def _numbers(done: int, of: int, row: Mapping[str, float | None]) -> str:
    words = [f"{done:,} of {of:,}"]
    if (mean := row.get("return")) is not None:
        words.append(f"return {mean:.4g}")
    if eps := row.get("eps"):
        words.append(f"eps {eps:.3g}")
    if rate := row.get("steps_per_second"):
        words += [f"{rate:,.0f} steps/s", f"{timedelta(seconds=round((of - done) / rate))} left"]
    return ", ".join(words)


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask work to stop at the next good moment; a second one ends it at once."""
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with contextlib.suppress(OSError):  # not print: the signal may have come in the middle of one
            os.write(2, b"stopping at a checkpoint; once more to stop at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
