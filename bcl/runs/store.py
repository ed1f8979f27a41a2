"""Every file this package writes, written so that a kill or a full disk at any moment loses nothing.

A file is written beside its place, flushed to the disk, then renamed over it: readers see the old content or the new.
A result that exists is finished; resuming is running again and skipping what exists (`once`).
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bcl.errors import StoreError

Json = dict[str, Any]


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably; on failure the old content stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`write_bytes` for a JSON object, readable by people."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Json:
    """A JSON object that this package wrote."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise StoreError(f"cannot read '{path}': {error.strerror}", "check the path") from None
    except ValueError as error:
        raise StoreError(f"'{path}' is damaged: {error}", "delete it to have it made again") from None
    if not isinstance(value, dict):
        raise StoreError(f"'{path}' does not hold a JSON object", "delete it to have it made again")
    return value


def once(path: Path, compute: Callable[[], Mapping[str, Any]]) -> Json:
    """The stored result if there is one, else compute it, store it and return it as it will be read back."""
    if not path.exists():
        write_json(path, compute())
    return read_json(path)


class MetricsFile:
    """Appends one JSON object per line; a row is whole in the file once `append` returns, and absent if it raises."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _clear_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_line(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = os.fstat(self._descriptor).st_size

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row."""
        line = (json.dumps(row) + "\n").encode()
        with _clear_errors(self._path):
            try:
                written = 0
                while written < len(line):  # a full disk writes a part first
                    written += os.write(self._descriptor, line[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                raise
        self._size += len(line)

    def close(self) -> None:
        """Flush to the disk and close."""
        with _clear_errors(self._path):
            os.fsync(self._descriptor)
            os.close(self._descriptor)

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[Json]:
    """All complete rows; a last line without a newline was cut by a crash and is ignored."""
    if not path.exists():
        return []
    *lines, _torn = path.read_bytes().split(b"\n")
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise StoreError(f"'{path}' is damaged: {error}", "delete the line it names") from None


@contextlib.contextmanager
def lock(directory: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the directory for this process; the kernel lets go when the process dies, however it dies."""
    path = directory / "lock"
    with _clear_errors(path):
        file = open(path, "a+")  # noqa: SIM115
    with file:
        file.seek(0)
        owner = file.read().strip()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(f"cannot lock '{path}': {error.strerror}", "use a file system with locks") from None
            who = owner or "another process"
            raise StoreError(f"'{directory}' is in use by {who}", "wait for it, or stop that process") from None
        if owner:
            say(f"took over the lock of {owner}, which ended without releasing it")
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def check_new(directory: Path) -> None:
    """Refuse a run directory that holds something already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        resume = f"continue it with 'bcl resume {directory}', or " if (directory / "config.toml").exists() else ""
        raise StoreError(f"'{directory}' exists already", f"{resume}give another --out")


def create_run(directory: Path, config: str, about: Mapping[str, Any]) -> None:
    """Make a new run directory from its resolved configuration and its provenance; config.toml comes last."""
    check_new(directory)
    write_json(directory / "run.json", about)
    write_text(directory / "config.toml", config)


def open_run(directory: Path) -> str:
    """The configuration text of an existing run."""
    try:
        return (directory / "config.toml").read_text()
    except OSError:
        raise StoreError(f"'{directory}' is not a run directory", "it has no config.toml; check the path") from None


def check_same_config(directory: Path, differing: list[str]) -> None:
    """Refuse to continue a run under another configuration, naming the settings that differ."""
    if differing:
        names = ", ".join(differing)
        raise StoreError(
            f"'{directory}' was started with other settings ({names})", "resume it without them, or give another --out"
        )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_torn_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hints = {
            errno.ENOSPC: "free some space and run the same command again; what was written before is intact",
            errno.EDQUOT: "free some of your quota and run the same command again; what was written before is intact",
            errno.EACCES: "check the permissions, or give another --out",
            errno.EROFS: "the file system is read-only; give another --out",
        }
        hint = hints.get(error.errno or 0, "check the path, or give another --out")
        raise StoreError(f"cannot write '{path}': {error.strerror or error}", hint) from None
