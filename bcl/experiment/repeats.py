"""Repeats: whole runs that differ in their seed, of which the paper reports the median by the final score."""

from collections.abc import Sequence
from typing import Any

from bcl import stats
from bcl.errors import StoreError
from bcl.experiment.scoring import final_score_in_words
from bcl.experiment.verdict import Verdict
from bcl.runs import store
from bcl.runs.directory import RunDirectory, StageFolder


def shared_stages(runs: Sequence[RunDirectory]) -> list[StageFolder]:
    """Of every run the stage whose median all go on from; empty: nothing is to be shared, or it is."""
    stages = [stage for run in runs for stage in run.stages() if stage.stage.shares_median]
    finished = all(run.finished for run in runs) or all(stage.median.finished for stage in stages)
    return [] if finished else stages


def share_median(stages: Sequence[StageFolder]) -> None:
    """Lay the median of the agents of a stage into that stage's folder of every repeat."""
    results = [stage.result() for stage in stages]
    runs = [stage.run for stage in stages]
    if not all(isinstance(result.get("final_score"), int | float) for result in results):
        what = f"'{runs[0]}' or a repeat beside it was begun by a version without medians of stages"
        raise StoreError(what, "start anew with another --out")
    finals = [float(result["final_score"]) for result in results]
    middle = stats.median_run(finals)
    names = [run.name for run in runs]
    about = results[middle] | {"run": names[middle], "final_scores": dict(zip(names, finals, strict=True))}
    weights = stages[middle].policy.read_bytes()
    for stage in stages:
        store.write_bytes(stage.median.policy, weights)
        stage.median.finish(about)  # last: it says that the median is there


def summary(runs: Sequence[RunDirectory], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Final scores, what they are, the median run and the IQM."""
    finals = [verdict.final_score for verdict in verdicts]
    attacked = any(score.eps for score in verdicts[0].scores)
    return {
        "final_scores": dict(zip((run.path.name for run in runs), finals, strict=True)),
        "final_score_is": final_score_in_words(runs[0].config, attacked),
        "median": runs[stats.median_run(finals)].path.name,
        "iqm": stats.iqm(finals),
    }
