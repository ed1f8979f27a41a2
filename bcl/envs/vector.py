"""The interface of all games: many copies, stepped together."""

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bcl.errors import GameError, counted
from bcl.games import AtariGame, Game

Seeds = int | Sequence[int]
MAX_SEED = 2**31 - 1
# Agent steps, from the fewest to the most: after fewer Pong is soon back on its usual course, with more the opponent
# scores.
ATARI_PREFIXES = (30, 120)
PREFIXES = (1, 10)  # elsewhere, where starts are drawn already; more would end a game of CartPole
PREFIX_TRIES = 8  # beginnings of whole length that may end an episode in a row
PREFIX_STREAM = 7  # tells these draws from others with the same seed


@dataclass(frozen=True)
class Step:
    """What happened to each of the N environments; tensors lie on the learner's device."""

    obs: Tensor  # (N, *obs_shape) what to act on next; after an end, the next episode's first observation
    reward: Tensor  # (N,) float32, raw
    terminated: Tensor  # (N,) bool, the game itself ended
    truncated: Tensor  # (N,) bool, a step limit ended it: the state had a future, so learners bootstrap
    # (N,) bool; where False the game made a move of its own: no transition, no reward, no end. The one move of its own
    # that counts as played, without reward, is one after a lost life in which the game ends: else two episodes would
    # merge.
    playing: Tensor
    final_obs: Tensor  # (E, *obs_shape) last observation of each episode that ended, in the order of `ended`

    @property
    def ended(self) -> Tensor:
        """(N,) bool: the episode is over, either way."""
        return self.terminated | self.truncated

    def split(self, size: int) -> "list[Step]":
        """The same of `size` environments at a time."""
        ends = [0] * (len(self.reward) // size)
        if len(self.final_obs):  # else the host need not wait for the device
            ends = self.ended.view(-1, size).sum(dim=1).tolist()
        parts = (part.split(size) for part in (self.obs, self.reward, self.terminated, self.truncated, self.playing))
        return [Step(*part) for part in zip(*parts, self.final_obs.split(ends), strict=True)]


class VectorEnv(Protocol):
    """N copies of a game. `send` starts a step, without waiting where the engine has threads; `recv` waits for it."""

    game: Game
    num_envs: int
    num_actions: int
    action_names: tuple[str, ...]
    """For people."""
    obs_shape: tuple[int, ...]
    low: tuple[float, ...]
    """Smallest valid observation as a policy sees it (bytes count as [0, 1]): one number, or one per dimension."""
    high: tuple[float, ...]

    def reset(self, seed: Seeds) -> Tensor:
        """Start every copy anew and return the first observations.

        A copy's trajectory depends only on its own seed; an integer stands for seed, seed + 1, ... On Procgen alone an
        integer seeds the engine once, which draws for all copies: there copy i also depends on i and not on seed + i.
        """
        ...

    def send(self, actions: Tensor) -> None:
        """Start one step with (N,) integer actions."""
        ...

    def recv(self) -> Step:
        """The result of the step that `send` started; refuses when there is none."""
        ...

    def screen(self) -> np.ndarray | None:
        """The first copy as people see it, (height, width, 3) uint8; none unless made to render, or where it cannot."""
        ...

    def close(self) -> None:
        """Stop threads and processes."""
        ...


def seed_list(seed: Seeds, num_envs: int) -> list[int]:
    """One seed per copy, checked."""
    try:
        seeds = [_index(s) for s in seed] if isinstance(seed, Iterable) else [_index(seed) + i for i in range(num_envs)]
    except TypeError:
        raise GameError(f"seed {seed!r:.60} is not whole", "give one integer, or one seed each") from None
    if len(seeds) != num_envs:
        what = f"{counted(len(seeds), 'seed')} for {counted(num_envs, 'environment')}"
        raise GameError(what, "give one integer, or one seed each")
    if not all(0 <= s <= MAX_SEED for s in seeds):
        raise GameError(f"seeds {min(seeds)} to {max(seeds)} leave the range", f"seeds lie between 0 and {MAX_SEED}")
    return seeds


def _index(seed: int) -> int:
    if isinstance(seed, bool):
        raise TypeError
    return operator.index(seed)  # NumPy's integers too


def host_actions(actions: Tensor, num_envs: int, num_actions: int) -> np.ndarray:
    """Actions as engines take them, checked: with a wrong index an engine plays something else without an error."""
    kind = actions.dtype
    if actions.shape != (num_envs,) or kind.is_floating_point or kind.is_complex or kind == torch.bool:
        given = f"actions of shape {tuple(actions.shape)} and type {kind} do not fit"
        raise GameError(given, f"give {counted(num_envs, 'integer')}")
    array = actions.detach().cpu().numpy().astype(np.int64)
    if array.min() < 0 or array.max() >= num_actions:
        raise GameError(f"action {array.min()} or {array.max()} does not exist", f"actions are 0 to {num_actions - 1}")
    return array


def expect_sent(sent: bool) -> None:
    """Refuse to wait for a step that was not started: an engine would wait forever."""
    if not sent:
        raise GameError("no step is under way", "send actions first")


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy of an engine's buffer, by NumPy: PyTorch's threads would spin on the cores of the emulators."""
    if device.type == "cpu":
        return torch.from_numpy(array.copy())
    source = torch.from_numpy(np.ascontiguousarray(array))
    pinned = torch.empty_like(source, pin_memory=True)  # from such memory the copy runs beside the host
    np.copyto(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)


class WrappedEnv(VectorEnv):
    """A game of which a subclass changes `reset`, `send` or `recv`."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env
        self.game = env.game
        self.num_envs = env.num_envs
        self.num_actions = env.num_actions
        self.action_names = env.action_names
        self.obs_shape = env.obs_shape
        self.low = env.low
        self.high = env.high

    def screen(self) -> np.ndarray | None:
        return self._env.screen()

    def close(self) -> None:
        self._env.close()


class VariedStarts(WrappedEnv):
    """Episodes begin with random actions, no steps of the agent's: else deterministic agents repeat their courses."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._lengths = ATARI_PREFIXES if isinstance(env.game, AtariGame) else PREFIXES
        self.prefixes = np.zeros(self.num_envs, dtype=np.int64)
        """Random actions with which each copy's episode began."""
        self._left = np.zeros(self.num_envs, dtype=np.int64)
        self._ended_early = np.zeros(self.num_envs, dtype=np.int64)  # beginnings in a row that ended the episode

    def reset(self, seed: Seeds) -> Tensor:
        """Start every copy anew; its seed decides its random actions too."""
        self._draws = [np.random.default_rng([one, PREFIX_STREAM]) for one in seed_list(seed, self.num_envs)]
        self._ended_early[:] = 0
        self._begin(np.ones(self.num_envs, dtype=bool))
        return self._env.reset(seed)

    def send(self, actions: Tensor) -> None:
        """Start one step; copies that still begin ignore their action."""
        chosen = host_actions(actions, self.num_envs, self.num_actions)
        for i in np.flatnonzero(self._left):
            chosen[i] = self._draws[i].integers(self.num_actions)
        self._env.send(torch.from_numpy(chosen))

    def recv(self) -> Step:
        """The result of the step; that of copies that begin is hidden, and one that ended there begins again."""
        step = self._env.recv()
        begins = self._left > 0
        ended = step.ended.cpu().numpy()
        playing = step.playing.cpu().numpy()
        self._left -= begins & playing  # not in moves of the game's own
        self._ended_early = np.where(begins, self._ended_early + ended, 0)
        self._begin(ended)
        if not begins.any():
            return step
        shown = torch.from_numpy(~begins).to(step.obs.device)
        return dataclasses.replace(
            step,
            reward=step.reward * shown,
            terminated=step.terminated & shown,
            truncated=step.truncated & shown,
            playing=step.playing & shown,
            final_obs=step.final_obs[shown[step.ended]],
        )

    def _begin(self, which: np.ndarray) -> None:
        for i in np.flatnonzero(which):
            drawn = int(self._draws[i].integers(*self._lengths, endpoint=True))
            # Halved again and again where episodes are shorter than it: else the agent would never play.
            self._left[i] = self.prefixes[i] = drawn >> max(0, self._ended_early[i] - PREFIX_TRIES)
