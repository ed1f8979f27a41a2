"""What runs did with their minutes: the budget that each had reached, and the share of the time that judging took.

    python benchmarks/minutes.py RUN... [--every 1]
    python benchmarks/campaign.py pong,recipe=paced-at,init=zoo:pong-radial pong,recipe=bcl-fast-at,init=zoo:pong-radial
    --minutes 15 python benchmarks/minutes.py runs/campaign/pong-*/

It reads what is stored, of runs that are not finished too. Minutes are those of a run's last stage. A curriculum in
phases has reached the budget of its last phase that met its thresholds, or one that was skipped since they were met
there, when that was decided. One that paces itself has reached the largest budget so far; its minutes are those of
training alone, and the agents that it kept are judged at the end.

Runs of version 0.1 do not store when they trained: there, where runs trained one after the other, their times go by
their rates.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bcl.curriculum import TARGET_REACHED
from bcl.experiment.phases import budgets_of
from bcl.experiment.status import Times, times_of
from bcl.games import GymnasiumGame
from bcl.runs.directory import RunDirectory, StageFolder, times


def reached(stage: StageFolder) -> Iterator[tuple[float, float]]:
    """Seconds since the stage began, and the budget reached then."""
    most = 0.0
    if stage.strategy == "paced":
        rows = stage.paced_run.metrics()
        for seconds, row in zip(times(rows), rows, strict=True):
            most = max(most, row["eps"])
            yield seconds, most
        return
    for made in stage.decisions():
        decision = made.decision
        kept = decision.candidate(decision.kept)
        if not kept or kept.met is not False:
            done = decision.stop == TARGET_REACHED
            most = (
                stage.config.curriculum.target
                if done
                else budgets_of(stage)[(decision.next or decision.phase.index + 1) - 1]
            )
        yield made.seconds, most


def judging(stage: StageFolder) -> str:
    """The share of judging up to the last decision, as `bcl status` has it at the end; of version 0.1 by rates."""
    if stage.strategy == "paced":
        return "paced"
    runs = stage.training_runs()
    if not runs:
        return "no phase is decided yet"
    wall = stage.decisions()[-1].seconds
    if found := times_of(stage):
        return str(replace(found, wall=wall))
    trained = sum(run.seconds() for run in runs)
    return str(Times(wall, trained, 0, 0.0)) if trained < wall else "when it trained is not stored"


def shown(eps: float, stage: StageFolder) -> str:
    """A budget, in gray levels where observations are images."""
    return f"{eps:.3g}" if isinstance(stage.config.game, GymnasiumGame) or not eps else f"{255 * eps:.3g}/255"


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--every", type=float, default=1.0, help="minutes between rows")
    options = parser.parse_args()
    stages = [RunDirectory.open(path).stages()[-1] for path in options.runs]
    curves = [[*reached(stage)] for stage in stages]
    print("minutes" + "".join(f"{number:>12}" for number in range(1, len(stages) + 1)))
    last = max((curve[-1][0] for curve in curves if curve), default=0.0)
    for row in range(int(last / (60 * options.every)) + 2):
        until = 60 * options.every * row
        budgets = [max((eps for seconds, eps in curve if seconds <= until), default=0.0) for curve in curves]
        words = [f"{shown(eps, stage):>12}" for eps, stage in zip(budgets, stages, strict=True)]
        print(f"{until / 60:7.1f}{''.join(words)}")
    for number, (path, stage) in enumerate(zip(options.runs, stages, strict=True), 1):
        print(f"{number}: {path.name}, {judging(stage)}")


if __name__ == "__main__":
    main()
