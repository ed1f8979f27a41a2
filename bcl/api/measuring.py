"""bcl.bench."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from bcl.api import check, named_game
from bcl.config import preset_names, resolve
from bcl.errors import ConfigError, MissingExtra, counted
from bcl.games import AtariGame, Game
from bcl.result import Listing
from bcl.settings import Count, Natural, format_eps

if TYPE_CHECKING:
    from bcl.attacks import Attack
    from bcl.policies import Policy

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

    for name in games:
        game = resolve(name).game
        assert isinstance(game, AtariGame)
        policy = untrained_policy(game, device)
        for attack in map(attack_by_name, ATTACKS):
            first = attack_speed(policy, game, attack, EPS, copies=num_envs, steps=1)
            steps = max(1, min(1000, int(first * seconds / num_envs)))
            rate = attack_speed(policy, game, attack, EPS, copies=num_envs, steps=steps)
            row = {"game": name, "attack": repr(attack), "steps_per_second": rate}
            yield row, f"{name:<13} {attack!r:<90}{rate:>10,.1f}"


def _games(games: list[str], num_envs: int, threads: int, seconds: float) -> Iterator[tuple[dict[str, Any], str]]:
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
            yield row, f"{name:<13} {game.engine:<11}{label:<10}{shown}"


def _pipelines(game: Game) -> Iterator[tuple[str, Game]]:
    """The ways in which a game can be seen."""
    if not isinstance(game, AtariGame):
        yield "", game
        return
    for pool in ("gray", "rgb"):
        yield pool, dataclasses.replace(game, pool=pool)
    if game.id == "road_runner":
        yield "v1", dataclasses.replace(game, pipeline="v1", num_actions=0)


def untrained_policy(game: Game, device: str) -> "Policy":
    """The paper's network for a game; speed does not depend on what the weights are."""
    import torch

    from bcl.envs import make_env
    from bcl.policies import Policy, PolicySpec, default_kind

    env = make_env(game, 1)
    algo = "ppo" if len(env.obs_shape) == 3 and env.obs_shape[0] == 3 else "dqn"
    kind = default_kind(env.obs_shape, algo)
    spec = PolicySpec(kind, env.obs_shape, env.num_actions, env.low, env.high, (128, 128), game=game)
    env.close()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Policy(spec).to(device).eval()


def attack_speed(policy: "Policy", game: AtariGame, attack: "Attack", eps: float, *, copies: int, steps: int) -> float:
    """Agent steps per second of `copies` episodes at once; start-up included."""
    from bcl.envs import make_env
    from bcl.evaluation import evaluate

    env = make_env(dataclasses.replace(game, max_steps=steps), copies, policy.device)
    start = time.perf_counter()
    score = evaluate(policy, env, attack, eps, episodes=copies)
    elapsed = time.perf_counter() - start
    env.close()
    return sum(score.lengths) / elapsed


def game_speed(game: Game, copies: int, threads: int, seconds: float) -> float:
    """Agent steps of all copies together per second under random play, start-up excluded."""
    import torch

    from bcl.envs import make_env

    warm_up = 5
    env = make_env(game, copies, threads=threads)
    env.reset(0)
    draws = torch.Generator().manual_seed(0)
    vector_steps = 0
    start = time.perf_counter()
    while vector_steps < 20 or time.perf_counter() - start < seconds:
        env.send(torch.randint(env.num_actions, (copies,), generator=draws))
        env.recv()
        vector_steps += 1
        if vector_steps == warm_up:
            start = time.perf_counter()
    elapsed = time.perf_counter() - start
    env.close()
    return (vector_steps - warm_up) * copies / elapsed
