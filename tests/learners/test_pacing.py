"""A paced budget, by hand and by its properties; in training, weights that step back, and exact resuming."""

import copy
from dataclasses import replace
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import ConfigError
from bcl.learners import distill, dqn, ppo
from bcl.learners.learner import Record, Task
from bcl.learners.pacing import (
    NONE_PLAYED,
    Pace,
    Paced,
    Pacer,
    Played,
    advance,
    begin,
    increments_at,
    rise_steps,
)
from bcl.policies import Policy, PolicySpec
from tests.learners.told import Told

PACE = Pace(
    start=0.0,
    target=0.1,
    rise_steps=1_000,
    patience=3_000,
    step_back=0.25,
    increment=0.01,
    pace_episodes=4,
    nominal_threshold=100.0,
)


def episodes(mean: float, count: int = 4) -> Played:
    return Played(mean * count, count)


def after(pace: Pace, *returns: float, every: int = 1_000) -> Paced:
    """Where the budget stands after windows of these mean returns, one each 1,000 steps."""
    at = begin(pace)
    for number, mean in enumerate(returns, 1):
        at = advance(pace, at, number * every, episodes(mean))
    return at


def test_rises_while_returns_hold():
    assert [after(PACE, *[120.0] * n).eps for n in (1, 2, 5)] == pytest.approx([0.01, 0.02, 0.05])


def test_without_rise_steps_it_arrives_after_three_quarters_of_the_training():
    even = replace(PACE, rise_steps=0)
    assert rise_steps(even, 4_000) == 300  # 10 increments in 3,000 steps
    # From a hundredth of 0.05 to 0.05 in proportion to itself, for which 0.05 log 100 is rising evenly, then 0.05 more.
    gentle = replace(even, gentle_below=0.05, gentle_from=0.01)
    assert rise_steps(gentle, 4_000) == round(3_000 * 0.01 / (0.05 * log(100) + 0.05))
    assert rise_steps(replace(gentle, rise_steps=7), 4_000) == 7
    for pace in (even, gentle):
        at = begin(replace(pace, rise_steps=rise_steps(pace, 4_000)))
        found = [at.eps]
        for step in range(100, 3_101, 100):
            at = advance(replace(pace, rise_steps=rise_steps(pace, 4_000)), at, step, episodes(120))
            found.append(at.eps)
        assert found[-3] < pace.target
        assert found[-1] == pace.target


def test_the_target_is_its_last_increment():
    assert [increments_at(PACE, eps) for eps in (0.0, 0.0099, 0.01, 0.055, 0.1)] == [0, 0, 1, 5, 10]
    uneven = replace(PACE, increment=0.03)  # 0.03, 0.06, 0.09, and 0.1
    assert [increments_at(uneven, eps) for eps in (0.03, 0.095, 0.1)] == [1, 3, 4]
    assert increments_at(replace(PACE, increment=0.3), 0.1) == 1


def test_facts_tell_what_a_check_found():
    policy = Policy(PolicySpec("dueling-mlp", (2,), 2, (0.0,), (1.0,), (4,)))
    pacer = Pacer(replace(PACE, adaptive=True, nominal_threshold=0.5), policy, torch.optim.Adam(policy.parameters()))
    nothing = {"met": None, "nominal_threshold": None, "attacked_threshold": None}
    assert pacer.facts() == nothing
    pacer.observe(100, episodes(80), NONE_PLAYED)
    assert pacer.facts() == {"met": 1.0, "nominal_threshold": 40.0, "attacked_threshold": None}
    pacer.observe(200, episodes(30), NONE_PLAYED)
    assert pacer.facts()["met"] == 0.0


def test_waits_before_the_first_check():
    at = advance(PACE, begin(PACE), 50_000, episodes(120, 3))
    assert at.eps == 0
    assert advance(PACE, at, 51_000, episodes(120, 1)).eps == pytest.approx(0.01)  # of the last 1,000 steps alone


def test_waits_while_a_threshold_is_missed_then_goes_on():
    assert after(PACE, 120, 120, 99, 99).eps == pytest.approx(0.02)
    assert after(PACE, 120, 120, 99, 120).eps == pytest.approx(0.03)


def test_steps_back_after_its_patience_and_again():
    missed = [99.0] * 3  # missed since step 3,000: at 6,000 its patience of 3,000 is over
    assert after(PACE, 120, 120, *missed).eps == pytest.approx(0.02)
    back = after(PACE, 120, 120, *missed, 99)
    assert (back.eps, back.steps_back) == (pytest.approx(0.015), 1)
    again = after(PACE, 120, 120, *missed, *[99.0] * 4)
    assert (again.eps, again.steps_back) == (pytest.approx(0.015 * 0.75), 2)


def test_without_news_for_its_patience_the_budget_waits():
    at = after(PACE, 120)
    for step in range(2_000, 12_000, 1_000):
        at = advance(PACE, at, step, NONE_PLAYED)
    assert at.eps == pytest.approx(0.03)  # 1,000, 2,000 and 3,000, not 4,000


def test_waits_while_too_few_actions_are_proven():
    pace = replace(PACE, certified_threshold=0.7)
    at = advance(pace, begin(pace), 1_000, episodes(120), certified=0.69)
    assert at.eps == 0
    assert at.held == 0  # the returns alone say whether a budget is held
    assert advance(pace, at, 2_000, episodes(120), certified=0.7).eps == pytest.approx(0.01)


def test_nothing_steps_back_from_the_first_budget():
    at = after(PACE, 120, *[99.0] * 30)
    assert at.eps == pytest.approx(0.01 * 0.75**at.steps_back)
    assert after(PACE, *[99.0] * 30).steps_back == 0


def test_the_attacked_copies_count_too():
    pace = replace(PACE, attacked_threshold=50.0)
    waits = advance(pace, begin(pace), 1_000, episodes(120), episodes(49))
    rises = advance(pace, begin(pace), 1_000, episodes(120), episodes(50))
    unknown = advance(pace, begin(pace), 1_000, episodes(120), episodes(90, 3))
    assert (waits.eps, rises.eps, unknown.eps) == (0, pytest.approx(0.01), 0)


def test_adaptive_thresholds_are_shares_of_the_first_window_above_the_floor():
    pace = replace(PACE, nominal_threshold=0.9, attacked_threshold=0.5, adaptive=True, floor=-20.0, first_episodes=6)
    at = advance(pace, begin(pace), 1_000, episodes(20, 5), episodes(20, 6))
    assert at.checks == 0
    at = advance(pace, at, 2_000, episodes(20, 1), NONE_PLAYED)
    assert (at.nominal, at.attacked) == (pytest.approx(16), pytest.approx(0))
    assert advance(pace, at, 3_000, episodes(15.9), episodes(1)).met is False
    assert advance(pace, at, 3_000, episodes(16), episodes(1)).met is True


def test_a_gentle_start_grows_in_proportion_to_itself_and_meets_the_even_rise():
    pace = replace(PACE, gentle_below=0.01)
    assert begin(pace).eps == pytest.approx(0.0001)
    # d eps = rise * eps / gentle_below: after 1,000 steps a factor e, after 1,000 * ln(100) steps all of it
    assert after(pace, 120).eps == pytest.approx(0.0001 * 2.718281828)
    assert after(pace, *[120.0] * 6).eps == pytest.approx(0.01 + 0.01 * (6 - 4.605170186))


def test_held_is_the_budget_at_the_beginning_of_a_window_that_met_the_thresholds():
    assert after(PACE, 120).held == 0  # played at 0
    assert after(PACE, 120, 120, 120).held == pytest.approx(0.02)
    assert after(PACE, 120, 120, 120, 99).held == pytest.approx(0.02)
    assert after(PACE, 99).held is None


@given(
    st.lists(st.tuples(st.floats(0, 200), st.integers(0, 9), st.integers(1, 5_000)), max_size=40),
    st.floats(0, 0.05),
)
def test_never_above_the_target_never_below_the_start_never_rising_while_missed(history, gentle):
    pace = replace(PACE, start=0.03, gentle_below=gentle)
    at, step = begin(pace), 0
    for mean, count, steps in history:
        step += steps
        before, at = at, advance(pace, at, step, episodes(mean, count))
        assert pace.start <= at.eps <= pace.target
        assert at.eps <= before.eps or at.met
        assert at.held is None or at.held <= pace.target


@given(st.floats(0, 200), st.floats(0, 200), st.integers(0, 9), st.lists(st.floats(0, 200), max_size=10))
def test_better_returns_never_give_a_smaller_budget(one, other, count, history):
    at = after(PACE, *history)
    low, high = sorted((one, other))
    steps = [advance(PACE, at, at.step + 1_000, episodes(mean, count)).eps for mean in (low, high)]
    assert steps[0] <= steps[1]


def test_a_full_step_back_begins_gently_again():
    pace = replace(PACE, gentle_below=0.01, step_back=1.0)
    assert after(pace, *[120.0] * 8, *[99.0] * 4).eps == pytest.approx(begin(pace).eps) == pytest.approx(0.0001)


@pytest.mark.parametrize("wrong", [{"nominal_threshold": None}, {"start": 0.1}, {"start": -0.1}, {"gentle_below": 0.2}])
def test_refuses_what_cannot_be_paced(wrong):
    with pytest.raises(ConfigError):
        replace(PACE, **wrong)


QUICK = replace(PACE, patience=1_000, step_back=0.5, pace_episodes=2, nominal_threshold=10.0)


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


def test_weights_go_back_with_the_budget_to_the_last_check_that_was_met():
    policy = small_policy()
    optimizer = torch.optim.Adam(policy.parameters())
    pacer = Pacer(QUICK, policy, optimizer)
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


def test_the_target_network_goes_back_with_the_weights():
    policy, config = small_policy(), resolve("cartpole")
    env = make_env(config.game, 4)
    learner = dqn.DqnLearner(policy, env, config.dqn, config.attack, Task("at", 0.0, 0.1, 0, QUICK))
    learner._rate.fill_(0.01)
    good = weights(policy)
    for step, mean, back in ((1_000, 12, False), (2_000, 1, False), (3_000, 1, True)):  # met, missed for its patience
        learner.step = step
        learner.meter._finished[:, 0] = torch.tensor([2 * mean, 2 * mean**2, 2])  # two episodes
        learner.metrics()
        assert same(weights(learner.target), good) == (back or step == 1_000)
        if not back:
            disturb(policy, learner.optimizer)
            learner.target.load_state_dict(policy.state_dict())
    assert same(weights(policy), good)
    env.close()


def test_nothing_is_learned_before_the_start_was_judged():
    """So that adaptive thresholds are shares of the start's own return, and the memory has whole episodes."""
    policy = small_policy()
    start = weights(policy)
    env = make_env(resolve("cartpole").game, 4)
    config = replace(
        resolve("cartpole").dqn,
        steps=600,
        num_envs=4,
        replay_initial=8,
        batch_size=8,
        log_steps=40,
        samples_per_step=4.0,
    )
    rows = []
    told = Told(log=lambda row: rows.append((row, same(weights(policy), start))))
    task = Task("radial", 0.0, 0.1, 0, replace(QUICK, first_episodes=8, nominal_threshold=0.5, adaptive=True))
    dqn.train(policy, env, config, resolve("cartpole").attack, task, told)
    env.close()
    episodes = 0
    for row, unchanged in rows:
        assert unchanged == (episodes < 8)  # judged at the end of the row in which the eighth episode ended
        episodes += row["episodes"]
    assert not rows[-1][1]
    assert config.exploration_start == 1.0
    assert {row["exploration"] for row, _ in rows} == {config.exploration_end}  # else it would measure random play


def test_a_run_too_short_to_judge_its_start_is_refused():
    env = make_env(resolve("cartpole").game, 4)
    config = replace(resolve("cartpole").dqn, steps=400, num_envs=4, replay_initial=8, batch_size=8, log_steps=40)
    task = Task("radial", 0.0, 0.1, 0, replace(QUICK, first_episodes=1_000))
    with pytest.raises(ConfigError, match="end before enough episodes ended"):
        dqn.train(small_policy(), env, config, resolve("cartpole").attack, task, Record())
    env.close()


def test_newly_held_budgets_are_told_once():
    pacer = Pacer(QUICK, small_policy(), torch.optim.Adam([torch.zeros(1)]))
    told = []
    for step in range(1_000, 6_000, 1_000):
        pacer.observe(step, Played(24, 2), NONE_PLAYED)
        told.append(pacer.newly_held())
    assert told == [None, 1, 2, 3, 4]
    assert pacer.newly_held() is None


@pytest.mark.parametrize("between_rows", [False, True])
@pytest.mark.parametrize("section", ["dqn", "ppo", "distill"])
def test_a_resumed_run_is_the_uninterrupted_one(section, between_rows):
    """Also from a checkpoint between two rows of metrics: episodes since the last one count in the next check."""
    algo = "ppo" if section == "ppo" else "dqn"
    config = resolve("cartpole", settings={"algo": algo})
    kind = "actor-critic-mlp" if algo == "ppo" else "dueling-mlp"
    small = {
        "dqn": {"steps": 1_200, "num_envs": 4, "batch_size": 16, "replay_initial": 32, "samples_per_step": 4.0},
        "ppo": {"steps": 1_280, "num_envs": 4, "rollout": 16, "batch_size": 32, "epochs": 1},
        "distill": {
            "steps": 1_200,
            "num_envs": 4,
            "batch_size": 16,
            "samples_per_step": 4.0,
            "checkpoint_replay": True,
        },
    }[section]
    steps = {"log_steps": 200, "checkpoint_steps": 320} if between_rows else {"log_steps": 64, "checkpoint_steps": 640}
    learner = replace(getattr(config, section), **small, **steps)
    pace = replace(QUICK, nominal_threshold=5.0, pace_episodes=12 if between_rows else 1, rise_steps=500, patience=200)
    task = Task("at", 0.0, 0.1, 3, pace)
    train = {"dqn": dqn.train, "ppo": ppo.train, "distill": distill.train}[section]
    attack = () if section == "distill" else (config.attack,)

    def run(state=None):
        states, rows = [], []
        policy = small_policy(kind)
        told = Told(log=rows.append, save=lambda state: states.append(copy.deepcopy(state)))
        with_env = make_env(config.game, 4)
        train(policy, with_env, learner, *attack, task, told, state)
        told_by_rows = ("step", "eps", "episodes", "return", "loss")
        return weights(policy), states, [[row.get(name) for name in told_by_rows] for row in rows]

    whole, states, rows = run()
    again, _, later = run(states[0])
    assert same(whole, again)
    assert rows[-len(later) :] == later
    assert later[-1][1] > 0
