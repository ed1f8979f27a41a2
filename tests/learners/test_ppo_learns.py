"""PPO works: it solves CartPole with the settings shipped for it, and its robust losses hold where vanilla breaks.

The robust losses are shown on a game made for it, where agents differ in their loss alone. On CartPole they would show
nothing: its AT recipe gains as much with the vanilla loss in its place (docs/ppo.md).
"""

from pathlib import Path
from typing import Any

import pytest

from bcl.config import AttackConfig, PpoConfig, resolve
from bcl.envs import make_env
from bcl.evaluation import evaluate
from bcl.experiment import train_run
from bcl.learners import ppo
from bcl.learners.learner import Record, Task
from bcl.policies import Policy
from bcl.settings import parse_settings
from tests.learners.evidence import Evidence, fresh_policy, right_answers

SEED = 1


def trained(loss: Any, attack: AttackConfig | None = None) -> Policy:
    policy = fresh_policy("actor-critic-mlp", SEED)
    config = PpoConfig(
        steps=32_768, num_envs=64, rollout=16, epochs=4, batch_size=256, learning_rate=3e-3, learning_rate_end=0.0,
        gamma=0.0, ramp="linear", ramp_start=0.0, ramp_end=0.2, checkpoint_minutes=1e6,
    )  # fmt: skip
    # AT mixes clean and attacked logits, so it needs about twice the budget; bounds are wider than attacks as it is.
    end = {"standard": 0.0, "radial": 0.1, "at": 0.2}[loss]
    ppo.train(policy, Evidence(64), config, attack or AttackConfig(), Task(loss, 0.0, end, SEED), Record())
    return policy


def test_vanilla_trusts_what_an_adversary_can_turn() -> None:
    clean, attacked = right_answers(trained("standard"))
    assert clean >= 0.95
    assert attacked <= 0.2  # a coin has 0.5


@pytest.mark.parametrize(
    ("loss", "attack"),
    [
        ("radial", None),
        ("at", AttackConfig()),
        ("at", AttackConfig(kind="pgd", steps=3, relative_step=0.6, objective="cross-entropy")),
    ],
)
def test_robust_losses_leave_what_an_adversary_can_turn(loss: str, attack: AttackConfig | None) -> None:
    clean, attacked = right_answers(trained(loss, attack))
    assert clean >= 0.8
    assert attacked >= 0.8


def test_cartpole_is_solved(tmp_path: Path) -> None:
    config = resolve("cartpole", settings=parse_settings(["--algo", "ppo"]))
    policy = train_run(tmp_path / "run", config, Task("standard", 0.0, 0.0, SEED), None, "cpu")
    assert evaluate(policy, make_env(config.game, 20), None, 0.0, episodes=20, seed=1000).mean >= 475
