"""What is watched is what was judged."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from bcl.api.measuring import untrained_policy
from bcl.attacks import PGD, Attack, UniformNoise
from bcl.config import resolve
from bcl.envs import VectorEnv, make_env
from bcl.envs.atari import crop_v2
from bcl.errors import BclError
from bcl.evaluation import Moment, evaluate, watch
from bcl.games import AtariGame, Game

GAMES = ("cartpole", "pong", "fruitbot")


def short(name: str) -> Game:
    game = resolve(name).game
    return dataclasses.replace(game, max_steps=40) if isinstance(game, AtariGame) else game


@pytest.fixture(params=GAMES)
def game(request: pytest.FixtureRequest) -> Game:
    return short(request.param)


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("cartpole", None),
        ("cartpole", UniformNoise()),
        ("pong", PGD(steps=2, step=1.0)),
        ("fruitbot", None),  # its episodes are long and its network slow
    ],
)
def test_the_return_of_the_episode_is_the_evaluations(name: str, attack: Attack | None) -> None:
    game, eps = short(name), 0.05
    policy = untrained_policy(game, "cpu")
    score = evaluate(policy, make_env(game, 1), attack, eps, episodes=1, seed=3)
    moments = list(watch(policy, make_env(game, 1, render=True), attack, eps, seed=3))
    assert moments[-1].total == score.returns[0] == sum(m.reward for m in moments)
    assert len(moments) == score.lengths[0]
    assert np.mean([m.wanted != m.taken for m in moments]) == pytest.approx(score.changed)
    assert max(np.abs(m.seen - m.clean).max() for m in moments) == pytest.approx(score.max_perturbation)


def test_actions_are_those_of_what_was_seen(game: Game) -> None:
    policy = untrained_policy(game, "cpu")
    for moment in watch(policy, make_env(game, 1), PGD(steps=2, step=1.0), 0.1, steps=5):
        with torch.no_grad():
            scores = policy(torch.from_numpy(np.stack([moment.clean, moment.seen])))
        assert scores.argmax(dim=1).tolist() == [moment.wanted, moment.taken]
        assert moment.clean.dtype == np.float32
        assert moment.screen is None  # nobody asked for pictures


@pytest.mark.parametrize(
    ("name", "shape"), [("cartpole", (400, 600, 3)), ("pong", (210, 160, 3)), ("fruitbot", (512, 512, 3))]
)
def test_the_screen_is_the_game_itself_and_moves_with_it(name: str, shape: tuple[int, int, int]) -> None:
    game = short(name)
    moments = list(watch(untrained_policy(game, "cpu"), make_env(game, 1, render=True), None, 0.0, steps=8))
    screens = [m.screen for m in moments if m.screen is not None]
    assert len(screens) == 8
    assert all(s.shape == shape and s.dtype == np.uint8 for s in screens)
    assert (screens[0] != screens[-1]).any()
    if isinstance(game, AtariGame):  # colours come from a twin; but for the pooling, its gray is what the agent sees
        for screen, moment in zip(screens, moments, strict=True):
            gray = crop_v2(torch.from_numpy(screen[None]), game.crop_shift)[0].numpy() / 255
            assert np.abs(gray - moment.clean).mean() < 0.001


def test_watching_can_end_early_and_wants_one_copy(game: Game) -> None:
    policy = untrained_policy(game, "cpu")

    def look(copies: int, steps: int) -> Iterator[Moment]:
        envs: VectorEnv = make_env(game, copies)
        return watch(policy, envs, None, 0.0, steps=steps)

    assert len(list(look(1, 4))) == 4
    with pytest.raises(BclError, match="2 copies cannot be watched at once; make one"):
        list(look(2, 4))
    with pytest.raises(BclError, match="0 steps"):
        list(look(1, 0))
