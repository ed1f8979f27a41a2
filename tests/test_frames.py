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
    "--evaluation.max_steps=5",
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


LEARNING = [
    ("learners/dqn.py", "train"),
    ("learners/dqn.py", "update"),
    ("device.py", "__call__"),
    ("learners/dqn.py", "_take_gradient_step"),
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
    ("recipe", "options", "trained_by", "most_frames", "most_files"),
    [
        ("at", [], ("experiment/run.py", "_train_once"), 14, 8),
        # A curriculum stands between the stages and a run.
        ("bcl-mos-at", ONE_PHASE, ("experiment/phases.py", "_train"), 18, 10),
    ],
    ids=["at", "bcl-mos-at"],
)
def test_a_training_step_is_near_the_command(
    recipe: str,
    options: list[str],
    trained_by: tuple[str, str],
    most_frames: int,
    most_files: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    words = ["train", "cartpole", "--recipe", recipe, "--out", str(tmp_path / "run"), "--device", "cpu", *TINY]
    frames = frames_below([*words, *options], monkeypatch, torch.Tensor, "backward")[-1]
    assert trained_by in frames
    assert frames[-len(LEARNING) :] == LEARNING
    assert len(frames) <= most_frames, frames
    assert len({file for file, _ in frames}) <= most_files, frames


def test_a_stored_score_is_near_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = tmp_path / "p.safetensors"
    bcl.save(measuring.untrained_policy(resolve("cartpole").game, "cpu"), policy)
    words = ["attack", str(policy), "--eps", "0.1", "--episodes", "1"]
    found = frames_below(words, monkeypatch, store, "append_row")
    assert len(found) == 2  # without attack, and PGD-10
    for frames in found:
        assert ("api/evaluating.py", "evaluate") in frames
        assert len(frames) + 1 <= 10  # `append_row` itself writes
