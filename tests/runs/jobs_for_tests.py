"""Jobs for the tests of executors; in a module of their own, because other processes import them."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from bcl.errors import ConfigError
from bcl.processes import PACKAGE
from bcl.runs import store

Stop = Callable[[], bool]


def count(folder: Path, steps: int, pause: float, stop: Stop) -> None:
    """Like a training run: a row of metrics per step, a checkpoint after it, at the end a result and no checkpoint."""
    result, checkpoint, metrics = folder / "result.json", folder / "checkpoint", folder / "sub" / "metrics.jsonl"
    if result.exists():
        return
    begin = int(checkpoint.read_text()) if checkpoint.exists() else 0
    store.write_text(folder / f"begun-at-{begin}", str(os.getpid()))
    store.keep_metrics(metrics, lambda row: row["step"] <= begin)
    for step in range(begin + 1, steps + 1):
        if stop():
            raise KeyboardInterrupt
        time.sleep(pause)
        store.append_row(metrics, {"step": step, "time": time.time()})
        store.write_text(checkpoint, str(step))
    store.write_json(result, {"steps": [row["step"] for row in store.read_metrics(metrics)]})
    store.remove(checkpoint)


def meet(folder: Path, partner: str, stop: Stop) -> None:
    """Ends once the partner has begun too; notes how many were at work when it began."""
    running = folder.parent / f"running-{folder.name}"
    store.write_text(running, "")
    store.write_text(folder / "at work", str(len(list(folder.parent.glob("running-*")))))
    while not (folder.parent / partner / "at work").exists():
        time.sleep(0.01)
    running.unlink()


def note_threads(folder: Path, stop: Stop) -> None:
    store.write_text(folder / "threads", os.environ.get("OMP_NUM_THREADS", "not said"))


def warn(folder: Path, stop: Stop) -> None:
    warnings.warn_explicit("of the package", UserWarning, f"{PACKAGE}device.py", 1)
    warnings.warn_explicit("of a game", UserWarning, "game.py", 1)


def mistake(folder: Path, stop: Stop) -> None:
    raise ConfigError(f"a mistake in '{folder}'", "a way out")


class Unpicklable(Exception):
    def __init__(self, one: object, two: object) -> None:
        super().__init__(lambda: (one, two))


def bug(folder: Path, stop: Stop) -> None:
    sys.setrecursionlimit(10_000)
    deep(200)


def deep(left: int) -> None:
    if left:
        deep(left - 1)
    raise Unpicklable("x" * 200_000, None) from ValueError("y" * 200_000)  # longer than a pipe's buffer


def killed(folder: Path, stop: Stop) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def silent_exit(folder: Path, stop: Stop) -> None:
    os._exit(3)


def deaf(folder: Path, seconds: float, stop: Stop) -> None:
    """Never asks whether to stop."""
    store.write_text(folder / "pid", str(os.getpid()))
    time.sleep(seconds)
    store.write_text(folder / "marker", "")


def told_itself(folder: Path, stop: Stop) -> None:
    """What a shutdown of the machine does: SIGTERM to every process."""
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop()
    raise KeyboardInterrupt


def big(folder: Path, size: int, pause: float, stop: Stop) -> None:
    """A big file once, then a small one many times."""
    store.write_bytes(folder / "big", bytes(size))
    for step in range(8):
        time.sleep(pause)
        store.write_text(folder / "small", str(step))


def note(file: Path) -> None:
    """Not a job: adds a dot to a file."""
    file.write_text((file.read_text() if file.exists() else "") + ".")
