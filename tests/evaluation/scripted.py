"""Games whose episodes are written down."""

import torch
from torch import Tensor

from bcl.config import resolve
from bcl.envs import Step

Script = list[tuple[float, float]]  # what is seen after each step, and the reward with it


class Scripted:
    """Copy i plays its script over and over, each time after other idle steps, and never begins as another copy
    does."""

    game = resolve("cartpole").game
    num_actions = 2
    obs_shape = (1,)
    low, high = (-100.0,), (100.0,)

    def __init__(self, *scripts: Script) -> None:
        self.num_envs = len(scripts)
        self._scripts = scripts

    def reset(self, seed: int) -> Tensor:
        self._at, self._episode = [0] * self.num_envs, [0] * self.num_envs
        return torch.zeros(self.num_envs, 1)

    def send(self, actions: Tensor) -> None:
        pass

    def recv(self) -> Step:
        obs, final_obs, rewards, over = [], [], [], []
        for i, script in enumerate(self._scripts):
            idle = i + 2 * self._episode[i]
            seen, reward = (0.0, 0.0) if self._at[i] < idle else script[self._at[i] - idle]
            self._at[i] += 1
            over.append(self._at[i] == idle + len(script))
            if over[-1]:
                final_obs.append([seen])
                self._at[i], self._episode[i], seen = 0, self._episode[i] + 1, -float(i)
            obs.append([seen])
            rewards.append(reward)
        ended, nothing = torch.tensor(over), torch.zeros(self.num_envs, dtype=torch.bool)
        final = torch.tensor(final_obs, dtype=torch.float32).view(-1, 1)
        return Step(torch.tensor(obs, dtype=torch.float32), torch.tensor(rewards), ended, nothing, ~nothing, final)

    def close(self) -> None:
        pass
