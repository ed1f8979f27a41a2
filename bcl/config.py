"""Every setting of a run: schema, defaults and help text in one place.

Order of precedence: defaults < preset of the game < recipe < `--config FILE` < flags.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from bcl.errors import ConfigError, did_you_mean
from bcl.games import ENGINES, Game, engine_of, find_game
from bcl.quantities import Count, Eps, Natural, Positive, Share, fits, format_eps, parse_eps


@dataclass(frozen=True)
class NetworkConfig:
    """The policy network."""

    kind: Literal["auto", "dueling-cnn", "plain-cnn", "impala", "dueling-mlp", "actor-critic-mlp"] = "auto"
    """`auto` takes the paper's network for the game and learner."""
    hidden: tuple[Count, ...] = (128, 128)
    """Units of each hidden layer (MLPs only)."""


@dataclass(frozen=True)
class DqnConfig:
    """Deep Q-learning; the defaults are those of the paper's adversarial training on Atari."""

    steps: Count = 4_500_000
    """Agent steps of one training run."""
    num_envs: Count = 64
    """Environments stepped together."""
    batch_size: Count = 128
    """Transitions per gradient step."""
    samples_per_step: Positive = 32.0
    """Replayed transitions per agent step, whatever the batch size (the paper: 128 every 4 steps)."""
    learning_rate: Positive = 1.25e-4
    """Adam step size."""
    adam_eps: Positive = 1e-8
    """Adam denominator constant."""
    gamma: Share = 0.99
    """Discount per agent step."""
    n_step: Count = 1
    """Steps of real reward before bootstrapping."""
    buffer_size: Count = 50_000
    """Transitions kept for replay."""
    replay_initial: Natural = 256
    """Agent steps collected before the first gradient step."""
    target_sync: Count = 4_000
    """Agent steps between hard copies to the target network."""
    exploration_start: Share = 0.01
    """Share of random actions at the first step."""
    exploration_end: Share = 0.01
    """Share of random actions after the decay."""
    exploration_steps: Count = 1
    """Agent steps over which exploration decays linearly."""
    reward_clamp: float = 1.0
    """Stored rewards are clamped to this magnitude; 0 keeps them raw."""
    kappa: Share = 0.8
    """Weight of the standard loss; the robust loss has the rest (the value at the end when `kappa_linear`)."""
    kappa_linear: bool = False
    """Fall linearly from 1 to `kappa` instead of staying constant."""
    ramp: Literal["smooth", "linear"] = "smooth"
    """How the budget rises inside a run: quartic then linear, or linear."""
    ramp_steps: Count = 4_000_000
    """Agent step at which the budget reaches its end."""


@dataclass(frozen=True)
class PpoConfig:
    """Proximal policy optimisation; the defaults are those of the paper on Procgen."""

    steps: Count = 25_000_000
    """Agent steps of one training run."""
    num_envs: Count = 64
    """Environments stepped together."""
    rollout: Count = 256
    """Steps per environment between updates."""
    epochs: Count = 3
    """Passes over each rollout."""
    batch_size: Count = 512
    """Samples per gradient step."""
    learning_rate: Positive = 5e-4
    """Adam step size."""
    adam_eps: Positive = 1e-5
    """Adam denominator constant."""
    gamma: Share = 0.999
    """Discount per agent step."""
    gae_lambda: Share = 0.95
    """Decay of generalised advantage estimation."""
    clip: Positive = 0.2
    """Clip range of the probability ratio and of the value."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: Positive = 0.5
    """Gradient norm clip."""
    kappa: Share = 0.5
    """Weight of the standard surrogate; the robust one has the rest."""


@dataclass(frozen=True)
class AttackConfig:
    """The adversary during training."""

    kind: Literal["ri-fgsm", "pgd", "fresh"] = "ri-fgsm"
    """`ri-fgsm`: the paper's single step; `pgd`: several steps; `fresh`: recomputed on each replayed batch."""
    steps: Count = 10
    """Iterations of `pgd`."""
    relative_step: Positive = 0.2
    """Step of `pgd` as a share of the budget."""


@dataclass(frozen=True)
class CurriculumConfig:
    """How the budget rises from phase to phase (the paper's Algorithm 1 and 2)."""

    start: Eps = 0.0
    """Budget the bootstrap is taken to handle (the paper's eps_0)."""
    target: Eps = 1 / 255
    """Budget at which the curriculum is done."""
    increment: Eps = 1 / 255
    """Distance between neighbouring budgets."""
    runs: Count = 1
    """Training runs per phase, of which the best is kept (K)."""
    min_runs: Count = 1
    """Runs before a phase may stop early on success (K_min)."""
    nominal_threshold: float | None = None
    """Return without attack that counts as solved; none: no such condition."""
    attacked_threshold: float | None = None
    """Return under attack at the phase's budget that counts as robust; none: no such condition."""
    failed_phases: Count = 2
    """An open-ended curriculum stops after this many failing phases in a row (M)."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How agents are judged."""

    episodes: Count = 20
    """Episodes per score."""
    max_steps: Count = 10_000
    """Agent steps after which an evaluation episode stops and its return counts as it is."""
    eps: tuple[Eps, ...] = (1 / 255, 3 / 255)
    """Budgets of the final evaluation."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    game: Game
    recipe: str = "vanilla"
    """What to train: a row of the paper's tables (`bcl presets` lists them)."""
    algo: Literal["dqn", "ppo"] = "dqn"
    """The learner."""
    seed: Natural = 0
    """Root of every random draw of the run."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    dqn: DqnConfig = field(default_factory=DqnConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


def preset_names() -> tuple[str, ...]:
    """Names of the games with a preset."""
    return tuple(sorted(p.name[:-5] for p in resources.files("bcl.presets").iterdir() if p.name.endswith(".toml")))


def parse_flags(arguments: list[str]) -> dict[str, Any]:
    """Nested settings from `--section.key value` and `--section.key=value`; values stay text until they are typed."""
    settings: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--"):
            raise ConfigError(f"unexpected argument '{word}'", "settings are written --section.key value")
        key, equals, value = word[2:].partition("=")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise ConfigError(f"setting '--{key}' has no value", f"write --{key} VALUE")
        *sections, last = key.replace("-", "_").split(".")
        table = settings
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"'{section}' in '--{key}' is a value, not a section")
        table[last] = value
    return settings


def resolve(game: str, *overrides: Mapping[str, Any], file: Path | None = None, flags: Mapping[str, Any] | None = None) -> Config:
    """The complete configuration of a game: preset, then `overrides` (a recipe's rows), then file, then flags."""
    layers: list[Mapping[str, Any]] = []
    if game in preset_names():
        layers.append(tomllib.loads((resources.files("bcl.presets") / f"{game}.toml").read_text()))
    else:
        found = find_game(game, preset_names())
        layers.append({"game": {"engine": engine_of(found), "id": found.id}})
        if engine_of(found) == "procgen":
            layers.append({"algo": "ppo"})
    layers += overrides
    if file is not None:
        layers.append(_read_toml(file))
    if flags:
        layers.append(flags)
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer)
    return config_from_dict(merged)


def config_from_dict(data: Mapping[str, Any]) -> Config:
    """A checked configuration from nested plain data."""
    return _build(Config, data, "")


def config_from_toml(text: str) -> Config:
    """A configuration as `to_toml` wrote it."""
    return config_from_dict(tomllib.loads(text))


def to_toml(config: Config, *, comments: bool = False) -> str:
    """The whole configuration as TOML, with each setting's help beside it on request."""
    import docstring_parser

    lines: list[str] = []

    def emit(value: Any, kind: Any) -> None:
        help_of = {p.arg_name: p.description or "" for p in docstring_parser.parse_from_object(kind).params} if comments else {}
        hints = typing.get_type_hints(kind, include_extras=True)
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            if dataclasses.is_dataclass(item) or item is None:
                continue
            text = f"{f.name} = {_toml_value(item, hints[f.name])}"
            lines.append(f"{text:<40}  # {help_of[f.name]}" if help_of.get(f.name) else text)

    emit(config, Config)
    for f in dataclasses.fields(config):
        section = getattr(config, f.name)
        if dataclasses.is_dataclass(section):
            lines.extend(["", f"[{f.name}]"])
            if f.name == "game":
                lines.append(f'engine = "{engine_of(config.game)}"')
            emit(section, type(section))
    return "\n".join(lines) + "\n"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror}", "give --config an existing TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}", "mend it, or compare with 'bcl presets GAME'") from None


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _build(kind: Any, data: Any, where: str) -> Any:
    """A dataclass from a table; `where` is its path, for messages."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"'{where}' is a section, not a value", f"write --{where}.KEY VALUE")
    data = dict(data)
    if kind == Game:
        kind = ENGINES.get(data.pop("engine", ""))
        if kind is None:
            raise ConfigError("game.engine is missing or unknown", f"one of {', '.join(ENGINES)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    for key in data:
        if key not in hints:
            raise ConfigError(f"unknown setting '{_path(where, key)}'", did_you_mean(key, hints, f"one of {', '.join(hints)}"))
    values = {key: _typed(hints[key], value, _path(where, key)) for key, value in data.items()}
    missing = [f.name for f in dataclasses.fields(kind) if f.name not in values and f.default is f.default_factory]
    if missing:
        raise ConfigError(f"setting '{_path(where, missing[0])}' is missing", "every configuration needs it")
    return kind(**values)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type of its field; text (from flags) is parsed, everything else must already fit."""
    if hint == Game or dataclasses.is_dataclass(hint):
        return _build(hint, value, where)
    if hint == Eps:
        return parse_eps(value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        number, condition = _typed(arguments[0], value, where), arguments[1]
        if not fits(number, condition):
            raise ConfigError(f"{where} = {value} is not allowed", f"it must be {condition}")
        return number
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where} = '{value}' is not a choice", did_you_mean(str(value), arguments, f"one of {', '.join(arguments)}"))
    if origin is tuple:
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        if isinstance(items, list | tuple):
            return tuple(_typed(arguments[0], item, where) for item in items)
    elif origin in (types.UnionType, typing.Union):  # `X | None`
        return None if value in (None, "none") else _typed(arguments[0], value, where)
    elif hint is bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
    elif hint is str and isinstance(value, str):
        return value
    elif hint in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
            if hint is float and number == number and abs(number) != float("inf"):
                return number
            if hint is int and number == int(number):
                return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
        except (ValueError, TypeError, OverflowError):
            pass
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, "a list")
    raise ConfigError(f"{where} = {value!r} is not {expected}", "mend that value")


def _toml_value(value: Any, hint: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item, typing.get_args(hint)[0]) for item in value) + "]"
    if hint == Eps:
        text = format_eps(value)
        return f'"{text}"' if "/" in text else text
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def difference(old: Config, new: Config) -> list[str]:
    """Dotted names of the settings in which two configurations differ."""

    def flat(value: Any, where: str) -> dict[str, Any]:
        if not dataclasses.is_dataclass(value):
            return {where: value}
        parts = [flat(getattr(value, f.name), _path(where, f.name)) for f in dataclasses.fields(value)]
        return {k: v for part in parts for k, v in part.items()} | ({f"{where}.engine": engine_of(value)} if where == "game" else {})  # type: ignore[arg-type]

    a, b = flat(old, ""), flat(new, "")
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


