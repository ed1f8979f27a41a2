"""Every setting of a run: schema, defaults and help text in one place.

Order of precedence: defaults < the stage's own settings < preset of the game < the recipe's rows for that game and
stage < `--config FILE` < flags.
"""

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from bcl import recipes
from bcl.errors import ConfigError
from bcl.games import Game, engine_of, find_game
from bcl.quantities import Count, Eps, Magnitude, Natural, Positive, Share, format_eps
from bcl.settings import build, difference, merge, read_toml, to_toml


@dataclass(frozen=True)
class NetworkConfig:
    """The policy network."""

    kind: Literal["auto", "dueling-cnn", "plain-cnn", "impala", "dueling-mlp", "actor-critic-mlp"] = "auto"
    """`auto` takes the paper's network for the game and learner."""
    hidden: tuple[Count, ...] = (128, 128)
    """Units of each hidden layer (MLPs only)."""

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ConfigError("network.hidden is empty", "give at least one layer")


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
    learning_rate_scaling: Literal["none", "sqrt", "linear"] = "none"
    """How the step size grows with `batch_size` / 128."""
    learning_rate_end: Share = 1.0
    """Share of the step size that is left at the last step, falling linearly; 1: constant, as in the paper."""
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
    """Agent steps between updates of the target network."""
    target_rate: Share = 1.0
    """How far the target network moves at each: 1 copies the weights (the paper), 0.005 follows them softly."""
    exploration_start: Share = 0.01
    """Share of random actions at the first step."""
    exploration_end: Share = 0.01
    """Share of random actions after the decay."""
    exploration_hold: Natural = 0
    """Agent steps before exploration begins to decay."""
    exploration_steps: Count = 1
    """Agent steps over which exploration decays linearly."""
    exploration_repeat: Count = 1
    """Random actions are held for 1 to this many steps, n or more with probability 1/n; 1: as in the paper."""
    reward_scale: Positive = 1.0
    """Stored rewards are multiplied by this, then clamped."""
    reward_clamp: Magnitude = 1.0
    """Stored rewards are clamped to this magnitude; 0 keeps them as they are."""
    td_loss: Literal["min", "squared", "huber"] = "min"
    """Of an error x: min(x^2, |x|) as the paper's code, x^2, or Huber's."""
    radial_approach: Literal["1", "1-reference", "2"] = "2"
    """RADIAL's loss: 2 weighs overlaps of action bounds; 1 bounds the loss; `1-reference` leaves out the value stream."""
    kappa: Share = 0.8
    """Weight of the standard loss, the robust one has the rest (in the end if `kappa_linear`); `sa`: of the robust."""
    kappa_linear: bool = False
    """Fall linearly from 1 to `kappa` instead of staying constant."""
    ramp: Literal["smooth", "linear"] = "smooth"
    """How the budget rises inside a run: quartic then linear, or linear."""
    ramp_start: Natural = 0
    """Agent step at which the budget begins to rise; 0: after `replay_initial`."""
    ramp_steps: Count = 4_000_000
    """Agent step at which the budget reaches its end."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of forward and backward passes; `auto`: bf16 for images on a GPU, else fp32. Bounds and last layers stay fp32."""
    accelerate: Literal["none", "graphs", "full"] = "graphs"
    """On a GPU: every step one CUDA graph; `full` also compiles the networks, which pays off in millions of steps."""
    log_steps: Count = 10_000
    """Agent steps between rows of metrics."""
    checkpoint_minutes: Positive = 10.0
    """Wall time between checkpoints of a run."""
    checkpoint_steps: Natural = 0
    """Agent steps between checkpoints; 0: by time alone. Resuming by steps is repeatable, by time it is not."""
    checkpoint_replay: bool = False
    """Keep the replay memory in checkpoints, for exact resuming; without it a resumed run first collects a new one."""

    def __post_init__(self) -> None:
        if self.ramp_start >= self.ramp_steps:
            what = f"dqn.ramp_start {self.ramp_start} is not before dqn.ramp_steps {self.ramp_steps}"
            raise ConfigError(what, "both are agent steps since the run began")


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

    kind: Literal["ri-fgsm", "pgd"] = "ri-fgsm"
    """`ri-fgsm`: the paper's single step; `pgd`: several steps."""
    steps: Count = 10
    """Iterations of `pgd`."""
    relative_step: Positive = 0.2
    """Step of `pgd` as a share of the budget."""
    random_start: bool = False
    """Whether `pgd` starts at a random point of the ball instead of the clean one."""
    objective: Literal["paper", "cross-entropy", "margin"] = "paper"
    """What is attacked: the paper's expected value (DQN: softmax(Q) . Q_target), or the action as evaluations do."""
    fresh: bool = False
    """Attack each replayed batch anew (DQN) instead of storing what was found when it was collected, as the paper does."""
    in_play: Share = 0.0
    """Share of the copies that act on what the adversary shows (DQN), so that the agent knows where it gets driven to;
    0: all act on clean observations, as in the paper."""


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
    """Return without attack that counts as solved (V_nom); none: no such condition."""
    attacked_threshold: float | None = None
    """Return under attack at the phase's budget that counts as robust (V_adv); none: no such condition."""
    adaptive: bool = False
    """Read both thresholds as shares of the bootstrap's nominal return, counted from `floor`."""
    floor: float = 0.0
    """The game's lowest return (Pong: -21), from which shares and normalised values count."""
    value: Literal["raw", "normalised", "nominal"] = "raw"
    """What the best run of a phase is chosen by: R_nominal + (R_adv at this budget + R_adv at the one before) / 2; the
    same with each return as a share of its threshold; or R_nominal alone."""
    judged_by: Literal["pgd-30", "quick", "paper", "strong"] = "pgd-30"
    """The attack, or the suite whose worst counts, behind R_adv inside the curriculum."""
    skip: Share = 0.0
    """Share of the budgets found robust that is skipped: 0 none (NCL, BCL-C), 1 all (MOS)."""
    robust_to: Literal["every", "any"] = "every"
    """Skip up to the smallest budget that is not robust (the paper's box), or past the largest robust one (its text)."""
    ratchet: bool = False
    """The agent a phase starts from competes with its runs, so that no phase makes it worse; not in the paper."""
    keep: Literal["last", "met", "best"] = "last"
    """Which agent comes out: the last phase's (Algorithm 1), the last that met its thresholds, or that with the highest
    R_nominal + mean R_adv at `evaluation.eps`."""
    failed_phases: Natural = 0
    """Stop after this many failing phases in a row (M); under the ratchet, without progress; 0: never."""
    toothless: Share = 0.0
    """Stop when the training attack leaves this share of the nominal return at the target; 0: never (PPO's rule)."""
    max_runs: Natural = 0
    """Stop after this many training runs; 0: no limit."""
    max_hours: Magnitude = 0.0
    """Stop when this much wall time was spent on the curriculum; 0: no limit."""

    def __post_init__(self) -> None:
        if self.min_runs > self.runs:
            what = f"curriculum.min_runs {self.min_runs} is above curriculum.runs {self.runs}"
            raise ConfigError(what, "set both, min_runs at most runs")
        if self.increment == 0:
            raise ConfigError("curriculum.increment is 0", "write it like 1/255 or 0.02")


@dataclass(frozen=True)
class EvaluationConfig:
    """How agents are judged."""

    episodes: Count = 20
    """Episodes per score."""
    max_steps: Count = 10_000
    """Agent steps after which an evaluation episode stops and its return counts as it is."""
    eps: tuple[Eps, ...] = (1 / 255, 3 / 255)
    """Budgets of the final evaluation."""
    score_eps: tuple[Eps, ...] = ()
    """Budgets of the final score R_nominal + mean R_adv, by which the paper takes the median of repeats; empty: `eps`."""
    suite: Literal["quick", "paper", "strong"] = "quick"
    """Attacks of the final evaluation."""

    def __post_init__(self) -> None:
        if not self.eps:
            raise ConfigError("evaluation.eps is empty", "give at least one budget such as 3/255")
        if not {*self.score_eps} <= {*self.eps}:
            raise ConfigError("evaluation.score_eps has budgets that evaluation.eps has not", "add them there")

    @property
    def scored(self) -> tuple[float, ...]:
        """Budgets of the final score."""
        return self.score_eps or self.eps


@dataclass(frozen=True)
class Config:
    """A whole run."""

    game: Game
    recipe: str = "vanilla"
    """What to train: a row of the paper's tables (`bcl presets` lists them)."""
    algo: Literal["dqn", "ppo"] = "dqn"
    """The learner."""
    bootstrap: Literal["auto", "vanilla", "radial"] = "auto"
    """What the BCL-AT recipes start from; `auto` is the paper's: radial for DQN, vanilla for PPO."""
    seed: Natural = 0
    """Root of every random draw of the run."""
    budget: Literal["full", "small"] = "full"
    """`small`: a quick look with few steps, runs, phases and episodes; its result says nothing about the method."""
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
    """The complete configuration of a recipe's last stage on a game."""
    return resolve_stages(game, recipe=recipe, file=file, flags=flags)[-1][1]


def resolve_stages(
    game: str, *, recipe: str | None = None, file: Path | None = None, flags: Mapping[str, Any] | None = None
) -> list[tuple[recipes.Stage, Config]]:
    """Every stage of a recipe on a game with its complete configuration."""
    preset, written, flags = _preset(game), read_toml(file) if file else {}, flags or {}
    top = merge(merge(preset, written), flags)
    name = recipe or str(top.get("recipe", "vanilla"))
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
        return config_from_dict(functools.reduce(merge, (*own, {"recipe": name}), merged))

    last = config(*stages[-1], written, flags)
    _check_budgets(stages[-1][0], last)
    # A printed configuration holds all of the last stage: only what was changed in it is meant for the others too.
    changes = _only(difference(config(*stages[-1]), last), written)
    before = [(s, config(s, rows, _earlier(s, changes), _earlier(s, flags))) for s, rows in stages[:-1]]
    return [*before, (stages[-1][0], last)]


def small(config: Config) -> Config:
    """The same for a quick look: at most 10,000 steps a run, 2 runs a phase, 4 phases, 3 short episodes a score."""
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
        curriculum=replace(c, runs=min(c.runs, 2), min_runs=min(c.min_runs, 2), increment=max(c.increment, quarter)),
        evaluation=replace(e, episodes=min(e.episodes, 3), max_steps=min(e.max_steps, 1_000)),
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
