"""The vector pipeline against an independent one: a single emulator driven by hand, OpenCV for the images."""

import dataclasses

import numpy as np
import pytest
import torch

from bcl.config import resolve
from bcl.envs import make_env
from bcl.envs.vector import Step
from bcl.errors import GameError
from bcl.games import AtariGame

cv2 = pytest.importorskip("cv2")
ale_py = pytest.importorskip("ale_py")

PAPER_GAMES = ("pong", "freeway", "bank_heist", "road_runner")
CROP_SHIFT = {"pong": 10, "freeway": 0, "bank_heist": 0, "road_runner": 20}


class SlowAtari:
    """The reference pipeline written down as in the papers' code, one emulator at a time."""

    def __init__(self, game: str, seed: int, noops: int, pipeline: str, pool: str) -> None:
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(ale_py.roms.get_rom_path(game))
        self.actions = self.ale.getMinimalActionSet()
        self.game, self.pipeline, self.pool = game, pipeline, pool
        self.start(noops)

    def start(self, noops: int) -> None:
        self.ale.reset_game()
        for _ in range(noops):
            self.ale.act(ale_py.Action.NOOP)
        first = self.screen()
        self.buffer = [first] if self.pipeline == "v1" else [np.zeros_like(first), first]
        self.obs = self.process(first)
        if ale_py.Action.FIRE in self.actions:
            self.step(1)
            self.step(2)

    def screen(self) -> np.ndarray:
        return self.ale.getScreenGrayscale() if self.pool == "gray" else self.ale.getScreenRGB()

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        reward, over = 0.0, False
        for i in range(4):
            reward += self.ale.act(self.actions[action])
            over = self.ale.game_over()
            if self.pipeline == "v1":
                self.buffer = [*self.buffer, self.screen()][-3:]
            elif i >= 2:
                self.buffer[i - 2] = self.screen()
            if over:
                break
        self.obs = self.process(np.max(np.stack(self.buffer), axis=0))
        return self.obs, reward, over

    def process(self, frame: np.ndarray) -> np.ndarray:
        if self.pipeline == "v1":
            gray = frame[34 : 34 + 160, :160].mean(2).astype(np.float32) * (1.0 / 255.0)
            small = cv2.resize(cv2.resize(gray, (80, 80)), (80, 80))
            return (small * 255)[None]
        gray = frame.squeeze() if self.pool == "gray" else cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        gray = cv2.copyMakeBorder(gray, 0, 0, 4, 4, cv2.BORDER_CONSTANT, value=0)
        top = 21 + CROP_SHIFT[self.game]
        return cv2.resize(gray[top : top + 168], (84, 84), interpolation=cv2.INTER_AREA)[None]


def assert_same_image(ours: torch.Tensor, reference: np.ndarray) -> None:
    """Bytes equal bytes; the float images of v1 are rounded to the nearest byte."""
    tolerance = 0 if reference.dtype == np.uint8 else 0.5001
    assert np.abs(ours.numpy().astype(np.float32) - reference.astype(np.float32)).max() <= tolerance


def play_both(game: AtariGame, seeds: list[int], steps: int) -> int:
    """Step both pipelines with the same actions; returns the number of compared steps."""
    envs = make_env(game, len(seeds))
    obs = envs.reset(seeds)
    slow = [SlowAtari(game.id, s, int(n), game.pipeline, game.pool) for s, n in zip(seeds, envs.noops, strict=True)]
    draws = np.random.default_rng(0)
    started = envs._moves_left == 0
    compared = 0
    for _ in range(steps):
        for i in np.flatnonzero(started):
            assert_same_image(obs[i], slow[i].obs)
        actions = draws.integers(envs.num_actions, size=len(seeds))
        envs.send(torch.from_numpy(actions))
        step = envs.recv()
        for i in np.flatnonzero(step.playing.numpy()):
            frame, reward, over = slow[i].step(int(actions[i]))
            assert step.reward[i] == reward
            assert bool(step.terminated[i]) == over
            compared += 1
            if step.truncated[i]:
                assert_same_image(step.final_obs[int(step.ended[:i].sum())], frame)
            if step.ended[i]:  # a terminal frame differs: ale-py leaves out the raw frame that ends the game
                slow[i].start(int(envs.noops[i]))
        started = envs._moves_left == 0
        obs = step.obs
    envs.close()
    return compared


@pytest.mark.parametrize("pool", ["gray", "rgb"])
@pytest.mark.parametrize("name", PAPER_GAMES)
def test_paper_pipeline_bit_for_bit(name: str, pool: str) -> None:
    game = dataclasses.replace(resolve(name).game, pool=pool)
    assert isinstance(game, AtariGame)
    assert play_both(game, [0, 123], 300) > 2 * 270


def test_truncated_episodes_end_on_the_true_final_observation() -> None:
    assert play_both(dataclasses.replace(resolve("pong").game, max_steps=20), [2, 3], 100) > 2 * 80


def test_v1_pipeline_equals_the_reference_up_to_rounding_to_bytes() -> None:
    assert play_both(AtariGame("road_runner", pipeline="v1", pool="rgb"), [0, 5], 300) > 2 * 270


def test_starts_have_1_to_30_noops_and_two_silent_moves() -> None:
    game = dataclasses.replace(resolve("pong").game, max_steps=1)
    envs = make_env(game, 8)
    envs.reset(0)
    noops = []
    for _ in range(120):
        envs.send(torch.zeros(8, dtype=torch.long))
        step = envs.recv()
        noops += envs.noops[step.ended.numpy()].tolist()
    assert len(noops) == 8 * 40  # one step of play after two start-up moves, over and over
    assert min(noops) == 1
    assert max(noops) == 30
    assert 13 < np.mean(noops) < 18  # 15.5 when uniform


def test_given_noops_are_played_and_repeat_the_start() -> None:
    game = resolve("freeway").game
    given = dataclasses.replace(game, first_noops=(17, 30, 5))
    envs = make_env(given, 3)
    first = envs.reset(0)
    assert envs.noops.tolist() == [17, 30, 5]
    for i, noops in enumerate((17, 30, 5)):
        assert_same_image(first[i], SlowAtari("freeway", 0, noops, "v2", "gray").obs)
    for wrong in ((1, 2), (1, 2, 31), (1, 2, -1)):
        with pytest.raises(GameError, match="first_noops"):
            make_env(dataclasses.replace(game, first_noops=wrong), 3)


def test_start_up_moves_ignore_the_action() -> None:
    frames = []
    for action in (0, 3):
        envs = make_env(resolve("pong").game, 2)
        envs.reset(3)
        for _ in range(2):
            envs.send(torch.full((2,), action))
            step = envs.recv()
            assert not step.playing.any()
            assert not step.reward.any()
        frames.append(step.obs)
    assert torch.equal(*frames)


def test_step_limit_truncates() -> None:
    envs = make_env(dataclasses.replace(resolve("freeway").game, max_steps=5), 3)
    envs.reset(0)
    for i in range(5):
        envs.send(torch.ones(3, dtype=torch.long))
        step = envs.recv()
        assert step.truncated.all() == (i == 4)
    assert not step.terminated.any()


def test_a_lost_life_plays_the_start_moves_when_asked() -> None:
    game = AtariGame("road_runner", pipeline="v1", life_reset=True)
    envs = make_env(game, 2)
    envs.reset(1)
    silent = 0
    for t in range(400):
        envs.send(torch.zeros(2, dtype=torch.long))  # standing still loses lives
        step = envs.recv()
        silent += int((~step.playing).sum()) if t > 2 else 0
    assert silent >= 3


@pytest.mark.parametrize("pipeline", ["v1", "v2"])
def test_a_game_that_ends_in_the_moves_after_a_lost_life_ends_its_episode(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make_env(AtariGame("road_runner", pipeline=pipeline, life_reset=True), 3)
    envs.reset(1)
    envs._moves_left[:] = (2, 2, 0)
    envs._steps[:] = (7, 0, 7)  # in the moves after a lost life, in those of a start, in play
    name = f"_recv_{pipeline}"
    recv = getattr(envs, name)

    def all_over() -> tuple[np.ndarray, ...]:
        screens, reward, terminated, lives = recv()
        return screens, reward + 5, np.ones_like(terminated), lives

    monkeypatch.setattr(envs, name, all_over)
    envs.send(torch.zeros(3, dtype=torch.long))
    step = envs.recv()
    assert step.terminated.tolist() == step.playing.tolist() == [True, False, True]
    assert step.reward.tolist() == [0, 0, 5]
    assert len(step.final_obs) == 2
    assert envs._steps.tolist() == [0, 0, 0]
    assert envs._moves_left.tolist() == [2, 2, 2]  # all of them start anew


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"crop_shift": 22}, "-21 and 21"), ({"crop_shift": -22}, "-21 and 21"), ({"noop_max": 0}, "at least 1")],
)
def test_settings_that_cannot_be_played_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(GameError, match=words):
        make_env(AtariGame("pong", **settings), 1)


@pytest.mark.parametrize("shift", [-21, 21])
def test_the_crop_window_reaches_the_edges(shift: int) -> None:
    assert make_env(AtariGame("pong", crop_shift=shift), 1).reset(0).shape == (1, 1, 84, 84)


def trajectory(game: AtariGame, threads: int, seed: int = 11) -> list[Step]:
    envs = make_env(game, 4, threads=threads)
    envs.reset(seed)
    draws = torch.Generator().manual_seed(0)
    steps = []
    for _ in range(60):
        envs.send(torch.randint(envs.num_actions, (4,), generator=draws))
        steps.append(envs.recv())
    envs.close()
    return steps


def test_same_seed_same_trajectory_on_any_number_of_threads() -> None:
    game = dataclasses.replace(resolve("pong").game, max_steps=20)
    one, three, other = trajectory(game, 1), trajectory(game, 3), trajectory(game, 1, seed=12)
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a.obs, b.obs)
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.ended, b.ended)
        assert torch.equal(a.final_obs, b.final_obs)
    assert any(not torch.equal(a.obs, b.obs) for a, b in zip(one, other, strict=True))


def test_any_ale_game_plays() -> None:
    envs = make_env(resolve("breakout").game, 2)
    assert envs.reset(0).shape == (2, 1, 84, 84)
    assert envs.num_actions == 4


def test_emulators_left_behind_play_as_new_ones():
    game = AtariGame("pong", num_actions=4)

    def rollout(envs):
        draw, seen = torch.Generator().manual_seed(1), [envs.reset(5)]
        for _ in range(40):
            envs.send(torch.randint(4, (2,), generator=draw))
            seen.append(envs.recv().obs)
        return torch.stack(seen)

    first = make_env(game, 2)
    expected = rollout(first)
    used = first._ale
    first.send(torch.zeros(2, dtype=torch.long))  # a step that nobody waits for
    first.close()
    first.close()
    second, third = make_env(game, 2), make_env(game, 2)
    assert second._ale is used
    assert third._ale is not used  # one owner at a time
    assert torch.equal(rollout(second), expected)
    assert torch.equal(rollout(third), expected)
    for envs in (second, third):
        envs.close()


def test_closed_emulators_of_the_same_kind_are_all_used_again() -> None:
    game = resolve("pong").game
    first = [make_env(game, 1) for _ in range(2)]
    emulators = {id(env._ale) for env in first}
    for env in first:
        env.close()
    again = [make_env(game, 1) for _ in range(2)]
    assert {id(env._ale) for env in again} == emulators
    for env in again:
        env.close()
