"""Any Gymnasium environment with discrete actions and a box observation.

Vector observations are divided, per dimension, by documented constants (`bcl.games.OBSERVATION_SCALES`); eps is in
those scaled units. Byte images (height, width, channels) become (channels, height, width).

An error of the user's environment becomes one sentence. It comes in `info` and is raised by `_answered`: not every
exception can be sent from a process, and Gymnasium prints what it gets.
"""

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from bcl.envs.vector import Seeds, Step, VectorEnv, expect_sent, host_actions, seed_list, to_device
from bcl.errors import GameError, MissingExtra
from bcl.games import ACTION_NAMES, OF_A_SCRIPT, OWN_ID, GymnasiumGame, gymnasium_entry, observation_scale
from bcl.processes import die_with_parent, how_it_ended

# Pictures need no window and no sound, and pygame prints greetings and warnings.
QUIET_PYGAME = {"PYGAME_HIDE_SUPPORT_PROMPT": "1", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
LARGEST = float(np.finfo(np.float32).max)
FAILURE = "failure"
StepInfo = dict[str, Any]


class GymnasiumEnvs(VectorEnv):
    """N copies of a Gymnasium environment."""

    def __init__(
        self, game: GymnasiumGame, num_envs: int, device: torch.device, threads: int = 0, render: bool = False
    ) -> None:
        self.game = game
        self.num_envs = num_envs
        self._render = render
        self._device = device
        self._pending: Literal["", "reset", "step"] = ""  # the call that the copies have not answered
        self._process = os.getpid()
        try:
            kind = AsyncVectorEnv if game.processes and not render else SyncVectorEnv
            self._envs = kind([self._make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        except Exception as error:  # the constructor and the module of an id are the user's code
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, EOFError | ConnectionError):
                reason = "the process of a copy ended as it was made"
            if isinstance(error, gymnasium.error.DependencyNotInstalled):
                if "Box2D" in reason:
                    what = f"'{game.id}' needs Box2D, the extra 'box2d'"
                    raise MissingExtra(what, "pip install 'box2d>=2.3.10'") from None
                raise GameError(f"'{game.id}' needs a package that is not installed", reason) from None
            hint = "check the id and its package"
            if isinstance(error, gymnasium.error.NameNotFound):
                hint = OF_A_SCRIPT if OWN_ID.fullmatch(game.id) else f"{hint}; {OF_A_SCRIPT}"
            refused = GameError(f"Gymnasium cannot make '{game.id}' ({reason})", hint)
            if not isinstance(error, gymnasium.error.Error | ImportError):
                _add_traceback(refused, error)
            raise refused from None
        actions = self._envs.single_action_space
        space = self._envs.single_observation_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            what = f"'{game.id}' has actions of type {type(actions).__name__}"
            raise GameError(what, "only Discrete actions are supported")
        if not isinstance(space, gymnasium.spaces.Box):
            raise GameError(f"'{game.id}' observes a {type(space).__name__}", "only Box observations are supported")
        self.num_actions = int(actions.n)
        self.action_names = ACTION_NAMES.get(game.id) or tuple(map(str, range(self.num_actions)))
        self._first_action = int(actions.start)
        self._image = space.dtype == np.uint8 and len(space.shape) == 3
        if self._image:
            height, width, channels = space.shape
            self.obs_shape: tuple[int, ...] = (channels, height, width)
            self.low = (0.0,)
            self.high = (1.0,)
        else:
            self.obs_shape = (int(np.prod(space.shape)),)
            low = space.low.astype(np.float64).ravel()
            high = space.high.astype(np.float64).ravel()
            self.scale = np.array(observation_scale(game, low.tolist(), high.tolist()))
            self.low = tuple((low / self.scale).tolist())
            self.high = tuple((high / self.scale).tolist())

    def reset(self, seed: Seeds) -> Tensor:
        seeds = seed_list(seed, self.num_envs)
        if self._pending == "step":
            self.recv()  # processes refuse a reset in the middle of a step
        self._pending = "reset"
        with self._naming_ended_processes():
            obs, info = self._envs.reset(seed=[*seeds])
        self._answered(info)
        return self._observe(obs, "reset")

    def send(self, actions: Tensor) -> None:
        """Start one step; without processes it runs in `recv`."""
        self._actions = host_actions(actions, self.num_envs, self.num_actions) + self._first_action
        self._pending = "step"
        if isinstance(self._envs, AsyncVectorEnv):
            with self._naming_ended_processes():
                self._envs.step_async(self._actions)

    def recv(self) -> Step:
        expect_sent(self._pending == "step")
        envs = self._envs
        with self._naming_ended_processes():
            result = envs.step_wait() if isinstance(envs, AsyncVectorEnv) else envs.step(self._actions)
        obs, reward, terminated, truncated, info = result
        self._answered(info)
        ended = terminated | truncated
        last = np.stack(info["final_obs"][ended]) if ended.any() else obs[:0]
        return Step(
            obs=self._observe(obs, "step"),
            reward=to_device(reward.astype(np.float32), self._device),
            terminated=to_device(terminated, self._device),
            truncated=to_device(truncated & ~terminated, self._device),
            playing=torch.ones(self.num_envs, dtype=torch.bool, device=self._device),
            final_obs=self._observe(last, "step"),
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
            raise _failure(self.game.id, "render", error) from None
        if not isinstance(picture, np.ndarray):
            raise GameError(f"'{self.game.id}' returned {picture!r:.60} in render", "it has to be an array")
        return picture

    def close(self) -> None:
        """Close every copy; processes that have not answered are killed."""
        if self._pending and isinstance(self._envs, AsyncVectorEnv):
            for process in self._envs.processes:
                process.kill()
                process.join()
            self._envs.closed = True  # else Gymnasium would first wait for the answer
        self._envs.close()

    @contextlib.contextmanager
    def _naming_ended_processes(self) -> Iterator[None]:
        """Around calls of the copies: where the process of one ended, the error says how."""
        try:
            with _without_exit():
                yield
        except (EOFError, ConnectionError):
            processes = {process.sentinel: process for process in getattr(self._envs, "processes", [])}
            how = "is gone"
            for sentinel in connection.wait(processes, timeout=1):
                processes[sentinel].join(timeout=1)  # it may not quite be over
                how = how_it_ended(processes[sentinel].exitcode)
            what = f"the process of a copy of '{self.game.id}' {how} in {self._pending}"
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

    def _answered(self, info: StepInfo) -> None:
        """The copies have answered; raise what went wrong in one of them."""
        self._pending = ""
        if FAILURE in info:
            raise next(error for error in info[FAILURE] if error is not None)

    def _observe(self, obs: np.ndarray, call: str) -> Tensor:
        if obs.dtype.kind == "f" and not np.isfinite(obs).all():
            odd = obs[~np.isfinite(obs)][0]
            raise GameError(f"'{self.game.id}' returned {odd} as observation in {call}", "it has to be finite")
        if self._image:
            return to_device(obs, self._device).permute(0, 3, 1, 2).contiguous()
        return to_device((obs.reshape(len(obs), *self.obs_shape) / self.scale).astype(np.float32), self._device)


def _failure(id: str, call: str, error: BaseException) -> GameError:
    """The sentence about an error of an environment in one of its functions; its own traceback comes below."""
    if isinstance(error, GameError):
        return error
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return _add_traceback(GameError(f"'{id}' failed in {call} ({reason:.200})", "its own traceback is below"), error)


def _add_traceback(sentence: GameError, error: BaseException) -> GameError:
    """Below the sentence, the traceback of the error without its first frame, which is ours."""
    frames = error.__traceback__ and error.__traceback__.tb_next
    sentence.add_note("".join(traceback.format_exception(type(error), error, frames)).rstrip())
    return sentence


@contextlib.contextmanager
def _without_exit() -> Iterator[None]:
    """A game that calls `os._exit` raises here, but for its children and for other threads. It takes 1.6 us."""
    exit_now = os._exit
    here = (os.getpid(), threading.get_ident())

    def refused(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) != here:
            exit_now(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refused
    try:
        yield
    finally:
        os._exit = exit_now


class Guard(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One copy, the form of whose answers is checked; `info` holds nothing but failures."""

    def __init__(self, env: gymnasium.Env[Any, Any], id: str) -> None:
        super().__init__(env)
        self._id = id
        self._space: Any = env.observation_space

    def reset(self, *, seed: int | None = None, options: StepInfo | None = None) -> tuple[np.ndarray, StepInfo]:
        try:
            obs, _ = self.env.reset(seed=seed, options=options)
            return self._array(obs, "reset"), {}
        except (Exception, SystemExit, GeneratorExit) as error:
            return self._nothing(), {FAILURE: _failure(self._id, "reset", error)}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, StepInfo]:
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            gain = float(self._number("reward", reward))
            over = bool(self._number("terminated", terminated))
            cut = bool(self._number("truncated", truncated))
            return self._array(obs, "step"), gain, over, cut, {}
        except (Exception, SystemExit, GeneratorExit) as error:
            return self._nothing(), 0.0, False, False, {FAILURE: _failure(self._id, "step", error)}

    def close(self) -> None:
        """Close it; an error of that changes no result."""
        with contextlib.suppress(Exception):
            super().close()

    def _array(self, obs: Any, call: str) -> np.ndarray:
        array = np.asarray(obs)
        space = self._space
        if array.shape != space.shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
            what = f"'{self._id}' returned an observation of shape {array.shape} and type {array.dtype} in {call}"
            raise GameError(what, f"its observation_space has shape {space.shape} and type {space.dtype}")
        return array.astype(space.dtype, copy=False)

    def _number(self, name: str, value: Any) -> float:
        if type(value) in (bool, int, float) and abs(value) <= LARGEST:
            return value
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise GameError(f"'{self._id}' returned {value!r:.60} as {name} in step", "it has to be one number")
        if not abs(array.item()) <= LARGEST:  # NaN included
            what = f"'{self._id}' returned {array.item()} as {name} in step"
            raise GameError(what, "it has to be finite in float32")
        return array.item()

    def _nothing(self) -> np.ndarray:
        return np.zeros(self._space.shape or (), self._space.dtype)
