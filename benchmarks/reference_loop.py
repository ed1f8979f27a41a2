"""A DQN trained one environment, one transition and one attack at a time, as the paper's public code does it.

Own code, written from the description of the algorithm (arXiv 2206.10057), to measure what the vector learner gains on
the same machine; nothing here is meant for use. It costs what such a loop costs: ale-py through Gymnasium with the
pixel work in Python (OpenCV where installed, else NumPy: `IMAGES` says which), acting and attacking with batch 1, NumPy
between the attack and the replay memory, Python lists of tensors with pop(0), torch.cat for each batch, float32, no
CUDA graphs. What the public code does besides is left out, in its favour: tests during training, a checkpoint per
episode, transitions held on the host. The emulator, PyTorch and CUDA are today's.
"""

import random
import time

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from bcl.games import AtariGame
from bcl.recipes import Loss

try:
    import cv2

    IMAGES = "OpenCV"
except ImportError:
    IMAGES = "NumPy"

BATCH, EVERY, TARGET_SYNC = 128, 4, 4_000  # transitions per update; agent steps between updates, and between syncs
CAPACITY: dict[Loss, int] = {"standard": 200_000, "radial": 200_000, "at": 50_000}
GAMMA, RATE, KAPPA, EXPLORATION, ALPHA = 0.99, 1.25e-4, 0.8, 0.01, 0.375
WARM_UP = 16  # agent steps with updates before the clock starts


class Emulator:
    """One game: 1 to 30 no-ops, FIRE and action 2, the maximum of the last 2 of 4 frames, gray 84x84 in [0, 1]."""

    def __init__(self, game: AtariGame, seed: int) -> None:
        import ale_py

        assert game.pipeline == "v2", "only the v2 pipeline is written here"
        gymnasium.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        name = "".join(part.capitalize() for part in game.id.split("_"))
        options = {"frameskip": 1, "repeat_action_probability": 0.0, "disable_env_checker": True}
        self._env = gymnasium.make(f"ALE/{name}-v5", **options)
        self._env.reset(seed=seed)
        self._fires = "FIRE" in self._env.unwrapped.get_action_meanings()
        self._top = 21 + game.crop_shift
        self._frames = np.zeros((2, 210, 160, 3), dtype=np.uint8)
        self.num_actions = game.num_actions or int(self._env.action_space.n)

    def reset(self) -> np.ndarray:
        frame, _ = self._env.reset()
        for _ in range(random.randint(1, 30)):
            frame, *_ = self._env.step(0)
        obs = self._observe(frame)
        for action in (1, 2) if self._fires else ():
            obs, *_ = self.step(action)
        return obs

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:
        total, over = 0.0, False
        for i in range(4):
            frame, reward, terminated, truncated, _ = self._env.step(action)
            if i >= 2:
                self._frames[i - 2] = frame
            total, over = total + float(reward), terminated or truncated
            if over:
                break
        return self._observe(self._frames.max(axis=0)), total, over

    def close(self) -> None:
        self._env.close()

    def _observe(self, rgb: np.ndarray) -> np.ndarray:
        return warp(rgb, self._top).T[None].astype(np.float32) / 255


def warp(rgb: np.ndarray, top: int) -> np.ndarray:
    """(210, 160, 3) bytes -> (84, 84): gray, 168 rows from `top` on, 4 black columns each side, halved."""
    if IMAGES == "OpenCV":
        rows = np.pad(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), ((0, 0), (4, 4)))[top : top + 168]
        return cv2.resize(rows, (84, 84), interpolation=cv2.INTER_AREA)
    gray = (rgb @ np.array([9798, 19235, 3735]) + (1 << 14)) >> 15
    rows = np.pad(gray, ((0, 0), (4, 4)))[top : top + 168]
    return ((rows.reshape(84, 2, 84, 2).sum(axis=(1, 3)) + 2) >> 2).astype(np.uint8)


class Network(nn.Module):
    """The paper's dueling network with plain layers."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        self.advantage = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, obs: Tensor) -> Tensor:
        features = self.cnn(obs)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=1, keepdim=True)

    def centre(self) -> None:
        """Advantages of mean 0, by moving the last layer's weights; RADIAL does so before every loss."""
        last = self.advantage[-1]
        with torch.no_grad():
            last.weight -= last.weight.mean(dim=0)
            last.bias -= last.bias.mean()

    def bounds(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Intervals of the advantages."""
        for layer in (*self.cnn, *self.advantage):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                middle, radius = layer((upper + lower) / 2), (upper - lower) / 2
                if isinstance(layer, nn.Conv2d):
                    radius = nn.functional.conv2d(radius, layer.weight.abs(), stride=layer.stride)
                else:
                    radius = nn.functional.linear(radius, layer.weight.abs())
                lower, upper = middle - radius, middle + radius
            else:
                lower, upper = layer(lower), layer(upper)
        return lower, upper


class Replay:
    """Lists of single transitions, the oldest first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: list[list[Tensor]] = [[] for _ in range(6)]

    def __len__(self) -> int:
        return len(self._columns[0])

    def push(self, *transition: Tensor) -> None:
        for column, value in zip(self._columns, transition, strict=True):
            column.append(value)
            if len(column) > self._capacity:
                column.pop(0)

    def sample(self) -> list[Tensor]:
        chosen = random.sample(range(len(self)), BATCH)
        return [torch.cat([column[i] for i in chosen]) for column in self._columns]


class Trainer:
    """The loop; `step` is one agent step and whatever is due with it."""

    def __init__(self, game: AtariGame, loss: Loss, device: str, eps: float, replay_initial: int) -> None:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        self.emulator = Emulator(game, seed=0)
        self._loss, self._device, self._eps, self._replay_initial = loss, device, eps, replay_initial
        self._online, self._target = (Network(self.emulator.num_actions).to(device) for _ in range(2))
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=RATE)
        self.replay = Replay(CAPACITY[loss])
        self._obs = self._tensor(self.emulator.reset()[None])
        self.steps = self.updates = 0

    def step(self) -> None:
        self.steps += 1
        obs, action = self._obs, self._act()
        found, reward, over = self.emulator.step(action)
        next_obs = self._tensor(found[None])
        delta = self._perturbation(obs) if self._loss == "at" else self._tensor([0.0])
        facts = (self._tensor([action]).long(), self._tensor([max(-1.0, min(1.0, reward))]))
        self.replay.push(obs, *facts, next_obs, self._tensor([float(over)]), delta)
        self._obs = self._tensor(self.emulator.reset()[None]) if over else next_obs
        if len(self.replay) > self._replay_initial and self.steps % EVERY == 0:
            self._update()
        if self.steps % TARGET_SYNC == 0:
            self._target.load_state_dict(self._online.state_dict())

    def _act(self) -> int:
        if random.random() < EXPLORATION:
            return random.randrange(self.emulator.num_actions)
        with torch.no_grad():
            return int(self._online(self._obs).argmax(dim=1).item())

    def _perturbation(self, obs: Tensor) -> Tensor:
        """RI-FGSM: down the expected target value from a random point, then the other way round, cut to ball and
        box."""
        values = self._target(obs).detach()
        start = np.random.uniform(-self._eps, self._eps, obs.shape).astype(np.float32)
        delta = self._tensor(start).requires_grad_()
        value = (self._online(obs + delta).softmax(dim=1) * values).sum()
        (gradient,) = torch.autograd.grad(value, delta)
        moved = np.clip(start + ALPHA * np.sign(gradient.cpu().numpy()), -self._eps, self._eps)
        clean = obs.cpu().numpy()
        seen = np.clip(clean - moved, np.maximum(0, clean - self._eps), np.minimum(1, clean + self._eps))
        return self._tensor(seen - clean)

    def _update(self) -> None:
        if self._loss == "radial":
            self._online.centre()
        loss = self._error(*self.replay.sample())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.updates += 1

    def _error(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, over: Tensor, delta: Tensor
    ) -> Tensor:
        q, next_online, next_target = self._online(obs), self._online(next_obs), self._target(next_obs)
        best = next_online.argmax(dim=1, keepdim=True)
        goal = (rewards + GAMMA * (1 - over) * next_target.gather(1, best).squeeze(1)).detach()
        rows = torch.arange(len(q), device=q.device)
        error = _penalty(q[rows, actions] - goal).mean()
        if self._loss == "at":
            centre = q.clone()
            centre[rows, actions] = goal
            robust = _penalty(self._online(obs + delta) - centre).sum(dim=1).mean()
        elif self._loss == "radial":
            lower, upper = self._online.bounds(obs - self._eps, obs + self._eps)
            lead = (q[rows, actions, None] - q).clamp(min=0).detach()
            overlap = (upper - lower[rows, actions, None] + lead / 2).clamp(min=0)
            robust = (lead * overlap).sum(dim=1).mean() + 1e-4
        else:
            return error
        return KAPPA * error + (1 - KAPPA) * robust

    def _tensor(self, values: np.ndarray | list[float]) -> Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.float32), device=self._device)


def steps_per_second(
    game: AtariGame, loss: Loss, device: str, eps: float, seconds: float, replay_initial: int = 256
) -> float:
    """Agent steps per second, measured over whole rounds of 4 steps and 1 update, after the replay memory has begun."""
    trainer = Trainer(game, loss, device, eps, replay_initial)
    first = -(-replay_initial // EVERY) * EVERY + WARM_UP
    while trainer.steps < first:
        trainer.step()
    _wait(device)
    updates, start = trainer.updates, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(EVERY):
            trainer.step()
    _wait(device)
    elapsed = time.perf_counter() - start
    trainer.emulator.close()
    assert (trainer.updates - updates) * EVERY == trainer.steps - first
    return (trainer.steps - first) / elapsed


def _penalty(error: Tensor) -> Tensor:
    return torch.minimum(error.square(), error.abs())


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
