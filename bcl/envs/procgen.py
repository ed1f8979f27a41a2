"""Procgen games on their own C++ vector environment; docs/games.md says what is special about their ends and seeds."""

import contextlib
import io
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcl.envs.vector import MAX_SEED, Seeds, Step, VectorEnv, expect_sent, host_actions, seed_list, to_device
from bcl.errors import GameError, MissingExtra
from bcl.games import PROCGEN_GAMES, ProcgenGame

# Agent steps after which a game ends by itself; every other game has 1000.
TIMEOUTS = {"bigfish": 6000, "bossfight": 4000, "plunder": 4000, "leaper": 500, "maze": 500}
INSTALL = (
    "pip install --no-deps procgen-mirror gym3 gym==0.26.2 gym-notices && pip install cffi imageio cloudpickle filelock"
    " (procgen-mirror asks for numpy<2 but runs on 2.x)"
)
SYSTEM = "apt-get install libgl1 libglib2.0-0 libx11-6"


class ProcgenEnvs(VectorEnv):
    """N copies of a Procgen game; they run on C++ threads between `send` and `recv`."""

    num_actions = 15
    # Keys held; what the last six do, if anything, depends on the game.
    action_names = (
        "LEFT DOWN", "LEFT", "LEFT UP", "DOWN", "NOOP", "UP", "RIGHT DOWN", "RIGHT", "RIGHT UP",
        "D", "A", "W", "S", "Q", "E",
    )  # fmt: skip
    obs_shape = (3, 64, 64)
    low = (0.0,)
    high = (1.0,)

    def __init__(
        self, game: ProcgenGame, num_envs: int, device: torch.device, threads: int = 0, render: bool = False
    ) -> None:
        if game.id not in PROCGEN_GAMES:
            raise GameError(f"Procgen has no game '{game.id}'", f"one of {', '.join(PROCGEN_GAMES)}")
        modes = ["easy", "hard", *(mode for mode, games in _RARE_MODES.items() if game.id in games)]
        if game.distribution_mode not in modes:
            raise GameError(f"'{game.id}' has no mode '{game.distribution_mode}'", f"one of {', '.join(modes)}")
        if game.num_levels < 0 or game.start_level < 0 or game.start_level + game.num_levels > MAX_SEED:
            what = f"{game.num_levels} levels from {game.start_level} on leave the range"
            raise GameError(what, f"levels lie between 0 and {MAX_SEED}")
        self.game = game
        self.num_envs = num_envs
        self._device = device
        self._render = render
        wanted = threads or os.cpu_count() or 1
        self._threads = wanted if wanted > 1 else 0  # one thread is slower than none
        self._timeout = TIMEOUTS.get(game.id, 1000)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._playing = torch.ones(num_envs, dtype=torch.bool, device=device)  # Procgen makes no moves of its own
        self._sent = False
        self._engines: list[Any] = []  # one for all copies, or one each

    def reset(self, seed: Seeds) -> Tensor:
        """Build the engine anew, since Procgen is seeded only then; an integer seeds one engine for all copies."""
        seeds = seed_list(seed, self.num_envs)
        if isinstance(seed, Iterable):
            self._engines = [self._build(1, one, 0) for one in seeds]
        else:
            self._engines = [self._build(self.num_envs, seeds[0], self._threads)]
        self._sent = False
        self._steps[:] = 0
        self._obs = self._observe()[0]
        return self._obs

    def send(self, actions: Tensor) -> None:
        chosen = host_actions(actions, self.num_envs, self.num_actions).astype(np.int32)
        for engine, part in zip(self._engines, np.split(chosen, len(self._engines)), strict=True):
            engine.act(part)
        self._sent = True

    def recv(self) -> Step:
        expect_sent(self._sent)
        self._sent = False
        last_obs = self._obs
        self._obs, reward, over = self._observe()
        self._steps += 1
        truncated = over & (self._steps >= self._timeout)
        if truncated.any():
            infos = [info for engine in self._engines for info in engine.get_info()]
            truncated &= ~np.array([info["prev_level_complete"] for info in infos], dtype=bool)
        self._steps[over] = 0
        # One copy to the device instead of three. Ends by number: a mask would make the host wait for the device.
        rewards, terminated, truncation = to_device(np.stack([reward, over & ~truncated, truncated]), self._device)
        ended = to_device(np.flatnonzero(over), self._device) if over.any() else slice(0)
        return Step(
            obs=self._obs,
            reward=rewards,
            terminated=terminated.bool(),
            truncated=truncation.bool(),
            playing=self._playing.clone(),
            final_obs=last_obs[ended],
        )

    def screen(self) -> np.ndarray | None:
        """Procgen's own picture, in the size made for people."""
        return self._engines[0].get_info()[0]["rgb"].copy() if self._render else None

    def close(self) -> None:
        """Let the engines go; Procgen has no other way to stop."""
        self._engines = []

    def _build(self, copies: int, seed: int, threads: int) -> Any:
        game = self.game
        try:
            engine = _engine()(
                num=copies,
                env_name=game.id,
                num_levels=game.num_levels,
                start_level=game.start_level,
                distribution_mode=game.distribution_mode,
                rand_seed=seed,
                num_threads=threads,
                render_mode="rgb_array" if self._render else None,
            )
        except OSError as error:
            raise MissingExtra(f"procgen's library does not load ({error})", SYSTEM) from None
        engine._reuse_arrays = True  # an option of gym3's that Procgen does not pass on; `to_device` copies anyway
        return engine

    def _observe(self) -> tuple[Tensor, np.ndarray, np.ndarray]:
        reward, obs, first = zip(*(engine.observe() for engine in self._engines), strict=True)
        frames = to_device(_joined([o["rgb"] for o in obs]), self._device).permute(0, 3, 1, 2)  # channels stay last
        return frames, _joined(reward), _joined(first)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


_RARE_MODES = {
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
}


def _engine() -> type:
    try:
        # gym, which procgen imports, announces its own end on stderr; procgen leaves a file open.
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from procgen import ProcgenGym3Env
    except ImportError:
        raise MissingExtra("Procgen games need procgen-mirror", INSTALL) from None
    return ProcgenGym3Env
