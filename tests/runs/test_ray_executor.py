"""The promises of test_executors.py, kept by a Ray cluster of two machines (two sets of Ray's processes on this
one)."""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bcl import experiment
from bcl.config import resolve_stages
from bcl.envs import make_env
from bcl.errors import BclError, ConfigError, MissingExtra
from bcl.experiment import Dispatcher
from bcl.experiment.worker import spec_of
from bcl.policies import Policy
from bcl.policies.files import fingerprint, load
from bcl.runs import ray_executor, store
from bcl.runs.directory import RunDirectory
from bcl.runs.executors import InThisProcess, Job, JobFailed, Watch
from bcl.runs.ray_executor import RayCluster
from bcl.settings import parse_settings

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
from ray.cluster_utils import Cluster  # noqa: E402

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests.runs import jobs_for_tests as work  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without room for jobs and two machines with room for one each; their temporary files lie apart."""
    # Under /tmp: the names of sockets have no room for pytest's paths.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        patch.setenv("TMPDIR", temporary)
        patch.setenv("PYTHONPATH", str(ROOT))  # stands for an installation
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's workers have niceness 15, with which they hardly run beside the tests of another process.
        faster = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "worker_niceness": 0}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": faster}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def executor(cluster: Cluster) -> Iterator[RayCluster]:
    if not ray.is_initialized():  # one connection for all tests is faster
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    before = {*leftovers()}
    yield RayCluster(cluster.address, 1, 0)
    assert ray.is_initialized(), "whose connection it is not"
    wait_for(lambda: {*leftovers()} <= before)


def leftovers() -> list[Path]:
    mine = f"bcl-jobs-{os.getuid()}"
    found = [p for p in Path(os.environ["TMPDIR"]).glob("*") if p.name not in ("ray", mine)]
    return found + [p for p in Path(os.environ["TMPDIR"], mine).glob("*") if p.name != "lock"]


def wait_for(what: Callable[[], Any], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def counting(root: Path, *steps: int, pause: float = 0.05) -> list[Job]:
    return [Job(root / str(i), work.count, (n, pause)) for i, n in enumerate(steps)]


def files(root: Path) -> dict[str, str]:
    """Everything that is the same wherever the work was done."""
    found = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file() and "begun-at" not in p.name}
    return {n: p.read_text() if n.endswith("json") else str(len(store.read_metrics(p))) for n, p in found.items()}


def test_results_come_in_order_and_equal_those_made_here(cluster: Cluster, tmp_path: Path) -> None:
    ray.shutdown()
    signal.signal(signal.SIGTERM, ours := lambda *_: None)
    executor = RayCluster(cluster.address, 1, 0)
    jobs, ticks = counting(tmp_path / "there", 100, 2, 5), []
    store.write_text(jobs[1].folder / "checkpoint", "1")  # this one was begun before
    store.write_text(jobs[1].folder / "sub" / "metrics.jsonl", '{"step": 1}\n')
    results = executor.run(jobs, Watch(tick=lambda: ticks.append(time.time())))
    for job in jobs:
        next(results)
        assert (job.folder / "result.json").exists()
        assert not (job.folder / "checkpoint").exists(), "deletions travel"
    assert next(results, "end") == "end"
    assert not ray.is_initialized()
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is ours
    assert ticks
    assert (jobs[1].folder / "begun-at-1").exists()
    spans = [store.read_metrics(job.folder / "sub" / "metrics.jsonl") for job in jobs]
    assert spans[1][-1]["time"] < spans[0][-1]["time"], "they worked at the same time"
    assert len(list(InThisProcess().run(counting(tmp_path / "here", 100, 2, 5, pause=0)))) == 3
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_lost_machine_is_replaced_and_the_job_continues_from_its_checkpoint(
    cluster: Cluster, executor: RayCluster, tmp_path: Path
) -> None:
    jobs = counting(tmp_path / "there", 20, 20, pause=0.1)
    losses = []

    def lose_one() -> None:
        if not losses and all((job.folder / "checkpoint").exists() for job in jobs):
            losses.append(time.monotonic())
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    assert len(list(executor.run(jobs, Watch(tick=lose_one)))) == 2
    assert losses
    begun = [sorted(p.name for p in job.folder.glob("begun-at-*")) for job in jobs]
    assert sorted(map(len, begun)) == [1, 2], begun
    assert len(list(InThisProcess().run(counting(tmp_path / "here", 20, 20, pause=0)))) == 2
    assert files(tmp_path / "there") == files(tmp_path / "here")
    cluster.add_node(num_cpus=1)


CURRICULUM = [
    *("--network.hidden=16", "--dqn.steps=2400", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *("--dqn.buffer_size=200", "--dqn.replay_initial=32", "--dqn.ramp_steps=1500", "--dqn.log_steps=40"),
    *("--dqn.checkpoint_steps=80", "--dqn.checkpoint_replay=true", "--evaluation.episodes=2", "--bootstrap=vanilla"),
    *("--curriculum.increment=0.1", "--curriculum.target=0.1", "--curriculum.runs=2"),
    *(
        "--curriculum.adaptive=false",
        "--curriculum.nominal_threshold=400",  # nobody meets it, so the bootstrap is not played under attack
        "--curriculum.attacked_threshold=400",
        "--evaluation.eps=0.1",
        "--curriculum.keep=last",  # fewer jobs: each of them starts processes that import PyTorch
    ),
]


def test_a_curriculum_that_loses_a_machine_in_mid_phase_decides_as_it_does_at_home(
    cluster: Cluster, executor: RayCluster, tmp_path: Path
) -> None:
    stages = resolve_stages("cartpole", recipe="bcl-mos-at", settings=parse_settings(CURRICULUM))
    with contextlib.closing(make_env(stages[0][1].game, 1)) as env:
        bootstrap = Policy(spec_of(stages[0][1], env))
    for name in ("here", "there"):
        experiment.create(tmp_path / name, stages, "cpu", bootstrap)
    home = experiment.finish(tmp_path / "here", Dispatcher())

    stage, lost = tmp_path / "there" / "stages" / "2-at", list[str]()

    def lose_one() -> None:
        begun = [file.parent for file in stage.glob("phases/*/run*/metrics.jsonl")]
        running = [run.name for run in begun if not (run / "result.json").exists()]
        if running and not lost:  # in whichever phase that is seen first
            lost.extend(running)
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    cut = (stage / "result.json").exists  # the verdict needs no cluster, and is quicker at home
    there = Dispatcher(executor, watch=Watch(cut, lose_one))
    try:
        with pytest.raises(KeyboardInterrupt):
            experiment.finish(tmp_path / "there", there)
    finally:
        cluster.add_node(num_cpus=1)
    assert lost, "it was over before a machine could be lost"
    verdict = experiment.finish(tmp_path / "there", Dispatcher())
    assert verdict.evaluation.scores == home.evaluation.scores
    decisions = [
        [made.decision for made in RunDirectory(tmp_path / n).stages()[-1].decisions()] for n in ("here", "there")
    ]
    assert decisions[0] == decisions[1]
    best = [fingerprint(load(tmp_path / name / "best" / "policy.safetensors")) for name in ("here", "there")]
    assert best[0] == best[1]


def test_stop_fetches_the_last_checkpoint_and_running_again_continues(executor: RayCluster, tmp_path: Path) -> None:
    jobs = counting(tmp_path, 50, 50, 50)  # the third one waits for room
    with pytest.raises(KeyboardInterrupt):
        list(executor.run(jobs, Watch((tmp_path / "0" / "checkpoint").exists)))
    at = int((tmp_path / "0" / "checkpoint").read_text())
    rows = store.read_metrics(tmp_path / "0" / "sub" / "metrics.jsonl")
    assert rows[-1]["step"] == at < 50
    assert len(list(executor.run(jobs[:1]))) == 1
    assert (tmp_path / "0" / f"begun-at-{at}").exists()
    assert store.read_json(tmp_path / "0" / "result.json")["steps"] == list(range(1, 51))


def test_closing_kills_at_once(executor: RayCluster, tmp_path: Path) -> None:
    jobs = [*counting(tmp_path, 1), Job(tmp_path / "deaf", work.deaf, (60.0,))]
    results = executor.run(jobs)
    next(results)
    results.close()
    assert not (tmp_path / "deaf" / "marker").exists()


def test_errors_come_as_they_do_from_processes(executor: RayCluster, tmp_path: Path) -> None:
    jobs = [Job(tmp_path / "bad", work.mistake, ()), Job(tmp_path / "deaf", work.deaf, (60.0,))]
    with pytest.raises(ConfigError) as caught:
        list(executor.run(jobs))
    assert (caught.value.message, caught.value.hint) == (f"a mistake in '{tmp_path / 'bad'}'", "a way out")
    with pytest.raises(JobFailed, match=r"(?s)in deep.*Unpicklable"):
        list(executor.run([Job(tmp_path, work.bug, ())]))


def test_a_job_that_is_always_killed_is_given_up(
    executor: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "RETRIES", 1)
    with pytest.raises(BclError, match=r"lost 2 times.*SIGKILL") as caught:
        list(executor.run([Job(tmp_path, work.killed, ())]))
    assert str(tmp_path) in caught.value.message
    assert "\n" not in str(caught.value)


def test_a_big_file_travels_once(executor: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, int]] = []
    write = store.write_bytes
    monkeypatch.setattr(
        store, "write_bytes", lambda path, data: written.append((path.name, len(data))) or write(path, data)
    )
    size = 60_000_000
    assert len(list(executor.run([Job(tmp_path, work.big, (size, 0.2))]))) == 1
    assert written.count(("big", size)) == 1
    assert (tmp_path / "big").stat().st_size == size


def test_what_the_cluster_cannot_do_is_said(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, work.count, (1, 0.0))
    ray.shutdown()
    with pytest.raises(BclError, match="no machine of the Ray cluster has 99 CPUs and 0 GPUs"):
        list(RayCluster(cluster.address, 99, 0).run([job]))
    with pytest.raises(BclError, match="cannot use the Ray cluster 'nonsense'"):
        list(RayCluster("nonsense", 1, 0).run([job]))
    only_here = ModuleType("only_here")
    exec("def work(folder, stop): pass", only_here.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    with pytest.raises(BclError, match=r"cannot import 'only_here'.*install"):
        list(RayCluster(cluster.address, 1, 0).run([Job(tmp_path, only_here.work, ())]))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match="pip install"):
        list(RayCluster(cluster.address, 1, 0).run([job]))


def test_folders_of_killed_actors_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ray_executor._temporary_folder() as first:
        killed = first.parents[1] / "killed"
        store.write_text(killed / "work" / "checkpoint", "")
        (killed / "lock").write_text("pid 1 on elsewhere")
        with ray_executor._temporary_folder() as second:
            assert not killed.exists()
            assert first.is_dir()
            assert second.is_dir()
    assert [path.name for path in tmp_path.glob("*/*")] == ["lock"]


def test_what_comes_back_is_of_one_moment(tmp_path: Path) -> None:
    store.write_text(tmp_path / "log", "1\n")
    store.write_text(tmp_path / "old", "")
    changes, sent = ray_executor._changes(tmp_path, {})
    assert changes == [("log", b"1\n"), ("old", b"")]
    assert ray_executor._changes(tmp_path, sent) == ([], sent)
    store.write_text(tmp_path / "checkpoint", "2")
    with (tmp_path / "log").open("a") as log:  # after the checkpoint, but it also grew before it
        log.write("2\n")
    store.write_text(tmp_path / "sub" / "result", "")
    (tmp_path / "old").unlink()
    (tmp_path / ".half.1.tmp").write_text("")
    changes, sent = ray_executor._changes(tmp_path, sent)
    assert changes == [("log", b"1\n2\n"), ("checkpoint", b"2"), ("sub/result", b""), ("old", None)]
    assert ray_executor._changes(tmp_path, sent) == ([], sent)
