import errno
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bcl.errors import StoreError
from bcl.runs import store


class Crash(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, point: int, error: type[BaseException] | OSError) -> None:
    """Raise at the n-th system call of a write: open, write, fsync, replace, fsync of the directory."""
    calls = iter(range(100))

    def wrap(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: object, **kwargs: object) -> object:
            if next(calls) == point:
                raise error
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    for name in ("fsync", "replace", "open", "close"):
        wrap(os, name)


@pytest.mark.parametrize(
    "error", [Crash(), OSError(errno.ENOSPC, "No space left on device")], ids=["kill", "full disk"]
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(point=st.integers(0, 6), old=st.text(max_size=20), new=st.text(max_size=20))
def test_a_crash_anywhere_leaves_the_old_content_or_the_new(
    tmp_path: Path, error: BaseException, point: int, old: str, new: str
) -> None:
    path = tmp_path / "result.json"
    store.write_json(path, {"value": old})
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, point, error)  # type: ignore[arg-type]
        try:
            store.write_json(path, {"value": new})
            finished = True
        except (Crash, StoreError):
            finished = False
    found = store.read_json(path)["value"]
    assert found == new if finished else found in (old, new)


def test_a_full_disk_is_one_sentence_and_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    store.write_json(path, {"value": 1})
    crash_at(monkeypatch, 0, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StoreError, match=r"No space left on device; free some space") as caught:
        store.write_json(path, {"value": 2})
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["a.json"]
    assert store.read_json(path) == {"value": 1}


def test_a_full_disk_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    with store.MetricsFile(path) as metrics:
        metrics.append({"step": 1})
        write, room = os.write, iter([4])

        def almost_full(descriptor: int, data: bytes) -> int:
            left = next(room, 0)
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data[:left])

        monkeypatch.setattr(os, "write", almost_full)
        with pytest.raises(StoreError, match="No space left on device; free some space"):
            metrics.append({"step": 2})
        monkeypatch.undo()
        metrics.append({"step": 3})
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


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff"])
def test_a_damaged_result_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content, encoding="latin-1")
    with pytest.raises(StoreError, match="delete it"):
        store.read_json(tmp_path / "r.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), max_size=5), cut=st.integers(0, 60)
)
def test_a_torn_last_line_is_ignored_and_writing_goes_on(tmp_path: Path, rows: list[dict], cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.unlink(missing_ok=True)
    with store.MetricsFile(path) as metrics:
        for row in rows:
            metrics.append(row)
    whole = path.read_bytes()
    path.write_bytes(whole[: min(cut, len(whole))])
    kept = store.read_metrics(path)
    assert kept == rows[: len(kept)]
    with store.MetricsFile(path) as metrics:
        metrics.append({"after": 1})
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


def test_create_and_open(tmp_path: Path) -> None:
    run = tmp_path / "run"
    store.create_run(run, "seed = 1\n", {"version": "x"})
    assert store.open_run(run) == "seed = 1\n"
    assert json.loads((run / "run.json").read_text()) == {"version": "x"}
    with pytest.raises(StoreError, match="bcl resume"):
        store.create_run(run, "", {})
    with pytest.raises(StoreError, match="not a run directory"):
        store.open_run(tmp_path)


def test_another_directory_or_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(StoreError, match="exists already; give another --out"):
            store.create_run(path, "", {})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_resume_under_other_settings_names_them(tmp_path: Path) -> None:
    store.check_same_config(tmp_path, [])
    with pytest.raises(StoreError, match=r"dqn\.steps, seed"):
        store.check_same_config(tmp_path, ["dqn.steps", "seed"])


def test_no_permission_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        store.write_text(tmp_path / "file" / "inside.txt", "x")
