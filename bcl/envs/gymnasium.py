"""Any Gymnasium environment with discrete actions and a box observation.

Vector observations are divided, per dimension, by documented constants (`bcl.games.OBSERVATION_SCALES`); eps is in those
scaled units. Byte images (height, width, channels) become (channels, height, width).
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from bcl.envs.guard import Guard, add_traceback, failure, refuse_failures, refuse_infinite, without_exit
from bcl.envs.vector import Seeds, Step, expect_sent, host_actions, seed_list, to_device
from bcl.errors import GameError
from bcl.games import ACTION_NAMES, GymnasiumGame, gymnasium_entry, observation_scale
from bcl.processes import die_with_parent, how_it_ended

# Pictures need no window and no sound, and pygame greets and complains on the terminal.
QUIET_PYGAME = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}


class GymnasiumEnvs:
    """N copies of a Gymnasium environment."""

    def __init__(
        self, game: GymnasiumGame, num_envs: int, device: torch.device, threads: int = 0, render: bool = False
    ) -> None:
        self.game, self.num_envs = game, num_envs
        self._render = render
        self._device = device
        self._owed: Literal["", "reset", "step"] = ""  # the call that the copies have not answered
        self._process = os.getpid()
        try:
            kind = AsyncVectorEnv if game.processes and not render else SyncVectorEnv
            self._envs = kind([self._make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        except Exception as error:  # the constructor and the module of an id are anybody's code
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, EOFError | ConnectionError):
                reason = "the process of a copy ended as it was made"
            if isinstance(error, gymnasium.error.DependencyNotInstalled):
                raise GameError(f"'{game.id}' needs a package that is not installed", reason) from None
            refused = GameError(f"Gymnasium cannot make '{game.id}' ({reason})", "check the id and its package")
            if not isinstance(error, gymnasium.error.Error | ImportError):
                add_traceback(refused, error)
            raise refused from None
        actions, space = self._envs.single_action_space, self._envs.single_observation_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise GameError(
                f"'{game.id}' has actions of type {type(actions).__name__}", "only Discrete actions are supported"
            )
        if not isinstance(space, gymnasium.spaces.Box):
            raise GameError(f"'{game.id}' observes a {type(space).__name__}", "only Box observations are supported")
        self.num_actions = int(actions.n)
        self.action_names = ACTION_NAMES.get(game.id) or tuple(map(str, range(self.num_actions)))
        self._first_action = int(actions.start)
        self._image = space.dtype == np.uint8 and len(space.shape) == 3
        if self._image:
            height, width, channels = space.shape
            self.obs_shape: tuple[int, ...] = (channels, height, width)
            self.low, self.high = (0.0,), (1.0,)
        else:
            self.obs_shape = (int(np.prod(space.shape)),)
            low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
            self._scale = np.array(observation_scale(game, low.tolist(), high.tolist()))
            self.low, self.high = tuple((low / self._scale).tolist()), tuple((high / self._scale).tolist())

    def reset(self, seed: Seeds) -> Tensor:
        """Start every copy anew."""
        seeds = seed_list(seed, self.num_envs)
        if self._owed == "step":
            self.recv()  # processes refuse a reset in the middle of a step
        self._owed = "reset"
        with self._telling_of_the_dead():
            obs, info = self._envs.reset(seed=[*seeds])
        self._owed = ""
        refuse_failures(info)
        refuse_infinite(self.game.id, "reset", "observation", obs)
        return self._observe(obs)

    def send(self, actions: Tensor) -> None:
        """Start one step; without processes it runs in `recv`."""
        self._actions = host_actions(actions, self.num_envs, self.num_actions) + self._first_action
        self._owed = "step"
        if isinstance(self._envs, AsyncVectorEnv):
            with self._telling_of_the_dead():
                self._envs.step_async(self._actions)

    def recv(self) -> Step:
        """The result of the step."""
        expect_sent(self._owed == "step")
        envs = self._envs
        with self._telling_of_the_dead():
            result = envs.step_wait() if isinstance(envs, AsyncVectorEnv) else envs.step(self._actions)
        self._owed = ""
        obs, reward, terminated, truncated, info = result
        refuse_failures(info)
        ended = terminated | truncated
        last = np.stack(info["final_obs"][ended]) if ended.any() else obs[:0]
        for what, numbers in (("reward", reward), ("observation", obs), ("observation", last)):
            refuse_infinite(self.game.id, "step", what, numbers)
        return Step(
            obs=self._observe(obs),
            reward=to_device(reward.astype(np.float32), self._device),
            terminated=to_device(terminated, self._device),
            truncated=to_device(truncated & ~terminated, self._device),
            playing=torch.ones(self.num_envs, dtype=torch.bool, device=self._device),
            final_obs=self._observe(last),
        )

    def screen(self) -> np.ndarray | None:
        """Gymnasium's own picture; none where the game has none, or what draws it is not installed."""
        first = None if isinstance(self._envs, AsyncVectorEnv) else self._envs.envs[0]
        if first is None or first.render_mode != "rgb_array":
            return None
        for name, value in QUIET_PYGAME.items():
            os.environ.setdefault(name, value)
        try:
            picture = first.render()
        except gymnasium.error.DependencyNotInstalled:
            return None
        except Exception as error:
            raise failure(self.game.id, "render", error) from None
        if not isinstance(picture, np.ndarray):
            raise GameError(f"'{self.game.id}' handed out {picture!r:.60} in render", "it has to be an array")
        return picture

    def close(self) -> None:
        """Close every copy; processes that owe an answer are killed."""
        if self._owed and isinstance(self._envs, AsyncVectorEnv):
            for process in self._envs.processes:
                process.kill()
                process.join()
            self._envs.closed = True  # else Gymnasium would first wait for the answer
        self._envs.close()

    @contextlib.contextmanager
    def _telling_of_the_dead(self) -> Iterator[None]:
        """Around words with the copies, or their processes."""
        try:
            with without_exit():
                yield
        except (EOFError, ConnectionError):
            processes = {process.sentinel: process for process in getattr(self._envs, "processes", [])}
            how = "is gone"
            for sentinel in connection.wait(processes, timeout=1):
                processes[sentinel].join(timeout=1)  # it may not quite be over
                how = how_it_ended(processes[sentinel].exitcode)
            what = f"the process of a copy of '{self.game.id}' {how} in {self._owed}"
            hint = "often that is a lack of memory; --game.processes false plays all copies in one process"
            raise GameError(what, hint) from None

    def _make(self) -> gymnasium.Env[Any, Any]:
        if os.getpid() != self._process:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the first decides
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with_parent()
        entry = gymnasium_entry(self.game.id)
        env = gymnasium.make(entry, disable_env_checker=True)  # it checks the first step, and only warns
        if self._render and "rgb_array" in env.metadata.get("render_modes", ()):
            env = gymnasium.make(entry, render_mode="rgb_array", disable_env_checker=True)
        limited = env.spec is not None and env.spec.max_episode_steps is not None
        return Guard(env if limited else gymnasium.wrappers.TimeLimit(env, self.game.max_steps), self.game.id)

    def _observe(self, obs: np.ndarray) -> Tensor:
        if self._image:
            return to_device(obs, self._device).permute(0, 3, 1, 2).contiguous()
        return to_device((obs.reshape(len(obs), *self.obs_shape) / self._scale).astype(np.float32), self._device)
