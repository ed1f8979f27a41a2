"""bcl resume, and what `bcl train` does once its run exists."""

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import tyro

from bcl.api.workers import Workers
from bcl.errors import BclError, ConfigError, StoreError, TrainingError, counted
from bcl.runs import store
from bcl.runs.directory import Repeats, RunDirectory
from bcl.settings import format_eps, parse_flags

if TYPE_CHECKING:
    from bcl.experiment import Dispatcher, Verdict

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Command(Workers):
    """Continue a run after a kill or Ctrl-C, under the settings it was started with. A finished run says so."""

    takes_settings: ClassVar[bool] = True

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""

    def run(self, settings: list[str]) -> None:
        """Check, then do what is left."""
        flags = parse_flags(settings)
        repeats = Repeats(self.folder).runs()
        for run in repeats or [RunDirectory(self.folder)]:
            RunDirectory.open(run.path).check_settings(flags)

        from bcl.api import console

        run = RunDirectory(self.folder)
        # A repeat is not resumed while all of them are.
        others = run.repeats.lock() if run.repeats else contextlib.nullcontext()
        with run.lock(console.say), others:
            if repeats:
                finish_repeats(self.folder, self)
                return
            if run.finished:
                print(f"'{self.folder}' is finished")
            finish(self.folder, self)


def finish(run: Path, workers: Workers) -> None:
    """Do what is left of a run that this process has locked; print its verdict and the next command."""
    from bcl import experiment

    verdict = _do(experiment.finish, run, run, workers)
    _print(run, verdict)
    print(f"next: bcl report {shlex.quote(str(run))}")


def finish_repeats(group: Path, workers: Workers) -> None:
    """`finish` for every repeat; then the median by the paper's final score, and the IQM beside it."""
    runs = Repeats(group).runs()
    if not runs:
        raise StoreError(f"the repeats in '{group}' name no runs", "start anew with another --out")
    store.sweep(group)
    from bcl import experiment
    from bcl.api import console

    if shared := experiment.shared_stages(runs):
        for run in runs:
            console.say(f"run: {run.path}, up to the stage whose median all repeats go on from")
            with run.lock(console.say):
                _do(experiment.train_until_median, run.path, group, workers)
        experiment.share_median(shared)
    verdicts = []
    for run in runs:
        console.say(f"run: {run.path}")
        with run.lock(console.say):
            verdicts.append(_do(experiment.finish, run.path, group, workers))
        _print(run.path, verdicts[-1])
    summary = experiment.summary(runs, verdicts)
    Repeats(group).finish(summary)
    finals, median = summary["final_scores"], summary["median"]
    print(f"final score: {summary['final_score_is']}")
    scores = " ".join(f"{score:.4g}" for score in finals.values())
    print(f"final scores of {len(runs)} repeats: {scores}, IQM {summary['iqm']:.4g}")
    print(f"the median is {group / median} with {finals[median]:.4g}")
    print(f"next: bcl report {shlex.quote(str(group))}")


def _do(work: "Callable[[Path, Dispatcher], Result]", run: Path, whole: Path, workers: Workers) -> Result:
    from bcl.api import console

    resume = shlex.join(["bcl", "resume", str(whole), *workers.flags()])
    farewell = f"continue with: {resume}"
    try:
        with console.stop_requests(farewell) as interrupted, console.live(run) as view:
            return work(run, workers.dispatcher(interrupted, view.tick, console.say))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(farewell + _unlike(run)) from None
    except TrainingError as error:
        again = f"'{resume}' goes back to the last checkpoint; if that ends here again, {error.hint}"
        raise TrainingError(error.message, again) from None
    except ConfigError:
        raise  # the same settings will fail again
    except BclError as error:
        error.hint = "; ".join(filter(None, (error.hint, farewell)))
        raise


def _unlike(run: Path) -> str:
    """A warning where a run that was stopped does not end as one that was not; else nothing."""
    stage = RunDirectory(run).stages()[-1]
    section = "distill" if stage.loss == "distill" else stage.config.algo
    learner = stage.config.learner(stage.loss)
    needed = [name for name in ("checkpoint_steps", "checkpoint_replay") if hasattr(learner, name)]
    unset = " and ".join(f"--{section}.{name}" for name in needed if not getattr(learner, name))
    return f"; without {unset} it ends with other weights than if it had not been stopped" if unset else ""


def _print(run: Path, verdict: "Verdict") -> None:
    from bcl.evaluation.score import lowest

    began = (verdict.start.scores, verdict.start.unlimited) if verdict.start else ([], [])
    for where, scores, theirs in (
        ("", verdict.scores, began[0]),
        (" on unlimited levels", verdict.unlimited, began[1]),
    ):
        for eps in sorted({score.eps for score in scores}):
            words = f"under the worst attack within {format_eps(eps)}" if eps else "without attack"
            ours, *start = [lowest(s for s in some if s.eps <= eps) for some in (scores, theirs) if some]
            beside = "".join(f" (its start: {score})" for score in start)
            print(f"mean return over {counted(len(ours.returns), 'episode')}{where} {words}: {ours}{beside}")
    for flag in verdict.flags:
        print(f"flag {flag}")
    if verdict.start:
        print(f"its start ({verdict.start.name}): {run / verdict.start.file}")
    print(f"verdict: {verdict.sentence(RunDirectory(run).config)}")
