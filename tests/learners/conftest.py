"""A world small enough to solve by hand, and learners small enough to run in milliseconds."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bcl.config import AttackConfig, DqnConfig, PpoConfig
from bcl.envs import Step
from bcl.games import GymnasiumGame
from bcl.learners import ppo
from bcl.learners.dqn import DqnLearner
from bcl.learners.learner import Task
from bcl.policies import Policy, PolicySpec, default_kind

STATES = 5
SIDE = 36  # of images: the smallest that the paper's network can read
SMALL = DqnConfig(
    steps=400, num_envs=4, batch_size=8, samples_per_step=2, learning_rate=1e-2, gamma=0.5, buffer_size=64,
    replay_initial=16, target_sync=16, exploration_start=0.5, exploration_end=0.5, reward_clamp=0, ramp="linear",
    ramp_steps=200, log_steps=40, checkpoint_minutes=1e6, precision="fp32",  # on any CPU
)  # fmt: skip

SMALL_PPO = PpoConfig(
    steps=400, num_envs=4, rollout=10, epochs=2, batch_size=8, learning_rate=1e-2, gamma=0.5, gae_lambda=0.75,
    normalise_returns=False, ramp="linear", log_steps=40, checkpoint_minutes=1e6, precision="fp32",
)  # fmt: skip


class Chain:
    """States 0 to 4 in a row; stepping right out of the last one ends the game, showing state 4 once more.

    Action 1 steps right and 0 left, or every action right unless `steers`. Stepping right out of state s pays
    rewards[s]. Episodes of copy i start anywhere and are truncated after limits[i] steps, unless that is 0.
    """

    num_actions = 2
    low, high = (0.0,), (1.0,)
    game = GymnasiumGame("Chain-v0")

    def __init__(
        self,
        num_envs: int = 4,
        *,
        steers: bool = True,
        rewards: Sequence[float] = (0, 0, 0, 0, 1),
        limits: Sequence[int] = (0,),
        image: bool = False,
        channels: int = 1,
        device: str = "cpu",
    ) -> None:
        self.num_envs, self._steers, self._device = num_envs, steers, device
        self._rewards = torch.tensor(rewards, dtype=torch.float32)
        self._limits = torch.tensor([limits[i % len(limits)] for i in range(num_envs)])
        self._looks = torch.eye(STATES)
        if image:
            draw = torch.Generator().manual_seed(0)
            self._looks = torch.randint(256, (STATES, channels, SIDE, SIDE), dtype=torch.uint8, generator=draw)
        self.obs_shape = tuple(self._looks.shape[1:])
        self._sent: Tensor | None = None

    def reset(self, seed: int) -> Tensor:
        self._starts = torch.Generator().manual_seed(seed)
        self._state, self._time = self._start(), torch.zeros(self.num_envs, dtype=torch.long)
        self._sent = None
        return self._looks[self._state].to(self._device)

    def send(self, actions: Tensor) -> None:
        assert self._sent is None
        assert actions.shape == (self.num_envs,)
        self._sent = actions.cpu().clone()  # engines wait for actions, and play on the host

    def recv(self) -> Step:
        assert self._sent is not None
        right = (self._sent == 1) | (not self._steers)
        self._sent = None
        reward = self._rewards[self._state] * right
        after = torch.where(right, self._state + 1, (self._state - 1).clamp(min=0))
        terminated, last = after == STATES, after.clamp(max=STATES - 1)
        self._time += 1
        truncated = (self._time == self._limits) & ~terminated
        ended = terminated | truncated
        self._state, self._time = torch.where(ended, self._start(), last), self._time * ~ended
        obs, final_obs, playing = self._looks[self._state], self._looks[last[ended]], torch.ones_like(ended)
        return Step(*(x.to(self._device) for x in (obs, reward, terminated, truncated, playing, final_obs)))

    def close(self) -> None:
        pass

    def _start(self) -> Tensor:
        return torch.randint(STATES, (self.num_envs,), generator=self._starts)


def _policy(env: Chain, hidden: tuple[int, ...], weights: int, device: str, algo: str) -> Policy:
    kind = default_kind(env.obs_shape, algo)
    spec = PolicySpec(kind, env.obs_shape, env.num_actions, env.low, env.high, hidden if kind.endswith("mlp") else ())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(weights)
        return Policy(spec).to(device)


@pytest.fixture(scope="session")
def chain() -> type[Chain]:
    return Chain


def _builder(algo: str, small: Any, learner: type[DqnLearner] | type[ppo.PpoLearner]) -> Callable[..., Any]:
    """A function that makes a learner of Chain; settings of its section by name, `world` being those of Chain."""

    def build(
        loss: Any = "standard",
        *,
        start: float = 0.0,
        end: float = 0.1,
        seed: int = 0,
        weights: int = 0,
        hidden: tuple[int, ...] = (8,),
        attack: AttackConfig | None = None,
        device: str = "cpu",
        world: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        config = type(small)(**(vars(small) | settings))
        env = Chain(config.num_envs, device=device, **(world or {}))
        policy = _policy(env, hidden, weights, device, algo)
        return learner(policy, env, config, attack or AttackConfig(), Task(loss, start, end, seed))

    return build


@pytest.fixture(scope="session")
def make() -> Callable[..., DqnLearner]:
    return _builder("dqn", SMALL, DqnLearner)


@pytest.fixture(scope="session")
def make_ppo() -> Callable[..., ppo.PpoLearner]:
    return _builder("ppo", SMALL_PPO, ppo.PpoLearner)


@pytest.fixture(scope="session")
def play() -> Callable[..., Tensor]:
    """Train for some vector steps, from the start or on from given observations."""

    def run(learner: DqnLearner, steps: int, obs: Tensor | None = None) -> Tensor:
        obs = learner.restart() if obs is None else obs
        for _ in range(steps):
            actions, seen = learner.play(obs)
            learner.update()
            obs = learner.store(obs, actions, seen)
        return obs

    return run
