"""bcl.presets and bcl.zoo_agents: what comes with the package."""

import dataclasses
import textwrap
import tomllib
from typing import Any

from bcl import recipes, zoo
from bcl.api import named_game, text
from bcl.config import preset_names, resolve, resolve_stages
from bcl.errors import ConfigError, WeightsError
from bcl.result import Listing
from bcl.settings import difference, format_return, setting_line, setting_rows, to_toml

WITHIN = (
    "mean return by budget (0: no attack), the worst within each budget under all attacks of the suite or those named"
)
NAME = 21  # columns for names
OTHERWISE = {zoo.PlayedOn("game", "eval"): "  unlimited levels", zoo.PlayedOn("varied", ""): "  varied starts"}
GLUE = "\N{NO-BREAK SPACE}"


def zoo_agents(name: str | None = None) -> Listing:
    """List the published agents with their returns, or show all about one: how it was trained, and its checksum.

    Args:
        name: An agent of the list.
    """
    if name is not None:
        agent = zoo.named(text("name", name, "give its name, or leave it out for a list").removeprefix(zoo.PREFIX))
        about = dataclasses.asdict(agent) | {"folder": str(agent.folder)}
        rows = [{"name": key, "value": value} for key, value in about.items()]
        return Listing(agent.folder.name, rows, (agent.folder / zoo.ABOUT).read_text().rstrip("\n"), about)
    names = zoo.names()
    if not names:
        raise WeightsError("the zoo of this installation is empty", zoo.RESTORE)
    rows = []
    lines = [_wrapped(f"{WITHIN}:", 2)]
    for agent in map(zoo.named, names):
        about = {"name": agent.folder.name, "game": agent.game, "recipe": agent.recipe}
        for on, attacks, within, breaks in agent.plays:
            rows.append(about | {"suite": attacks} | on._asdict() | within | {"breaks at": breaks.get("eps")})
            returns = ", ".join(f"{eps}:{GLUE}{format_return(mean)}" for eps, mean in within.items())
            shown = OTHERWISE.get(on, agent.folder.name)
            lines.append(_wrapped(f"  {shown:<{NAME}}{returns}{GLUE}({attacks})", NAME + 2))
            lines += [f"  {'  breaks at':<{NAME}}{_breaking(breaks)}"] if breaks else []
    return Listing("the zoo", rows, "\n".join(lines), {"agents": rows})


def _breaking(found: dict[str, Any]) -> str:
    below = f"below {format_return(found['below'])}"
    return f"{found['eps']} ({below} under {found['attack']})" if "eps" in found else f"no budget ({below})"


def _wrapped(line: str, indent: int) -> str:
    """For a terminal of 80 columns."""
    return textwrap.fill(line, 80, subsequent_indent=" " * indent, break_on_hyphens=False).replace(GLUE, " ")


def presets(game: str | None = None, /, *, recipe: str | None = None, **settings: Any) -> Listing:
    """List the games with a preset and the recipes, or print the whole configuration of one game with help.

    Settings are given by section, as to `bcl.train`.

    Args:
        game: A preset, an Atari or Procgen game, or a Gymnasium id.
        recipe: Print the configuration as this recipe sets it.
    """
    if game is not None:
        return _configuration(game, recipe, settings)
    if recipe is not None or settings:
        raise ConfigError("a recipe or settings without a game print nothing", "name the game too, such as pong")
    games = [(name, resolve(name)) for name in preset_names()]
    rows = [{"game": name, "engine": config.game.engine, "algo": config.algo} for name, config in games]
    known = [{"recipe": name, "summary": one.summary, "ours": one.ours} for name, one in recipes.RECIPES.items()]
    lines = ["games with a preset (any other Atari, Procgen or Gymnasium game takes the defaults):"]
    lines += [f"  {row['game']:<14}{row['engine']:<11}{row['algo']}" for row in rows]
    lines += ["", "recipes:"]
    width = max(map(len, recipes.RECIPES)) + 1
    lines += [f"  {row['recipe']:<{width}}{row['summary']}{' (ours)' if row['ours'] else ''}" for row in known]
    return Listing("games with a preset", rows, "\n".join(lines), {"games": rows, "recipes": known})


def _configuration(game: str, recipe: str | None, settings: dict[str, Any]) -> Listing:
    if recipe is not None:
        text("recipe", recipe, "give its name, such as 'at'")
    *earlier, (stage, config) = resolve_stages(named_game(game), recipe=recipe, settings=settings)
    unused = "dqn" if config.algo == "ppo" else "ppo"
    lines = []
    for number, (before, other) in enumerate(earlier, 1):  # comments: the output is a configuration file
        lines.append(f"# stage {number} of {len(earlier) + 1}, loss {before.loss}, strategy {before.strategy}:")
        changed = [key for key in difference(other, config) if not key.startswith(f"{unused}.")]
        lines += [f"#   {setting_line(other, key)}" for key in changed]
    if earlier:
        lines.append(f"# stage {len(earlier) + 1}, loss {stage.loss}, strategy {stage.strategy}: what follows")
    lines.append(to_toml(config, comments=True, without=unused).rstrip("\n"))
    rows = [row for row in setting_rows(config) if not row["setting"].startswith(f"{unused}.")]
    data = tomllib.loads(to_toml(config, without=unused))
    return Listing(f"{config.recipe} on {config.game.id}", rows, "\n".join(lines), data)
