"""A game of your own: any Gymnasium environment with discrete actions, trained, attacked and certified like the others.

    python examples/own_game.py [--quick]

The room drifts towards the cold outside; the agent heats or does not, and earns what it keeps near 20 degrees. About a
minute on a laptop; `--quick` is a run too short to show anything, for tests.
"""

import sys
from typing import Any

import gymnasium
import numpy as np

import bcl

Observation = np.ndarray[Any, np.dtype[np.float32]]


class Thermostat(gymnasium.Env[Observation, int]):
    """Observes the room's distance from 20 degrees and the outside temperature; 1 heats, 0 does not."""

    # Finite bounds become the scale: each dimension is divided by its own, so that one budget fits all.
    observation_space = gymnasium.spaces.Box(np.float32([-10, -30]), np.float32([10, 30]))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.distance, self.outside = self.np_random.uniform(-3, 3), self.np_random.uniform(-10, 10)
        return self._seen(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.distance += 0.02 * (self.outside - 20 - self.distance) + (1.2 if action else 0.0)
        self.outside = float(np.clip(self.outside + self.np_random.normal(0, 0.5), -10, 10))
        frozen_or_boiled = abs(self.distance) > 10
        return self._seen(), 0.0 if frozen_or_boiled else 1 - abs(self.distance) / 10, frozen_or_boiled, False, {}

    def _seen(self) -> Observation:
        return np.float32([self.distance, self.outside])


# Workers in other processes must know the game, too: there, put this line into a module and train
# "module:Thermostat-v0".
gymnasium.register("Thermostat-v0", Thermostat, max_episode_steps=100)

SETTINGS = {
    "network": {"hidden": [64, 64]},
    "dqn": {"steps": 20_000, "num_envs": 16, "replay_initial": 500, "exploration_steps": 5_000, "ramp_steps": 10_000},
    "curriculum": {"target": 0.1},
    "evaluation": {"eps": [0.05, 0.1], "episodes": 10},
}
if "--quick" in sys.argv:
    SETTINGS["dqn"] |= {"steps": 200, "replay_initial": 64, "ramp_steps": 100}
    SETTINGS["evaluation"] = {"eps": [0.05], "episodes": 2}

if __name__ == "__main__":
    run = bcl.train("Thermostat-v0", recipe="at", out="runs/thermostat", say=print, **SETTINGS)  # or go on with it
    for score in run.verdict.evaluation.scores:
        print(f"{score.label}: {score}")
    print(bcl.certify(run, eps=[0.01], method="crown"))
