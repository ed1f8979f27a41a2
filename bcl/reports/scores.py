"""Stored scores of an agent, sorted into evaluations: what reports and comparisons are made from."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bcl.errors import GameError, StoreError
from bcl.evaluation import Score
from bcl.games import AtariGame, Game, game_from_dict
from bcl.reports.style import rank
from bcl.runs import store


@dataclass(frozen=True)
class Judged:
    """Scores of one agent that may stand in one table."""

    game: Game
    scores: dict[tuple[str, float], Score]
    """By attack and budget, in the order of `ordered`; never empty."""

    @property
    def example(self) -> Score:
        """Any of them: they share their episodes."""
        return next(iter(self.scores.values()))

    @cached_property
    def conditions(self) -> str:
        """What must be equal for two agents to stand in one table. Atari agents may see a game through different
        pipelines, as the paper's do; it is the same game. `life_reset` belongs to v1: with another than the pipeline's
        own it is not the same evaluation."""
        facts = dataclasses.asdict(self.game)
        if isinstance(self.game, AtariGame):
            own_life_reset = self.game.life_reset == (self.game.pipeline == "v1")
            facts = {name: facts[name] for name in ("id", "max_steps", "noop_max", "first_noops")}
            facts["own_life_reset"] = own_life_reset
        varied = ["varied"] if self.example.prefixes else []
        return json.dumps([facts, self.example.protocol, len(self.example.returns), *varied])


def read_scores(folder: Path, policy: str) -> list[Judged]:
    """The evaluations of an agent that lie in a folder `evals`; `policy` is its fingerprint, empty for whoever played.

    Two scores belong to one evaluation if nothing but the attack and its budget differs: the agent and the kind of device
    it played on, the game, how many copies and episodes of it and how these begin, seed, protocol, the precision that attacks searched in, and
    the version of this package. So an evaluation that was interrupted and then continued is one, and the same attacks in
    half and in full precision are two. Left out are other agents' scores, the floor of `--sanity`, which names no agent,
    and its budget of 1, which tests the attack. A score that cannot be read is refused by name: without it another attack
    would be the worst.
    """
    found: dict[str, tuple[Game, list[Score]]] = {}
    for file in sorted(folder.glob("eps-*.json")):
        data = store.read_json(file)
        agent = data.get("policy")
        if not isinstance(agent, str) or not agent.startswith(policy):
            continue
        score, game = Score.from_dict(data, file), _game(data.get("game"), file)
        if score.eps >= 1:
            continue
        facts = [data["game"], data.get("num_envs"), agent, data.get("bcl")]
        facts += [len(score.returns), score.seed, score.protocol, score.precision, bool(score.prefixes)]
        found.setdefault(json.dumps(facts), (game, []))[1].append(score)
    return [Judged(game, {(s.attack, s.eps): s for s in ordered(scores)}) for game, scores in found.values()]


def ordered(scores: Iterable[Score]) -> list[Score]:
    """Budgets ascending, at each the paper's attacks first."""
    return sorted(scores, key=lambda s: (s.eps, rank(s.attack), s.attack))


def _game(data: object, file: Path) -> Game:
    try:
        return game_from_dict(data if isinstance(data, dict) else {})
    except GameError as error:
        raise StoreError(
            f"the game of the score in '{file}' does not fit ({error.message})",
            "delete its file to have it played again",
        ) from None
