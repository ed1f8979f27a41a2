"""Atari games on ale-py's C++ vector environment, with the paper's pipeline; docs/games.md numbers what differs.

What ale-py does differently by default, and what is done about it here: its fire reset is one raw frame, so ours are
two agent steps (FIRE, then action 2) in which the agent's action is ignored (`playing` is False); ended games are reset
at once here, so its next-step autoreset runs only in v1, in the raw frames left of a game's last step, and is undone.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bcl.device import threads
from bcl.envs.vector import Seeds, Step, VectorEnv, expect_sent, host_actions, seed_list, to_device
from bcl.errors import GameError, MissingExtra, counted
from bcl.games import AtariGame

HEIGHT = 210
WIDTH = 160
MARGIN = (HEIGHT - 168) // 2  # rows above and below v2's crop window
SKIP = 4  # raw frames per agent step
SPARES = 3  # a curriculum alternates between training and evaluation, which has two
_spare: list[tuple[str, Any]] = []  # settings and closed emulators: ale-py makes them one after the other, 0.15 s each


class AtariEnvs(VectorEnv):
    """N copies of an Atari game; emulators run on C++ threads between `send` and `recv`."""

    low = (0.0,)
    high = (1.0,)

    def __init__(
        self, game: AtariGame, num_envs: int, device: torch.device, threads: int = 0, render: bool = False
    ) -> None:
        self.game = game
        self.num_envs = num_envs
        self._device = device
        self._render = render
        self._v1 = game.pipeline == "v1"
        self._ale, self._settings = _emulators(game, num_envs, threads)
        actions = [action.name for action in self._ale.ale.get_action_set()]
        if game.num_actions > len(actions):
            raise GameError(f"'{game.id}' has {len(actions)} actions, not {game.num_actions}", "lower game.num_actions")
        given = game.first_noops
        if given and (len(given) != num_envs or min(given) < 1 or max(given) > game.noop_max):
            what = f"first_noops ({len(given)} from {min(given)} to {max(given)}) do not fit"
            raise GameError(what, f"{counted(num_envs, 'number')} from 1 to {game.noop_max}")
        self.num_actions = game.num_actions or len(actions)
        self.action_names = tuple(actions[: self.num_actions])
        self.obs_shape = (1, 80, 80) if self._v1 else (1, 84, 84)
        # Moves left of the start-up script NOOP, FIRE, action 2; a new game enters it at FIRE, a lost life at NOOP.
        fires = game.fire_reset and len(actions) > 2 and actions[1] == "FIRE"
        self._moves_at_start = 2 if fires else 0
        self._moves_at_life = 3 if fires else 1
        self.noops = np.zeros(num_envs, dtype=np.int64)  # no-op frames with which each copy's episode started
        self._moves_left = np.zeros(num_envs, dtype=np.int64)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._lives = np.zeros(num_envs, dtype=np.int64)
        self._last_frames: list[np.ndarray] = []  # v1: the three newest frames
        self._sent = False
        # Pooling in gray is not the gray of pooling in colour, so colours come from a twin that plays the same moves.
        gray = not self._v1 and game.pool == "gray"
        in_colour = dataclasses.replace(game, pool="rgb")
        self._twin = AtariEnvs(in_colour, num_envs, device, threads, render) if render and gray else None

    def reset(self, seed: Seeds) -> Tensor:
        """Start every copy anew; the seed decides no-ops and power-on state."""
        if self._twin:
            self._twin.reset(seed)
        if self._sent:
            self.recv()  # else its result would be taken for that of the next step
        everyone = np.ones(self.num_envs, dtype=bool)
        screens = self._restart(everyone, np.array(seed_list(seed, self.num_envs)), np.array(self.game.first_noops))
        self._last_frames = [screens, screens, screens]
        return self._observe(screens)

    def send(self, actions: Tensor) -> None:
        """Start one agent step; copies in their start-up moves ignore their action."""
        if self._twin:
            self._twin.send(actions)
        chosen = host_actions(actions, self.num_envs, self.num_actions)
        self._actions = np.where(self._moves_left > 0, 3 - self._moves_left, chosen)
        self._ale.send(self._actions)
        self._sent = True

    def recv(self) -> Step:
        """Wait for the step; games that ended are started again before this returns."""
        expect_sent(self._sent)
        self._sent = False
        if self._twin:
            self._twin.recv()
        screens, reward, terminated, lives = self._recv_v1() if self._v1 else self._recv_v2()
        scripted = self._moves_left > 0
        self._moves_left -= scripted
        self._steps += ~scripted
        # See Step.playing; start-up moves have no step before them.
        playing = ~scripted | (terminated & (self._steps > 0))
        truncated = playing & (self._steps >= self.game.max_steps) & ~terminated
        if self.game.life_reset:
            self._moves_left[playing & (lives < self._lives) & ~terminated] = self._moves_at_life
        self._lives = lives
        obs = self._observe(screens)
        final_obs = obs[:0]
        over = terminated | truncated
        if over.any():
            final_obs = obs[torch.from_numpy(np.flatnonzero(over & playing)).to(obs.device)]
            screens = np.where(over.reshape(-1, *[1] * (screens.ndim - 1)), self._restart(over), screens)
            if self._v1:
                self._last_frames = [np.where(over[:, None, None, None], screens, old) for old in self._last_frames]
            obs = self._observe(screens)
        return Step(
            obs=obs,
            reward=to_device(np.where(scripted, 0, reward).astype(np.float32), self._device),
            terminated=to_device(terminated & playing, self._device),
            truncated=to_device(truncated, self._device),
            playing=to_device(playing, self._device),
            final_obs=final_obs,
        )

    def screen(self) -> np.ndarray | None:
        """The screen in colour, pooled as observations are."""
        if self._twin:
            return self._twin.screen()
        return self._screen if self._render else None

    def close(self) -> None:
        """Leave the emulators to the next environment of this kind."""
        if self._ale is None:
            return
        if self._sent:
            self.recv()
        if self._twin:
            self._twin.close()
        _spare.append((self._settings, self._ale))
        self._ale = None
        while len(_spare) > SPARES:
            _, oldest = _spare.pop(0)
            oldest.close()

    def _recv_v2(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        screens, reward, terminated, _, info = self._ale.recv()
        return screens[:, 0], reward, terminated, info["lives"].astype(np.int64)

    def _recv_v1(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Four raw frames, the pixelwise maximum of the last three; a copy that ends stops there."""
        reward = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, dtype=bool)
        lives = self._lives.copy()
        for frame in range(SKIP):
            screens, frame_reward, frame_over, _, info = self._ale.recv()
            live = ~terminated
            pairs = zip([*self._last_frames[1:], screens[:, 0]], self._last_frames, strict=True)
            self._last_frames = [np.where(live[:, None, None, None], new, old) for new, old in pairs]
            reward += np.where(live, frame_reward, 0)
            lives = np.where(live, info["lives"], lives)
            terminated |= live & frame_over
            if frame < SKIP - 1:
                self._ale.send(self._actions)
        return np.maximum.reduce(self._last_frames), reward, terminated, lives

    def _restart(
        self, which: np.ndarray, seeds: np.ndarray | None = None, noops: np.ndarray | None = None
    ) -> np.ndarray:
        """Reset some copies until each has the no-ops asked for, or at least one; returns the screens of all copies."""
        pending = which.copy()
        while pending.any():
            screens, info = self._ale.reset(seed=seeds, options={"reset_mask": pending} if seeds is None else None)
            drawn = info["episode_frame_number"]
            pending &= drawn == 0 if noops is None or not noops.size else drawn != noops
            seeds = None  # drawn again from where the copy's generator stands
        self.noops[which] = info["episode_frame_number"][which]
        self._moves_left[which] = self._moves_at_start
        self._steps[which] = 0
        self._lives[which] = info["lives"][which]
        return screens[:, 0]

    def _observe(self, screens: np.ndarray) -> Tensor:
        if self._render:
            self._screen = screens[0].copy()
        raw = to_device(screens, self._device)
        with threads(1):  # on a CPU the emulators need the cores, see to_device
            return crop_v1(raw) if self._v1 else crop_v2(raw, self.game.crop_shift)


def luma(rgb: Tensor) -> Tensor:
    """OpenCV's RGB2GRAY in its 15-bit integer form: (..., 3) uint8 -> (...) uint8."""
    r, g, b = rgb.int().unbind(-1)
    return ((9798 * r + 19235 * g + 3735 * b + (1 << 14)) >> 15).to(torch.uint8)


def crop_v2(screens: Tensor, crop_shift: int) -> Tensor:
    """Gray (N, 210, 160) or RGB -> (N, 1, 84, 84): 168 rows, 4 black columns each side, rounded mean of 2x2 blocks."""
    top = MARGIN + crop_shift
    rows = screens[:, top : top + 168]
    rows = (luma(rows) if rows.dim() == 4 else rows).to(torch.int16)
    pairs = rows[:, 0::2] + rows[:, 1::2]  # rows first: they are contiguous
    blocks = ((pairs[:, :, 0::2] + pairs[:, :, 1::2] + 2) >> 2).to(torch.uint8)
    return F.pad(blocks, (2, 2)).unsqueeze(1)  # 4 black columns are 2 black columns after the mean


def crop_v1(rgb: Tensor) -> Tensor:
    """(N, 210, 160, 3) uint8 -> (N, 1, 80, 80): rows 34 to 193, mean over channels and 2x2 blocks, rounded once."""
    rows = rgb[:, 34:194].int().sum(-1)
    total = rows[:, 0::2, 0::2] + rows[:, 1::2, 0::2] + rows[:, 0::2, 1::2] + rows[:, 1::2, 1::2]
    return ((total + 6) // 12).to(torch.uint8).unsqueeze(1)


def _emulators(game: AtariGame, num_envs: int, threads: int) -> tuple[Any, str]:
    """ale-py's environment, perhaps one that was closed, and its name."""
    try:
        import ale_py
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    except ImportError:
        raise MissingExtra(f"the Atari game '{game.id}' needs ale-py", "pip install 'ale-py>=0.12.1'") from None
    if game.id not in roms.get_all_rom_ids():
        raise GameError(f"ale-py has no game '{game.id}'", "ROM names are in snake case, such as road_runner")
    if abs(game.crop_shift) > MARGIN:
        what = f"game.crop_shift {game.crop_shift} leaves the screen"
        raise GameError(what, f"it lies between -{MARGIN} and {MARGIN}")
    if not 1 <= game.noop_max < 2**31 - 1:
        allowed = "it must be at least 1, and a 32-bit number"
        raise GameError(f"game.noop_max {game.noop_max} cannot be played", allowed)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    v1 = game.pipeline == "v1"
    settings: dict[str, Any] = {
        "game": game.id,
        "num_envs": num_envs,
        "num_threads": threads,
        "frameskip": 1 if v1 else SKIP,  # v1 pools 3 frames, which ale-py cannot: we skip and pool ourselves
        "maxpool": not v1,
        "grayscale": not v1 and game.pool == "gray",
        "img_height": HEIGHT,
        "img_width": WIDTH,
        "stack_num": 1,
        "noop_max": game.noop_max + 1,  # it draws 0 to n - 1; starts with none are drawn again
        "use_fire_reset": False,
        "reward_clipping": False,
        "episodic_life": False,
        "repeat_action_probability": 0.0,
        "max_num_frames_per_episode": 2**31 - 1,
        "autoreset_mode": "NextStep",
    }
    name = repr(settings)
    for place, (spare, emulators) in enumerate(_spare):
        if spare == name:
            del _spare[place]
            return emulators, name
    return AtariVectorEnv(**settings), name
