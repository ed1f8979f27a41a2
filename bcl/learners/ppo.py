"""Proximal policy optimisation on many copies of a game at once: vanilla, RADIAL and adversarial training, one loop.

Clipped surrogate, generalised advantages and scaled rewards as in the paper's code; docs/ppo.md puts the algorithm beside
this file and numbers every difference from the paper and its code.
"""

import copy
import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bcl import losses, schedules
from bcl.attacks import AwayFromActions, OwnValue, perturb
from bcl.bounds import input_box, score_bounds
from bcl.config import AttackConfig, PpoConfig
from bcl.envs import Step, VectorEnv
from bcl.errors import ConfigError
from bcl.graphs import Graphed
from bcl.learners.adversary import training_attack
from bcl.learners.memory import enough_memory, keep_freed_memory
from bcl.learners.pacer import Pacer
from bcl.learners.precision import acceleration, quick_kernels, uses_bf16
from bcl.learners.returns import ReturnScale
from bcl.learners.tally import Tally, refuse_divergence
from bcl.learners.task import Hooks, Metrics, Reporter, State, Task
from bcl.policies import Policy, as_float
from bcl.policies.networks import ActorCritic
from bcl.seeds import derive

NOTE = "ppo returns"  # under which a policy carries the statistics of its returns


@enough_memory("ppo.rollout", "ppo.batch_size", "ppo.num_envs")
def train(
    policy: Policy,
    env: VectorEnv,
    config: PpoConfig,
    attack: AttackConfig,
    task: Task,
    hooks: Hooks,
    state: State | None = None,
) -> Policy:
    """Train `policy` in place on `env`; `state` continues a checkpoint of the same task."""
    keep_freed_memory()
    learner = Learner(policy, env, config, attack, task)
    if state:
        learner.restore(state)
    reporter = Reporter(learner, config, hooks)
    obs = learner.restart()
    with quick_kernels(learner.bf16):
        while learner.step < config.steps:
            rollout, obs = learner.rollout(obs)
            if not learner.pacer or learner.pacer.knows_start:
                learner.update(rollout)
            if reporter.report():
                obs = learner.restart()
    if learner.pacer:
        learner.pacer.refuse_no_learning("ppo", config.steps)
    policy.spec = dataclasses.replace(policy.spec, notes=policy.spec.notes | {NOTE: learner.returns.to_note()})
    return policy


@dataclass(frozen=True)
class Rollout:
    """T steps of N copies, in places that stay the same: graphs read them, and each rollout overwrites the one before."""

    obs: Tensor  # (T, N, *obs_shape) images as bytes
    actions: Tensor  # (T, N) int64
    log_probs: Tensor  # (T, N) of the actions
    values: Tensor  # (T, N)
    next_values: Tensor  # (T, N) of what followed; at the end of an episode, of its last observation
    rewards: Tensor  # (T, N) scaled and clamped
    terminated: Tensor  # (T, N) bool
    ended: Tensor  # (T, N) bool, either way
    playing: Tensor  # (T, N) bool
    advantages: Tensor  # (T, N) standardised
    targets: Tensor  # (T, N) of the values

    @classmethod
    def empty(cls, steps: int, like: Tensor) -> "Rollout":
        """`like`: observations (N, *obs_shape) of all copies."""

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(steps, len(like), dtype=dtype, device=like.device)

        numbers = ("log_probs", "values", "next_values", "rewards", "advantages", "targets")
        flags = ("terminated", "ended", "playing")
        return cls(
            obs=_laid_out(like.new_zeros(steps * len(like), *like.shape[1:])).unflatten(0, (steps, len(like))),
            actions=zeros(torch.long),
            **{name: zeros(torch.float32) for name in numbers},
            **{name: zeros(torch.bool) for name in flags},
        )


class Learner:
    """All that changes during training. Acting, attack and update are CUDA graphs where `accelerate` allows."""

    def __init__(self, policy: Policy, env: VectorEnv, config: PpoConfig, attack: AttackConfig, task: Task) -> None:
        network = policy.network
        if not isinstance(network, ActorCritic):
            raise ConfigError(f"PPO cannot train network '{policy.spec.kind}'", "it needs impala or actor-critic-mlp")
        if task.loss == "sa":
            raise ConfigError("PPO has no 'sa' loss", "choose another recipe, or --algo dqn")
        image = len(env.obs_shape) == 3
        if image:
            nn.utils.convert_conv2d_weight_memory_format(policy, torch.channels_last)  # fastest, on CPUs too
        self.policy, self.env, self.config, self.adversary, self.task = policy, env, config, attack, task
        self.step, self.updates = 0, 0
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
        objective = {"standard": losses.ppo, "at": losses.ppo_adversarial, "radial": losses.ppo_radial}[task.loss]
        self._network = maybe_compiled(network.logits_and_value)
        self._attacked = maybe_compiled(_without_gradients(policy))
        self._score_bounds = maybe_compiled(score_bounds)
        self._objective = maybe_compiled(objective)
        # Fixed places that graphs read; schedules write into them without the host waiting.
        dtype = torch.uint8 if image else torch.float32
        self._obs = _laid_out(torch.zeros(env.num_envs, *env.obs_shape, dtype=dtype, device=device))
        self._memory = Rollout.empty(config.rollout, self._obs)
        self._chosen, self._kept = (
            torch.zeros(1, dtype=torch.long, device=device) for _ in range(2)
        )  # next rows of it, round and round
        terminated, truncated, playing = torch.zeros(3, env.num_envs, dtype=torch.bool, device=device)
        rewards = torch.zeros(env.num_envs, device=device)
        self._came = Step(self._obs, rewards, terminated, truncated, playing, final_obs=self._obs[:0])
        self._order = torch.zeros(config.rollout * env.num_envs, dtype=torch.long, device=device)
        self._batch = torch.arange(config.batch_size, device=device)  # where in that order
        self._seen = _laid_out(torch.zeros(config.batch_size, *env.obs_shape, device=device))
        self._eps = torch.zeros((), device=device)
        self.generators = {
            name: Generator(device).manual_seed(derive(task.seed, name)) for name in ("act", "order", "attack")
        }
        graphed = accelerate != "none"
        act, attack_draws = self.generators["act"], self.generators["attack"]
        self._choose = Graphed(self._choose_actions, act, enabled=graphed)
        self._keep = Graphed(self._keep_what_came, act, enabled=graphed)
        self._estimate = Graphed(self._estimate_advantages, act, enabled=graphed)
        self._show = Graphed(self._perturb_batch, attack_draws, enabled=graphed)
        self._improve = Graphed(self._take_gradient_step, attack_draws, enabled=graphed)
        self.returns = ReturnScale(env.num_envs, config.return_gamma, device)
        if config.keep_return_statistics and NOTE in policy.spec.notes:
            self.returns.from_note(policy.spec.notes[NOTE])
        self.tally = Tally(env.num_envs, device)

    def restart(self) -> Tensor:
        """Start every copy anew, at the beginning and after each checkpoint, and return the first observations.

        Emulators cannot be saved: so that a resumed run equals an uninterrupted one, both start anew at the same step.
        """
        self.tally.restart()
        self.returns.restart()
        return self.env.reset(derive(self.task.seed, "episodes", self.step))

    def rollout(self, obs: Tensor) -> tuple[Rollout, Tensor]:
        """Play on from `obs` with sampled actions; what happened, and the observations to play on from."""
        clock, last_obs = self.tally.clock, []
        step: Step | None = None
        for _ in range(self.config.rollout):
            with clock.host("act"):
                self._obs.copy_(obs)
                self.env.send(self._choose())  # the emulators step from here on, while the step before is written down
            if step:
                self._remember(step)
            with clock.host("env"):
                step = self.env.recv()
            if len(step.final_obs):  # an empty one may be a view that keeps a whole batch of frames
                last_obs.append(step.final_obs)
            obs = step.obs
        assert step, "a rollout has steps"
        self._remember(step)
        with clock.device("act"):
            self._value_what_followed(torch.cat([*last_obs, obs]))
        self.step += self.env.num_envs * self.config.rollout
        return self._memory, obs

    def update(self, rollout: Rollout) -> None:
        """Some passes over the rollout in random order, a batch at a time; each batch is attacked anew."""
        c, clock = self.config, self.tally.clock
        assert rollout is self._memory, "graphs read the learner's own rollout"
        self._rate.fill_(learning_rate(c, self.step - rollout.actions.numel()))
        with clock.device("update"):
            self._estimate()
        for _ in range(c.epochs):
            draws = torch.rand(len(self._order), generator=self.generators["order"], device=self.device)
            self._order.copy_(draws.argsort())
            self._batch.copy_(torch.arange(c.batch_size, device=self.device))
            for _ in range(len(self._order) // c.batch_size):
                self._eps.fill_(self.eps)
                if self.task.loss == "at":
                    with clock.device("attack"):
                        self._seen.copy_(self._show())
                with clock.device("update"):
                    self._improve()
                self.updates += 1
                self.tally.updates += 1

    @property
    def eps(self) -> float:
        """The budget of the next update."""
        c, task = self.config, self.task
        if task.loss == "standard":
            return 0.0
        if self.pacer:
            return self.pacer.eps
        total = c.steps * c.epochs / c.batch_size  # the last rollout may add some
        return schedules.budget(
            self.updates, task.start, task.end, int(c.ramp_start * total), int(c.ramp_end * total), c.ramp
        )

    def metrics(self) -> Metrics:
        """What happened since the last call. The one place where the host waits for the device."""
        refuse_divergence(self.policy, self.step, "ppo", self.tally.means())
        row = self.tally.row(self.step, {"eps": self._eps.item(), "kappa": self.config.kappa})
        if self.pacer:
            self.pacer.observe(self.step, *self.tally.played, row.get("certified") or 0.0)
        return row

    def state(self) -> State:
        """All that a checkpoint needs; it lies between two rollouts, so resuming is exact."""
        refuse_divergence(self.policy, self.step, "ppo", {})
        return {
            "step": self.step,
            "updates": self.updates,
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
            "returns": self.returns.state(),
            "pacer": self.pacer.state() if self.pacer else None,
        }

    def restore(self, state: State) -> None:
        """Continue from `state`."""
        self.step, self.updates = state["step"], state["updates"]
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["lr"] = self._rate  # the fixed place again, not the copy that was saved
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name].cpu())
        self.returns.restore(state["returns"])
        if self.pacer:
            self.pacer.restore(state["pacer"])
        self.tally.start_at(self.step)

    def _choose_actions(self) -> Tensor:
        with torch.no_grad(), self._autocast():
            logits, values = self._network(as_float(self._obs))
        # The largest of logits less the logarithms of exponential draws is distributed as the softmax of the logits.
        draws = torch.empty_like(logits).exponential_(generator=self.generators["act"])
        actions = (logits - draws.log()).argmax(dim=1)
        log_probs = logits.log_softmax(dim=1).gather(1, actions.unsqueeze(1)).squeeze(1)
        m, row = self._memory, self._chosen
        for place, new in ((m.obs, self._obs), (m.actions, actions), (m.log_probs, log_probs), (m.values, values)):
            place.index_copy_(0, row, new.unsqueeze(0))
        row.add_(1).remainder_(self.config.rollout)
        return actions

    def _remember(self, step: Step) -> None:
        for name in ("reward", "terminated", "truncated", "playing"):
            getattr(self._came, name).copy_(getattr(step, name))
        self._keep()

    def _keep_what_came(self) -> None:
        m, row, step, limit = self._memory, self._kept, self._came, self.config.reward_clamp
        rewards = self.returns.scaled(step.reward, step.ended) if self.config.normalise_returns else step.reward
        rewards = rewards.clamp(-limit, limit) if limit else rewards
        ends = (m.terminated, step.terminated), (m.ended, step.ended), (m.playing, step.playing)
        for place, new in ((m.rewards, rewards), *ends):
            place.index_copy_(0, row, new.unsqueeze(0))
        row.add_(1).remainder_(self.config.rollout)
        self.tally.count(step)

    def _value_what_followed(self, obs: Tensor) -> None:
        """`obs`: the last observations of all episodes that ended, in the order of time, then those to play on from."""
        memory, copies = self._memory, self.env.num_envs
        # In parts of one size, for which kernels were chosen: filled up with any observations, whose values are dropped.
        filled = _laid_out(torch.cat([obs, obs[: -len(obs) % copies]]))
        with torch.no_grad(), self._autocast():
            values = torch.cat([self._network(as_float(part))[1] for part in filled.split(copies)])[: len(obs)]
        memory.next_values[:-1] = memory.values[1:]
        memory.next_values[-1] = values[-copies:]
        memory.next_values.masked_scatter_(memory.ended, values[:-copies])

    def _estimate_advantages(self) -> None:
        m, c = self._memory, self.config
        advantages = losses.gae(m.rewards, m.values, m.next_values, m.terminated, m.ended, c.gamma, c.gae_lambda)
        m.targets.copy_(advantages + m.values)
        m.advantages.copy_(losses.standardised(advantages, _weights(m.playing)))

    def _perturb_batch(self) -> Tensor:
        index = self._order[self._batch]
        obs, actions = _at(self._memory.obs, index), _at(self._memory.actions, index)
        paper = AwayFromActions(actions) if self.adversary.kind == "pgd" else None
        attack = training_attack(self.adversary, OwnValue(), paper)
        with self._autocast():
            return perturb(attack, self._attacked, as_float(obs), self._eps, self.generators["attack"], check=False)

    def _take_gradient_step(self) -> None:
        m, index = self._memory, self._order[self._batch]
        actions, log_probs, values, advantages, targets = (
            _at(x, index) for x in (m.actions, m.log_probs, m.values, m.advantages, m.targets)
        )
        weight = _weights(_at(m.playing, index))
        past = losses.Past(actions, log_probs, values, advantages, targets, weight)
        loss, info = self._loss(as_float(_at(m.obs, index)), past)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        self._batch += self.config.batch_size
        self.tally.add(info)

    def _loss(self, obs: Tensor, past: losses.Past) -> tuple[Tensor, losses.Info]:
        c = self.config
        weights = losses.Weights(c.clip, c.value_coef, c.entropy_coef)
        if self.task.loss == "at":
            with self._autocast():
                logits, values = self._network(torch.cat([obs, self._seen]))
            (clean, seen), (values, _) = logits.chunk(2), values.chunk(2)
            return self._objective(clean, values, seen, past, weights, c.kappa)
        with self._autocast():
            logits, values = self._network(obs)
        if self.task.loss == "standard":
            return self._objective(logits, values, past, weights)
        box = input_box(obs, self._eps, self.policy.low, self.policy.high)
        with self._autocast():
            lower, upper = self._score_bounds(self.policy.chain(), *box, "ibp")
        return self._objective(logits, values, lower, upper, past, weights, c.kappa)

    def _autocast(self) -> torch.autocast:
        # A new one each time: weights cast where gradients are off must not be reused where they are on.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def learning_rate(config: PpoConfig, step: int) -> float:
    """Adam's step size, falling linearly over the run."""
    return config.learning_rate * (1 - (1 - config.learning_rate_end) * min(1.0, step / config.steps))


def _without_gradients(policy: Policy) -> Policy:
    """The same policy, whose weights stay those of the original: compiled code computes the gradients of all that has any,
    and an attack needs those of the observation alone."""
    twin = copy.deepcopy(policy).requires_grad_(False)
    for mine, original in zip(twin.parameters(), policy.parameters(), strict=True):
        mine.data = original.data
    return twin


def _laid_out(batch: Tensor) -> Tensor:
    """Images with their channels last in memory, as the network reads them: else every pass over them begins with a copy."""
    return batch.contiguous(memory_format=torch.channels_last) if batch.dim() == 4 else batch


def _at(rollout: Tensor, index: Tensor) -> Tensor:
    """Samples of (T, N, ...) by their number, laid out in memory as they lie there."""
    samples = rollout.flatten(0, 1)
    if samples.dim() == 4:
        return samples.movedim(1, -1).index_select(0, index).movedim(-1, 1)
    return samples.index_select(0, index)


def _weights(playing: Tensor) -> Tensor:
    """Equal shares of 1 for the agent's own moves, 0 for the game's."""
    return playing / playing.sum().clamp(min=1)
