"""How early a miss of a threshold is foreseen while an agent is judged, and whether it really is one.

    python benchmarks/foresight.py zoo:pong-vanilla zoo:pong-bcl-fast-at --eps 0.001 20/255 [--attack pgd-10]
    [--episodes 20] [--recipe bcl-mos-at] [--out benchmarks/results/foresight-NAME.json]

Plays agents of one game without attack and at every budget, as a curriculum judges them, and asks after every step what
it asks once a second (`UnderWay.falls_short`): whether the score will be below the recipe's threshold for it. The first
agent is the one that training is taken to have begun from. Where a score is known is the end of its last episode.
"""

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provenance import store

import bcl
from bcl.attacks import Attack, attack_by_name
from bcl.config import resolve_stages
from bcl.errors import BclError, ConfigError
from bcl.evaluation import Cell, Plan, Score, UnderWay, evaluate_cells
from bcl.experiment.phases import rules_of
from bcl.experiment.verdict import SELECTION, plan_of
from bcl.games import HIGHEST_RETURNS
from bcl.policies import Policy
from bcl.settings import format_return, parse_eps


def followed(policy: Policy, plan: Plan, cell: Cell, falls_short: Callable[[UnderWay], bool]) -> tuple[Score, int, int]:
    """The score, the steps until it was foreseen to fall short (0: never), and those until it was known."""
    asked: list[Callable[[], list[UnderWay]]] = []
    foreseen = known = 0

    def told(steps: int, episodes: int) -> None:
        nonlocal foreseen, known
        known = steps
        if not foreseen and any(map(falls_short, asked[-1]())):
            foreseen = steps

    with contextlib.closing(plan.make_env(plan.copies(), policy.device)) as env:
        [(_, score)] = evaluate_cells(policy, [env], [cell], plan, progress=told, follow=asked.append)
    return score, foreseen, known


def measure(
    names: Sequence[str], attack: Attack, budgets: Sequence[float], episodes: int, recipe: str
) -> dict[str, Any]:
    """A row for every score; prints them."""
    policies = {name: bcl.load(name) for name in names}
    first, *_ = policies.values()
    games = {policy.spec.game and policy.spec.game.id for policy in policies.values()}
    if len(games) > 1 or not first.spec.game:
        raise ConfigError(f"{' '.join(policies)} do not play one game that is known", "give agents of one game")
    [(stage, config)] = resolve_stages(first.spec.game.id, recipe=recipe)[-1:]
    config = replace(config, game=first.spec.game)  # recipes may have another pipeline
    plan = replace(plan_of(config, SELECTION), episodes=episodes)
    start, *_ = followed(first, plan, Cell(None, 0.0), lambda told: False)
    rules = rules_of(config, stage.strategy, config.curriculum.start).in_returns(lambda eps: start.mean)
    highest = HIGHEST_RETURNS.get(config.game.id)
    rows: list[dict[str, Any]] = []
    for name, policy in policies.items():
        for cell in (Cell(None, 0.0), *(Cell(attack, eps) for eps in budgets)):
            least = rules.attacked_threshold if cell.eps else rules.nominal_threshold
            if least is None:
                continue
            falls_short = functools.partial(UnderWay.falls_short, least=least, highest=highest, start=start)
            score, foreseen, known = followed(policy, plan, cell, falls_short)
            misses = score.mean < least
            rows.append(
                {"agent": name, "attack": cell.label, "eps": cell.eps, "return": score.mean, "threshold": least}
                | {"misses": misses, "foreseen_after": foreseen, "known_after": known}
            )
            verdict = f"{'misses' if misses else 'meets'} {format_return(least)}"
            when = f"foreseen after {foreseen:,} of" if foreseen else "not foreseen in"
            print(
                f"{name:24} {cell.label:22} {format_return(score.mean):>9} {verdict}: {when} {known:,} steps",
                flush=True,
            )
    return {"game": config.game.id, "episodes": episodes, "seed": plan.seed, "rows": rows}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="+")
    parser.add_argument("--eps", nargs="+", required=True)
    parser.add_argument("--attack", default="pgd-10", help="one, by its name")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--recipe", default="bcl-mos-at", help="whose thresholds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        budgets = [parse_eps(eps) for eps in options.eps]
        found = measure(options.agents, attack_by_name(options.attack), budgets, options.episodes, options.recipe)
    except BclError as error:
        sys.exit(str(error))
    if options.out:
        store(options.out, "cpu", found)


if __name__ == "__main__":
    main()
