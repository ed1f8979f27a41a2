"""Playing while the learner updates.

Actions come from the weights of one pass ago, on a GPU computed on a stream of their own: the emulators get their next
actions as soon as they are done, and not when the updates under way are.
"""

import copy
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Generator, Tensor

from bcl.envs import Step, VectorEnv
from bcl.graphs import Graphed
from bcl.policies import Policy, as_float


class Player:
    """Epsilon-greedy play on all copies of a game."""

    def __init__(
        self,
        policy: Policy,
        env: VectorEnv,
        generator: Generator,
        *,
        longest: int,
        graphed: bool,
        bf16: bool,
        attacked: bool = False,
    ) -> None:
        """`longest`: a random action is held for 1 to so many steps, n or more with probability 1/n (Dabney et al. 2021);
        `attacked`: observations are floats that the learner made, and have to be waited for."""
        self._policy = copy.deepcopy(policy).requires_grad_(False)
        self._env, self._generator, self._longest, self._bf16 = env, generator, longest, bf16
        device = self._device = generator.device
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream() if cuda else None
        self._followed = torch.cuda.Event() if cuda else None
        self._attacked = attacked
        dtype = torch.uint8 if len(env.obs_shape) == 3 and not attacked else torch.float32
        self._obs = torch.zeros(env.num_envs, *env.obs_shape, dtype=dtype, device=device)
        self._share = torch.zeros((), device=device)  # of random actions
        self._held = torch.zeros(env.num_envs, dtype=torch.long, device=device)
        self._left = torch.zeros(env.num_envs, dtype=torch.long, device=device)  # steps for which an action is held
        self._choose = Graphed(self._choose_actions, generator, enabled=graphed)

    def reset(self, seed: int) -> Tensor:
        """Start every copy anew."""
        self._left.zero_()
        obs = self._env.reset(seed)
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())
        return obs

    def follow(self, policy: Policy) -> None:
        """From the next `play` on act as `policy` does now."""
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)  # it may still be choosing with the old weights
        with torch.no_grad():
            for mine, new in zip(self._policy.parameters(), policy.parameters(), strict=True):
                mine.copy_(new)
        if self._followed:
            self._followed.record()

    def play(self, obs: Tensor, share: float) -> Tensor:
        """(N,) actions, a share of them random; the emulators step from here on."""
        if self._stream and self._attacked:
            self._stream.wait_stream(torch.cuda.current_stream())
            obs.record_stream(self._stream)
        with self._beside():
            if self._stream and self._followed:
                self._stream.wait_event(self._followed)
            self._share.fill_(share)
            self._obs.copy_(obs)
            actions = self._choose().clone()
            self._env.send(actions)
        self._lend(actions)
        return actions

    def wait(self) -> Step:
        """What came of the step."""
        with self._beside():
            step = self._env.recv()
        self._lend(step.obs, step.reward, step.terminated, step.truncated, step.playing, step.final_obs)
        return step

    def _choose_actions(self) -> Tensor:
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            greedy = self._policy(as_float(self._obs)).argmax(dim=1)
        shape, generator, device = greedy.shape, self._generator, self._device
        draws = torch.rand(2, *shape, generator=generator, device=device)
        random = torch.randint(self._env.num_actions, shape, generator=generator, device=device)
        begins = (self._left == 0) & (draws[0] < self._share)
        length = (1 / (1 - draws[1])).clamp(max=self._longest).long()
        self._held.copy_(torch.where(begins, random, self._held))
        self._left.copy_(torch.where(begins, length, self._left))
        actions = torch.where(self._left > 0, self._held, greedy)
        self._left.sub_(1).clamp_(min=0)
        return actions

    def _lend(self, *tensors: Tensor) -> None:
        """The learner may read these from here on, and the player must not reuse their memory while it does."""
        if self._stream:
            learner = torch.cuda.current_stream()
            learner.wait_stream(self._stream)
            for tensor in tensors:
                tensor.record_stream(learner)

    def _beside(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()
