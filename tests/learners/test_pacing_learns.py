"""Adversarial training with a paced budget works on a real game: on Acrobot it holds where vanilla breaks, as well as
phases with more steps do.

The whole chain is played: configuration, learner, evaluation. Networks and batches are half as large as the preset's.
With kappa 1, where what the adversary shows has no part in the loss, the agent holds as well: half of the copies act on
it. What the loss alone gains, with a control: tests/learners/test_dqn_learns.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bcl.attacks import PGD
from bcl.config import resolve_stages
from bcl.envs import make_env
from bcl.evaluation import Score, evaluate
from bcl.experiment import train_run
from bcl.experiment.phases import pace_of
from bcl.learners.learner import Task
from bcl.policies import Policy

SEED = 2
PGD_10 = PGD(steps=10, step=0.25)
TARGET = 0.04  # scaled units; the preset's 0.06 would take half as long again
PACE = {"rise_steps": 1_500, "target": TARGET}


def config_of(recipe: str, dqn: dict[str, int], **sections: Any) -> Any:
    settings = {"network": {"hidden": [64, 64]}, "dqn": {"samples_per_step": 32, **dqn}, **sections}
    return resolve_stages("acrobot", recipe=recipe, settings=settings)[-1][1]


def score(policy: Policy, eps: float) -> Score:
    return evaluate(policy, make_env(policy.spec.game, 20), PGD_10, eps, episodes=20, seed=1000)


def test_a_paced_budget_holds_where_its_start_does_not(tmp_path: Path) -> None:
    vanilla = config_of("vanilla", {"steps": 16_000})
    start = train_run(tmp_path / "vanilla", vanilla, Task("standard", 0.0, 0.0, SEED), None, "cpu")
    config = config_of("paced-at", {"steps": 18_000, "batch_size": 256}, curriculum=PACE)
    task = Task("at", 0.0, TARGET, SEED + 10, pace_of(config, "at", 0.0))
    robust = train_run(tmp_path / "paced", config, task, start, "cpu")
    rows = [json.loads(line) for line in (tmp_path / "paced" / "metrics.jsonl").read_text().splitlines()]
    assert max(row["eps"] for row in rows) == pytest.approx(TARGET)
    # -500: never swings up. 20 episodes: start -93 and -500 at 0.04, paced -94 and -139, phases -97 and -129
    assert score(robust, 0.0).mean >= -170
    assert score(robust, TARGET).mean >= -300
    assert score(start, TARGET).mean <= -400

    # Phases of the paper's curriculum with more steps are not clearly better.
    phases = config_of("bcl-mos-at", {"steps": 10_000, "batch_size": 256})
    agent = start
    for number in range(2):
        task = Task("at", number * TARGET / 2, (number + 1) * TARGET / 2, SEED + 20 + number)
        agent = train_run(tmp_path / f"phase{number}", phases, task, agent, "cpu")
    assert 2 * phases.dqn.steps > config.dqn.steps
    paced, phased = score(robust, TARGET), score(agent, TARGET)
    assert paced.mean >= phased.mean - 2 * (paced.sem**2 + phased.sem**2) ** 0.5
