"""What a run took: training runs, steps and time, counted as the paper counts them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bcl import recipes
from bcl.curriculum import INCUMBENT
from bcl.experiment.paced import PACED_RUN
from bcl.experiment.phases import decisions
from bcl.experiment.run import read_config, stage_folders
from bcl.experiment.work import METRICS
from bcl.recipes import Stage
from bcl.reports.history import training_seconds
from bcl.runs import store


@dataclass(frozen=True)
class Effort:
    """Of one whole run."""

    runs: int
    """Training runs of the recipe's own stages: what the paper's table of runs counts."""
    before: int
    """Training runs of its bootstrap."""
    steps: int
    """Agent steps of all of `runs`."""
    seconds: float
    """Time that `runs` spent training, one after the other."""
    machine: str

    @property
    def seconds_per_run(self) -> float:
        """Mean time of one training run."""
        return self.seconds / self.runs if self.runs else 0.0


def effort(run: Path) -> Effort:
    """Read from the metrics of every training run that a decision names."""
    config = read_config(run)
    stages = recipes.stages_of(config.recipe, config.algo, "", config.bootstrap)
    first_own = len(stages) - max(len(recipes.find_recipe(config.recipe).stages), 1) + 1
    own, before = list[Path](), 0
    for number, stage, folder in stage_folders(run):
        trained = [*_training_runs(stage, folder)]
        if number >= first_own:
            own += trained
        else:
            before += len(trained)
    metrics = [store.read_metrics(folder / METRICS) for folder in own]
    machine = store.read_json(run / "run.json").get("machine")
    return Effort(
        runs=len(own),
        before=before,
        steps=sum(int(rows[-1]["step"]) for rows in metrics if rows),
        seconds=sum(training_seconds(rows) for rows in metrics),
        machine=str(machine.get("device", "")) if isinstance(machine, dict) else "",
    )


def _training_runs(stage: Stage, folder: Path) -> Iterator[Path]:
    if stage.strategy == "none":
        yield folder
        return
    if stage.strategy == "paced":
        yield folder / PACED_RUN
        return
    for made in decisions(folder):
        phase = folder / "phases" / f"{made['decision']['phase']['index']:03d}"
        yield from (phase / f"run{c['run']}" for c in made["decision"]["candidates"] if c["run"] != INCUMBENT)
