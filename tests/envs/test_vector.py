"""What every engine must do the same way."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec

from bcl.config import resolve
from bcl.envs import Step, VectorEnv, make_env
from bcl.envs.procgen import TIMEOUTS
from bcl.errors import ConfigError, GameError
from bcl.games import PROCGEN_GAMES, GymnasiumGame, ProcgenGame

ROOT = Path(__file__).parents[2]
ENGINES = ("cartpole", "pong", "fruitbot")


def play(envs: VectorEnv, steps: int, seed: int = 0) -> list[Step]:
    envs.reset(seed)
    draws = torch.Generator().manual_seed(1)
    played = []
    for _ in range(steps):
        envs.send(torch.randint(envs.num_actions, (envs.num_envs,), generator=draws))
        played.append(envs.recv())
    return played


@pytest.mark.parametrize("name", ENGINES)
def test_shapes_types_and_ends(name: str) -> None:
    envs = make_env(resolve(name).game, 4)
    first = envs.reset(0)
    assert first.shape == (4, *envs.obs_shape)
    assert first.dtype == (torch.float32 if name == "cartpole" else torch.uint8)
    for step in play(envs, 120):
        assert step.obs.shape == first.shape
        assert step.obs.dtype == step.final_obs.dtype == first.dtype
        assert step.reward.dtype == torch.float32
        assert step.final_obs.shape == (int(step.ended.sum()), *envs.obs_shape)
        assert not (step.terminated & step.truncated).any()
        assert not (step.ended & ~step.playing).any()
    envs.close()


@pytest.mark.parametrize("name", ENGINES)
def test_the_same_seed_gives_the_same_trajectory(name: str) -> None:
    game = resolve(name).game
    once, again, other = (play(make_env(game, 3), 60, seed) for seed in (5, 5, 6))
    for a, b in zip(once, again, strict=True):
        assert torch.equal(a.obs, b.obs)
        assert torch.equal(a.reward, b.reward)
    assert any(not torch.equal(a.obs, b.obs) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize("name", ENGINES)
def test_reset_starts_over(name: str) -> None:
    envs = make_env(resolve(name).game, 2)
    assert all(torch.equal(a.obs, b.obs) for a, b in zip(play(envs, 20), play(envs, 20), strict=True))


@pytest.mark.parametrize("name", ENGINES)
def test_reset_drops_a_step_under_way(name: str) -> None:
    envs = make_env(resolve(name).game, 2)
    before = play(envs, 20)
    envs.send(torch.ones(2, dtype=torch.long))
    assert all(torch.equal(a.obs, b.obs) for a, b in zip(before, play(envs, 20), strict=True))


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_copies_have_consecutive_seeds(name: str) -> None:
    game = resolve(name).game
    assert torch.equal(make_env(game, 3).reset(4), make_env(game, 3).reset([4, 5, 6]))
    assert torch.equal(make_env(game, 3).reset(4)[1:], make_env(game, 2).reset(5))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("action", [-1, 15])
def test_an_action_that_does_not_exist_is_refused(name: str, action: int) -> None:
    envs = make_env(resolve(name).game, 2)
    envs.reset(0)
    with pytest.raises(GameError, match="actions are 0 to"):
        envs.send(torch.tensor([0, action]))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "actions", [torch.zeros(2), torch.zeros(2, dtype=torch.bool), torch.tensor(0), torch.zeros(3, dtype=torch.long)]
)
def test_actions_are_one_integer_per_copy(name: str, actions: torch.Tensor) -> None:
    envs = make_env(resolve(name).game, 2)
    envs.reset(0)
    with pytest.raises(GameError, match="give 2 integers"):
        envs.send(actions)


@pytest.mark.parametrize("name", ENGINES)
def test_waiting_for_a_step_that_nobody_started_is_refused(name: str) -> None:
    envs = make_env(resolve(name).game, 2)
    with pytest.raises(GameError, match="send actions first"):
        envs.recv()
    play(envs, 1)
    with pytest.raises(GameError, match="send actions first"):
        envs.recv()


@pytest.mark.parametrize("name", ENGINES)
def test_wrong_seeds_are_refused(name: str) -> None:
    envs = make_env(resolve(name).game, 2)
    for seeds in (-1, 2**31, True, 1.0, None, "12", [1], [0, 2**40], [0, True], [0, 1.5], np.array(3)):
        with pytest.raises(GameError, match="seed"):
            envs.reset(seeds)


@pytest.mark.parametrize("name", ENGINES)
def test_numpy_integers_are_seeds(name: str) -> None:
    envs = make_env(resolve(name).game, 2)
    assert torch.equal(envs.reset(np.int64(3)), envs.reset(3))
    assert torch.equal(envs.reset(np.array([3, 9])), envs.reset([3, 9]))


@pytest.mark.parametrize("name", ENGINES)
def test_a_copy_depends_only_on_its_own_seed(name: str) -> None:
    game = resolve(name).game
    two, one = make_env(game, 2), make_env(game, 1)
    assert torch.equal(two.reset([5, 9])[1:], one.reset([9]))
    for action in torch.arange(150) % two.num_actions:
        two.send(action.repeat(2))
        one.send(action.repeat(1))
        a, b = two.recv(), one.recv()
        assert torch.equal(a.obs[1:], b.obs)
        assert torch.equal(a.reward[1:], b.reward)
        assert torch.equal(a.ended[1:], b.ended)


def test_cartpole_is_scaled_and_keeps_its_final_observation() -> None:
    envs = make_env(resolve("cartpole").game, 1)
    single = gymnasium.make("CartPole-v1")
    obs, _ = single.reset(seed=3)
    scale = np.array([2.4, 3.0, 0.21, 3.0])
    torch.testing.assert_close(envs.reset(3)[0], torch.tensor(obs / scale, dtype=torch.float32))
    for _ in range(200):
        envs.send(torch.tensor([1]))
        step = envs.recv()
        obs, reward, terminated, truncated, _ = single.step(1)
        assert step.reward.item() == reward
        assert (step.terminated.item(), step.truncated.item()) == (terminated, truncated)
        if terminated:
            torch.testing.assert_close(step.final_obs[0], torch.tensor(obs / scale, dtype=torch.float32))
            assert not torch.equal(step.final_obs[0], step.obs[0])
            break
        torch.testing.assert_close(step.obs[0], torch.tensor(obs / scale, dtype=torch.float32))
    assert terminated


def test_time_limits_truncate() -> None:
    envs = make_env(GymnasiumGame("MountainCar-v0"), 2)
    steps = play(envs, 200)
    assert steps[-1].truncated.all()
    assert not steps[-1].terminated.any()


class Endless(gymnasium.Env[np.ndarray, np.int64]):
    """Never ends by itself."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), dtype=np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None):
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: np.int64):
        return np.zeros(2, dtype=np.float32), 0.0, False, False, {}


def broken() -> gymnasium.Env:
    raise RuntimeError("first line\nsecond line")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for id, entry in (("Endless-v0", Endless), ("Broken-v0", broken)):
        monkeypatch.setitem(gymnasium.registry, id, EnvSpec(id, entry_point=entry))
    spec = EnvSpec("Limited-v0", entry_point=Endless, max_episode_steps=7)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("id", "limit"), [("Endless-v0", 5), ("Limited-v0", 7)])
def test_max_steps_truncates_only_what_has_no_limit(id: str, limit: int) -> None:
    steps = play(make_env(GymnasiumGame(id, max_steps=5), 1), 8)
    assert [t for t, step in enumerate(steps, 1) if step.truncated.any()] == [limit]


def test_processes_give_the_same_as_none() -> None:
    game = resolve("cartpole").game
    apart = make_env(GymnasiumGame(game.id, processes=True), 2)
    for a, b in zip(play(make_env(game, 2), 40), play(apart, 40), strict=True):
        assert torch.equal(a.obs, b.obs)
        assert torch.equal(a.final_obs, b.final_obs)
    apart.close()


def test_scales() -> None:
    assert make_env(GymnasiumGame("MountainCar-v0"), 1).high == pytest.approx((0.5, 1.0))  # 0.6/1.2, 0.07/0.07
    custom = make_env(GymnasiumGame("CartPole-v1", scale=(1.0, 1.0, 1.0, 1.0)), 1)
    assert custom.high[0] == pytest.approx(4.8)
    with pytest.raises(GameError, match="4 dimensions"):
        make_env(GymnasiumGame("CartPole-v1", scale=(1.0,)), 1)


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("Pendulum-v1", "only Discrete"),
        ("Blackjack-v1", "only Box"),
        ("NoSuch-v0", "cannot make"),
        ("nomodule:X-v0", "cannot make"),
        (":CartPole-v1", "cannot make"),
        ("Broken-v0", "first line second line"),
    ],
)
@pytest.mark.usefixtures("registered")
def test_games_we_cannot_play_are_refused(id: str, words: str) -> None:
    with pytest.raises(GameError, match=words) as caught:
        make_env(GymnasiumGame(id), 1)
    assert "\n" not in str(caught.value)


def test_procgen_counts_its_timeout_as_truncation() -> None:
    envs = make_env(ProcgenGame("leaper"), 4)
    envs.reset(0)
    for t in range(1, 501):
        before = envs._obs
        envs.send(torch.full((4,), 4))  # stand still
        step = envs.recv()
        assert step.truncated.all() == (t == TIMEOUTS["leaper"])
        assert not step.terminated.any()
    assert torch.equal(step.final_obs, before)  # Procgen never shows the terminal frame


def test_procgen_threads_change_nothing() -> None:
    game = ProcgenGame("jumper")
    for a, b in zip(play(make_env(game, 5, threads=1), 50), play(make_env(game, 5, threads=3), 50), strict=True):
        assert torch.equal(a.obs, b.obs)


def test_procgen_training_levels_differ_from_the_unlimited_set() -> None:
    train, unlimited = (make_env(ProcgenGame("fruitbot", num_levels=n), 8) for n in (1, 0))
    first, many = train.reset(0), unlimited.reset(0)
    assert all(torch.equal(first[0], other) for other in first)  # one level
    assert any(not torch.equal(many[0], other) for other in many)


@pytest.mark.parametrize("name", PROCGEN_GAMES)
def test_every_procgen_game_plays(name: str) -> None:
    envs = make_env(ProcgenGame(name), 2)
    assert len(play(envs, 3)) == 3
    assert envs.reset(0).float().std() > 0


def test_procgen_refuses_what_it_does_not_have() -> None:
    with pytest.raises(GameError, match="bigfish"):
        make_env(ProcgenGame("doom"), 1)
    with pytest.raises(GameError, match="no mode 'memory'"):
        make_env(ProcgenGame("fruitbot", distribution_mode="memory"), 1)
    for levels in ({"num_levels": 10**14}, {"start_level": 2**31}, {"num_levels": -1}, {"start_level": 2**31 - 100}):
        with pytest.raises(GameError, match="levels lie between"):
            make_env(ProcgenGame("fruitbot", **levels), 1)
    with pytest.raises(ConfigError, match="is not a choice"):
        resolve("fruitbot", settings={"game": {"distribution_mode": "hrd"}})


PROCGEN_IN_PROCESSES = """
import multiprocessing
from bcl.envs import make_env
from bcl.games import ProcgenGame

def play():
    make_env(ProcgenGame("fruitbot"), 1).reset(0)

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=play)
        process.start()
        process.join()
    play()
"""


def test_procgen_is_imported_without_the_notice_of_gym_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "play.py"
    script.write_text(PROCGEN_IN_PROCESSES)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
