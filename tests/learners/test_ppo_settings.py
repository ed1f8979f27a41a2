"""Every number of PPO's settings reaches the formula it belongs to."""

import json

import pytest
import torch

from bcl import losses
from bcl.errors import WeightsError
from bcl.learners.ppo import learning_rate, read_note


def test_the_loss_gets_its_weights(make_ppo):
    settings = {"clip": 0.3, "value_coef": 0.7, "entropy_coef": 0.02, "kappa": 0.4, "adam_eps": 1e-3}
    learner, given = make_ppo("at", **settings), []
    objective = learner._objective
    learner._objective = lambda *args: given.append(args) or objective(*args)
    learner.update(learner.rollout(learner.restart())[0])
    assert given
    assert all(args[-2:] == (losses.LossWeights(0.3, 0.7, 0.02), 0.4) for args in given)
    assert learner.optimizer.param_groups[0]["eps"] == 1e-3


def test_the_step_size_of_an_update_is_that_of_its_rollouts_beginning(make_ppo):
    learner = make_ppo(learning_rate=0.1, learning_rate_end=0.0, steps=80)
    obs, rates = learner.restart(), []
    for _ in range(2):
        rollout, obs = learner.rollout(obs)
        learner.update(rollout)
        rates.append(learner._rate.item())
    assert rates == pytest.approx([0.1, 0.05])
    assert learning_rate(learner.config, 80) == 0


def test_returns_are_scaled_by_their_own_discount_and_begin_anew_at_every_end(make_ppo):
    """By hand from what the copies really got; episodes are cut off after 3 steps or end by themselves."""
    world = {"limits": (3,), "rewards": (1, 2, 3, 4, 5), "steers": False}
    learner = make_ppo(normalise_returns=True, return_gamma=0.8, gamma=0.5, world=world)
    steps, recv = [], learner.env.recv
    learner.env.recv = lambda: steps.append(recv()) or steps[-1]
    learner.rollout(learner.restart())
    assert any(step.truncated.any() for step in steps)
    running, seen = torch.zeros(4, dtype=torch.float64), []
    for step in steps:
        running = 0.8 * running + step.reward
        seen.append(running)
        running = running * ~(step.terminated | step.truncated)
    seen = torch.cat(seen)
    mean, _, count = learner.returns.state().tolist()
    assert count == pytest.approx(len(seen) + 1e-4)
    assert mean == pytest.approx(seen.sum().item() / count)


@pytest.mark.parametrize(
    "note",
    ["", "123", "[1.0, 2.0]", "[true, true, true]", '["1", "2", "3"]', "[1.0, -2.0, 3.0]", "[NaN, 1.0, 1.0]", "[0.0, 1.0, 0.0]",
     f"[1{'0' * 400}, 1.0, 1.0]", "[" * 200_000],
)  # fmt: skip
def test_statistics_that_are_none_are_refused(note):
    with pytest.raises(WeightsError, match="keep_return_statistics"):
        read_note(note)


def test_statistics_are_read_as_they_were_written(make_ppo):
    learner = make_ppo(normalise_returns=True)
    learner.rollout(learner.restart())
    assert read_note(learner.returns.to_note()) == json.loads(learner.returns.to_note())


def test_an_observation_is_not_rounded_before_the_first_weights(make_ppo):
    learner = make_ppo(hidden=(16,))
    obs = torch.ones(1, 5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(learner.policy(obs), learner.policy(obs + 1 / 1024))
