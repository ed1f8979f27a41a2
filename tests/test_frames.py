"""How deep a training step and a stored score lie below the command line, in functions and files of ours."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bcl
from bcl.api import measuring
from bcl.cli.main import main
from bcl.config import resolve
from bcl.runs import store

PACKAGE = Path(bcl.__file__).parent
TINY = [
    "--dqn.steps=200",
    "--dqn.num_envs=4",
    "--dqn.batch_size=8",
    "--dqn.samples_per_step=2",
    "--dqn.buffer_size=100",
    "--dqn.replay_initial=8",
    "--dqn.ramp_steps=100",
    "--evaluation.episodes=1",
]
Frames = list[tuple[str, str]]
"""File and function of each frame of ours, outermost first."""


def frames_below(words: list[str], patch: pytest.MonkeyPatch, where: object, name: str) -> list[Frames]:
    """Those between a command line and each call of a function."""
    found: list[Frames] = []
    called: Callable[..., Any] = getattr(where, name)

    def watched(*arguments: object, **options: object) -> Any:
        stack = [(Path(frame.filename), frame.name) for frame in traceback.extract_stack()]
        found.append([(str(path.relative_to(PACKAGE)), name) for path, name in stack if path.is_relative_to(PACKAGE)])
        return called(*arguments, **options)

    patch.setattr(where, name, watched)
    with pytest.raises(SystemExit, match="0"):
        main(words)
    return found


LEARNING = ["train", "update", "_take_gradient_step"]
PPO = [
    "--algo=ppo",
    "--ppo.steps=64",
    "--ppo.num_envs=4",
    "--ppo.rollout=16",
    "--ppo.batch_size=32",
    "--ppo.epochs=1",
    "--evaluation.episodes=1",
]
# A threshold that the bootstrap misses, so that a phase is trained.
ONE_PHASE = [
    "--bootstrap=vanilla",
    "--curriculum.max_runs=1",
    "--curriculum.adaptive=false",
    "--curriculum.nominal_threshold=1000",
    "--curriculum.attacked_threshold=1000",
]


@pytest.mark.parametrize(
    ("recipe", "options", "trained_by", "frames_in_files"),
    [
        ("at", TINY, ("experiment/run.py", "_train_once"), (11, 6)),
        # A curriculum stands between the stages and a run.
        ("bcl-mos-at", [*TINY, *ONE_PHASE], ("experiment/phases.py", "_train"), (14, 8)),
        ("at", PPO, ("experiment/run.py", "_train_once"), (11, 6)),
        ("bcl-mos-at", [*PPO, *ONE_PHASE], ("experiment/phases.py", "_train"), (14, 8)),
        # Repeats are one loop more, in the file that a single run begins in.
        ("at", [*TINY, "--repeats=2"], ("api/training.py", "finish_repeats"), (12, 6)),
        ("bcl-mos-at", [*TINY, *ONE_PHASE, "--repeats=2"], ("api/training.py", "finish_repeats"), (15, 8)),
    ],
    ids=["at", "bcl-mos-at", "at, ppo", "bcl-mos-at, ppo", "at, repeats", "bcl-mos-at, repeats"],
)
def test_a_training_step_is_near_the_command(
    recipe: str,
    options: list[str],
    trained_by: tuple[str, str],
    frames_in_files: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    words = ["train", "cartpole", "--recipe", recipe, "--out", str(tmp_path / "run"), "--device", "cpu"]
    frames = frames_below([*words, *options], monkeypatch, torch.Tensor, "backward")[-1]
    assert trained_by in frames
    learner = "learners/ppo.py" if "--algo=ppo" in options else "learners/dqn.py"
    assert frames[-len(LEARNING) :] == [(learner, name) for name in LEARNING]
    assert (len(frames), len({file for file, _ in frames})) == frames_in_files, frames


def test_a_stored_score_is_near_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = tmp_path / "p.safetensors"
    bcl.save(measuring.untrained_policy(resolve("cartpole").game, "cpu"), policy)
    words = ["attack", str(policy), "--eps", "0.1", "--episodes", "1"]
    found = frames_below(words, monkeypatch, store, "append_row")
    assert len(found) == 2  # without attack, and PGD-10
    for frames in found:
        assert ("api/evaluating.py", "evaluate") in frames
        assert len(frames) + 1 <= 7, frames  # `append_row` itself writes
