"""A first look: random play on three engines, then a CartPole agent written by hand, attacked and certified."""

import time

import torch
from rich.console import Console
from rich.table import Table

from bcl.attacks import attack_by_name
from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import MissingExtra
from bcl.evaluation import certify, evaluate
from bcl.games import engine_of
from bcl.policies import Policy, PolicySpec


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


def pole_follower() -> Policy:
    """Pushes the cart to the side the pole falls to: four numbers instead of training."""
    game = resolve("cartpole").game
    env = make_env(game, 1)
    policy = Policy(PolicySpec("plain-mlp", env.obs_shape, env.num_actions, env.low, env.high, game=game)).eval()
    right = torch.tensor([0.05, 0.1, 0.5, 0.5])  # cart position, its speed, pole angle, its speed; scaled units
    policy.network.load_state_dict({"model.1.weight": torch.stack([-right, right]), "model.1.bias": torch.zeros(2)})
    return policy


def attacked(console: Console, episodes: int = 20) -> Table:
    """Its return under PGD-30 and noise, and the share of states in which its action is proven, per budget."""
    policy = pole_follower()
    env = make_env(resolve("cartpole").game, episodes)
    table = Table(
        "eps", "noise", "PGD-30", "actions proven", title=f"a CartPole agent under attack, {episodes} episodes"
    )
    for eps in (0.0, 0.02, 0.05, 0.1, 0.2):
        with console.status(f"attacking at {eps}"):
            means = [evaluate(policy, env, attack_by_name(a), eps, episodes=episodes).mean for a in ("noise", "pgd-30")]
            proven = certify(policy, env, eps, episodes=episodes).acr
        table.add_row(f"{eps}", *(f"{mean:.0f}" for mean in means), f"{proven:.0%}")
    return table


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
    console.print(attacked(console))
    console.print("next: .venv/bin/bcl presets")


if __name__ == "__main__":
    main()
