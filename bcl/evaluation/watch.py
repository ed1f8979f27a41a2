"""One episode under attack, step by step: what an evaluation plays, for people to look at."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Generator

from bcl.attacks import Attack
from bcl.envs import VectorEnv
from bcl.errors import BclError
from bcl.evaluation.evaluate import Cell, Decision, Precision, SearchForm, refuse_over_budget
from bcl.policies import Policy, as_float


@dataclass(frozen=True, eq=False)
class Moment:
    """One step of an agent under attack."""

    clean: np.ndarray
    """The observation, float, as the policy would see it without an attack."""
    seen: np.ndarray
    """What the attack showed instead."""
    wanted: int
    """The action for `clean`."""
    taken: int
    """The action for `seen`, which was played."""
    reward: float
    total: float
    """Return of the episode up to and with this step."""
    screen: np.ndarray | None
    """The game's own picture, (height, width, 3) uint8, before the action; none where the envs do not render."""


def watch(
    policy: Policy,
    envs: VectorEnv,
    attack: Attack | None,
    eps: float,
    *,
    seed: int = 0,
    steps: int | None = None,
    precision: Precision = "fast",
) -> Iterator[Moment]:
    """Play one episode as `evaluate` plays it on one copy with this seed, and yield every step that counts.

    `steps` ends it early. Pictures need `make_env(..., render=True)`.
    """
    if envs.num_envs != 1:
        raise BclError(f"{envs.num_envs} copies cannot be watched at once", "make one")
    if steps is not None and steps < 1:
        raise BclError(f"{steps} steps cannot be watched", "ask for at least 1")
    return _moments(policy, envs, attack if eps > 0 else None, eps, seed, steps, precision)


def _moments(
    policy: Policy,
    envs: VectorEnv,
    attack: Attack | None,
    eps: float,
    seed: int,
    steps: int | None,
    precision: Precision,
) -> Iterator[Moment]:
    cell = Cell(attack, eps)
    generator = Generator(next(policy.parameters()).device).manual_seed(seed)
    decide = Decision(policy, SearchForm.of(policy, precision), attack, eps, generator)
    obs, total, shown, ended = envs.reset(seed), 0.0, 0, False
    while not ended and (steps is None or shown < steps):
        decided, screen = decide(obs), envs.screen()
        refuse_over_budget(decided.distance.amax(), cell)
        clean, seen = as_float(obs)[0].cpu().numpy(), decided.seen[0].cpu().numpy()
        wanted, taken = int(decided.clean[0]), int(decided.actions[0])
        envs.send(decided.actions)
        step = envs.recv()
        if not bool(step.playing[0]):  # a move of the game's own
            obs = step.obs
            continue
        total += float(step.reward[0])
        yield Moment(clean, seen, wanted, taken, float(step.reward[0]), total, screen)
        obs, ended, shown = step.obs, bool(step.ended[0]), shown + 1
