"""Starts that differ: every episode begins with random actions, so that a deterministic agent in a deterministic game takes more
than a few courses."""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from bcl.envs.vector import Seeds, Step, VectorEnv, host_actions, seed_list
from bcl.games import AtariGame

# Agent steps, from the fewest to the most. After fewer Pong is soon back on the course that it takes without; with more the
# opponent would have points that count for nobody.
ATARI_LENGTHS = (30, 120)
LENGTHS = (1, 10)  # elsewhere, where starts are drawn already; more would end a game of CartPole
STREAM = 7  # tells these draws from others with the same seed


class VariedStarts:
    """A game whose episodes begin with random actions, of each copy its own; these are no steps of the agent's."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env
        self.game, self.num_envs, self.num_actions = env.game, env.num_envs, env.num_actions
        self.action_names, self.obs_shape = env.action_names, env.obs_shape
        self.low, self.high = env.low, env.high
        self._lengths = ATARI_LENGTHS if isinstance(env.game, AtariGame) else LENGTHS
        self.prefixes = np.zeros(self.num_envs, dtype=np.int64)
        """Random actions with which each copy's episode began."""
        self._left = np.zeros(self.num_envs, dtype=np.int64)

    def reset(self, seed: Seeds) -> Tensor:
        """Start every copy anew; its seed decides its random actions too."""
        self._draws = [np.random.default_rng([one, STREAM]) for one in seed_list(seed, self.num_envs)]
        self._begin(np.ones(self.num_envs, dtype=bool))
        return self._env.reset(seed)

    def send(self, actions: Tensor) -> None:
        """Start one step; copies that still begin ignore their action."""
        chosen = host_actions(actions, self.num_envs, self.num_actions)
        for i in np.flatnonzero(self._left):
            chosen[i] = self._draws[i].integers(self.num_actions)
        self._env.send(torch.from_numpy(chosen))

    def recv(self) -> Step:
        """The result of the step; what happened to copies that begin is hidden, and one that ended there begins again."""
        step = self._env.recv()
        begins = self._left > 0
        ended, playing = step.ended.cpu().numpy(), step.playing.cpu().numpy()
        self._left -= begins & playing  # not in moves of the game's own
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

    def screen(self) -> np.ndarray | None:
        """The game's."""
        return self._env.screen()

    def close(self) -> None:
        """Stop the game."""
        self._env.close()

    def _begin(self, which: np.ndarray) -> None:
        for i in np.flatnonzero(which):
            self._left[i] = self.prefixes[i] = self._draws[i].integers(*self._lengths, endpoint=True)
