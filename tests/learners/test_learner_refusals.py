"""Settings with which nothing would be learned, or that do not fit into memory, end in one sentence."""

import pytest

from bcl.config import AttackConfig, DqnConfig, resolve
from bcl.envs import make_env
from bcl.errors import ConfigError, TrainingError
from bcl.learners.dqn import train
from bcl.learners.learner import Task
from bcl.policies import Policy, PolicySpec
from tests.learners.told import Told


def updates(**settings):
    env = make_env(resolve("cartpole").game, 4)
    spec = PolicySpec("dueling-mlp", env.obs_shape, env.num_actions, env.low, env.high, (8,))
    rows = []
    config = DqnConfig(num_envs=4, log_steps=1, **settings)
    told = Told(log=rows.append)
    train(Policy(spec), env, config, AttackConfig(), Task("standard", 0.0, 0.0, seed=0), told)
    return sum(row["updates"] for row in rows)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        # 3 vector steps hold 10 transitions, 2 more complete their sums; in the next, 4 x 8 samples are one batch.
        ({"replay_initial": 10, "n_step": 3, "batch_size": 32, "samples_per_step": 8}, 24),
        (
            {"replay_initial": 10, "n_step": 3, "batch_size": 33, "samples_per_step": 8},
            28,
        ),  # half a batch a step, about
        ({"replay_initial": 10**6, "buffer_size": 40, "batch_size": 32, "samples_per_step": 8}, 44),  # full before that
        ({"replay_initial": 0, "batch_size": 4, "samples_per_step": 1}, 8),
    ],
)
def test_a_run_makes_at_least_one_update(settings, first):
    assert updates(steps=first, **settings) == 1
    with pytest.raises(ConfigError, match=f"end before the first update, at {first}"):
        updates(steps=first - 4, **settings)


def test_a_memory_that_cannot_hold_n_steps_is_refused():
    assert DqnConfig(num_envs=10, buffer_size=30, n_step=3)
    with pytest.raises(ConfigError, match=r"dqn\.buffer_size 29 is too small for 3 steps of 10 copies"):
        DqnConfig(num_envs=10, buffer_size=29, n_step=3)


def test_running_out_of_memory_names_the_settings():
    with pytest.raises(TrainingError, match=r"lower dqn\.buffer_size"):
        updates(buffer_size=10**16, steps=100_000)
