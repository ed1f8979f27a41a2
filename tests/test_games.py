"""Descriptions of games: names and plain data."""

import sys

import pytest
import torch

from bcl.config import preset_names, resolve
from bcl.envs import make_env
from bcl.errors import GameError, MissingExtra
from bcl.games import AtariGame, Game, GymnasiumGame, ProcgenGame, find_game, game_from_dict, game_to_dict


@pytest.mark.parametrize(
    "game",
    [
        AtariGame("pong", crop_shift=-3, first_noops=(1, 2)),
        ProcgenGame("maze", distribution_mode="memory"),
        GymnasiumGame("CartPole-v1", scale=(1.0, 2.0), max_steps=9),
    ],
)
def test_plain_data_gives_the_game_back(game: Game) -> None:
    data = game_to_dict(game)
    assert game_from_dict(data) == game
    assert game_from_dict({k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}) == game


@pytest.mark.parametrize(
    ("engine", "field", "value"),
    [
        ("atari", "pipeline", "zzz"),
        ("atari", "noop_max", 0),
        ("atari", "noop_max", True),
        ("atari", "max_steps", 10.5),
        ("atari", "first_noops", [3, 0]),
        ("atari", "fire_reset", 1),
        ("atari", "id", 5),
        ("procgen", "num_levels", -1),
        ("gymnasium", "scale", [1.0, 0.0]),
        ("gymnasium", "scale", [float("inf")]),
        ("gymnasium", "scale", 2.0),
        ("gymnasium", "nonsense", 1),
        ("engine", "id", "x"),
    ],
)
def test_plain_data_that_is_no_game_is_refused(engine: str, field: str, value: object) -> None:
    with pytest.raises(GameError):
        game_from_dict({"engine": engine, "id": "x", field: value})


@pytest.mark.parametrize("name", [":", ":CartPole-v1", "module:", "pnog"])
def test_a_name_that_is_no_game_is_refused(name: str) -> None:
    with pytest.raises(GameError, match="unknown game"):
        find_game(name)


@pytest.mark.parametrize("name", ["lambda-v0", "lambda-3fa2c1-v0", "Mine-3fa2c1-v0"])
def test_a_game_of_another_process_is_named_so(name: str) -> None:
    with pytest.raises(GameError, match=f"unknown game '{name}'; a function or class of a script or notebook is known"):
        find_game(name)


def test_a_module_may_register_the_game() -> None:
    assert find_game("module:Env-v0") == GymnasiumGame("module:Env-v0")


def test_an_ale_py_that_does_not_import_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(GameError, match="pip install 'ale-py>="):
        find_game("zzzz")


SMALL_GAMES = [name for name in preset_names() if isinstance(resolve(name).game, GymnasiumGame)]


@pytest.mark.parametrize("name", SMALL_GAMES)
def test_a_small_game_plays_and_its_observations_are_near_one(name: str) -> None:
    envs = make_env(resolve(name).game, 4)
    seen = [envs.reset(0)]
    draws = torch.Generator().manual_seed(0)
    for _ in range(50):
        envs.send(torch.randint(envs.num_actions, (4,), generator=draws))
        seen.append(envs.recv().obs)
    largest = torch.cat(seen).abs().amax()
    assert 0.1 < largest < 3
    envs.close()


def test_lunar_lander_is_a_small_game() -> None:
    assert {"cartpole", "acrobot", "lunar_lander"} <= {*SMALL_GAMES}


def test_a_missing_box2d_is_one_sentence_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    with pytest.raises(MissingExtra, match="extra 'box2d'"):
        make_env(resolve("lunar_lander").game, 1)
