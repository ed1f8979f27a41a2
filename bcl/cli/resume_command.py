"""bcl resume, and what `bcl train` does once its run exists."""

import contextlib
import functools
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import tyro

from bcl.api.workers import Workers
from bcl.config import config_from_dict, override
from bcl.errors import BclError, ConfigError, StoreError, TrainingError
from bcl.quantities import counted, format_eps
from bcl.runs import store
from bcl.settings import difference, parse_flags

if TYPE_CHECKING:
    from bcl.experiment import Crew, Verdict

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Command(Workers):
    """Continue a run after a kill or Ctrl-C, under the settings it was started with. A finished run says so."""

    takes_settings: ClassVar[bool] = True

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""

    def run(self, settings: list[str]) -> None:
        """Check, then do what is left."""
        flags, repeated = parse_flags(settings), store.repeats(self.folder)
        for folder in repeated or [self.folder]:
            store.resume_run(folder, functools.partial(_differing, folder, flags))

        from bcl.api import console

        with store.lock(self.folder, console.say), _lock_of_repeats(self.folder):
            if repeated:
                finish_repeats(self.folder, self)
                return
            if (self.folder / "result.json").exists():
                print(f"'{self.folder}' is finished")
            finish(self.folder, self)


def _lock_of_repeats(run: Path) -> contextlib.AbstractContextManager[None]:
    """A repeat is not resumed while all of them are."""
    group = run.absolute().parent
    return store.lock(group) if (group / store.REPEATS).exists() else contextlib.nullcontext()


def finish(run: Path, workers: Workers) -> None:
    """Do what is left of a run that this process has locked; print its verdict and the next command."""
    from bcl import experiment

    verdict = _do(experiment.finish, run, run, workers)
    _print(run, verdict)
    print(f"next: bcl report {shlex.quote(str(run))}")


def finish_repeats(group: Path, workers: Workers) -> None:
    """`finish` for every repeat; then the median by the paper's final score, and the IQM beside it."""
    runs = store.repeats(group)
    if not runs:
        raise StoreError(f"'{group / store.REPEATS}' names no runs", "start anew with another --out")
    store.sweep(group)
    from bcl import experiment
    from bcl.api import console

    if shared := experiment.shared_stages(runs):
        for run in runs:
            console.say(f"run: {run}, up to the stage whose median all repeats go on from")
            with store.lock(run, console.say):
                _do(experiment.train_until_median, run, group, workers)
        experiment.share_median(shared)
    verdicts = []
    for run in runs:
        console.say(f"run: {run}")
        with store.lock(run, console.say):
            verdicts.append(_do(experiment.finish, run, group, workers))
        _print(run, verdicts[-1])
    summary = experiment.summary(runs, verdicts)
    store.write_json(group / "result.json", summary)
    finals, median = summary["final_scores"], summary["median"]
    print(f"final score: {summary['final_score_is']}")
    scores = " ".join(f"{score:.4g}" for score in finals.values())
    print(f"final scores of {len(runs)} repeats: {scores}, IQM {summary['iqm']:.4g}")
    print(f"the median is {group / median} with {finals[median]:.4g}")
    print(f"next: bcl report {shlex.quote(str(group))}")


def _do(work: "Callable[[Path, Crew], Result]", run: Path, whole: Path, workers: Workers) -> Result:
    from bcl.api import console

    resume = shlex.join(["bcl", "resume", str(whole), *workers.flags()])
    farewell = f"continue with: {resume}"
    try:
        with console.stop_requests(farewell) as interrupted, console.live(run) as view:
            return work(run, workers.crew(interrupted, view.tick, console.say))
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
    from bcl.experiment import read_config

    config = read_config(run)
    needed = ["checkpoint_steps", "checkpoint_replay"] if config.algo == "dqn" else ["checkpoint_steps"]
    unset = " and ".join(f"--{config.algo}.{name}" for name in needed if not getattr(config.learner, name))
    return f"; without {unset} it ends with other weights than if it had not been stopped" if unset else ""


def _print(run: Path, verdict: "Verdict") -> None:
    from bcl.evaluation.score import lowest
    from bcl.experiment import read_config

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
    print(f"verdict: {verdict.sentence(read_config(run))}")


def _differing(folder: Path, flags: dict[str, Any], stored: str) -> list[str]:
    from bcl.experiment import read_config

    return difference(read_config(folder), config_from_dict(override(tomllib.loads(stored), flags)))
