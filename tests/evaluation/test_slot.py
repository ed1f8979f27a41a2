"""Episodes that are one and the same, but for how they begin, are counted as one."""

import json

import pytest
import torch
from torch import Tensor

from bcl.config import resolve
from bcl.envs import Step, make_env
from bcl.evaluation import Score, evaluate
from bcl.policies import Policy, PolicySpec
from bcl.runs.version_0_1 import current_row

Script = list[tuple[float, float]]  # what is seen after each step, and the reward with it
PLAIN: Script = [(1, 0), (2, 1), (3, 0), (4, -1), (5, 0), (6, 1)]


class Scripted:
    """Copy i plays its script over and over, each time after other idle steps, and never begins as another copy
    does."""

    game = resolve("cartpole").game
    num_actions = 2
    obs_shape = (1,)
    low, high = (-100.0,), (100.0,)

    def __init__(self, *scripts: Script) -> None:
        self.num_envs = len(scripts)
        self._scripts = scripts

    def reset(self, seed: int) -> Tensor:
        self._at, self._episode = [0] * self.num_envs, [0] * self.num_envs
        return torch.zeros(self.num_envs, 1)

    def send(self, actions: Tensor) -> None:
        pass

    def recv(self) -> Step:
        obs, final_obs, rewards, over = [], [], [], []
        for i, script in enumerate(self._scripts):
            idle = i + 2 * self._episode[i]
            seen, reward = (0.0, 0.0) if self._at[i] < idle else script[self._at[i] - idle]
            self._at[i] += 1
            over.append(self._at[i] == idle + len(script))
            if over[-1]:
                final_obs.append([seen])
                self._at[i], self._episode[i], seen = 0, self._episode[i] + 1, -float(i)
            obs.append([seen])
            rewards.append(reward)
        ended, nothing = torch.tensor(over), torch.zeros(self.num_envs, dtype=torch.bool)
        final = torch.tensor(final_obs, dtype=torch.float32).view(-1, 1)
        return Step(torch.tensor(obs, dtype=torch.float32), torch.tensor(rewards), ended, nothing, ~nothing, final)

    def close(self) -> None:
        pass


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
