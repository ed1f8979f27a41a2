"""A whole evaluation: every attack at every budget, each cell stored when it is done."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bcl
from bcl.attacks import Attack
from bcl.attacks.names import attack_label
from bcl.bounds import Method
from bcl.envs import VectorEnv, make_env
from bcl.envs.vector import seed_list
from bcl.errors import ConfigError
from bcl.evaluation.certify import Certificate, certify
from bcl.evaluation.evaluate import Precision, Progress, Protocol, evaluate
from bcl.evaluation.score import NO_ATTACK, Score
from bcl.games import REFERENCE_NOOPS, AtariGame, Game, ProcgenGame, game_to_dict
from bcl.policies import Policy
from bcl.policies.files import fingerprint
from bcl.quantities import format_eps
from bcl.runs import store


@dataclass(frozen=True)
class Plan:
    """What is asked of every cell."""

    game: Game
    episodes: int
    seed: int = 0
    protocol: Protocol = "fixed"
    precision: Precision = "fast"
    num_envs: int = 0
    """Copies played at once; 0: one per episode, at most 64, and always 64 where the protocol is `first`."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"{self.episodes} episodes cannot be judged", "ask for at least 1")
        if self.num_envs < 0:
            raise ConfigError(f"{self.num_envs} copies cannot be played", "give 0 or more")
        seed_list(self.seed, self.copies())

    def copies(self) -> int:
        """How many copies of the game are played at once."""
        return self.num_envs or (64 if self.protocol == "first" else min(self.episodes, 64))


@dataclass(frozen=True)
class Cell:
    """One score to be had."""

    attack: Attack | None
    eps: float

    @property
    def label(self) -> str:
        """For progress lines."""
        return "nominal" if self.attack is None else f"{attack_label(repr(self.attack))} at {format_eps(self.eps)}"


def cells(attacks: Sequence[Attack], budgets: Sequence[float]) -> list[Cell]:
    """Nominal play, then every attack at every budget above 0."""
    return [Cell(None, 0.0), *(Cell(attack, eps) for eps in sorted({*budgets}) if eps > 0 for attack in attacks)]


def game_for_evaluation(game: Game, env_set: str | None, max_steps: int, starts: int = 0) -> Game:
    """The game as it is judged: the set of levels (Procgen); the step limit, for the first `starts` episodes the
    reference's no-ops, and v1's moves after a lost life (Atari), which its reference plays in evaluations alone."""
    if isinstance(game, ProcgenGame):
        if env_set not in (None, "train", "eval"):
            raise ConfigError(f"unknown set of levels '{env_set}'", "train or eval")
        return dataclasses.replace(game, num_levels=0) if env_set == "eval" else game
    if env_set is not None:
        raise ConfigError(f"'{game.id}' has no sets of levels", "--env-set is for Procgen games")
    if isinstance(game, AtariGame):
        moves = game.life_reset or game.pipeline == "v1"
        return dataclasses.replace(game, max_steps=max_steps, first_noops=REFERENCE_NOOPS[:starts], life_reset=moves)
    return game


def run_suite(
    policy: Policy,
    plan: Plan,
    wanted: Sequence[Cell],
    folder: Path,
    progress: Callable[[Cell], Progress] = lambda cell: lambda done, of: None,
) -> Iterator[Score]:
    """Yield every score; cells found in `folder` are read, the others played and written there when done."""
    device = next(policy.parameters()).device
    identity = fingerprint(policy)
    env: VectorEnv | None = None
    threads = torch.get_num_threads()
    if len(policy.spec.obs_shape) == 1:
        torch.set_num_threads(1)  # on small matrices threads only wait for each other
    try:
        for cell in wanted:

            def play(cell: Cell = cell) -> dict[str, Any]:
                nonlocal env
                env = env or make_env(plan.game, plan.copies(), device)
                score = evaluate(
                    policy,
                    env,
                    cell.attack,
                    cell.eps,
                    episodes=plan.episodes,
                    seed=plan.seed,
                    protocol=plan.protocol,
                    precision=plan.precision,
                    progress=progress(cell),
                )
                return score.to_dict() | _about(plan, identity, device)

            file = cell_file(folder, cell, plan, identity, device.type)
            yield Score.from_dict(store.once(file, play), file)
    finally:
        torch.set_num_threads(threads)
        if env is not None:
            env.close()


def run_certificates(
    policy: Policy,
    plan: Plan,
    budgets: Sequence[float],
    method: Method,
    folder: Path,
    progress: Callable[[str], Progress] = lambda label: lambda done, of: None,
) -> Iterator[Certificate]:
    """Yield the certificate of every budget, stored like scores."""
    identity, device = _identity(policy), next(policy.parameters()).device
    for eps in budgets:

        def prove(eps: float = eps) -> dict[str, Any]:
            env = make_env(plan.game, plan.episodes, device)
            report = progress(f"{method} at {format_eps(eps)}")
            proof = certify(policy, env, eps, method=method, episodes=plan.episodes, seed=plan.seed, progress=report)
            env.close()
            return proof.to_dict() | _about(plan, fingerprint(policy), device)

        yield Certificate.from_dict(store.once(folder / _file_name(method, eps, plan, identity), prove))


def run_floor(policy: Policy, plan: Plan, folder: Path, progress: Progress = lambda done, of: None) -> Score:
    """Play in which every action is the one the policy scores lowest: what an adversary without limits would force."""

    def play() -> dict[str, Any]:
        env = make_env(plan.game, plan.copies(), next(policy.parameters()).device)
        score = evaluate(
            policy, env, None, 0.0, episodes=plan.episodes, seed=plan.seed, protocol=plan.protocol,
            choose=functools.partial(torch.argmin, dim=1), progress=progress,
        )  # fmt: skip
        env.close()
        return score.to_dict()

    return Score.from_dict(store.once(folder / _file_name("lowest-scored", 0.0, plan, _identity(policy)), play))


def _about(plan: Plan, policy: str, device: torch.device) -> dict[str, Any]:
    """Whose result it is and what it was made with, to be kept beside it."""
    return {
        "game": game_to_dict(plan.game),
        "num_envs": plan.copies(),
        "policy": f"{policy} on {device.type}",
        "bcl": bcl.__version__,
        "torch": torch.__version__,
        "device": str(device),
    }


def _identity(policy: Policy) -> str:
    return f"{fingerprint(policy)} on {next(policy.parameters()).device.type}"


def cell_file(folder: Path, cell: Cell, plan: Plan, policy: str, device: str) -> Path:
    """Where `run_suite` keeps a cell: `policy` is a fingerprint, `device` the type of the one that plays it."""
    attack = NO_ATTACK if cell.attack is None else repr(cell.attack)
    return folder / _file_name(attack, cell.eps, plan, f"{policy} on {device}")


def _file_name(what: str, eps: float, plan: Plan, policy: str) -> str:
    """A name people can read, unique for everything that decides the result."""
    facts = (what, eps, plan, plan.copies(), policy, bcl.__version__)
    words = re.sub(r"[^a-z0-9]+", "-", f"eps {format_eps(eps)} {what}".lower()).strip("-")
    return f"{words[:60]}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:8]}.json"
