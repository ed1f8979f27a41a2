"""bcl train."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bcl import recipes
from bcl.config import resolve_stages
from bcl.errors import StoreError
from bcl.runs import store
from bcl.settings import parse_flags


@dataclass(frozen=True)
class Command:
    """Train an agent. Any setting can be given as --section.key value; `bcl presets GAME` prints them all with help."""

    takes_settings: ClassVar[bool] = True

    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """A preset (`bcl presets`), an Atari or Procgen game, or a Gymnasium id."""
    recipe: str | None = None
    """A row of the paper's tables (`bcl presets` lists them); vanilla where nothing says otherwise."""
    out: Path | None = None
    """Run directory; by default runs/GAME-RECIPE-sSEED."""
    seed: int | None = None
    """Root of every random draw (0)."""
    device: str = "auto"
    """auto, cpu or cuda."""
    init: Path | None = None
    """A policy file to start from, in place of the stages before the recipe's own."""
    config: Path | None = None
    """A TOML file of settings, above the preset and below flags."""
    tensorboard: bool = False
    """Mirror the metrics for TensorBoard, in the folder tensorboard of every stage."""

    def run(self, settings: list[str]) -> None:
        """Refuse what cannot be trained before anything is written; make the run; do it."""
        flags = parse_flags(settings) | ({} if self.seed is None else {"seed": self.seed})
        stages = resolve_stages(self.game, recipe=self.recipe, file=self.config, flags=flags)
        config = stages[-1][1]
        out = self.out or Path("runs") / f"{self.game}-{config.recipe}-s{config.seed}".replace("/", "-")
        if (out / "config.toml").exists():
            hint = f"continue it with 'bcl resume {shlex.quote(str(out))}', or give another --out"
            raise StoreError(f"'{out}' is a run already", hint)
        store.check_new(out)
        recipes.check_trainable(config.recipe, config.algo, config.bootstrap)

        from bcl import experiment
        from bcl.cli import console
        from bcl.cli.resume_command import finish
        from bcl.cli.target import pick_device
        from bcl.policies.files import load

        device = pick_device(self.device)
        init = load(self.init, device) if self.init else None
        experiment.check(stages, device, init, self.tensorboard)
        with store.lock(out):
            experiment.create(out, stages, device, init)
            console.say(f"run: {out}")
            finish(out, device, self.tensorboard)
