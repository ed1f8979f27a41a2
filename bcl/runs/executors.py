"""Where work happens: here, in processes of this machine, or on a Ray cluster (`ray_executor`).

A job is a function and a folder. It writes its results into the folder, each file whole or not at all, and called again
over what an earlier call left there it finishes that. So a job can be cancelled, lost or run elsewhere.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol

from bcl.errors import BclError
from bcl.processes import die_with_parent, environment_of_children, how_it_ended, show_warning

JudgeBeside = Literal["auto", "on", "off"]
"""Whether a run is judged while the next one trains."""
JobsDone = Generator[None, None, None]
Stop = Callable[[], bool]  # whether to stop
POLL = 0.1  # seconds between looks at running jobs
PATIENCE = 120.0  # seconds in which jobs that were told to stop have to write their checkpoints
GENTLE = 5.0  # the same, of a job that nobody needs any more; then its process is killed
LOOK = 1.0  # seconds between looks at what a job has stored so far


@dataclass(frozen=True)
class Watch:
    """How those who wait for work follow it, and stop it."""

    stop: Stop = lambda: False
    tick: Callable[[], None] = lambda: None
    """Called several times a second while work is under way."""
    say: Callable[[str], None] = lambda line: None
    """Told a line for every stage and phase."""


UNWATCHED = Watch()


def _nothing() -> None:
    """A function of this module, so that it can travel."""


@dataclass(frozen=True)
class Job:
    """`work(folder, *args, stop)`, where `stop()` tells that it should keep a checkpoint and raise KeyboardInterrupt.

    `work` is a function of a module and `args` are plain data, so that both can travel.
    """

    folder: Path
    work: Callable[..., None]
    args: tuple[Any, ...]


class JobFailed(Exception):
    """A job's work raised what is no BclError: a bug. The text ends with the traceback from where it ran."""


class JobKilled(BclError):
    """A job's process ended without a result."""


class Executor:
    """Runs jobs."""

    width = 1
    """Into how many jobs it is worth to divide work that can be divided."""

    def session(self) -> AbstractContextManager[None]:
        """Hold open what is needed for several calls of `run`."""
        return contextlib.nullcontext()

    def run(self, jobs: Sequence[Job], watch: Watch = UNWATCHED) -> JobsDone:
        """Yield once per job, in their order, when it is done; closing the iterator cancels the others.

        Where `watch.stop()` becomes true, jobs keep checkpoints and KeyboardInterrupt is raised. A job's error is
        raised here, after the jobs before it were yielded.
        """
        raise NotImplementedError


class InThisProcess(Executor):
    """One job after the other in this process, begun when its result is asked for; `tick` at each look at `stop`."""

    def run(self, jobs: Sequence[Job], watch: Watch = UNWATCHED) -> JobsDone:
        def asked() -> bool:
            watch.tick()
            return watch.stop()

        for job in jobs:
            if watch.stop():
                raise KeyboardInterrupt
            job.work(job.folder, *job.args, asked)
            yield


class Processes(Executor):
    """Up to `parallel` jobs at once, each in a process that dies with this one and has `preload` modules imported."""

    def __init__(self, parallel: int, preload: Sequence[str] = ()) -> None:
        self.width = parallel
        self._preload = preload
        # Else each would take all cores, and wait for the others.
        self._threads = max(1, (os.cpu_count() or 1) // parallel)

    def run(self, jobs: Sequence[Job], watch: Watch = UNWATCHED) -> JobsDone:
        return in_order(jobs, lambda job: Child(job, self._preload, self._threads), self.width, watch)


class Begun(Protocol):
    """A job under way somewhere."""

    def ended(self) -> bool: ...  # well or not; asked several times a second
    def error(self) -> BaseException | None: ...  # what went wrong in one that ended
    def interrupt(self) -> None: ...  # let it keep a checkpoint and end
    def cancel(self) -> None: ...  # begin to end it at once; what it has written stays
    def join(self) -> None: ...  # wait until one that was cancelled is gone


def in_order(jobs: Sequence[Job], begin: Callable[[Job], Begun], parallel: int, watch: Watch) -> JobsDone:
    """Executor.run for jobs that `begin` begins."""
    begun: list[Begun] = []
    try:
        for number in range(len(jobs)):
            while True:
                if watch.stop():
                    _interrupt(begun, watch)
                    raise KeyboardInterrupt
                ended = [one.ended() for one in begun]
                if number < len(begun) and ended[number]:
                    break
                failed = any(over and one.error() for over, one in zip(ended, begun, strict=True))
                if len(begun) < len(jobs) and ended.count(False) < parallel and not failed:
                    begun.append(begin(jobs[len(begun)]))
                    continue
                watch.tick()
                time.sleep(POLL)
            if error := begun[number].error():
                if isinstance(error, KeyboardInterrupt):  # the job itself was told; the others may have checkpoints
                    _interrupt(begun, watch)
                raise error
            yield
    finally:
        for one in begun:
            one.cancel()
        for one in begun:
            one.join()


def _interrupt(begun: Sequence[Begun], watch: Watch) -> None:
    for one in begun:
        one.interrupt()
    deadline = time.monotonic() + PATIENCE
    while [one for one in begun if not one.ended()] and time.monotonic() < deadline:
        watch.tick()
        time.sleep(POLL)


class BackgroundJobs:
    """Jobs beside each other, each in a process of its own, begun one by one, where the next depends on what has ended.

    A process that is done with a job takes the next one of its kind, since it still has its games and its GPU ready. As
    a context: KeyboardInterrupt lets jobs keep checkpoints, and what is still under way at its end is cancelled."""

    def __init__(self, watch: Watch, preload: Sequence[str] = (), tidy: Callable[[], None] = _nothing) -> None:
        """`tidy`: called in a process after each of its jobs, when nothing refers to what the job had."""
        self._watch = watch
        self._preload = preload
        self._tidy = tidy
        self._begun: dict[Path, Child] = {}
        self._idle: list[Child] = []

    def begin(self, job: Job) -> None:
        """One job to a folder; where one is under way, it is that one."""
        if job.folder in self._begun:
            return
        child = next((idle for idle in self._idle if idle.does(job) and idle.takes_jobs), None)
        if child:
            self._idle.remove(child)
            child.begin(job)
        self._begun[job.folder] = child or Child(job, self._preload, tidy=self._tidy)

    def wait(self, folder: Path, enough: Callable[[], bool] = lambda: False) -> bool:
        """Until a folder's job, if any, has ended, or what it has stored is `enough`: then true, and it goes on. Raises
        its error, or KeyboardInterrupt where it has to stop."""
        child = self._begun.get(folder)
        if child is None:
            return False
        looked = time.monotonic()
        while not child.ended():
            if self._watch.stop():
                raise KeyboardInterrupt
            self._watch.tick()
            time.sleep(POLL)
            if time.monotonic() - looked >= LOOK:
                if enough():
                    return True
                looked = time.monotonic()
        error = child.error()
        self._release(folder)
        if error:
            raise error
        return False

    def cancel(self, folder: Path) -> None:
        """End the job of a folder, if there is one; what it has written stays. Its process is not killed if it listens:
        it may be of use, and a GPU that processes share by MPS fails in all of them where one is killed."""
        child = self._begun.get(folder)
        if child is None:
            return
        child.interrupt()
        deadline = time.monotonic() + GENTLE
        while not child.ended() and time.monotonic() < deadline:
            self._watch.tick()
            time.sleep(POLL)
        self._release(folder)

    def _release(self, folder: Path) -> None:
        child = self._begun.pop(folder)
        if child.takes_jobs:
            self._idle.append(child)
            return
        if child.ended():  # it told an error, and ends by itself: see `cancel`
            child.wait(GENTLE)
        child.cancel()
        child.join()

    def __enter__(self) -> "BackgroundJobs":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind:
            _interrupt([*self._begun.values()], self._watch)
        for folder in [*self._begun]:
            self.cancel(folder)
        for child in self._idle:
            child.dismiss()
        for child in self._idle:
            child.wait(GENTLE)
            child.cancel()
            child.join()
        self._idle.clear()


class Child:
    """A job in a process of its own, which dies with this one however this one dies; a reusable one takes another job
    after that."""

    def __init__(
        self, job: Job, preload: Sequence[str] = (), threads: int = 0, *, tidy: Callable[[], None] | None = None
    ) -> None:
        """`tidy`: called in the process after each job; it is reusable where this is given."""
        # A fork of this process would inherit threads and CUDA in unknown states, and a fresh one may import for
        # seconds: with modules to preload, it is forked from a server that has imported them and done nothing else.
        context = multiprocessing.get_context("forkserver") if preload else multiprocessing.get_context("spawn")
        if preload:
            context.set_forkserver_preload([*preload])  # counts when the server starts, with the first job
        self._job = job
        self._reusable = tidy is not None
        self._said: list[BaseException | None] = []
        self._pipe, theirs = context.Pipe()
        # No daemon: those may have no children, and a game may run in processes of its own.
        plain = warnings.showwarning is show_warning  # as a function it could be anything, which cannot travel
        self._process = context.Process(target=_work, args=(job, theirs, tidy, plain))
        atexit.register(self.cancel)  # else this process would wait for it before it ends
        with environment_of_children(threads):
            resource_tracker.ensure_running()  # unblocks signals when it begins
            # Ctrl-C reaches the whole group: a child that still imports would print a traceback. It inherits the mask.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")  # else the process would run the user's script again
            try:
                self._process.start()
            except (EOFError, OSError) as error:
                what = f"no process could be started for '{job.folder}' ({error or type(error).__name__})"
                raise JobKilled(what, "give the command again") from None
            finally:
                sys.modules["__main__"] = main
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()

    def does(self, job: Job) -> bool:
        """Whether its last job was of the same kind."""
        return self._job.work is job.work

    @property
    def takes_jobs(self) -> bool:
        """Whether it is done with its job, or was interrupted, and waits for another."""
        return self._reusable and bool(self._said) and _is_well(self._said[0]) and self._process.is_alive()

    def begin(self, job: Job) -> None:
        """Another job, where it `takes_jobs`."""
        self._job = job
        self._said.clear()
        with contextlib.suppress(OSError):  # killed by somebody meanwhile, which `error` tells
            self._pipe.send(job)

    def dismiss(self) -> None:
        """Let one that waits for a job end by itself."""
        self._pipe.close()

    def ended(self) -> bool:
        works = self._process.is_alive()
        # Read while it works too: it cannot exit before a long traceback has left the pipe.
        with contextlib.suppress(EOFError, OSError):
            if not self._said and self._pipe.poll():
                self._said.append(self._pipe.recv())
        return not works or (self._reusable and bool(self._said))

    def error(self) -> BaseException | None:
        if self._said:
            return self._said[0]
        how = how_it_ended(self._process.exitcode)
        return JobKilled(f"the process working in '{self._job.folder}' {how}", "often that is a lack of memory")

    def interrupt(self) -> None:
        if self._process.is_alive():
            self._process.terminate()

    def cancel(self) -> None:
        if self._process.is_alive():
            self._process.kill()

    def join(self) -> None:
        self._process.join()
        self._pipe.close()
        atexit.unregister(self.cancel)

    def wait(self, seconds: float) -> None:
        """Until it ends, or for this long."""
        self._process.join(seconds)


def _work(job: Job, pipe: Connection, tidy: Callable[[], None] | None, plain_warnings: bool) -> None:
    """What the process of a `Child` runs."""
    if plain_warnings:
        warnings.showwarning = show_warning
    signals: list[int] = []  # no Event: a second signal inside its `set` would wait for itself
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the first decides
    die_with_parent()
    with contextlib.suppress(EOFError, OSError):
        outcome = _outcome(job, signals)
        while tidy and _is_well(outcome):
            tidy()  # before it is told, since others may need the memory at once
            pipe.send(outcome)
            following = pipe.recv()
            signals.clear()  # those were for the job before
            outcome = _outcome(following, signals)
        pipe.send(outcome)


def _is_well(outcome: BaseException | None) -> bool:
    """Whether a process takes more jobs after this; an error may have left a GPU in any state."""
    return isinstance(outcome, KeyboardInterrupt | None)


def _outcome(job: Job, signals: list[int]) -> BaseException | None:
    """Does the job; what went wrong, as it can travel."""
    try:
        job.work(job.folder, *job.args, lambda: bool(signals))
    except BclError as caught:
        return caught
    except KeyboardInterrupt:
        return KeyboardInterrupt()
    except BaseException:  # as text: not every exception can be pickled
        return JobFailed(f"the work in '{job.folder}' failed\n\n{traceback.format_exc()}")
    return None
