"""PPO trains on every engine's own observations, and its runs go on where they were cut."""

from pathlib import Path

import pytest

from bcl.config import Config, resolve
from bcl.experiment import train_run
from bcl.learners.learner import Task
from bcl.policies.files import fingerprint
from bcl.settings import parse_settings

TINY = [
    *("--algo=ppo", "--ppo.num_envs=2", "--ppo.rollout=4", "--ppo.batch_size=8", "--ppo.epochs=1"),
    *("--ppo.steps=24", "--ppo.log_steps=8", "--ppo.checkpoint_steps=8", "--attack.kind=ri-fgsm"),
]
GAMES = {"pong": "ale_py", "fruitbot": "procgen", "Acrobot-v1": "gymnasium"}


class Crash(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def tiny(game: str) -> Config:
    pytest.importorskip(GAMES[game])
    small = ["--network.hidden=8"] if game == "Acrobot-v1" else []  # networks for images have sizes of their own
    return resolve(game, recipe="at", settings=parse_settings([*TINY, *small, "--curriculum.target=0.02"]))


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("loss", ["standard", "radial", "at"])
def test_a_cut_run_ends_as_a_whole_one(tmp_path: Path, game: str, loss: str) -> None:
    config, task = tiny(game), Task(loss, 0.0, 4 / 255, seed=3)
    whole = train_run(tmp_path / "whole", config, task, None, "cpu")
    kind = "actor-critic-mlp" if game == "Acrobot-v1" else "impala"
    assert (whole.spec.kind, len(whole.spec.notes)) == (kind, 1)

    def progress(done: int, of: int) -> None:
        if done >= 24:
            raise Crash

    with pytest.raises(Crash):
        train_run(tmp_path / "cut", config, task, None, "cpu", progress=progress)
    steps: list[int] = []
    again = train_run(tmp_path / "cut", config, task, None, "cpu", progress=lambda done, of: steps.append(done))
    assert steps[0] > 16, "it continues, and does not begin anew"
    assert fingerprint(again) == fingerprint(whole)
    assert again.spec.notes == whole.spec.notes


def test_statistics_of_returns_go_from_run_to_run(tmp_path: Path) -> None:
    settings = parse_settings([*TINY, "--ppo.keep_return_statistics=true", "--curriculum.target=0.1"])
    config = resolve("Acrobot-v1", recipe="at", settings=settings)
    parent = train_run(tmp_path / "first", config, Task("standard", 0.0, 0.0, 0), None, "cpu")
    child = train_run(tmp_path / "second", config, Task("at", 0.0, 0.1, 0), parent, "cpu")
    counts = [float(policy.spec.notes["ppo returns"].strip("[]").split(",")[2]) for policy in (parent, child)]
    assert counts == pytest.approx([24, 48], abs=1e-3)
