"""By which attacks and episodes agents are chosen and reported, and what their final score is."""

from collections.abc import Sequence

from bcl import stats
from bcl.attacks import Attack, attacks_named
from bcl.attacks.names import attack_label
from bcl.config import Config
from bcl.evaluation import Plan, Score, game_for_evaluation, worst
from bcl.quantities import format_eps
from bcl.recipes import find_recipe
from bcl.seeds import derive

SELECTION = "selection"
"""The purpose of episodes that agents are chosen by."""


def plan_of(config: Config, purpose: str, unlimited: bool = False) -> Plan:
    """Episodes for one purpose: those that agents are chosen by are not those that are reported. `unlimited`: on all
    levels of a Procgen game, not those of training."""
    game = game_for_evaluation(config.game, "eval" if unlimited else None, config.evaluation.max_steps)
    ours = purpose == SELECTION and find_recipe(config.recipe).ours
    starts = "varied" if ours else config.evaluation.starts
    return Plan(game, config.evaluation.episodes, derive(config.seed, purpose), starts=starts)


def plans_of(config: Config, purpose: str) -> list[Plan]:
    """The game as it was trained, then its unlimited levels if these count too."""
    both = config.evaluation.levels == "both"
    return [plan_of(config, purpose), *([plan_of(config, purpose, unlimited=True)] if both else [])]


def choosing_attacks(config: Config) -> tuple[Attack, ...]:
    """The attacks whose worst counts when agents are chosen."""
    names = [config.evaluation.suite if by == "evaluation" else by for by in config.curriculum.judged_by]
    return tuple({repr(attack): attack for name in names for attack in attacks_named(name)}.values())


def final_score(played: Sequence[Sequence[Score]], config: Config) -> float:
    """R_nominal + the mean over the scored budgets under the worst attack, summed over the sets of levels."""
    total = 0.0
    for scores in played:
        lowest = worst(scores)
        attacked = [lowest[eps].mean for eps in config.evaluation.scored if eps in lowest]
        total += scores[0].mean + (stats.mean(attacked) if attacked else 0.0)
    return total


def final_score_in_words(config: Config, attacked: bool) -> str:
    """By which attacks, budgets and levels the median of repeats is taken."""
    evaluation = config.evaluation
    words = "mean return without attack"
    if attacked:
        attacks = [attack_label(repr(attack)) for attack in attacks_named(evaluation.suite)]
        under = attacks[0] if len(attacks) == 1 else f"the worst of {', '.join(attacks)}"
        words += f" + mean over {', '.join(map(format_eps, evaluation.scored))} under {under}"
    return words + (", training levels + unlimited levels" if evaluation.levels == "both" else "")
