"""Training works: DQN solves CartPole, and RADIAL holds there where vanilla breaks.

The whole chain is played: configuration, learner, evaluation. Vanilla has settings of its own, with which it is done sooner
than with the preset's, and is trained once.
"""

from pathlib import Path

import pytest
import torch

from bcl.attacks import PGD
from bcl.config import resolve_stages
from bcl.envs import make_env
from bcl.evaluation import evaluate
from bcl.experiment import train_run
from bcl.learners.learner import Task
from bcl.policies import Policy

pytestmark = pytest.mark.xdist_group("cartpole")  # one worker, so that vanilla is trained once
SEED = 1
PGD_10 = PGD(steps=10, step=0.25)
VANILLA = {"steps": 16_000, "samples_per_step": 32, "gamma": 0.98, "n_step": 3}


def trained(folder: Path, recipe: str, parent: Policy | None) -> Policy:
    flags = {"dqn": VANILLA} if recipe == "vanilla" else {}
    stage, config = resolve_stages("cartpole", recipe=recipe, flags=flags)[-1]
    end = 0.0 if stage.loss == "standard" else config.curriculum.target
    return train_run(folder / recipe, config, Task(stage.loss, 0.0, end, SEED), parent, "cpu")


def mean_return(policy: Policy, eps: float) -> float:
    env = make_env(policy.spec.game, 20)
    return evaluate(policy, env, PGD_10, eps, episodes=20, seed=1000).mean


@pytest.fixture(scope="module")
def vanilla(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    torch.set_num_threads(1)
    return trained(tmp_path_factory.mktemp("vanilla"), "vanilla", None)


def test_vanilla_solves_cartpole_and_breaks_under_attack(vanilla: Policy) -> None:
    assert mean_return(vanilla, 0.0) >= 475
    assert mean_return(vanilla, 0.1) <= 250


def test_radial_raises_the_return_under_attack(vanilla: Policy, tmp_path: Path) -> None:
    robust = trained(tmp_path, "radial", vanilla)  # up to 0.06; attacks beyond it tell agents apart more clearly
    assert mean_return(robust, 0.0) >= 475
    assert mean_return(robust, 0.1) >= 1.2 * mean_return(vanilla, 0.1)
    assert mean_return(robust, 0.15) >= 3 * mean_return(vanilla, 0.15)
