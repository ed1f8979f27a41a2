"""DQN's robust losses hold where vanilla breaks, on a game where agents differ in their loss alone."""

from typing import Any

import pytest

from bcl.config import AttackConfig, DqnConfig
from bcl.learners import dqn
from bcl.learners.learner import Task
from bcl.learners.pacing import Pace
from bcl.policies import Policy
from tests.learners.evidence import Evidence, fresh_policy, right_answers
from tests.learners.told import Told

SEED = 1
TARGET = 0.2  # AT mixes clean and attacked errors, so it needs about twice the budget that it is to hold
CONFIG: dict[str, Any] = {
    "num_envs": 64, "batch_size": 256, "samples_per_step": 8, "learning_rate": 3e-3, "learning_rate_end": 0.05, "gamma": 0.0,
    "buffer_size": 8_192, "replay_initial": 1_024, "target_sync": 64, "exploration_start": 1.0, "exploration_end": 0.1,
    "exploration_steps": 2_000, "reward_clamp": 0, "kappa": 0.5, "kappa_linear": False, "ramp": "linear", "ramp_steps": 6_000, "log_steps": 512,
    "checkpoint_minutes": 1e6,
}  # fmt: skip


def trained(task: Task, attack: AttackConfig | None = None, **settings: Any) -> tuple[Policy, list[float]]:
    """An agent, and the budgets of its rows."""
    policy, rows = fresh_policy("dueling-mlp", SEED), []
    config = DqnConfig(**(CONFIG | {"steps": 16_384} | settings))
    dqn.train(policy, Evidence(64), config, attack or AttackConfig(), task, Told(log=rows.append))
    return policy, [row["eps"] for row in rows]


def test_vanilla_trusts_what_an_adversary_can_turn() -> None:
    clean, attacked = right_answers(trained(Task("standard", 0.0, 0.0, SEED))[0])
    assert clean >= 0.95
    assert attacked <= 0.2  # a coin has 0.5


@pytest.mark.parametrize(
    ("loss", "end", "attack"),
    [
        ("radial", 0.1, None),
        ("at", TARGET, AttackConfig()),
        ("at", TARGET, AttackConfig(kind="pgd", steps=3, relative_step=0.6, objective="cross-entropy")),
    ],
)
def test_robust_losses_leave_what_an_adversary_can_turn(loss: Any, end: float, attack: AttackConfig | None) -> None:
    clean, attacked = right_answers(trained(Task(loss, 0.0, end, SEED), attack)[0])
    assert clean >= 0.8
    assert attacked >= 0.8


PACE = Pace(
    start=0.0, target=TARGET, rise_steps=2_000, patience=3_000, step_back=0.25, increment=TARGET / 4, pace_episodes=32,
    nominal_threshold=7.0, attacked_threshold=6.5,
)  # fmt: skip


@pytest.mark.parametrize(("kappa", "holds"), [(0.5, True), (1.0, False)])
def test_a_paced_budget_rises_as_far_as_the_loss_holds(kappa: float, holds: bool) -> None:
    """With kappa 1 what the adversary shows has no part in the loss: the control."""
    task = Task("at", 0.0, TARGET, SEED, PACE)
    policy, budgets = trained(task, AttackConfig(in_play=0.5), steps=24_000, kappa=kappa)
    clean, attacked = right_answers(policy)
    assert clean >= 0.8
    assert (max(budgets) == pytest.approx(TARGET)) == holds
    assert (attacked >= 0.8) == holds
