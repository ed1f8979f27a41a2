"""Jobs in this process and in others. The same promises on a Ray cluster: test_ray_executor.py."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcl.errors import ConfigError
from bcl.processes import show_warning
from bcl.runs import executors, store
from bcl.runs.executors import BackgroundJobs, Executor, InThisProcess, Job, JobFailed, JobKilled, Processes, Watch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # spawned processes import the jobs by this path
from tests.runs import jobs_for_tests as work  # noqa: E402


def counting(root: Path, *steps: int, pause: float = 0.03) -> list[Job]:
    return [Job(root / str(i), work.count, (n, pause)) for i, n in enumerate(steps)]


def steps_of(job: Job) -> list[int]:
    return store.read_json(job.folder / "result.json")["steps"]


def wait_for(what: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    return False


@pytest.mark.parametrize("executor", [InThisProcess(), Processes(3)], ids=["here", "processes"])
def test_results_come_in_order_and_running_again_finds_them(executor: Executor, tmp_path: Path) -> None:
    jobs, ticks = counting(tmp_path, 12, 2, 5), []
    results = executor.run(jobs, Watch(tick=lambda: ticks.append(time.time())))
    for job in jobs:
        next(results)
        assert steps_of(job) == list(range(1, job.args[0] + 1))
    assert next(results, "end") == "end"
    assert len(ticks) > 3
    before = [job.folder.joinpath("result.json").stat() for job in jobs]
    assert len(list(executor.run(jobs))) == 3
    assert [job.folder.joinpath("result.json").stat() for job in jobs] == before


def test_processes_work_at_the_same_time_but_not_more_than_parallel(tmp_path: Path) -> None:
    partners = {"a": "b", "b": "a", "c": "a"}  # the first two end only once both have begun
    jobs = [Job(tmp_path / name, work.meet, (partners[name],)) for name in partners]
    assert len(list(Processes(2).run(jobs))) == 3
    assert max(int((tmp_path / name / "at work").read_text()) for name in partners) == 2


@pytest.mark.parametrize("given", [None, "5"])
def test_processes_share_the_cores_and_leave_the_callers_environment(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    before = dict(os.environ)
    [_] = Processes(2).run([Job(tmp_path, work.note_threads, ())])
    assert (tmp_path / "threads").read_text() == (given or "3")
    assert dict(os.environ) == before


@pytest.mark.parametrize("plain", [True, False])
def test_warnings_in_processes_look_as_those_of_this_one(
    plain: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        monkeypatch.setattr(warnings, "showwarning", show_warning)
    list(Processes(1).run([Job(tmp_path, work.warn, ())]))
    first, *others = capfd.readouterr().err.splitlines()
    own = "warning: of the package" if plain else "device.py:1: UserWarning: of the package"
    assert first.endswith(own)
    assert any(line.endswith("game.py:1: UserWarning: of a game") for line in others)


def test_closing_kills_at_once(tmp_path: Path) -> None:
    jobs = [*counting(tmp_path, 1), Job(tmp_path / "deaf", work.deaf, (60.0,))]
    results = Processes(2).run(jobs)
    next(results)
    wait_for((tmp_path / "deaf" / "pid").exists)
    results.close()
    assert not alive(int((tmp_path / "deaf" / "pid").read_text()))
    assert not (tmp_path / "deaf" / "marker").exists()


@pytest.mark.parametrize("executor", [InThisProcess(), Processes(2)], ids=["here", "processes"])
def test_stop_keeps_checkpoints_and_running_again_continues(executor: Executor, tmp_path: Path) -> None:
    jobs = counting(tmp_path, 30, 25)
    with pytest.raises(KeyboardInterrupt):
        list(executor.run(jobs, Watch((tmp_path / "0" / "checkpoint").exists)))
    at = int((tmp_path / "0" / "checkpoint").read_text())
    assert 1 <= at < 30
    assert len(list(executor.run(jobs))) == 2
    assert (tmp_path / "0" / f"begun-at-{at}").exists()
    assert [steps_of(job) for job in jobs] == [list(range(1, 31)), list(range(1, 26))]


def test_stop_waits_only_so_long_for_the_deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "PATIENCE", 0.5)
    with pytest.raises(KeyboardInterrupt):
        list(Processes(1).run([Job(tmp_path, work.deaf, (60.0,))], Watch((tmp_path / "pid").exists)))
    assert not alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("executor", [InThisProcess(), Processes(2)], ids=["here", "processes"])
def test_stop_before_the_beginning_begins_nothing(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(executor.run(counting(tmp_path, 3), Watch(lambda: True)))
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_was_told_by_others_interrupts_all(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(Processes(1).run([Job(tmp_path, work.told_itself, ())]))


def test_a_mistake_is_raised_as_itself_after_the_jobs_before_it(tmp_path: Path) -> None:
    late = tmp_path / "late"
    jobs = [*counting(tmp_path, 40), Job(tmp_path / "bad", work.mistake, ()), Job(late, work.deaf, (0.0,))]
    results = Processes(2).run(jobs)
    next(results)
    assert steps_of(jobs[0]) == list(range(1, 41))
    with pytest.raises(ConfigError) as caught:
        next(results)
    assert (caught.value.message, caught.value.hint) == (f"a mistake in '{tmp_path / 'bad'}'", "a way out")
    assert not late.exists(), "nothing begins after a failure"


def test_a_failed_early_job_cancels_the_rest(tmp_path: Path) -> None:
    jobs = [Job(tmp_path / "bad", work.mistake, ()), Job(tmp_path / "deaf", work.deaf, (60.0,))]
    with pytest.raises(ConfigError):
        next(Processes(2).run(jobs))
    assert not (tmp_path / "deaf" / "marker").exists()


def test_a_bug_comes_with_its_traceback_though_its_exception_cannot_travel(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=r"(?s)jobs_for_tests.*in deep.*Unpicklable") as caught:
        list(Processes(1).run([Job(tmp_path, work.bug, ())]))
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) > 200_000


@pytest.mark.parametrize(("how", "words"), [(work.killed, "SIGKILL"), (work.silent_exit, "exit code 3")])
def test_a_killed_process_is_one_sentence(how: Callable[..., None], words: str, tmp_path: Path) -> None:
    with pytest.raises(JobKilled, match=words) as caught:
        list(Processes(1).run([Job(tmp_path, how, ())]))
    assert str(tmp_path) in caught.value.message
    assert "\n" not in str(caught.value)


PARENT = """
import signal, sys; from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us in the background has it ignored
from bcl.runs.executors import Job, Processes
from tests.runs import jobs_for_tests as work
if __name__ == "__main__":
    root = Path(sys.argv[1])
    list(Processes(2).run([Job(root / name, work.deaf, (60.0,)) for name in "ab"]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_child_outlives_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, script, tmp_path], cwd=tmp_path, env=env, stderr=subprocess.PIPE)
    pids = [tmp_path / name / "pid" for name in "ab"]
    wait_for(lambda: all(pid.exists() for pid in pids))
    children = [int(pid.read_text()) for pid in pids]
    assert all(map(alive, children))
    parent.send_signal(how)
    _, said = parent.communicate()
    wait_for(lambda: not any(map(alive, children)), 5)
    assert said.count(b"Traceback") == (how == signal.SIGINT), said  # the parent's own


DEAF_PARENT = """
import signal, sys; from pathlib import Path
signal.signal(signal.SIGINT, lambda *_: None)
from bcl.runs.executors import UNWATCHED, Job, Processes
from tests.runs import jobs_for_tests as work
list(Processes(2, sys.argv[2:]).run([Job(Path(sys.argv[1]), work.count, (10_000, 0.01))], UNWATCHED))
"""


@pytest.mark.parametrize("preload", [[], ["tests.runs.jobs_for_tests"]], ids=["spawned", "forked from a server"])
def test_ctrl_c_does_not_reach_jobs_but_by_this_process(preload: list[str], tmp_path: Path) -> None:
    words = [sys.executable, "-c", DEAF_PARENT, tmp_path, *preload]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    checkpoint = tmp_path / "checkpoint"
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, start_new_session=True) as parent:
        wait_for(lambda: checkpoint.exists() or parent.poll() is not None)
        assert parent.poll() is None, parent.stderr.read()
        os.killpg(parent.pid, signal.SIGINT)  # a terminal tells all processes
        told_at = int(checkpoint.read_text())
        wait_for(lambda: int(checkpoint.read_text()) > told_at + 5 or parent.poll() is not None)
        assert parent.poll() is None
        os.killpg(parent.pid, signal.SIGKILL)


def test_a_crew_works_on_several_jobs_and_waits_for_the_one_that_is_asked_for(tmp_path: Path) -> None:
    slow = Job(tmp_path / "slow", work.deaf, (60.0,))
    [quick] = counting(tmp_path, 3)
    ticks: list[float] = []
    with BackgroundJobs(Watch(tick=lambda: ticks.append(0.0))) as background:
        for job in (slow, quick, slow):
            background.begin(job)
        background.wait(quick.folder)
        assert steps_of(quick) == [1, 2, 3]
        assert not (tmp_path / "slow" / "marker").exists()
        background.wait(tmp_path / "nothing was begun here")
        wait_for((tmp_path / "slow" / "pid").exists)
        background.cancel(slow.folder)
        assert not alive(int((tmp_path / "slow" / "pid").read_text()))
    assert ticks


def process_of(job: Job) -> int:
    return int((job.folder / "begun-at-0").read_text())


def test_a_crews_process_takes_the_next_job_of_its_kind(tmp_path: Path) -> None:
    first, second, third = counting(tmp_path, 2, 2000, 2)
    threads = Job(tmp_path / "other kind", work.note_threads, ())
    with BackgroundJobs(Watch()) as background:
        background.begin(first)
        background.wait(first.folder)
        background.begin(threads)
        background.begin(second)
        wait_for((second.folder / "checkpoint").exists)
        background.cancel(second.folder)  # it listens
        assert process_of(second) == process_of(first)
        assert not (second.folder / "result.json").exists()
        background.begin(third)
        background.wait(third.folder)
        background.wait(threads.folder)
        assert steps_of(third) == [1, 2]
        assert process_of(third) == process_of(first)
        assert alive(process_of(first))
    assert not alive(process_of(first))


def test_waiting_can_end_before_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "LOOK", 0.0)
    [slow] = counting(tmp_path, 2000)
    with BackgroundJobs(Watch()) as background:
        background.begin(slow)
        assert background.wait(slow.folder, (slow.folder / "checkpoint").exists)
        assert alive(process_of(slow))
        assert not (slow.folder / "result.json").exists()
        assert not background.wait(tmp_path / "nothing was begun here", lambda: True)


def test_an_error_of_one_job_lets_the_others_keep_checkpoints(tmp_path: Path) -> None:
    [slow] = counting(tmp_path, 2000)
    wrong = Job(tmp_path / "wrong", work.mistake, ())

    def wait_for_the_wrong_one() -> None:
        with BackgroundJobs(Watch()) as background:
            background.begin(slow)
            wait_for((slow.folder / "checkpoint").exists)
            background.begin(wrong)
            background.wait(wrong.folder)

    with pytest.raises(ConfigError, match="a mistake"):
        wait_for_the_wrong_one()
    kept = int((slow.folder / "checkpoint").read_text())
    assert len(store.read_metrics(slow.folder / "sub" / "metrics.jsonl")) == kept
    assert not alive(process_of(slow))


def test_processes_tidy_up_after_each_job(tmp_path: Path) -> None:
    jobs = counting(tmp_path, 1, 1)
    with BackgroundJobs(Watch(), tidy=functools.partial(work.note, tmp_path / "tidied")) as background:
        for number, job in enumerate(jobs, 1):
            background.begin(job)
            background.wait(job.folder)
            assert (tmp_path / "tidied").read_text() == "." * number


def test_a_process_ends_by_itself_after_an_error_which_nothing_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that is broken, tidying up fails too, and a killed process breaks the GPU for others."""
    wrong = Job(tmp_path / "wrong", work.mistake, ())
    codes = []
    join = executors.Child.join
    monkeypatch.setattr(executors.Child, "join", lambda self: (join(self), codes.append(self._process.exitcode))[0])
    with BackgroundJobs(Watch(), tidy=functools.partial(work.note, tmp_path / "tidied")) as background:
        background.begin(wrong)
        with pytest.raises(ConfigError, match="a mistake"):
            background.wait(wrong.folder)
    assert not (tmp_path / "tidied").exists()
    assert codes == [0]


def test_a_process_that_was_killed_while_it_waited_is_replaced(tmp_path: Path) -> None:
    first, second = counting(tmp_path, 2, 2)
    with BackgroundJobs(Watch()) as background:
        background.begin(first)
        background.wait(first.folder)
        os.kill(process_of(first), signal.SIGKILL)
        [idle] = background._idle
        wait_for(lambda: not idle.takes_jobs)  # its threads may end after the first, which makes it look dead
        background.begin(second)
        background.wait(second.folder)
    assert steps_of(second) == [1, 2]
    assert process_of(second) != process_of(first)


def test_the_error_of_a_crews_job_is_raised_where_it_is_waited_for_and_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "PATIENCE", 0.5)
    monkeypatch.setattr(executors, "GENTLE", 0.5)
    slow = Job(tmp_path / "slow", work.deaf, (60.0,))
    wrong = Job(tmp_path / "wrong", work.mistake, ())

    def wait_for_the_wrong_one() -> None:
        with BackgroundJobs(Watch()) as background:
            background.begin(slow)
            background.begin(wrong)
            wait_for((tmp_path / "slow" / "pid").exists)
            background.wait(wrong.folder)

    with pytest.raises(ConfigError, match="a mistake"):
        wait_for_the_wrong_one()
    assert not alive(int((tmp_path / "slow" / "pid").read_text()))


def test_a_crew_that_is_stopped_lets_all_keep_checkpoints(tmp_path: Path) -> None:
    jobs = counting(tmp_path, 2000, 2000)
    begun = [tmp_path / name / "checkpoint" for name in "01"]

    def wait_for_the_first() -> None:
        with BackgroundJobs(Watch(lambda: all(map(Path.exists, begun)))) as background:
            for job in jobs:
                background.begin(job)
            background.wait(jobs[0].folder)

    with pytest.raises(KeyboardInterrupt):
        wait_for_the_first()
    kept = [int(path.read_text()) for path in begun]
    for job in jobs:
        assert len(store.read_metrics(job.folder / "sub" / "metrics.jsonl")) == kept[jobs.index(job)]


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from bcl.runs.executors import Job, Processes
from tests.runs import jobs_for_tests as work
print("begins")
list(Processes(2).run([Job(Path({folder!r}), work.count, (2, 0.0))]))
print("ends")
"""


def test_a_script_without_a_guard_is_not_run_again_by_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(ROOT), folder=str(tmp_path / "job")))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["begins", "ends"]), done.stderr
    assert (tmp_path / "job" / "result.json").exists()
