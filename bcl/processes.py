"""Processes that work for this one: how they end."""

import multiprocessing
import os
import signal
import threading


def die_with_parent() -> None:
    """From here on this process ends when the one that it works for does, however that one ends."""

    def wait() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def quiet_semaphore_tracker() -> None:
    """Python's tracker of semaphores should not warn when it cleans up after processes that were killed together. It takes
    its filters from the environment when the first process starts."""
    silent = "ignore:resource_tracker"
    filters = os.environ.get("PYTHONWARNINGS", "").split(",")
    if silent not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [*filters, silent]))


def how_it_ended(code: int | None) -> str:
    """In words, by the exit code of a process that ended without a result."""
    if code is None or code >= 0:
        return f"ended without a result (exit code {code or 0})"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"
