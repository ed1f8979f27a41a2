"""Runs made by hand, to be compared."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bcl import experiment
from bcl.attacks import PGD, RIFGSM, Attack
from bcl.config import resolve_stages
from bcl.evaluation import Plan, Score, game_for_evaluation
from bcl.evaluation.evaluation import append_score
from bcl.evaluation.plan import Starts
from bcl.games import Game
from bcl.reports.compare import Block, compare_agents
from bcl.runs import store
from bcl.runs.directory import Repeats
from bcl.runs.results import Results

PGD30, RI = PGD(steps=30, step=0.1), RIFGSM()
Cells = Mapping[tuple[Attack | None, float], list[float]]


def judge(folder: Path, game: Game, cells: Cells, policy: str = "p", seed: int = 1, starts: Starts = "game") -> None:
    """Scores as `bcl attack` stores them."""
    game = game_for_evaluation(game, None, 10_000)
    for (attack, eps), returns in cells.items():
        count = len(returns)
        prefixes = (5,) * count if starts == "varied" else ()
        score = Score(attack, eps, tuple(returns), (1,) * count, 0.0, eps, 0.0, seed, "fixed", prefixes=prefixes)
        plan = Plan(game, count, seed, starts=starts)
        append_score(Results(folder).scores, plan.conditions(policy, "cpu"), score)


def finished(
    path: Path, preset: str, recipe: str, cells: Cells, seed: int = 1, flags: Mapping[str, Any] | None = None
) -> Path:
    """A run that ended, without the training."""
    stages = resolve_stages(preset, recipe=recipe, settings=flags)
    experiment.create(path, stages, "cpu", None)
    judge(path, stages[-1][1].game, cells, seed=seed)
    game = game_for_evaluation(stages[-1][1].game, None, 10_000)
    conditions = Plan(game, len(cells[None, 0.0]), seed).conditions("p", "cpu")
    verdict = {"conditions": [conditions.to_dict()], "attacks": [], "budgets": [], "final_score": 0.0, "flags": []}
    about = {"policy": "p", "curriculum": "", "kept": "", "reached": 0.0}
    store.write_json(path / "result.json", about | verdict)
    return path


def repeated(path: Path, preset: str, recipe: str, cells: list[Cells]) -> Path:
    for number, one in enumerate(cells):
        finished(path / f"seed{number}", preset, recipe, one, seed=number)
    Repeats(path).write([f"seed{i}" for i in range(len(cells))])
    return path


def pong(nominal: float, at10: float, at20: float, at25: float) -> Cells:
    """Four episodes around each mean; RI-FGSM is the weaker attack."""
    found: dict[tuple[Attack | None, float], list[float]] = {(None, 0.0): [nominal - 1, nominal, nominal, nominal + 1]}
    for level, mean in ((10, at10), (20, at20), (25, at25)):
        found[PGD30, level / 255] = [mean - 1, mean, mean, mean + 1]
        found[RI, level / 255] = [mean + 5] * 4
    return found


def only_block(*paths: Path) -> Block:
    [block] = compare_agents(paths).blocks
    return block
