"""Robust distillation: a student learns the actions of the agent it starts from, for everything within the budget.

The student plays, so that it learns where it goes itself (Ross et al. 2011), and the teacher says on clean observations what
each action would cost. Labels do not move with the student: bounds of Q-learning can be met by one constant for all actions,
these cannot. The same for Q-values and logits; docs/distillation.md has formulas, sources and measurements.
"""

import copy
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bcl import losses
from bcl.attacks import PGD, TargetValue, perturb
from bcl.bounds import input_box, training_margins
from bcl.config import DistillConfig
from bcl.envs import VectorEnv
from bcl.errors import ConfigError
from bcl.graphs import Graphed
from bcl.learners.memory import enough_memory, keep_freed_memory
from bcl.learners.pacer import Pacer
from bcl.learners.player import Player
from bcl.learners.precision import acceleration, quick_kernels, uses_bf16
from bcl.learners.replay import Replay
from bcl.learners.tally import Tally, refuse_divergence
from bcl.learners.task import Hooks, Metrics, Reporter, State, Task
from bcl.policies import Policy, as_float
from bcl.seeds import derive

WARM_UP = 500  # updates over which the step size rises: the first ones see a network that never saw bounds
STEADY = 0.75  # share of the run before the step size falls: while the budget rises there is much to learn
REACH = 2.5  # budgets that the steps of PGD cover together
SHARPNESS = 4.0  # leads are measured in 1 / so much of the teacher's usual one, beyond which the loss is nearly 0
CLEAR = 0.5  # share of the teacher's usual lead from which another action counts as a whole mistake
SCALE_BATCHES = 8  # replayed batches behind that usual lead


@enough_memory("distill.buffer_size", "distill.batch_size", "distill.num_envs")
def train(
    policy: Policy, env: VectorEnv, config: DistillConfig, task: Task, hooks: Hooks, state: State | None = None
) -> Policy:
    """Train `policy` in place on `env`, with itself as it is as the teacher; `state` continues a checkpoint of the same task."""
    keep_freed_memory()
    learner = Learner(policy, env, config, task)
    if state:
        learner.restore(state)
    reporter = Reporter(learner, config, hooks)
    obs = learner.restart()
    with quick_kernels(learner.bf16):
        while learner.step < config.steps:
            actions = learner.play(obs)
            learner.update()
            obs = learner.store(obs, actions)
            if reporter.report():
                obs = learner.restart()
    learner.pacer.refuse_no_learning("distill", config.steps)
    return policy


class Learner:
    """All that changes during training."""

    def __init__(self, policy: Policy, env: VectorEnv, config: DistillConfig, task: Task) -> None:
        if task.pace is None:
            raise ConfigError("distillation needs a paced budget", 'give its stage strategy = "paced"')
        image = len(env.obs_shape) == 3
        if image:
            nn.utils.convert_conv2d_weight_memory_format(policy, torch.channels_last)
        self.policy, self.env, self.config, self.task = policy, env, config, task
        self.teacher = copy.deepcopy(policy).requires_grad_(False)
        self.step = 0
        device = self.device = next(policy.parameters()).device
        self.bf16 = uses_bf16(config.precision, device, image)
        self._rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(
            policy.parameters(), lr=self._rate, eps=1e-5, fused=True, capturable=device.type == "cuda"
        )
        self.pacer = Pacer(task.pace, policy, self.optimizer)
        accelerate = acceleration(config.accelerate, device, config.steps)
        compiled: Any = partial(torch.compile, dynamic=False) if accelerate == "full" else lambda part: part
        self._student, self._labels, self._margins = map(compiled, (policy, self.teacher, training_margins))
        self._eps = torch.full((), self.pacer.eps, device=device)
        self._scale = torch.zeros((), device=device)  # the teacher's usual lead; 0: not measured yet
        self.generators = {
            name: Generator(device).manual_seed(derive(task.seed, name)) for name in ("act", "attack", "update")
        }
        dtype = torch.uint8 if image else torch.float32
        example = torch.zeros(env.num_envs, *env.obs_shape, dtype=dtype, device=device)
        driven = round(config.in_play * env.num_envs)
        self._victims = example[:driven].clone()
        graphed = accelerate != "none"
        self._show = Graphed(self._perturb_victims, self.generators["attack"], enabled=graphed)
        self._improve = Graphed(self._take_gradient_step, self.generators["update"], enabled=graphed)
        self.player = Player(
            policy, env, self.generators["act"],
            longest=config.exploration_repeat, graphed=graphed, bf16=self.bf16, attacked=driven > 0,
        )  # fmt: skip
        self.replay = Replay(config.buffer_size, example, n_step=1, gamma=1.0, perturbations=False)
        self._owed = 0.0  # updates
        self._updates = 0
        self.tally = Tally(env.num_envs, device, torch.arange(env.num_envs, device=device) < driven if driven else None)

    def restart(self) -> Tensor:
        """Start every copy anew, at the beginning and after each checkpoint, and return the first observations."""
        self.tally.restart()
        self.player.follow(self.policy)
        return self.player.reset(derive(self.task.seed, "episodes", self.step))

    def play(self, obs: Tensor) -> Tensor:
        """Start the next step: (N,) actions of the student, on the first copies for what the adversary shows."""
        self._eps.fill_(self.pacer.eps)
        shown = obs
        if driven := len(self._victims):
            self._victims.copy_(obs[:driven])
            with self.tally.clock.device("attack"):
                shown = torch.cat([self._show(), as_float(obs[driven:])])
        with self.tally.clock.host("act"):
            return self.player.play(shown, self.config.exploration)

    def update(self) -> None:
        """The gradient steps that are due."""
        c = self.config
        self.player.follow(self.policy)
        if not self.pacer.knows_start or not len(self.replay):
            return
        if not self._updates:
            self._measure_scale()
        self._owed += self.env.num_envs * c.samples_per_step / c.batch_size
        with self.tally.clock.device("update"):
            while self._owed >= 1:
                self._rate.fill_(self._learning_rate())
                self._improve()
                self._owed -= 1
                self._updates += 1
                self.tally.updates += 1

    def store(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Wait for the emulators, remember the step, and return the next observations."""
        with self.tally.clock.host("env"):
            step = self.player.wait()
        self.replay.add(obs, actions, step.reward, step, None, self._eps)
        self.tally.count(step)
        self.step += self.env.num_envs
        return step.obs

    def metrics(self) -> Metrics:
        """What happened since the last call. The one place where the host waits for the device."""
        refuse_divergence(self.policy, self.step, "distill", self.tally.means())
        row = self.tally.row(self.step, {"eps": self._eps.item(), "learning_rate": self._rate.item()})
        self.pacer.observe(self.step, *self.tally.played, row.get("held") or 0.0)
        return row

    def state(self) -> State:
        """All that a checkpoint needs; the teacher is the agent that the run starts from."""
        refuse_divergence(self.policy, self.step, "distill", {})
        return {
            "step": self.step,
            "owed": self._owed,
            "updates": self._updates,
            "scale": self._scale,
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
            "replay": self.replay.state() if self.config.checkpoint_replay else None,
            "pacer": self.pacer.state(),
        }

    def restore(self, state: State) -> None:
        """Continue from `state`; without a replay memory in it, one is collected while learning goes on."""
        self.step, self._owed, self._updates = state["step"], state["owed"], state["updates"]
        self._scale.copy_(state["scale"])
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.param_groups[0]["lr"] = self._rate  # the fixed place again, not the copy that was saved
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name].cpu())
        if state["replay"] is not None:
            self.replay.restore(state["replay"])
        self.pacer.restore(state["pacer"])
        self.tally.start_at(self.step)

    def _learning_rate(self) -> float:
        c = self.config
        left = 1 - (1 - c.learning_rate_end) * max(0.0, self.step / c.steps - STEADY) / (1 - STEADY)
        return c.learning_rate * left * min(1.0, (self._updates + 1) / WARM_UP)

    def _measure_scale(self) -> None:
        """The teacher's mean lead over the other actions. Q-values and logits come on any scale."""
        found = []
        for _ in range(SCALE_BATCHES):
            scores = self._teach(self.replay.sample(self.config.batch_size, self.generators["update"]).obs)
            found.append(losses.leads(scores, scores.argmax(dim=1)).sum(dim=1).mean() / (scores.shape[1] - 1))
        self._scale.copy_(torch.stack(found).mean())
        if not self._scale > 0:
            raise ConfigError("the agent to start from finds all actions alike", "give one that plays")

    def _teach(self, obs: Tensor) -> Tensor:
        with torch.no_grad(), self._autocast():
            return self._labels(obs).float()

    def _perturb_victims(self) -> Tensor:
        obs = as_float(self._victims)
        return self._attacked(obs, self._teach(obs), self._eps, self.generators["attack"])

    def _attacked(self, obs: Tensor, scores: Tensor, eps: Tensor, generator: Generator) -> Tensor:
        """What costs most by the teacher's scores."""
        steps = self.config.attack_steps
        attack = PGD(steps, REACH / steps, random_start=True, objective=TargetValue(scores))
        with self._autocast():
            return perturb(attack, self.policy, obs, eps, generator, check=False)

    def _take_gradient_step(self) -> None:
        c = self.config
        batch = self.replay.sample(c.batch_size, self.generators["update"])
        scores = self._teach(batch.obs)
        best = scores.argmax(dim=1)
        centre = batch.obs
        if c.box < 1:
            centre = self._attacked(batch.obs, scores, self._eps * (1 - c.box), self.generators["update"])
        with self._autocast():
            clean = losses.leads(self._student(batch.obs), best)
            if c.box > 0:
                box = input_box(centre, self._eps * c.box, self.policy.low, self.policy.high)
                worst = self._margins(self.policy.chain(), *box, best)
            else:
                worst = losses.leads(self._student(centre), best)
        sharp = SHARPNESS / self._scale
        mistakes = losses.mistakes(scores, CLEAR * self._scale)
        loss, info = losses.distilled(sharp * clean, sharp * worst, mistakes, batch.weights, c.kappa)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.tally.add(info)

    def _autocast(self) -> torch.autocast:
        # A new one each time: weights cast where gradients are off must not be reused where they are on.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)
