"""What is asked of an evaluation, and the conditions that its scores share."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

import bcl
from bcl.attacks import Attack, Directed, Learned, LowestScored, attack_label, recorded
from bcl.envs import VariedStarts, VectorEnv, make_env
from bcl.envs.vector import seed_list
from bcl.errors import ConfigError
from bcl.games import REFERENCE_NOOPS, AtariGame, Game, ProcgenGame, game_to_dict
from bcl.runs.store import fitting
from bcl.settings import format_eps, typed_values

Protocol = Literal["fixed", "first"]
Precision = Literal["fast", "full"]
Starts = Literal["game", "varied"]
Levels = Literal["train", "eval", ""]
LEVELS = {"train": "on the training levels", "eval": "on unlimited levels"}
MOST_COPIES = 65_536  # played at once; a number by mistake would fill the memory
MEANING = 1  # of a stored score: raised when the same conditions, attack and budget come to mean other play


@dataclass(frozen=True)
class Cell:
    """One score to be had."""

    attack: Attack | None
    eps: float
    game: Game | None = None
    """Of several that are played side by side, such as Procgen's sets of levels; none: that of the plan."""

    @property
    def key(self) -> tuple[Attack | None, float]:
        """By which its score is found again."""
        return recorded(self.attack), self.eps

    @property
    def identity(self) -> str:
        """All of it in words, by which what is told of it while it is played is found."""
        attack, eps = self.key
        return f"{attack!r} at {eps!r}"

    @property
    def label(self) -> str:
        """For progress lines."""
        return (f"{attack_label(self.attack)} at {format_eps(self.eps)}" if self.perturbs else "nominal") + self.where

    @property
    def where(self) -> str:
        """On which levels, where the cell says it; for people."""
        levels = levels_of(self.game) if self.game else ""
        return f" {LEVELS[levels]}" if levels else ""

    @property
    def perturbs(self) -> bool:
        """Whether observations are changed."""
        return self.attack is not None and not isinstance(self.attack, LowestScored)


def cells(attacks: Sequence[Attack], budgets: Sequence[float]) -> list[Cell]:
    """Nominal play, then every attack at every budget above 0."""
    return [Cell(None, 0.0), *(Cell(attack, eps) for eps in sorted({*budgets}) if eps > 0 for attack in attacks)]


def on_each(games: Sequence[Game], cells: Sequence[Cell]) -> list[Cell]:
    """Every cell on every game, cell by cell: of N games each has every Nth. Those of one game are left as they are."""
    if len(games) == 1:
        return [*cells]
    return [dataclasses.replace(cell, game=game) for cell in cells for game in games]


@dataclass(frozen=True)
class Plan:
    """What is asked of every cell."""

    game: Game
    episodes: int
    seed: int = 0
    protocol: Protocol = "fixed"
    """`fixed`: every copy plays a number of episodes set beforehand, so that short episodes are not over-counted;
    `first`: the first to finish on any copy count, in order of finishing, as the reference does on Procgen."""
    precision: Precision = "fast"
    """`fast`: on a GPU attacks search in half precision, which sees 1/8 gray level; actions are decided in full."""
    num_envs: int = 0
    """Copies played at once; 0: one per episode, at most 64, and always 64 where the protocol is `first`."""
    starts: Starts = "game"
    """`game`: as the game has them, on Atari no-ops; `varied`: then random actions (`bcl.envs.VariedStarts`)."""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"{self.episodes} episodes cannot be evaluated", "ask for at least 1")
        if self.copies() > MOST_COPIES:
            what = f"{self.copies():,} copies of a game do not fit into memory"
            raise ConfigError(what, f"play at most {MOST_COPIES:,} at once: --num-envs, or fewer --episodes")
        seed_list(self.seed, self.copies())

    def make_env(self, copies: int, device: torch.device) -> VectorEnv:
        """Copies of the game whose episodes begin as asked."""
        env = make_env(self.game, copies, device)
        return VariedStarts(env) if self.starts == "varied" else env

    def copies(self) -> int:
        """How many copies of the game are played at once."""
        return self.num_envs or (64 if self.protocol == "first" else min(self.episodes, 64))

    def of(self, cell: Cell) -> "Plan":
        """With the game of a cell."""
        return dataclasses.replace(self, game=cell.game) if cell.game else self

    def conditions(self, agent: str, device: str) -> "Conditions":
        """Those of its scores, for an agent with this fingerprint on this kind of device."""
        precision = self.precision if device == "cuda" else "full"
        return Conditions(agent, device, dataclasses.replace(self, num_envs=self.copies(), precision=precision))


@dataclass(frozen=True)
class Conditions:
    """What all scores of an evaluation share, by which they are found again."""

    agent: str
    """Fingerprint of the policy."""
    device: str
    """cpu or cuda: they round differently."""
    plan: Plan
    """With its number of copies; on a CPU precision is full, whatever was asked for."""
    meaning: int = MEANING

    def of(self, cell: Cell) -> "Conditions":
        """With the game of a cell."""
        return dataclasses.replace(self, plan=self.plan.of(cell))

    def to_dict(self) -> dict[str, Any]:
        """What is stored beside a score, which has its precision itself."""
        return {
            "agent": self.agent,
            "device": self.device,
            "game": game_to_dict(self.plan.game),
            "num_envs": self.plan.num_envs,
            "episodes": self.plan.episodes,
            "seed": self.plan.seed,
            "protocol": self.plan.protocol,
            "asked": self.plan.precision,
            "starts": self.plan.starts,
            "meaning": self.meaning,
            "bcl": bcl.__version__,
            "torch": torch.__version__,
        }

    @classmethod
    def from_row(cls, row: dict[str, Any], source: str) -> "Conditions":
        """The inverse of `to_dict`, of a stored score or certificate."""
        with fitting(source):
            facts = {name: row[name] for name in ("agent", "device", "meaning")}
            asked = {name: row[name] for name in ("seed", "protocol", "num_envs", "starts")}
            asked["game"] = row.get("game", {})
            asked["episodes"] = len(row["returns"]) if "returns" in row else row["episodes"]
            asked["precision"] = row["asked"]
            return cls(plan=Plan(**typed_values(Plan, asked)), **typed_values(cls, facts))


def network_passes(attack: Attack | None, starts_at_once: int = 1) -> int:
    """About how often a step under this attack goes through the network, so many of its starts in one pass; what climbs
    towards every action at once counts once."""
    if isinstance(attack, Learned):
        return Directed.steps if attack.found is None else network_passes(attack.found, starts_at_once)
    found = {name: getattr(attack, name, 1) for name in ("steps", "restarts", "starts", "queries")}
    counts = {name: count for name, count in found.items() if isinstance(count, int)}  # of one's own, may mean another
    counts["starts"] = math.ceil(counts.get("starts", 1) / starts_at_once)
    return math.prod(counts.values())


def levels_of(game: Game) -> Levels:
    """Which of Procgen's levels a game is played on; empty for other games."""
    return ("train" if game.num_levels else "eval") if isinstance(game, ProcgenGame) else ""


def name_of(game: Game) -> str:
    """Its id and, of Procgen's games, on which levels; for people."""
    levels = levels_of(game)
    return f"{game.id} {LEVELS[levels]}" if levels else game.id


def game_for_evaluation(game: Game, env_set: str | None, max_steps: int, starts: int = 0) -> Game:
    """With Procgen's set of levels; on Atari the step limit, the reference's no-ops first, v1's moves at lost lives."""
    if isinstance(game, ProcgenGame):
        return dataclasses.replace(game, num_levels=0) if env_set == "eval" else game
    if env_set is not None:
        raise ConfigError(f"'{game.id}' has no sets of levels", "--env-set is for Procgen games")
    if isinstance(game, AtariGame):
        moves = game.life_reset or game.pipeline == "v1"
        return dataclasses.replace(game, max_steps=max_steps, first_noops=REFERENCE_NOOPS[:starts], life_reset=moves)
    return game
