"""How fast this machine is: agent steps per second of games alone, and under attack with untrained weights."""

import dataclasses
import time

import torch

from bcl.attacks import Attack
from bcl.envs import make_env
from bcl.errors import ConfigError
from bcl.evaluation.play import evaluate
from bcl.games import AtariGame, Game
from bcl.policies import Policy, PolicySpec, default_kind


def untrained_policy(game: Game, device: str) -> Policy:
    """The paper's network for a game; speed does not depend on what the weights are."""
    env = make_env(game, 1)
    algo = "ppo" if len(env.obs_shape) == 3 and env.obs_shape[0] == 3 else "dqn"
    spec = PolicySpec(
        default_kind(env.obs_shape, algo), env.obs_shape, env.num_actions, env.low, env.high, (128, 128), game=game
    )
    env.close()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Policy(spec).to(device).eval()


def attack_speed(policy: Policy, game: Game, attack: Attack, eps: float, *, copies: int, steps: int) -> float:
    """Agent steps per second of `copies` episodes of at most `steps` steps at once; start-up included."""
    if not isinstance(game, AtariGame):
        raise ConfigError(f"'{game.id}' has no step limit to set", "measure an Atari game")
    env = make_env(dataclasses.replace(game, max_steps=steps), copies, next(policy.parameters()).device)
    start = time.perf_counter()
    score = evaluate(policy, env, attack, eps, episodes=copies)
    elapsed = time.perf_counter() - start
    env.close()
    return sum(score.lengths) / elapsed


def game_speed(game: Game, copies: int, threads: int, seconds: float) -> float:
    """Agent steps of all copies together per second under random play, start-up excluded."""
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
