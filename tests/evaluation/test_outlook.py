"""What is told of scores that are being played, and what they may come to, by hand and in play."""

import dataclasses
import json
from collections.abc import Callable

import pytest

from bcl.config import resolve
from bcl.envs import make_env
from bcl.errors import StoreError
from bcl.evaluation import Cell, Plan, Score, UnderWay, evaluate_cells
from bcl.evaluation.outlook import Running
from bcl.policies import Policy, PolicySpec
from tests.evaluation.scripted import Scripted

# Two of six episodes are done, three run, one was not begun.
SCORE = UnderWay(
    "none at 0.0", (21.0, 15.0), (Running(3.0, -2.0, 500), Running(0.0, 0.0, 0), Running(9.0, -9.0, 1500)), 1
)


def test_at_most_by_hand() -> None:
    assert SCORE.at_most(21.0) == pytest.approx((21 + 15 + 19 + 21 + 12 + 21) / 6)


def test_at_pace_by_hand() -> None:
    # 20 in 1,000 steps: half of it is left for the first, all for the second, and the third is over time
    assert SCORE.at_pace(20.0, 1000.0) == pytest.approx((21 + 15 + (3 + 10) + 20 + 9 + 20) / 6)
    # of less than nothing: those that run do not get worse
    assert SCORE.at_pace(-6.0, 1000.0) == pytest.approx((21 + 15 + 3 + 0 + 9 - 6) / 6)


def test_what_is_told_passes_through_json() -> None:
    told = json.loads(json.dumps(dataclasses.asdict(SCORE)))
    assert UnderWay.from_dict(told, "it") == SCORE


def test_it_falls_short_by_hand() -> None:
    start = Score(None, 0.0, (90.0, 110.0), (900, 1100), 0.0, 0.0, 0.0, 0, "fixed")
    # half of the start's 100 are left to be earned
    behind, ahead = (UnderWay("", (), (Running(value, 0.0, 500),), 0) for value in (4.9, 5.1))
    assert behind.falls_short(60.0, None, start)  # 54.9, and 5 % of 100 is 5
    assert not ahead.falls_short(60.0, None, start)
    assert not behind.falls_short(100.0, None, start), "the start itself has no more"
    assert not behind.falls_short(60.0, None, None)
    begun = UnderWay("", (), (Running(0.0, 0.0, 1),), 0)
    assert not begun.falls_short(99.0, None, start), "a step without reward says nothing"
    assert behind.falls_short(22.0, 21.0, start)
    assert not behind.falls_short(21.0, 21.0, start)


@pytest.mark.parametrize("change", [{"running": [[1.0]]}, {"waiting": "x"}, {"more": 1}, {"returns": None}])
def test_what_does_not_fit_is_one_sentence(change: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="it does not fit"):
        UnderWay.from_dict(dataclasses.asdict(SCORE) | change, "it")


def test_scripted_episodes_by_hand() -> None:
    """Copy 0 plays 6 steps with rewards at 2, 4 and 6; copy 1 idles a step first. Two episodes of each."""
    script = [(1.0, 0.0), (2.0, 1.0), (3.0, 0.0), (4.0, -1.0), (5.0, 0.0), (6.0, 1.0)]
    policy = Policy(PolicySpec("plain-mlp", (1,), 2, (-100.0,), (100.0,), ())).eval()
    env = Scripted(script, script)
    told: list[list[UnderWay]] = []
    asked: list[Callable[[], list[UnderWay]]] = []
    plan = Plan(env.game, 4, num_envs=2)
    cell = Cell(None, 0.0)
    for _ in evaluate_cells(
        policy, [env], [cell], plan, progress=lambda steps, done: told.append(asked[0]()), follow=asked.append
    ):
        pass
    name = cell.identity
    assert told[0] == [UnderWay(name, (), (Running(0.0, 0.0, 1), Running(0.0, 0.0, 1)), 2)]
    assert told[3] == [UnderWay(name, (), (Running(0.0, -1.0, 4), Running(1.0, 0.0, 4)), 2)]
    assert told[5] == [UnderWay(name, (1.0,), (Running(0.0, 0.0, 0), Running(0.0, -1.0, 6)), 1)]
    assert told[-1] == [], "the score is done"


@pytest.mark.parametrize("episodes", [6, 10])  # on 6 copies
def test_a_score_never_exceeds_what_was_told(episodes: int) -> None:
    game = resolve("cartpole").game
    env = make_env(game, 6)
    policy = Policy(PolicySpec("plain-mlp", env.obs_shape, env.num_actions, env.low, env.high, (8,))).eval()
    most: list[float] = []
    asked: list[Callable[[], list[UnderWay]]] = []
    cells = [Cell(None, 0.0)]
    [(_, score)] = evaluate_cells(
        policy,
        [env],
        cells,
        Plan(game, episodes, num_envs=6),
        progress=lambda steps, done: most.extend(score.at_most(500.0) for score in asked[0]()),
        follow=asked.append,
    )
    assert len(most) >= min(score.lengths)
    assert most[0] == 500.0
    assert most == sorted(most, reverse=True)
    assert most[-1] >= score.mean
