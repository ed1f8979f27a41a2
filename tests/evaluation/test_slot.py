"""Episodes that are one and the same, but for how they begin, are counted as one."""

import json

import pytest

from bcl.config import resolve
from bcl.envs import make_env
from bcl.evaluation import Score, evaluate
from bcl.policies import Policy, PolicySpec
from bcl.runs.version_0_1 import current_row
from tests.evaluation.scripted import Script, Scripted

PLAIN: Script = [(1, 0), (2, 1), (3, 0), (4, -1), (5, 0), (6, 1)]


def courses(*scripts: Script, each: int = 1) -> int | None:
    policy = Policy(PolicySpec("plain-mlp", (1,), 2, (-100.0,), (100.0,), ())).eval()
    return evaluate(policy, Scripted(*scripts), None, 0.0, episodes=each * len(scripts)).courses


def test_idle_steps_at_the_beginning_make_no_other_course() -> None:
    assert courses(PLAIN, PLAIN, PLAIN) == 1
    assert courses(PLAIN, PLAIN, each=3) == 1  # an episode owes nothing to the one before


@pytest.mark.parametrize(
    "other",
    [
        [(1, 0), (2, 1), (3, 0), (3, 0), (4, -1), (5, 0), (6, 1)],  # a step later
        [(1, 0), (2, 1), (3, 0), (4, -2), (5, 0), (6, 1)],  # another reward
        [(1, 0), (2, 1), (3, 0), (4.5, -1), (5, 0), (6, 1)],  # seen with it
        [(1, 0), (2.5, 1), (3, 0), (4, -1), (5, 0), (6, 1)],  # seen with the first
        [(1, 0), (2, 1), (3, 0), (4, -1), (5, 0), (6, 0)],  # one reward less
        [(1, 0), (2, 1), (3, 0), (4, -1), (5, 0), (6.5, 1)],  # seen at the end
    ],
)
def test_another_course(other: Script) -> None:
    assert courses(PLAIN, other, PLAIN, other) == 2


def test_a_single_reward_at_the_end_is_told_by_what_was_seen_with_it() -> None:
    first, second = [(1.0, 0.0), (2.0, 10.0)], [(1.0, 0.0), (3.0, 10.0)]
    assert courses(first, second, first, second) == 2


def test_episodes_without_rewards_cannot_be_told_apart() -> None:
    nothing: Script = [(1, 0), (2, 0)]
    assert courses(nothing, nothing, PLAIN, PLAIN) == 3


def test_cartpole_never_repeats_itself() -> None:
    config = resolve("cartpole")
    env = make_env(config.game, 4)
    spec = PolicySpec("dueling-mlp", env.obs_shape, env.num_actions, env.low, env.high, (8,), game=config.game)
    assert evaluate(Policy(spec).eval(), env, None, 0.0, episodes=12).courses == 12


def test_scores_from_before_they_were_counted_are_read() -> None:
    policy = Policy(PolicySpec("plain-mlp", (1,), 2, (-100.0,), (100.0,), ())).eval()
    score = evaluate(policy, Scripted(PLAIN, PLAIN), None, 0.0, episodes=4)
    data = json.loads(json.dumps(score.to_dict()))
    assert Score.from_dict(data) == score
    del data["courses"]
    assert Score.from_dict(current_row(data)).courses is None
