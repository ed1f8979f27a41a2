"""How deep a training step lies below the command line, in functions and files of ours."""

import traceback
from pathlib import Path

import pytest
import torch

import bcl
from bcl.cli.main import main

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


def frames_at_the_gradient(monkeypatch: pytest.MonkeyPatch, out: Path) -> list[tuple[str, str]]:
    """File and function of each frame of ours between `bcl train --recipe at` and the last gradient, outermost first."""
    found: list[tuple[str, str]] = []
    backward = torch.Tensor.backward

    def watched(loss: torch.Tensor, *arguments: object, **options: object) -> None:
        stack = [(Path(frame.filename), frame.name) for frame in traceback.extract_stack()]
        found[:] = [(str(path.relative_to(PACKAGE)), name) for path, name in stack if path.is_relative_to(PACKAGE)]
        backward(loss, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "backward", watched)
    with pytest.raises(SystemExit, match="0"):
        main(["train", "cartpole", "--recipe", "at", "--out", str(out), "--device", "cpu", *TINY])
    return found


LEARNING = [
    ("learners/dqn.py", "train"),
    ("learners/dqn.py", "update"),
    ("device.py", "__call__"),
    ("learners/dqn.py", "_take_gradient_step"),
]
FRAMES, FILES = 14, 8  # at most, the learner's own included


def test_a_training_step_is_near_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    frames = frames_at_the_gradient(monkeypatch, tmp_path / "run")
    assert frames[-len(LEARNING) :] == LEARNING
    assert len(frames) <= FRAMES
    assert len({file for file, _ in frames}) <= FILES
