"""bcl.bench."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

from bcl.api import check, named_game
from bcl.config import preset_names, resolve
from bcl.errors import ConfigError, MissingExtra, counted
from bcl.games import AtariGame, Game
from bcl.result import Listing
from bcl.settings import Count, Natural, format_eps

ATTACKS = ("pgd-30", "ri-fgsm", "multi-t")
EPS = 3 / 255


def bench(
    what: Literal["env", "attack"],
    *games: str,
    num_envs: Count = 32,
    threads: Natural = 0,
    seconds: float = 2.0,
    device: str = "auto",
    say: Callable[[str], object] = lambda line: None,
) -> Listing:
    """Measure this machine: agent steps per second of games under random play, or of play under attack.

    `say` is called with each line of the printed result when it is measured.

    Args:
        what: Games alone (env), or PGD-30, RI-FGSM and Multi-T on an untrained network (attack).
        games: Games to measure, Atari games alone for attack; by default all presets for env, pong for attack.
        num_envs: Copies stepped together.
        threads: Emulator threads for env; 0 lets the engine choose.
        seconds: How long each row is measured, about.
        device: Where attacks run: auto, cpu or cuda.
    """
    check(bench, locals())
    named = [*map(named_game, games)]
    played = [resolve(name).game for name in named]  # mistakes before anything is measured
    if what == "attack" and not all(isinstance(game, AtariGame) for game in played):
        raise ConfigError("only Atari games are measured under attack", "name Atari games, or none for pong")
    copies = counted(num_envs, "copy", "copies")
    if not 0 < seconds < 3600:
        raise ConfigError(f"seconds = {seconds:g} is not possible", "give a number between 0 and 3600")
    from bcl.api.agents import pick_device

    device = str(pick_device(device))
    if what == "attack":
        title = f"agent steps/s under attack at {format_eps(EPS)}, {copies}, untrained network, {device}"
        measured = _attacks(named or ["pong"], num_envs, seconds, device)
    else:
        title = f"agent steps/s, {copies}, random actions, {counted(os.cpu_count() or 1, 'core')}"
        measured = _games(named, num_envs, threads, seconds)
    rows = []
    lines = [title]
    say(title)
    for row, line in measured:
        rows.append(row)
        lines.append(f"  {line}")
        say(lines[-1])
    return Listing(title, rows, "\n".join(lines), {"title": title, "rows": rows})


def _attacks(games: list[str], num_envs: int, seconds: float, device: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows, each with the line that shows it."""
    from bcl.attacks import attack_by_name
    from bcl.evaluation.speed import attack_speed, untrained_policy

    for name in games:
        game = resolve(name).game
        policy = untrained_policy(game, device)
        for attack in map(attack_by_name, ATTACKS):
            first = attack_speed(policy, game, attack, EPS, copies=num_envs, steps=1)
            steps = max(1, min(1000, int(first * seconds / num_envs)))
            rate = attack_speed(policy, game, attack, EPS, copies=num_envs, steps=steps)
            row = {"game": name, "attack": repr(attack), "steps_per_second": rate}
            yield row, f"{name:<14}{attack!r:<90}{rate:>10,.1f}"


def _games(games: list[str], num_envs: int, threads: int, seconds: float) -> Iterator[tuple[dict[str, Any], str]]:
    from bcl.evaluation.speed import game_speed

    for name in games or preset_names():
        for label, game in _pipelines(resolve(name).game):
            rate = None
            try:
                rate = game_speed(game, num_envs, threads, seconds)
                shown = f"{rate:>10,.0f}"
            except MissingExtra as error:
                if games:  # asked for by name
                    raise
                shown = f"  skipped: {error}"
            row = {"game": name, "engine": game.engine, "pipeline": label, "steps_per_second": rate}
            yield row, f"{name:<14}{game.engine:<11}{label:<10}{shown}"


def _pipelines(game: Game) -> Iterator[tuple[str, Game]]:
    """The ways in which a game can be seen."""
    if not isinstance(game, AtariGame):
        yield "", game
        return
    for pool in ("gray", "rgb"):
        yield pool, dataclasses.replace(game, pool=pool)
    if game.id == "road_runner":
        yield "v1", dataclasses.replace(game, pipeline="v1", num_actions=0)
