"""bcl train."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from bcl.api.training import prepare
from bcl.api.workers import Workers
from bcl.errors import ConfigError
from bcl.runs.directory import Repeats, RunDirectory, make_room
from bcl.settings import parse_flags

OFTEN = (
    *("algo", "bootstrap", "dqn.steps", "ppo.steps", "dqn.learning_rate", "ppo.learning_rate", "network.hidden"),
    *("attack.kind", "attack.steps", "curriculum.target", "curriculum.increment", "curriculum.runs"),
    *("evaluation.eps", "evaluation.episodes", "evaluation.suite"),
)


def more_help() -> str:
    """The settings that people change most."""
    from bcl.cli.options import settings_help
    from bcl.config import Config

    return f"settings, of which these are used most (all: bcl presets GAME):\n{settings_help(Config, OFTEN)}\n"


@dataclass(frozen=True, kw_only=True)
class Command(Workers):
    """Train an agent. Any setting can be given as --section.key value; `bcl presets GAME` prints them all with help."""

    takes_settings: ClassVar[bool] = True

    game: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")]
    """A preset (`bcl presets`), an Atari or Procgen game, or a Gymnasium id."""
    recipe: str | None = None
    """A row of the paper's tables (`bcl presets` lists them), or a TOML file; vanilla where nothing says otherwise."""
    out: Path | None = None
    """Run directory; by default runs/GAME-RECIPE-sSEED."""
    seed: int | None = None
    """Root of every random draw (0)."""
    repeats: int = 1
    """Whole independent runs, with this seed and the following ones, in folders of their own."""
    budget: Literal["full", "small"] | None = None
    """small: a quick look; the result is not the paper's protocol."""
    init: Path | None = None
    """A policy file, a run or an agent of `bcl zoo` to start from, in place of the stages before the recipe's own."""
    config: Path | None = None
    """A TOML file of settings, above the preset and below flags."""

    def run(self, settings: list[str]) -> None:
        """Refuse what cannot be trained before anything is written; make the run; do it."""
        if self.repeats < 1:
            raise ConfigError(f"--repeats {self.repeats} is not possible", "give 1 or more")
        order = prepare(
            self.game,
            parse_flags(settings),
            recipe=self.recipe,
            out=self.out,
            seed=self.seed,
            budget=self.budget,
            init=self.init,
            config=self.config,
            workers=self,
        )

        from bcl.cli import console
        from bcl.cli.resume_command import finish, finish_repeats

        if order.config.budget == "small":
            console.say("a quick look: few steps, runs, phases and episodes; the result is not the paper's protocol")
        with RunDirectory(order.out).lock():
            if self.repeats == 1:
                order.create(order.out)
                console.say(f"run: {order.out}")
                finish(order.out, self)
                return
            seeds = range(order.config.seed, order.config.seed + self.repeats)
            make_room(order.out)
            for seed in seeds:
                order.create(order.out / f"seed{seed}", seed)
            Repeats(order.out).write([f"seed{seed}" for seed in seeds])
            finish_repeats(order.out, self)
