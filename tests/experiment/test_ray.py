"""A curriculum on a Ray cluster of two machines, one of which is lost in mid-phase, decides as it does at home."""

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest

from bcl import experiment
from bcl.config import resolve_stages
from bcl.envs import make_env
from bcl.experiment import Dispatcher
from bcl.experiment.worker import spec_of
from bcl.policies import Policy
from bcl.policies.files import fingerprint, load
from bcl.runs.directory import RunDirectory
from bcl.runs.ray_executor import RayCluster
from bcl.settings import parse_flags

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.xdist_group("ray"),  # one worker, one cluster
]
FLAGS = [
    *("--network.hidden=16", "--dqn.steps=480", "--dqn.num_envs=8", "--dqn.batch_size=16", "--dqn.samples_per_step=4"),
    *("--dqn.buffer_size=200", "--dqn.replay_initial=32", "--dqn.ramp_steps=300", "--dqn.log_steps=40"),
    *("--dqn.checkpoint_steps=80", "--dqn.checkpoint_replay=true", "--evaluation.episodes=2", "--bootstrap=vanilla"),
    *("--evaluation.max_steps=60", "--curriculum.increment=0.1", "--curriculum.target=0.1", "--curriculum.runs=2"),
    *(
        "--curriculum.adaptive=false",
        "--curriculum.nominal_threshold=400",  # nobody meets it, so the bootstrap is not played under attack
        "--curriculum.attacked_threshold=400",
        "--evaluation.eps=0.1",
        "--curriculum.keep=last",  # fewer jobs: each of them starts processes that import PyTorch
    ),
]


def test_a_machine_is_lost_in_mid_phase(cluster: Any, tmp_path: Path) -> None:
    stages = resolve_stages("cartpole", recipe="bcl-mos-at", flags=parse_flags(FLAGS))
    with contextlib.closing(make_env(stages[0][1].game, 1)) as env:
        bootstrap = Policy(spec_of(stages[0][1], env))
    for name in ("here", "there"):
        experiment.create(tmp_path / name, stages, "cpu", bootstrap)
    home = experiment.finish(tmp_path / "here", Dispatcher())

    if not ray.is_initialized():
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    stage, lost = tmp_path / "there" / "stages" / "2-at", list[str]()

    def lose_one() -> None:
        runs = [stage / "phases" / "001" / name for name in ("run1", "run2")]
        if not lost and all((run / "metrics.jsonl").exists() for run in runs):
            lost.extend(run.name for run in runs if not (run / "result.json").exists())
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    cut = (stage / "result.json").exists  # the verdict needs no cluster, and is quicker at home
    there = Dispatcher(RayCluster(cluster.address, 1, 0, width=2), tick=lose_one, interrupted=cut)
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
