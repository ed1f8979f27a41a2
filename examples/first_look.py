"""A first look: play a few games with random actions through the one vector interface, and print what they score."""

import time

import torch
from rich.console import Console
from rich.table import Table

from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import MissingExtra
from bcl.games import engine_of


def random_returns(game_name: str, num_envs: int = 8, max_steps: int = 1_000) -> tuple[list[float], float]:
    """Returns of the episodes that random play finished, and agent steps per second."""
    envs = make_env(resolve(game_name).game, num_envs)
    envs.reset(seed=0)
    draws = torch.Generator().manual_seed(0)
    running = torch.zeros(num_envs)
    finished: list[float] = []
    start = time.perf_counter()
    for _ in range(max_steps):
        envs.send(torch.randint(envs.num_actions, (num_envs,), generator=draws))
        step = envs.recv()
        running += step.reward
        finished += running[step.ended].tolist()
        running[step.ended] = 0
    envs.close()
    return finished, num_envs * max_steps / (time.perf_counter() - start)


def main() -> None:
    """Play and print."""
    console = Console()
    table = Table("game", "engine", "episodes", "mean return", "agent steps/s", title="random play, 8 copies, seed 0")
    for name in ("cartpole", "pong", "fruitbot"):
        with console.status(f"playing {name}"):
            try:
                returns, rate = random_returns(name)
            except MissingExtra as error:
                table.add_row(name, "", "", "", str(error))
                continue
        mean = f"{sum(returns) / len(returns):.1f}" if returns else "-"
        table.add_row(name, engine_of(resolve(name).game), str(len(returns)), mean, f"{rate:,.0f}")
    console.print(table)
    console.print("next: .venv/bin/bcl presets")


if __name__ == "__main__":
    main()
