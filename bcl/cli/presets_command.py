"""bcl presets."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro

from bcl import recipes
from bcl.config import preset_names, resolve, resolve_stages
from bcl.settings import difference, parse_flags, setting_line, to_toml


@dataclass(frozen=True)
class Command:
    """List the games with a preset and the recipes, or print the whole configuration of one game with help."""

    takes_settings: ClassVar[bool] = True

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="GAME")] = None
    """A preset, an Atari or Procgen game, or a Gymnasium id."""
    recipe: str | None = None
    """Print the configuration as this recipe sets it."""

    def run(self, settings: list[str]) -> None:
        """Print."""
        flags = parse_flags(settings)
        if self.name is not None:
            *earlier, (stage, config) = resolve_stages(self.name, recipe=self.recipe, flags=flags)
            unused = "dqn" if config.algo == "ppo" else "ppo"
            for number, (before, other) in enumerate(earlier, 1):  # comments: the output is a configuration file
                print(f"# stage {number} of {len(earlier) + 1}, loss {before.loss}, strategy {before.strategy}:")
                for key in difference(other, config):
                    if not key.startswith(f"{unused}."):
                        print(f"#   {setting_line(other, key)}")
            if earlier:
                print(f"# stage {len(earlier) + 1}, loss {stage.loss}, strategy {stage.strategy}: what follows")
            print(to_toml(config, comments=True, without=unused), end="")
            return
        print("games with a preset (any other Atari, Procgen or Gymnasium game takes the defaults):")
        for name in preset_names():
            config = resolve(name)
            print(f"  {name:<14}{config.game.engine:<11}{config.algo}")
        print("\nrecipes:")
        for name, recipe in recipes.RECIPES.items():
            print(f"  {name:<16}{recipe.summary}{' (ours)' if recipe.ours else ''}")
        print("\nnext: bcl presets pong --recipe bcl-mos-at")
