import errno
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bcl.errors import StoreError
from bcl.runs import store

FULL = OSError(errno.ENOSPC, "No space left on device")
STEPS = ["open", "write", "fsync", "replace", "open", "fsync"]  # the last two are the directory's


class Crash(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def crash_at(patch: pytest.MonkeyPatch, point: int, error: BaseException) -> list[str]:
    """Raise at the n-th of STEPS, a write after half its bytes; after a kill every later call raises too."""
    made: list[str] = []

    def wrap(name: str) -> None:
        original = getattr(os, name)

        def wrapped(*args: object, **kwargs: object) -> object:
            made.append(name)
            now = len(made) - 1
            if now == point and name == "write":
                original(args[0], args[1][: len(args[1]) // 2])  # type: ignore[index, arg-type]
            if now == point or (now > point and isinstance(error, Crash)):
                raise error
            return original(*args, **kwargs)

        patch.setattr(os, name, wrapped)

    for name in ("open", "write", "fsync", "replace", "unlink"):
        wrap(name)
    return made


@pytest.mark.parametrize("error", [Crash(), FULL], ids=["kill", "full disk"])
@pytest.mark.parametrize("point", range(len(STEPS) + 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10, deadline=None)
@given(old=st.text(max_size=20), new=st.text(max_size=20))
def test_a_crash_anywhere_leaves_the_old_content_or_the_new(
    tmp_path: Path, error: BaseException, point: int, old: str, new: str
) -> None:
    path = tmp_path / "result.json"
    store.write_json(path, {"value": old})
    with pytest.MonkeyPatch.context() as patch:
        made = crash_at(patch, point, error)
        try:
            store.write_json(path, {"value": new})
            finished = True
        except (Crash, StoreError):
            finished = False
    assert made[: point + 1] == STEPS[: point + 1]  # the point was reached
    assert finished == (point == len(STEPS))
    assert store.read_json(path) == {"value": old if point <= STEPS.index("replace") else new}


def test_the_file_is_on_the_disk_before_it_is_renamed_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append((os.fstat(fd).st_ino, os.fstat(fd).st_size)), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append("replace"), replace(old, new)))
    path = tmp_path / "a.txt"
    store.write_text(path, "whole")
    file, directory = path.stat(), tmp_path.stat()
    assert events == [(file.st_ino, 5), "replace", (directory.st_ino, directory.st_size)]


WRITER = """
import sys
from itertools import count
from pathlib import Path
from bcl.runs import store
for n in count():
    store.write_json(Path(sys.argv[1]), {"n": n, "again": [n] * 20000})
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for _ in range(15):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", WRITER, path]) as writer:
            until = time.monotonic() + 60
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.05))
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        found = store.read_json(path)
        assert found["again"] == [found["n"]] * 20000


def test_a_full_disk_is_one_sentence_and_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    store.write_json(path, {"value": 1})
    crash_at(monkeypatch, STEPS.index("write"), FULL)
    with pytest.raises(StoreError, match=r"No space left on device; free some space") as caught:
        store.write_json(path, {"value": 2})
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["a.json"]
    assert store.read_json(path) == {"value": 1}


def test_a_full_disk_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    store.append_row(path, {"step": 1})
    write, room = os.write, iter([4])

    def almost_full(descriptor: int, data: bytes) -> int:
        left = next(room, 0)
        if not left:
            raise FULL
        return write(descriptor, data[:left])

    monkeypatch.setattr(os, "write", almost_full)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        store.append_row(path, {"step": 2})
    monkeypatch.undo()
    assert store.read_metrics(path) == [{"step": 1}]
    store.append_row(path, {"step": 3})
    assert store.read_metrics(path) == [{"step": 1}, {"step": 3}]


def test_once_computes_once(tmp_path: Path) -> None:
    calls = []

    def compute() -> dict:
        calls.append(1)
        return {"score": 1.5}

    assert store.once(tmp_path / "x" / "r.json", compute) == {"score": 1.5}
    assert store.once(tmp_path / "x" / "r.json", compute) == {"score": 1.5}
    assert len(calls) == 1


def test_once_computes_again_after_a_crash_inside(tmp_path: Path) -> None:
    def broken() -> dict:
        raise Crash

    with pytest.raises(Crash):
        store.once(tmp_path / "r.json", broken)
    assert store.once(tmp_path / "r.json", lambda: {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "\xff", '{"a":' + "[" * 100_000], ids=["empty", "cut", "list", "binary", "deep"]
)
def test_a_damaged_result_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content, encoding="latin-1")
    with pytest.raises(StoreError, match="delete it") as caught:
        store.read_json(tmp_path / "r.json")
    assert "\n" not in str(caught.value)


def test_other_content_than_was_written_is_refused(tmp_path: Path) -> None:
    path, rows = tmp_path / "r.json", tmp_path / "m.jsonl"
    store.write_json(path, {"score": 1.5})
    store.append_row(rows, {"step": 1, "return": 20.5})
    for file in (path, rows):
        file.write_text(file.read_text().replace(".5", ".4"))
    with pytest.raises(StoreError, match=r"r\.json' is damaged: its checksum is not that of its content; delete it"):
        store.read_json(path)
    with pytest.raises(StoreError, match=r"line 1 of '.*' is damaged"):
        store.read_metrics(rows)


def test_files_of_version_0_1_have_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"score": 1.5}')
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert store.read_json(tmp_path / "r.json") == {"score": 1.5}
    assert store.read_metrics(tmp_path / "m.jsonl") == [{"step": 1}, {"step": 2}]
    store.keep_metrics(tmp_path / "m.jsonl", lambda row: row["step"] < 2)
    assert store.read_metrics(tmp_path / "m.jsonl") == [{"step": 1}]


@pytest.mark.parametrize("end", [b"x", b"\x8a", b""], ids=["changed", "no text", "missing"])
def test_a_last_row_whose_newline_is_damaged_is_not_taken_for_a_torn_one(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "m.jsonl"
    store.append_row(path, {"step": 1})
    path.write_bytes(path.read_bytes()[:-1] + end)
    if end:
        with pytest.raises(StoreError, match="line 1 of"):
            store.read_metrics(path)
    else:
        assert store.read_metrics(path) == [{"step": 1}]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    odd = {"loss": float("nan"), "deep": [1.5, {"low": float("-inf")}]}
    plain = {"loss": None, "deep": [1.5, {"low": None}]}
    store.write_json(tmp_path / "r.json", odd)
    store.append_row(tmp_path / "m.jsonl", odd)
    assert store.read_json(tmp_path / "r.json") == plain
    assert store.read_metrics(tmp_path / "m.jsonl") == [plain]


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere" / "real.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    for text in ("made", "replaced"):
        store.write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text


@pytest.mark.parametrize(
    "line", [b"{", b"\xff", b"3", b"", b"[" * 100_000], ids=["cut", "binary", "number", "", "deep"]
)
def test_a_damaged_row_is_named_by_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n' + line + b'\n{"a": 4}\n')
    with pytest.raises(StoreError, match=r"line 3 of '.*' is damaged; delete that line"):
        store.read_metrics(path)


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Is a directory"):
        store.read_metrics(tmp_path)
    assert store.read_metrics(tmp_path / "none.jsonl") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=5), cut=st.integers(0, 60)
)
def test_a_torn_last_line_is_ignored_and_writing_goes_on(tmp_path: Path, rows: list[dict], cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"")
    for row in rows:
        store.append_row(path, row)
    whole = path.read_bytes()
    path.write_bytes(whole[: min(cut, len(whole))])
    kept = store.read_metrics(path)
    assert kept == rows[: len(kept)]
    store.append_row(path, {"after": 1})
    assert store.read_metrics(path) == [*kept, {"after": 1}]


def hold(directory: Path, ready: Path) -> None:
    with store.lock(directory):
        ready.touch()
        time.sleep(60)


def test_a_second_process_is_refused_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, ready))
    process.start()
    while not ready.exists():
        time.sleep(0.01)
    with pytest.raises(StoreError, match=f"in use by pid {process.pid} on"), store.lock(tmp_path):
        pass
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    said: list[str] = []
    with store.lock(tmp_path, said.append):
        pass
    assert f"pid {process.pid}" in said[0]
    assert "without releasing" in said[0]
    with store.lock(tmp_path, said.append):
        pass
    assert len(said) == 1  # a clean release is silent


def test_a_lock_file_of_any_bytes_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"\xff\n\xfe")
    said: list[str] = []
    with store.lock(tmp_path, said.append):
        assert (tmp_path / "lock").read_text().startswith(f"pid {os.getpid()} on ")
    assert "\n" not in said[0]
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_lock_without_room_for_the_name_is_one_sentence(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # files open and truncate, but take no byte
    try:
        with pytest.raises(StoreError, match=r"cannot write '.*lock': File too large"), store.lock(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with store.lock(tmp_path):
        pass


def test_a_name_too_long_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    for use in (
        lambda: store.lock(path).__enter__(),
        lambda: store.read_metrics(path),
        lambda: store.once(path, dict),
        lambda: store.write_text(path, ""),
    ):
        with pytest.raises(StoreError, match="name too long"):
            use()


def test_no_permission_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        store.write_text(tmp_path / "file" / "inside.txt", "x")


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StoreError, match="is not a regular file"):
        store.write_text(pipe, "text")
    assert pipe.is_fifo()
