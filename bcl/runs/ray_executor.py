"""Jobs on a Ray cluster whose machines share no files with this one.

A job's files travel to the machine that Ray chose, the work happens in a temporary folder there, and files come back as
they change. A job whose machine is lost begins anew on another one with those, its last checkpoint among them.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bcl.errors import BclError, StoreError, optional
from bcl.runs import store
from bcl.runs.executors import UNWATCHED, Child, Executor, Job, JobFailed, JobKilled, JobsDone, Watch, in_order

CONNECT = 10.0  # seconds for a cluster to answer at all
LOOK = 0.7  # seconds that a machine waits before it looks for changed files again
CLOSING = 10.0  # seconds for a machine to delete its temporary folder
RETRIES = 5
AGAIN = "run the same command again; it continues from the last checkpoints"

FolderListing = dict[str, tuple[int, int, int]]
"""By file: inode, mtime, size."""
Changes = list[tuple[str, bytes | None]]
"""New contents, None for deleted files, in the order in which to write them."""


@dataclass(frozen=True)
class RayCluster(Executor):
    """As many jobs at once as the cluster has room for."""

    address: str | None
    """`auto`, `host:port` or `ray://host:port`; None starts a cluster of this machine alone."""
    cpus: float
    """Per job."""
    gpus: float
    """Per job."""
    width: int = 4

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """One connection, or one cluster of this machine, for several calls of `run`."""
        ray = _import_ray()
        mine = not ray.is_initialized()
        try:
            if mine:
                self._connect(ray)
            self._check_room(ray)
            yield
        finally:
            if mine:
                ray.shutdown()

    def run(self, jobs: Sequence[Job], watch: Watch = UNWATCHED) -> JobsDone:
        with self.session():
            ray = _import_ray()
            site = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_task_retries=0)(_Site)
            try:
                yield from in_order(jobs, lambda job: _Remote(ray, site.remote, job), max(len(jobs), 1), watch)
            except ConnectionError as error:
                raise BclError(f"the connection to the Ray cluster was lost ({_line(error)})", AGAIN) from None

    def _connect(self, ray: Any) -> None:
        if self.address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start sends no reports
        host, _, port = (self.address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # refuse one that accepts no connection: Ray would retry for minutes
            try:
                socket.create_connection((host, int(port)), timeout=CONNECT).close()
            except OSError as error:
                what = f"cannot use the Ray cluster '{self.address}' ({error.strerror or error})"
                raise BclError(what, "check the address, and that the cluster runs") from None
        options = {} if self.address else {"include_dashboard": False}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(self.address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:  # no cluster, another version, not an address
            what = f"cannot use the Ray cluster '{self.address or 'local'}' ({_line(error)})"
            raise BclError(what, "check the address, and that it runs this version of Ray and Python") from None
        if callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray takes it for itself

    def _check_room(self, ray: Any) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fits = any(node.get("CPU", 0.0) >= self.cpus and node.get("GPU", 0.0) >= self.gpus for node in nodes)
        if not fits:  # Ray would wait forever
            what = f"no machine of the Ray cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a job"
            raise BclError(what, "ask for less per job, or add a machine")


class _Remote:
    """A job on the cluster, seen from here."""

    def __init__(self, ray: Any, new_site: Callable[[], Any], job: Job) -> None:
        self._ray = ray
        self._new_site = new_site
        self._job = job
        self._interrupted = False
        self._error: BaseException | None = None
        self._closing: list[Any] = []
        self._calls = self._work()
        self._call = next(self._calls, None)  # none: it is over

    def ended(self) -> bool:
        # With fetch_local, each wait that ends without the whole of a big file would begin its transfer anew.
        if self._call is not None and self._ray.wait([self._call], timeout=0, fetch_local=False)[0]:
            self._call = next(self._calls, None)
        return self._call is None

    def error(self) -> BaseException | None:
        return self._error

    def interrupt(self) -> None:
        if self._call is not None and self._at_work:
            self._interrupted = True
            self._site.interrupt.remote()
        else:
            self.cancel()

    def cancel(self) -> None:
        if self._call is not None:
            self._call = None
            self._error = KeyboardInterrupt()
            self._calls.close()

    def join(self) -> None:
        if self._closing:  # or the temporary folders would stay there
            self._ray.wait(self._closing, num_returns=len(self._closing), timeout=CLOSING)

    def _work(self) -> Generator[Any, None, None]:
        """The job, on another machine where one is lost; yields calls to wait for."""
        for _ in range(RETRIES + 1):
            try:
                error = yield from self._work_on_one_machine()
            except self._ray.exceptions.RayTaskError as caught:  # not the work: what is around it
                error = _setup_error(self._job, caught)
            except self._ray.exceptions.RayError as caught:
                error = JobKilled(_line(caught))
            lost = isinstance(error, JobKilled | KeyboardInterrupt)  # by us, or with the machine
            if not lost or self._interrupted:
                self._error = KeyboardInterrupt() if lost else error
                return
        what = f"the work in '{self._job.folder}' was lost {RETRIES + 1} times, at last because: {error}"
        self._error = BclError(what, f"look into the cluster, then {AGAIN}")

    def _work_on_one_machine(self) -> Generator[Any, None, BaseException | None]:
        folder = self._job.folder
        self._site = self._new_site()
        self._at_work = False
        try:
            call = self._site.ready.remote()
            yield call
            self._ray.get(call)  # the files follow when a machine was found
            self._at_work = True
            files = {name: (folder / name).read_bytes() for name in _listing(folder)}
            call = self._site.begin.remote(self._job, files)
            while True:
                yield call
                changes, ended, error = self._ray.get(call)
                for name, data in changes:
                    if data is None:
                        store.remove(folder / name)
                    else:
                        store.write_bytes(folder / name, data)
                if ended:
                    return error
                call = self._site.look.remote()
        finally:
            if self._at_work:
                self._closing.append(self._site.close.remote())
            else:
                self._ray.kill(self._site)
            self._site = None  # an actor whose handle is gone ends after its last call, and makes room for another


class _Site:
    """The actor: a job in a temporary folder, on the machine that Ray chose."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()

    def ready(self) -> None:
        """Answers when there is room for the job."""

    def begin(self, job: Job, files: dict[str, bytes]) -> tuple[Changes, bool, BaseException | None]:
        """Begin the job with these files, then `look`."""
        self._job = job
        self._folder = self._held.enter_context(_temporary_folder())
        for name, data in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._sent = _listing(self._folder)
        self._child = Child(Job(self._folder, job.work, job.args))
        self._held.callback(self._child.join)
        self._held.callback(self._child.cancel)
        return self.look()

    def look(self) -> tuple[Changes, bool, BaseException | None]:
        """What changed since the last look, whether the job has ended, and its error."""
        self._child.wait(LOOK)
        ended = self._child.ended()  # before the files, or the last of them could be missed
        changes, self._sent = _changes(self._folder, self._sent)
        return changes, ended, self._error() if ended else None

    def interrupt(self) -> None:
        self._child.interrupt()

    def close(self) -> None:
        """End the job, and delete its folder."""
        self._held.close()

    def _error(self) -> BaseException | None:
        """With the folder that the user knows."""
        error = self._child.error()
        here = str(self._folder)
        there = str(self._job.folder)
        if isinstance(error, BclError):
            error.message = error.message.replace(here, there)
            error.hint = error.hint.replace(here, there)
        return JobFailed(str(error).replace(here, there)) if isinstance(error, JobFailed) else error


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder to work in; those of actors that were killed, gigabytes perhaps, are deleted first."""
    root = Path(tempfile.gettempdir()) / f"bcl-jobs-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as held:
        with open(root / "lock", "wb") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # no other actor deletes a folder that is not locked yet
            for old in (path for path in root.iterdir() if path.is_dir()):
                with contextlib.suppress(StoreError), store.lock(old):
                    shutil.rmtree(old, ignore_errors=True)
            mine = Path(tempfile.mkdtemp(dir=root))
            held.enter_context(store.lock(mine))
        (mine / "work").mkdir()
        yield mine / "work"
        shutil.rmtree(mine, ignore_errors=True)


def _listing(folder: Path) -> FolderListing:
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # replaced or deleted since
            facts = path.stat()
            half_written = path.name.startswith(".") and path.name.endswith(".tmp")
            if not path.is_dir() and not half_written:
                found[path.relative_to(folder).as_posix()] = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
    return found


def _changes(folder: Path, sent: FolderListing) -> tuple[Changes, FolderListing]:
    """What changed since `sent`, as it was at one moment: a checkpoint never comes without the metrics before it."""
    with contextlib.ExitStack() as files:
        while True:
            found = _listing(folder)
            opened = dict[str, BinaryIO]()
            with contextlib.suppress(FileNotFoundError):
                for name in (name for name in found if found[name] != sent.get(name)):
                    opened[name] = files.enter_context(open(folder / name, "rb"))
                if _inodes(found) == _inodes(_listing(folder)):
                    break  # nothing was replaced, and what is open stays; files that only grow may do so
            files.close()
        # Those that grew first, then by age: a process killed while writing them leaves no file without those before
        # it.
        grown = {name for name in opened if name in sent and sent[name][0] == found[name][0]}
        order = sorted(opened, key=lambda name: (name not in grown, found[name][1]))
        changes: Changes = [(name, opened[name].read()) for name in order]
    return changes + [(name, None) for name in sent if name not in found], found


def _inodes(listing: FolderListing) -> dict[str, int]:
    return {name: inode for name, (inode, _, _) in listing.items()}


def _setup_error(job: Job, error: BaseException) -> BaseException:
    if "No module named" in str(error):
        module = str(error).split("No module named")[-1].split()[0].strip("'\"")
        what = f"the Ray cluster cannot import '{module}'"
        return BclError(what, "install bcl and what the job needs on each of its machines, in this version")
    return JobFailed(f"the work in '{job.folder}' failed around its beginning or end\n\n{error}")


def _import_ray() -> Any:
    return optional("ray", "a Ray cluster needs Ray", "pip install 'ray>=2.40'")


def _line(error: BaseException) -> str:
    """An error's first line; Ray's have pages."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).strip().rstrip(".:")
