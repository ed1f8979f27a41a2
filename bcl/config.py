"""Every setting of a run: schema, defaults and help text in one place.

Order of precedence: defaults < preset of the game < recipe < `--config FILE` < flags.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from bcl import recipes
from bcl.games import Game, engine_of, find_game
from bcl.quantities import Count, Eps, Natural, Positive, Share
from bcl.settings import build, merge, read_toml


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


def resolve(
    game: str, *, recipe: str | None = None, file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> Config:
    """The complete configuration of a game: preset, then the recipe's rows for it, then file, then flags."""
    own = [read_toml(file) if file else {}, flags or {}]
    recipe = recipe or next((str(layer["recipe"]) for layer in reversed(own) if "recipe" in layer), "vanilla")
    merged: dict[str, Any] = {}
    for layer in [_preset(game), *recipes.rows(recipe, game), *own]:
        merged = merge(merged, layer)
    return config_from_dict(merged | {"recipe": recipe})


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
