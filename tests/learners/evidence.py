"""A game in which agents differ in their loss alone: what a vanilla agent trusts, an adversary can turn."""

import torch
from torch import Tensor

from bcl.attacks import PGD
from bcl.envs import Step
from bcl.evaluation import evaluate
from bcl.games import GymnasiumGame
from bcl.policies import Policy, PolicySpec

EPS = 0.1  # turns all weak signs, and never the strong one


class Evidence:
    """Which of two sides? One strong sign is right in 17 of 20 cases, many weak ones together nearly always.

    Weak signs are 0.02 of the right side and 0.04 of noise each; a budget of 0.1 turns them all, and never the strong
    one of 0.5 (after Tsipras et al. 2019). Ten questions make an episode; each right answer pays 1.
    """

    num_actions, obs_shape = 2, (41,)
    low, high = (-2.0,), (2.0,)
    game = GymnasiumGame("Evidence-v0")
    length = 10

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, seed: int) -> Tensor:
        self._draw, self._asked = torch.Generator().manual_seed(seed), 0
        return self._ask()

    def send(self, actions: Tensor) -> None:
        self._actions = actions

    def recv(self) -> Step:
        self._asked += 1
        reward = (self._actions == self._right).float()
        over = torch.full((self.num_envs,), self._asked % self.length == 0)
        last = self._shown[over]
        return Step(self._ask(), reward, over, torch.zeros_like(over), torch.ones_like(over), last)

    def close(self) -> None:
        pass

    def _ask(self) -> Tensor:
        self._right = torch.randint(2, (self.num_envs,), generator=self._draw)
        side = 2.0 * self._right.unsqueeze(1) - 1
        honest = torch.rand(self.num_envs, 1, generator=self._draw) < 0.85
        strong = 0.5 * torch.where(honest, side, -side)
        weak = 0.02 * side + 0.04 * torch.randn(self.num_envs, 40, generator=self._draw)
        self._shown = torch.cat([strong, weak], dim=1)
        return self._shown


def fresh_policy(kind: str, seed: int) -> Policy:
    """Untrained."""
    spec = PolicySpec(kind, Evidence.obs_shape, 2, Evidence.low, Evidence.high, (32,), game=Evidence.game)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy(spec)


def right_answers(policy: Policy) -> tuple[float, float]:
    """Share of right answers, clean and under PGD-30 at `EPS`."""
    clean, attacked = (
        evaluate(policy.eval(), Evidence(100), PGD(steps=30, step=0.1), eps, episodes=100, seed=9).mean
        / Evidence.length
        for eps in (0.0, EPS)
    )
    return clean, attacked
