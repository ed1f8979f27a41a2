"""The terminal: bars with the time left, plain lines where there is no terminal, and Ctrl-C."""

import contextlib
import functools
import os
import re
import signal
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from bcl.api.evaluating import ProgressListener
from bcl.errors import StoreError
from bcl.processes import end_all, is_importing
from bcl.settings import format_return

if TYPE_CHECKING:
    from bcl.experiment.status import Work
    from bcl.runs.directory import Piece

WIDE = 10_000  # columns where there is no terminal: no line is broken and no table cut
NARROW = 40  # columns that lines take at least
_in_terminal = bool(sys.stdout and sys.stdout.isatty())
out = Console(soft_wrap=not _in_terminal, width=None if _in_terminal else WIDE)
err = Console(stderr=True, soft_wrap=True)

SECONDS_PER_LOOK = 1.0
SECONDS_PER_LINE = 30.0
RECENT = 60.0  # seconds of work by which the time left goes
SECONDS_TO_TIME = 10.0  # of evaluating: less says little about what is to come
WHOLE = "the whole run"
NOT_KNOWN = "time left: not known yet"
SECONDS_PER_WHOLE = 10.0  # to see how far that is, all scores and metrics of a run are read: a tenth of a second
# columns of a terminal
NAME = 32
BAR = 10
YEAR = 365 * 24 * 3600.0  # seconds
GRACE = 2.0  # seconds for work that was interrupted to end by itself
# What people copy: a path or a command in quotes (the apostrophe of a genitive is none), and a command to go on with.
_COPIED = re.compile(r"(?<!\w)'[^']+'|(?<=: )bcl [^;\n]+")
_GLUE = "\N{NO-BREAK SPACE}"


def folded(text: str, to: Console, indent: int = 0) -> str:
    """As it is; for a terminal in lines that break between words, but not inside what people copy. `indent`: of lines
    that go on."""
    if not to.is_terminal:
        return text
    glued = _COPIED.sub(lambda found: found[0].replace(" ", _GLUE), text)
    wrapper = textwrap.TextWrapper(
        max(NARROW, to.width), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(map(wrapper.fill, glued.splitlines())).replace(_GLUE, " ")


def say(line: str) -> None:
    """A line for people, on stderr."""
    err.print(folded(line, err), markup=False, highlight=False)


@dataclass(frozen=True)
class Shown:
    """A piece of work under way."""

    key: str
    """Pieces with the same key are the same piece, later."""
    name: str
    done: float
    of: float
    """Of how much; it grows where more work is found."""
    numbers: str
    seconds_left: float | None = None
    """Where that is known otherwise than by how fast it goes."""
    timed: bool = True
    """Whether what is to come goes on as now; a training that only fills its memory is faster than later."""

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1."""
        return self.done / self.of if self.of else 0.0

    def line(self, left: str, of: str = "") -> str:
        """All of it; `left` is the time left, `of` what the share is of."""
        return ", ".join(filter(None, (f"{self.name}: {self.share:.0%}{of}", left, self.numbers)))


class Bars:
    """A bar for every piece of work under way; where bars are not shown, on request a line each every half minute."""

    def __init__(self, shown: bool | None, lines: bool) -> None:
        self.shown = err.is_terminal or err.is_jupyter if shown is None else shown
        self._lines = lines and not self.shown
        columns = (  # how far it is and how long it will take come early, so that narrow terminals show it
            TextColumn("{task.description}", markup=False, table_column=Column(width=NAME, no_wrap=True)),
            TextColumn("{task.percentage:>3.0f}% {task.fields[left]:<14}"),
            BarColumn(BAR),
            TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        )
        self.drawn = Progress(*columns, console=err, transient=True, expand=True, disable=not self.shown)
        self._tasks: dict[str, TaskID] = {}
        self._seen: dict[str, deque[tuple[float, float]]] = {}
        """When each piece that is timed was seen of late, and how far it was then."""
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        self.drawn.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.drawn.stop()

    def show(self, pieces: Sequence[Shown], of: str = "") -> None:
        """What is under way now; what is not among it any more disappears."""
        for gone in self._tasks.keys() - {piece.key for piece in pieces}:
            self._seen.pop(gone, None)
            self.drawn.remove_task(self._tasks.pop(gone))
        left = {piece.key: self._estimate(piece) for piece in pieces}
        for piece in pieces:
            fields: dict[str, Any] = {"left": left[piece.key], "numbers": piece.numbers}
            if piece.key not in self._tasks:
                self._tasks[piece.key] = self.drawn.add_task(piece.name, total=1.0, **fields)
            self.drawn.update(self._tasks[piece.key], completed=piece.share, description=piece.name, **fields)
        if self._lines and time.monotonic() - self._printed >= SECONDS_PER_LINE:
            self._printed = time.monotonic()
            for piece in pieces:
                say(piece.line(left[piece.key], of))

    def _estimate(self, piece: Shown) -> str:
        """The time left; empty where that is not known, and in the first second."""
        if not piece.timed:
            self._seen.pop(piece.key, None)
            return ""
        if piece.seconds_left is not None:
            return _left(piece.seconds_left)
        now = time.monotonic()
        seen = self._seen.setdefault(piece.key, deque())
        if not seen or now - seen[-1][0] >= SECONDS_PER_LOOK:
            seen.append((now, piece.done))
        while len(seen) > 2 and now - seen[1][0] >= RECENT and seen[1][1] < piece.done:
            seen.popleft()
        rate = self.rate(piece.key)
        return _left((piece.of - piece.done) / rate) if rate else ""

    def rate(self, key: str) -> float:
        """How much of a piece was done in a second, of late; 0: that is not known."""
        seen = self._seen.get(key)
        if not seen or seen[-1][1] <= seen[0][1]:
            return 0.0
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def _left(seconds: float) -> str:
    """In hours, minutes and seconds; timedelta has an end, and settings have none."""
    return f"{timedelta(seconds=round(seconds))} left" if seconds < YEAR else "years left"


class progress(Bars, ProgressListener):
    """A bar of all the work of an evaluation; without a terminal, a line every half minute and per finished unit."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(shown=False if quiet else None, lines=not quiet)
        self._units = 0
        self._finished = 0
        self._started = 0

    def start(self, units: int) -> None:
        self._units = units
        self._finished = 0
        self._started += 1

    def begin(self, label: str) -> Callable[[int, int], None]:
        return self._told(str(self._started), label, " of all")

    def prepare(self, label: str) -> Callable[[int, int], None]:
        return self._told(label, label, "")

    def _told(self, key: str, label: str, share_of: str) -> Callable[[int, int], None]:
        def told(done: int, of: int) -> None:
            counted = f"{self._finished} of {self._units} done" if self._units else ""
            self.show([Shown(key, label, done, of, counted)], of=share_of)

        return told

    def finished(self, line: str) -> None:
        self._finished += 1
        if self._lines:
            say(line)


class live(Bars):
    """A run that this process works on: a bar for the whole and one for every piece of its work that is under way.

    `shown` forces bars or none, `lines` are printed where none are; `on_row` is told the rows of metrics that are new,
    and what it raises gets the `note`; `others` are the repeats beside it, whose time left is shown with its own.
    """

    def __init__(
        self,
        run: Path,
        shown: bool | None = None,
        lines: bool = True,
        on_row: Callable[[str, dict[str, Any]], object] | None = None,
        note: str = "",
        others: Sequence[Path] = (),
    ) -> None:
        super().__init__(shown, lines)
        self._run = run
        self._others = others
        self._name = f"all {len(others) + 1} repeats" if others else WHOLE
        self._since = time.time()
        self._watched = shown is not False or lines
        self._looked = time.monotonic()
        # Of evaluations while nothing trained, from one look at them to the next: seconds, and the passes made.
        self._evaluating = 0.0
        self._passes = 0.0
        # The last look: when it was, the passes by then, and whether there were only evaluations.
        self._passes_at = time.monotonic()
        self._passes_before = 0.0
        self._evaluated = False
        self._whole_at = -SECONDS_PER_WHOLE
        self._whole: list[Shown] = []
        self._on_row = on_row
        self._note = note
        self._told = {folder: row["step"] for folder, row in self._rows({})} if on_row else {}
        self._rows_before: dict[str, dict[str, Any]] = {}
        """The last row of each piece when it was first seen: of one that was resumed, from before."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        if kind is None:
            self._tell_rows()

    def tick(self) -> None:
        """Look how far the work is; may be called at any rate."""
        if time.monotonic() - self._looked < SECONDS_PER_LOOK:
            return
        self._looked = time.monotonic()
        self._tell_rows()
        if self._watched:
            # The bars are not worth ending the training for a damaged file, or steps beyond the numbers of a float.
            with contextlib.suppress(StoreError, OverflowError):
                self.show(self._under_way())

    def _under_way(self) -> list[Shown]:
        from bcl.experiment.status import pieces

        found = [*pieces(self._run, self._since)]
        shown = [_shown(piece, self._rows_before.setdefault(_key(piece), piece.row)) for piece in found]
        with contextlib.suppress(StoreError):
            if time.monotonic() - self._whole_at >= SECONDS_PER_WHOLE:
                self._whole = [*self._look_at_whole(found)]
                self._whole_at = time.monotonic()
            shown = [*self._whole, *shown]
        return shown

    def _look_at_whole(self, under_way: Sequence["Piece"]) -> Iterator[Shown]:
        """All training and evaluating, by what each takes; nothing where there is no end."""
        from bcl.experiment.status import incumbent, speeds, work_of

        mine = work_of(self._run, under_way)
        if mine is None or None in self._work_of_others:
            return
        work = sum(filter(None, self._work_of_others), start=mine)
        known = next(filter(None, map(speeds, (self._run, *self._others))), None)
        if known is None:
            yield Shown(self._name, self._name, 0.0, 1.0, NOT_KNOWN, timed=False)
            return
        training = [*filter(_trains, under_way)]
        speed = sum(self.rate(_key(piece)) for piece in training)
        done, of = work.seconds(speed or known.steps, self._pass_speed(work, under_way) or known.passes)
        timed = bool(speed) or known.now or not training
        best = incumbent(self._run)
        about = ("about", "at most" if work.at_most else "") if timed else (NOT_KNOWN,)
        words = (*about, best and f"best so far: {best}")
        yield Shown(self._name, self._name, done, of, ", ".join(filter(None, words)), of - done, timed)

    @functools.cached_property
    def _work_of_others(self) -> list["Work | None"]:
        """Which rests while this run is at work."""
        from bcl.experiment.status import work_of

        return [work_of(run, ()) for run in self._others]

    def _pass_speed(self, work: "Work", under_way: Sequence["Piece"]) -> float | None:
        """That of the evaluations since this began; none: not known."""
        now = time.monotonic()
        evaluates = bool(under_way) and not any(map(_trains, under_way))
        if evaluates and self._evaluated:
            self._evaluating += now - self._passes_at
            self._passes += work.passes - self._passes_before
        self._evaluated = evaluates
        self._passes_at = now
        self._passes_before = work.passes
        return self._passes / self._evaluating if self._passes > 0 and self._evaluating >= SECONDS_TO_TIME else None

    def _tell_rows(self) -> None:
        if self._on_row:
            for folder, row in self._rows(self._told):
                self._told[folder] = row["step"]
                try:
                    self._on_row(str(folder.relative_to(self._run.parent if self._others else self._run)), row)
                except Exception as error:
                    error.add_note(self._note)
                    raise

    def _rows(self, told: dict[Path, float]) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Of every training run, those after the step that was told."""
        from bcl.runs.directory import RunDirectory

        for training in RunDirectory(self._run).trainings():
            for row in training.metrics():
                if row["step"] > told.get(training.path, -1.0):
                    yield training.path, row


def piece_line(piece: "Piece") -> str:
    """One line for `bcl status`; the time left is by the last row of metrics."""
    rate = _shown(piece).timed and piece.row.get("steps_per_second")
    return _shown(piece).line(_left((piece.of - piece.done) / rate) if rate else "")


def _key(piece: "Piece") -> str:
    return f"{piece.name} {piece.doing}"


def _trains(piece: "Piece") -> bool:
    from bcl.experiment.worker import TRAINING

    return piece.doing == TRAINING


def _shown(piece: "Piece", before: dict[str, Any] | None = None) -> Shown:
    """`before`: its last row when it was first seen; as long as there is no other, it may be filling its memory."""
    from bcl.experiment.status import has_updates

    row = piece.row
    words = [f"{piece.doing} {piece.done:,} of {piece.of:,}" if row else piece.doing]
    for name, label in (("return", "return"), ("return_attacked", "attacked"), ("eps", "eps")):
        if (value := row.get(name)) is not None and (value or name != "eps"):
            words.append(f"{label} {format_return(value)}")
    if rate := row.get("steps_per_second"):
        words.append(f"{rate:,.0f} steps/s")
    timed = not _trains(piece) or (has_updates(row) and row != before)
    return Shown(_key(piece), piece.name, piece.done, piece.of, ", ".join(words), timed=timed)


@contextlib.contextmanager
def stop_requests(message: str = "") -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask work to stop at the next good moment; a second one ends it at once. `message` is what
    KeyboardInterrupt says then, and the last line where work does not end by itself."""
    asked: list[int] = []
    last = f"bcl: interrupted; {message}\n"
    force_exit = threading.Timer(GRACE, end_all, [last])
    force_exit.daemon = True

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            if is_importing(frame):
                end_all(last)
            if force_exit.ident is None:  # a third one may come
                force_exit.start()
            raise KeyboardInterrupt(message)
        asked.append(number)
        with contextlib.suppress(OSError):  # not print: the signal may have come in the middle of one
            os.write(2, b"stopping; interrupt again to stop at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        force_exit.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
