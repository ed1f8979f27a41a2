"""bcl resume, and what `bcl train` does once its run exists."""

import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from bcl.config import config_from_dict
from bcl.errors import BclError, TrainingError
from bcl.quantities import format_eps
from bcl.runs import store
from bcl.settings import difference, merge, parse_flags


@dataclass(frozen=True)
class Command:
    """Continue a run after a kill or Ctrl-C, under the settings it was started with. A finished run says so."""

    takes_settings: ClassVar[bool] = True

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""
    device: str = "auto"
    """auto, cpu or cuda."""
    tensorboard: bool = False
    """Mirror the metrics for TensorBoard, in the folder tensorboard of every stage."""

    def run(self, settings: list[str]) -> None:
        """Check, then do what is left."""
        flags = parse_flags(settings)
        store.resume_run(self.folder, lambda stored: _differing(self.folder, flags))

        from bcl.cli import console
        from bcl.cli.target import pick_device

        device = pick_device(self.device)
        with store.lock(self.folder, console.say):
            if (self.folder / "result.json").exists():
                print(f"'{self.folder}' is finished")
            finish(self.folder, device, self.tensorboard)


def finish(run: Path, device: str, tensorboard: bool) -> None:
    """Do what is left of a run that this process has locked; print its verdict and the next command."""
    from bcl import experiment
    from bcl.cli import console
    from bcl.cli.attack_command import mean_and_error

    resume = f"bcl resume {shlex.quote(str(run))}"
    try:
        with console.stop_requests() as interrupted, console.training() as bar:
            watch = experiment.Watch(console.say, bar.begin, bar.log, bar.progress, interrupted, tensorboard)
            scores = experiment.finish(run, device, watch)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"continue with: {resume}") from None
    except TrainingError as error:
        again = f"'{resume}' goes back to the last checkpoint; if that ends here again, {error.hint}"
        raise TrainingError(error.message, again) from None
    except BclError as error:
        raise type(error)(error.message, "; ".join(filter(None, (error.hint, f"continue with: {resume}")))) from None
    for score in scores:
        under = f"under {score.attack} at {format_eps(score.eps)}" if score.eps else "without attack"
        print(f"mean return over {len(score.returns)} episodes {under}: {mean_and_error(score)}")
    print(f"next: bcl attack {shlex.quote(str(run))} --suite paper")


def _differing(folder: Path, flags: dict[str, Any]) -> list[str]:
    from bcl.experiment import read_config

    stored = read_config(folder)
    return difference(stored, config_from_dict(merge(tomllib.loads(store.open_run(folder)), flags)))
