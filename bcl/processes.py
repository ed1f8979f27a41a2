"""Processes that work for this one, and this one: how they start, warn and end."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import TextIO

PACKAGE = os.path.dirname(__file__) + os.sep
INTERRUPTED = 130  # exit code of a command that was stopped by Ctrl-C or SIGTERM


def die_with_parent() -> None:
    """Make this process end when its parent does, however the parent ends."""

    def wait() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def environment_of_children(threads: int = 0) -> Iterator[None]:
    """What processes that start in the block find in their environment. `threads`: how many each takes, unless the user
    has said so; 0: they choose. Python's tracker of semaphores does not warn of processes that were killed."""
    filters = [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]
    changes = {"PYTHONWARNINGS": ",".join(filter(None, filters))}
    if threads and "OMP_NUM_THREADS" not in os.environ:
        changes["OMP_NUM_THREADS"] = str(threads)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """For `warnings.showwarning`: one of this package without the line of code that Python shows with it."""
    own = filename.startswith(PACKAGE)
    words = f"warning: {message}\n" if own else warnings.formatwarning(message, category, filename, lineno, line)
    if stream := file or sys.stderr:
        with contextlib.suppress(OSError):  # nobody reads it
            stream.write(words)


def how_it_ended(code: int | None) -> str:
    """In words, by the exit code of a process that ended without a result."""
    if code is None or code >= 0:
        return f"ended without a result (exit code {code or 0})"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"


def is_importing(frame: FrameType | None) -> bool:
    """Whether a signal came during an import: KeyboardInterrupt there makes NumPy recurse and PyTorch abort."""
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def end_all(message: str) -> None:
    """End this process and its children, where work cannot be interrupted, such as a game that hangs. Files stay whole:
    writes are atomic."""
    for child in multiprocessing.active_children():
        child.kill()
    with contextlib.suppress(OSError):
        os.write(2, ("\x1b[?25h" * os.isatty(2) + message).encode())  # the live view hides the cursor
    os._exit(INTERRUPTED)
