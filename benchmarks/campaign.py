"""Train several games side by side on one machine for so many minutes, and keep what came out in small files.

    python benchmarks/campaign.py bank_heist freeway --minutes 20 [--recipe distilled] [--out runs/campaign] [--distill.steps N]

Each game is `bcl train GAME --recipe R`, from the vanilla agent in benchmarks/starts where there is one; flags that are not listed
here are settings and go to each of them. When the minutes are over, runs are interrupted as by Ctrl-C and can be continued with
`bcl resume`. What is kept, in OUT/agents: the best agent of a finished run, or the agents that held a budget of one that was not
finished, each in 16 bits, and the last row of metrics of every training run. OUT/GAME.log is what a run said.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bcl.policies.files import load, to_bytes
from bcl.runs import store
from bcl.runs.directory import RunDirectory

STARTS = Path(__file__).parent / "starts"
GRACE = 120  # seconds in which an interrupted run may write its checkpoint


def begin(game: str, options: argparse.Namespace, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    """A training in a process of its own."""
    start = STARTS / f"{game}-vanilla.safetensors"
    init = ["--init", str(start)] if start.exists() else []
    command = [sys.executable, "-m", "bcl", "train", game, "--recipe", options.recipe, *init]
    command += ["--out", str(options.out / game), *settings]
    with (options.out / f"{game}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def wait(runs: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Until all have ended; those that have not by then are interrupted, and killed if they do not listen."""
    deadline = time.monotonic() + seconds
    for run in runs:
        try:
            run.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            break
    for run in runs:
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE
    for run in runs:
        try:
            run.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.kill()


def agents(run: RunDirectory) -> Iterator[tuple[str, Path]]:
    """Names and files of what is worth keeping of a run."""
    if run.finished:
        yield "best", run.best
        return
    for training in run.trainings():
        for increments, file in training.snapshots().items():
            yield f"held-{increments}", file


def keep(game: str, run: RunDirectory, folder: Path) -> None:
    """Write the agents of a run in 16 bits, and where its training runs stood."""
    for name, file in agents(run):
        store.write_bytes(folder / f"{game}-{name}.safetensors", to_bytes(load(file), "float16"))
    rows = {}
    for training in run.trainings():
        if metrics := training.metrics():
            rows[training.path.relative_to(run.path).as_posix()] = metrics[-1]
    facts = {"result": run.result(), "scores": [row for _, row in run.results.scores.read("")], "last": rows}
    store.write_text(folder / f"{game}.json", json.dumps(facts, indent=1))


def main() -> None:
    """Train, wait, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="+")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--recipe", default="distilled")
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"))
    options, settings = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    wait([begin(game, options, settings) for game in options.games], 60 * options.minutes)
    for game in options.games:
        run = RunDirectory(options.out / game)
        said = (options.out / f"{game}.log").read_text().splitlines()[-1:]
        print(f"{game}: {'finished' if run.finished else 'not finished'}; {' '.join(said)}")
        if run.exists:
            keep(game, run, options.out / "agents")
    print(f"{(time.monotonic() - began) / 60:.1f} min; agents are in {options.out / 'agents'}")


if __name__ == "__main__":
    main()
