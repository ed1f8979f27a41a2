"""Robust distillation: a student learns the actions of its teacher, for everything within the budget.

The student plays, so that it learns where it goes itself (Ross et al. 2011), and the teacher says on clean observations
what each action would cost. Labels do not move with the student: bounds of Q-learning can be met by one constant for
all actions, these cannot. The same for Q-values and logits; docs/distillation.md has formulas and sources.
"""

import copy

import torch
from torch import Tensor, nn

from bcl import losses
from bcl.attacks import PGD, TargetValue
from bcl.attacks.threat import per_sample
from bcl.bounds import input_box, training_margins
from bcl.config import DistillConfig
from bcl.device import enough_memory, quick_kernels
from bcl.envs import VectorEnv
from bcl.errors import ConfigError
from bcl.learners.dqn import ReplayLearner
from bcl.learners.learner import Record, Reporter, State, Task
from bcl.learners.metrics import Metrics
from bcl.learners.replay import Replay
from bcl.policies import Policy, as_float
from bcl.policies.files import fingerprint, load

WARM_UP = 500  # updates over which the step size rises: the first ones see a network that never saw bounds
STEADY = 0.75  # share of the run before the step size falls: while the budget rises there is much to learn
REACH = 2.5  # budgets that the steps of PGD cover together
SHARPNESS = 4.0  # leads are measured in 1 / so much of the teacher's usual one, beyond which the loss is nearly 0
REFILL = 0.25  # share of the replay memory that a run resumed without it collects
SCALE_BATCHES = 8  # replayed batches behind that usual lead


@enough_memory("distill.buffer_size", "distill.batch_size", "distill.num_envs")
def train(
    policy: Policy,
    env: VectorEnv,
    config: DistillConfig,
    task: Task,
    record: Record,
    state: State | None = None,
    teacher: Policy | None = None,
) -> Policy:
    """Train `policy` in place on `env`; `state`: a checkpoint. The teacher is `config.teacher`, else `teacher`, else
    the policy itself as it is."""
    learner = DistillLearner(policy, env, config, task, teacher)
    reporter = Reporter(learner, config, record, state)
    obs = learner.restart()
    with quick_kernels(learner.bf16):
        while learner.step < config.steps:
            actions = learner.play(obs)
            learner.update()
            obs = reporter.report(learner.store(obs, actions))
    return policy


def load_teacher(name: str, student: Policy) -> Policy | None:
    """The agent of that file or of the zoo, which must see and do what the student does; none without a name."""
    if not name:
        return None
    teacher = load(name, student.device)
    its = teacher.spec
    own = student.spec
    for what, fits in (
        ("plays another game", not (its.game and own.game) or its.game.id == own.game.id),
        ("has other actions", its.num_actions == own.num_actions),
        ("sees other observations", (its.obs_shape, its.low, its.high) == (own.obs_shape, own.low, own.high)),
    ):
        if not fits:
            hint = "give one that was made for this game"
            raise ConfigError(f"distill.teacher '{name}' {what} than its student", hint)
    return teacher


class DistillLearner(ReplayLearner):
    """The student, its teacher and what the student has seen."""

    section = "distill"
    config: DistillConfig

    def __init__(
        self, policy: Policy, env: VectorEnv, config: DistillConfig, task: Task, teacher: Policy | None = None
    ) -> None:
        super().__init__(policy, env, config, task, round(config.in_play * env.num_envs), config.spread)
        self.held = config.paced_by
        if self.pacer is None:
            raise ConfigError("distillation needs a paced budget", 'give its stage strategy = "paced"')
        chosen = load_teacher(config.teacher, policy) or teacher or copy.deepcopy(policy)
        self.teacher = chosen.requires_grad_(False)
        self._student = self._compiled_network(policy)
        self._labels = self._compiled_network(self.teacher)
        self._margins = self._compiled(training_margins)
        self._scale = torch.zeros((), device=self.device)  # the teacher's usual lead
        self._show = self._graph(self._perturb_victims, "attack")
        self._improve = self._graph(self._take_gradient_step, "update")
        self.replay = Replay(config.buffer_size, self._obs, n_step=1, gamma=1.0, perturbations=False)
        self._learns_from = env.num_envs  # agent step

    def play(self, obs: Tensor) -> Tensor:
        """Start the next step: (N,) actions of the student, on the first copies for what the adversary shows."""
        assert self.pacer
        self._eps.fill_(self.pacer.eps)
        shown = obs
        if self._driven:
            self._obs.copy_(obs)
            with self.meter.device("attack"):
                shown = torch.cat([self._show(), as_float(obs[self._driven :])])
        with self.meter.host("act"):
            return self.player.play(shown, self.config.exploration)

    def update(self) -> None:
        if self._learns() and not self._updates:
            self._measure_scale()
        super().update()

    def _learns(self) -> bool:
        assert self.pacer
        return self.pacer.knows_start and self.step >= self._learns_from

    def scheduled(self) -> Metrics:
        return {"eps": self._eps.item(), "learning_rate": self._rate.item()}

    def state(self) -> State:
        """What a checkpoint needs; the teacher is in a file of its own."""
        return super().state() | {
            "teacher": fingerprint(self.teacher),
            "updates": self._updates,
            "scale": self._scale,
        }

    def restore(self, state: State) -> None:
        """Continue from `state`; without a replay memory in it, a part of one is collected first."""
        if state["teacher"] != fingerprint(self.teacher):
            hint = f"put back the file of distill.teacher '{self.config.teacher}', or begin anew with another --out"
            raise ConfigError("the run was begun with another teacher than there is now", hint)
        super().restore(state)
        self._updates = state["updates"]
        self._scale.copy_(state["scale"])
        if state["replay"] is None:
            # Copies begin together: a memory of their first steps alone makes a network forget the rest of the game.
            self._learns_from = self.step + round(REFILL * self.replay.capacity)

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
            raise ConfigError("the teacher gives all actions the same action score", "give a trained agent")

    def _teach(self, obs: Tensor) -> Tensor:
        return self._scores(self._labels, obs).float()

    def _perturb_victims(self) -> Tensor:
        obs = as_float(self._obs[: self._driven])
        return self._perturbed(self._attack(self._teach(obs)), obs, self._budgets(len(obs)))

    def _attack(self, scores: Tensor) -> PGD:
        """For what costs most by the teacher's scores."""
        steps = self.config.attack_steps
        return PGD(steps, REACH / steps, random_start=True, objective=TargetValue(scores))

    def _take_gradient_step(self) -> None:
        c = self.config
        batch = self.replay.sample(c.batch_size, self.generators["update"])
        scores = self._teach(batch.obs)
        best = scores.argmax(dim=1)
        # A proof for a budget covers all smaller ones.
        budgets = self._budgets(len(batch.obs)) if c.box < 1 else self._eps
        centre = batch.obs
        if c.box < 1:
            centre = self._perturbed(self._attack(scores), batch.obs, budgets * (1 - c.box), "update")
        with self._autocast():
            clean = losses.leads(self._student(batch.obs), best)
            if c.box > 0:
                radius = per_sample(budgets, centre) if budgets.dim() else budgets
                box = input_box(centre, radius * c.box, self.policy.low, self.policy.high)
                worst = self._margins(self.policy.chain(), *box, best)
            else:
                worst = losses.leads(self._student(centre), best)
        sharp = SHARPNESS / self._scale
        mistakes = losses.mistakes(scores, c.whole_mistake * self._scale)
        weights = losses.weighted_by_stakes(batch.weights, scores, self._scale, c.stakes) if c.stakes else batch.weights
        loss, info = losses.distilled(sharp * clean, sharp * worst, mistakes, weights, c.kappa)
        info["gain"] = losses.gain(worst.detach(), losses.leads(scores, best), batch.weights)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.meter.add(info)
