"""Repeats: whole runs that differ in their seed, of which the paper reports the median by the final score."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bcl import stats
from bcl.attacks import attack_label, attacks_named
from bcl.config import Config
from bcl.errors import StoreError
from bcl.experiment.run import MEDIAN, Verdict, read_config, stage_folders
from bcl.experiment.work import POLICY, RESULT
from bcl.quantities import format_eps
from bcl.runs import store


def shared_stages(runs: Sequence[Path]) -> list[Path]:
    """Of every run the folder of the stage whose median all go on from; empty: nothing is to be shared, or it is."""
    folders = [folder for run in runs for _, stage, folder in stage_folders(run) if stage.shares_median]
    finished = all((run / RESULT).exists() for run in runs)
    return [] if finished or all((folder / MEDIAN / RESULT).exists() for folder in folders) else folders


def share_median(folders: Sequence[Path]) -> None:
    """Lay the median of the agents of a stage into that stage's folder of every repeat."""
    results = [store.read_json(folder / RESULT) for folder in folders]
    if not all(isinstance(result.get("final_score"), int | float) for result in results):
        what = f"'{folders[0].parents[1]}' or a repeat beside it was begun by a version without medians of stages"
        raise StoreError(what, "start anew with another --out")
    finals = [float(result["final_score"]) for result in results]
    middle = stats.median_run(finals)
    names = [folder.parents[1].name for folder in folders]
    about = results[middle] | {"run": names[middle], "final_scores": dict(zip(names, finals, strict=True))}
    weights = (folders[middle] / POLICY).read_bytes()
    for folder in folders:
        store.write_bytes(folder / MEDIAN / POLICY, weights)
        store.write_json(folder / MEDIAN / RESULT, about)  # last: it says that the median is there


def summary(runs: Sequence[Path], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Final scores, what they are, the median run and the IQM."""
    finals = [verdict.final_score for verdict in verdicts]
    attacked = any(score.eps for score in verdicts[0].scores)
    return {
        "final_scores": dict(zip((run.name for run in runs), finals, strict=True)),
        "final_score_is": final_score_in_words(read_config(runs[0]), attacked),
        "median": runs[stats.median_run(finals)].name,
        "iqm": stats.iqm(finals),
    }


def final_score_in_words(config: Config, attacked: bool) -> str:
    """By which attacks, budgets and levels the median is taken."""
    evaluation = config.evaluation
    words = "mean return without attack"
    if attacked:
        attacks = [attack_label(attack) for attack in attacks_named(evaluation.suite)]
        under = attacks[0] if len(attacks) == 1 else f"the worst of {', '.join(attacks)}"
        words += f" + mean over {', '.join(map(format_eps, evaluation.scored))} under {under}"
    return words + (", training levels + unlimited levels" if evaluation.levels == "both" else "")
