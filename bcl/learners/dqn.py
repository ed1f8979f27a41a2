"""Deep Q-learning on many copies of a game at once: vanilla, RADIAL, adversarial training and SA-DQN, one loop.

Double DQN with uniform replay and a target network, as in the paper's code; docs/dqn.md puts the algorithm beside this
file and numbers every difference from the paper and its code.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bcl import losses, schedules
from bcl.attacks import TargetValue, perturb
from bcl.bounds import input_box, margins, score_bounds
from bcl.config import AttackConfig, DqnConfig
from bcl.envs import VectorEnv
from bcl.errors import ConfigError
from bcl.graphs import Graphed
from bcl.learners.adversary import training_attack
from bcl.learners.memory import enough_memory, keep_freed_memory
from bcl.learners.pacer import Pacer
from bcl.learners.player import Player
from bcl.learners.precision import acceleration, quick_kernels, uses_bf16
from bcl.learners.replay import Batch, Replay
from bcl.learners.tally import Tally, refuse_divergence
from bcl.learners.task import Hooks, Metrics, Reporter, State, Task
from bcl.policies import Policy, as_float
from bcl.policies.networks import Dueling
from bcl.seeds import derive

REFERENCE_BATCH = 128  # the batch that `learning_rate` is meant for, where it is scaled


@enough_memory("dqn.buffer_size", "dqn.batch_size", "dqn.num_envs")
def train(
    policy: Policy,
    env: VectorEnv,
    config: DqnConfig,
    attack: AttackConfig,
    task: Task,
    hooks: Hooks,
    state: State | None = None,
) -> Policy:
    """Train `policy` in place on `env`; `state` continues a checkpoint of the same task."""
    keep_freed_memory()
    refuse_no_updates(config)
    learner = Learner(policy, env, config, attack, task)
    if state:
        learner.restore(state)
    reporter = Reporter(learner, config, hooks)
    obs = learner.restart()
    with quick_kernels(learner.bf16):
        while learner.step < config.steps:
            actions, seen = learner.play(obs)  # the emulators step from here on, while the learner works
            learner.update()
            obs = learner.store(obs, actions, seen)
            if reporter.report():
                obs = learner.restart()
    if learner.pacer:
        learner.pacer.refuse_no_learning("dqn", config.steps)
    return policy


def refuse_no_updates(config: DqnConfig) -> None:
    """A run that ends before its first gradient step would pass for a trained one."""
    num_envs = config.num_envs
    memory = max(config.buffer_size // num_envs, config.n_step) - config.n_step + 1  # vector steps that can be sampled
    needed = min(math.ceil(max(config.replay_initial, 1) / num_envs), memory) + config.n_step - 1
    first = needed + math.ceil(config.batch_size / (num_envs * config.samples_per_step))
    if math.ceil(config.steps / num_envs) < first:
        what = f"dqn.steps {config.steps:,} end before the first update, at {num_envs * first:,}"
        raise ConfigError(what, "more steps, or a lower dqn.replay_initial, dqn.batch_size or dqn.n_step")


def learning_rate(config: DqnConfig, step: int) -> float:
    """Adam's step size: scaled with the batch, falling linearly over the run."""
    batches = config.batch_size / REFERENCE_BATCH
    scale = {"none": 1.0, "sqrt": batches**0.5, "linear": batches}[config.learning_rate_scaling]
    left = 1 - (1 - config.learning_rate_end) * step / config.steps
    return config.learning_rate * scale * left


class Learner:
    """All that changes during training. Acting, attack and update are CUDA graphs where `accelerate` allows."""

    def __init__(self, policy: Policy, env: VectorEnv, config: DqnConfig, attack: AttackConfig, task: Task) -> None:
        image = len(env.obs_shape) == 3
        if image:
            nn.utils.convert_conv2d_weight_memory_format(policy, torch.channels_last)  # fastest, on CPUs too
        self.policy, self.target = policy, copy.deepcopy(policy).requires_grad_(False)
        self.env, self.config, self.adversary, self.task = env, config, attack, task
        self.step = 0
        device = self.device = next(policy.parameters()).device
        cuda = device.type == "cuda"
        self.bf16 = uses_bf16(config.precision, device, image)
        self._rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(
            policy.parameters(), lr=self._rate, eps=config.adam_eps, fused=True, capturable=cuda
        )
        self.pacer = Pacer(task.pace, policy, self.optimizer) if task.pace else None
        accelerate = acceleration(config.accelerate, device, config.steps)
        compiles = accelerate == "full"
        maybe_compiled: Any = partial(torch.compile, dynamic=False) if compiles else lambda part: part
        self._online, self._delayed, self._score_bounds = map(maybe_compiled, (policy, self.target, score_bounds))
        # Fixed places that graphs read; schedules write into them without the host waiting.
        dtype = torch.uint8 if image else torch.float32
        self._obs = torch.zeros(env.num_envs, *env.obs_shape, dtype=dtype, device=device)
        self._eps, self._kappa = torch.zeros((), device=device), torch.zeros((), device=device)
        graphed = accelerate != "none"
        self.generators = {
            name: Generator(device).manual_seed(derive(task.seed, name)) for name in ("act", "attack", "update")
        }
        self._show = Graphed(self._perturb_obs, self.generators["attack"], enabled=graphed)
        self._improve = Graphed(self._take_gradient_step, self.generators["update"], enabled=graphed)
        self._stores_attacks = task.loss == "at" and not attack.fresh
        driven = 0 if task.loss == "standard" else round(attack.in_play * env.num_envs)
        self._drives, self._driven = driven > 0, torch.arange(env.num_envs, device=device) < driven
        self.player = Player(
            policy, env, self.generators["act"],
            longest=config.exploration_repeat, graphed=graphed, bf16=self.bf16, attacked=self._drives,
        )  # fmt: skip
        self.replay = Replay(
            config.buffer_size, self._obs, n_step=config.n_step, gamma=config.gamma, perturbations=self._stores_attacks
        )
        self._owed = 0.0  # updates
        self.tally = Tally(env.num_envs, device, self._driven if self._drives else None)

    def restart(self) -> Tensor:
        """Start every copy anew, at the beginning and after each checkpoint, and return the first observations.

        Emulators cannot be saved: so that a resumed run equals an uninterrupted one, both start anew at the same step.
        """
        self.replay.cut()
        self.tally.restart()
        self.player.follow(self.policy)
        return self.player.reset(derive(self.task.seed, "episodes", self.step))

    def play(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Start the next step: (N,) actions, a share of them random, else greedy; and what the adversary shows, if asked.

        Actions are those for clean observations, except on copies with the adversary in play. These have to wait for it;
        else it is computed while the emulators step.
        """
        self.set_schedules()
        seen, shown = None, obs
        if self._drives:
            seen = self.attack(obs)
            shown = torch.where(self._driven.view(-1, *[1] * (obs.dim() - 1)), seen, as_float(obs))
        with self.tally.clock.host("act"):
            actions = self.player.play(shown, self.exploration)
        if not self._stores_attacks:
            return actions, None
        return actions, self.attack(obs) if seen is None else seen

    def set_schedules(self) -> None:
        """Budget and kappa of this step."""
        c, task = self.config, self.task
        begin = c.ramp_start or c.replay_initial
        ramp = schedules.budget(self.step, task.start, task.end, begin, c.ramp_steps, c.ramp)
        eps = self.pacer.eps if self.pacer else ramp
        kappa = schedules.kappa(self.step, c.kappa, c.kappa_linear, begin, c.ramp_steps)
        self._eps.fill_(eps)
        self._kappa.fill_(0.0 if task.loss == "sa" and eps == 0 else kappa)  # SA-DQN regularises from its ramp on

    def attack(self, obs: Tensor) -> Tensor:
        """What the adversary shows instead of `obs`."""
        self._obs.copy_(obs)
        with self.tally.clock.device("attack"):
            return self._show()

    def update(self) -> None:
        """The gradient steps that are due, and the target network."""
        c = self.config
        self.player.follow(self.policy)
        if len(self.replay) < min(max(c.replay_initial, 1), self.replay.capacity):
            return
        if self.pacer and not self.pacer.knows_start:
            return
        self._rate.fill_(learning_rate(c, self.step))
        self._owed += self.env.num_envs * c.samples_per_step / c.batch_size
        with self.tally.clock.device("update"):
            while self._owed >= 1:
                self._improve()
                self._owed -= 1
                self.tally.updates += 1
        if passed := (self.step + self.env.num_envs) // c.target_sync - self.step // c.target_sync:
            rate = 1 - (1 - c.target_rate) ** passed
            with torch.no_grad():
                for old, new in zip(self.target.parameters(), self.policy.parameters(), strict=True):
                    old.lerp_(new, rate)

    def store(self, obs: Tensor, actions: Tensor, seen: Tensor | None) -> Tensor:
        """Wait for the emulators, remember the step, and return the next observations."""
        with self.tally.clock.host("env"):
            step = self.player.wait()
        rewards = step.reward * self.config.reward_scale
        if limit := self.config.reward_clamp:
            rewards = rewards.clamp(-limit, limit)
        self.replay.add(obs, actions, rewards, step, seen, self._eps)
        self.tally.count(step)
        self.step += self.env.num_envs
        return step.obs

    @property
    def exploration(self) -> float:
        """Share of copies that begin a random action."""
        c = self.config
        return schedules.exploration(
            self.step, c.exploration_start, c.exploration_end, c.exploration_hold, c.exploration_steps
        )

    def metrics(self) -> Metrics:
        """What happened since the last call. The one place where the host waits for the device."""
        refuse_divergence(self.policy, self.step, "dqn", self.tally.means())
        eps = 0.0 if self.task.loss == "standard" else self._eps.item()
        row = self.tally.row(self.step, {"eps": eps, "kappa": self._kappa.item(), "exploration": self.exploration})
        if self.pacer and self.pacer.observe(self.step, *self.tally.played, row.get("certified") or 0.0):
            self.target.load_state_dict(self.policy.state_dict())
        return row

    def state(self) -> State:
        """All that a checkpoint needs; with the replay memory in it, resuming is exact."""
        refuse_divergence(self.policy, self.step, "dqn", {})
        return {
            "step": self.step,
            "owed": self._owed,
            "policy": self.policy.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
            "replay": self.replay.state() if self.config.checkpoint_replay else None,
            "pacer": self.pacer.state() if self.pacer else None,
        }

    def restore(self, state: State) -> None:
        """Continue from `state`; without a replay memory in it, one is collected before the next update."""
        self.step, self._owed = state["step"], state["owed"]
        self.policy.load_state_dict(state["policy"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["lr"] = self._rate  # the fixed place again, not the copy that was saved
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name].cpu())
        if state["replay"] is not None:
            self.replay.restore(state["replay"])
        if self.pacer:
            self.pacer.restore(state["pacer"])
        self.tally.start_at(self.step)

    def _perturb_obs(self) -> Tensor:
        return self._perturbed(as_float(self._obs), self.generators["attack"])

    def _perturbed(self, obs: Tensor, generator: Generator) -> Tensor:
        attack = training_attack(self.adversary, TargetValue(self._scores(self.target, obs)))
        with self._autocast():
            return perturb(attack, self.policy, obs, self._eps, generator, check=False)

    def _take_gradient_step(self) -> None:
        batch = self.replay.sample(self.config.batch_size, self.generators["update"])
        online, target = (self._scores(network, batch.next_obs) for network in (self._online, self._delayed))
        goal = losses.double_q_target(online, target, batch.rewards, batch.discounts)
        loss, info = self._loss(batch, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.tally.add(info)

    def _loss(self, batch: Batch, goal: Tensor) -> tuple[Tensor, losses.Info]:
        kind, kappa = self.config.td_loss, self._kappa
        if self.task.loss == "at":
            seen = self._perturbed(batch.obs, self.generators["update"]) if self.adversary.fresh else batch.seen
            with self._autocast():
                q, q_seen = self._online(torch.cat([batch.obs, seen])).chunk(2)
            return losses.adversarial(q, q_seen, batch.actions, goal, batch.weights, kappa, kind)
        with self._autocast():
            q = self._online(batch.obs)
        if self.task.loss == "standard":
            return losses.standard(q, batch.actions, goal, batch.weights, kind)
        box = input_box(batch.obs, self._eps, self.policy.low, self.policy.high)
        if self.task.loss == "sa":
            margin = self._mixed_margins(*box, q.argmax(dim=1))
            return losses.sa(q, batch.actions, goal, margin, batch.weights, kappa, kind)
        with self._autocast():
            bounds = self._q_bounds(*box, q.detach())
        approach = losses.radial_2 if self.config.radial_approach == "2" else losses.radial_1
        return approach(q, batch.actions, goal, *bounds, batch.weights, kappa, kind)

    def _q_bounds(self, lower: Tensor, upper: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Interval bounds (B, A) whose differences between actions bound those of Q; see docs/dqn.md for approach 1."""
        network, approach = self.policy.network, self.config.radial_approach
        if not isinstance(network, Dueling):
            return self._score_bounds(self.policy.chain(), lower, upper, "ibp")
        low, high = self._score_bounds(self.policy.chain(), lower, upper, "ibp", centred=True)
        if approach == "2":
            return low, high  # the value stream cancels
        if approach == "1-reference":
            value = q.mean(dim=1, keepdim=True)  # centred advantages have mean 0; how the value may move is left out
            return low + value, high + value
        value_low, value_high = self._score_bounds(network.value_chain(), lower, upper, "ibp")
        return low + value_low, high + value_high

    def _mixed_margins(self, lower: Tensor, upper: Tensor, best: Tensor) -> Tensor:
        """SA-DQN's: CROWN-IBP at the first budget, intervals at the last, linear in between."""
        chain = self.policy.chain()
        span = max(self.task.end - self.task.start, 1e-12)
        share = ((self.task.end - self._eps) / span).clamp(0, 1)
        tight, loose = (margins(chain, lower, upper, best, method) for method in ("crown-ibp", "ibp"))
        return share * tight + (1 - share) * loose

    def _scores(self, network: Callable[[Tensor], Tensor], obs: Tensor) -> Tensor:
        with torch.no_grad(), self._autocast():
            return network(obs)

    def _autocast(self) -> torch.autocast:
        # A new one each time: weights cast where gradients are off must not be reused where they are on.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
