"""bcl train."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from bcl import recipes
from bcl.cli.workers import Workers
from bcl.config import resolve_stages
from bcl.errors import ConfigError, StoreError
from bcl.runs import store
from bcl.settings import parse_flags


@dataclass(frozen=True, kw_only=True)
class Command(Workers):
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
    repeats: int = 1
    """Whole independent runs, with this seed and the following ones, in folders of their own."""
    budget: Literal["full", "small"] | None = None
    """small: a quick look; the result is not the paper's protocol."""
    init: Path | None = None
    """A policy file to start from, in place of the stages before the recipe's own."""
    config: Path | None = None
    """A TOML file of settings, above the preset and below flags."""

    def run(self, settings: list[str]) -> None:
        """Refuse what cannot be trained before anything is written; make the run; do it."""
        if self.repeats < 1:
            raise ConfigError(f"--repeats {self.repeats} is not possible", "give 1 or more")
        own = {name: value for name in ("seed", "budget") if (value := getattr(self, name)) is not None}
        flags = parse_flags(settings) | own
        stages = resolve_stages(self.game, recipe=self.recipe, file=self.config, flags=flags)
        config = stages[-1][1]
        out = self.out or Path("runs") / f"{self.game}-{config.recipe}-s{config.seed}".replace("/", "-")
        if (out / "config.toml").exists() or (out / store.REPEATS).exists():
            hint = f"continue it with 'bcl resume {shlex.quote(str(out))}', or give another --out"
            raise StoreError(f"'{out}' is a run already", hint)
        _refuse_ignored(stages[-1][0], flags)
        store.check_new(out)
        recipes.check_trainable(config.recipe, config.algo)

        from bcl import experiment
        from bcl.cli import console
        from bcl.cli.resume_command import finish, finish_repeats
        from bcl.policies.files import load

        device = self.worker_device()
        init = load(self.init) if self.init else None
        experiment.check(stages, device if self.local else "cpu", init, self.mirrors())
        if config.budget == "small":
            console.say("a quick look: few steps, runs, phases and episodes; the result is not the paper's protocol")
        with store.lock(out):
            if self.repeats == 1:
                experiment.create(out, stages, device, init)
                console.say(f"run: {out}")
                finish(out, self)
                return
            seeds = range(config.seed, config.seed + self.repeats)
            for seed in seeds:
                store.remove(out / f"seed{seed}" / "config.toml")  # of a creation that was killed
                again = resolve_stages(self.game, recipe=self.recipe, file=self.config, flags=flags | {"seed": seed})
                experiment.create(out / f"seed{seed}", again, device, init)
            store.write_json(out / store.REPEATS, {"runs": [f"seed{seed}" for seed in seeds]})
            finish_repeats(out, self)


def _refuse_ignored(stage: recipes.Stage, flags: Mapping[str, Any]) -> None:
    given = flags.get("curriculum", {})
    if stage.strategy == "open" and "target" in given:
        what = "an open-ended curriculum has no target"
        raise ConfigError(what, "leave --curriculum.target out, or stop it with --curriculum.max_runs")
