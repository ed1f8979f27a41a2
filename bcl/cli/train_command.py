"""bcl train."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bcl import recipes
from bcl.config import resolve
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
    config: Path | None = None
    """A TOML file of settings, above the preset and below flags."""

    def run(self, settings: list[str]) -> None:
        """Resolve, check, refuse what cannot be trained."""
        flags = parse_flags(settings) | ({} if self.seed is None else {"seed": self.seed})
        config = resolve(self.game, recipe=self.recipe, file=self.config, flags=flags)
        name = f"{self.game}-{config.recipe}-s{config.seed}".replace("/", "-")
        store.check_new(self.out or Path("runs") / name)
        recipes.check_trainable(config.recipe, config.algo, config.bootstrap)
