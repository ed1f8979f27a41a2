"""Deep Q-learning on many copies of a game at once: vanilla, RADIAL, adversarial training and SA-DQN, one loop.

Double DQN with uniform replay and a target network, as in the paper's code; docs/dqn.md puts the algorithm beside this
file and numbers every difference from the paper and its code.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from bcl import losses, schedules
from bcl.attacks import TargetValue
from bcl.bounds import input_box, margins, score_bounds
from bcl.config import AttackConfig, DistillConfig, DqnConfig
from bcl.device import Graphed, enough_memory, on_stream, quick_kernels
from bcl.envs import Step, VectorEnv
from bcl.errors import ConfigError
from bcl.learners.learner import HeldActions, Learner, Record, Reporter, State, Task, derive, training_attack
from bcl.learners.metrics import Metrics
from bcl.learners.replay import Batch, Replay
from bcl.policies import Policy, as_float
from bcl.policies.networks import Dueling

REFERENCE_BATCH = 128  # the batch that `learning_rate` is meant for, where it is scaled


@enough_memory("dqn.buffer_size", "dqn.batch_size", "dqn.num_envs")
def train(
    policy: Policy,
    env: VectorEnv,
    config: DqnConfig,
    attack: AttackConfig,
    task: Task,
    record: Record,
    state: State | None = None,
) -> Policy:
    """Train `policy` in place on `env`; `state` continues a checkpoint of the same task."""
    refuse_no_updates(config)
    learner = DqnLearner(policy, env, config, attack, task)
    reporter = Reporter(learner, config, record, state)
    obs = learner.restart()
    with quick_kernels(learner.bf16):
        while learner.step < config.steps:
            actions, seen = learner.play(obs)  # the emulators step from here on, while the learner works
            learner.update()
            obs = reporter.report(learner.store(obs, actions, seen))
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


class ReplayLearner(Learner):
    """What DQN and distillation share: play and updates on a replay memory."""

    draws = ("act", "attack", "update")
    config: DqnConfig | DistillConfig
    replay: Replay
    _improve: Graphed[None]

    def __init__(
        self, policy: Policy, env: VectorEnv, config: DqnConfig | DistillConfig, task: Task, driven: int, spread: float
    ) -> None:
        super().__init__(policy, env, config, task, driven, spread)
        self.config = config
        self.player = Player(policy, env, self._random, graphed=self.graphed, bf16=self.bf16, attacked=driven > 0)
        self._owed = 0.0  # updates
        self._updates = 0

    def restart(self) -> Tensor:
        self.meter.restart()
        self.player.follow(self.policy)
        return self.player.reset(derive(self.task.seed, "episodes", self.step))

    def state(self) -> State:
        """All that a checkpoint needs; with the replay memory in it, resuming is exact."""
        replay = self.replay.state() if self.config.checkpoint_replay else None
        return super().state() | {"owed": self._owed, "replay": replay}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._owed = state["owed"]
        if state["replay"] is not None:
            self.replay.restore(state["replay"])

    @abstractmethod
    def _learns(self) -> bool:
        """Whether enough was played to learn from."""

    @abstractmethod
    def _learning_rate(self) -> float:
        """Of the next update."""

    @abstractmethod
    def _take_gradient_step(self) -> None:
        """On a batch of the replay memory; `_improve` is this as a CUDA graph."""

    def update(self) -> None:
        """The gradient steps that one vector step of play adds."""
        self.player.follow(self.policy)
        if not self._learns():
            return
        self._owed += self.env.num_envs * self.config.samples_per_step / self.config.batch_size
        improve = self._improve if self.graphed else self._take_gradient_step
        with self.meter.device("update"):
            while self._owed >= 1:
                self._rate.fill_(self._learning_rate())
                improve()
                self._owed -= 1
                self._updates += 1
                self.meter.updates += 1
        self._end_update()

    def _end_update(self) -> None:
        """What follows the gradient steps; here nothing."""

    def store(self, obs: Tensor, actions: Tensor, seen: Tensor | None = None) -> Tensor:
        """Wait for the emulators, remember the step, and return the next observations."""
        with self.meter.host("env"):
            step = self.player.wait()
        self.replay.add(obs, actions, self._rewards(step), step, seen, self._budgets(len(obs)))
        self.meter.count(step)
        self.step += self.env.num_envs
        return step.obs

    def _rewards(self, step: Step) -> Tensor:
        """Those to learn from."""
        return step.reward

    def _scores(self, network: Callable[[Tensor], Tensor], obs: Tensor) -> Tensor:
        with torch.no_grad(), self._autocast():
            return network(obs)


class DqnLearner(ReplayLearner):
    """Double DQN: the online and the target network, replay, exploration."""

    section = "dqn"
    config: DqnConfig

    def __init__(self, policy: Policy, env: VectorEnv, config: DqnConfig, attack: AttackConfig, task: Task) -> None:
        driven = 0 if task.loss == "standard" else round(attack.in_play * env.num_envs)
        super().__init__(policy, env, config, task, driven, attack.spread)
        self.adversary = attack
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self._online = self._compiled(policy)
        self._delayed = self._compiled(self.target)
        self._score_bounds = self._compiled(score_bounds)
        self._kappa = torch.zeros((), device=self.device)
        self._show = self._graph(self._perturb_obs, "attack")
        self._improve = self._graph(self._take_gradient_step, "update")
        self._stores_attacks = task.loss == "at" and not attack.fresh
        self.replay = Replay(
            config.buffer_size, self._obs, n_step=config.n_step, gamma=config.gamma, perturbations=self._stores_attacks
        )

    def restart(self) -> Tensor:
        self.replay.cut()
        return super().restart()

    def play(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Start the next step: (N,) actions, a share of them random, else greedy; and what is stored of the adversary.

        Copies with the adversary in play have to wait for it; else it is computed while the emulators step.
        """
        self.set_schedules()
        seen = None
        shown = obs
        if self._driven:
            seen = self.attack(obs)
            shown = torch.cat([seen[: self._driven], as_float(obs[self._driven :])])
        with self.meter.host("act"):
            actions = self.player.play(shown, self.exploration)
        if not self._stores_attacks:
            return actions, None
        return actions, self.attack(obs) if seen is None else seen

    def set_schedules(self) -> None:
        """Budget and kappa of this step."""
        c = self.config
        task = self.task
        begin = c.ramp_start or c.replay_initial
        ramp = schedules.budget(self.step, task.start, task.end, begin, c.ramp_steps, c.ramp)
        eps = self.pacer.eps if self.pacer else ramp
        kappa = schedules.kappa(self.step, c.kappa, c.kappa_linear, begin, c.ramp_steps)
        self._eps.fill_(eps)
        self._kappa.fill_(0.0 if task.loss == "sa" and eps == 0 else kappa)  # SA-DQN regularises from its ramp on

    def attack(self, obs: Tensor) -> Tensor:
        """What the adversary shows instead of `obs`."""
        self._obs.copy_(obs)
        with self.meter.device("attack"):
            return self._show()

    def _learns(self) -> bool:
        if self.pacer and not self.pacer.knows_start:
            return False
        return len(self.replay) >= min(max(self.config.replay_initial, 1), self.replay.capacity)

    def _end_update(self) -> None:
        """Bring the target network nearer to the online one, where that is due."""
        c = self.config
        if passed := (self.step + self.env.num_envs) // c.target_sync - self.step // c.target_sync:
            rate = 1 - (1 - c.target_rate) ** passed
            with torch.no_grad():
                for old, new in zip(self.target.parameters(), self.policy.parameters(), strict=True):
                    old.lerp_(new, rate)

    def _rewards(self, step: Step) -> Tensor:
        rewards = step.reward * self.config.reward_scale
        limit = self.config.reward_clamp
        return rewards.clamp(-limit, limit) if limit else rewards

    @property
    def exploration(self) -> float:
        """Share of copies that begin a random action; in a paced run it stays, so that returns can be compared."""
        c = self.config
        if self.pacer:
            return c.exploration_end
        return schedules.exploration(
            self.step, c.exploration_start, c.exploration_end, c.exploration_hold, c.exploration_steps
        )

    def scheduled(self) -> Metrics:
        eps = 0.0 if self.task.loss == "standard" else self._eps.item()
        return {"eps": eps, "kappa": self._kappa.item(), "exploration": self.exploration}

    def metrics(self) -> Metrics:
        row = super().metrics()
        if self._went_back:
            self.target.load_state_dict(self.policy.state_dict())
        return row

    def state(self) -> State:
        return super().state() | {"target": self.target.state_dict()}

    def restore(self, state: State) -> None:
        """Continue from `state`; without a replay memory in it, one is collected before the next update."""
        super().restore(state)
        self.target.load_state_dict(state["target"])

    def _learning_rate(self) -> float:
        return learning_rate(self.config, self.step)

    def _perturb_obs(self) -> Tensor:
        return self._attacked(as_float(self._obs), "attack")

    def _attacked(self, obs: Tensor, draws: str) -> Tensor:
        attack = training_attack(self.adversary, TargetValue(self._scores(self.target, obs)))
        return self._perturbed(attack, obs, self._budgets(len(obs)), draws)

    def _take_gradient_step(self) -> None:
        batch = self.replay.sample(self.config.batch_size, self.generators["update"])
        online, target = (self._scores(network, batch.next_obs) for network in (self._online, self._delayed))
        goal = losses.double_q_target(online, target, batch.rewards, batch.discounts)
        loss, info = self._loss(batch, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.meter.add(info)

    def _loss(self, batch: Batch, goal: Tensor) -> tuple[Tensor, losses.Info]:
        past = losses.Replayed(batch.actions, goal, batch.weights, self.config.td_loss)
        kappa = self._kappa
        if self.task.loss == "at":
            seen = self._attacked(batch.obs, "update") if self.adversary.fresh else batch.seen
            with self._autocast():
                q, q_seen = self._online(torch.cat([batch.obs, seen])).chunk(2)
            attacked, info = losses.adversarial(q, q_seen, past, kappa)
            share = self.config.bound_share
            if not share:
                return attacked, info
            bounded, proven = self._radial(batch.obs, q, past, self._eps.clamp(max=self.config.bound_eps))
            loss = (1 - share) * attacked + share * bounded
            return loss, proven | info | {"loss": loss.detach()}
        with self._autocast():
            q = self._online(batch.obs)
        if self.task.loss == "standard":
            return losses.standard(q, past)
        if self.task.loss == "sa":
            box = input_box(batch.obs, self._eps, self.policy.low, self.policy.high)
            return losses.sa(q, self._mixed_margins(*box, q.argmax(dim=1)), past, kappa)
        return self._radial(batch.obs, q, past, self._eps)

    def _radial(self, obs: Tensor, q: Tensor, past: losses.Replayed, eps: Tensor) -> tuple[Tensor, losses.Info]:
        box = input_box(obs, eps, self.policy.low, self.policy.high)
        with self._autocast():
            bounds = self._q_bounds(*box, q.detach())
        approach = losses.radial_2 if self.config.radial_approach == "2" else losses.radial_1
        return approach(q, *bounds, past, self._kappa)

    def _q_bounds(self, lower: Tensor, upper: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Interval bounds (B, A) whose differences between actions bound those of Q; see docs/dqn.md for approach 1."""
        network = self.policy.network
        approach = self.config.radial_approach
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


class Player:
    """Epsilon-greedy play beside the updates, by the weights of one pass ago; on a GPU on a stream of its own."""

    def __init__(
        self, policy: Policy, env: VectorEnv, random: HeldActions, *, graphed: bool, bf16: bool, attacked: bool
    ) -> None:
        """`attacked`: observations are floats that the learner made, and have to be waited for."""
        self._policy = copy.deepcopy(policy).requires_grad_(False)
        self._env = env
        self._bf16 = bf16
        device = self._device = random.generator.device
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream() if cuda else None
        self._followed = torch.cuda.Event() if cuda else None
        self._attacked = attacked
        dtype = torch.uint8 if len(env.obs_shape) == 3 and not attacked else torch.float32
        self._obs = torch.zeros(env.num_envs, *env.obs_shape, dtype=dtype, device=device)
        self._share = torch.zeros((), device=device)  # of random actions
        self._random = random
        self._choose = Graphed(self._choose_actions, random.generator, enabled=graphed)

    def reset(self, seed: int) -> Tensor:
        self._random.restart()
        obs = self._env.reset(seed)
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())
        return obs

    def follow(self, policy: Policy) -> None:
        """From the next `play` on act as `policy` does now."""
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)  # it may still be choosing with the old weights
        with torch.no_grad():
            for mine, new in zip(self._policy.parameters(), policy.parameters(), strict=True):
                mine.copy_(new)
        if self._followed:
            self._followed.record()

    def play(self, obs: Tensor, share: float) -> Tensor:
        """(N,) actions, a share of them random; the emulators step from here on."""
        if self._stream and self._attacked:
            self._stream.wait_stream(torch.cuda.current_stream())
            obs.record_stream(self._stream)
        with on_stream(self._stream):
            if self._stream and self._followed:
                self._stream.wait_event(self._followed)
            self._share.fill_(share)
            self._obs.copy_(obs)
            actions = self._choose().clone()
            self._env.send(actions)
        self._use_on_stream(actions)
        return actions

    def wait(self) -> Step:
        with on_stream(self._stream):
            step = self._env.recv()
        self._use_on_stream(step.obs, step.reward, step.terminated, step.truncated, step.playing, step.final_obs)
        return step

    def _choose_actions(self) -> Tensor:
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            greedy = self._policy(as_float(self._obs)).argmax(dim=1)
        return self._random.instead_of(greedy, self._share)

    def _use_on_stream(self, *tensors: Tensor) -> None:
        """The learner may read these; their memory must not be reused meanwhile."""
        if self._stream:
            learner = torch.cuda.current_stream()
            learner.wait_stream(self._stream)
            for tensor in tensors:
                tensor.record_stream(learner)
