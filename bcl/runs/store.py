"""Every file this package writes, written so that a kill or a full disk at any moment loses nothing.

A file is written beside its place, flushed to the disk, then renamed over it: readers see the old content or the new.
A result that exists is finished; resuming is running again and skipping what exists (`once`).
JSON objects and rows of metrics carry a checksum, which is compared when they are read.
"""

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcl.errors import ConfigError, GameError, StoreError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Json = dict[str, Any]
CHECKSUM = "checksum"
MADE_AGAIN = "delete it to have it made again"
TEMPORARY = re.compile(r"\..*\.(\d{1,9})\.tmp")  # with the writer's pid


class Sink(io.FileIO):
    """A file being written, piece by piece."""

    failure: BaseException | None = None

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            _write_all(self.fileno(), data)
        except BaseException as error:
            self.failure = error
            raise
        return memoryview(data).nbytes


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Sink]:
    """Replace a file, or a link's target, atomically by what the block writes; on failure the old content stays."""
    with clear_errors(path):
        target = Path(os.path.realpath(path))  # unlike Path.resolve, never raises on a loop of links
        if target.exists() and not target.is_file():  # a device such as /dev/null would become a file
            raise StoreError(f"'{path}' is not a regular file", "give another path")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            sink = Sink(descriptor, "wb", closefd=False)
            try:
                yield sink
                os.fsync(descriptor)  # before the rename, or a power cut can leave an empty file under the name
            finally:
                os.close(descriptor)
                if sink.failure:  # torch.save hides it behind an error of its own
                    raise sink.failure from None
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # else a power cut can undo the rename
        finally:
            os.close(directory)


def write_bytes(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def try_to_write(path: Path) -> None:
    """Before long work: refuse a file that could not be written at its end."""
    trial = path.with_name(f".{path.name}.trial")
    write_bytes(trial, b"")
    remove(trial)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """`write_bytes` for a JSON object, readable by people; NaN and infinities become null."""
    write_text(path, json.dumps(sealed(value), indent=2) + "\n")


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; Path's raises PermissionError in a folder that may not be searched."""
    with clear_reads(path):
        return path.exists()


def read_bytes(path: Path) -> bytes:
    with clear_reads(path):
        return path.read_bytes()


def read_json(path: Path, hint: str = MADE_AGAIN) -> Json:
    """A JSON object that this package wrote; `hint` says what to do where it is damaged."""
    with clear_reads(path, hint):
        return unsealed(json.loads(path.read_bytes().decode()))


def read_if_there(path: Path) -> Json:
    """`read_json`, or nothing where there is no such file."""
    return read_json(path) if exists(path) else {}


def sealed(value: Mapping[str, Any]) -> Json:
    """The object with the checksum of its content; NaN and infinities become null."""
    # JSON has no NaN: other parsers refuse it.
    content: Json = json.loads(json.dumps(value), parse_constant=lambda _: None)
    content.pop(CHECKSUM, None)
    return content | {CHECKSUM: _checksum(content)}


def unsealed(value: Any) -> Json:
    """The content of what `sealed` gave, in version 0.1 without a checksum; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("it does not hold a JSON object")
    written = value.pop(CHECKSUM, None)
    if written not in (None, _checksum(value)):
        raise ValueError("its checksum is not that of its content")
    return value


def _checksum(content: Json) -> str:
    return f"{zlib.crc32(json.dumps(content).encode()):08x}"


def once(path: Path, compute: Callable[[], Mapping[str, Any]]) -> Json:
    """The stored result, computed and stored first where there is none."""
    if not exists(path):
        write_json(path, compute())
    return read_json(path)


def remove(path: Path) -> None:
    with clear_errors(path):
        path.unlink(missing_ok=True)


def sweep(directory: Path) -> None:
    """Delete what killed writers left in a directory and below it."""
    with clear_errors(directory):
        for path in directory.rglob(".*.tmp"):
            if (named := TEMPORARY.fullmatch(path.name)) and not _is_another_process(int(named[1])):
                path.unlink(missing_ok=True)


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row durably, all of it or nothing; several processes may. NaN and infinities become null."""
    line = _line(row)
    with clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                _end_with_a_row(path, file.fileno())
                end = file.seek(0, os.SEEK_END)
            try:
                _write_all(file.fileno(), line)
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise


def keep_metrics(path: Path, keep: Callable[[Json], bool]) -> None:
    rows = read_metrics(path)
    if not all(map(keep, rows)):
        write_bytes(path, b"".join(_line(row) for row in rows if keep(row)))


def read_metrics(path: Path) -> list[Json]:
    """All complete rows; a last line that ends before its row does was cut by a crash and is ignored."""
    data = read_bytes(path) if exists(path) else b""
    *lines, last = data.split(b"\n")
    if not _is_torn(last):  # but its newline is damaged
        lines.append(last)
    return [_row(path, number, line) for number, line in enumerate(lines, 1)]


@contextlib.contextmanager
def lock(directory: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Hold the directory for this process; the kernel lets go when the process dies, however it dies."""
    path = directory / "lock"
    with clear_errors(path):
        directory.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 # with a buffer, closing on a full disk would write again
    with file:
        with clear_errors(path):
            file.seek(0)
            owner = " ".join((file.read(300) or b"").decode(errors="replace").split())
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(f"cannot lock '{path}': {error.strerror}", "use a file system with locks") from None
            who = owner or "another process"
            raise StoreError(f"'{directory}' is in use by {who}", "wait for it, or stop that process") from None
        if owner:
            say(f"took over the lock of {owner}, which ended without releasing it")
        with clear_errors(path):
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # closing releases the lock; only the owner's name would stay
                file.truncate(0)


def owner(directory: Path) -> str | None:
    """The process that holds the directory's lock, by the name it wrote into it; none if it is free."""
    path = directory / "lock"
    with clear_reads(path):
        if not path.exists():
            return None
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return " ".join(file.read(300).decode(errors="replace").split()) or "another process"
    return None


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(sealed(row)) + "\n").encode()


def _is_torn(line: bytes) -> bool:
    """Whether a line is empty or breaks off inside its row."""
    with contextlib.suppress(ValueError, RecursionError):
        json.JSONDecoder().raw_decode(line.decode(errors="replace"))
        return False
    return True


def _row(path: Path, number: int, line: bytes) -> Json:
    with contextlib.suppress(ValueError, RecursionError):
        return unsealed(json.loads(line.decode()))
    raise StoreError(f"line {number} of '{path}' is damaged", "delete that line")


def _is_another_process(pid: int) -> bool:
    """Our own is none: it has no writer at work, and a restarted container may give it the last one's number."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return pid != os.getpid()


def _write_all(descriptor: int, data: "ReadableBuffer") -> None:
    left = memoryview(data)
    while left:  # a full disk writes a part first
        left = left[os.write(descriptor, left) :]


def _end_with_a_row(path: Path, descriptor: int) -> None:
    """Drop a torn last line; end one that lacks only its newline."""
    data = path.read_bytes()
    begin = data.rfind(b"\n") + 1
    if _is_torn(data[begin:]):
        os.ftruncate(descriptor, begin)
    else:
        _write_all(descriptor, b"\n")


@contextlib.contextmanager
def clear_reads(path: Path, hint: str = "check the path") -> Iterator[None]:
    """Errors of reading a file, as one sentence."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot read '{path}': {error.strerror or error}", "check the path") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise StoreError(f"'{path}' is damaged: {error}", hint) from None


@contextlib.contextmanager
def fitting(source: str, hint: str = MADE_AGAIN) -> Iterator[None]:
    """Stored values that do not fit or are missing, as one sentence."""
    try:
        yield
    except (ConfigError, GameError) as error:
        raise StoreError(f"{source} does not fit ({error.message})", hint) from None
    except KeyError as error:
        raise StoreError(f"{source} does not fit (it has no {error})", hint) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{source} does not fit ({error})", hint) from None


@contextlib.contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Errors of writing a file, as one sentence."""
    try:
        yield
    except OSError as error:
        hints = {
            errno.ENOSPC: "free some space and run the same command again; what was written before is intact",
            errno.EDQUOT: "free some of your quota and run the same command again; what was written before is intact",
            errno.EACCES: "check the permissions, or take another folder",
            errno.EROFS: "the file system is read-only; take another folder",
        }
        hint = hints.get(error.errno or 0, "check the path, or take another folder")
        raise StoreError(f"cannot write '{path}': {error.strerror or error}", hint) from None
