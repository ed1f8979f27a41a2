"""Proximal policy optimisation on many copies of a game at once: vanilla, RADIAL and adversarial training, one loop.

Clipped surrogate, generalised advantages and scaled rewards as in the paper's code; docs/ppo.md puts the algorithm
beside this file and numbers every difference from the paper and its code.
"""

import dataclasses
import json
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bcl import losses, schedules
from bcl.attacks import AwayFromActions, CrossEntropy, OwnValue
from bcl.bounds import input_box, score_bounds
from bcl.config import AttackConfig, PpoConfig
from bcl.device import enough_memory, quick_kernels
from bcl.envs import Step, VectorEnv
from bcl.errors import ConfigError, WeightsError
from bcl.learners.learner import Learner, Record, Reporter, State, Task, derive, training_attack
from bcl.learners.metrics import Metrics
from bcl.policies import Policy, as_float
from bcl.policies.networks import ActorCritic

NOTE = "ppo returns"  # under which a policy carries the statistics of its returns
SMALL = 1e-8
FIRST_COUNT = 1e-4  # samples with mean 0 and variance 1 that are taken as seen, so that the first step can be divided


@enough_memory("ppo.rollout", "ppo.batch_size", "ppo.num_envs")
def train(
    policy: Policy,
    env: VectorEnv,
    config: PpoConfig,
    attack: AttackConfig,
    task: Task,
    record: Record,
    state: State | None = None,
) -> Policy:
    """Train `policy` in place on `env`; `state` continues a checkpoint of the same task."""
    learner = PpoLearner(policy, env, config, attack, task)
    reporter = Reporter(learner, config, record, state)
    obs = learner.restart()
    with quick_kernels(learner.bf16):
        while learner.step < config.steps:
            rollout, obs = learner.rollout(obs)
            if not learner.pacer or learner.pacer.knows_start:
                learner.update(rollout)
            obs = reporter.report(obs)
    policy.spec = dataclasses.replace(policy.spec, notes=policy.spec.notes | {NOTE: learner.returns.to_note()})
    return policy


@dataclass(frozen=True)
class Rollout:
    """T steps of N copies in fixed places, which graphs read; each rollout overwrites the one before."""

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
        marks = ("terminated", "ended", "playing")
        return cls(
            obs=_laid_out(like.new_zeros(steps * len(like), *like.shape[1:])).unflatten(0, (steps, len(like))),
            actions=zeros(torch.long),
            **{name: zeros(torch.float32) for name in numbers},
            **{name: zeros(torch.bool) for name in marks},
        )


class PpoLearner(Learner):
    """Clipped surrogate on rollouts, whose batches are attacked anew in every pass."""

    section = "ppo"
    draws = ("act", "order", "attack")

    def __init__(self, policy: Policy, env: VectorEnv, config: PpoConfig, attack: AttackConfig, task: Task) -> None:
        network = policy.network
        if not isinstance(network, ActorCritic):
            raise ConfigError(f"PPO cannot train network '{policy.spec.kind}'", "it needs impala or actor-critic-mlp")
        if task.loss == "sa":
            raise ConfigError("PPO has no 'sa' loss", "choose another recipe, or --algo dqn")
        driven = round(config.in_play * env.num_envs) if task.loss == "at" else 0
        super().__init__(policy, env, config, task, driven, attack.spread)
        self.config = config
        self.adversary = attack
        self.updates = 0
        objective = {"standard": losses.ppo, "at": losses.ppo_adversarial, "radial": losses.ppo_radial}[task.loss]
        self._network = self._compiled_network(network.logits_and_value)
        self._score_bounds = self._compiled(score_bounds)
        self._objective = self._compiled(objective)
        device = self.device
        num_envs = env.num_envs
        self._obs = _laid_out(as_float(self._obs) if self._driven else self._obs)
        self._memory = Rollout.empty(config.rollout, self._obs)
        self._share = torch.zeros((), device=device)  # of random actions
        self._chosen = torch.zeros(1, dtype=torch.long, device=device)  # next row of it to act for, round and round
        self._kept = torch.zeros(1, dtype=torch.long, device=device)  # next row of it to complete
        terminated, truncated, playing = torch.zeros(3, num_envs, dtype=torch.bool, device=device)
        rewards = torch.zeros(num_envs, device=device)
        self._came = Step(self._obs, rewards, terminated, truncated, playing, final_obs=self._obs[:0])
        self._order = torch.zeros(config.rollout * num_envs, dtype=torch.long, device=device)
        self._batch = torch.arange(config.batch_size, device=device)  # where in that order
        self._seen = _laid_out(torch.zeros(config.batch_size, *env.obs_shape, device=device))
        self._drive = self._graph(self._perturb_victims, "attack")
        self._choose = self._graph(self._choose_actions, "act")
        self._keep = self._graph(self._keep_what_came, "act")
        self._estimate = self._graph(self._estimate_advantages, "act")
        self._show = self._graph(self._perturb_batch, "attack")
        self._improve = self._graph(self._take_gradient_step, "attack")
        self.returns = ReturnScale(num_envs, config.return_gamma, device)
        if config.keep_return_statistics and NOTE in policy.spec.notes:
            self.returns.restore(torch.tensor(read_note(policy.spec.notes[NOTE]), dtype=torch.float64))

    def restart(self) -> Tensor:
        self.meter.restart()
        self.returns.restart()
        self._random.restart()
        return self.env.reset(derive(self.task.seed, "episodes", self.step))

    def rollout(self, obs: Tensor) -> tuple[Rollout, Tensor]:
        """Play on from `obs` with sampled actions: what happened, and what to go on from."""
        last_obs: list[Tensor] = []
        step: Step | None = None
        self._share.fill_(self.exploration)
        for _ in range(self.config.rollout):
            self._obs.copy_(as_float(obs) if self._driven else obs)
            if self._driven:
                self._eps.fill_(self.eps)
                with self.meter.device("attack"):
                    self._obs[: self._driven].copy_(self._drive())
            with self.meter.host("act"):
                self.env.send(self._choose())  # the emulators step from here on, while the step before is written down
            if step:
                self._remember(step)
            with self.meter.host("env"):
                step = self.env.recv()
            if len(step.final_obs):  # an empty one may be a view that keeps a whole batch of frames
                last_obs.append(step.final_obs)
            obs = step.obs
        assert step, "a rollout has steps"
        self._remember(step)
        with self.meter.device("act"):
            self._value_what_followed(torch.cat([*last_obs, obs]))
        self.step += self.env.num_envs * self.config.rollout
        return self._memory, obs

    def update(self, rollout: Rollout) -> None:
        """Some passes over the rollout in random order, each batch attacked anew."""
        c = self.config
        assert rollout is self._memory, "graphs read the learner's own rollout"
        self._rate.fill_(learning_rate(c, self.step - rollout.actions.numel()))
        with self.meter.device("update"):
            self._estimate()
        improve = self._improve if self.graphed else self._take_gradient_step
        for _ in range(c.epochs):
            draws = torch.rand(len(self._order), generator=self.generators["order"], device=self.device)
            self._order.copy_(draws.argsort())
            self._batch.copy_(torch.arange(c.batch_size, device=self.device))
            for _ in range(len(self._order) // c.batch_size):
                self._eps.fill_(self.eps)
                if self.task.loss == "at":
                    with self.meter.device("attack"):
                        self._seen.copy_(self._show())
                with self.meter.device("update"):
                    improve()
                self.updates += 1
                self.meter.updates += 1

    @property
    def eps(self) -> float:
        """The budget of the next update."""
        c = self.config
        task = self.task
        if task.loss == "standard":
            return 0.0
        if self.pacer:
            return self.pacer.eps
        total = c.steps * c.epochs / c.batch_size  # the last rollout may add some
        return schedules.budget(
            self.updates, task.start, task.end, int(c.ramp_start * total), int(c.ramp_end * total), c.ramp
        )

    @property
    def exploration(self) -> float:
        """Share of copies that begin a random action; none in a paced run, so that returns can be compared."""
        c = self.config
        if self.pacer:
            return 0.0
        return schedules.exploration(self.step, c.exploration_start, 0.0, 0, c.exploration_steps)

    def scheduled(self) -> Metrics:
        return {"eps": self._eps.item(), "kappa": self.config.kappa}

    def state(self) -> State:
        """All that a checkpoint needs; it lies between two rollouts, so resuming is exact."""
        return super().state() | {"updates": self.updates, "returns": self.returns.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.updates = state["updates"]
        self.returns.restore(state["returns"])

    def _perturb_victims(self) -> Tensor:
        """Away from the action that the policy prefers: none is taken yet."""
        attack = training_attack(self.adversary, OwnValue(), CrossEntropy())
        return self._perturbed(attack, self._obs[: self._driven], self._budgets(self._driven))

    def _choose_actions(self) -> Tensor:
        with torch.no_grad(), self._autocast():
            logits, values = self._logits_and_value(as_float(self._obs))
        # The largest of logits less the logarithms of exponential draws is distributed as the softmax of the logits.
        draws = torch.empty_like(logits).exponential_(generator=self.generators["act"])
        actions = (logits - draws.log()).argmax(dim=1)
        if self.config.exploration_start:
            actions = self._random.instead_of(actions, self._share)
        log_probs = logits.log_softmax(dim=1).gather(1, actions.unsqueeze(1)).squeeze(1)
        m = self._memory
        row = self._chosen
        for place, new in ((m.obs, self._obs), (m.actions, actions), (m.log_probs, log_probs), (m.values, values)):
            place.index_copy_(0, row, new.unsqueeze(0))
        row.add_(1).remainder_(self.config.rollout)
        return actions

    def _remember(self, step: Step) -> None:
        for name in ("reward", "terminated", "truncated", "playing"):
            getattr(self._came, name).copy_(getattr(step, name))
        self._keep()

    def _keep_what_came(self) -> None:
        m = self._memory
        row = self._kept
        step = self._came
        limit = self.config.reward_clamp
        rewards = self.returns.scaled(step.reward, step.ended) if self.config.normalise_returns else step.reward
        rewards = rewards.clamp(-limit, limit) if limit else rewards
        ends = (m.terminated, step.terminated), (m.ended, step.ended), (m.playing, step.playing)
        for place, new in ((m.rewards, rewards), *ends):
            place.index_copy_(0, row, new.unsqueeze(0))
        row.add_(1).remainder_(self.config.rollout)
        self.meter.count(step)

    def _value_what_followed(self, obs: Tensor) -> None:
        """`obs`: the last observations of all episodes that ended, in the order of time, then those to play on from."""
        memory = self._memory
        copies = self.env.num_envs
        # In parts of one size, for which kernels were chosen: filled up with any observations, whose values are
        # dropped.
        filled = _laid_out(torch.cat([obs, obs[: -len(obs) % copies]]))
        with torch.no_grad(), self._autocast():
            values = torch.cat([self._network(as_float(part))[1] for part in filled.split(copies)])[: len(obs)]
        memory.next_values[:-1] = memory.values[1:]
        memory.next_values[-1] = values[-copies:]
        memory.next_values.masked_scatter_(memory.ended, values[:-copies])

    def _estimate_advantages(self) -> None:
        m = self._memory
        c = self.config
        advantages = losses.gae(m.rewards, m.values, m.next_values, m.terminated, m.ended, c.gamma, c.gae_lambda)
        m.targets.copy_(advantages + m.values)
        m.advantages.copy_(losses.standardised(advantages, _weights(m.playing)))

    def _perturb_batch(self) -> Tensor:
        index = self._order[self._batch]
        obs = _at(self._memory.obs, index)
        attack = training_attack(self.adversary, OwnValue(), AwayFromActions(_at(self._memory.actions, index)))
        budgets = self._budgets(len(obs))
        if self._driven:  # what those copies saw was attacked already
            budgets = budgets * (index % self.env.num_envs >= self._driven)
        return self._perturbed(attack, as_float(obs), budgets)

    def _take_gradient_step(self) -> None:
        m = self._memory
        index = self._order[self._batch]
        parts = [_at(part, index) for part in (m.actions, m.log_probs, m.values, m.advantages, m.targets)]
        past = losses.Past._make([*parts, _weights(_at(m.playing, index))])
        loss, info = self._loss(as_float(_at(m.obs, index)), past)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        self._batch += self.config.batch_size
        self.meter.add(info)

    def _loss(self, obs: Tensor, past: losses.Past) -> tuple[Tensor, losses.Info]:
        c = self.config
        weights = losses.LossWeights(c.clip, c.value_coef, c.entropy_coef)
        if self.task.loss == "at":
            with self._autocast():
                logits, values = self._logits_and_value(torch.cat([obs, self._seen]))
            clean, seen = logits.chunk(2)
            values, _ = values.chunk(2)
            return self._objective(clean, values, seen, past, weights, c.kappa)
        with self._autocast():
            logits, values = self._logits_and_value(obs)
        if self.task.loss == "standard":
            return self._objective(logits, values, past, weights)
        box = input_box(obs, self._eps, self.policy.low, self.policy.high)
        with self._autocast():
            lower, upper = self._score_bounds(self.policy.chain(), *box, "ibp")
        bounds = lower / c.temperature, upper / c.temperature
        return self._objective(logits, values, *bounds, past, weights, c.kappa)

    def _logits_and_value(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Of the policy that acts and learns."""
        logits, values = self._network(obs)
        return logits / self.config.temperature, values


def learning_rate(config: PpoConfig, step: int) -> float:
    """Adam's step size, falling linearly over the run."""
    return config.learning_rate * (1 - (1 - config.learning_rate_end) * min(1.0, step / config.steps))


class ReturnScale:
    """Rewards in units of the running deviation of discounted returns, as OpenAI baselines' VecNormalize has them."""

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        self._gamma = gamma
        self._running = torch.zeros(num_envs, dtype=torch.float64, device=device)  # of the episodes being played
        self._moments = torch.tensor([0.0, 1.0, FIRST_COUNT], dtype=torch.float64, device=device)

    def restart(self) -> None:
        self._running.zero_()

    def scaled(self, rewards: Tensor, ended: Tensor) -> Tensor:
        """(N,) rewards of one vector step by all that was seen up to it, this step included."""
        mean, variance, count = self._moments.unbind()
        self._running.mul_(self._gamma).add_(rewards)
        new = len(rewards)
        old = count.clone()
        count.add_(new)
        distance = self._running.mean() - mean
        squares = variance * old + self._running.var(correction=0) * new
        variance.copy_((squares + distance.square() * old * new / count) / count)
        mean.add_(distance * new / count)
        self._running.mul_(~ended)
        return (rewards / (variance + SMALL).sqrt()).float()

    def state(self) -> Tensor:
        """(3,) mean, variance and number of returns."""
        return self._moments.clone()

    def restore(self, state: Tensor) -> None:
        self._moments.copy_(state)

    def to_note(self) -> str:
        """The state as text, which can travel with a policy."""
        return json.dumps(self.state().tolist())


def read_note(note: str) -> list[float]:
    """Mean, variance and number of returns from what `to_note` wrote; anything else is refused."""
    try:
        numbers = json.loads(note)
        if isinstance(numbers, list) and [type(number) for number in numbers] == [float] * 3:
            mean, variance, count = numbers
            if math.isfinite(mean) and 0 <= variance < math.inf and FIRST_COUNT <= count < math.inf:
                return numbers
    except (ValueError, RecursionError):
        pass
    what = f"the agent to start from has statistics of returns that cannot be read ({note:.60})"
    raise WeightsError(what, "start anew without ppo.keep_return_statistics")


def _laid_out(batch: Tensor) -> Tensor:
    """Images with channels last in memory, as the network reads them: else every pass begins with a copy."""
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
