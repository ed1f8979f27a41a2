"""A paced budget in training: weights that step back, and exact resuming."""

import copy
from dataclasses import replace

import pytest
import torch

from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import ConfigError
from bcl.learners import dqn, ppo
from bcl.learners.pacer import Pacer
from bcl.learners.task import Hooks, Task
from bcl.pacing import NONE_PLAYED, Pace, Played
from bcl.policies import Policy, PolicySpec

PACE = Pace(start=0.0, target=0.1, rise=1e-5, patience=1_000, step_back=0.5, increment=0.01, episodes=2, nominal=10.0)


def small_policy(kind: str = "dueling-mlp") -> Policy:
    torch.manual_seed(0)
    env = make_env(resolve("cartpole").game, 1)
    return Policy(PolicySpec(kind, (4,), 2, env.low, env.high, (8, 8)))


def weights(policy: Policy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def disturb(policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    policy(torch.rand(3, 4)).square().sum().backward()
    optimizer.step()


def test_weights_go_back_with_the_budget_to_the_last_judgement_that_was_met():
    policy = small_policy()
    optimizer = torch.optim.Adam(policy.parameters())
    pacer = Pacer(PACE, policy, optimizer)
    disturb(policy, optimizer)
    good = weights(policy)
    assert not pacer.observe(1_000, Played(24, 2), NONE_PLAYED)  # met
    disturb(policy, optimizer)
    assert not pacer.observe(2_000, Played(2, 2), NONE_PLAYED)  # missed
    assert not same(weights(policy), good)
    eps = pacer.eps
    assert pacer.observe(3_000, Played(2, 2), NONE_PLAYED)  # missed for its patience
    assert same(weights(policy), good)
    assert pacer.eps == pytest.approx(eps / 2)
    assert all(not value.any() for state in optimizer.state.values() for value in state.values())


def test_nothing_is_learned_before_the_start_was_judged():
    """So that adaptive thresholds are shares of the start's own return, and the memory has whole episodes."""
    policy = small_policy()
    start = weights(policy)
    env = make_env(resolve("cartpole").game, 4)
    config = replace(resolve("cartpole").dqn, steps=2_000, num_envs=4, replay_initial=8, batch_size=8, log_steps=40)
    rows = []
    hooks = Hooks(log=lambda row: rows.append((row, same(weights(policy), start))))
    task = Task("radial", 0.0, 0.1, 0, replace(PACE, first_episodes=8, nominal=0.5, adaptive=True))
    dqn.train(policy, env, config, resolve("cartpole").attack, task, hooks)
    env.close()
    episodes = 0
    for row, unchanged in rows:
        assert unchanged == (episodes < 8)  # judged at the end of the row in which the eighth episode ended
        episodes += row["episodes"]
    assert not rows[-1][1]


def test_a_run_too_short_to_judge_its_start_is_refused():
    env = make_env(resolve("cartpole").game, 4)
    config = replace(resolve("cartpole").dqn, steps=400, num_envs=4, replay_initial=8, batch_size=8, log_steps=40)
    task = Task("radial", 0.0, 0.1, 0, replace(PACE, first_episodes=1_000))
    with pytest.raises(ConfigError, match="end before enough episodes ended"):
        dqn.train(small_policy(), env, config, resolve("cartpole").attack, task, Hooks())
    env.close()


def test_newly_held_budgets_are_told_once():
    pacer = Pacer(PACE, small_policy(), torch.optim.Adam([torch.zeros(1)]))
    told = []
    for step in range(1_000, 6_000, 1_000):
        pacer.observe(step, Played(24, 2), NONE_PLAYED)
        told.append(pacer.newly_held())
    assert told == [None, 1, 2, 3, 4]
    assert pacer.newly_held() is None


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_resumed_run_is_the_uninterrupted_one(algo):
    config = resolve("cartpole", flags={"algo": algo})
    kind = "actor-critic-mlp" if algo == "ppo" else "dueling-mlp"
    small = {
        "dqn": {"steps": 1_200, "num_envs": 4, "batch_size": 16, "replay_initial": 32, "samples_per_step": 4.0},
        "ppo": {"steps": 1_280, "num_envs": 4, "rollout": 16, "batch_size": 32, "epochs": 1},
    }[algo]
    learner = replace(config.learner, **small, log_steps=64, checkpoint_steps=640)
    pace = replace(PACE, nominal=5.0, episodes=1, rise=2e-5, patience=200)
    task = Task("at", 0.0, 0.1, 3, pace)
    train = {"dqn": dqn.train, "ppo": ppo.train}[algo]

    def run(state=None):
        states, rows = [], []
        policy = small_policy(kind)
        hooks = Hooks(log=rows.append, save=lambda state: states.append(copy.deepcopy(state)))
        with_env = make_env(config.game, 4)
        train(policy, with_env, learner, config.attack, task, hooks, state)
        return weights(policy), states, [(row["step"], row["eps"]) for row in rows]

    whole, states, rows = run()
    again, _, later = run(states[0])
    assert same(whole, again)
    assert rows[-len(later) :] == later
    assert later[-1][1] > 0
