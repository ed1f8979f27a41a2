"""The learned adversary: our DQN learner plays the game as the adversary of one agent at one budget sees it: its reward
is the victim's, negated, its action the one that the victim is to take, and the first shows the truth."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bcl.attacks import Directed, Learned
from bcl.attacks.suites import MYOPIC
from bcl.attacks.threat import refuse_not_finite
from bcl.config import Config, DqnConfig, NetworkConfig, preset_for, resolve
from bcl.envs import Step, VariedStarts, VectorEnv
from bcl.envs.vector import Seeds, WrappedEnv
from bcl.errors import WeightsError, counted
from bcl.evaluation import Cell, Plan, run_suite
from bcl.evaluation.evaluation import lowest
from bcl.evaluation.plan import Starts
from bcl.evaluation.play import ActionChooser, SearchForm
from bcl.evaluation.suite import Begin
from bcl.experiment.worker import train_run
from bcl.games import AtariGame, game_to_dict
from bcl.learners.learner import Task, derive
from bcl.policies import Policy, as_float
from bcl.policies.files import fingerprint
from bcl.policies.networks import Dueling, Plain
from bcl.policies.policy import default_kind
from bcl.runs.results import ScoresFolder
from bcl.settings import format_eps

MEANING = 1  # of a stored adversary: raised when the same facts come to mean another training or choice
SEED = derive(0, "adversary")
IMAGE_FACTOR = 10  # steps on images for each on vectors
BOOKKEEPING = {"log_steps", "checkpoint_minutes", "checkpoint_replay", "accelerate"}  # settings
EPISODES = 20  # by which the director is compared with myopic attacks: neither those of training nor those reported
VECTORS: dict[str, Any] = {
    "num_envs": 16, "batch_size": 256, "samples_per_step": 32.0, "learning_rate": 1e-3, "buffer_size": 30_000,
    "replay_initial": 500, "target_sync": 16, "target_rate": 0.04, "checkpoint_replay": True,
}  # fmt: skip
IMAGES: dict[str, Any] = {
    "num_envs": 128, "batch_size": 512, "samples_per_step": 32.0, "learning_rate": 2.5e-4, "buffer_size": 200_000,
    "replay_initial": 5_000, "target_sync": 4_000, "target_rate": 1.0, "checkpoint_minutes": 2.0,
}  # fmt: skip


class AdversaryEnvs(WrappedEnv):
    """N copies of a game, played by the adversary of a victim that plays it."""

    def __init__(self, env: VectorEnv, victim: Policy, eps: float) -> None:
        super().__init__(env)
        self.num_actions = env.num_actions + 1
        self.action_names = ("truth", *env.action_names)
        device = victim.device
        # A fixed place, which a CUDA graph reads; not by way of self: graph and owner must not wait for the garbage
        # collector.
        aims = self._aims = torch.zeros(env.num_envs, dtype=torch.long, device=device)
        generator = torch.Generator(device).manual_seed(0)  # nothing is drawn
        actor = Directed(lambda obs: aims)
        self._decide = ActionChooser(victim, SearchForm(victim, "fast"), actor, eps, generator)

    def reset(self, seed: Seeds) -> Tensor:
        self._obs = self._env.reset(seed)
        return self._obs

    def send(self, actions: Tensor) -> None:
        """Show every victim what is to mislead it, and start the step that it then takes."""
        self._aims.copy_(actions - 1)
        decided = self._decide(self._obs)
        if not decided.distance.isfinite().all():  # on a GPU attacks do not look
            refuse_not_finite(as_float(self._obs))
        self._env.send(decided.actions)

    def recv(self) -> Step:
        """The result of the step, its reward negated."""
        step = self._env.recv()
        self._obs = step.obs
        return dataclasses.replace(step, reward=-step.reward)


def ready(victim: Policy, plan: Plan, folder: ScoresFolder, progress: Begin) -> Callable[[Cell], Cell]:
    """For `run_suite`: learned adversaries are trained, once per agent and budget, in a folder beside the scores."""

    def train(cell: Cell) -> Cell:
        if not isinstance(cell.attack, Learned) or cell.attack.found or cell.eps == 0:
            return cell
        game = plan.of(cell).game
        game = dataclasses.replace(game, first_noops=()) if isinstance(game, AtariGame) else game
        choosing = Plan(game, EPISODES, derive(0, "adversary", "choosing"), starts=plan.starts)
        device = victim.device.type
        config = director_config(victim, choosing, cell.attack)
        home = folder.adversary(cell.eps, identity(victim, config, plan.starts, cell.eps, device))
        at = format_eps(cell.eps) + cell.where
        steps = counted(config.dqn.steps, "step")
        try:
            director = train_run(
                home.path, config, Task("standard", 0.0, 0.0, SEED), myopic_director(victim, config), device,
                progress=progress(f"training the adversary at {at}, {steps}"),
                seen_by_learner=lambda env: AdversaryEnvs(
                    VariedStarts(env) if plan.starts == "varied" else env, victim, cell.eps
                ),
            )  # fmt: skip
        except WeightsError as error:
            raise WeightsError(error.message, f"delete '{home.path}', and it is trained again") from None
        planned = Directed(lambda obs: director(obs).argmax(dim=1) - 1)
        rivals = [dataclasses.replace(cell.attack, found=attack) for attack in (planned, *MYOPIC)]
        cells = [Cell(attack, cell.eps) for attack in (rivals[0], *MYOPIC)]
        scores = [*run_suite(victim, choosing, cells, home, lambda label: progress(f"choosing the adversary at {at}"))]
        return dataclasses.replace(cell, attack=rivals[scores.index(lowest(scores))])

    return train


def identity(victim: Policy, config: Config, starts: Starts, eps: float, device: str) -> str:
    """A short name for all that decides an adversary, under which it is found again."""
    facts = {
        "agent": fingerprint(victim),
        "game": game_to_dict(config.game),
        "starts": starts,
        "eps": eps,
        "dqn": _chosen(config.dqn),
        "network": _chosen(config.network),
        "seed": SEED,
        "device": device,
        "meaning": MEANING,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def _chosen(section: DqnConfig | NetworkConfig) -> dict[str, object]:
    """What differs from the defaults and decides about weights: a setting that comes later changes no name."""
    usual = type(section)()
    names = {field.name for field in dataclasses.fields(section)} - BOOKKEEPING
    found = {name: getattr(section, name) for name in names}
    return {name: value for name, value in found.items() if value != getattr(usual, name)}


def director_config(victim: Policy, plan: Plan, attack: Learned) -> Config:
    """How a director is trained: the game's rewards and horizon, settings of our own for the rest."""
    image = len(victim.spec.obs_shape) == 3
    steps = attack.training * (IMAGE_FACTOR if image else 1)
    config = resolve(preset_for(plan.game) or plan.game.id, recipe="vanilla", settings={"algo": "dqn"})
    dqn = dataclasses.replace(
        config.dqn, **(IMAGES if image else VECTORS), steps=steps, learning_rate_end=0.05, n_step=3, gamma=0.99,
        exploration_start=0.5, exploration_end=0.05, exploration_hold=0, exploration_steps=max(steps // 2, 1),
        exploration_repeat=16, log_steps=max(steps // 20, 1), checkpoint_steps=0 if image else max(steps // 6, 1),
    )  # fmt: skip
    own = victim.spec.kind == default_kind(victim.spec.obs_shape, "dqn")
    hidden = victim.spec.hidden if own and victim.spec.hidden else config.network.hidden
    network = dataclasses.replace(config.network, hidden=hidden)
    return dataclasses.replace(config, game=plan.game, dqn=dqn, network=network)


def myopic_director(victim: Policy, config: Config) -> Policy | None:
    """A director with the victim's scores, negated: untrained, it aims at the action that the victim scores lowest.
    None where the victim's network is not the one that the DQN learner would take."""
    network = victim.network
    if victim.spec.kind != default_kind(victim.spec.obs_shape, "dqn"):
        return None
    actions = victim.spec.num_actions
    director = Policy(dataclasses.replace(victim.spec, num_actions=actions + 1, game=config.game, parent="", notes={}))
    weights = director.network.state_dict()
    with torch.no_grad():
        for name, own in network.state_dict().items():
            if own.shape != weights[name].shape:  # the last layer; showing the truth scores the mean
                own = torch.cat([own.mean(dim=0, keepdim=True), own])
            weights[name].copy_(own)
        mine = director.network
        assert isinstance(mine, Dueling | Plain)
        for head in (mine.advantage, mine.value) if isinstance(mine, Dueling) else (mine.model,):
            for parameter in head[-1].parameters():
                parameter.neg_()
    return director
