"""Every setting of a run: its default, its check and its help text in one field; and where settings come from.

Order of precedence: defaults < the stage's own settings < preset of the game < learner and layers of `--init` < the
recipe's rows for that game and stage < the tempo's < `--config FILE` < the command line.
"""

import contextlib
import functools
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from bcl import recipes
from bcl.errors import ConfigError
from bcl.games import AtariGame, Game, GymnasiumGame, ProcgenGame, find_game, game_to_dict
from bcl.settings import (
    Count,
    Eps,
    Magnitude,
    Natural,
    Positive,
    Share,
    build,
    current_names,
    difference,
    format_eps,
    merge,
    plain,
    read_toml,
)

NOT_PPO = {"in_play": 0.0, "fresh": False}
"""Settings of [attack] that PPO does not know: it has an `in_play` of its own, and always attacks anew."""
SCALED_STEPS = (
    "steps", "buffer_size", "replay_initial", "exploration_hold", "exploration_steps", "ramp_start", "ramp_steps",
)  # fmt: skip
"""Of [dqn], in proportion where a run is short."""
MOST_SHARE = 2.0
"""Of the start's return, as an adaptive threshold; more is a return, given by mistake."""

WRITTEN_BY_A_RUN = {"recipe", "algo", "game", "network", "dqn", "ppo", "attack", "curriculum", "evaluation"}
"""In every config.toml of a run, of any version. It also has what its run had no use for, as the defaults were then."""


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
    """RADIAL's loss: 2 weighs overlaps of action bounds; 1 bounds the loss; `1-reference` leaves out the value
    stream."""
    kappa: Share = 0.8
    """Weight of the standard loss, the robust one has the rest (at the last step if `kappa_linear`); `sa`: of the
    robust."""
    kappa_linear: bool = False
    """Fall linearly from 1 to `kappa` instead of staying constant."""
    bound_share: Share = 0.0
    """Adversarial training: share of its robust part that is RADIAL's, so that proven actions may survive it; 0:
    attacks alone, as in the paper."""
    bound_eps: Eps = 1 / 255
    """Largest budget of those bounds, which prove nothing at large ones."""
    ramp: Literal["smooth", "linear"] = "smooth"
    """How the budget rises inside a run: quartic then linear, or linear."""
    ramp_start: Natural = 0
    """Agent step at which the budget begins to rise; 0: after `replay_initial`."""
    ramp_steps: Count = 4_000_000
    """Agent step at which the budget reaches its end."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of forward and backward passes; `auto`: bf16 for images on a whole GPU or a CPU with bf16 units, else fp32.
    First and last layers stay fp32."""
    accelerate: Literal["auto", "none", "graphs", "full"] = "auto"
    """On a GPU: `graphs` makes every step one CUDA graph, `full` also compiles the networks; `auto`: compiled where a C
    compiler is there and the run has a million steps or more, else graphs."""
    log_steps: Count = 10_000
    """Agent steps between rows of metrics."""
    checkpoint_minutes: Positive = 10.0
    """Wall time between checkpoints of a run, unless they are counted in steps."""
    checkpoint_steps: Natural = 0
    """Agent steps between checkpoints; 0: by time. Resuming by steps is repeatable, by time it is not. The games start
    anew at each, so give more than an episode of every copy."""
    checkpoint_replay: bool = False
    """Keep the replay memory in checkpoints, for exact resuming; without it a resumed run first collects a new one."""

    def __post_init__(self) -> None:
        if self.ramp_start >= self.ramp_steps:
            what = f"dqn.ramp_start {self.ramp_start} is not before dqn.ramp_steps {self.ramp_steps}"
            raise ConfigError(what, "both are agent steps since the run began")
        if self.n_step > max(1, self.buffer_size // self.num_envs):
            what = f"dqn.buffer_size {self.buffer_size} is too small for {self.n_step} steps of {self.num_envs} copies"
            raise ConfigError(what, "raise it, or lower dqn.n_step or dqn.num_envs")


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
    value_coef: Magnitude = 0.5
    """Weight of the value loss."""
    entropy_coef: Magnitude = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: Positive = 0.5
    """Gradient norm clip."""
    kappa: Share = 0.5
    """Weight of the standard surrogate; the robust one has the rest."""
    learning_rate_end: Share = 1.0
    """Share of the step size that is left at the last step, falling linearly; 1: constant, as in the paper."""
    normalise_returns: bool = True
    """Divide rewards by the running deviation of discounted returns, then clamp them."""
    return_gamma: Share = 0.99
    """Discount of the returns whose deviation is taken; the paper's code does not take `gamma`."""
    reward_clamp: Magnitude = 10.0
    """Rewards are clamped to this magnitude; 0 keeps them as they are."""
    keep_return_statistics: bool = False
    """Begin with the deviation that the agent to start from ended with, if it has one (imported agents have none); the
    paper's code begins anew."""
    ramp: Literal["exponential", "smooth", "linear"] = "exponential"
    """How the budget rises inside a run: exponential then linear, quartic then linear, or linear."""
    ramp_start: Share = 0.1
    """Share of the run's updates after which the budget begins to rise."""
    ramp_end: Share = 0.8
    """Share of the run's updates after which the budget has reached its end."""
    in_play: Share = 0.0
    """Adversarial training: share of the copies that act on what the adversary shows, so that the agent knows where it
    gets driven to; 0: all act on clean observations, as in the paper."""
    temperature: Positive = 1.0
    """Logits are divided by this in acting and learning: below 1 the policy that learns is nearer to the greedy one,
    which is evaluated and may never land where sampled actions do; 1: as in the paper."""
    exploration_start: Share = 0.0
    """Share of random actions begun at the first step, learned from as if the policy had drawn them; 0: none, as in the
    paper."""
    exploration_steps: Count = 1
    """Agent steps over which that share falls to 0."""
    exploration_repeat: Count = 1
    """Random actions are held for 1 to this many steps, n or more with probability 1/n."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of forward and backward passes; `auto`: bf16 for images on a whole GPU or a CPU with bf16 units, else fp32.
    First and last layers stay fp32."""
    accelerate: Literal["auto", "none", "graphs", "full"] = "auto"
    """On a GPU: `graphs` makes every step one CUDA graph, `full` also compiles network (not IMPALA in bf16) and loss;
    `auto`: compiled where a C compiler is there and the run has a million steps or more, else graphs."""
    log_steps: Count = 50_000
    """Agent steps between rows of metrics, at least one rollout."""
    checkpoint_minutes: Positive = 10.0
    """Wall time between checkpoints of a run, unless they are counted in steps."""
    checkpoint_steps: Natural = 0
    """Agent steps between checkpoints; 0: by time. Resuming by steps is repeatable, by time it is not. The games start
    anew at each, so give more than an episode of every copy."""

    def __post_init__(self) -> None:
        samples = self.num_envs * self.rollout
        if samples % self.batch_size:
            product = f"ppo.num_envs {self.num_envs} x ppo.rollout {self.rollout}"
            what = f"{product} is no multiple of ppo.batch_size {self.batch_size}"
            raise ConfigError(what, "change one of them: every update takes a whole batch of the rollout")
        if self.ramp_start >= self.ramp_end:
            what = f"ppo.ramp_start {self.ramp_start} is not before ppo.ramp_end {self.ramp_end}"
            raise ConfigError(what, "both are shares of the run's updates")


@dataclass(frozen=True)
class DistillConfig:
    """A robust student of the agent that training starts from, or of `teacher`: it learns that agent's actions, on
    observations of its own play, for everything within the budget."""

    teacher: str = ""
    """A policy file or `zoo:NAME`, where the student does not start as its teacher: one that is to be trained further,
    say. Read again on resuming. Empty: the agent that training starts from, in `distilled+bounds` in both stages."""
    steps: Count = 2_000_000
    """Agent steps of one training run."""
    num_envs: Count = 64
    """Environments stepped together."""
    batch_size: Count = 1024
    """Observations per gradient step."""
    samples_per_step: Positive = 32.0
    """Replayed observations per agent step, whatever the batch size."""
    learning_rate: Positive = 2.5e-4
    """Adam step size."""
    learning_rate_end: Share = 0.1
    """Share of the step size that is left at the last step, falling linearly over the last quarter of the run."""
    adam_eps: Positive = 1e-5
    """Adam denominator constant."""
    max_grad_norm: Positive = 10.0
    """Gradient norm clip."""
    buffer_size: Count = 400_000
    """Observations kept for replay."""
    box: Share = 1.0
    """Share of the budget that is covered by interval bounds; an attack moves their centre by the rest. 1: bounds
    alone, which can be certified; 0: adversarial examples alone; between: small boxes around them (Mueller et al.
    2023)."""
    kappa: Share = 0.5
    """Weight of the loss on clean observations; the robust one has the rest."""
    whole_mistake: Positive = 0.5
    """How far behind the best another action must be, in the teacher's usual lead, to count as a whole mistake; below
    that it counts in proportion. Larger: costly mistakes count for more than cheap ones, and `held` looks at those
    alone."""
    paced_by: Literal["held", "gain"] = "held"
    """What `curriculum.certified_threshold` is compared with. `held`: share of states without a mistake within the
    budget; `gain`: share of what the teacher gains over one action for all states, for games in which one action is
    nearly always right."""
    stakes: Magnitude = 0.0
    """States count by what the worst action costs there, as the teacher sees it, to this power, in loss and `held`. 0:
    all alike."""
    attack_steps: Count = 5
    """Steps of PGD, where an attack is needed: in play, and for `box` below 1."""
    in_play: Share = 0.25
    """Share of the copies that act on what that attack shows."""
    spread: Share = 0.0
    """Attacks have budgets spread evenly from this share below the current one up to it: an agent that holds against
    attacks of one size may fall to smaller ones. 0: all have the current one. Bounds alone (`box` 1) always do, since
    they cover all smaller ones."""
    exploration: Share = 0.02
    """Share of random actions begun in play."""
    exploration_repeat: Count = 8
    """Random actions are held for 1 to this many steps, n or more with probability 1/n."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of forward and backward passes; `auto`: bf16 for images on a whole GPU or a CPU with bf16 units, else fp32.
    First and last layers stay fp32."""
    accelerate: Literal["auto", "none", "graphs", "full"] = "auto"
    """On a GPU: `graphs` makes every step one CUDA graph, `full` also compiles the networks (not IMPALA in bf16);
    `auto`: compiled where a C compiler is there and the run has a million steps or more, else graphs."""
    log_steps: Count = 3_200
    """Agent steps between rows of metrics, at each of which the budget may rise."""
    checkpoint_minutes: Positive = 10.0
    """Wall time between checkpoints of a run, unless they are counted in steps."""
    checkpoint_steps: Natural = 0
    """Agent steps between checkpoints; 0: by time. Resuming by steps is repeatable, by time it is not. The games start
    anew at each, so give more than an episode of every copy."""
    checkpoint_replay: bool = False
    """Keep the replay memory in checkpoints, for exact resuming; without it a resumed run first collects a new one."""


LearnerConfig = DqnConfig | PpoConfig | DistillConfig


@dataclass(frozen=True)
class AttackConfig:
    """The adversary during training."""

    kind: Literal[
        "ri-fgsm", "pgd", "fgsm", "apgd", "mad", "multi", "multi-t", "worst-action", "square", "noise", "corner-noise"
    ] = "ri-fgsm"
    """`ri-fgsm`: the paper's single step; `pgd`: several steps; the others as evaluations run them, which is costly."""
    steps: Count = 10
    """Iterations of `pgd`."""
    relative_step: Positive = 0.2
    """Step of `pgd` as a share of the budget."""
    random_start: bool = False
    """Whether `pgd` starts at a random point of the ball instead of the clean one."""
    large_steps: Share = 0.0
    """Share of the observations on which `pgd` starts at a random point and takes steps as large as the budget, which
    do not stay where small ones are misled; 0: all alike."""
    objective: Literal["paper", "value", "cross-entropy", "margin"] = "paper"
    """Of `ri-fgsm` and `pgd`: the expected value, or the best action; `paper`: `value`, for PPO's `pgd` the taken
    action."""
    fresh: bool = False
    """DQN: attack each replayed batch anew, instead of storing what was found as the paper does. PPO always attacks
    anew."""
    in_play: Share = 0.0
    """Share of the copies that act on what the adversary shows (DQN), so that the agent knows where it gets driven to;
    0: all act on clean observations, as in the paper."""
    spread: Share = 0.0
    """Attacked observations have budgets spread evenly from this share below the current one up to it; 0: all have the
    current one, as in the paper, which leaves agents that smaller budgets may break."""


@dataclass(frozen=True)
class CurriculumConfig:
    """How the budget rises from phase to phase (the paper's Algorithm 1 and 2)."""

    OLD_NAMES: ClassVar = {"toothless": "weak_attack_share"}  # of version 0.1

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
    """Read both thresholds as shares of the bootstrap's nominal return, counted from `floor`; paced: of what it gets in
    play while it explores."""
    floor: float = 0.0
    """Return from which shares and normalised values count: 0, which on Pong is a draw; presets of games with
    negative returns have others, such as Acrobot's lowest, -500."""
    expected_return: float | None = None
    """What a vanilla agent that has learned the game gets; a bootstrap far below it is refused if `adaptive`, since the
    thresholds would shrink with it; none: not known."""
    value: Literal["raw", "normalised", "nominal"] = "raw"
    """What the best run of a phase is chosen by: R_nominal + (R_adv at this budget + R_adv at the one before) / 2; the
    same with each return as a share of its threshold; or R_nominal alone."""
    judged_by: tuple[str, ...] = ("pgd-30",)
    """Attacks and suites by name, whose worst attack is behind R_adv inside the curriculum; `evaluation`:
    `evaluation.suite`; `learned`: that suite (the attack alone is `learned-60000`)."""
    judged_steps: Natural = 0
    """Atari: agent steps after which an episode that agents are chosen by is cut off, where that is less than
    `evaluation.max_steps`: everything waits for an agent that is stuck; 0: not cut off, as in the paper."""
    skip: Share = 0.0
    """Share of the budgets found robust that is skipped: 0 none (NCL, BCL-C), 1 all (MOS)."""
    robust_to: Literal["every", "any"] = "every"
    """Skip up to the smallest budget that is not robust (the paper's box), or past the largest robust one (its
    text)."""
    ratchet: bool = False
    """The agent a phase starts from competes with its runs, so that no phase makes it worse; not in the paper."""
    keep: Literal["last", "met", "best"] = "last"
    """Which agent comes out: the last phase's (Algorithm 1), the last that met its thresholds, or that with the highest
    R_nominal + mean R_adv at `evaluation.score_eps`."""
    failed_phases: Natural = 0
    """Stop after this many failing phases in a row (M); under the ratchet, without progress; 0: never."""
    weak_attack_share: Share = 0.0
    """Stop when the training attack leaves this share of the nominal return at the target; 0: never (PPO's rule)."""
    rise_steps: Natural = 0
    """Paced: agent steps in which the budget rises by `increment` while the thresholds are met in play; 0: as many as
    bring it to its target after three quarters of the training, if it never waits."""
    gentle_below: Eps = 0.0
    """Paced: above the start by less than this, the budget rises in proportion to that distance."""
    gentle_from: Share = 0.01
    """Paced: share of `gentle_below` at which the budget begins."""
    patience: Count = 150_000
    """Paced: agent steps for which a threshold may be missed before budget and weights step back."""
    step_back: Share = 0.25
    """Paced: share of the budget above the start that is given up then; the weights are those that last met the
    thresholds."""
    certified_threshold: Share = 0.0
    """Paced RADIAL and distillation: the budget waits while less than this share of the replayed states is held: those
    whose action the training's bounds prove, or of a student those whose action is its teacher's within the budget."""
    pace_episodes: Count = 24
    """Paced: episodes behind one check of the thresholds, of clean copies and of attacked ones; the first has at
    least as many as there are copies that are not attacked."""
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
        for name in ("nominal_threshold", "attacked_threshold") if self.adaptive else ():
            if not 0 <= (getattr(self, name) or 0.0) <= MOST_SHARE:
                what = f"curriculum.{name} {getattr(self, name):g} is no share of the start's return"
                raise ConfigError(what, "give a share such as 0.8, or --curriculum.adaptive false for returns")


@dataclass(frozen=True)
class EvaluationConfig:
    """How agents are evaluated."""

    episodes: Count = 20
    """Episodes per score."""
    max_steps: Count = 10_000
    """Atari: agent steps after which an evaluation episode stops and its return counts as it is; other games have
    limits of their own."""
    eps: tuple[Eps, ...] = (1 / 255, 3 / 255)
    """Budgets of the final evaluation."""
    score_eps: tuple[Eps, ...] = ()
    """Budgets of the final score R_nominal + mean R_adv, by which the paper takes the median of repeats; empty:
    `eps`."""
    suite: Literal["quick", "pgd-30", "paper", "strong", "learned"] = "quick"
    """Attacks of the final evaluation."""
    levels: Literal["train", "both"] = "train"
    """Procgen: `both` evaluates on unlimited levels too, and the final score is the sum of the two, as in the paper."""

    starts: Literal["game", "varied"] = "game"
    """How episodes begin: as the game has it (the paper; on Atari 1 to 30 no-ops), or with a few random actions more,
    so that no two are the same. Our own recipes choose agents by varied starts whatever is given here, unless the
    thresholds of phases are returns."""

    def __post_init__(self) -> None:
        if not {*self.score_eps} <= {*self.eps}:
            missing = ", ".join(format_eps(eps) for eps in self.score_eps if eps not in self.eps)
            raise ConfigError(
                f"evaluation.score_eps has {missing}, which evaluation.eps has not",
                "add it there, or leave it out here",
            )

    @property
    def scored(self) -> tuple[float, ...]:
        return self.score_eps or self.eps


@dataclass(frozen=True)
class Config:
    """A whole run."""

    OLD_NAMES: ClassVar = {"budget": "size"}  # of version 0.1

    game: Game
    recipe: str = "vanilla"
    """What to train: a row of the paper's tables (`bcl presets` lists them)."""
    algo: Literal["dqn", "ppo"] = "dqn"
    """The learner."""
    bootstrap: Literal["auto", "vanilla", "radial"] = "auto"
    """What the BCL-AT recipes start from; `auto` is the paper's: radial for DQN, vanilla for PPO."""
    tempo: Literal["auto", "fast", "paper"] = "auto"
    """Of Atari and Procgen games: `paper` has the paper's numbers, `fast` ours: shorter runs, a falling step size,
    n-step returns, larger batches (not RADIAL-DQN). `auto`: the paper's but for vanilla DQN on its four games; our own
    recipes but `bcl-ratchet-at` are fast already."""
    seed: Natural = 0
    """Root of every random draw of the run."""
    size: Literal["full", "small"] = "full"
    """`small`: a quick look with few steps, runs, phases and episodes, in which no start is refused as too weak; its
    result says nothing about the method."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    dqn: DqnConfig = field(default_factory=DqnConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    attack: AttackConfig = field(default_factory=AttackConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        if self.evaluation.levels == "both" and not isinstance(self.game, ProcgenGame):
            raise ConfigError(f"'{self.game.id}' has no sets of levels", "evaluation.levels is for Procgen games")

    def learner(self, loss: recipes.Loss) -> LearnerConfig:
        if loss == "distill":
            return self.distill
        return self.ppo if self.algo == "ppo" else self.dqn

    def in_play(self, loss: recipes.Loss) -> float:
        """Share of the copies that act on what the adversary shows."""
        if loss == "distill":
            return self.distill.in_play
        if self.algo == "ppo":
            return self.ppo.in_play if loss == "at" else 0.0
        return self.attack.in_play if loss != "standard" else 0.0

    @property
    def may_be_mlp(self) -> bool:
        """Whether its network may have hidden layers to choose."""
        kind = self.network.kind
        return isinstance(self.game, GymnasiumGame) if kind == "auto" else kind.endswith("mlp")


Stages = Sequence[tuple[recipes.Stage, Config]]
"""Every stage of a recipe with its settings."""


@functools.cache
def _presets() -> dict[str, dict[str, Any]]:
    files = sorted((resources.files("bcl") / "presets").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): tomllib.loads(file.read_text()) for file in files}


def preset_names() -> tuple[str, ...]:
    return tuple(_presets())


def preset_for(game: Game) -> str | None:
    """The preset of the game that an agent plays, whatever the choices of its pipeline; none: it has none."""
    for name, preset in _presets().items():
        if (preset["game"]["engine"], preset["game"]["id"]) == (game.engine, game.id):
            return name
    return None


def evaluation_defaults(game: Game) -> EvaluationConfig:
    """How the preset of this game evaluates agents; the general defaults where there is none."""
    name = preset_for(game)
    return resolve(name).evaluation if name else EvaluationConfig()


def resolve(
    game: str, *, recipe: str | None = None, file: Path | None = None, settings: Mapping[str, Any] | None = None
) -> Config:
    """The complete configuration of a recipe's last stage on a game."""
    return resolve_stages(game, recipe=recipe, file=file, settings=settings)[-1][1]


def resolve_stages(
    game: str,
    *,
    recipe: str | None = None,
    file: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    known: Game | None = None,
) -> Stages:
    """Every stage of a recipe on a game with its complete configuration; `agent`: what the one to start from decides,
    where there is one; `known`: the game, where its name may be unknown to this process."""
    game = preset_for(GymnasiumGame(game)) or game  # by its id the same settings
    preset = merge(_preset(game, known), agent or {})
    written = _written(file) if file else {}
    settings = current_names(Config, plain(settings or {}))
    top = merge(merge(preset, written), settings)
    _refuse_other_game(game, preset["game"], top["game"])
    algo = str(top.get("algo", "dqn"))
    name = recipe or str(top.get("recipe", "vanilla"))
    recipe_file = Path(name) if name.endswith(".toml") else None
    name = recipes.take_recipe(recipe_file) if recipe_file else name
    if recipe and written.get("recipe", name) not in (recipe, name):  # a run's own file has all settings of its recipe
        what = f"'{file}' is of recipe '{written['recipe']}'"
        raise ConfigError(what, "leave --recipe out, or write a file with the settings you want")
    tempo = str(top.get("tempo", "auto"))
    if tempo != "auto" and preset["game"]["engine"] == "gymnasium":
        raise ConfigError(f"'{game}' has no other tempo", "leave out --tempo, which is for Atari and Procgen games")
    choices = recipes.stages_of(name, algo, game, str(top.get("bootstrap", "auto")), tempo)
    *earlier, (last_stage, last_rows) = choices
    built = functools.partial(_built, preset, name, algo, top.get("size") == "small")

    def config(stage: recipes.Stage, rows: list[recipes.Settings], *own: Mapping[str, Any]) -> Config:
        without_file, without_rows = (lambda: built(stage, rows, *own[1:])), (lambda: built(stage, [], *own))
        with _naming(file if own else None, without_file), _naming(recipe_file, without_rows):
            return built(stage, rows, *own)

    by_init = "algo" in (agent or {}) and "algo" not in written | settings
    learner = _Learner(algo, by_init)
    learner.refuse_other(settings)
    last = config(last_stage, last_rows, written, settings)
    # A printed configuration holds all of the last stage: only what was changed in it is meant for the others too.
    changes = _only(difference(config(last_stage, last_rows), last), written)
    before = [(s, config(s, rows, _earlier(s, changes), _earlier(s, settings))) for s, rows in earlier]
    stages = [*before, (last_stage, last)]
    if recipe_file:
        for stage, of_stage in stages[-len(recipes.find_recipe(name).stages) :]:
            with _naming(recipe_file):
                learner.refuse_unused(stage.games["*"], [(stage, of_stage)], f"a stage of loss {stage.loss}")
    trained = stages if not agent else stages[-max(len(recipes.find_recipe(name).stages), 1) :]
    learner.refuse_unused(settings, trained, f"recipe '{name}'", typed=True)
    layers = (preset, *last_rows, written, settings)
    targeted = any("target" in layer.get("curriculum", {}) for layer in layers)
    if last_stage.strategy in ("next", "skip", "paced") and not targeted:
        such = "0.05" if preset["game"]["engine"] == "gymnasium" else "10/255"
        raise ConfigError(f"'{game}' has no target for a curriculum", f"give one such as --curriculum.target {such}")
    # From where the stage before ended.
    goes_on = len(trained) > 1 and trained[-2][0].strategy in ("open", "paced") and not last_stage.same_teacher
    _check_last(learner, last_stage, last, goes_on)
    if not written.keys() >= WRITTEN_BY_A_RUN:
        with _naming(file):
            learner.refuse_unused(changes, stages, f"recipe '{name}'")
    return stages


def _written(file: Path) -> dict[str, Any]:
    """The settings in a user's file."""
    written = current_names(Config, read_toml(file))
    if "stages" in written:
        raise ConfigError(f"'{file}' is a recipe, not a file of settings", f"give it as --recipe {file}")
    return written


def _built(
    preset: Mapping[str, Any],
    name: str,
    algo: str,
    quick: bool,
    stage: recipes.Stage,
    rows: Sequence[recipes.Settings],
    *own: Mapping[str, Any],
) -> Config:
    """A stage of the recipe `name`: its own settings, the preset, the recipe's rows for the game, then those of a
    user."""
    merged: Mapping[str, Any] = functools.reduce(merge, (stage.settings, preset, *rows))
    if quick:
        short = small(config_from_dict(merged), paced=stage.strategy == "paced")
        merged = asdict(short) | {"game": game_to_dict(short.game)}
    if algo == "ppo":  # settings of DQN's attack, which the rows of a game may have
        merged = merge(merged, {"attack": NOT_PPO})
    return config_from_dict(functools.reduce(override, (*own, {"recipe": name}), merged))


@contextlib.contextmanager
def _naming(file: Path | None, without: Callable[[], object] = lambda: None) -> Iterator[None]:
    """An error inside names a file of the user's, if `without` its settings there is none."""
    try:
        yield
    except ConfigError as error:
        if not file:
            raise
        try:
            without()
        except ConfigError:
            raise error from None
        raise ConfigError(f"{error.message} (in '{file}')", error.hint) from None


def override(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A user's settings over others. If they change `evaluation.eps` alone, `score_eps` keeps those of its budgets that
    are still evaluated; if that leaves none, the score is over all of `eps`."""
    merged = merge(settings, own)
    given = own.get("evaluation")
    evaluation = merged.get("evaluation")
    eps_alone = isinstance(given, Mapping) and "eps" in given and "score_eps" not in given
    if eps_alone and isinstance(evaluation, dict) and evaluation.get("score_eps"):
        evaluated = build(EvaluationConfig, {"eps": evaluation["eps"]}, "evaluation").eps
        scored = build(EvaluationConfig, {"eps": evaluation["score_eps"]}, "evaluation").eps
        evaluation["score_eps"] = [eps for eps in scored if eps in evaluated]
    return merged


def small(config: Config, *, paced: bool = False) -> Config:
    """The same for a quick look: at most 10,000 steps a run (PPO 40,000), 2 runs a phase, 8 in all, 3 short episodes a
    score under the suite `quick`. A paced budget first waits for as many episodes as there are copies that are not
    attacked: there are few copies then, and short episodes."""
    copies = 4 if paced else 16
    game = config.game
    if paced and isinstance(game, AtariGame):  # other games have limits of their own
        game = _at_most(game, max_steps=1_000)
    d = config.dqn
    c = config.curriculum
    share = min(1.0, 10_000 / d.steps)
    steps = {name: min(math.ceil(getattr(d, name) * share), 10_000) for name in SCALED_STEPS}
    return replace(
        config,
        size="small",
        game=game,
        dqn=_at_most(d, **steps, num_envs=copies, log_steps=1_000),
        ppo=_at_most(config.ppo, steps=40_000, num_envs=64 if paced else config.ppo.num_envs),
        distill=_at_most(
            config.distill, steps=10_000, num_envs=copies, batch_size=128, samples_per_step=4.0, buffer_size=10_000
        ),
        curriculum=replace(
            _at_most(c, runs=2, min_runs=2, pace_episodes=copies // 2),
            increment=max(c.increment, (c.target - c.start) / 4),
            max_runs=min(c.max_runs or 8, 8),
            expected_return=None,  # nothing is learned in so few steps
        ),
        evaluation=replace(_at_most(config.evaluation, episodes=3, max_steps=1_000), suite="quick", levels="train"),
    )


def _at_most(section: Any, **limits: float) -> Any:
    return replace(section, **{name: min(getattr(section, name), limit) for name, limit in limits.items()})


def _only(names: list[str], data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of nested `data` with those dotted names."""
    sections = {k: v for k, v in data.items() if isinstance(v, Mapping)}
    inside = {s: {k: v for k, v in table.items() if f"{s}.{k}" in names} for s, table in sections.items()}
    return {k: v for k, v in data.items() if k in names} | inside


def _earlier(stage: recipes.Stage, own: Mapping[str, Any]) -> dict[str, Any]:
    """A user's settings as they apply before the last stage: start and target are the last curriculum's."""
    table = {k: v for k, v in own.get("curriculum", {}).items() if k not in ("start", "target")}
    return {**own, "curriculum": {} if stage.strategy == "none" else table}


@dataclass(frozen=True)
class _Learner:
    """What it and the recipe have no use for is refused where a user sets it: it would change nothing."""

    algo: str
    by_init: bool
    """The agent to start from decides it."""

    def way_to(self, other: str) -> str:
        """What to do for another learner."""
        return f"give --init an agent of {other}" if self.by_init else f"train with --algo {other}"

    def refuse_other(self, own: Mapping[str, Any]) -> None:
        """Settings of the learner that is not in use."""
        algo = self.algo
        other, unused, used = ("dqn", DqnConfig, PpoConfig) if algo == "ppo" else ("ppo", PpoConfig, DqnConfig)
        for name in _names(other, unused, own):
            instead = f"set {algo}.{name}" if name in used.__dataclass_fields__ else "leave it out"
            hint = f"{instead}, or {self.way_to(other)}"
            raise ConfigError(f"{other}.{name} changes nothing, the learner is {algo}", hint)

    def refuse_unused(self, own: Mapping[str, Any], stages: Stages, called: str, *, typed: bool = False) -> None:
        """That, and settings that none of these stages uses. `typed`: one by one; a file of settings has all of them,
        and only whole sections without a use are refused."""
        self.refuse_other(own)
        for use in _USES:
            section, _, listed = use.names.partition(".")
            for name in _names(section, Config.__annotations__[section], own):
                counts = typed and name in listed.split() if listed else True
                if counts and not any(use.by(*stage) for stage in stages):
                    hint = ", or ".join(filter(None, ("leave it out", use.instead)))
                    raise ConfigError(f"{section}.{name} changes nothing, {use.otherwise.format(called)}", hint)


class _Use(NamedTuple):
    """Settings that only some stages use."""

    names: str
    """As people write them, `section.name name ...`; the section alone: all of it."""
    by: Callable[[recipes.Stage, Config], bool]
    """Whether a stage with this configuration uses them; in doubt it does."""
    otherwise: str
    """Why they change nothing where none does; `{}` is the recipe."""
    instead: str = ""
    """What would use them."""


def _another(recipe: str) -> str:
    return f"take another recipe, such as --recipe {recipe}"


def _made_robust(stage: recipes.Stage, config: Config) -> bool:
    """By a loss that weighs clean against attacked or bounded observations."""
    return stage.loss in ("radial", "at", "sa")


def _in_phases(stage: recipes.Stage, config: Config) -> bool:
    return stage.strategy in ("next", "skip", "open")


def _paced(stage: recipes.Stage, config: Config) -> bool:
    return stage.strategy == "paced"


def _may_attack(stage: recipes.Stage, config: Config) -> bool:
    judged = _in_phases(stage, config)  # by the training's attack too
    return stage.loss == "at" or judged or (config.algo == "dqn" and stage.loss in ("radial", "sa"))  # in play


def _attacks(stage: recipes.Stage, config: Config) -> bool:
    judged = _in_phases(stage, config) and config.curriculum.weak_attack_share > 0
    in_play = stage.loss != "distill" and config.in_play(stage.loss) > 0
    return stage.loss == "at" or judged or in_play


_USES = (
    _Use("attack", _may_attack, "{} trains without an attack", _another("at")),
    _Use("curriculum", lambda s, c: s.loss != "standard", "{} has no budget", _another("at")),
    _Use("distill", lambda s, c: s.loss == "distill", "{} does not distill", _another("distilled")),
    _Use("dqn", lambda s, c: s.loss != "distill", "{} only distills an agent that is given"),
    _Use("ppo", lambda s, c: s.loss != "distill", "{} only distills an agent that is given"),
    # From here on one by one.
    _Use(
        "attack.kind steps relative_step random_start large_steps objective spread",
        _attacks,
        "{} trains without an attack",
        _another("at"),
    ),
    _Use("attack.fresh", lambda s, c: s.loss == "at", "{} trains without an attack", _another("at")),
    _Use(
        "attack.steps relative_step random_start large_steps",
        lambda s, c: _attacks(s, c) and c.attack.kind == "pgd",
        "the attack is not pgd",
        "give --attack.kind pgd",
    ),
    _Use(
        "attack.objective",
        lambda s, c: _attacks(s, c) and c.attack.kind in ("ri-fgsm", "pgd"),
        "the attack has one of its own",
        "give --attack.kind pgd",
    ),
    _Use(
        "curriculum.increment nominal_threshold attacked_threshold adaptive floor expected_return judged_by "
        "judged_steps",
        lambda s, c: s.strategy != "none",
        "{} is no curriculum",
        _another("bcl-mos-at"),
    ),
    _Use(
        "curriculum.runs min_runs value skip robust_to ratchet keep failed_phases weak_attack_share max_runs max_hours",
        _in_phases,
        "{} has no phases",
        _another("bcl-mos-at"),
    ),
    _Use(
        "curriculum.robust_to",
        lambda s, c: _in_phases(s, c) and c.curriculum.skip > 0,
        "no budget is skipped",
        "give --curriculum.skip above 0",
    ),
    _Use(
        "curriculum.expected_return",
        lambda s, c: s.strategy != "none" and c.curriculum.adaptive,
        "thresholds are not adaptive",
        "give --curriculum.adaptive true",
    ),
    _Use(
        "curriculum.judged_steps",
        lambda s, c: s.strategy != "none" and isinstance(c.game, AtariGame),
        "only episodes of Atari games are cut off",
    ),
    _Use(
        "curriculum.rise_steps gentle_below gentle_from patience step_back certified_threshold pace_episodes",
        _paced,
        "{} has no paced budget",
        _another("paced-at"),
    ),
    _Use(
        "curriculum.certified_threshold",
        lambda s, c: _paced(s, c) and s.loss in ("radial", "distill"),
        "{} trains without bounds",
        _another("paced-radial"),
    ),
    _Use(
        "curriculum.attacked_threshold",
        lambda s, c: _in_phases(s, c) or (_paced(s, c) and c.in_play(s.loss) > 0),
        "no copy plays under attack",
        _another("paced-at"),
    ),
    # Not where a ramp begins and ends: people set these with the length of a run, whatever the recipe.
    _Use("dqn.kappa kappa_linear ramp", _made_robust, "{} has no robust loss", _another("at")),
    _Use(
        "dqn.radial_approach",
        lambda s, c: s.loss == "radial" or (s.loss == "at" and c.dqn.bound_share > 0),
        "{} has no loss of RADIAL's",
        _another("radial"),
    ),
    _Use("dqn.bound_share bound_eps", lambda s, c: s.loss == "at", "{} is no adversarial training", _another("at")),
    _Use(
        "dqn.bound_eps",
        lambda s, c: s.loss == "at" and c.dqn.bound_share > 0,
        "dqn.bound_share is 0",
        "give --dqn.bound_share above 0",
    ),
    _Use("dqn.ramp", lambda s, c: _made_robust(s, c) and not _paced(s, c), "{} paces its budget", _another("at")),
    _Use(
        "dqn.exploration_start exploration_hold exploration_steps",
        lambda s, c: not _paced(s, c),
        "{} explores by dqn.exploration_end from its first step on",
        "give --dqn.exploration_end",
    ),
    _Use(
        "dqn.exploration_hold exploration_steps exploration_repeat",
        lambda s, c: max(c.dqn.exploration_start, c.dqn.exploration_end) > 0,
        "dqn.exploration_start and dqn.exploration_end are 0",
        "give --dqn.exploration_start above 0",
    ),
    _Use("ppo.kappa ramp", _made_robust, "{} has no robust loss", _another("at")),
    _Use("ppo.ramp", lambda s, c: _made_robust(s, c) and not _paced(s, c), "{} paces its budget", _another("at")),
    _Use("ppo.in_play", lambda s, c: s.loss == "at", "{} is no adversarial training", _another("at")),
    _Use(
        "ppo.exploration_start exploration_steps exploration_repeat",
        lambda s, c: not _paced(s, c),
        "{} draws all of its actions",
        _another("at"),
    ),
    _Use(
        "ppo.exploration_steps exploration_repeat",
        lambda s, c: c.ppo.exploration_start > 0,
        "ppo.exploration_start is 0",
        "give --ppo.exploration_start above 0",
    ),
    _Use(
        "ppo.return_gamma keep_return_statistics",
        lambda s, c: c.ppo.normalise_returns,
        "ppo.normalise_returns is false",
        "give --ppo.normalise_returns true",
    ),
    _Use(
        "distill.attack_steps spread",
        lambda s, c: s.loss == "distill" and (c.distill.box < 1 or c.distill.in_play > 0),
        "bounds alone need no attack",
        "give --distill.in_play above 0",
    ),
    _Use(
        "distill.exploration_repeat",
        lambda s, c: s.loss == "distill" and c.distill.exploration > 0,
        "distill.exploration is 0",
        "give --distill.exploration above 0",
    ),
    *(
        _Use(
            f"{section}.checkpoint_minutes",
            lambda s, c: not c.learner(s.loss).checkpoint_steps,
            "checkpoints are counted in steps",
            f"give --{section}.checkpoint_steps 0",
        )
        for section in ("dqn", "ppo", "distill")
    ),
    _Use(
        "evaluation.max_steps", lambda s, c: isinstance(c.game, AtariGame), "only episodes of Atari games are cut off"
    ),
    # Not its budgets, which 'bcl attack' and 'bcl compare' take from any run.
    _Use("evaluation.suite", lambda s, c: s.loss != "standard", "the verdict on {} plays no attack", _another("at")),
    _Use("network.hidden", lambda s, c: c.may_be_mlp, "its network is convolutional and has sizes of its own"),
)


def _names(section: str, kind: Any, own: Mapping[str, Any]) -> list[str]:
    """The settings of a section that a user gave; names that it does not have are refused for that."""
    table = own.get(section)
    return [name for name in table if name in kind.__dataclass_fields__] if isinstance(table, Mapping) else []


def _refuse_other_game(name: str, known: Mapping[str, Any], given: Any) -> None:
    for key in ("engine", "id"):
        if isinstance(given, Mapping) and given.get(key) != known[key]:
            what = f"game.{key} = {given.get(key)!r} is not that of '{name}'"
            raise ConfigError(what, "name the game you mean on the command line, so that its preset is taken")


def _check_last(learner: _Learner, stage: recipes.Stage, config: Config, goes_on: bool) -> None:
    start = config.curriculum.start
    target = config.curriculum.target
    has_target = stage.loss != "standard" and stage.strategy != "open"
    if start >= target and has_target and not goes_on:
        what = f"curriculum.start {format_eps(start)} is not below curriculum.target {format_eps(target)}"
        raise ConfigError(what, "give a start below the target")
    for key, off in NOT_PPO.items():
        if config.algo == "ppo" and getattr(config.attack, key) != off:
            own = " (it has ppo.in_play)" if key == "in_play" else ""
            hint = f"leave it out{own}, or {learner.way_to('dqn')}"
            raise ConfigError(f"PPO has no attack.{key}", hint)


def _preset(game: str, known: Game | None = None) -> dict[str, Any]:
    if game in _presets():
        return _presets()[game]
    found = known or find_game(game, preset_names())
    algo = "ppo" if found.engine == "procgen" else "dqn"
    return {"algo": algo, "game": {"engine": found.engine, "id": found.id}}


def config_from_dict(data: Mapping[str, Any]) -> Config:
    """A checked configuration from nested plain data."""
    return build(Config, current_names(Config, data), "")


def config_from_toml(text: str) -> Config:
    """A configuration as `to_toml` wrote it."""
    return config_from_dict(tomllib.loads(text))
