"""Train several games side by side on one machine for so many minutes, and keep what came out in small files.

    python benchmarks/campaign.py bank_heist road_runner,distill.box=0.1 --minutes 20
        [--recipe distilled] [--out runs/campaign] [--until-trained] [--weights int8] [--distill.steps N]

Each word is a training, `bcl train GAME --recipe R` with the options behind the game's name (`init=AGENT` and
`recipe=R` too), from the vanilla agent in benchmarks/starts where there is one and no other is named; options that are
not listed here are settings of all of them. When the minutes are over, or with `--until-trained` when a run has an
agent of its last step, runs are interrupted (SIGTERM, which `bcl` takes as Ctrl-C) and can be continued with
`bcl resume`. What is kept, in OUT/agents, every minute (`--until-trained`: at the end): the best agent of a finished
run, or of one that is not finished the agents that held a budget and that of its end or checkpoint (`last`), each in 16
bits or, as the zoo has them, in 8, and the last row of metrics of every training run. OUT/WORD.log is what a run said.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bcl.policies import Policy
from bcl.policies.files import NumberFormat, load, to_bytes
from bcl.runs import store
from bcl.runs.directory import RunDirectory

STARTS = Path(__file__).parent / "starts"
GRACE = 120  # seconds in which an interrupted run may write its checkpoint
KEEP_EVERY = 60.0  # seconds
LOOK_EVERY = 5.0  # the same, at whether a run is trained
LONGEST_NAME = 180


@dataclass(frozen=True)
class Job:
    """A training in a process of its own."""

    name: str
    run: RunDirectory
    process: subprocess.Popen[bytes]


def begin(word: str, options: argparse.Namespace, settings: Sequence[str]) -> Job:
    """Start the training that `GAME[,setting=value...]` asks for."""
    game, *own = word.split(",")
    more = [f"--{setting}" for setting in own]
    name = short_name(word)
    folder = options.out / name
    start = start_of(game)
    named = {option.partition("=")[0] for option in more}
    defaults = {"--recipe": options.recipe, "--init": start}
    chosen = [f"{option}={value}" for option, value in defaults.items() if value and option not in named]
    command = [sys.executable, "-m", "bcl", "train", game, *chosen, "--out", str(folder), *settings, *more]
    with (options.out / f"{name}.log").open("wb") as log:
        return Job(name, RunDirectory(folder), subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))


def short_name(word: str) -> str:
    """A name for files, which may have 255 characters with what is added to it."""
    name = re.sub(r"[^\w.]+", "-", word)
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{zlib.crc32(word.encode()):08x}"


def start_of(game: str) -> Path | None:
    """The agent that a game's training starts from, where there is one."""
    file = STARTS / f"{game}-vanilla.safetensors"
    return file if file.exists() else None


def wait(
    processes: Sequence[subprocess.Popen[bytes]], seconds: float, meanwhile: Callable[[], None], every: float
) -> None:
    """Until all have ended; those that have not by then are interrupted, and killed if they do not listen."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not ended(processes, min(left, every)):
        meanwhile()
    for process in processes:
        if process.poll() is None:
            process.terminate()  # a shell may have made its background jobs deaf to SIGINT
    if not ended(processes, GRACE):
        for process in processes:
            process.kill()


def ended(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Whether all have ended within so many seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
    return True


def agents(job: Job) -> Iterator[tuple[str, Policy]]:
    """Names and policies of what is worth keeping of a training."""
    if job.run.finished:
        yield "best", load(job.run.best)
        return
    for training in job.run.trainings():
        for increments, file in training.snapshots().items():
            yield f"held-{increments}", load(file)
        if training.policy.exists():
            yield "last", load(training.policy)
        elif training.checkpoint.exists() and job.run.init.policy.exists():
            policy = load(job.run.init.policy)
            policy.load_state_dict(
                torch.load(training.checkpoint, map_location="cpu", weights_only=True)["state"]["policy"]
            )
            yield "last", policy


def end_trained(job: Job) -> None:
    """Interrupt a training that has nothing left but to choose its agent and to play its verdict."""
    if job.process.poll() is None and job.run.exists:
        last = job.run.stages()[-1]
        if any(training.policy.exists() for training in job.run.trainings() if training.path.is_relative_to(last.path)):
            job.process.terminate()


def keep(job: Job, folder: Path, weights: NumberFormat) -> None:
    """Write the agents of a training, and where its training runs stood."""
    if not job.run.exists:
        return
    for name, policy in agents(job):
        store.write_bytes(folder / f"{job.name}-{name}.safetensors", to_bytes(policy, weights))
    rows = {}
    for training in job.run.trainings():
        if metrics := training.metrics():
            rows[training.path.relative_to(job.run.path).as_posix()] = metrics[-1]
    scores = [row for _, row in job.run.results.scores.read("")]
    facts = {"result": job.run.result(), "scores": scores, "last": rows}
    store.write_text(folder / f"{job.name}.json", json.dumps(facts, indent=1))


def main() -> None:
    """Train, wait, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainings", nargs="+", metavar="GAME[,setting=value...]")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--recipe", default="distilled")
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"))
    parser.add_argument("--until-trained", action="store_true", help="leave out choosing agents and verdicts")
    parser.add_argument("--weights", choices=["float16", "int8"], default="float16", help="how agents are kept")
    options, settings = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    jobs = [begin(word, options, settings) for word in options.trainings]

    def keep_all() -> None:
        for job in jobs:
            keep(job, options.out / "agents", options.weights)

    def end_those_trained() -> None:
        for job in jobs:
            end_trained(job)

    processes = [job.process for job in jobs]
    if options.until_trained:
        wait(processes, 60 * options.minutes, end_those_trained, LOOK_EVERY)
    else:
        wait(processes, 60 * options.minutes, keep_all, KEEP_EVERY)
    keep_all()
    for job in jobs:
        said = (options.out / f"{job.name}.log").read_text().splitlines()[-1:]
        print(f"{job.name}: {'finished' if job.run.finished else 'not finished'}; {' '.join(said)}")
    print(f"{(time.monotonic() - began) / 60:.1f} min; agents are in {options.out / 'agents'}")


if __name__ == "__main__":
    main()
