"""A copy of somebody's Gymnasium environment: what it does wrong becomes one sentence.

The sentence comes in `info` and is raised by `refuse_failures`: not every exception survives the journey from a process, and
Gymnasium prints what it gets.
"""

import contextlib
import os
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import gymnasium
import numpy as np

from bcl.errors import GameError

LARGEST = float(np.finfo(np.float32).max)
FAILURE = "failure"
Info = dict[str, Any]


def failure(id: str, call: str, error: BaseException) -> GameError:
    """The sentence about an error of an environment in one of its functions; its own traceback comes below."""
    if isinstance(error, GameError):
        return error
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return add_traceback(GameError(f"'{id}' failed in {call} ({reason:.200})", "its own traceback is below"), error)


def add_traceback(sentence: GameError, error: BaseException) -> GameError:
    """Below the sentence, how the error came about, without the first frame, which is ours."""
    frames = error.__traceback__ and error.__traceback__.tb_next
    sentence.add_note("".join(traceback.format_exception(type(error), error, frames)).rstrip())
    return sentence


def refuse_failures(info: Info) -> None:
    """Raise what went wrong in one of the copies."""
    if FAILURE in info:
        raise next(error for error in info[FAILURE] if error is not None)


def refuse_infinite(id: str, call: str, what: str, numbers: np.ndarray) -> None:
    """Refuse answers of the copies that have NaN or infinite elements."""
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        odd = numbers[~np.isfinite(numbers)][0]
        raise GameError(f"'{id}' handed out {odd} as {what} in {call}", "it has to be finite")


@contextlib.contextmanager
def without_exit() -> Iterator[None]:
    """A game that calls `os._exit` would end this process without a word: here it raises. A child that it forks may, and so
    may other threads, such as the one that ends a game that hangs. Around whole vector steps: it costs 1.6 us, a quarter of a step
    of CartPole."""
    exit_now, here = os._exit, (os.getpid(), threading.get_ident())

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

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Start anew."""
        try:
            obs, _ = self.env.reset(seed=seed, options=options)
            return self._array(obs, "reset"), {}
        except (Exception, SystemExit, GeneratorExit) as error:
            return self._nothing(), {FAILURE: failure(self._id, "reset", error)}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Take an action."""
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            gain = float(self._number("reward", reward))
            over = bool(self._number("terminated", terminated))
            cut = bool(self._number("truncated", truncated))
            return self._array(obs, "step"), gain, over, cut, {}
        except (Exception, SystemExit, GeneratorExit) as error:
            return self._nothing(), 0.0, False, False, {FAILURE: failure(self._id, "step", error)}

    def close(self) -> None:
        """Close it; what comes of that changes no result."""
        with contextlib.suppress(Exception):
            super().close()

    def _array(self, obs: Any, call: str) -> np.ndarray:
        array, space = np.asarray(obs), self._space
        if array.shape == space.shape and array.dtype == space.dtype:
            return array
        if array.shape != space.shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
            what = f"'{self._id}' handed out an observation of shape {array.shape} and type {array.dtype} in {call}"
            raise GameError(what, f"its observation_space has shape {space.shape} and type {space.dtype}")
        return array.astype(space.dtype)

    def _number(self, name: str, value: Any) -> float:
        if type(value) in (bool, int, float) and abs(value) <= LARGEST:
            return value
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise GameError(f"'{self._id}' handed out {value!r:.60} as {name} in step", "it has to be one number")
        if not abs(array.item()) <= LARGEST:  # NaN included
            what = f"'{self._id}' handed out {array.item()} as {name} in step"
            raise GameError(what, "it has to be finite in float32")
        return array.item()

    def _nothing(self) -> np.ndarray:
        return np.zeros(self._space.shape or (), self._space.dtype)
