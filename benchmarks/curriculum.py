"""What a curriculum gains from doing things at once, on this machine.

    python benchmarks/curriculum.py [--game cartpole] [--runs 3] [--parallel 2] [--out
    benchmarks/results/curriculum-NAME.json] python benchmarks/curriculum.py --recipe bcl-mos-at [--game cartpole]
    [--init AGENT] [--bootstrap vanilla]

The first: the K runs of one phase one after the other against side by side. The second: a whole curriculum in which
judging stops training against one in which a run is judged while the next trains, both from the same agent, with the
share of the wall time in which nothing that counts was trained. Settings such as --curriculum.max_runs 4 apply to both.

Both ways train and judge the same runs; agents and decisions are compared, and must be equal on a CPU.
"""

import argparse
import contextlib
import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from provenance import store

import bcl
from bcl import experiment
from bcl.attacks import suite
from bcl.config import resolve, resolve_stages
from bcl.envs import make_env
from bcl.errors import counted
from bcl.evaluation import cells
from bcl.experiment import Dispatcher
from bcl.experiment.status import times_of
from bcl.experiment.verdict import plan_of
from bcl.experiment.worker import MODULES, TrainingOrder, spec_of
from bcl.learners.learner import Task
from bcl.policies import Policy
from bcl.policies.files import to_bytes
from bcl.runs.directory import Agent, RunDirectory, TrainingFolder
from bcl.runs.executors import Executor, InThisProcess, JudgeBeside, Processes, Watch
from bcl.settings import parse_settings


def phase(folder: Path, options: argparse.Namespace, executor: Executor) -> tuple[float, list[Agent]]:
    """Seconds that the runs of a phase take, and what came out."""
    config = resolve(options.game, recipe="ncl-at", settings=parse_settings(options.settings))
    with contextlib.closing(make_env(config.game, 1)) as env:
        torch.manual_seed(0)
        parent = to_bytes(Policy(spec_of(config, env)))
    judged = tuple(cells(suite("quick"), [config.curriculum.target]))
    plan, end = plan_of(config, "selection"), config.curriculum.target
    orders = []
    for k in range(1, options.runs + 1):
        task = Task("at", 0.0, end, k)
        order = TrainingOrder(f"run {k}", config, task, parent, options.device, plan=plan, cells=judged)
        orders.append((TrainingFolder(folder / f"run{k}"), order))
    start = time.perf_counter()
    agents = [run.agent() for run in Dispatcher(executor, options.device).train(orders)]
    return time.perf_counter() - start, agents


def curriculum(folder: Path, options: argparse.Namespace, beside: JudgeBeside, init: Policy | None) -> RunDirectory:
    """A run whose stages were trained; without its verdict, which has nothing to do with the curriculum."""
    stages = resolve_stages(options.game, recipe=options.recipe, settings=parse_settings(options.settings))
    experiment.create(folder, stages, options.device, init)
    watch = Watch(say=lambda line: print(f"{folder.name}: {line}"))
    dispatcher = Dispatcher(device=options.device, watch=watch, judge_beside=beside)
    experiment.train_until_median(folder, dispatcher)
    return RunDirectory(folder)


def beside(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Old way and new way, and what they took."""
    init = bcl.load(options.init) if options.init else None
    old = curriculum(folder / "one after the other", options, "off", init)
    (_, start), *_ = old.began_from()
    new = curriculum(folder / "beside each other", options, "on", bcl.load(start.file))
    ways = {}
    for run in (old, new):
        times = times_of(run.stages()[-1])
        assert times, "it was just made"
        ways[run.path.name] = dataclasses.asdict(times) | {"judging_share": times.judging_share}
        print(f"{run.path.name:<24}{times}")
    made = [[one.decision for one in run.stages()[-1].decisions()] for run in (old, new)]
    same = made[0] == made[1]
    runs = sum(len(decision.candidates) for decision in made[1][1:])
    print(
        f"the same decisions: {'yes' if same else 'no'}, {counted(runs, 'run')} in {counted(len(made[1]) - 1, 'phase')}"
    )
    return {"recipe": options.recipe, "ways": ways, "same_decisions": same, "runs": runs, "phases": len(made[1]) - 1}


def phases(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The runs of a phase one after the other, then at once."""
    # The same number of threads in both, or the one after the other would lose by waiting for threads.
    threads = max(1, (os.cpu_count() or 1) // options.parallel)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    serial, first = phase(folder / "serial", options, InThisProcess())
    parallel, second = phase(folder / "parallel", options, Processes(options.parallel, MODULES))
    equal = [agent.fingerprint for agent in first] == [agent.fingerprint for agent in second]
    print(f"{options.runs} runs of {options.game} on {options.device}")
    print(f"{'one after the other':<24}{serial:8.1f} s")
    print(f"{f'{options.parallel} at once':<24}{parallel:8.1f} s  {serial / parallel:.2f}x")
    print(f"the same agents: {'yes' if equal else 'no'}")
    return {
        "runs": options.runs, "parallel": options.parallel, "threads": threads,
        "serial_seconds": serial, "parallel_seconds": parallel, "ratio": serial / parallel, "same_agents": equal,
    }  # fmt: skip


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="cartpole")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--recipe", help="measure its whole curriculum, whose last stage has phases")
    parser.add_argument("--init", help="a run, a policy file or zoo:NAME; without it the bootstrap is trained first")
    parser.add_argument("--runs", type=int, default=3, help="K")
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    options, options.settings = parser.parse_known_args()

    with tempfile.TemporaryDirectory() as folder:
        measured = (beside if options.recipe else phases)(Path(folder), options)
    if options.out:
        store(options.out, options.device, {"game": options.game, "settings": options.settings} | measured)


if __name__ == "__main__":
    main()
