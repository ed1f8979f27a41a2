"""Training works: DQN solves CartPole, and breaks there under attack.

The whole chain is played: configuration, learner, evaluation. Robust losses would show nothing on CartPole, where
agents gain as much with the vanilla loss and their settings: they are compared on games made for it, in
test_dqn_learns.py and test_ppo_learns.py.
"""

from pathlib import Path

from bcl.attacks import PGD
from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import evaluate
from bcl.experiment import train_run
from bcl.learners.learner import Task

# With these it is done sooner than with the preset's.
SETTINGS = {
    "network": {"hidden": [64, 64]},
    "dqn": {"steps": 16_000, "samples_per_step": 32, "gamma": 0.98, "n_step": 3},
}


def test_vanilla_solves_cartpole_and_breaks_under_attack(tmp_path: Path) -> None:
    config = resolve("cartpole", settings=SETTINGS)
    policy = train_run(tmp_path / "run", config, Task("standard", 0.0, 0.0, seed=1), None, "cpu")
    clean, attacked = (
        evaluate(policy, make_env(config.game, 20), PGD(steps=10, step=0.25), eps, episodes=20, seed=1000).mean
        for eps in (0.0, 0.1)
    )
    assert clean >= 475
    assert attacked <= 250
