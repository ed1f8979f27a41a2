"""One phase of a curriculum: its K runs one after the other against side by side, on this machine.

    python benchmarks/curriculum.py [--game cartpole] [--runs 3] [--parallel 2] [--out benchmarks/results/curriculum-NAME.json]

Both ways train and judge the same runs from the same agent; the agents that come out are compared, and must be equal on a CPU.
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from provenance import provenance

from bcl.attacks import suite
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import cells
from bcl.experiment import Dispatcher
from bcl.experiment.verdict import plan_of
from bcl.experiment.worker import MODULES, TrainingOrder, spec_of
from bcl.learners.learner import Task
from bcl.policies import Policy
from bcl.policies.files import to_bytes
from bcl.runs.directory import Agent, TrainingFolder
from bcl.runs.executors import Executor, Here, Processes
from bcl.settings import parse_flags


def phase(folder: Path, options: argparse.Namespace, executor: Executor) -> tuple[float, list[Agent]]:
    """Seconds that the runs of a phase take, and what came out."""
    config = resolve(options.game, recipe="ncl-at", flags=parse_flags(options.settings))
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


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="cartpole")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=3, help="K")
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    options, options.settings = parser.parse_known_args()

    # The same number of threads in both, or the one after the other would lose by waiting for threads.
    threads = max(1, (os.cpu_count() or 1) // options.parallel)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        serial, first = phase(Path(folder, "serial"), options, Here())
        parallel, second = phase(Path(folder, "parallel"), options, Processes(options.parallel, MODULES))
    equal = [agent.fingerprint for agent in first] == [agent.fingerprint for agent in second]
    print(f"{options.runs} runs of {options.game} on {options.device}")
    print(f"{'one after the other':<24}{serial:8.1f} s")
    print(f"{f'{options.parallel} at once':<24}{parallel:8.1f} s  {serial / parallel:.2f}x")
    print(f"the same agents: {'yes' if equal else 'no'}")
    if options.out:
        result = provenance(options.device) | {
            "game": options.game, "runs": options.runs, "parallel": options.parallel, "threads": threads,
            "serial_seconds": serial, "parallel_seconds": parallel, "ratio": serial / parallel, "same_agents": equal,
        }  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
