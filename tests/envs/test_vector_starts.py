"""Episodes that begin with random actions, which are no steps of the agent's."""

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from bcl.api.measuring import untrained_policy
from bcl.config import resolve
from bcl.envs import Step, VariedStarts
from bcl.evaluation import Cell, Plan, Score, evaluate, read_evaluations, run_suite
from bcl.policies import Policy, PolicySpec
from bcl.runs.results import ScoresFolder


class Counting:
    """Every step shows the number of the step in its episode, and earns 1; episodes last `length` steps."""

    game = resolve("cartpole").game
    num_actions, action_names = 3, ("a", "b", "c")
    obs_shape = (1,)
    low, high = (0.0,), (1000.0,)

    def __init__(self, num_envs: int, length: int) -> None:
        self.num_envs, self._length = num_envs, length
        self.sent: list[list[int]] = []

    def reset(self, seed: int) -> Tensor:
        self._t = torch.zeros(self.num_envs, dtype=torch.long)
        return self._t.float().unsqueeze(1)

    def send(self, actions: Tensor) -> None:
        self.sent.append(actions.tolist())

    def recv(self) -> Step:
        self._t += 1
        over = self._t == self._length
        last = self._t[over].float().unsqueeze(1)
        self._t[over] = 0
        nothing = torch.zeros_like(over)
        return Step(self._t.float().unsqueeze(1), torch.ones(self.num_envs), over, nothing, ~nothing, last)

    def close(self) -> None:
        pass


def played(env: VariedStarts, steps: int, seed: int = 0) -> list[Step]:
    env.reset(seed)
    found = []
    for _ in range(steps):
        env.send(torch.full((env.num_envs,), 2))
        found.append(env.recv())
    return found


def test_random_actions_come_first_and_are_hidden() -> None:
    inner = Counting(4, 20)
    env = VariedStarts(inner)
    env.reset(0)
    prefixes = env.prefixes.tolist()
    assert all(1 <= length <= 10 for length in prefixes)
    assert len({*prefixes}) > 1
    steps = played(env, 20)
    for i, length in enumerate(prefixes):
        shown = [bool(step.playing[i]) for step in steps]
        assert shown == [False] * length + [True] * (20 - length)
        assert sum(float(step.reward[i]) for step in steps) == 20 - length
        assert [row[i] for row in inner.sent[length:]] == [2] * (20 - length)
    begun = [row[i] for i, length in enumerate(prefixes) for row in inner.sent[:length]]
    assert {*begun} == {0, 1, 2}
    assert steps[-1].ended.all()
    assert steps[-1].final_obs.flatten().tolist() == [20.0] * 4
    assert env.prefixes.tolist() != prefixes  # the next episodes have their own


def test_a_game_that_ends_meanwhile_begins_again_unseen() -> None:
    steps = played(VariedStarts(Counting(8, 3)), 200)
    ends = torch.stack([step.ended for step in steps])
    playing = torch.stack([step.playing for step in steps])
    assert not (ends & ~playing).any()
    assert ends.any()
    assert all(len(step.final_obs) == int(step.ended.sum()) for step in steps)


def test_where_every_beginning_ends_the_game_it_becomes_shorter() -> None:
    steps = played(VariedStarts(Counting(8, 1)), 40)
    ends = torch.stack([step.ended for step in steps])
    assert ends.any(dim=0).all()  # else an evaluation would wait for ever


def test_a_copys_start_depends_on_its_seed_alone() -> None:
    many, one = VariedStarts(Counting(4, 20)), VariedStarts(Counting(1, 20))
    many.reset(5)
    one.reset(7)
    assert one.prefixes[0] == many.prefixes[2]


class Lottery(Counting):
    """The last step pays by what the sum of all actions leaves when it is divided: so many courses there are."""

    def __init__(self, num_envs: int, courses: int) -> None:
        super().__init__(num_envs, 30)
        self._courses = courses

    def reset(self, seed: int) -> Tensor:
        self._sum = torch.zeros(self.num_envs, dtype=torch.long)
        return super().reset(seed)

    def send(self, actions: Tensor) -> None:
        self._sum += actions

    def recv(self) -> Step:
        step = super().recv()
        reward = torch.where(step.ended, self._sum % self._courses + 1.0, 0.0)
        self._sum[step.ended] = 0
        return dataclasses.replace(step, reward=reward)


def test_a_course_that_comes_again_is_replaced_by_another() -> None:
    torch.manual_seed(0)
    policy = Policy(PolicySpec("plain-mlp", (1,), 3, (0.0,), (1000.0,), ())).eval()

    def play(courses: int) -> Score:
        return evaluate(policy, VariedStarts(Lottery(6, courses)), None, 0.0, episodes=6)

    score = play(10)
    assert score.courses == len({*score.returns}) == 6
    assert len({length + prefix for length, prefix in zip(score.lengths, score.prefixes, strict=True)}) == 1
    assert play(10) == score
    few = play(2)  # it does not go on for ever
    assert (few.courses, len(few.returns)) == (2, 6)


def test_pong_takes_as_many_courses_as_it_plays_episodes(tmp_path: Path) -> None:
    game = dataclasses.replace(resolve("pong").game, max_steps=160)
    policy, plain = untrained_policy(game, "cpu"), Plan(game, 6)
    usual = suite(policy, plain, tmp_path)
    varied = suite(policy, dataclasses.replace(plain, starts="varied"), tmp_path)
    assert usual.courses is not None
    assert usual.courses < 6
    assert varied.courses == 6
    assert all(30 <= length <= 120 for length in varied.prefixes)


def suite(policy: Policy, plan: Plan, folder: Path) -> Score:
    [score] = run_suite(policy, plan, [Cell(None, 0.0)], ScoresFolder(folder))
    return score


def test_scores_name_their_prefixes_and_are_kept_apart(tmp_path: Path) -> None:
    game = resolve("cartpole").game
    policy, plain = untrained_policy(game, "cpu"), Plan(game, 6)
    varied = dataclasses.replace(plain, starts="varied")
    usual, other = suite(policy, plain, tmp_path), suite(policy, varied, tmp_path)
    assert usual.prefixes == ()
    assert len(other.prefixes) == 6
    assert other.courses == 6
    assert other.returns != usual.returns
    assert suite(policy, varied, tmp_path / "again") == other
    assert [len(judged.scores) for judged in read_evaluations(ScoresFolder(tmp_path), "")] == [1, 1]
