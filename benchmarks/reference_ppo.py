"""PPO on Procgen with 64 environments, as the paper's public code does it.

Own code, written from the description of the algorithm (arXiv 2206.10057), to measure what our learner gains on the
same machine; nothing here is meant for use. It costs what such a loop costs: observations on the host, a dictionary for
each transition, Python loops over these for advantages, old values and log-probabilities computed after the rollout in
batches of 2048, bytes gathered and copied for each minibatch, observations that are attacked made floats on the host,
attacks whose backward passes also compute gradients of weights that nobody reads, plain layers in float32 with PyTorch's
default settings, no CUDA graphs, nothing compiled. What the public code does besides is left out, in its favour: 64 more
environments played for its log, statistics of every step, tables, checkpoints. The emulators have a thread for each
core, there 4. They, PyTorch and CUDA are today's.

A whole iteration, 16,384 agent steps and 96 minibatches, may take minutes. Measured are one whole rollout, its
preparation, and as many minibatches as fit into the time; the rate is that of an iteration made up of these:
16,384 / (rollout + preparation + 96 * mean of a minibatch).
"""

import math
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from bcl.envs import make_env
from bcl.games import ProcgenGame
from bcl.recipes import Loss

EPOCHS, FORWARD = 3, 2_048  # passes over a rollout; observations per batch where nothing is learned
RATE, ADAM_EPS, MAX_NORM = 5e-4, 1e-5, 0.5
GAMMA, LAMBDA, RETURN_GAMMA = 0.999, 0.95, 0.99
CLIP, VALUE, ENTROPY, KAPPA = 0.2, 0.5, 0.01, 0.5
ALPHA = 95.5  # step of RI-FGSM, in shades of 255
STEPS, STEP = 10, 0.2  # of PGD; the second as a share of the budget
WARM_UP, LEAST = 2, 4  # minibatches before the clock starts; that are measured at least
LOSSES: tuple[Loss, ...] = ("standard", "at")
Transition = dict[str, Any]


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        first, second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.path = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.path(x)


class Network(nn.Module):
    """The paper's IMPALA network with plain layers: (B, 64, 64, 3) in 0..255 -> logits (B, A), values (B,)."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in ((3, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [Residual(width), Residual(width)]
        head = nn.Linear(256, actions + 1)
        nn.init.orthogonal_(head.weight, gain=0.01)
        nn.init.zeros_(head.bias)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.ReLU(), nn.Linear(2048, 256), nn.ReLU(), head)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        # A view, so that layers get channels last in memory without being asked to.
        found = self.layers(obs.permute(0, 3, 1, 2) / 255)
        return found[:, :-1], found[:, -1]


class RewardScale:
    """Rewards over the running deviation of discounted returns, as VecNormalize has them."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs)
        self._mean, self._variance, self._count = 0.0, 1.0, 1e-4

    def __call__(self, rewards: np.ndarray, over: np.ndarray) -> np.ndarray:
        self._returns = RETURN_GAMMA * self._returns + rewards
        old, new = self._count, len(rewards)
        self._count += new
        shift = self._returns.mean() - self._mean
        squares = self._variance * old + self._returns.var() * new + shift**2 * old * new / self._count
        self._mean, self._variance = self._mean + shift * new / self._count, squares / self._count
        self._returns[over] = 0
        return np.clip(rewards / np.sqrt(self._variance + 1e-8), -10, 10)


def ri_fgsm(network: Network, obs: Tensor, actions: Tensor, radius: float) -> Tensor:
    """FruitBot's: up the policy's own expected logit from a random point, then the other way round."""
    delta = torch.empty_like(obs).uniform_(-radius, radius).requires_grad_()
    logits, _ = network(obs + delta)
    (logits.softmax(dim=1) * logits).sum().backward()
    moved = (delta + ALPHA * delta.grad.sign()).clamp(-radius, radius)
    return (obs - moved).clamp(0, 255).detach()


def pgd(network: Network, obs: Tensor, actions: Tensor, radius: float) -> Tensor:
    """Jumper's: away from the actions taken, starting at the clean observation."""
    seen = obs
    for _ in range(STEPS):
        seen = seen.detach().requires_grad_()
        F.cross_entropy(network(seen)[0], actions).backward()
        moved = (seen + STEP * radius * seen.grad.sign() - obs).clamp(-radius, radius)
        seen = (obs + moved).clamp(0, 255)
    return seen.detach()


ATTACKS = {"fruitbot": ri_fgsm, "jumper": pgd}


def error(logits: Tensor, values: Tensor, seen: Tensor | None, past: dict[str, Tensor]) -> Tensor:
    """PPO's loss; with the logits under attack, the worse of two mixtures counts as much as the clean policy."""
    surrogate = -_gain(logits, past).mean()
    if seen is not None:
        taken = F.one_hot(past["action"], logits.shape[1]).bool()
        first, second = torch.where(taken, seen, logits), torch.where(taken, logits, seen)
        robust = -torch.minimum(_gain(first, past), _gain(second, past)).mean()
        surrogate = KAPPA * surrogate + (1 - KAPPA) * robust
    near = past["value"] + (values - past["value"]).clamp(-CLIP, CLIP)
    squares = torch.maximum((values - past["target"]).square(), (near - past["target"]).square())
    entropy = Categorical(logits=logits).entropy().mean()
    return surrogate + VALUE * squares.mean() / 2 - ENTROPY * entropy


def _gain(logits: Tensor, past: dict[str, Tensor]) -> Tensor:
    ratio = (Categorical(logits=logits).log_prob(past["action"]) - past["log_prob"]).exp()
    return torch.minimum(ratio * past["advantage"], ratio.clamp(1 - CLIP, 1 + CLIP) * past["advantage"])


class Trainer:
    """The loop in parts: a rollout, what is computed from it, and minibatches of it."""

    def __init__(self, game: ProcgenGame, loss: Loss, device: str, eps: float, num_envs: int) -> None:
        random.seed(0)
        torch.manual_seed(0)
        self._loss, self._device, self._radius = loss, device, 255 * eps
        self._attack = ATTACKS[game.id]
        self.env = make_env(game, num_envs, "cpu")
        self.network = Network(self.env.num_actions).to(device)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=RATE, eps=ADAM_EPS)
        self._scaled = RewardScale(num_envs)
        self._obs = _images(self.env.reset(0))
        self.segments: list[list[Transition]] = []
        self.dataset: list[Transition] = []

    def rollout(self, steps: int) -> None:
        """`segments` become what the environments played, each cut where an episode ended."""
        self.segments, begun = [], [[] for _ in self._obs]
        for _ in range(steps):
            with torch.no_grad():
                logits, _ = self.network(self._tensor(self._obs))
            actions = Categorical(logits=logits).sample().cpu()
            self.env.send(actions)
            step = self.env.recv()
            over = step.ended.numpy()
            facts = actions.numpy(), self._scaled(step.reward.numpy(), over), 1.0 - over
            obs, self._obs = self._obs, _images(step.obs)
            for i, (action, reward, goes_on) in enumerate(zip(*facts, strict=True)):
                transition = {"obs": obs[i], "action": action, "reward": reward, "goes_on": goes_on}
                begun[i].append(transition | {"next_obs": self._obs[i]})
                if over[i]:
                    self.segments.append(begun[i])
                    begun[i] = []
        self.segments += [segment for segment in begun if segment]

    def prepare(self) -> None:
        """Old log-probabilities, values, targets and advantages of the rollout, whose transitions are `dataset`."""
        self.dataset = [transition for segment in self.segments for transition in segment]
        for start in range(0, len(self.dataset), FORWARD):
            self._look_back(self.dataset[start : start + FORWARD])
        for segment in self.segments:
            advantage = 0.0
            for t in reversed(segment):
                surprise = t["reward"] + GAMMA * t["goes_on"] * t["next_value"] - t["value"]
                advantage = surprise + GAMMA * LAMBDA * advantage
                t["advantage"], t["target"] = advantage, advantage + t["value"]
        advantages = np.array([t["advantage"] for t in self.dataset])
        mean, deviation = advantages.mean(), advantages.std()
        for t in self.dataset:
            t["advantage"] = (t["advantage"] - mean) / (deviation + 1e-8)

    def _look_back(self, batch: list[Transition]) -> None:
        with torch.no_grad():
            logits, values = self.network(self._column(batch, "obs"))
            _, next_values = self.network(self._column(batch, "next_obs"))
            log_probs = Categorical(logits=logits).log_prob(self._column(batch, "action").long())
        for t, *found in zip(batch, log_probs.tolist(), values.tolist(), next_values.tolist(), strict=True):
            t["log_prob"], t["value"], t["next_value"] = found

    def minibatches(self, size: int) -> Iterator[list[Transition]]:
        """Of the dataset, shuffled anew for each pass, without end."""
        while True:
            order = random.sample(self.dataset, len(self.dataset))
            for start in range(0, len(order) - size + 1, size):
                yield order[start : start + size]

    def update(self, batch: list[Transition]) -> None:
        obs = self._column(batch, "obs")
        past = {name: self._column(batch, name) for name in ("log_prob", "value", "advantage", "target")}
        past["action"] = self._column(batch, "action").long()
        logits, values = self.network(obs)
        seen = None
        if self._loss == "at":
            images = obs.cpu().float().to(self._device)  # the public code's way through the host
            seen, _ = self.network(self._attack(self.network, images, past["action"], self._radius))
        loss = error(logits, values, seen, past)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)
        self._optimizer.step()

    def _column(self, batch: list[Transition], name: str) -> Tensor:
        return self._tensor(np.array([t[name] for t in batch]))

    def _tensor(self, values: np.ndarray) -> Tensor:
        """On the device; images stay bytes, which the network divides."""
        found = torch.from_numpy(values)
        return (found if values.dtype == np.uint8 else found.float()).to(self._device)


def steps_per_second(
    game: ProcgenGame,
    loss: Loss,
    device: str,
    eps: float,
    seconds: float,
    num_envs: int = 64,
    rollout: int = 256,
    batch: int = 512,
) -> float:
    """Agent steps per second of an iteration made up of a rollout, its preparation and minibatches; `seconds` are those
    of the minibatches."""
    assert loss in LOSSES, "the others are not written here"
    steps = num_envs * rollout
    assert steps % batch == 0, "minibatches make up the rollout"
    trainer = Trainer(game, loss, device, eps, num_envs)
    trainer.rollout(math.ceil(FORWARD / num_envs))  # memory and kernels for the largest batch
    trainer.prepare()
    start = _now(device)
    trainer.rollout(rollout)
    trainer.prepare()
    collected = _now(device) - start
    minibatches = trainer.minibatches(batch)
    for _ in range(WARM_UP):
        trainer.update(next(minibatches))
    count, start = 0, _now(device)
    while count < LEAST or time.perf_counter() - start < seconds:
        trainer.update(next(minibatches))
        count += 1
    each = (_now(device) - start) / count
    trainer.env.close()
    return steps / (collected + EPOCHS * steps // batch * each)


def _images(obs: Tensor) -> np.ndarray:
    """(N, 64, 64, 3) bytes."""
    return obs.permute(0, 2, 3, 1).numpy()


def _now(device: str) -> float:
    """Seconds, after all that was begun is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
