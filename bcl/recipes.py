"""Recipes: which stages lead to an agent, with which loss, strategy and settings. Ours are data, in recipes.toml."""

import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from bcl.errors import ConfigError, did_you_mean
from bcl.settings import merge

Loss = Literal["standard", "radial", "at", "sa", "distill"]
Strategy = Literal["none", "next", "skip", "open", "paced"]
ONE_RUN: tuple[Strategy, ...] = ("none", "paced")
"""Strategies of stages that are one training run, not phases."""
Bootstrap = Literal["none", "vanilla", "radial", "choice"]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One stretch of training; it starts from the best policy of the stage before."""

    loss: Loss
    """Standard, interval bounds (RADIAL), adversarial examples (AT), SA-DQN's, or the distance from a teacher."""
    strategy: Strategy = "none"
    """`none`: one run; `next`: every budget in turn; `skip`: budgets already robust are skipped (MOS),
    `curriculum.skip` 1; `open`: every budget in turn without a target, until it fails M times in a row;
    `paced`: one run whose budget follows the returns."""
    settings: Settings = field(default_factory=dict)
    """What this stage sets on every game; a preset overrides it."""
    games: dict[str, Settings] = field(default_factory=dict)
    """Published settings of this stage per preset, which they override; `*`: of every game. `only`: of one learner."""
    fast: Settings = field(default_factory=dict)
    """What the fast tempo has instead, on every Atari and Procgen game."""
    fast_games: dict[str, Settings] = field(default_factory=dict)
    """Where it differs per preset."""
    shares_median: bool = False
    """With `--repeats`, all repeats go on from the median of their agents of this stage."""
    same_teacher: bool = False
    """Distillation: the teacher is that of the stage before, and the budget begins anew at `curriculum.start`."""

    def __post_init__(self) -> None:
        if self.loss not in get_args(Loss) or self.strategy not in get_args(Strategy):
            raise ValueError(f"a stage of loss '{self.loss}' and strategy '{self.strategy}'")
        if self.same_teacher and self.loss != "distill":
            raise ValueError(f"a stage of loss '{self.loss}' has no teacher")
        if self.loss == "distill" and self.strategy != "paced":
            raise ValueError("a stage of loss 'distill' needs strategy = \"paced\"")
        if self.strategy == "skip":
            object.__setattr__(self, "settings", merge({"curriculum": {"skip": 1.0}}, self.settings))

    def at_tempo(self, tempo: str, algo: str, game: str) -> Settings:
        """What lies above the published settings. `auto` is the paper's, but for the vanilla DQN agents of its games:
        6M steps of plain exploration see no reward on two of them."""
        ours = tempo == "auto" and self.loss == "standard" and algo == "dqn" and game in self.fast_games
        if tempo != "fast" and not ours:
            return {}
        merged = merge(self.fast, self.fast_games.get(game, {}))
        return {section: table for section, table in merged.items() if section == algo}


@dataclass(frozen=True)
class Recipe:
    """A named way to an agent."""

    summary: str
    stages: tuple[Stage, ...]
    """The recipe's own stages, after its bootstrap."""
    bootstrap: Bootstrap = "none"
    """What comes first; `choice`: the setting `bootstrap` decides."""
    games: dict[str, dict[Loss, Settings]] = field(default_factory=dict)
    """Published settings per preset for every stage of that loss, bootstrap included."""
    algos: Sequence[str] = ("dqn", "ppo")
    ours: bool = False
    """Beyond the paper."""
    source: str = ""
    """The file of a user's own recipe, which runs keep."""


def _expanded(table: Mapping[str, Any], whole: Mapping[str, Any]) -> Settings:
    """A table in which every `like` is replaced by the content of the table that it names."""
    own: Settings = {key: _expanded(value, whole) if isinstance(value, dict) else value for key, value in table.items()}
    if "like" not in own:
        return own
    base = functools.reduce(lambda inside, key: inside[key], own.pop("like").split("."), whole)
    return merge(_expanded(base, whole), own)


_DATA = tomllib.loads((resources.files("bcl") / "recipes.toml").read_text())
_DATA = _expanded(_DATA, _DATA)
_STAGES = {name: Stage(**table) for name, table in _DATA["stages"].items()}
RECIPES: dict[str, Recipe] = {
    name: Recipe(**table | {"stages": tuple(_STAGES[stage] for stage in table["stages"])})
    for name, table in _DATA["recipes"].items()
}
_OWN: dict[str, Recipe] = {}
"""Recipes from files, by the names of these; a run brings its own along."""


def _own_stages(tables: Sequence[Mapping[str, Any]]) -> Iterator[Stage]:
    before: Mapping[str, Any] = {}
    for table in tables:
        own = dict(table)
        if "loss" not in own:
            raise ValueError("a stage has no loss")
        same = own.pop("same_teacher", False)
        if not isinstance(same, bool):
            raise ValueError("same_teacher is true or false")
        if same and before.get("loss") != "distill":
            raise ValueError("same_teacher needs a stage of loss 'distill' before it")
        if same and "teacher" in before.get("distill", {}) and "teacher" not in own.get("distill", {}):
            raise ValueError("same_teacher: distill.teacher of the stage before must stand in this stage too")
        yield Stage(own.pop("loss"), own.pop("strategy", "none"), games={"*": own}, same_teacher=same)
        before = table


def take_recipe(file: Path) -> str:
    """Read a user's own recipe; it is known by the name of its file from here on."""
    hint = "see 'Your own recipe' in docs/curriculum.md"
    try:
        source = file.read_text()
        data = tomllib.loads(source)
        tables = data.get("stages")
        if not isinstance(tables, list) or not tables:
            raise ValueError("it has no [[stages]]")
        stages = tuple(_own_stages(tables))
    except OSError as error:
        raise ConfigError(f"cannot read the recipe '{file}': {error.strerror}", "check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{file}' is no recipe ({' '.join(str(error).split())})", hint) from None
    if file.stem in RECIPES:
        raise ConfigError(f"'{file.stem}' is the name of a built-in recipe", "give the file another name")
    bootstrap = data.get("bootstrap", "none")
    unknown = data.keys() - {"summary", "bootstrap", "stages"}
    if unknown or bootstrap not in get_args(Bootstrap):
        raise ConfigError(f"'{file}' is no recipe ({min(unknown, default=bootstrap)!r} does not fit)", hint)
    algos = ("dqn",) if any(stage.loss == "sa" for stage in stages) else ("dqn", "ppo")
    _OWN[file.stem] = Recipe(str(data.get("summary", "")), stages, bootstrap, algos=algos, ours=True, source=source)
    return file.stem


def find_recipe(name: str) -> Recipe:
    known = RECIPES | _OWN
    if name not in known:
        hint = did_you_mean(name, known, f"one of {', '.join(known)}, or a TOML file")
        raise ConfigError(f"unknown recipe '{name}'", hint)
    return known[name]


def stages_of(
    name: str, algo: str, game: str, bootstrap: str = "auto", tempo: str = "auto"
) -> list[tuple[Stage, list[Settings]]]:
    """Every stage of a recipe, bootstrap first, each with its rows for the game, general ones first."""
    recipe = find_recipe(name)
    kind: str = recipe.bootstrap
    if kind == "choice":
        kind = {"auto": "vanilla" if algo == "ppo" else "radial"}.get(bootstrap, bootstrap)
    elif bootstrap in ("vanilla", "radial"):
        choice = ", ".join(key for key, value in RECIPES.items() if value.bootstrap == "choice")
        raise ConfigError(f"recipe '{name}' leaves no choice of bootstrap", f"leave it out, or take one of {choice}")
    before = [] if kind == "none" else ["vanilla"]
    if kind == "radial":
        before = ["radial"] if algo == "ppo" else ["vanilla", "radial"]  # RADIAL-PPO is trained from scratch
    found = []
    for stage in (*(_STAGES[key] for key in before), *recipe.stages):
        row = dict(stage.games.get(game, {}))
        of_learner = row.pop("only", {}).get(algo, {})
        of_recipe = recipe.games.get(game, {}).get(stage.loss, {})
        rows = [merge(row, of_learner) or stage.games.get("*", {}), of_recipe]
        if recipe.bootstrap == "choice" and kind == "vanilla" and game in stage.games and stage.strategy != "none":
            rows.append({"curriculum": {"start": _DATA["vanilla_starts"].get(game, 0.0)}})
        if "steps" not in of_recipe.get(algo, {}):  # else the recipe itself says how long this stage takes on this game
            rows.append(stage.at_tempo(tempo, algo, game))
        found.append((stage, rows))
    return found


def check_trainable(name: str, algo: str) -> None:
    """Refuse a recipe with another learner than it is defined for."""
    algos = find_recipe(name).algos
    if algo not in algos:
        what = f"recipe '{name}' is defined for {' and '.join(algos)} only"
        raise ConfigError(what, f"choose another with {algo}, or --algo {algos[0]}")
