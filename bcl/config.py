"""Where settings come from.

Order of precedence: defaults < the stage's own settings < preset of the game < learner and layers of `--init` < the
recipe's rows for that game and stage < `--config FILE` < flags.
"""

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from bcl import recipes
from bcl.errors import ConfigError
from bcl.games import Game, engine_of, find_game
from bcl.quantities import format_eps
from bcl.schema import (
    AttackConfig,
    Config,
    CurriculumConfig,
    DistillConfig,
    DqnConfig,
    EvaluationConfig,
    NetworkConfig,
    PpoConfig,
)
from bcl.settings import build, difference, merge, read_toml, to_toml

__all__ = [
    "AttackConfig",
    "Config",
    "CurriculumConfig",
    "DistillConfig",
    "DqnConfig",
    "EvaluationConfig",
    "NetworkConfig",
    "PpoConfig",
    "config_from_dict",
    "config_from_toml",
    "evaluation_defaults",
    "override",
    "preset_for",
    "preset_names",
    "resolve",
    "resolve_stages",
    "small",
]


NOT_PPO = {"in_play": 0.0, "fresh": False}
"""Settings of [attack] that PPO does not know: its adversary never acts, and always attacks anew."""


def preset_names() -> tuple[str, ...]:
    """Names of the games with a preset."""
    return tuple(sorted(p.name[:-5] for p in resources.files("bcl.presets").iterdir() if p.name.endswith(".toml")))


def preset_for(game: Game) -> str | None:
    """The preset of the game that an agent plays, whatever the choices of its pipeline; none: it has none."""
    for name in preset_names():
        known = resolve(name).game
        if type(known) is type(game) and known.id == game.id:
            return name
    return None


def evaluation_defaults(game: Game) -> EvaluationConfig:
    """How the preset of this game judges agents; the general defaults where there is none."""
    name = preset_for(game)
    return resolve(name).evaluation if name else EvaluationConfig()


def resolve(
    game: str, *, recipe: str | None = None, file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> Config:
    """The complete configuration of a recipe's last stage on a game."""
    return resolve_stages(game, recipe=recipe, file=file, flags=flags)[-1][1]


def resolve_stages(
    game: str,
    *,
    recipe: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
) -> list[tuple[recipes.Stage, Config]]:
    """Every stage of a recipe on a game with its complete configuration; `agent`: what the one to start from decides."""
    preset, written, flags = merge(_preset(game), agent or {}), read_toml(file) if file else {}, flags or {}
    top = merge(merge(preset, written), flags)
    name = recipe or str(top.get("recipe", "vanilla"))
    name = recipes.take_recipe(Path(name)) if name.endswith(".toml") else name
    stages = recipes.stages_of(name, str(top.get("algo", "dqn")), game, str(top.get("bootstrap", "auto")))
    for key in ("engine", "id"):
        given = top["game"].get(key) if isinstance(top["game"], Mapping) else preset["game"][key]
        if given != preset["game"][key]:
            what = f"game.{key} = {given!r} is not that of '{game}'"
            raise ConfigError(what, "name the game you mean on the command line, so that its preset is taken")

    def config(stage: recipes.Stage, rows: list[recipes.Settings], *own: Mapping[str, Any]) -> Config:
        merged: Mapping[str, Any] = functools.reduce(merge, (stage.settings, preset, *rows))
        if top.get("budget") == "small":
            merged = tomllib.loads(to_toml(small(config_from_dict(merged))))
        if top.get("algo") == "ppo":  # DQN's ways, which a game's own rows may have
            merged = merge(merged, {"attack": NOT_PPO})
        return config_from_dict(functools.reduce(override, (*own, {"recipe": name}), merged))

    _refuse_other_learner(str(top.get("algo", "dqn")), flags)
    if "distill" in flags and not any(stage.loss == "distill" for stage, _ in stages):
        raise ConfigError(
            f"distill.* changes nothing, recipe '{name}' does not distill", "leave it out, or take 'distilled'"
        )
    last = config(*stages[-1], written, flags)
    layers = (preset, *stages[-1][1], written, flags)
    if stages[-1][0].strategy in ("next", "skip", "paced") and not any(
        "target" in layer.get("curriculum", {}) for layer in layers
    ):
        raise ConfigError(f"'{game}' has no target for a curriculum", "give one such as --curriculum.target 10/255")
    _check_budgets(stages[-1][0], last)
    for key, off in NOT_PPO.items():
        if last.algo == "ppo" and getattr(last.attack, key) != off:
            raise ConfigError(f"PPO has no attack.{key}", f"leave it out, or train with --algo dqn if '{game}' allows")
    # A printed configuration holds all of the last stage: only what was changed in it is meant for the others too.
    changes = _only(difference(config(*stages[-1]), last), written)
    _refuse_other_learner(last.algo, changes)
    before = [(s, config(s, rows, _earlier(s, changes), _earlier(s, flags))) for s, rows in stages[:-1]]
    return [*before, (stages[-1][0], last)]


def override(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A user's settings over others. If they change `evaluation.eps` alone, `score_eps` keeps those of its budgets that
    are still judged; if that leaves none, the score is over all of `eps`."""
    merged = merge(settings, own)
    given, evaluation = own.get("evaluation"), merged.get("evaluation")
    eps_alone = isinstance(given, Mapping) and "eps" in given and "score_eps" not in given
    if eps_alone and isinstance(evaluation, dict) and evaluation.get("score_eps"):
        judged, scored = (
            build(EvaluationConfig, {"eps": evaluation[key]}, "evaluation").eps for key in ("eps", "score_eps")
        )
        evaluation["score_eps"] = [eps for eps in scored if eps in judged]
    return merged


def small(config: Config) -> Config:
    """The same for a quick look: at most 10,000 steps a run, 2 runs a phase, 8 in all, 3 short episodes a score under the
    suite `quick`."""
    d, c, e = config.dqn, config.curriculum, config.evaluation
    share = min(1.0, 10_000 / d.steps)
    names = (
        "steps",
        "buffer_size",
        "replay_initial",
        "exploration_hold",
        "exploration_steps",
        "ramp_start",
        "ramp_steps",
    )
    steps = {name: min(math.ceil(getattr(d, name) * share), 10_000) for name in names}
    quarter = (c.target - c.start) / 4
    return replace(
        config,
        budget="small",
        dqn=replace(d, **steps, num_envs=min(d.num_envs, 16), log_steps=min(d.log_steps, 1_000)),
        ppo=replace(config.ppo, steps=min(config.ppo.steps, 40_000)),
        distill=replace(
            config.distill, steps=min(config.distill.steps, 10_000), num_envs=min(config.distill.num_envs, 16)
        ),
        curriculum=replace(
            c,
            runs=min(c.runs, 2),
            min_runs=min(c.min_runs, 2),
            increment=max(c.increment, quarter),
            max_runs=8,
            expected_return=None,  # nothing is learned in so few steps
        ),
        evaluation=replace(
            e, episodes=min(e.episodes, 3), max_steps=min(e.max_steps, 1_000), suite="quick", levels="train"
        ),
    )


def _only(names: list[str], data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of nested `data` with those dotted names."""
    sections = {k: v for k, v in data.items() if isinstance(v, Mapping)}
    inside = {s: {k: v for k, v in table.items() if f"{s}.{k}" in names} for s, table in sections.items()}
    return {k: v for k, v in data.items() if k in names} | inside


def _earlier(stage: recipes.Stage, own: Mapping[str, Any]) -> dict[str, Any]:
    """A user's settings as they apply before the last stage: start and target are the last curriculum's."""
    table = {k: v for k, v in own.get("curriculum", {}).items() if k not in ("start", "target")}
    return {**own, "curriculum": {} if stage.strategy == "none" else table}


def _refuse_other_learner(algo: str, own: Mapping[str, Any]) -> None:
    """A user's settings of the learner that is not in use would change nothing."""
    other, unused, used = ("dqn", DqnConfig, PpoConfig) if algo == "ppo" else ("ppo", PpoConfig, DqnConfig)
    table = own.get(other)
    for name in table if isinstance(table, Mapping) else ():
        if name in unused.__dataclass_fields__:  # what is not, is refused for that
            instead = f"set {algo}.{name}" if name in used.__dataclass_fields__ else "leave it out"
            hint = f"{instead}, or train with --algo {other}"
            raise ConfigError(f"{other}.{name} changes nothing, the learner is {algo}", hint)


def _check_budgets(stage: recipes.Stage, config: Config) -> None:
    start, target = config.curriculum.start, config.curriculum.target
    if start >= target and stage.loss != "standard" and stage.strategy != "open":  # those have no target
        what = f"curriculum.start {format_eps(start)} is not below curriculum.target {format_eps(target)}"
        raise ConfigError(what, "give a start below the target")


def _preset(game: str) -> dict[str, Any]:
    if game in preset_names():
        return tomllib.loads((resources.files("bcl.presets") / f"{game}.toml").read_text())
    found = find_game(game, preset_names())
    algo = "ppo" if engine_of(found) == "procgen" else "dqn"
    return {"algo": algo, "game": {"engine": engine_of(found), "id": found.id}}


def config_from_dict(data: Mapping[str, Any]) -> Config:
    """A checked configuration from nested plain data."""
    return build(Config, data, "")


def config_from_toml(text: str) -> Config:
    """A configuration as `to_toml` wrote it."""
    return config_from_dict(tomllib.loads(text))
