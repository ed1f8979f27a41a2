"""What all learners share: a run's task, device, optimizer, random draws, checkpoints and reports."""

import copy
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Generator, Tensor, nn

from bcl import small_convs
from bcl.attacks import PGD, RIFGSM, Attack, CrossEntropy, Margin, MixedPGD, Objective, attack_by_name, perturb
from bcl.config import AttackConfig, LearnerConfig
from bcl.device import Graphed, acceleration, keep_freed_memory, uses_bf16
from bcl.envs import VectorEnv
from bcl.errors import TrainingError
from bcl.learners.metrics import Meter, Metrics
from bcl.learners.pacing import Pace, Pacer
from bcl.policies import Policy
from bcl.recipes import Loss

T = TypeVar("T")
State = dict[str, Any]
EXPLODED = 1e6  # a loss, score or weight beyond this is no learning
GOLDEN_RATIO = 0.6180339887498949  # its multiples fill [0, 1) evenly, however many are taken
NEAR = 5.0  # seconds for which a run that has to stop goes on to its next checkpoint


@dataclass(frozen=True)
class Task:
    """What one training run is asked for."""

    loss: Loss
    start: float  # budget at the beginning of its ramp, in observation units
    end: float  # budget at the end of its ramp
    seed: int
    pace: Pace | None = None  # the budget follows the play instead of a ramp


class Record:
    """Stop, progress, log and checkpoints of a run; this one keeps nothing and never stops it."""

    keeps_checkpoints = False

    def log(self, row: Metrics) -> None:
        """A row of metrics."""

    def save(self, state: State) -> None:
        """A checkpoint, in place of the one before."""

    def held(self, increments: int) -> None:
        """A paced budget was held, by increments above its start."""

    def progress(self, done: int, of: int) -> None:
        """Steps, after every pass of the loop."""

    def stop(self) -> bool:
        """Asked after every pass of the loop; a run that has to stop raises KeyboardInterrupt, after a checkpoint if
        one can be had (see `Reporter`)."""
        return False


class Learner(ABC):
    """What changes during training, with CUDA graphs where `accelerate` allows."""

    section: ClassVar[str]  # of its settings, for messages
    draws: ClassVar[tuple[str, ...]]  # what is random in it; each has a generator
    held: str = "certified"  # column of the metrics that a paced budget may wait for

    def __init__(
        self, policy: Policy, env: VectorEnv, config: LearnerConfig, task: Task, driven: int, spread: float
    ) -> None:
        """`driven`: copies, the first ones, that act on what the adversary shows; `spread`: of its budgets."""
        keep_freed_memory()
        self.image = len(env.obs_shape) == 3
        if self.image:
            nn.utils.convert_conv2d_weight_memory_format(policy, torch.channels_last)  # fastest, on CPUs too
        self.policy = policy
        self.env = env
        self.task = task
        self.step = 0
        device = self.device = policy.device
        self.bf16 = uses_bf16(config.precision, device, self.image)
        accelerate = acceleration(config.accelerate, device, config.steps)
        self.graphed = accelerate != "none"
        self.compiles = accelerate == "full"
        if self.compiles:
            torch._dynamo.reset()  # a process may train many runs, and compiles a function only so many times
        self._has_kernels = (
            policy.spec.kind == "impala" and self.bf16 and small_convs.available(next(policy.parameters()))
        )
        self.meter = Meter(env.num_envs, device, driven)
        self._driven = driven
        self._spread = spread
        self._victim = self._compiled_network(self._twin())
        # Fixed places that graphs read; schedules write into them without the host waiting.
        self._rate = torch.zeros((), device=device)
        self._eps = torch.zeros((), device=device)
        self._obs = torch.zeros(
            env.num_envs, *env.obs_shape, dtype=torch.uint8 if self.image else torch.float32, device=device
        )
        self.optimizer = torch.optim.Adam(
            policy.parameters(), lr=self._rate, eps=config.adam_eps, fused=True, capturable=device.type == "cuda"
        )
        self.pacer = Pacer(task.pace, policy, self.optimizer) if task.pace else None
        self._went_back = False  # whether the last row made it go back to earlier weights
        self.generators = {name: Generator(device).manual_seed(derive(task.seed, name)) for name in self.draws}
        self._random = HeldActions(env.num_envs, env.num_actions, config.exploration_repeat, self.generators["act"])

    @abstractmethod
    def restart(self) -> Tensor:
        """Start every copy anew, at first and after checkpoints counted in steps; returns the first observations.

        Emulators cannot be saved: so that a resumed run equals an uninterrupted one, both start anew at the same step.
        """

    @abstractmethod
    def scheduled(self) -> Metrics:
        """What the row of metrics tells of budgets and rates."""

    def metrics(self) -> Metrics:
        """What happened since the last call. The one place where the host waits for the device."""
        self._refuse_divergence(self.meter.means())
        row = self.meter.row(self.step, self.scheduled())
        if self.pacer:
            self._went_back = self.pacer.observe(self.step, *self.meter.played, row.get(self.held) or 0.0)
            row |= self.pacer.facts()
        return row

    def state(self) -> State:
        self._refuse_divergence({})
        return {
            "step": self.step,
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
            "pacer": self.pacer.state() if self.pacer else None,
            "meter": self.meter.state(),
            "bf16": self.bf16,
        }

    def restore(self, state: State) -> None:
        self.step = state["step"]
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["lr"] = self._rate  # the fixed place again, not the copy that was saved
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name].cpu())
        if self.pacer:
            self.pacer.restore(state["pacer"])
        if "meter" in state:  # not in checkpoints of earlier versions
            self.meter.restore(state["meter"])
        self.meter.start_at(self.step)

    def _refuse_divergence(self, means: Mapping[str, float]) -> None:
        """Stop a run whose losses or weights explode."""
        largest = max(float(parameter.detach().abs().amax()) for parameter in self.policy.parameters())
        found = {**means, "largest weight": largest}
        if not all(abs(value) < EXPLODED for value in found.values()):  # NaN included
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
            what = f"training diverged before step {self.step} ({numbers})"
            raise TrainingError(what, f"start again with a lower {self.section}.learning_rate or another seed")

    def _graph(self, function: Callable[[], T], draws: str) -> Graphed[T]:
        return Graphed(function, self.generators[draws], enabled=self.graphed)

    def _compiled(self, part: Any) -> Any:
        return torch.compile(part, dynamic=False) if self.compiles else part

    def _compiled_network(self, part: Any) -> Any:
        """A network, or a method of it, unless kernels of its own are faster than compiled ones."""
        return part if self._has_kernels else self._compiled(part)

    def _twin(self) -> Policy:
        """The policy for attacks: the same weights without gradients, which compiled code would compute."""
        twin = copy.deepcopy(self.policy).requires_grad_(False)
        for mine, original in zip(twin.parameters(), self.policy.parameters(), strict=True):
            mine.data = original.data
        return twin

    def _perturbed(self, attack: Attack, obs: Tensor, budgets: Tensor, draws: str = "attack") -> Tensor:
        """What the attack shows instead of float observations."""
        with self._autocast():
            return perturb(attack, self._victim, obs, budgets, self.generators[draws], check=False)

    def _budgets(self, count: int) -> Tensor:
        return spread_budgets(self._eps, count, self._spread)

    def _autocast(self) -> torch.autocast:
        # A new one each time: weights cast where gradients are off must not be reused where they are on.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def derive(seed: int, *path: object) -> int:
    """A seed below 2**30 for every path such as ("phase", 3, "run", 1): every random draw of a run has its own."""
    digest = hashlib.sha256(repr((seed, *path)).encode()).digest()
    return int.from_bytes(digest[:4]) >> 2


class HeldActions:
    """Which copies of a game play a random action, and which; in fixed places, so that graphs can hold it.

    They are held for a while: single ones undo each other where only a longer push leads anywhere.
    """

    def __init__(self, num_envs: int, num_actions: int, longest: int, generator: Generator) -> None:
        """`longest`: an action is held for 1 to so many steps, n or more with probability 1/n (Dabney et al. 2021)."""
        self.generator = generator
        self._num_actions = num_actions
        self._longest = longest
        self._held = torch.zeros(num_envs, dtype=torch.long, device=generator.device)
        self._left = torch.zeros_like(self._held)  # steps for which an action is held

    def restart(self) -> None:
        self._left.zero_()

    def instead_of(self, actions: Tensor, share: Tensor) -> Tensor:
        """(N,) `actions`, with random ones in their place on some copies; `share` of the others begin one."""
        shape = actions.shape
        device = actions.device
        draws = torch.rand(2, *shape, generator=self.generator, device=device)
        random = torch.randint(self._num_actions, shape, generator=self.generator, device=device)
        begins = (self._left == 0) & (draws[0] < share)
        length = (1 / (1 - draws[1])).clamp(max=self._longest).long()
        self._held.copy_(torch.where(begins, random, self._held))
        self._left.copy_(torch.where(begins, length, self._left))
        played = torch.where(self._left > 0, self._held, actions)
        self._left.sub_(1).clamp_(min=0)
        return played


def spread_budgets(eps: Tensor, count: int, spread: float) -> Tensor:
    """Budgets of so many observations: `eps` for all, or (count,) of them spread evenly over the `spread` below it.

    The first has `eps`; neighbours lie far apart, so that any stretch of them covers the whole range.
    """
    if not spread:
        return eps
    places = torch.arange(count, dtype=torch.float64, device=eps.device)
    return (eps * (1 - spread * (places * GOLDEN_RATIO).frac())).to(eps.dtype)


def training_attack(config: AttackConfig, value: Objective, paper: Objective | None = None) -> Attack:
    """The configured adversary; `value`: the learner's expected value; `paper`: the paper's PGD objective, if other."""
    objectives: dict[str, Objective] = {
        "paper": paper if paper and config.kind == "pgd" else value,
        "value": value,
        "cross-entropy": CrossEntropy(),
        "margin": Margin(),
    }
    objective = objectives[config.objective]
    if config.kind == "ri-fgsm":
        return RIFGSM(objective)
    if config.kind == "pgd" and config.large_steps:
        return MixedPGD(config.steps, config.relative_step, config.random_start, config.large_steps, objective)
    if config.kind == "pgd":
        return PGD(config.steps, config.relative_step, random_start=config.random_start, objective=objective)
    return attack_by_name(config.kind)


class Reporter:
    """Rows, progress and checkpoints of one run, as its settings ask for them.

    A checkpoint that is counted in steps starts the games anew, as resuming from it does, so that both end with the
    same weights. A run that has to stop adds none: it goes on to the next one if that is near. Where checkpoints go by
    time nothing is repeatable, and the games play on: else long episodes would never end.
    """

    def __init__(self, learner: Learner, config: LearnerConfig, record: Record, state: State | None) -> None:
        """`state`: a checkpoint of the same task, to continue from."""
        if state:
            learner.restore(state)
        self._learner = learner
        self._config = config
        self._record = record
        self._last = self._saved = self._began = learner.step
        self._saved_at = self._began_at = time.monotonic()

    def report(self, obs: Tensor) -> Tensor:
        """After each pass; `obs`, or the first of games that had to start anew."""
        learner = self._learner
        config = self._config
        record = self._record
        step = learner.step
        done = step >= config.steps
        if done or step // config.log_steps > self._last // config.log_steps:
            record.log(learner.metrics())
            if learner.pacer and (increments := learner.pacer.newly_held()):
                record.held(increments)
        self._last = step
        record.progress(step, config.steps)
        stop = not done and record.stop()
        if config.checkpoint_steps:
            due = step - self._saved >= config.checkpoint_steps
        else:
            due = stop or time.monotonic() - self._saved_at >= 60 * config.checkpoint_minutes
        save = due and not done and record.keeps_checkpoints
        if save:
            record.save(learner.state())
            self._saved = step
            self._saved_at = time.monotonic()
        if stop and (save or not self._near()):
            raise KeyboardInterrupt
        if done and learner.pacer:
            learner.pacer.refuse_no_learning(learner.section, config.steps)
        return learner.restart() if save and config.checkpoint_steps else obs

    def _near(self) -> bool:
        """Whether the next checkpoint, or the end, comes within seconds at the rate so far."""
        left = min(self._saved + self._config.checkpoint_steps, self._config.steps) - self._learner.step
        rate = (self._learner.step - self._began) / (time.monotonic() - self._began_at)
        return self._record.keeps_checkpoints and left <= NEAR * rate
